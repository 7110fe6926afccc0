//! Threads that write, take cuts, free, discard, pin and reset in one pool, and know what each place must show. Each
//! test adds its own disturbance: refused calls (refused_calls.rs), or signals, forks and mappings of others
//! (stress.rs).
//!
//! ```text
//!   writers    count in places of their own, in an order of their own, so the states that a place or a cut may show
//!              are known
//!   relay      writers hand a number on: if a cut has a writer's number, it has all that the others wrote before it
//!   companion  a second region, to which the relay goes on: a cut of both is one cut
//!   cutters    take cuts, and check them at once, later, and after others were dropped; compare them; export them and
//!              map the exports; make forks and reset those (cutter.rs)
//!   tenant     has the last quarter of the region to itself, for the operations of deeds.rs
//!   watch      knows the times of all writes: a cut shows a moment between its begin and its end (watch.rs)
//!   stage      a third region, which is reset to its snapshots while others write to it (resets.rs)
//! ```
//! Each value names its writer and its place, so a value at another place reveals a block shown to the wrong owner.
//! After each round all accounts must be back in their original state: blocks, reservations, mappings, private pages,
//! addresses.

mod accounts;
mod cutter;
mod deeds;
mod resets;
mod watch;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;

use accounts::Accounts;
use cutter::Cutter;
use deeds::Tenant;
use hugefork::{
    Backing, BlockSize, CopyGrain, Fallback, Pool, PoolBuilder, Region, RegionError, RegionOptions, Reserve,
    ZeroedStock,
};
use resets::{DIRECTORS, PLAYERS, Stage};
use watch::Watch;

use crate::common::random::Random;
use crate::common::refusals::{Kind, Refusals};
use crate::common::{Over, built};

pub(crate) const PAGE: usize = 4096;
const WRITERS: usize = 3;
const CUTTERS: usize = 2;
/// Number of cuts that a cutter keeps while it makes more.
const KEPT: usize = 2;
/// Number of scattered pages of each writer.
const SPARSE: usize = 40;
/// Number of each writer's pages in a row: enough that a block of them is promoted.
const DENSE: usize = 120;
/// The writer number of the tenant, who writes in its own quarter.
pub(crate) const TENANT: u64 = 15;
/// The first writer number of those that write to their own forks.
const SCRIBBLER: u64 = 8;

/// The number of writes that raised `SIGBUS` and were repeated.
pub(crate) static REPEATED: AtomicU64 = AtomicU64::new(0);

/// Whether the round may end when no thread gets any further.
pub(crate) static MAY_GIVE_UP: AtomicBool = AtomicBool::new(false);

/// Repetitions before giving up: half a minute, if nothing else takes time.
const GIVE_UP: u64 = 300_000;

/// A `SIGBUS` handler that returns, as the documents allow: a handler may make room and return. Here room comes by
/// itself, since the next call may not be refused, or since a thread drops a cut in a full pool. Where mappings are
/// few, all threads that could drop some may be waiting for one. So a thread that repeats the same write again and
/// again says so, and ends the round.
pub(crate) extern "C" fn repeat(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    thread_local!(static LAST: core::cell::Cell<(usize, u64)> = const { core::cell::Cell::new((0, 0)) });
    REPEATED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes it, with the address of the write.
    let at = unsafe { (*info).si_addr() } as usize;
    let repeated = LAST.with(|last| {
        let (before, times) = last.get();
        let times = if before == at { times + 1 } else { 0 };
        last.set((at, times));
        times
    });
    if repeated > GIVE_UP && MAY_GIVE_UP.load(Ordering::Relaxed) {
        let said = "\nskipped: the rest of a round in which all wait for mappings that others have\n";
        // SAFETY: both may be called in a handler.
        unsafe {
            libc::write(1, said.as_ptr().cast(), said.len());
            libc::_exit(0);
        }
    }
    // SAFETY: sleeps, which a signal handler may.
    unsafe { libc::usleep(100) };
}

/// The value of a write: its writer, place and count. Zero means that nobody has written there yet.
pub(crate) fn stamp(who: u64, place: usize, count: u64) -> u64 {
    if count == 0 { 0 } else { who << 60 | (place as u64) << 32 | count & 0xffff_ffff }
}

/// The count in a value that `who` may have written to `place`.
#[track_caller]
pub(crate) fn count_of(value: u64, who: u64, place: usize) -> u64 {
    let count = value & 0xffff_ffff;
    assert_eq!(value, stamp(who, place, count), "a value of another place, or of another owner, at {place} of {who}");
    count
}

/// The result of an operation, or `None` if it failed in a way that the plan allows: by a refused call, or for want of
/// memory.
#[track_caller]
pub(crate) fn had<T>(asked: Result<T, RegionError>, plan: &Plan) -> Option<T> {
    match asked {
        Ok(had) => Some(had),
        Err(RegionError::System(_) | RegionError::OutOfMemory { .. } | RegionError::OutOfAddresses { .. })
            if plan.may_fail =>
        {
            None
        }
        Err(RegionError::TooManyMappings { .. }) if plan.may_fail => None,
        Err(RegionError::PoolFull { .. }) if plan.is_tight => None,
        Err(RegionError::Revoked) if plan.may_revoke() => None,
        Err(error) => panic!("another error: {error}"),
    }
}

/// The settings of one round.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) backing: Backing,
    pub(crate) block: BlockSize,
    /// Number of blocks of the region. The stage has half as many, or none if there is no stage.
    pub(crate) blocks: usize,
    pub(crate) has_stage: bool,
    pub(crate) grain: CopyGrain,
    /// Whether the pool has too few blocks for all cuts, so that blocks are revoked.
    pub(crate) is_tight: bool,
    pub(crate) is_limited: bool,
    pub(crate) has_stock: bool,
    /// Number of cuts that each cutter makes.
    pub(crate) cuts: usize,
    /// Whether calls may fail, refused by the test or for want of memory or mappings.
    pub(crate) may_fail: bool,
    /// One in `one_in` calls of these `kinds` is refused.
    pub(crate) one_in: u32,
    pub(crate) kinds: Vec<Kind>,
}

impl Plan {
    pub(crate) fn random(&self, who: u64) -> Random {
        Random::new(self.seed ^ who << 32)
    }

    pub(crate) fn options(&self) -> RegionOptions {
        let options = RegionOptions::new().copy_grain(self.grain).calls_wait(self.grain == CopyGrain::Page);
        if self.is_limited { options.max_cow_bytes(4 << 20) } else { options }
    }

    fn len(&self) -> usize {
        (self.blocks * self.block.bytes()).max(4 << 20)
    }

    fn stage_len(&self) -> usize {
        if self.has_stage { (self.blocks / 2 * self.block.bytes()).max(1 << 20) } else { 0 }
    }

    /// Whether blocks may be taken away from forks and snapshots.
    fn may_revoke(&self) -> bool {
        self.is_tight || self.is_limited
    }
}

/// The places of the counters.
struct Layout {
    len: usize,
    /// For each writer, the places where it counts, in its order.
    orders: Vec<Vec<usize>>,
    relay: [usize; WRITERS],
    companion_len: usize,
    /// For each offset, the writer that counts there, and the index of the place in its order.
    owners: HashMap<usize, (usize, usize)>,
}

impl Layout {
    fn new(plan: &Plan) -> Layout {
        let len = plan.len();
        let mut random = plan.random(99);
        let pages = len / 4 * 3 / PAGE;
        let orders: Vec<Vec<usize>> = (0..WRITERS)
            .map(|writer| {
                let start = random.below(pages - DENSE);
                let mut order: Vec<usize> = (0..SPARSE).map(|_| random.below(pages)).collect();
                order.retain(|page| !(start..start + DENSE).contains(page));
                order.sort_unstable();
                order.dedup();
                let at = random.below(order.len());
                order.splice(at..at, start..start + DENSE);
                let swaps = if random.one_in(2) { order.len() } else { SPARSE / 2 };
                for _ in 0..swaps {
                    let (one, other) = (random.below(order.len()), random.below(order.len()));
                    order.swap(one, other);
                }
                order.into_iter().map(|page| page * PAGE + writer * 64).collect()
            })
            .collect();
        let relay = core::array::from_fn(|writer| random.below(pages) * PAGE + 512 + writer * 8);
        let places = |(writer, order): (usize, &Vec<usize>)| -> Vec<(usize, (usize, usize))> {
            order.iter().enumerate().map(|(nth, &at)| (at, (writer, nth))).collect()
        };
        let owners = orders.iter().enumerate().flat_map(places).collect();
        Layout { len, orders, relay, companion_len: plan.block.bytes().max(256 << 10), owners }
    }

    /// The place in the companion where the relay goes on.
    fn second_relay(&self, writer: usize) -> usize {
        self.relay[writer] % self.companion_len
    }

    fn tenancy(&self) -> Range<usize> {
        self.len / 4 * 3..self.len
    }

    /// Checks that a cut is consistent, and returns what it shows. `read` reads the value at an offset; `None` if its
    /// block was taken away.
    fn check(&self, read: impl Fn(usize) -> Option<u64>) -> Vec<Option<u64>> {
        let mut seen = Vec::new();
        for (writer, order) in self.orders.iter().enumerate() {
            let counts: Vec<Option<u64>> = order
                .iter()
                .enumerate()
                .map(|(nth, &at)| read(at).map(|value| count_of(value, writer as u64 + 1, nth)))
                .collect();
            let there: Vec<u64> = counts.iter().copied().flatten().collect();
            let in_order = there.is_sorted_by(|earlier, later| earlier >= later);
            let is_one_lap = there.first().zip(there.last()).is_none_or(|(first, last)| *first <= last + 1);
            assert!(in_order && is_one_lap, "writer {writer}: {counts:?}");
            seen.extend(counts);
        }
        let relay: Vec<Option<u64>> = self.relay.iter().map(|&at| read(at)).collect();
        seen.extend(&relay);
        last_of(&relay);
        seen
    }

    /// Checks that the snapshot of the companion and that of the region are one cut, as far as the values tell. Returns
    /// the values of the companion.
    fn check_companion(&self, seen: &[Option<u64>], read: impl Fn(usize) -> Option<u64>) -> Vec<Option<u64>> {
        let relay: Vec<Option<u64>> = (0..WRITERS).map(|writer| read(self.second_relay(writer))).collect();
        let first = last_of(&seen[seen.len() - WRITERS..]);
        if let (Some(first), Some(second)) = (first, last_of(&relay)) {
            assert!(first == second || first == second + 1, "relay: {first} here, {second} in the companion");
        }
        relay
    }

    /// Checks all bytes of some pages of a cut: bytes that nobody has written are zero. `scribbled` returns the value
    /// that the fork's owner wrote to a page, if any.
    fn check_pages(&self, random: &mut Random, read: impl Fn(usize) -> Option<u64>, scribbled: impl Fn(usize) -> u64) {
        let pages = self.len / PAGE;
        let first = random.below(pages);
        for page in first..pages.min(first + 24) {
            for at in (page * PAGE..(page + 1) * PAGE).step_by(8) {
                let Some(value) = read(at) else { break };
                if let Some(&(writer, nth)) = self.owners.get(&at) {
                    count_of(value, writer as u64 + 1, nth);
                } else if self.tenancy().contains(&at) && (at % PAGE == 0 || at % PAGE == PAGE - 8) {
                    count_of(value, TENANT, page);
                } else if at % PAGE == SCRIBBLED {
                    assert_eq!(value, scribbled(page), "what a fork's owner wrote to page {page}");
                } else if !self.relay.contains(&at) {
                    assert_eq!(value, 0, "nobody writes to {at}");
                }
            }
        }
    }
}

/// Checks that the relay is consistent, and returns its last number; `None` if some numbers were taken away.
fn last_of(relay: &[Option<u64>]) -> Option<u64> {
    let mut there = relay.iter().copied().collect::<Option<Vec<u64>>>()?;
    there.sort_unstable();
    assert!(there.windows(2).all(|pair| pair[0] + 1 == pair[1]), "relay: {there:?}");
    there.last().copied()
}

/// The offset in a page at which the owner of a fork writes.
const SCRIBBLED: usize = 2048;

/// A word of the region, for threads that write beside each other.
pub(crate) fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= region.len() && at.is_multiple_of(8));
    // SAFETY: it is inside the region, which the reference borrows, and aligned. It is used only as an atomic while
    // other threads may write.
    unsafe { AtomicU64::from_ptr(region.as_mut_ptr().add(at).cast()) }
}

/// Counts, and takes part in the relay, until the round is over. Returns the last count.
fn write(regions: [&Region; 2], layout: &Layout, writer: usize, watch: &Watch, over: &AtomicBool) -> u64 {
    let [region, companion] = regions;
    let (mut count, mut done, who, token) = (0, 0, writer as u64 + 1, &watch.token);
    while !over.load(Ordering::Relaxed) {
        for (nth, &at) in layout.orders[writer].iter().enumerate() {
            let word = word(region, at);
            assert_eq!(word.load(Ordering::Relaxed), stamp(who, nth, count), "a write of {writer} was lost at {at}");
            word.store(stamp(who, nth, count + 1), Ordering::Release);
            done += 1;
            watch.has_done(writer, done);
            let turn = token.load(Ordering::Acquire);
            if turn % WRITERS as u64 == writer as u64 {
                self::word(region, layout.relay[writer]).store(turn, Ordering::Release);
                self::word(companion, layout.second_relay(writer)).store(turn, Ordering::Release);
                token.store(turn + 1, Ordering::Release);
                std::thread::yield_now();
            }
        }
        count += 1;
    }
    count
}

/// The builder of the pool of a round.
fn builder(plan: &Plan, layout: &Layout) -> PoolBuilder {
    let (copies, others) = if plan.is_tight { (2, 2) } else { (2 + CUTTERS * (KEPT + 2), 8) };
    let capacity = copies * layout.len + others * (layout.companion_len + plan.stage_len()) + layout.companion_len;
    let builder =
        Pool::builder().name("test").capacity(capacity).block_size(plan.block).backing(plan.backing).exports(true);
    if !plan.has_stock || plan.backing == Backing::Hugetlb {
        return builder;
    }
    builder.obtain_ahead(16 << 20).zeroed_stock(ZeroedStock::keep(capacity / 4, capacity / 2))
}

/// The disturbance beside a round, until it is over. It gets the region, and a small region that has a reservation.
pub(crate) type Beside<'a> = &'a (dyn Fn(&Region, &Region, &AtomicBool) + Sync);

/// Runs one round. Returns a description; `None` if the machine lacks what it takes.
pub(crate) fn round(plan: &Plan, refusals: &Refusals, beside: Beside<'_>) -> Option<String> {
    let layout = Layout::new(plan);
    let (hidden, punched) = (refusals.refused(Kind::Hide), refusals.refused(Kind::Punch));
    let mappings = Accounts::pool_mappings();
    // A build while calls are refused succeeds, or fails and leaves nothing behind.
    refusals.arm(plan.one_in, &plan.kinds);
    drop(builder(plan, &layout).fallback(Fallback::Refused).build());
    refusals.disarm();
    let pool = built(builder(plan, &layout), plan.backing)?;
    let repeated = REPEATED.load(Ordering::Relaxed);
    let region = pool.region_with(layout.len, plan.options()).unwrap();
    let companion = pool.region_with(layout.companion_len, plan.options()).unwrap();
    let of_others = pool.region_with(layout.companion_len, plan.options().reserve(Reserve::Full)).unwrap();
    let of_stage = plan.has_stage.then(|| pool.region_with(plan.stage_len(), plan.options()).unwrap());
    // The relay starts as if every writer had had its turn.
    for writer in 0..WRITERS {
        word(&region, layout.relay[writer]).store(writer as u64, Ordering::Relaxed);
        word(&companion, layout.second_relay(writer)).store(writer as u64, Ordering::Relaxed);
    }
    let stage = of_stage.as_ref().map(|region| Stage::new(region, plan));
    refusals.arm(plan.one_in, &plan.kinds);
    let (watch, over) = (Watch::new(layout.tenancy()), AtomicBool::new(false));
    let mut cutters = Vec::new();
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let (region, companion, layout) = (&region, &companion, &layout);
        let (watch, over, regions) = (&watch, &over, [region, companion]);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(regions, layout, writer, watch, over))).collect();
        if let Some(stage) = &stage {
            (0..DIRECTORS).for_each(|director| drop(scope.spawn(move || stage.direct(director, over))));
            (0..PLAYERS).for_each(|player| drop(scope.spawn(move || stage.play(player, over))));
        }
        let of_others = &of_others;
        scope.spawn(move || beside(region, of_others, over));
        let tenant = scope.spawn(move || {
            Tenant::new(region, layout.tenancy(), plan, watch).live(over);
        });
        let of_cutters: Vec<_> = (0..CUTTERS as u64)
            .map(|nth| {
                let (who, random) = (SCRIBBLER + nth, plan.random(SCRIBBLER + nth));
                let mut cutter = Cutter { region, companion, layout, plan, watch, who, random, kept: Vec::new() };
                scope.spawn(move || {
                    cutter.cut();
                    cutter.kept
                })
            })
            .collect();
        for cutter in of_cutters {
            cutters.push(cutter.join().unwrap());
        }
        over.store(true, Ordering::Relaxed);
        if plan.is_tight || (plan.may_fail && plan.one_in == 0) {
            // A page that was never written or was discarded has no block that could be taken back from a cut. So in a
            // full pool a first write waits until a thread drops a cut, and by now no other thread does. A write that
            // needs a mapping waits in the same way.
            cutters.clear();
        }
        for (writer, count) in writers.into_iter().map(|writer| writer.join().unwrap()).enumerate() {
            for (nth, &at) in layout.orders[writer].iter().enumerate() {
                let there = word(region, at).load(Ordering::Relaxed);
                assert_eq!(there, stamp(writer as u64 + 1, nth, count), "a write of {writer} was lost at {at}");
            }
        }
        tenant.join().unwrap();
    });
    let faults = region.stats().faults;
    let (resets, refused_resets) = stage.map_or((0, 0), |stage| stage.counts());
    // Some cutters go while calls are refused, some afterwards.
    cutters.pop();
    let is_late = plan.seed.is_multiple_of(2);
    if is_late {
        refusals.disarm();
    }
    drop(cutters);
    drop((region, companion, of_others, of_stage));
    refusals.disarm();
    let lost = refusals.refused(Kind::Hide) - hidden;
    Accounts::check(pool, lost, refusals.refused(Kind::Punch) - punched, mappings);
    let repeated = REPEATED.load(Ordering::Relaxed) - repeated;
    assert!(plan.may_fail || plan.may_revoke() || repeated == 0, "{repeated} writes failed");
    Some(format!(
        "{} by {}, {:?}, one in {} of {} kinds{}{}: {repeated} writes repeated, {lost} not unmapped; \
         {} zeroed, {} copied, {} reused, {} by page, {} written back, {} promoted; \
         {refused_resets} of {resets} resets refused",
        plan.backing,
        plan.block,
        plan.grain,
        plan.one_in,
        plan.kinds.len(),
        if plan.is_tight { ", tight" } else { "" },
        if plan.is_limited { ", limited" } else { "" },
        faults.demand_zero,
        faults.copied,
        faults.reused,
        faults.cow_mapped,
        faults.blocks_written_back,
        faults.blocks_promoted,
    ))
}
