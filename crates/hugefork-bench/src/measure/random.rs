//! Targets: a small generator (SplitMix64). The case and the round decide the generator's seed, so that in a round
//! every subject gets the same targets.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The stream of a round of `case`, whose name is hashed (FNV-1a).
    pub(crate) fn of(case: &str, round: usize) -> Self {
        let name = case
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Random::new(name.wrapping_add(round as u64))
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// The offset of an 8-byte word in a block of `len` bytes.
    pub(crate) fn word_offset(&mut self, len: usize) -> usize {
        self.below(len / 8) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_targets_and_all_of_them_fit() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        let mut high = 0;
        for _ in 0..10_000 {
            let offset = one.word_offset(2 << 20);
            assert_eq!(offset, two.word_offset(2 << 20));
            assert!(offset % 8 == 0 && offset + 8 <= 2 << 20);
            high = high.max(offset);
        }
        assert!(high > (2 << 20) * 9 / 10, "targets must reach the block's end: {high}");
    }
}
