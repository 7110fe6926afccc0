//! One socket: private caches, the cache that all threads share, and a channel to memory with a limit.
//!
//! ```text
//! thread ─┬─ private cache ─┐
//! thread ─┘                 ├─ shared cache, a superset of the private ones ── channel to memory
//! thread ─┬─ private cache ─┘
//! thread ─┘
//! ```
//!
//! A thread has one request under way. Requests that move bytes wait for the channel. It serves one
//! at a time, any of the waiting ones, and prefers some threads slightly, as threads nearer to
//! memory are preferred. With equal service or service in the order of arrival, threads
//! synchronise: all clear at the same time, and the gain grows with the length of the run.
//!
//! Bytes move in pieces of 4 KiB, the subpages of the order: neighbouring lines move together, so
//! the model follows 64 times fewer objects.

use std::{cmp::Reverse, collections::BinaryHeap};

use hugefork_kernels::{SUBPAGE, Work};

use super::{
    cache::{Cache, Found, LEAD, Policy, Random},
    workload::{Act, BLOCK, Plan, Step, life},
};

/// The machine's parameters and the model's assumptions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) policy: Policy,
    pub(crate) threads: usize,
    /// Number of cores; further threads share them.
    pub(crate) cores: usize,
    pub(crate) shared_bytes: usize,
    pub(crate) ways: usize,
    /// Private cache of each core; 0 for none.
    pub(crate) private_bytes: usize,
    /// Bytes that move together.
    pub(crate) piece: usize,
    /// Bytes per microsecond between the caches and memory, both directions together.
    pub(crate) channel: usize,
    /// Bytes per microsecond that a core writes, clears or copies in its caches.
    pub(crate) core: usize,
    /// Bytes per microsecond that a thread gets from memory when it runs alone.
    pub(crate) alone: usize,
    /// Whether a clear or a copy reads the bytes that it overwrites.
    pub(crate) overwrite_reads: bool,
    /// Whether a write-back from a private cache counts as a use of the line in the shared cache.
    pub(crate) write_back_is_use: bool,
    pub(crate) source: Source,
    pub(crate) served: Served,
    /// How many times in 100 the channel passes over the last thread; it never passes over the first one.
    pub(crate) unequal: usize,
    /// See [`LEAD`].
    pub(crate) lead: usize,
    /// Seed of the pseudo-random numbers.
    pub(crate) seed: u64,
    /// Blocks that a run finishes; clamped to 4 to 120 for each thread.
    pub(crate) blocks: usize,
}

/// The source of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Memory that no other thread reads at that time.
    Own,
    /// All threads copy the same blocks and begin together.
    Shared,
}

/// The rule that picks the next waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Any,
    First,
}

impl Machine {
    /// One socket of the two Xeon E5-2699 v3 on which the patches were measured: 18 cores of two threads. More threads
    /// add cores; nothing else grows.
    pub(crate) fn of_the_patches(policy: Policy, threads: usize, blocks: usize) -> Machine {
        Machine {
            policy,
            threads,
            cores: threads.div_ceil(2).max(18),
            shared_bytes: 45 << 20,
            ways: 20,
            private_bytes: 256 << 10,
            piece: SUBPAGE,
            // Four channels of DDR4-2133 have 68 GB/s in the data sheet; four fifths of it are usable.
            channel: 55_000,
            core: 8_000,
            // Ten lines at a time, 85 ns each.
            alone: 7_500,
            overwrite_reads: false,
            write_back_is_use: false,
            source: Source::Own,
            served: Served::Any,
            unequal: 10,
            lead: LEAD,
            seed: 1,
            blocks,
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Bytes per microsecond that all threads together have used.
    pub(crate) throughput: f64,
    /// Share of the threads' time spent in use; the rest is faults.
    pub(crate) use_time: f64,
    /// Share of lookups in the shared cache that miss: of all lookups, and of those during use.
    pub(crate) misses: f64,
    pub(crate) use_misses: f64,
}

/// Runs the model: each thread writes block after block.
pub(crate) fn run(machine: &Machine, work: Work, plan: Plan) -> Outcome {
    let steps = life(work, plan, machine.piece);
    // Enough blocks for each thread, however many there are, and not too many for one.
    let blocks = machine.blocks.clamp(4 * machine.threads, 120 * machine.threads);
    let end = (blocks * BLOCK / machine.piece) as u64;
    let warm = end / 3;
    let mut socket = Socket::new(machine, steps);
    while socket.counters.used < warm {
        socket.advance();
    }
    let (begun, before) = (socket.now, socket.counters);
    while socket.counters.used < end {
        socket.advance();
    }
    let after = socket.counters;
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    Outcome {
        throughput: share((end - warm) * machine.piece as u64 * 1_000_000, socket.now - begun),
        use_time: share(after.use_time - before.use_time, after.time - before.time),
        misses: share(after.misses - before.misses, after.lookups - before.lookups),
        use_misses: share(after.use_misses - before.use_misses, after.use_lookups - before.use_lookups),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// Number of used pieces.
    used: u64,
    time: u64,
    use_time: u64,
    lookups: u64,
    misses: u64,
    use_lookups: u64,
    use_misses: u64,
}

/// The kind of a core's access to a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    /// Writes it word by word.
    Write,
    /// Overwrites the whole piece.
    Overwrite,
}

/// Pieces that one step moves between the caches and memory.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    read: u64,
    written: u64,
}

/// A step of a thread that waits for the channel.
struct Request {
    thread: usize,
    begun: u64,
    act: Act,
    /// Time when the thread could continue if the channel were free.
    ready: u64,
    pieces: u64,
}

/// All times are picoseconds.
struct Socket<'a> {
    machine: &'a Machine,
    steps: Vec<Step>,
    shared: Cache,
    private: Vec<Cache>,
    /// For each thread: its block, and the index of its next step.
    at: Vec<(u64, usize)>,
    /// Start times of the threads' next steps.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: Vec<Request>,
    channel_free: u64,
    on_channel: u64,
    in_core: u64,
    from_memory: u64,
    now: u64,
    random: Random,
    counters: Counters,
}

impl<'a> Socket<'a> {
    fn new(machine: &'a Machine, steps: Vec<Step>) -> Socket<'a> {
        let cores = machine.cores.min(machine.threads);
        let lines = |bytes: usize| bytes / machine.piece;
        let private = || Cache::new(Policy::Lru, lines(machine.private_bytes), 8, LEAD);
        let time = |speed: usize| (machine.piece * 1_000_000 / speed) as u64;
        let mut random = Random::new(machine.seed);
        let mut begin = || match machine.source {
            Source::Own => (0, random.below(steps.len() as u64) as usize),
            Source::Shared => (0, 0),
        };
        Socket {
            shared: Cache::new(machine.policy, lines(machine.shared_bytes), machine.ways, machine.lead),
            private: (0..cores).map(|_| private()).collect(),
            at: (0..machine.threads).map(|_| begin()).collect(),
            next: (0..machine.threads).map(|thread| Reverse((0, thread))).collect(),
            waiting: Vec::new(),
            channel_free: 0,
            on_channel: time(machine.channel),
            // The threads of a core share its time.
            in_core: time(machine.core) * machine.threads.div_ceil(cores) as u64,
            from_memory: time(machine.alone),
            now: 0,
            random,
            counters: Counters::default(),
            machine,
            steps,
        }
    }

    /// Serves a waiting request, if the channel is free before a thread begins a step; otherwise begins that step.
    fn advance(&mut self) {
        let begins = self.next.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
        if self.waiting.is_empty() || begins < self.channel_free {
            self.begin();
        } else {
            self.serve();
        }
    }

    fn serve(&mut self) {
        let request = match self.machine.served {
            Served::Any => {
                let any = self.any_waiting();
                self.waiting.swap_remove(any)
            }
            Served::First => self.waiting.remove(0),
        };
        self.channel_free += request.pieces * self.on_channel;
        let done = request.ready.max(self.channel_free);
        self.finish(request.thread, request.act, request.begun, done);
    }

    fn any_waiting(&mut self) -> usize {
        loop {
            let any = self.random.below(self.waiting.len() as u64) as usize;
            let passed_over = self.machine.unequal * self.waiting[any].thread / self.machine.threads;
            if self.random.below(100) >= passed_over as u64 {
                return any;
            }
        }
    }

    fn begin(&mut self) {
        let Some(Reverse((begun, thread))) = self.next.pop() else { return };
        self.now = begun;
        let (block, index) = self.at[thread];
        let Step { piece, act } = self.steps[index];
        self.at[thread] = if index + 1 == self.steps.len() { (block + 1, 0) } else { (block, index + 1) };
        let moved = self.act(thread, block, piece, act);
        let ready = begun + self.in_core + moved.read * self.from_memory;
        let pieces = moved.read + moved.written;
        if pieces == 0 {
            self.finish(thread, act, begun, ready);
            return;
        }
        if self.waiting.is_empty() {
            self.channel_free = self.channel_free.max(begun);
        }
        self.waiting.push(Request { thread, begun, act, ready, pieces });
    }

    fn finish(&mut self, thread: usize, act: Act, begun: u64, done: u64) {
        let time = done - begun;
        self.counters.time += time;
        if act == Act::Use {
            self.counters.use_time += time;
            self.counters.used += 1;
        }
        self.next.push(Reverse((done, thread)));
    }

    fn act(&mut self, thread: usize, block: u64, piece: usize, act: Act) -> Moved {
        let pieces = (BLOCK / self.machine.piece) as u64;
        // Each thread has so much memory that it never uses the same block twice.
        let line = |place: usize| ((place as u64) << 32) + block * pieces + piece as u64;
        let (core, own) = (thread % self.private.len(), line(2 * thread));
        match act {
            Act::Use => {
                let Counters { lookups, misses, .. } = self.counters;
                let moved = self.access(core, own, Access::Write);
                self.counters.use_lookups += self.counters.lookups - lookups;
                self.counters.use_misses += self.counters.misses - misses;
                moved
            }
            Act::Clear { past_cache } => self.overwrite(core, own, past_cache),
            Act::Copy { past_cache } => {
                let from = if self.machine.source == Source::Own { line(2 * thread + 1) } else { line(1) };
                let read = self.access(core, from, Access::Read);
                let moved = self.overwrite(core, own, past_cache);
                Moved { read: read.read + moved.read, written: read.written + moved.written }
            }
        }
    }

    fn overwrite(&mut self, core: usize, line: u64, past_cache: bool) -> Moved {
        if past_cache {
            // The cached versions are older.
            self.private[core].remove(line);
            self.shared.remove(line);
            return Moved { read: 0, written: 1 };
        }
        self.access(core, line, if self.machine.overwrite_reads { Access::Write } else { Access::Overwrite })
    }

    fn access(&mut self, core: usize, line: u64, access: Access) -> Moved {
        let writes = access != Access::Read;
        let has_private = self.machine.private_bytes > 0;
        let asker = core as u16;
        let inner = has_private.then(|| self.private[core].ask(line, asker, writes));
        let to_write_back = match inner {
            Some(Found::Hit) => return Moved::default(),
            Some(Found::Miss(left)) => left.filter(|left| left.dirty),
            None => None,
        };
        if let Some(left) = to_write_back {
            self.write_back(left.line, asker);
        }
        self.counters.lookups += 1;
        // New bytes are in the private cache until the core writes them back.
        let Found::Miss(left) = self.shared.ask(line, asker, writes && !has_private) else { return Moved::default() };
        self.counters.misses += 1;
        let is_dirty = left.is_some_and(|left| {
            // The private caches evict each line that the shared cache evicts.
            let inner = if has_private { self.private[usize::from(left.core)].remove(left.line) } else { None };
            left.dirty || inner.is_some_and(|inner| inner.dirty)
        });
        Moved { read: u64::from(access != Access::Overwrite), written: u64::from(is_dirty) }
    }

    fn write_back(&mut self, line: u64, core: u16) {
        if self.machine.write_back_is_use {
            self.shared.ask(line, core, true);
        } else if let Some(held) = self.shared.get_mut(line) {
            held.dirty = true;
        }
    }
}
