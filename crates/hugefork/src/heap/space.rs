//! The memory of a heap. All that the allocator knows lies in the region itself, at its beginning:
//!
//! ```text
//!   header | a record for each slab | large allocations ─▶        (free)        ◀─ slabs, each 64 KiB
//!   shards, ends                                         low                high
//! ```
//! **Small allocations** (up to 8 KiB) are *slots* of slabs. All slots of a slab have one size, which is that of the
//! layout, rounded up: so a freed slot needs no size of its own. A slab belongs to a *shard*, and a shard to the thread
//! whose place at the heap's operations has the same number (api/operations.rs). So a thread allocates from its shard,
//! and frees to it, without a lock and without an atomic exchange. A thread that frees a slot of another thread's shard
//! pushes it to that shard's list of returned slots, which the shard's thread takes when it needs slots. Threads beyond
//! the number of shards share the last shard under a lock.
//!
//! **Large allocations** come from one `talc` under a lock. It gets more of the free space as it needs some.
//!
//! A cut waits until no thread is inside an operation, and each function here runs inside one. So a snapshot has the
//! locks free, and no shard half changed.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use crate::sync::WordLock;

/// The size of a slab, and its alignment within the heap.
const SLAB: usize = 64 << 10;

/// The largest slot. A slab has eight of these.
const MAX_SLOT: usize = 8 << 10;

/// Slots that are made at once have this size together: a new slab takes memory page by page.
const BATCH: usize = 4 << 10;

/// Eight sizes up to 64 bytes, then four for each doubling. The first class is for no size.
const CLASSES: usize = 9 + 4 * 7;

const SHARDS: usize = 64;

/// There are no more shards than the heap has such pieces: each shard may keep a slab of each class.
const MIN_LEN_OF_SHARD: usize = 8 << 20;

/// Large allocations get this much space more than they need, or up to that.
const STEP: usize = 1 << 20;

/// The end of a list of free slots.
const NONE: u32 = u32::MAX;

/// The smallest heap: it has room for the header and for some allocations of each kind.
pub(super) const MIN_LEN: usize = 256 << 10;

/// The length of the part that a new heap writes to.
pub(super) const HEADER_LEN: usize = size_of::<Header>();

/// The class of a size from 1 to [`MAX_SLOT`].
#[inline]
const fn class_of(size: usize) -> usize {
    // Without a branch: sizes vary. Up to 64, all steps are those of the doubling from 32 on.
    let log2 = ((size - 1) | 32).ilog2() as usize;
    (log2 - 5) * 4 + ((size - 1) >> (log2 - 2)) + 1
}

const fn size_of_class(class: usize) -> usize {
    if class <= 8 { class * 8 } else { (5 + (class - 9) % 4) << (4 + (class - 9) / 4) }
}

/// The size of the slot for `layout`, at most rounded up to its class. A slot begins at a multiple of its size in a
/// slab, and the size of the class has each power of two up to the step of its doubling as a factor. So a multiple of
/// the alignment gets an aligned slot.
#[inline]
fn slot_size(layout: Layout) -> usize {
    // No overflow: a layout's size is at most `isize::MAX` when rounded up to its alignment.
    (layout.size() + layout.align() - 1) & !(layout.align() - 1)
}

/// Whether memory of a layout is a slot.
#[inline]
pub(super) fn is_small(layout: Layout) -> bool {
    // Not no size, either.
    slot_size(layout).wrapping_sub(1) < MAX_SLOT
}

/// The record of one slab. The threads of its shard change it; other threads read `shard` only, of slabs in which they
/// have a slot. Neighbours belong to different threads, so a record fills a cache line.
#[repr(C, align(64))]
struct Slab {
    /// Offset of the first free slot in the slab. A free slot begins with the offset of the next one.
    free: u32,
    /// The number of slots that are allocated or returned.
    used: u32,
    /// The offset from which on no slot was made yet.
    fresh: u32,
    /// The slabs around it in the list of its shard and class, or the next spare one. Zero is none: the header lies
    /// there.
    next: u32,
    prev: u32,
    shard: u16,
    class: u8,
    /// A slab without free slots leaves its list.
    is_listed: bool,
}

/// The slabs of one shard with free slots, for each class. Each list ends with slab 0, whose record has no free slot.
#[repr(C, align(128))]
struct Shard {
    lists: [u32; CLASSES],
}

/// The slots of a shard that other threads have freed. A returned slot begins with the address of the next one.
#[repr(C, align(128))]
struct Returned(AtomicPtr<u8>);

/// Both ends of the free space, in bytes from the beginning, and the parts beyond them.
struct Ends {
    low: usize,
    high: usize,
    /// A list of slabs that no shard has.
    spare: u32,
    large: Talc<Manual, DefaultBinning>,
    /// The end of the memory of `large`; `None` before its first use.
    large_end: Option<NonNull<u8>>,
}

#[repr(C)]
struct Header {
    shards: [UnsafeCell<Shard>; SHARDS],
    returned: [Returned; SHARDS],
    /// Guards the last shard.
    shared: WordLock,
    /// Guards `ends`. A thread may take it while it has `shared`.
    lock: WordLock,
    ends: UnsafeCell<Ends>,
}

/// The memory of a heap, see the head of this file.
#[derive(Clone, Copy)]
pub(super) struct Space {
    header: NonNull<Header>,
    slabs: NonNull<Slab>,
    /// The last shard, which all threads share whose place has no other.
    shared: usize,
}

impl Space {
    /// A new heap in `len` bytes at `base`.
    ///
    /// # Safety
    /// The memory must be zeroed and aligned to a base page, have at least [`MIN_LEN`] bytes, stay valid as long as the
    /// result is used, and be used by nobody else.
    pub(super) unsafe fn lay_out(base: NonNull<u8>, len: usize) -> Space {
        let records = size_of::<Header>().next_multiple_of(align_of::<Slab>());
        let low = (records + len.div_ceil(SLAB) * size_of::<Slab>()).next_multiple_of(align_of::<Slab>());
        // SAFETY: `low` lies below `MIN_LEN`, or below the 64th part of a longer heap. Zeroes are values of all fields
        // of the header but `ends`, which is written here.
        unsafe {
            let shared = (len / MIN_LEN_OF_SHARD).clamp(1, SHARDS) - 1;
            let space = Space { header: base.cast(), slabs: base.add(records).cast(), shared };
            // The slabs begin at multiples of their size, counted from the beginning: so do the slots.
            let ends = Ends { low, high: len / SLAB * SLAB, spare: 0, large: Talc::new(Manual), large_end: None };
            space.header.as_ref().ends.get().write(ends);
            (*space.record(0)).free = NONE;
            space
        }
    }

    /// Whether the thread with this place at the heap's operations has a shard of its own.
    #[inline]
    pub(super) fn is_own(&self, place: usize) -> bool {
        place < self.shared
    }

    /// Memory for a layout whose size is not zero; `None` if the heap is full. `place` is the caller's place at the
    /// heap's operations, inside of which it is.
    pub(super) fn allocate(&self, place: Option<usize>, layout: Layout) -> Option<NonNull<u8>> {
        if is_small(layout) {
            self.in_shard(place, |shard| self.take_free_slot(shard, layout).or_else(|| self.make_slots(shard, layout)))
        } else {
            self.allocate_large(layout)
        }
    }

    /// Frees an allocation.
    ///
    /// # Safety
    /// It must be one of this heap, of this layout, which nobody uses any more.
    pub(super) unsafe fn free(&self, place: Option<usize>, at: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches for the allocation. So no thread gives its slab to another shard.
        unsafe {
            if is_small(layout) {
                let shard = usize::from((*self.record(self.offset_of(at) / SLAB)).shard);
                if place.is_some_and(|place| place == shard && self.is_own(place)) {
                    self.free_slot(shard, at);
                } else {
                    self.return_slot(shard, at);
                }
            } else {
                self.at_ends(|ends| ends.large.deallocate(at.as_ptr(), layout));
            }
        }
    }

    /// Makes an allocation one of layout `new`, if it can remain where it is.
    ///
    /// # Safety
    /// As for [`Space::free`] with `old`, except that the caller may use the allocation. No size may be zero.
    pub(super) unsafe fn resize(&self, at: NonNull<u8>, old: Layout, new: Layout) -> bool {
        if !at.addr().get().is_multiple_of(new.align()) || is_small(old) != is_small(new) {
            return false;
        }
        if is_small(old) {
            return class_of(slot_size(old)) == class_of(slot_size(new));
        }
        // SAFETY: the caller vouches for the allocation. `talc` looks at the size of a layout alone.
        self.at_ends(|ends| unsafe { ends.large.try_realloc_in_place(at.as_ptr(), old, new.size()) })
    }

    /// The first byte of the heap.
    #[inline]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.header.cast()
    }

    fn header(&self) -> &Header {
        // SAFETY: it is valid, see `lay_out`, and all of it that changes lies in cells.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn record(&self, slab: usize) -> *mut Slab {
        // Without an assertion: a slab of the heap has a record.
        self.slabs.as_ptr().wrapping_add(slab)
    }

    #[inline]
    fn offset_of(&self, at: NonNull<u8>) -> usize {
        at.addr().get() - self.header.addr().get()
    }

    #[inline]
    fn at(&self, slab: usize, offset: usize) -> *mut u8 {
        self.header.as_ptr().cast::<u8>().wrapping_add(slab * SLAB + offset)
    }

    /// Calls `body` with the number of the caller's shard, which no other thread uses meanwhile.
    fn in_shard<T>(&self, place: Option<usize>, body: impl FnOnce(usize) -> T) -> T {
        match place {
            Some(own) if self.is_own(own) => body(own),
            _ => {
                let _locked = self.header().shared.lock();
                body(self.shared)
            }
        }
    }

    /// The first slab of a list.
    ///
    /// # Safety
    /// The calling thread must have the shard, as long as it uses the result.
    #[inline]
    unsafe fn first(&self, shard: usize, class: usize) -> *mut u32 {
        debug_assert!(shard < SHARDS && class < CLASSES);
        // SAFETY: both are in range, and the caller has the shard.
        unsafe { (&raw mut (*self.header().shards.get_unchecked(shard).get()).lists).cast::<u32>().add(class) }
    }

    fn at_ends<T>(&self, body: impl FnOnce(&mut Ends) -> T) -> T {
        let _locked = self.header().lock.lock();
        // SAFETY: under the lock.
        body(unsafe { &mut *self.header().ends.get() })
    }

    /// A slot for a small layout, from the shard of the calling thread, if the first slab of its list has one.
    #[inline]
    pub(super) fn take_free_slot(&self, shard: usize, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(slot_size(layout));
        // SAFETY: the caller has the shard, and with it the records of its slabs. Nobody changes record 0, which has no
        // free slot. A free slot is memory of the heap that begins with an offset.
        unsafe {
            let first = *self.first(shard, class) as usize;
            let slab = self.record(first);
            let free = (*slab).free;
            if free == NONE {
                return None;
            }
            let slot = self.at(first, free as usize);
            (*slab).free = slot.cast::<u32>().read();
            (*slab).used += 1;
            NonNull::new(slot)
        }
    }

    /// Makes slots for a small layout free, and takes one.
    fn make_slots(&self, shard: usize, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(slot_size(layout));
        let list = &self.header().returned[shard].0;
        let is_empty = list.load(Ordering::Relaxed).is_null(); // an exchange costs more
        let mut returned = if is_empty { ptr::null_mut() } else { list.swap(ptr::null_mut(), Ordering::Acquire) };
        while let Some(slot) = NonNull::new(returned) {
            // SAFETY: a returned slot is one of this shard, which the caller has; it begins with the next one.
            unsafe {
                returned = slot.cast::<*mut u8>().read();
                self.free_slot(shard, slot);
            }
        }
        let size = size_of_class(class);
        // SAFETY: as in `take_free_slot`. Bytes of a slab from `fresh` on are no slots yet.
        unsafe {
            loop {
                let mut first = *self.first(shard, class) as usize;
                if first == 0 {
                    first = self.take_slab(shard, class)?;
                }
                let slab = self.record(first);
                let fresh = (*slab).fresh as usize;
                let count = ((SLAB - fresh) / size).min((BATCH / size).max(1));
                if (*slab).free == NONE && count == 0 {
                    self.unlist(slab);
                    continue;
                }
                if (*slab).free == NONE {
                    for nth in 0..count {
                        let next = if nth + 1 < count { (fresh + (nth + 1) * size) as u32 } else { NONE };
                        self.at(first, fresh + nth * size).cast::<u32>().write(next);
                    }
                    (*slab).free = fresh as u32;
                    (*slab).fresh = (fresh + count * size) as u32;
                }
                return self.take_free_slot(shard, layout);
            }
        }
    }

    /// Frees a slot if its slab belongs to the calling thread's shard, and remains where it is in the lists.
    ///
    /// # Safety
    /// The calling thread must have the shard, and nobody else may use the slot.
    #[inline]
    pub(super) unsafe fn put_back_slot(&self, shard: usize, at: NonNull<u8>) -> bool {
        let offset = self.offset_of(at);
        let slab = self.record(offset / SLAB);
        // SAFETY: the slab has a slot of the caller's, so no thread gives it to another shard. If the shard is the
        // caller's, so is the rest of the record.
        unsafe {
            if usize::from((*slab).shard) != shard
                || !(*slab).is_listed
                || (*slab).used == 1 && ((*slab).next | (*slab).prev) != 0
            {
                return false;
            }
            at.cast::<u32>().write((*slab).free);
            (*slab).free = (offset % SLAB) as u32;
            (*slab).used -= 1;
        }
        true
    }

    /// # Safety
    /// The calling thread must have the shard, and with it the slot, which nobody else uses.
    unsafe fn free_slot(&self, shard: usize, at: NonNull<u8>) {
        let slab = self.record(self.offset_of(at) / SLAB);
        // SAFETY: the slot and the record belong to the caller.
        unsafe {
            if !(*slab).is_listed {
                self.list(shard, slab);
            }
            if !self.put_back_slot(shard, at) {
                // It has no other slot in use, and is not the only one of its list.
                self.unlist(slab);
                self.at_ends(|ends| (*slab).next = core::mem::replace(&mut ends.spare, self.number_of(slab)));
            }
        }
    }

    /// Returns a slot to a shard that the calling thread does not have, or has together with others.
    ///
    /// # Safety
    /// Nobody else may use the slot.
    #[cold]
    unsafe fn return_slot(&self, shard: usize, at: NonNull<u8>) {
        let returned = &self.header().returned[shard].0;
        let mut next = returned.load(Ordering::Relaxed);
        loop {
            // SAFETY: each slot has room for an address.
            unsafe { at.cast::<*mut u8>().write(next) };
            // `Release`: the thread that takes the list sees the addresses in it.
            match returned.compare_exchange_weak(next, at.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => next = changed,
            }
        }
    }

    fn number_of(&self, slab: *mut Slab) -> u32 {
        ((slab.addr() - self.slabs.addr().get()) / size_of::<Slab>()) as u32
    }

    /// Puts a slab into the list of its shard and class, behind the first one. So it gets more free slots before it is
    /// used.
    ///
    /// # Safety
    /// The calling thread must have the shard, and the slab must be in no list.
    unsafe fn list(&self, shard: usize, slab: *mut Slab) {
        // SAFETY: the records of the slabs in a list belong to the caller.
        unsafe {
            let list = self.first(shard, usize::from((*slab).class));
            let prev = *list;
            let to_this = if prev == 0 { list } else { &raw mut (*self.record(prev as usize)).next };
            let next = to_this.replace(self.number_of(slab));
            if next != 0 {
                (*self.record(next as usize)).prev = self.number_of(slab);
            }
            ((*slab).next, (*slab).prev, (*slab).is_listed) = (next, prev, true);
        }
    }

    /// Takes a slab out of its list.
    ///
    /// # Safety
    /// The calling thread must have the shard of the slab, which must be in a list.
    unsafe fn unlist(&self, slab: *mut Slab) {
        // SAFETY: as in `list`.
        unsafe {
            let Slab { next, prev, shard, class, .. } = slab.read();
            if prev == 0 {
                self.first(usize::from(shard), usize::from(class)).write(next);
            } else {
                (*self.record(prev as usize)).next = next;
            }
            if next != 0 {
                (*self.record(next as usize)).prev = prev;
            }
            (*slab).is_listed = false;
        }
    }

    /// Gives a slab to a shard, in its list.
    ///
    /// # Safety
    /// The calling thread must have the shard.
    unsafe fn take_slab(&self, shard: usize, class: usize) -> Option<usize> {
        let taken = self.at_ends(|ends| {
            if ends.spare != 0 {
                let spare = ends.spare as usize;
                // SAFETY: under the lock, the records of spare slabs belong to this thread.
                ends.spare = unsafe { (*self.record(spare)).next };
                return Some(spare);
            }
            ends.high = ends.high.checked_sub(SLAB).filter(|&high| high >= ends.low)?;
            Some(ends.high / SLAB)
        })?;
        let slab = self.record(taken);
        // SAFETY: no list has the slab, and no slot of it is in use.
        unsafe {
            let (shard, class) = (shard as u16, class as u8);
            slab.write(Slab { free: NONE, used: 0, fresh: 0, next: 0, prev: 0, shard, class, is_listed: false });
        }
        // SAFETY: as for this function.
        unsafe { self.list(shard, slab) };
        Some(taken)
    }

    #[cold]
    fn allocate_large(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.at_ends(|ends| {
            loop {
                // SAFETY: the size is not zero. The free space belongs to nobody, and is claimed once.
                unsafe {
                    if let Some(at) = ends.large.try_allocate(layout) {
                        return Some(at);
                    }
                    let (left, begin) = (ends.high - ends.low, self.at(0, ends.low));
                    // The free part of the memory of `large` that lies just below the free space.
                    let free =
                        ends.large_end.map_or(0, |end| end.addr().get() - ends.large.reserved(end).up_to.addr().get());
                    // `talc` may refuse a gap of the layout's own class, whose gaps differ by an eighth.
                    let needed = layout.size() + layout.align();
                    let wanted = (needed + layout.size() / 8).saturating_sub(free) + STEP;
                    let step = wanted.next_multiple_of(STEP).min(left);
                    // An allocation that is too large leaves the free space to others.
                    if left == 0 || left + free < needed {
                        return None;
                    }
                    let claimed = match ends.large_end {
                        Some(end) => Some(ends.large.extend(end, begin.wrapping_add(step))),
                        None => ends.large.claim(begin, step),
                    };
                    ends.large_end = claimed;
                    ends.low += step;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_sizes_that_they_are_for() {
        let mut class = 0;
        for size in 1..=MAX_SLOT {
            assert!(class_of(size) == class || class_of(size) == class + 1, "{size}");
            class = class_of(size);
            assert!(size_of_class(class) >= size && size_of_class(class - 1) < size, "{size}");
            // Rounding adds less than a quarter, and less than 8 bytes to the smallest.
            assert!(size_of_class(class) - size < 8.max(size / 4), "{size}");
        }
        assert_eq!((class, size_of_class(class)), (CLASSES - 1, MAX_SLOT));
    }

    #[test]
    fn slots_are_aligned() {
        for align in (0..=13).map(|log2| 1 << log2) {
            for size in 1..=MAX_SLOT {
                let size = slot_size(Layout::from_size_align(size, align).unwrap());
                assert!(size > MAX_SLOT || size_of_class(class_of(size)).is_multiple_of(align), "{size}, {align}");
            }
        }
    }
}
