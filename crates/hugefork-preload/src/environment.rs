//! What the command asks of the library, in environment variables.
//!
//! Programs that the program starts inherit them, as they inherit `LD_PRELOAD`: a service is often started by a script.
//! [`ONLY`] limits the library to one program.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

/// What the library does. Without it, it does nothing.
pub const MODE: &str = "HUGEFORK_MODE";

/// Bytes from which on a mapping is looked after.
pub const MIN_SIZE: &str = "HUGEFORK_MIN_SIZE";

/// The file name of the only program in which the library does anything.
pub const ONLY: &str = "HUGEFORK_ONLY";

/// Whose `malloc` programs get: read by the library that has one beside it. Without it, they keep what they have.
pub const MALLOC: &str = "HUGEFORK_MALLOC";

/// What children of programs get. Without it, nothing.
pub const CHILDREN: &str = "HUGEFORK_CHILDREN";

/// What a child's life may have the program take, as [`Memory`] is written. Without it, the usual.
pub const MEMORY: &str = "HUGEFORK_MEMORY";

/// `pool`: in mode `pool`, private memory from one page on lies in the pool, whatever the least size and from the first
/// mapping on. For test suites, whose mappings are mostly small (`docs/evidence.md`); no promise, and no option.
pub const RUN_SMALL: &str = "HUGEFORK_RUN_SMALL";

/// Allocators that programs bring along, by what the names of their libraries begin with.
pub const ALLOCATORS: [&str; 3] = ["libjemalloc.", "libtcmalloc", "libmimalloc"];

/// `exit`: print a line of statistics when the program ends.
pub const STATS: &str = "HUGEFORK_STATS";

/// The value of [`STATS`].
pub(crate) const AT_EXIT: &str = "exit";

/// The value of [`RUN_SMALL`].
pub(crate) const IN_POOL: &str = "pool";

/// The number of the signal that prints that line.
pub const STATS_SIGNAL: &str = "HUGEFORK_STATS_SIGNAL";

/// Bytes from which on a mapping is looked after, if nobody asks for others.
pub const USUAL_MIN_SIZE: usize = 1 << 20;

/// Choices of the user's, each with its name in options and variables.
macro_rules! choices {
    ($($(#[$of_kind:meta])* $kind:ident, $what:literal, $count:literal {
        $($(#[$of_one:meta])* $one:ident = $name:literal,)*
    })*) => {$(
        $(#[$of_kind])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $kind {
            $($(#[$of_one])* $one,)*
        }

        impl $kind {
            /// All of them, the usual one first.
            pub const ALL: [$kind; $count] = [$($kind::$one),*];

            /// The name in options and variables.
            pub fn name(self) -> &'static str {
                match self {
                    $($kind::$one => $name,)*
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let refused = || format!("not a {}: take {}", $what, $kind::ALL.map($kind::name).join(", "));
                $kind::ALL.into_iter().find(|one| one.name() == text).ok_or_else(refused)
            }
        }
    )*};
}

choices! {
    /// What the library does about the program's memory.
    Mode, "mode", 2 {
        /// Plain anonymous memory in transparent huge pages, which are put together again after each `fork(2)`.
        Collapse = "collapse",
        /// Big memory on a pool of huge pages, of which `fork(2)` copies no page tables.
        Pool = "pool",
    }

    /// Whose `malloc` programs get.
    Malloc, "choice", 3 {
        /// mimalloc in mode `pool`, for programs that would have libc's; otherwise what they have.
        Auto = "auto",
        /// What they have.
        Keep = "keep",
        /// mimalloc, whatever they have.
        Mimalloc = "mimalloc",
    }

    /// What the child of a fork gets of the library while its parent lives.
    Children, "choice", 3 {
        /// No thread: it may enter sandboxes and change its rights as it could without the library.
        Alone = "alone",
        /// A thread that privatises what the child writes densely, and one that looks after its own forks.
        Grow = "grow",
        /// A thread that gives back pages that equal what was inherited, and one that looks after its own forks.
        Share = "share",
    }
}

/// What a child's life may have the program take, as a multiple of what it takes with plain pages; or any amount.
///
/// Copies of whole blocks save time, and take more memory than those of the pages that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    percent: Option<u32>,
}

impl Default for Memory {
    /// 1.15 times as much.
    fn default() -> Memory {
        Memory { percent: Some(115) }
    }
}

/// For as much as saves time.
const ANY: &str = "any";

impl Memory {
    /// In percent; none if it may be any amount.
    pub fn percent(self) -> Option<u32> {
        self.percent
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent {
            Some(percent) => f.pad(&(f64::from(percent) / 100.0).to_string()),
            None => f.pad(ANY),
        }
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ANY {
            return Ok(Memory { percent: None });
        }
        let times = text.parse::<f64>().ok().filter(|times| (1.0..=1000.0).contains(times));
        let refused = || format!("not such a number: take one from 1 to 1000, such as 1.15, or {ANY}");
        times.map(|times| Memory { percent: Some((times * 100.0).round() as u32) }).ok_or_else(refused)
    }
}

/// What the library is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What it does.
    pub mode: Mode,
    /// Bytes from which on a mapping is looked after.
    pub min_size: usize,
    /// Whose `malloc` programs get.
    pub malloc: Malloc,
    /// What children get.
    pub children: Children,
    /// What children's lives may have the program take.
    pub memory: Memory,
    /// The file name of the only program in which it does anything.
    pub only: Option<OsString>,
    /// Whether a line of statistics is printed when the program ends.
    pub at_exit: bool,
    /// The signal that prints that line.
    pub signal: Option<i32>,
}

impl Settings {
    /// Whether the library is to have a `malloc` beside it.
    pub fn brings_malloc(&self) -> bool {
        match (self.malloc, self.mode) {
            (Malloc::Keep, _) | (Malloc::Auto, Mode::Collapse) => false,
            (Malloc::Mimalloc, _) | (Malloc::Auto, Mode::Pool) => true,
        }
    }

    /// The variables that say so.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(MODE, self.mode.name().into()), (MIN_SIZE, self.min_size.to_string().into())];
        variables.extend(self.brings_malloc().then(|| (MALLOC, self.malloc.name().into())));
        variables.extend((self.children != Children::Alone).then(|| (CHILDREN, self.children.name().into())));
        variables.extend((self.memory != Memory::default()).then(|| (MEMORY, self.memory.to_string().into())));
        variables.extend(self.only.clone().map(|name| (ONLY, name)));
        variables.extend(self.at_exit.then(|| (STATS, AT_EXIT.into())));
        variables.extend(self.signal.map(|signal| (STATS_SIGNAL, signal.to_string().into())));
        variables
    }
}
