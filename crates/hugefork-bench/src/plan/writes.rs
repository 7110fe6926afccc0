//! How `writer-latency`, `fork` and `history` write to their areas: how densely, where, after how many snapshots, and
//! how many are held.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::nearest;
use crate::results::result::{Param, Params, params};

/// How many words are written after a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Density(usize);

impl Density {
    /// So few that not every block of 2 MiB is written.
    pub const SCATTERED: Density = Density(1_000);

    /// So few that nearly every block of 2 MiB is written, and few of its pages.
    pub const SPARSE: Density = Density(5_000);

    /// So many that a good part of each block is written.
    pub const HALF_DENSE: Density = Density(50_000);

    /// So many that most pages are written.
    pub const DENSE: Density = Density(500_000);

    /// From a few pages of the area to every page, four times.
    pub const ALL: [Density; 7] = [
        Density(10),
        Density(100),
        Density::SCATTERED,
        Density::SPARSE,
        Density::HALF_DENSE,
        Density::DENSE,
        Density(1_000_000),
    ];

    /// More would take longer to draw than to write.
    const MOST: usize = 10_000_000;

    /// Writes to an area of 1 GiB.
    pub fn to_a_gib(self) -> usize {
        self.0
    }

    /// Writes in a sample, to an area of `size` bytes.
    pub fn writes(self, size: usize) -> usize {
        const GIB: usize = 1 << 30;
        // Any number of writes that is large enough for a percentile would write a small area densely.
        (self.0 * size.min(GIB)).div_ceil(GIB)
    }
}

impl FromStr for Density {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sparse" => return Ok(Density::SPARSE),
            "dense" => return Ok(Density::DENSE),
            _ => {}
        }
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && (1..=Density::MOST).contains(number));
        number.map(Density).ok_or_else(|| {
            format!(
                "not a number of writes to 1GiB, from 1 to {}, nor `sparse` (5000) or `dense` (500000)",
                Density::MOST
            )
        })
    }
}

/// Where the words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Anywhere.
    Random,
    /// In one of every sixteen blocks of 2 MiB.
    Clustered,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Pattern; 2] = [Pattern::Random, Pattern::Clustered];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Clustered => "clustered",
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Pattern::ALL.into_iter().find(|pattern| pattern.name() == text);
        named.ok_or_else(|| nearest::unknown("pattern", text, Pattern::ALL.iter().map(|pattern| pattern.name())))
    }
}

/// The snapshot after which writes are measured, counted from the first of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epoch {
    /// Nothing was snapshotted before.
    First,
    /// The steady state of a program that takes one snapshot after the other.
    Third,
}

impl Epoch {
    /// Every epoch that is measured.
    pub const ALL: [Epoch; 2] = [Epoch::First, Epoch::Third];

    /// The number in results.
    pub fn number(self) -> usize {
        match self {
            Epoch::First => 1,
            Epoch::Third => 3,
        }
    }
}

impl FromStr for Epoch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Epoch::ALL.into_iter().find(|epoch| epoch.number().to_string() == text);
        named.ok_or_else(|| "not an epoch that is measured: 1 (the first snapshot) or 3 (the steady state)".to_owned())
    }
}

/// How many snapshots a history holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldSnapshots(usize);

impl HeldSnapshots {
    /// As many as are usual.
    pub const HUNDRED: HeldSnapshots = HeldSnapshots(100);

    /// Few enough to be dropped in random order, half of them.
    const FEWEST: usize = 4;

    /// More would take longer than anybody waits.
    const MOST: usize = 100_000;

    /// The number in results.
    pub fn number(self) -> usize {
        self.0
    }
}

impl FromStr for HeldSnapshots {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let range = HeldSnapshots::FEWEST..=HeldSnapshots::MOST;
        let number = text.parse().ok().filter(|number| digits && range.contains(number));
        let refused = || format!("not a number of snapshots to hold, from {} to {}", range.start(), range.end());
        number.map(HeldSnapshots).ok_or_else(refused)
    }
}

/// How an area is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writes {
    /// How densely.
    pub density: Density,
    /// Where.
    pub pattern: Pattern,
    /// After how many snapshots.
    pub epoch: Epoch,
    /// How many snapshots are held, where that is what the case is about.
    pub held: HeldSnapshots,
}

impl Writes {
    /// The parameters of a case that writes so to an area of `size` bytes.
    pub(crate) fn params(self, size: usize) -> Params {
        params([
            ("size", Param::size(size)),
            ("density", Param::Number(self.density.to_a_gib() as u64)),
            ("pattern", Param::text(self.pattern.name())),
            ("epoch", Param::Number(self.epoch.number() as u64)),
            ("writes", Param::Number(self.density.writes(size) as u64)),
        ])
    }

    /// Random writes after the first snapshot.
    pub const fn first(density: Density) -> Writes {
        Writes { density, pattern: Pattern::Random, epoch: Epoch::First, held: HeldSnapshots::HUNDRED }
    }
}

/// What was asked for of each; nothing of any means that the case decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedWrites {
    /// How densely; [`Density::ALL`] if only the others were asked for.
    pub densities: Vec<Density>,
    /// Where; random if only the others were asked for.
    pub patterns: Vec<Pattern>,
    /// After how many snapshots; the first if only the others were asked for.
    pub epochs: Vec<Epoch>,
    /// How many snapshots are held; a hundred if only the others were asked for.
    pub held: Vec<HeldSnapshots>,
}

impl AskedWrites {
    /// The option that was given, if any was.
    pub(crate) fn option(&self) -> Option<&'static str> {
        let given = [
            ("--densities", self.densities.is_empty()),
            ("--patterns", self.patterns.is_empty()),
            ("--epochs", self.epochs.is_empty()),
            ("--held", self.held.is_empty()),
        ];
        given.into_iter().find(|(_, is_empty)| !is_empty).map(|(option, _)| option)
    }

    /// Every combination of what was asked for, each once; `usual` if nothing was.
    pub(crate) fn or(&self, usual: Vec<Writes>) -> Vec<Writes> {
        if self.option().is_none() {
            return usual;
        }
        let (densities, patterns, epochs, held) = (
            some_or(&self.densities, &Density::ALL),
            some_or(&self.patterns, &[Pattern::Random]),
            some_or(&self.epochs, &[Epoch::First]),
            some_or(&self.held, &[HeldSnapshots::HUNDRED]),
        );
        let mut all = Vec::new();
        for &held in held {
            for &epoch in epochs {
                for &pattern in patterns {
                    all.extend(densities.iter().map(|&density| Writes { density, pattern, epoch, held }));
                }
            }
        }
        let mut seen = BTreeSet::new();
        all.retain(|writes| seen.insert(*writes));
        all
    }
}

fn some_or<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_below_1_gib_are_written_as_densely() {
        let writes = |size| [Density::SPARSE, Density::DENSE].map(|density| density.writes(size));
        assert_eq!(writes(2 << 30), [5_000, 500_000]);
        assert_eq!(writes(1 << 30), [5_000, 500_000]);
        assert_eq!(writes(256 << 20), [1_250, 125_000]);
        assert_eq!(writes(2 << 20)[0], 10);
        assert_eq!(Density::ALL[0].writes(2 << 20), 1, "never none");
    }

    #[test]
    fn names_and_numbers_read_back_and_slips_are_told() {
        for density in Density::ALL {
            assert_eq!(density.to_string().parse(), Ok(density));
        }
        assert_eq!(("sparse".parse(), "dense".parse()), (Ok(Density::SPARSE), Ok(Density::DENSE)));
        for slip in ["0", "-5", "+5", "5k", "", "10000001", "thick"] {
            assert!(slip.parse::<Density>().unwrap_err().contains("from 1 to 10000000"), "{slip}");
        }
        for pattern in Pattern::ALL {
            assert_eq!(pattern.name().parse(), Ok(pattern));
        }
        assert!("cluster".parse::<Pattern>().unwrap_err().contains("did you mean `clustered`?"));
        for epoch in Epoch::ALL {
            assert_eq!(epoch.number().to_string().parse(), Ok(epoch));
        }
        assert!("2".parse::<Epoch>().is_err());
        assert_eq!("100".parse(), Ok(HeldSnapshots::HUNDRED));
        for slip in ["3", "+100", "many", "100001", ""] {
            assert!(slip.parse::<HeldSnapshots>().unwrap_err().contains("from 4 to 100000"), "{slip}");
        }
    }

    #[test]
    fn what_was_asked_for_is_combined_and_the_rest_is_usual() {
        let usual = vec![Writes::first(Density::DENSE)];
        assert_eq!(AskedWrites::default().or(usual.clone()), usual);
        let asked = AskedWrites {
            densities: vec![Density(7), Density(9), Density(7)],
            epochs: Epoch::ALL.to_vec(),
            ..AskedWrites::default()
        };
        assert_eq!(asked.option(), Some("--densities"));
        let found: Vec<(usize, usize)> =
            asked.or(usual).into_iter().map(|writes| (writes.density.to_a_gib(), writes.epoch.number())).collect();
        assert_eq!(found, [(7, 1), (9, 1), (7, 3), (9, 3)]);
        let clustered = AskedWrites { patterns: vec![Pattern::Clustered], ..AskedWrites::default() };
        assert_eq!(clustered.or(Vec::new()).len(), Density::ALL.len());
        let held = AskedWrites { held: vec![HeldSnapshots(9), HeldSnapshots(7)], ..clustered };
        let found: Vec<usize> = held.or(Vec::new()).iter().map(|writes| writes.held.number()).collect();
        assert_eq!(found, [[9; Density::ALL.len()], [7; Density::ALL.len()]].concat());
    }
}
