//! A set-associative cache with hashed sets, and its replacement policies.
//!
//! It stores line numbers, not bytes. A "line" here is the unit that the machine moves as one.

use std::mem;

/// Chooses the line of a set that a new line evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Evicts the least recently used line.
    Lru,
    /// Each line has an age from 0 to 3 (Jaleel et al. 2010). A new line has age 2, and a hit sets age 0. A line of age
    /// 3 is evicted; if there is none, all lines age.
    Srrip,
    /// Like `Srrip`, but it also tries another start: only one in 32 new lines has age 2, and all others have age 3. A
    /// sample of the sets decides which start shows fewer misses.
    Drrip,
    /// Intel's ages from 0 to 3, as others have measured them. A new line has age 1. A hit sets age 0, or age 1 if the
    /// line was older than that. A line of age 3 is evicted. After each step all lines age until one has age 3.
    QuadAge,
    /// Like `QuadAge`, but it also tries another start: only one in 16 new lines has age 1, and all others have age 3.
    /// A sample of the sets decides which start shows fewer misses.
    AdaptiveQuadAge,
    /// Evicts a random line.
    Random,
}

impl Policy {
    /// Every policy.
    pub(crate) const ALL: [Policy; 6] =
        [Policy::Lru, Policy::Srrip, Policy::Drrip, Policy::QuadAge, Policy::AdaptiveQuadAge, Policy::Random];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Srrip => "srrip",
            Policy::Drrip => "drrip",
            Policy::QuadAge => "quad-age",
            Policy::AdaptiveQuadAge => "adaptive-quad-age",
            Policy::Random => "random",
        }
    }
}

/// A line that is in a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) line: u64,
    /// The time of the last use, or the age from 0 to 3.
    age: u32,
    /// The core that used it last.
    pub(crate) core: u16,
    /// Whether memory holds an older version.
    pub(crate) dirty: bool,
}

/// The result of a lookup.
pub(crate) enum Found {
    Hit,
    /// The line that was evicted for it.
    Miss(Option<Held>),
}

/// The oldest age. A line of this age may be evicted.
const OLDEST: u32 = 3;

/// In each group of this many sets, one set is a sample for the usual start, and one for the other start.
const SAMPLED: usize = 32;

/// The largest lead that the count records, in misses per sampled set: a larger lead does not make the choice firmer.
/// DRRIP was published with a counter of ten bits over 32 sets.
pub(crate) const LEAD: usize = 16;

/// A cache.
pub(crate) struct Cache {
    policy: Policy,
    ways: usize,
    sets: Vec<Vec<Held>>,
    /// Number of uses so far.
    now: u32,
    /// The number of misses that the usual start has more than the other start; between `-most` and `most`.
    lead: i32,
    most: i32,
    random: Random,
}

impl Cache {
    /// A cache of `lines` in sets of `ways`; `lead` is normally [`LEAD`].
    pub(crate) fn new(policy: Policy, lines: usize, ways: usize, lead: usize) -> Cache {
        let sets = vec![Vec::with_capacity(ways); (lines / ways).max(1)];
        let most = (lead * sets.len().div_ceil(SAMPLED)) as i32;
        Cache { policy, ways, sets, now: 0, lead: 0, most, random: Random::new(1) }
    }

    /// The line, if it is cached; does not count as a use.
    pub(crate) fn get_mut(&mut self, line: u64) -> Option<&mut Held> {
        let set = self.set_of(line);
        self.sets[set].iter_mut().find(|held| held.line == line)
    }

    /// Uses a line, and loads it on a miss.
    pub(crate) fn ask(&mut self, line: u64, core: u16, dirty: bool) -> Found {
        self.now += 1;
        let set = self.set_of(line);
        let found = if let Some(held) = self.sets[set].iter_mut().find(|held| held.line == line) {
            held.core = core;
            held.dirty |= dirty;
            held.age = match self.policy {
                Policy::Lru => self.now,
                Policy::QuadAge | Policy::AdaptiveQuadAge => u32::from(held.age > 1),
                Policy::Srrip | Policy::Drrip | Policy::Random => 0,
            };
            Found::Hit
        } else {
            let held = Held { line, dirty, core, age: self.age_of_new(set) };
            if self.sets[set].len() < self.ways {
                self.sets[set].push(held);
                Found::Miss(None)
            } else {
                let way = self.victim(set);
                Found::Miss(Some(mem::replace(&mut self.sets[set][way], held)))
            }
        };
        if matches!(self.policy, Policy::QuadAge | Policy::AdaptiveQuadAge) {
            age(&mut self.sets[set]);
        }
        found
    }

    /// Removes a line, if it is cached.
    pub(crate) fn remove(&mut self, line: u64) -> Option<Held> {
        let set = self.set_of(line);
        let way = self.sets[set].iter().position(|held| held.line == line)?;
        Some(self.sets[set].swap_remove(way))
    }

    /// Spreads neighbouring lines over the sets, as real caches do with a hash of address bits.
    fn set_of(&self, line: u64) -> usize {
        scale(mix(line), self.sets.len() as u64) as usize
    }

    fn age_of_new(&mut self, set: usize) -> u32 {
        match self.policy {
            Policy::Lru => self.now,
            Policy::Srrip => 2,
            Policy::Drrip => self.age_by_sample(set, 2, 32),
            Policy::QuadAge => 1,
            Policy::AdaptiveQuadAge => self.age_by_sample(set, 1, 16),
            Policy::Random => 0,
        }
    }

    /// The age of a new line in `set`. That is `usual` or, if the samples show fewer misses then, the oldest age for
    /// all but one of `seldom` lines.
    fn age_by_sample(&mut self, set: usize, usual: u32, seldom: u64) -> u32 {
        let step = match set % SAMPLED {
            0 => 1,
            1 => -1,
            _ => 0,
        };
        self.lead = (self.lead + step).clamp(-self.most, self.most);
        let is_usual = step == 1 || (step == 0 && self.lead <= 0);
        if is_usual || self.random.below(seldom) == 0 { usual } else { OLDEST }
    }

    fn victim(&mut self, set: usize) -> usize {
        let lines = &mut self.sets[set];
        match self.policy {
            Policy::Random => self.random.below(lines.len() as u64) as usize,
            Policy::Lru => (0..lines.len()).min_by_key(|way| lines[*way].age).unwrap_or(0),
            Policy::Srrip | Policy::Drrip | Policy::QuadAge | Policy::AdaptiveQuadAge => {
                age(lines);
                lines.iter().position(|held| held.age == OLDEST).unwrap_or(0)
            }
        }
    }
}

/// Ages a set until one line has the oldest age.
fn age(lines: &mut [Held]) {
    // Mostly one line has it already.
    if lines.iter().all(|held| held.age < OLDEST) {
        let most = lines.iter().fold(0, |most, held| most.max(held.age));
        lines.iter_mut().for_each(|held| held.age += OLDEST - most);
    }
}

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(mix(seed) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        scale(self.0, end)
    }
}

/// Scales a number from the full range to the numbers below `end`.
fn scale(number: u64, end: u64) -> u64 {
    ((u128::from(number) * u128::from(end)) >> 64) as u64
}

/// Mixes all bits of a number (the steps of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
