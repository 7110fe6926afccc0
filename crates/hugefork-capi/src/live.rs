//! Records the open handles: the addresses of all that were handed out.
//!
//! Each pointer from a program is checked here before any byte of it is read. So a closed handle,
//! or a pointer that never was a handle, is detected whatever is at that address now. A whole call
//! of `hf_region_len` takes 10 ns, with one handle open or a thousand.
//!
//! ```text
//!   HEADS[hash of the address] ─▶ place ─▶ place ─▶ …
//!
//!   place:   free ── enter ──▶ open ── close ──▶ closed ── after MAX_CLOSED others were closed ──▶ free
//! ```
//! Invariant: an address is in at most one place, and while it is in one, malloc(3) returns it to
//! no other caller.
//!
//! Places are never freed but reused, and no lock is taken. So a child of fork(2) finds its handles
//! even if a thread of the parent was in this code at the fork. Addresses are stored as their
//! complement: otherwise LeakSanitizer, which follows pointers, would not report handles that only
//! this table refers to.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{iter, ptr};

/// Number of chains: with as many open handles, a look-up reads two or three places.
const CHAIN_COUNT: usize = 1 << 13;

/// Number of closed handles whose memory is not freed yet. Until as many others are closed, an address is still
/// recognised as closed.
pub(crate) const MAX_CLOSED: usize = 1024;

/// An entry for the address of a handle.
struct Place {
    /// 0 for a free entry. Otherwise the complement of an address, whose lowest bit is 1 for an open handle.
    address: AtomicUsize,
    next: *const Place,
}

static HEADS: [AtomicPtr<Place>; CHAIN_COUNT] = [const { AtomicPtr::new(ptr::null_mut()) }; CHAIN_COUNT];

/// The state of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Open,
    Closed,
    /// It never was a handle, or the handle was closed long ago.
    Never,
}

/// Addresses are even, so their complements are odd.
fn as_open(address: usize) -> usize {
    debug_assert!(address.is_multiple_of(2));
    !address
}

fn as_closed(address: usize) -> usize {
    as_open(address) - 1
}

fn head(address: usize) -> &'static AtomicPtr<Place> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = (address as u64).wrapping_mul(GOLDEN) >> (u64::BITS - CHAIN_COUNT.trailing_zeros());
    &HEADS[hash as usize]
}

fn places(head: &'static AtomicPtr<Place>) -> impl Iterator<Item = &'static Place> {
    // SAFETY: places are never freed, and a place is written before the pointer to it.
    let place = |at: *const Place| unsafe { at.as_ref() };
    iter::successors(place(head.load(Ordering::Acquire)), move |here| place(here.next))
}

/// The state of any address.
pub(crate) fn look_up(address: usize) -> Known {
    if !address.is_multiple_of(2) {
        return Known::Never;
    }
    let mut found = places(head(address)).map(|place| place.address.load(Ordering::Acquire));
    match found.find(|found| found | 1 == as_open(address)) {
        Some(found) if found == as_open(address) => Known::Open,
        Some(_) => Known::Closed,
        None => Known::Never,
    }
}

/// Records a new handle.
pub(crate) fn enter(address: usize) {
    let head = head(address);
    let take = |place: &Place| {
        place.address.compare_exchange(0, as_open(address), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if places(head).any(take) {
        return;
    }
    let new = Box::leak(Box::new(Place { address: AtomicUsize::new(as_open(address)), next: ptr::null() }));
    let mut first = head.load(Ordering::Acquire);
    loop {
        new.next = first;
        match head.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// Marks a handle as closed. Returns false if it is not open: if several threads close one handle, one of them gets
/// true.
pub(crate) fn close(address: usize) -> bool {
    replace(address, as_open(address), as_closed(address))
}

/// Forgets a closed handle, whose memory is about to be freed.
pub(crate) fn forget(address: usize) {
    let was_closed = replace(address, as_closed(address), 0);
    debug_assert!(was_closed);
}

fn replace(address: usize, from: usize, to: usize) -> bool {
    let change = |place: &Place| place.address.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    places(head(address)).any(change)
}

/// The closed handles whose memory is not freed yet, in the order of their closing.
pub(crate) struct ClosedHandles<T> {
    next: AtomicUsize,
    kept: [AtomicPtr<T>; MAX_CLOSED],
}

impl<T> ClosedHandles<T> {
    pub(crate) const fn new() -> ClosedHandles<T> {
        ClosedHandles { next: AtomicUsize::new(0), kept: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CLOSED] }
    }

    /// Adds a handle. Returns the handle that it replaces; null at first.
    pub(crate) fn swap(&self, closed: *mut T) -> *mut T {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % MAX_CLOSED;
        self.kept[nth].swap(closed, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that malloc never returns, so other tests do not use them.
    fn address(nth: usize) -> usize {
        (1 << 60) + nth * 16
    }

    #[test]
    fn a_handle_is_open_then_closed_then_forgotten() {
        let address = address(1);
        assert_eq!(look_up(address), Known::Never);
        enter(address);
        assert_eq!(
            (look_up(address), look_up(address + 1), look_up(address + 16)),
            (Known::Open, Known::Never, Known::Never)
        );
        assert!(close(address) && !close(address));
        assert_eq!(look_up(address), Known::Closed);
        forget(address);
        assert_eq!((look_up(address), look_up(0), look_up(usize::MAX)), (Known::Never, Known::Never, Known::Never));
        assert!(!close(address));
    }

    #[test]
    fn places_are_used_again() {
        let chain = |address| places(head(address)).count();
        let all = || (0..CHAIN_COUNT).map(|nth| places(&HEADS[nth]).count()).sum::<usize>();
        for nth in 0..20 * CHAIN_COUNT {
            let address = address(1000 + nth % 4);
            enter(address);
            assert!(chain(address) > 0);
            assert!(close(address));
            forget(address);
        }
        // Other tests use places, too.
        assert!(all() < 2000, "{}", all());
    }

    #[test]
    fn each_thread_finds_its_own_handles() {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for nth in 0..20_000 {
                        let address = address(10_000 + thread * 100 + nth % 100);
                        enter(address);
                        assert_eq!(look_up(address), Known::Open);
                        assert!(close(address));
                        forget(address);
                        assert_eq!(look_up(address), Known::Never);
                    }
                });
            }
        });
    }

    #[test]
    fn a_closed_handle_is_freed_after_as_many_others() {
        let (kept, mut numbers) = (ClosedHandles::new(), vec![0_u8; MAX_CLOSED + 1]);
        let (last, first) = numbers.split_last_mut().unwrap();
        assert!(first.iter_mut().all(|number| kept.swap(number).is_null()));
        assert_eq!(kept.swap(last), &raw mut first[0]);
    }
}
