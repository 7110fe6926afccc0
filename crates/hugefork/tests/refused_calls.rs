//! System calls fail while others are at work: threads write by block and by page, take forks and snapshots and drop
//! them, free, discard and pin, the pool's own threads fold and promote, and one call in a few is refused.
//!
//! ```text
//!   writers    count in places of their own, in an order of their own: what a place shows is known, and so is
//!              what a cut may show
//!   relay      writers hand a number on: what one has seen of another's is in every cut that has what it did then
//!   companion  a second region, to which the relay goes on: a cut of both is one cut
//!   cutters    take cuts, look at them at once, later, and after others were dropped; export them and map that; make
//!              forks and set those back
//!   tenant     has the last quarter of the region to itself: deeds.rs has what it does there
//!   stage      a third region, which is set back to its snapshots while others write to it (resets.rs)
//! ```
//! Each value says who wrote it and where, so one at another place is a block that was shown to the wrong owner. After
//! each round all accounts are back where they were: blocks, reservations, mappings, private pages, addresses.
//!
//! `HUGEFORK_REFUSED_SECONDS=1800` goes on for that long, in one process after the other; `HUGEFORK_REFUSED_SEED` is
//! for the seed that a failure names. It decides what is done, not which thread is first.

#[path = "refused_calls/accounts.rs"]
mod accounts;
mod common;
#[path = "refused_calls/deeds.rs"]
mod deeds;
#[path = "refused_calls/resets.rs"]
mod resets;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use accounts::Accounts;
use common::alone::alone;
use common::refusals::{KINDS, Kind, Random, Refusals};
use common::signals::handle_info;
use common::{Over, built};
use deeds::Tenant;
use hugefork::{
    Backing, BlockSize, CopyGrain, Export, Fallback, ImportError, Imported, OnLimit, Pool, PoolBuilder, Region,
    RegionError, RegionOptions, Reserve, Snapshot, ZeroedStock,
};
use resets::{DIRECTORS, PLAYERS, Stage, stage_len};

const PAGE: usize = 4096;
const WRITERS: usize = 3;
const CUTTERS: usize = 2;
/// A cutter keeps so many cuts while it makes more.
const KEPT: usize = 2;
/// Each cutter makes so many cuts in a round.
const CUTS: usize = 6;
/// So many pages of each writer are scattered.
const SPARSE: usize = 40;
/// So many of each lie in a row: enough that a block of them is promoted.
const DENSE: usize = 120;
/// Rounds of the ordinary test.
const ROUNDS: usize = 12;
/// Who writes in its own quarter.
pub(crate) const TENANT: u64 = 15;
/// The first of those that write to their own forks.
const SCRIBBLER: u64 = 8;

/// How often a write ended in `SIGBUS`, and was repeated.
static REPEATED: AtomicU64 = AtomicU64::new(0);

/// As the documents say: a handler may make room and return. Here room comes by itself, since the next call may not be
/// refused, or in a full pool since somebody drops a cut.
extern "C" fn repeat(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    REPEATED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: sleeps, which a signal handler may.
    unsafe { libc::usleep(100) };
}

/// What is written: who, where and how often. Nobody has written zero yet.
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

/// Whether what was asked for could be had. Errors that name a refused call, or memory, are no surprise.
#[track_caller]
pub(crate) fn had<T>(asked: Result<T, RegionError>, plan: &Plan) -> Option<T> {
    match asked {
        Ok(had) => Some(had),
        Err(RegionError::System(_) | RegionError::OutOfMemory { .. } | RegionError::OutOfAddresses { .. }) => None,
        Err(RegionError::PoolFull { .. }) if plan.is_tight => None,
        Err(RegionError::Revoked) if plan.may_revoke() => None,
        Err(error) => panic!("another error: {error}"),
    }
}

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    seed: u64,
    backing: Backing,
    block: BlockSize,
    grain: CopyGrain,
    /// The pool has no room for all cuts, so blocks are revoked.
    is_tight: bool,
    is_limited: bool,
    has_stock: bool,
    one_in: u32,
    kinds: Vec<Kind>,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        let mut random = Random::new(seed);
        let backing = [Backing::ShmemHuge, Backing::ShmemBase, Backing::ShmemBase, Backing::Hugetlb][random.below(4)];
        let block = match backing {
            Backing::Hugetlb => BlockSize::MIB_2,
            _ => [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_64, BlockSize::KIB_4][random.below(4)],
        };
        let grain =
            [CopyGrain::Auto, CopyGrain::Auto, CopyGrain::Page, CopyGrain::Page, CopyGrain::Block][random.below(5)];
        // In some rounds only calls of one kind are refused, and those more often. Where a region cannot be unmapped
        // its blocks are lost, so that is tried in some; of hugetlb, later rounds would have too few pages then.
        let mut kinds: Vec<Kind> = KINDS.into_iter().filter(|&kind| kind != Kind::Hide).collect();
        let mut one_in = [4, 10, 30, 100][random.below(4)];
        match random.below(6) {
            0 if backing != Backing::Hugetlb => kinds.push(Kind::Hide),
            1 => (kinds, one_in) = (vec![kinds[random.below(kinds.len())], Kind::Look], 2),
            _ => {}
        }
        Plan {
            seed,
            backing,
            block,
            grain,
            is_tight: random.one_in(4),
            is_limited: random.one_in(8),
            has_stock: random.one_in(3),
            one_in,
            kinds,
        }
    }

    pub(crate) fn random(&self, who: u64) -> Random {
        Random::new(self.seed ^ who << 32)
    }

    fn options(&self) -> RegionOptions {
        let options = RegionOptions::new().copy_grain(self.grain);
        if self.is_limited { options.max_cow_bytes(4 << 20, OnLimit::Revoke) } else { options }
    }

    /// May blocks be taken away from forks and snapshots?
    fn may_revoke(&self) -> bool {
        self.is_tight || self.is_limited
    }
}

/// The places of the counters.
struct Layout {
    len: usize,
    /// Where each writer counts, in its order.
    orders: Vec<Vec<usize>>,
    relay: [usize; WRITERS],
    companion_len: usize,
    /// Who counts at an offset, and which place in its order that is.
    owners: HashMap<usize, (usize, usize)>,
}

impl Layout {
    fn new(plan: &Plan) -> Layout {
        let len = (8 * plan.block.bytes()).max(4 << 20);
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

    /// Where the relay goes on in the companion.
    fn second_relay(&self, writer: usize) -> usize {
        self.relay[writer] % self.companion_len
    }

    fn tenancy(&self) -> Range<usize> {
        self.len / 4 * 3..self.len
    }

    /// What a cut shows, once it is checked to be consistent. `read` reads the value at an offset, if it is there
    /// still.
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

    /// What a cut shows of the companion, once it is checked to be one with that of the region, if that is known.
    fn check_companion(&self, seen: &[Option<u64>], read: impl Fn(usize) -> Option<u64>) -> Vec<Option<u64>> {
        let relay: Vec<Option<u64>> = (0..WRITERS).map(|writer| read(self.second_relay(writer))).collect();
        let first = last_of(&seen[seen.len() - WRITERS..]);
        if let (Some(first), Some(second)) = (first, last_of(&relay)) {
            assert!(first == second || first == second + 1, "relay: {first} here, {second} in the companion");
        }
        relay
    }

    /// Checks all bytes of some pages of a cut: what nobody has written to is zero. `scribbled`: what the fork's owner
    /// wrote to each page that it wrote to.
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

/// The last number of the relay, once it is checked to be consistent; none if some were taken away.
fn last_of(relay: &[Option<u64>]) -> Option<u64> {
    let mut there = relay.iter().copied().collect::<Option<Vec<u64>>>()?;
    there.sort_unstable();
    assert!(there.windows(2).all(|pair| pair[0] + 1 == pair[1]), "relay: {there:?}");
    there.last().copied()
}

/// Where in a page the owner of a fork writes.
const SCRIBBLED: usize = 2048;

/// A word of the region, for threads that write beside each other.
pub(crate) fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= region.len() && at.is_multiple_of(8));
    // SAFETY: it is inside the region, which the reference borrows, and aligned. It is used as an atomic while others
    // may write.
    unsafe { AtomicU64::from_ptr(region.as_mut_ptr().add(at).cast()) }
}

/// Counts, and takes part in the relay, until it is over. Returns the last count.
fn write(regions: [&Region; 2], layout: &Layout, writer: usize, token: &AtomicU64, over: &AtomicBool) -> u64 {
    let [region, companion] = regions;
    let (mut count, who) = (0, writer as u64 + 1);
    while !over.load(Ordering::Relaxed) {
        for (nth, &at) in layout.orders[writer].iter().enumerate() {
            let word = word(region, at);
            assert_eq!(word.load(Ordering::Relaxed), stamp(who, nth, count), "a write of {writer} was lost at {at}");
            word.store(stamp(who, nth, count + 1), Ordering::Release);
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

enum Cut {
    Snapshot(Snapshot),
    Fork(Region),
}

/// The word at an offset of a snapshot; `None` if it was taken away.
fn word_of(snapshot: &Snapshot, at: usize, plan: &Plan) -> Option<u64> {
    let mut bytes = [0; 8];
    match snapshot.read_at(at, &mut bytes) {
        Ok(()) => Some(u64::from_ne_bytes(bytes)),
        Err(RegionError::Revoked) if plan.may_revoke() => None,
        Err(error) => panic!("a snapshot cannot be read: {error}"),
    }
}

impl Cut {
    /// The word at an offset; `None` if it was taken away.
    fn word(&self, at: usize, plan: &Plan) -> Option<u64> {
        match self {
            Cut::Snapshot(snapshot) => word_of(snapshot, at, plan),
            // Forks are made only where nothing is taken away.
            Cut::Fork(fork) => Some(word(fork, at).load(Ordering::Relaxed)),
        }
    }
}

/// A cut with what it showed first and must still show.
struct Kept {
    cut: Cut,
    seen: Vec<Option<u64>>,
    /// The pages of a fork that its owner wrote to, and what.
    scribbled: HashMap<usize, u64>,
    /// Of the same cut.
    companion: Option<(Snapshot, Vec<Option<u64>>)>,
    export: Option<(Export, Imported)>,
}

/// Takes cuts, and looks at them.
struct Cutter<'a> {
    region: &'a Region,
    companion: &'a Region,
    layout: &'a Layout,
    plan: &'a Plan,
    who: u64,
    random: Random,
    kept: Vec<Kept>,
}

impl Cutter<'_> {
    fn cut(&mut self) {
        for _ in 0..CUTS {
            std::thread::sleep(Duration::from_micros(self.random.below(400) as u64));
            if self.kept.len() == KEPT {
                let nth = self.random.below(KEPT);
                self.kept.swap_remove(nth);
            }
            if let Some(kept) = self.take() {
                self.kept.push(kept);
            }
            if !self.kept.is_empty() {
                let nth = self.random.below(self.kept.len());
                let mut kept = self.kept.swap_remove(nth);
                self.look_again(&mut kept);
                self.kept.push(kept);
            }
        }
    }

    fn take(&mut self) -> Option<Kept> {
        let (plan, layout) = (self.plan, self.layout);
        let (cut, companion) = match self.random.below(if plan.may_revoke() { 2 } else { 4 }) {
            0 => (Cut::Snapshot(had(self.region.snapshot(), plan)?), None),
            1 => {
                let mut cut = had(Region::snapshot_all(&[self.companion, self.region]), plan)?;
                (Cut::Snapshot(cut.pop().unwrap()), cut.pop())
            }
            _ => (Cut::Fork(had(self.region.fork_with(plan.options()), plan)?), None),
        };
        let seen = layout.check(|at| cut.word(at, plan));
        let companion = companion.map(|snapshot| {
            let relay = layout.check_companion(&seen, |at| word_of(&snapshot, at, plan));
            (snapshot, relay)
        });
        Some(Kept { cut, seen, scribbled: HashMap::new(), companion, export: None })
    }

    /// Looks at what was exported of a cut earlier, and exports it.
    fn look_at_export(
        &self,
        snapshot: &Snapshot,
        seen: &[Option<u64>],
        export: Option<(Export, Imported)>,
    ) -> Option<(Export, Imported)> {
        let export = match export {
            Some(export) => export,
            None => {
                let export = had(snapshot.export(), self.plan)?;
                match Imported::map(&export, export.extents()) {
                    Ok(imported) => (export, imported),
                    Err(ImportError::System(_) | ImportError::TooManyMappings { .. }) => return None,
                    Err(error) => panic!("an export cannot be mapped: {error}"),
                }
            }
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            export.1.read_at(at, &mut bytes).unwrap();
            Some(u64::from_ne_bytes(bytes))
        };
        assert_eq!(self.layout.check(word), seen, "what is exported is not the cut");
        Some(export)
    }

    /// Writes to a fork of a snapshot, and sets it back.
    fn set_back(&mut self, snapshot: &Snapshot, seen: &[Option<u64>]) {
        let (layout, plan) = (self.layout, self.plan);
        let is_reserved = self.random.one_in(3);
        let options = if is_reserved { plan.options().reserve(Reserve::Full) } else { plan.options() };
        let fork = match snapshot.fork_with(options) {
            Err(RegionError::NotReservable { .. }) if is_reserved => return,
            fork => fork,
        };
        let Some(fork) = had(fork, plan) else { return };
        let fork = Cut::Fork(fork);
        assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork of a snapshot differs");
        let Cut::Fork(region) = &fork else { unreachable!("a fork") };
        for _ in 0..1 + self.random.below(3) {
            let scribbled = self.scribble(region, 6);
            let is_reset = had(region.reset().map_err(|error| error.reason), plan).is_some();
            for (page, value) in scribbled {
                let there = word(region, page * PAGE + SCRIBBLED).load(Ordering::Relaxed);
                assert!(there == 0 || (!is_reset && there == value), "page {page} shows {there:x} after a reset");
            }
            assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork that was set back differs");
            if !is_reset {
                return;
            }
        }
        // There and back again.
        let Some(Kept { cut: Cut::Snapshot(other), seen: seen_there, .. }) = self.kept.first() else { return };
        for (goal, seen) in [(other, seen_there.as_slice()), (snapshot, seen)] {
            if had(region.reset_to(goal).map_err(|error| error.reason), plan).is_none() {
                return;
            }
            assert_eq!(layout.check(|at| fork.word(at, plan)), seen, "a fork that was set to another snapshot differs");
        }
    }

    /// Writes to some pages of a fork, and says what.
    fn scribble(&mut self, fork: &Region, count: usize) -> HashMap<usize, u64> {
        let mut scribbled = HashMap::new();
        for _ in 0..count {
            let page = self.random.below(self.layout.len / PAGE);
            let value = stamp(self.who, page, self.random.next() & 0xffff | 1);
            word(fork, page * PAGE + SCRIBBLED).store(value, Ordering::Relaxed);
            scribbled.insert(page, value);
        }
        scribbled
    }

    /// Looks at a cut again, at a fork of it, and at what lies between the counters.
    fn look_again(&mut self, kept: &mut Kept) {
        let (layout, plan) = (self.layout, self.plan);
        let now = layout.check(|at| kept.cut.word(at, plan));
        let is_the_same = |(now, then): (&Option<u64>, &Option<u64>)| now == then || now.is_none();
        assert!(now.iter().zip(&kept.seen).all(is_the_same), "a cut has changed");
        kept.seen = now;
        let scribbled = |page: usize| kept.scribbled.get(&page).copied().unwrap_or(0);
        layout.check_pages(&mut self.random, |at| kept.cut.word(at, plan), scribbled);
        if let Some((snapshot, relay)) = &mut kept.companion {
            let now = layout.check_companion(&kept.seen, |at| word_of(snapshot, at, plan));
            assert!(now.iter().zip(relay.iter()).all(is_the_same), "a cut of the companion has changed");
            *relay = now;
        }
        match &kept.cut {
            Cut::Snapshot(snapshot) => {
                if !plan.may_revoke()
                    && let Some(bytes) = had(snapshot.map(), plan)
                {
                    let word = |at: usize| Some(u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()));
                    assert_eq!(layout.check(word), kept.seen, "what is mapped is not what is read");
                }
                if plan.may_revoke() {
                    return;
                }
                kept.export = self.look_at_export(snapshot, &kept.seen, kept.export.take());
                self.set_back(snapshot, &kept.seen);
            }
            Cut::Fork(fork) => {
                kept.scribbled.extend(self.scribble(fork, 6));
                for (&page, &value) in &kept.scribbled {
                    let there = word(fork, page * PAGE + SCRIBBLED).load(Ordering::Relaxed);
                    assert_eq!(there, value, "a write to a fork was lost");
                }
                let Some(second) = had(fork.fork_with(plan.options()), plan) else { return };
                let second = Cut::Fork(second);
                assert_eq!(layout.check(|at| second.word(at, plan)), kept.seen, "a fork of a fork differs");
                let scribbled = |page: usize| kept.scribbled.get(&page).copied().unwrap_or(0);
                layout.check_pages(&mut self.random, |at| second.word(at, plan), scribbled);
            }
        }
    }
}

/// How the pool of a round is built.
fn builder(plan: &Plan, layout: &Layout) -> PoolBuilder {
    let (copies, others) = if plan.is_tight { (2, 2) } else { (2 + CUTTERS * (KEPT + 2), 8) };
    let capacity = copies * layout.len + others * (layout.companion_len + stage_len(plan));
    let builder = Pool::builder().name("test").capacity(capacity).block_size(plan.block).backing(plan.backing);
    if !plan.has_stock || plan.backing == Backing::Hugetlb {
        return builder;
    }
    builder.obtain_ahead(16 << 20).zeroed_stock(ZeroedStock::keep(capacity / 4, capacity / 2))
}

/// One round. Returns what it was about, in words; `None` if the machine lacks what it takes.
fn round(plan: &Plan, refusals: &Refusals) -> Option<String> {
    let layout = Layout::new(plan);
    let (hidden, punched) = (refusals.refused(Kind::Hide), refusals.refused(Kind::Punch));
    let mappings = Accounts::pool_mappings();
    // A pool that is built while calls are refused is built, or there is an error and nothing stays.
    refusals.arm(plan.one_in, &plan.kinds);
    drop(builder(plan, &layout).fallback(Fallback::Refused).build());
    refusals.disarm();
    let pool = built(builder(plan, &layout), plan.backing)?;
    let repeated = REPEATED.load(Ordering::Relaxed);
    let region = pool.region_with(layout.len, plan.options()).unwrap();
    let companion = pool.region_with(layout.companion_len, plan.options()).unwrap();
    let of_stage = pool.region_with(stage_len(plan), plan.options()).unwrap();
    // The relay starts as if every writer had had its turn.
    for writer in 0..WRITERS {
        word(&region, layout.relay[writer]).store(writer as u64, Ordering::Relaxed);
        word(&companion, layout.second_relay(writer)).store(writer as u64, Ordering::Relaxed);
    }
    let stage = Stage::new(&of_stage, plan);
    refusals.arm(plan.one_in, &plan.kinds);
    let (token, over) = (AtomicU64::new(WRITERS as u64), AtomicBool::new(false));
    let mut cutters = Vec::new();
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let (region, companion, stage, layout) = (&region, &companion, &stage, &layout);
        let (token, over, regions) = (&token, &over, [region, companion]);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(regions, layout, writer, token, over))).collect();
        let directors: Vec<_> =
            (0..DIRECTORS).map(|director| scope.spawn(move || stage.direct(director, over))).collect();
        let players: Vec<_> = (0..PLAYERS).map(|player| scope.spawn(move || stage.play(player, over))).collect();
        let tenant = scope.spawn(move || {
            Tenant::new(region, layout.tenancy(), plan).live(over);
        });
        let of_cutters: Vec<_> = (0..CUTTERS as u64)
            .map(|nth| {
                let (who, random) = (SCRIBBLER + nth, plan.random(SCRIBBLER + nth));
                let mut cutter = Cutter { region, companion, layout, plan, who, random, kept: Vec::new() };
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
        if plan.is_tight {
            // What was never written or was discarded has no block that could be taken back from a cut. So a first
            // write in a full pool waits until somebody drops one, and nobody else does any more.
            cutters.clear();
        }
        for (writer, count) in writers.into_iter().map(|writer| writer.join().unwrap()).enumerate() {
            for (nth, &at) in layout.orders[writer].iter().enumerate() {
                let there = word(region, at).load(Ordering::Relaxed);
                assert_eq!(there, stamp(writer as u64 + 1, nth, count), "a write of {writer} was lost at {at}");
            }
        }
        tenant.join().unwrap();
        directors.into_iter().chain(players).for_each(|thread| thread.join().unwrap());
    });
    let faults = region.stats().faults;
    let (resets, refused_resets) = stage.counts();
    // Some go while calls are refused, some afterwards.
    cutters.pop();
    let is_late = plan.seed.is_multiple_of(2);
    if is_late {
        refusals.disarm();
    }
    drop(cutters);
    drop((region, companion, of_stage));
    refusals.disarm();
    let lost = refusals.refused(Kind::Hide) - hidden;
    Accounts::check(pool, lost, refusals.refused(Kind::Punch) - punched, mappings);
    let repeated = REPEATED.load(Ordering::Relaxed) - repeated;
    Some(format!(
        "{} by {}, {:?}, one in {} of {} kinds{}{}: {repeated} writes repeated, {lost} not unmapped; \
         {} zeroed, {} copied, {} reused, {} by page, {} folded, {} promoted; \
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
        faults.overlaid,
        faults.blocks_folded,
        faults.blocks_promoted,
    ))
}

/// The seed of the ordinary test.
const ORDINARY: u64 = 15;

/// The seed of this process. In the ordinary test it is always the same.
fn seed(is_long: bool) -> u64 {
    match std::env::var("HUGEFORK_REFUSED_SEED") {
        Ok(seed) => seed.parse().expect("HUGEFORK_REFUSED_SEED is a number"),
        Err(_) if is_long => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 & 0xffff_ffff,
        Err(_) => ORDINARY,
    }
}

fn rounds(is_long: bool) {
    let seed = seed(is_long);
    println!("seed {seed}");
    let refusals = match Refusals::start(seed) {
        Ok(refusals) => refusals,
        Err(error) => return println!("skipped: no supervised system calls: {error}"),
    };
    handle_info(libc::SIGBUS, repeat);
    let mut done = 0;
    for nth in 0..ROUNDS as u64 {
        let plan = Plan::new(seed.wrapping_add(nth));
        // On its own line before, so that a round that does not end is known too.
        println!("round {nth}: {plan:?}");
        if let Some(what) = round(&plan, &refusals) {
            println!("  {what}");
            done += 1;
        }
    }
    println!("{done} rounds; {}", refusals.table());
    for kind in [Kind::Remap, Kind::Protect, Kind::Look, Kind::Populate, Kind::Scan] {
        // Other seeds may never ask for some.
        let is_enough = done == 0 || seed != ORDINARY || refusals.refused(kind) > 0;
        assert!(is_enough, "{kind:?} was never refused: {}", refusals.table());
    }
}

#[test]
fn nothing_is_lost_or_shown_to_others_while_calls_are_refused() {
    let seconds = std::env::var("HUGEFORK_REFUSED_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let (started, is_long) = (Instant::now(), seconds.is_some());
    loop {
        alone(|| rounds(is_long)).well();
        if seconds.is_none_or(|seconds| started.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
    }
}
