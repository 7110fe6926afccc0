//! Runs the handler's locks, the free list and the references to blocks in every interleaving of a few steps, with
//! every value that relaxed memory could show. These are the engine's own files on the atomics of a concurrency checker
//! (loom), with a model of the futex.

// The models do not use all of each file.
#![allow(dead_code)]

#[macro_use]
extern crate hugefork_kernels as _;

#[path = "../src/pool/bits.rs"]
mod bits;
#[path = "../src/pool/frames.rs"]
mod frames;
#[path = "../src/sync/gate.rs"]
mod gate;
#[path = "../src/sync/region_lock.rs"]
mod region_lock;
#[path = "../src/sync/wait_queue.rs"]
mod wait_queue;
#[path = "../src/sync/word_lock.rs"]
mod word_lock;

mod primitive {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};

    use super::gate::Fences;
    pub(crate) use super::{wait, wait_at_most, wake};

    pub(crate) type FenceError = ();

    /// To the checker, looking more than once is the same step.
    pub(crate) const SPINS: u32 = 1;

    pub(crate) fn spin_loop() {}

    /// The checker has no barriers on other threads, so a light fence is a full one here. That is what the other side's
    /// heavy fence makes of it for a thread that stores before it and loads after it.
    pub(crate) fn light_fence(_fences: Fences) {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_fence(_fences: Fences) -> Result<(), FenceError> {
        fence(Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn is_forked_child() -> bool {
        false
    }
}

/// The engine's modules that the free list and the references use.
mod sync {
    pub(crate) use super::wait_queue::WaitQueue;

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    }
}

mod mem {
    pub(crate) type EngineBox<T> = Box<T>;

    pub(crate) fn zeroed<T: Default>(count: usize) -> EngineBox<[T]> {
        (0..count).map(|_| T::default()).collect()
    }
}

mod table {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Reserved {
        Yes,
        No,
    }
}

mod units {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct BlockId(pub(crate) u32);

    impl BlockId {
        pub(crate) fn index(self) -> usize {
            self.0 as usize
        }

        pub(crate) fn offset(self, by: usize) -> BlockId {
            BlockId(self.0 + by as u32)
        }
    }
}

use std::time::Duration;

use bits::FreeBits;
use frames::{Content, Frames, Wanted};
use gate::{Fences, Gate, NotClosed, Seat};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use primitive::{AtomicU32, Ordering};
use region_lock::RegionLock;
use table::Reserved;
use units::BlockId;
use word_lock::WordLock;

loom::lazy_static! {
    /// The lock of the kernel's futex bucket: a sleeper compares the word under it, and a waker takes it after it has
    /// changed the word.
    static ref BUCKET: Mutex<()> = Mutex::new(());
    /// The number of wakes. A thread that waits for a wake that never comes loops until the checker gives up.
    static ref WAKES: AtomicU32 = AtomicU32::new(0);
}

fn wait(word: &AtomicU32, seen: u32) {
    let held = BUCKET.lock().unwrap();
    let before = WAKES.load(Ordering::SeqCst);
    let is_changed = word.load(Ordering::SeqCst) != seen;
    drop(held);
    while !is_changed && WAKES.load(Ordering::SeqCst) == before {
        thread::yield_now();
    }
}

fn wake(_word: &AtomicU32, _count: u32) {
    let _held = BUCKET.lock().unwrap();
    WAKES.fetch_add(1, Ordering::SeqCst);
}

/// May wake at any time.
fn wait_at_most(_word: &AtomicU32, _seen: u32, _most: Duration) {
    thread::yield_now();
}

struct Guarded<L> {
    lock: L,
    value: UnsafeCell<u32>,
}

// SAFETY: the value is touched only under the lock; if it is not, the checker fails the test.
unsafe impl<L: Sync> Sync for Guarded<L> {}
// SAFETY: as above.
unsafe impl<L: Send> Send for Guarded<L> {}

fn guarded<L>(lock: L) -> Arc<Guarded<L>> {
    Arc::new(Guarded { lock, value: UnsafeCell::new(0) })
}

fn add<L>(guarded: &Guarded<L>) {
    // SAFETY: the caller holds the lock, which the checker verifies.
    guarded.value.with_mut(|value| unsafe { *value += 1 });
}

fn read<L>(guarded: &Guarded<L>) -> u32 {
    // SAFETY: as above.
    guarded.value.with(|value| unsafe { *value })
}

/// Runs `here` and `there` at once, in every order, and then checks the sum that they have added up.
fn race<L: Default + Sync + Send + 'static>(here: fn(&Guarded<L>), there: fn(&Guarded<L>), sum: u32) {
    loom::model(move || {
        let shared = guarded(L::default());
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || there(&shared))
        };
        here(&shared);
        other.join().unwrap();
        assert_eq!(read(&shared), sum);
    });
}

#[test]
fn a_word_lock_lets_one_in_and_wakes_who_waits() {
    fn once(guarded: &Guarded<WordLock>) {
        let _held = guarded.lock.lock();
        add(guarded);
    }
    race(once, once, 2);
}

#[test]
fn trying_for_a_word_lock_never_breaks_it() {
    loom::model(|| {
        let shared = guarded(WordLock::default());
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let tried = shared.lock.try_lock();
                if tried.is_some() {
                    add(&shared);
                }
                u32::from(tried.is_some())
            })
        };
        {
            let _held = shared.lock.lock();
            add(&shared);
        }
        let tried = other.join().unwrap();
        let _held = shared.lock.lock();
        assert_eq!(read(&shared), 1 + tried);
    });
}

fn snapshot(guarded: &Guarded<RegionLock>) {
    let _alone = guarded.lock.exclusive();
    add(guarded);
}

fn fault(guarded: &Guarded<RegionLock>) {
    let _inside = guarded.lock.shared();
    read(guarded);
}

#[test]
fn a_snapshot_is_alone_and_wakes_who_waits() {
    race(snapshot, snapshot, 2);
    race(snapshot, fault, 1);
    race(fault, fault, 0);
}

/// If `block` is free, takes it, writes to it, and gives it back. Returns how often: 1 or 0.
fn use_block(free: &Guarded<FreeBits>, block: usize) -> u32 {
    let taken = free.lock.take(block);
    if taken {
        add(free);
        free.lock.put(block);
    }
    u32::from(taken)
}

#[test]
fn a_free_block_is_given_to_one_who_sees_what_was_written_and_is_found_again() {
    // The second block is in a word that only the hint leads to.
    for (blocks, block) in [(1, 0_usize), (65, 64)] {
        loom::model(move || {
            let free = guarded(FreeBits::all(blocks));
            let from = block.saturating_sub(1);
            assert!(from == block || free.lock.take(from));
            let other = {
                let free = Arc::clone(&free);
                thread::spawn(move || use_block(&free, block))
            };
            let uses = use_block(&free, block) + other.join().unwrap();
            assert!(uses > 0, "the first to come finds it");
            assert_eq!(free.lock.next(from), Some(block), "nobody finds it any more");
            assert!(free.lock.take(block));
            assert_eq!(read(&free), uses);
        });
    }
}

const BLOCK: BlockId = BlockId(0);
const OTHER: BlockId = BlockId(1);

/// A pool with one free block. Another block is taken for good.
fn one_free() -> Arc<Guarded<Frames>> {
    let frames = guarded(Frames::new(2));
    assert!(frames.lock.take(OTHER, 0, 0, Wanted::Any, Reserved::No).is_some_and(|taken| taken.first == OTHER));
    frames
}

/// The same, with two holders of the block.
fn held_by_two() -> Arc<Guarded<Frames>> {
    let frames = one_free();
    assert!(take(&frames));
    frames.lock.add_reference(BLOCK);
    frames
}

/// Takes the block if it is free, by asking for the other one. If it asked for the block itself, it would read the
/// block's word first, and could see by that read alone what the holders did.
fn take(frames: &Guarded<Frames>) -> bool {
    let taken = frames.lock.take(OTHER, 0, 0, Wanted::Any, Reserved::No);
    taken.inspect(|taken| assert_eq!(taken.first, BLOCK)).is_some()
}

/// Checks all orders in which threads are interrupted at most three times; all others would take minutes.
fn in_orders(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn who_takes_a_block_comes_after_all_who_have_held_it() {
    in_orders(|| {
        let frames = held_by_two();
        // Each thread reads the block, gives it up, and takes it if it is free by then.
        let hold = |frames: &Guarded<Frames>| {
            read(frames);
            let was_last = frames.lock.drop_reference(BLOCK, Reserved::No);
            let taken = take(frames);
            if taken {
                add(frames);
            }
            (was_last, taken)
        };
        let other = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || hold(&frames))
        };
        let (here, there) = (hold(&frames), other.join().unwrap());
        assert!(here.0 != there.0, "one of them is the last");
        assert!(here.1 != there.1, "the last one finds it free, and nobody else has it too");
        assert_eq!((read(&frames), frames.lock.references(BLOCK), frames.lock.free()), (1, 1, 0));
    });
}

#[test]
fn who_is_left_alone_with_a_block_may_write_to_it() {
    in_orders(|| {
        let frames = held_by_two();
        let other = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || {
                read(&frames);
                assert!(!frames.lock.drop_reference(BLOCK, Reserved::No));
            })
        };
        if frames.lock.references(BLOCK) == 1 {
            add(&frames);
        }
        other.join().unwrap();
        assert_eq!(frames.lock.references(BLOCK), 1);
        assert!(frames.lock.drop_reference(BLOCK, Reserved::Yes));
        assert_eq!((frames.lock.available(), frames.lock.reserved()), (0, 1));
    });
}

#[test]
fn a_block_that_is_given_out_and_comes_back_is_counted_once() {
    in_orders(|| {
        let frames = one_free();
        let once = |frames: &Guarded<Frames>| {
            let taken = take(frames);
            if taken {
                add(frames);
                frames.lock.set_content(BLOCK, Content::Used);
                assert!(frames.lock.drop_reference(BLOCK, Reserved::No));
            }
            u32::from(taken)
        };
        let other = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || once(&frames))
        };
        let taken = once(&frames) + other.join().unwrap();
        assert!(taken > 0, "the first to come finds it");
        assert_eq!((frames.lock.available(), frames.lock.used_and_free(), frames.lock.zeroed()), (1, 1, 0));
        assert!(take(&frames) && frames.lock.content(BLOCK) == Content::Used);
        assert_eq!(read(&frames), taken);
    });
}

/// A gate, a seat for each thread (sync/gate.rs), and two words. Threads write both words while they are inside the
/// gate, so a cut must never come between the two writes.
struct Gated {
    gate: Gate,
    seats: Vec<Seat>,
    words: [UnsafeCell<u32>; 2],
}

// SAFETY: threads touch the words only inside the gate or while it is closed; otherwise the checker fails the test.
unsafe impl Sync for Gated {}
// SAFETY: as above.
unsafe impl Send for Gated {}

impl Gated {
    fn with(seats: usize) -> Arc<Gated> {
        let seats = (0..seats).map(|_| Seat::default()).collect();
        let words = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Gated { gate: Gate::new(Fences::Asymmetric), seats, words })
    }

    /// Runs one operation.
    fn write(&self, seat: usize) {
        let seat = &self.seats[seat];
        self.gate.enter(seat);
        for word in &self.words {
            // SAFETY: nobody else writes, and a cut reads only while nobody is inside, which the checker verifies.
            word.with_mut(|word| unsafe { *word += 1 });
        }
        assert!(self.gate.leave(seat));
    }

    /// Takes a cut and returns what it shows.
    fn cut(&self) -> [u32; 2] {
        let sleep = |_: &_, word: &AtomicU32, seen| {
            wait(word, seen);
            true
        };
        self.gate.close(self.seats.iter(), sleep).unwrap();
        // SAFETY: nobody is inside, which the checker verifies.
        let seen = [0, 1].map(|nth: usize| self.words[nth].with(|word| unsafe { *word }));
        self.gate.open();
        seen
    }
}

#[test]
fn a_cut_has_all_of_an_operation_or_nothing_of_it() {
    in_orders(|| {
        let gated = Gated::with(2);
        let writer = {
            let gated = Arc::clone(&gated);
            thread::spawn(move || {
                gated.write(0);
                gated.write(1);
            })
        };
        let [first, second] = gated.cut();
        assert_eq!(first, second);
        writer.join().unwrap();
        assert_eq!(gated.cut(), [2, 2]);
    });
}

#[test]
fn who_is_inside_enters_again_though_a_cut_waits() {
    in_orders(|| {
        let gated = Gated::with(1);
        let writer = {
            let gated = Arc::clone(&gated);
            thread::spawn(move || {
                gated.gate.enter(&gated.seats[0]);
                gated.write(0);
                gated.gate.leave(&gated.seats[0]);
                assert!(!gated.gate.leave(&gated.seats[0]), "it is outside");
            })
        };
        let [first, second] = gated.cut();
        assert_eq!(first, second);
        writer.join().unwrap();
    });
}

#[test]
fn a_cut_that_gives_up_leaves_the_gate_open() {
    in_orders(|| {
        let gated = Gated::with(1);
        let writer = {
            let gated = Arc::clone(&gated);
            thread::spawn(move || gated.write(0))
        };
        match gated.gate.close(gated.seats.iter(), |_, _, _| false) {
            Ok(()) => gated.gate.open(),
            Err(NotClosed::Inside(seat)) => assert!(std::ptr::eq(seat, &gated.seats[0])),
            Err(NotClosed::NoFence(())) => unreachable!("there is one"),
        }
        writer.join().unwrap();
        assert_eq!(gated.cut(), [1, 1]);
    });
}
