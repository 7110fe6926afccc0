//! How densely `writer-latency` writes to its area.

/// How many words are written after a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Density {
    /// So few that most pages stay as they are.
    Sparse,
    /// So many that most pages are written.
    Dense,
}

impl Density {
    /// Every density.
    pub const ALL: [Density; 2] = [Density::Sparse, Density::Dense];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Density::Sparse => "sparse",
            Density::Dense => "dense",
        }
    }

    /// Writes in a sample, to an area of `size` bytes.
    pub fn writes(self, size: usize) -> usize {
        const GIB: usize = 1 << 30;
        let most = match self {
            Density::Sparse => 5_000,
            Density::Dense => 500_000,
        };
        // Any number of writes that is large enough for a percentile would write a small area densely.
        (most * size.min(GIB)).div_ceil(GIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_below_1_gib_are_written_as_densely() {
        let writes = |size| Density::ALL.map(|density| density.writes(size));
        assert_eq!(writes(2 << 30), [5_000, 500_000]);
        assert_eq!(writes(1 << 30), [5_000, 500_000]);
        assert_eq!(writes(256 << 20), [1_250, 125_000]);
        assert_eq!(writes(2 << 20)[0], 10);
    }
}
