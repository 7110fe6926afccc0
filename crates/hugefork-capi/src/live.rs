//! Which handles are open: the addresses of all that were given out.
//!
//! What a program hands in is looked up here before any byte of it is read. So a handle that is closed and a pointer
//! that never was one are found out, whatever is at that address now. A whole call of `hf_region_len` takes 10 ns, with
//! one handle open or a thousand.
//!
//! ```text
//!   HEADS[hash of the address] ─▶ place ─▶ place ─▶ …
//!
//!   place:   free ── enter ──▶ open ── close ──▶ closed ── after KEPT others were closed ──▶ free
//! ```
//! Invariant: an address is in one place at most, and while it is in one, malloc(3) gives it to nobody else.
//!
//! Places stay for good and are used again, and no lock is taken: a child of fork(2), whose parent may have held any,
//! finds its handles too. Addresses are kept as their complement, so that LeakSanitizer, which follows pointers,
//! reports handles that only stand here.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{iter, ptr};

/// So many chains: with as many handles open, a look-up reads two or three places.
const CHAINS: usize = 1 << 13;

/// The memory of so many closed handles is kept back. Until as many others are closed, an address is known as closed.
pub(crate) const KEPT: usize = 1024;

/// An address of a handle.
struct Place {
    /// 0 if it is free. Otherwise the complement of an address, whose lowest bit says whether the handle is open.
    address: AtomicUsize,
    next: *const Place,
}

static HEADS: [AtomicPtr<Place>; CHAINS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHAINS];

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Open,
    Closed,
    /// It is of no handle, or of one that was closed long ago.
    Never,
}

/// Addresses are even, so that their complements are odd.
fn as_open(address: usize) -> usize {
    debug_assert!(address.is_multiple_of(2));
    !address
}

fn as_closed(address: usize) -> usize {
    as_open(address) - 1
}

fn head(address: usize) -> &'static AtomicPtr<Place> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = (address as u64).wrapping_mul(GOLDEN) >> (u64::BITS - CHAINS.trailing_zeros());
    &HEADS[hash as usize]
}

fn places(head: &'static AtomicPtr<Place>) -> impl Iterator<Item = &'static Place> {
    // SAFETY: places stay for good, and what a pointer to one leads to was written before the pointer.
    let place = |at: *const Place| unsafe { at.as_ref() };
    iter::successors(place(head.load(Ordering::Acquire)), move |here| place(here.next))
}

/// What is known of any address.
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

/// Enters a handle that is to be given out.
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

/// Marks a handle as closed. False if it is not open: of several threads that close one, one gets true.
pub(crate) fn close(address: usize) -> bool {
    replace(address, as_open(address), as_closed(address))
}

/// Forgets a closed handle, whose memory is to be given back.
pub(crate) fn forget(address: usize) {
    let was_closed = replace(address, as_closed(address), 0);
    debug_assert!(was_closed);
}

fn replace(address: usize, from: usize, to: usize) -> bool {
    let change = |place: &Place| place.address.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    places(head(address)).any(change)
}

/// The memory of closed handles, in the order in which they were closed.
pub(crate) struct KeptBack<T> {
    next: AtomicUsize,
    kept: [AtomicPtr<T>; KEPT],
}

impl<T> KeptBack<T> {
    pub(crate) const fn new() -> KeptBack<T> {
        KeptBack { next: AtomicUsize::new(0), kept: [const { AtomicPtr::new(ptr::null_mut()) }; KEPT] }
    }

    /// Keeps one more. Returns the one in whose place it is; null at first.
    pub(crate) fn swap(&self, closed: *mut T) -> *mut T {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % KEPT;
        self.kept[nth].swap(closed, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that malloc never gives, so that other tests do not use them.
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
        let all = || (0..CHAINS).map(|nth| places(&HEADS[nth]).count()).sum::<usize>();
        for nth in 0..20 * CHAINS {
            let address = address(1000 + nth % 4);
            enter(address);
            assert!(chain(address) > 0);
            assert!(close(address));
            forget(address);
        }
        // Other tests have some, too.
        assert!(all() < 2000, "{}", all());
    }

    #[test]
    fn threads_find_their_own() {
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
    fn memory_comes_back_after_as_many_others() {
        let (kept, mut numbers) = (KeptBack::new(), vec![0_u8; KEPT + 1]);
        let (last, first) = numbers.split_last_mut().unwrap();
        assert!(first.iter_mut().all(|number| kept.swap(number).is_null()));
        assert_eq!(kept.swap(last), &raw mut first[0]);
    }
}
