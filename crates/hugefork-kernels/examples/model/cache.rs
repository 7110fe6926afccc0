//! A set-associative cache with hashed sets, and how it chooses what has to leave.
//!
//! It knows lines by number and holds no bytes. What it calls a line is whatever the machine moves as one.

use std::mem;

/// Which line of a set leaves when another comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The one used longest ago.
    Lru,
    /// Two bits a line (Jaleel et al. 2010): it comes with 2, a hit makes it 0, one with 3 leaves; without one all age.
    Srrip,
    /// As `Srrip`, but where a sample of the sets says that it misses less, all but one of 32 lines come with 3.
    Drrip,
    /// Intel's two bits, as others have measured them: a line comes with 1, a hit makes it 0, or 1 if it was older than
    /// that; one with 3 leaves; after each step all age until one has 3.
    QuadAge,
    /// As `QuadAge`, but where a sample of the sets says that it misses less, all but one of 16 lines come with 3.
    AdaptiveQuadAge,
    /// Any.
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
    /// When it was used last, or its two bits.
    age: u32,
    /// Who asked for it last.
    pub(crate) core: u16,
    /// Whether memory has older bytes.
    pub(crate) dirty: bool,
}

/// What asking for a line found.
pub(crate) enum Found {
    Hit,
    /// And what had to leave for it.
    Miss(Option<Held>),
}

/// The oldest age of two bits.
const OLDEST: u32 = 3;

/// One of so many sets is a sample of how lines usually come, and one of the other way.
const SAMPLED: usize = 32;

/// By how many misses, for each of its sets, a sample leads before the choice is as firm as it gets. DRRIP was
/// published with a counter of ten bits over 32 sets.
pub(crate) const LEAD: usize = 16;

/// A cache.
pub(crate) struct Cache {
    policy: Policy,
    ways: usize,
    sets: Vec<Vec<Held>>,
    /// Uses so far.
    now: u32,
    /// By how many misses the sample of how lines usually come is behind; between `-most` and `most`.
    lead: i32,
    most: i32,
    random: Random,
}

impl Cache {
    /// Room for `lines` in sets of `ways`; `lead` is [`LEAD`] or what it would be otherwise.
    pub(crate) fn new(policy: Policy, lines: usize, ways: usize, lead: usize) -> Cache {
        let sets = vec![Vec::with_capacity(ways); (lines / ways).max(1)];
        let most = (lead * sets.len().div_ceil(SAMPLED)) as i32;
        Cache { policy, ways, sets, now: 0, lead: 0, most, random: Random::new(1) }
    }

    /// The line, if it is here, without counting as its use.
    pub(crate) fn get_mut(&mut self, line: u64) -> Option<&mut Held> {
        let set = self.set_of(line);
        self.sets[set].iter_mut().find(|held| held.line == line)
    }

    /// Uses a line, and brings it where it is not here.
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

    /// Takes a line out, if it is here.
    pub(crate) fn remove(&mut self, line: u64) -> Option<Held> {
        let set = self.set_of(line);
        let way = self.sets[set].iter().position(|held| held.line == line)?;
        Some(self.sets[set].swap_remove(way))
    }

    /// Neighbours are spread over the sets, as a hash of address bits does in the real ones.
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

    /// The usual age of a new line or, where that misses less, the oldest for all but one of `seldom`.
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

/// Ages a set until one of its lines is as old as can be.
fn age(lines: &mut [Held]) {
    // Mostly there is one already.
    if lines.iter().all(|held| held.age < OLDEST) {
        let most = lines.iter().fold(0, |most, held| most.max(held.age));
        lines.iter_mut().for_each(|held| held.age += OLDEST - most);
    }
}

/// The same numbers in every run.
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

/// From all numbers to those below `end`.
fn scale(number: u64, end: u64) -> u64 {
    ((u128::from(number) * u128::from(end)) >> 64) as u64
}

/// All bits of a number into each other (the steps of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
