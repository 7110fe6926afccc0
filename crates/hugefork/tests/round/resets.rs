//! Resets while calls are refused. Players write to a region of its own, the stage, and directors reset it.
//!
//! ```text
//!   players    write in places of their own, in an order of their own: a place shows the last value written there, or
//!              its value in a snapshot
//!   directors  take snapshots of the stage, and reset it to one of them: beside the players and each other, or while
//!              all others wait. Then each page must be as in the snapshot or, if calls were refused, as before
//! ```

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use hugefork::{Region, RegionError, ResetError, Snapshot};

use super::{PAGE, Plan, count_of, had, stamp, word};
use crate::common::random::Random;

pub(crate) const PLAYERS: usize = 2;
pub(crate) const DIRECTORS: usize = 2;
/// The writer number of the first player.
const FIRST: u64 = 4;
/// The writer number of the first director.
const DIRECTOR: u64 = 6;
/// Number of scattered pages of each player.
const SPARSE: usize = 20;
/// Number of each player's pages in a row: enough that a block of them is promoted.
const DENSE: usize = 60;
/// The offset in a page at which directors write.
const DIRECTED: usize = 1024;
/// Number of snapshots that a director keeps.
const KEPT: usize = 3;
/// Tries of a reset whose calls may be refused.
const TRIES: usize = 400;
/// Times that a director checks whether all players wait.
const LOOKS: usize = 400;

/// The region that is reset, and the values in its snapshots.
pub(crate) struct Stage<'a> {
    region: &'a Region,
    plan: &'a Plan,
    /// For each player, the places where it writes, in its order.
    orders: [Vec<usize>; PLAYERS],
    /// Held shared by each player while it goes through its places.
    playing: RwLock<()>,
    /// Number of directors that wait to be alone.
    wanted: AtomicU64,
    /// Held by each director during a reset: exclusively if all other threads must stand still.
    directing: RwLock<()>,
    /// For each snapshot, its values at the players' places.
    known: Mutex<Vec<HashMap<usize, u64>>>,
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    /// Whether a failed reset has dropped pages that it could not put back.
    is_shaken: AtomicBool,
}

/// A snapshot, and the bytes that it must have.
struct Scene {
    snapshot: Snapshot,
    bytes: Vec<u8>,
}

fn word_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl<'a> Stage<'a> {
    pub(crate) fn new(region: &'a Region, plan: &'a Plan) -> Stage<'a> {
        let (mut random, pages) = (plan.random(FIRST), region.len() / PAGE);
        let orders = core::array::from_fn(|player| {
            let start = random.below(pages - DENSE);
            let mut order: Vec<usize> = (start..start + DENSE).collect();
            order.extend((0..SPARSE).map(|_| random.below(pages)));
            order.sort_unstable();
            order.dedup();
            for _ in 0..SPARSE {
                let (one, other) = (random.below(order.len()), random.below(order.len()));
                order.swap(one, other);
            }
            order.into_iter().map(|page| page * PAGE + player * 64).collect()
        });
        Stage {
            region,
            plan,
            orders,
            playing: RwLock::default(),
            wanted: AtomicU64::new(0),
            directing: RwLock::default(),
            known: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            is_shaken: AtomicBool::new(false),
        }
    }

    /// The number of resets, and how many of them failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.ended.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Whether any snapshot has these values at these places.
    fn was(&self, values: &[(usize, u64)]) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| values.iter().all(|(at, value)| known.get(at) == Some(value)))
    }

    /// Writes until the round is over.
    pub(crate) fn play(&self, player: usize, over: &AtomicBool) {
        let (who, order) = (FIRST + player as u64, &self.orders[player]);
        let (mut count, mut counts) = (0, vec![0; order.len()]);
        while !over.load(Ordering::Relaxed) {
            while self.wanted.load(Ordering::SeqCst) > 0 && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let _playing = self.playing.read().unwrap_or_else(PoisonError::into_inner);
            count += 1;
            for nth in 0..order.len() {
                let before = (self.ended.load(Ordering::SeqCst), self.begun.load(Ordering::SeqCst));
                let failed = self.failed.load(Ordering::SeqCst);
                self.check(who, order[nth], counts[nth]);
                word(self.region, order[nth]).store(stamp(who, order[nth] / 8, count), Ordering::SeqCst);
                counts[nth] = count;
                if nth > 0 {
                    self.check_pair(who, [order[nth - 1], order[nth]], count, before, failed);
                }
            }
        }
    }

    /// Checks that a place shows the last value written there, or its value in a snapshot.
    fn check(&self, who: u64, at: usize, count: u64) {
        let there = word(self.region, at).load(Ordering::SeqCst);
        let found = count_of(there, who, at / 8);
        let is_dropped = there == 0 && self.is_shaken.load(Ordering::SeqCst);
        assert!(found == count || is_dropped || self.was(&[(at, there)]), "{at} of {who} shows {found} for {count}");
    }

    /// Checks a pair of writes: if the earlier one survives, the later one does too. Without a reset in between, both
    /// survive.
    fn check_pair(&self, who: u64, [one, two]: [usize; 2], count: u64, before: (u64, u64), failed: u64) {
        let read = |at: usize| word(self.region, at).load(Ordering::SeqCst);
        let is_there = read(two) == stamp(who, two / 8, count);
        let begun = self.begun.load(Ordering::SeqCst);
        if before.0 == before.1 && begun == before.1 {
            assert!(is_there, "a write of {who} was lost at {two}");
        }
        if is_there {
            return;
        }
        // A reader is not held during a reset, so this looks at the earlier write only when the reset is over.
        while self.ended.load(Ordering::SeqCst) < begun {
            std::thread::yield_now();
        }
        let [later, earlier] = [two, one].map(read);
        let is_torn = later != stamp(who, two / 8, count) && earlier == stamp(who, one / 8, count);
        let is_one_reset = self.begun.load(Ordering::SeqCst) <= before.0 + 1;
        if is_torn && is_one_reset && !self.was(&[(two, later), (one, earlier)]) {
            // A write may outlive a later one only if the kernel refused a call of the reset.
            let is_refused = self.failed.load(Ordering::SeqCst) != failed;
            assert!(is_refused, "of {who}, {two} is gone and {one} is not");
        }
    }

    /// Resets the stage again and again, until the round is over.
    pub(crate) fn direct(&self, director: usize, over: &AtomicBool) {
        let (mut scenes, mut random) = (Vec::new(), self.plan.random(DIRECTOR + director as u64));
        while !over.load(Ordering::Relaxed) {
            if scenes.is_empty() || random.one_in(4) {
                if scenes.len() == KEPT {
                    scenes.swap_remove(random.below(KEPT));
                }
                scenes.extend(self.take());
            }
            if !scenes.is_empty() {
                let nth = random.below(scenes.len());
                let is_there = if random.one_in(3) {
                    self.set_back_alone(&scenes[nth], &mut random, over)
                } else {
                    self.set_back(&scenes[nth].snapshot)
                };
                if !is_there || (random.one_in(4) && !self.is_as_it_was(&scenes[nth])) {
                    scenes.swap_remove(nth);
                }
            }
            std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
        }
    }

    fn take(&self) -> Option<Scene> {
        let snapshot = had(self.region.snapshot(), self.plan)?;
        let mut bytes = vec![0; self.region.len()];
        // Its blocks may have been taken away meanwhile.
        had(snapshot.read_at(0, &mut bytes), self.plan)?;
        let known = self.orders.iter().flatten().map(|&at| (at, word_of(&bytes, at))).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push(known);
        Some(Scene { snapshot, bytes })
    }

    /// Checks that a snapshot has not changed. False if its blocks were taken away.
    fn is_as_it_was(&self, scene: &Scene) -> bool {
        let mut bytes = vec![0; scene.bytes.len()];
        let Some(()) = had(scene.snapshot.read_at(0, &mut bytes), self.plan) else { return false };
        assert!(bytes == scene.bytes, "a snapshot has changed");
        true
    }

    fn reset(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let came = self.region.reset_to(snapshot);
        self.failed.fetch_add(u64::from(came.is_err()), Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
        came
    }

    /// Tries one reset. False if the snapshot's blocks were taken away.
    fn set_back(&self, snapshot: &Snapshot) -> bool {
        let came = {
            let _one_of_several = self.directing.read().unwrap_or_else(PoisonError::into_inner);
            self.reset(snapshot)
        };
        let Err(ResetError { reason, .. }) = came else { return true };
        let is_there = reason != RegionError::Revoked;
        had::<()>(Err(reason), self.plan);
        is_there
    }

    /// Resets the stage while the players wait. False if the snapshot's blocks were taken away.
    fn set_back_alone(&self, scene: &Scene, random: &mut Random, over: &AtomicBool) -> bool {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0;
        let alone = loop {
            match self.playing.try_write() {
                Ok(alone) => break Some(alone),
                // A player may be waiting for memory that only a director can give back.
                Err(_) if looks == LOOKS || over.load(Ordering::Relaxed) => break None,
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
            looks += 1;
        };
        let came = alone.as_ref().map(|_| {
            let _alone = self.directing.write().unwrap_or_else(PoisonError::into_inner);
            self.set_back_and_compare(scene, random)
        });
        drop(alone);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        came.unwrap_or(true)
    }

    /// A random part of the stage.
    fn some(&self, random: &mut Random) -> Range<usize> {
        let start = random.below(self.region.len() / PAGE) * PAGE;
        start..self.region.len().min(start + PAGE * (1 + random.below(700)))
    }

    fn set_back_and_compare(&self, scene: &Scene, random: &mut Random) -> bool {
        let (region, plan) = (self.region, self.plan);
        let (some, mut pinned) = (self.some(random), None);
        let mut may_be_zero = 0..0;
        for _ in 0..random.below(8) {
            let page = random.below(region.len() / PAGE);
            let value = stamp(DIRECTOR, page, random.next() & 0xffff | 1);
            word(region, page * PAGE + DIRECTED).store(value, Ordering::Relaxed);
        }
        match random.below(8) {
            0 => drop(had(region.discard(some), plan)),
            1 => {
                let _ = had(region.lazy_free(some.clone()), plan);
                may_be_zero = some;
            }
            2 => drop(had(region.prepare_write(some), plan)),
            3 => pinned = had(region.pin(some), plan),
            _ => {}
        }
        for _ in 0..TRIES {
            let before = self.bytes();
            let came = self.reset(&scene.snapshot);
            let now = self.bytes();
            let done = came.as_ref().map_or_else(|error| error.done, |()| region.len());
            assert!(now[..done] == scene.bytes[..done], "{came:?}: it is not as the snapshot");
            for at in (done..region.len()).step_by(PAGE) {
                let page = at..at + PAGE;
                let is_one_of_both =
                    now[page.clone()] == before[page.clone()] || now[page.clone()] == scene.bytes[page.clone()];
                let is_dropped = may_be_zero.contains(&at) && now[page].iter().all(|&byte| byte == 0);
                assert!(is_one_of_both || is_dropped, "{came:?}: {at} is neither as it was nor as the snapshot");
            }
            let Err(ResetError { reason, .. }) = came else { return true };
            let is_there = reason != RegionError::Revoked;
            had::<()>(Err(reason), plan);
            if !is_there {
                break;
            }
        }
        drop(pinned);
        self.is_shaken.store(true, Ordering::SeqCst);
        false
    }

    /// All bytes of the stage, to which nobody writes at the moment.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.region.len()];
        // SAFETY: the region is as long, and the players wait.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.region.as_mut_ptr(), bytes.len()) };
        bytes
    }
}
