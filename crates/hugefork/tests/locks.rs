//! The handler's locks and the free list in every interleaving of a few steps, with every value that relaxed memory
//! could show. These are the engine's own files, on the atomics of a concurrency checker, with a model of the futex.

// The models do not use all of each.
#![allow(dead_code)]

#[path = "../src/pool/bits.rs"]
mod bits;
#[path = "../src/sync/region_lock.rs"]
mod region_lock;
#[path = "../src/sync/word_lock.rs"]
mod word_lock;

mod primitive {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

    pub(crate) use super::{wait, wake};

    /// To look more than once is the same step to the checker.
    pub(crate) const SPINS: u32 = 1;

    pub(crate) fn spin_loop() {}
}

/// What the free list is made of.
mod sync {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

mod own {
    use super::sync::atomic::AtomicU64;

    pub(crate) type Boxed<T> = Box<T>;

    pub(crate) fn zeroed(count: usize) -> Boxed<[AtomicU64]> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }
}

use bits::FreeBits;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use primitive::{AtomicU32, Ordering};
use region_lock::RegionLock;
use word_lock::WordLock;

loom::lazy_static! {
    /// The kernel's bucket: whoever waits compares under it, and whoever wakes has changed the word before taking it.
    static ref BUCKET: Mutex<()> = Mutex::new(());
    /// The number of wakes. Whoever waits for one that never comes goes round until the checker gives up.
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

struct Guarded<L> {
    lock: L,
    value: UnsafeCell<u32>,
}

// SAFETY: the value is touched under the lock; if it is not, the checker fails the test.
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

/// Runs `here` and `there` at once, in every order, and then looks at the sum of what they added.
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

/// Takes a block if it is there, writes to it, and gives it back. Returns how often.
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
