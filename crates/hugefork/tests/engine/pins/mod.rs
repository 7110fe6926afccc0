//! Owned pins: the memory stays in place, whatever becomes of its region.

mod beside_cuts;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use crate::common::alone::alone;
use crate::common::forked::check_fork;
use crate::common::wait::until;
use crate::common::{BACKINGS, Over, pool};
use hugefork::{Backing, BlockSize, OwnedPin, Pool, Region, RegionError, RegionOptions, Reserve};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// The end of one block and the beginning of the next.
const PINNED: Range<usize> = BLOCK - PAGE..BLOCK + PAGE;

/// A file of pages, each filled with its number.
fn pages(count: u8) -> File {
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: nobody else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    (0..count).for_each(|value| file.write_all(&[value; PAGE]).unwrap());
    file
}

/// The progress of a device, for other threads.
#[derive(Default)]
struct Progress {
    /// Rounds that it has begun.
    begun: AtomicU64,
    /// Rounds that it has ended.
    ended: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// Waits until rounds have ended that began after this call.
    fn wait_for_rounds(&self) {
        let enough = self.begun.load(Ordering::Acquire) + 3;
        until("a device that writes", || {
            assert!(!self.is_over.load(Ordering::Relaxed), "the device has failed");
            self.ended.load(Ordering::Acquire) >= enough
        });
    }
}

/// Starts a device that writes to the pinned bytes as `io_uring` would, past the region: a store writes a number into
/// the first word, and the kernel writes a page of one value behind the first page. In each round it checks that its
/// last writes are still there.
fn start_device<'scope>(
    scope: &'scope Scope<'scope, '_>,
    pin: OwnedPin,
    progress: &'scope Progress,
) -> ScopedJoinHandle<'scope, OwnedPin> {
    const VALUES: u8 = 8;
    scope.spawn(move || {
        let _over = Over(&progress.is_over);
        let source = pages(VALUES);
        assert_eq!(pin.as_non_null().len(), 2 * PAGE);
        let base: *mut u8 = pin.as_non_null().as_ptr().cast();
        // SAFETY: the first pinned word, which other threads read as a word or not at all.
        let word = unsafe { AtomicU64::from_ptr(base.cast()) };
        let page = base.wrapping_add(PAGE);
        let mut round = 0;
        while !progress.is_over.load(Ordering::Relaxed) {
            if round > 0 {
                assert_eq!(word.load(Ordering::Relaxed), round, "another memory is here");
                // SAFETY: the last pinned byte.
                let last = unsafe { page.add(PAGE - 1).read_volatile() };
                assert_eq!(u64::from(last), round % u64::from(VALUES), "another memory is here");
            }
            round += 1;
            progress.begun.store(round, Ordering::Release);
            word.store(round, Ordering::Release);
            let offset = (round % u64::from(VALUES)) as i64 * PAGE as i64;
            // SAFETY: the second pinned page.
            let read = unsafe { libc::pread(source.as_raw_fd(), page.cast(), PAGE, offset) };
            assert_eq!(read, PAGE as isize, "not writable: {}", std::io::Error::last_os_error());
            progress.ended.store(round, Ordering::Release);
        }
        pin
    })
}

/// Whether each byte has the value. It compares page by page, since a debug build is slow byte by byte.
fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.chunks(PAGE).all(|page| *page == [value; PAGE][..page.len()])
}

fn word_in(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[PINNED.start..][..8].try_into().unwrap())
}

/// Takes a copy while the device writes. Checks that it has a number that the device wrote meanwhile, and that all
/// other bytes are as they should be.
fn check_cut(progress: &Progress, others: u8, take: impl FnOnce() -> Vec<u8>) {
    let ended = progress.ended.load(Ordering::Acquire);
    let copy = take();
    let begun = progress.begun.load(Ordering::Acquire);
    let word = word_in(&copy);
    assert!((ended..=begun).contains(&word), "{word} was not written from {ended} to {begun}");
    assert!(is_all(&copy[..PINNED.start], others) && is_all(&copy[PINNED.end..], others));
}

#[test]
fn a_device_writes_while_the_region_is_copied_freed_discarded_and_dropped() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 16 * BLOCK, BlockSize::MIB_2) else { continue };
            let mut region = pool.region(4 * BLOCK).unwrap();
            region.as_mut_slice().fill(1);
            let (pin, progress) = (region.pin_owned(PINNED).unwrap(), Progress::default());
            let pin = std::thread::scope(|scope| {
                let _over = Over(&progress.is_over);
                let device = start_device(scope, pin, &progress);
                progress.wait_for_rounds();
                for _ in 0..20 {
                    check_cut(&progress, 1, || region.snapshot().unwrap().to_vec());
                    check_cut(&progress, 1, || region.fork().unwrap().as_mut_slice().to_vec());
                }
                // The lazily freed blocks beside the pinned ones are dropped; the pinned ones are skipped.
                let freed = region.lazy_free(0..4 * BLOCK).unwrap();
                assert_eq!((freed.freed, freed.pinned), (2 * BLOCK, 2 * BLOCK));
                assert_eq!(pool.reclaim(usize::MAX), Ok(2 * BLOCK));
                progress.wait_for_rounds();
                region.prepare_write(3 * BLOCK..4 * BLOCK).unwrap();
                region.discard(2 * BLOCK..4 * BLOCK).unwrap();
                // A part of a pinned block to which the device does not write.
                region.discard(0..PINNED.start).unwrap();
                let held = region.snapshot().unwrap();
                let word = word_in(&held);
                assert!(is_all(&held[..PINNED.start], 0) && is_all(&held[2 * BLOCK..], 0));
                assert!(is_all(&held[PINNED.end..2 * BLOCK], 1));
                drop(region);
                progress.wait_for_rounds();
                assert_eq!(word_in(&held), word, "a snapshot changes");
                assert_eq!(pool.stats().regions, 1);
                // Another region takes all free blocks, and keeps its bytes.
                drop(held);
                assert_eq!(pool.stats().blocks_free, 14);
                let mut others = pool.region(14 * BLOCK).unwrap();
                others.as_mut_slice().fill(0xee);
                progress.wait_for_rounds();
                assert!(is_all(others.as_mut_slice(), 0xee), "the device writes to others");
                progress.is_over.store(true, Ordering::Relaxed);
                device.join().unwrap()
            });
            // SAFETY: nobody writes any more.
            let bytes = unsafe { pin.as_non_null().as_ref() };
            let rounds = progress.ended.load(Ordering::Acquire);
            assert_eq!(bytes[..8], rounds.to_ne_bytes());
            assert!(is_all(&bytes[8..PAGE], 1));
            assert!(is_all(&bytes[PAGE..], (rounds % 8) as u8));
            check_gone(&pool, pin);
        }
    })
    .well();
}

/// Checks that the drop of a region's last holder gives all of it back.
#[track_caller]
fn check_gone<T>(pool: &Pool, last: T) {
    assert_eq!(pool.stats().regions, 1);
    drop(last);
    let stats = pool.stats();
    assert_eq!((stats.regions, stats.blocks_free, stats.blocks_leaked), (0, stats.blocks, 0));
}

#[test]
fn discarding_what_is_pinned_sets_it_to_zero_where_it_is() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 4 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let pin = region.pin_owned(PINNED).unwrap();
        region.discard(0..4 * BLOCK).unwrap();
        assert_eq!(pool.stats().blocks_free, 2);
        let bytes = pin.as_non_null();
        assert_eq!(bytes.as_ptr().cast::<u8>(), region.as_mut_ptr().wrapping_add(PINNED.start));
        // SAFETY: pinned, and nobody else writes.
        assert!(is_all(unsafe { bytes.as_ref() }, 0));
        // SAFETY: as above.
        unsafe { bytes.as_ptr().cast::<u8>().write(9) };
        assert_eq!(region.snapshot().unwrap()[PINNED.start], 9);
        drop(region);
        // SAFETY: as above.
        assert_eq!(unsafe { bytes.as_ptr().cast::<u8>().read() }, 9);
        check_gone(&pool, pin);
    }
}

#[test]
fn whoever_goes_last_gives_the_memory_back() {
    for last in 0..4 {
        let pool = pool(Backing::ShmemBase, 4 * BLOCK, BlockSize::MIB_2).unwrap();
        let region = pool.region(4 * BLOCK).unwrap();
        region.populate().unwrap();
        let pins = [0..0, 0..1, BLOCK..4 * BLOCK].map(|range| region.pin_owned(range).unwrap());
        assert_eq!(pins.each_ref().map(OwnedPin::range), [0..0, 0..1, BLOCK..4 * BLOCK]);
        assert_eq!(pins.each_ref().map(|pin| pin.as_non_null().len()), [0, 1, 3 * BLOCK]);
        let borrowed = region.pin(0..1).unwrap();
        drop(borrowed);
        let mut holders: Vec<Box<dyn Send>> = pins.map(|pin| Box::new(pin) as Box<dyn Send>).into();
        holders.push(Box::new(region));
        let last = holders.remove(last);
        std::thread::scope(|scope| holders.into_iter().for_each(|holder| _ = scope.spawn(|| drop(holder))));
        assert_eq!(pool.stats().blocks_free, 0);
        check_gone(&pool, last);
    }
}

#[test]
fn a_pin_keeps_its_pool() {
    let pin = {
        let pool = Pool::builder().name("test").capacity(4 * BLOCK).build().unwrap();
        pool.region(BLOCK).unwrap().pin_owned(0..BLOCK).unwrap()
    };
    // SAFETY: pinned, and nobody else knows it.
    unsafe { pin.as_non_null().as_mut() }.fill(3);
    // SAFETY: as above.
    assert!(is_all(unsafe { pin.as_non_null().as_ref() }, 3));
}

#[test]
fn owned_and_borrowed_pins_are_counted_together() {
    let pool = Pool::builder().name("test").capacity(4 * BLOCK).build().unwrap();
    let region = pool.region(2 * BLOCK).unwrap();
    let owned: Vec<_> = (0..254).map(|_| region.pin_owned(0..1).unwrap()).collect();
    let borrowed = region.pin(0..1).unwrap();
    assert_eq!(region.pin_owned(0..2 * BLOCK).map(drop), Err(RegionError::TooManyPins));
    assert_eq!(region.lazy_free(BLOCK..2 * BLOCK).unwrap().pinned, 0, "what failed pins nothing");
    drop(borrowed);
    drop(region.pin_owned(0..2 * BLOCK).unwrap());
    drop(owned);
    assert_eq!(region.lazy_free(0..BLOCK).unwrap().freed, BLOCK);
    let out = region.pin_owned(0..2 * BLOCK + 1).map(drop);
    assert!(matches!(out, Err(RegionError::OutOfRange { .. })), "{out:?}");
}

/// The region keeps its reservation, and the block that it would have given to another region's snapshot.
#[test]
fn a_region_without_a_handle_keeps_what_it_was_promised() {
    let pool = Pool::builder().name("test").capacity(8 * BLOCK).build().unwrap();
    let options = RegionOptions::new().reserve(Reserve::Full);
    let region = pool.region_with(4 * BLOCK, options).unwrap();
    let pin = region.pin_owned(0..1).unwrap();
    drop(region);
    assert_eq!((pool.stats().blocks_reserved, pool.stats().blocks_free), (3, 4));
    check_gone(&pool, pin);
}

fn pinned(region: &Region) -> OwnedPin {
    region.pin_owned(PINNED).unwrap()
}

#[test]
fn a_child_of_fork_drops_pins_and_changes_nothing() {
    crate::common::alone::alone(|| {
        let pool = Pool::builder().name("test").capacity(8 * BLOCK).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(4);
        let (mut one, mut two) = (Some(pinned(&region)), Some(pinned(&region)));
        check_fork(|| {
            assert_eq!(region.pin_owned(0..1).map(drop), Err(RegionError::ForkedChild));
            assert_eq!(one.as_ref().unwrap().range(), PINNED);
            drop((one.take(), two.take()));
        });
        drop(region);
        drop(two.take());
        // SAFETY: pinned, and nobody else uses it.
        assert!(is_all(unsafe { one.as_ref().unwrap().as_non_null().as_ref() }, 4));
        check_gone(&pool, one.take());
        assert_eq!(pool.stats().mappings, 0);
    })
    .well();
}
