//! For how long what children held is kept for the copies of the next one: as often as such children come.

/// What is kept at all is kept for so long, in nanoseconds.
const SHORTEST_NS: u64 = 10_000_000_000;

/// Who saves less often than this takes new memory each time.
const RARE_NS: u64 = 120_000_000_000;

/// When blocks were last promoted while children lived.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    promoted: u64,
    /// When the last children came beside whom blocks were promoted, and how long after those before them.
    last: Option<u64>,
    interval: Option<u64>,
}

impl Keeping {
    /// So many blocks were promoted so far, and the first of the children came at `began`, if there are any.
    pub(crate) fn note(&mut self, promoted: u64, began: Option<u64>) {
        if promoted > self.promoted && began.is_some() && began != self.last {
            self.interval = self.last.zip(began).map(|(last, began)| began.saturating_sub(last));
            self.last = began;
        }
        self.promoted = promoted;
    }

    /// In nanoseconds, from when nothing more is to be done: until the next children are late by a quarter.
    pub(crate) fn how_long(&self) -> u64 {
        let interval = self.interval.filter(|interval| *interval <= RARE_NS).unwrap_or(0);
        (interval + interval / 4).max(SHORTEST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_needed_each_minute_is_kept_for_longer_than_that() {
        let mut keeping = Keeping::default();
        assert_eq!(keeping.how_long(), 10 * SECOND);
        keeping.note(7, Some(100 * SECOND));
        assert_eq!(keeping.how_long(), 10 * SECOND, "nobody knows how often");
        keeping.note(9, Some(100 * SECOND));
        keeping.note(10, None);
        keeping.note(10, Some(130 * SECOND));
        assert_eq!(keeping.how_long(), 10 * SECOND, "the children beside whom nothing is promoted do not count");
        keeping.note(12, Some(160 * SECOND));
        assert_eq!(keeping.how_long(), 75 * SECOND);
        keeping.note(13, Some(164 * SECOND));
        assert_eq!(keeping.how_long(), 10 * SECOND);
        keeping.note(14, Some(500 * SECOND));
        assert_eq!(keeping.how_long(), 10 * SECOND, "it comes too seldom");
    }
}
