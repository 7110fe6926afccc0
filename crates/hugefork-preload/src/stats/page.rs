//! The page: words, of which each has its place for ever, and what they say.
//!
//! Only 64-bit words, so that a reader of another moment sees each as it was at some time. They need not agree with
//! each other.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::BASE_PAGE;

/// The name of the file that the page is, as `/proc/PID/maps` shows it.
pub(crate) const NAME: &str = "/memfd:hugefork-stats";

/// Buckets of a histogram: bucket `n` counts times below 2ⁿ us that no bucket before it counts. The last counts all
/// that are longer.
pub const BUCKETS: usize = 32;

/// What the first word says: `hugefork` in letters.
const MAGIC: u64 = u64::from_le_bytes(*b"hugefork");
/// The second: which words follow.
const LAYOUT: u64 = 1;

const WORDS: usize = BASE_PAGE / 8;
/// Where the histograms begin, one behind the other.
const HISTOGRAMS: usize = 64;

/// What there is a histogram of, in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Times {
    Forks,
    HeldByPromotion,
    HeldByWriteBack,
}

impl Times {
    fn place(self) -> usize {
        HISTOGRAMS + self as usize * BUCKETS
    }
}

/// The words that count, in their places, each with what it counts.
macro_rules! counters {
    ($($(#[$what:meta])* $word:ident $field:ident,)*) => {
        /// The place of a word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Word {
            Magic,
            Layout,
            /// The process whose page it is, by the number that it has for itself.
            Process,
            /// The mode, by its place in `Mode::ALL`.
            Mode,
            $($word,)*
        }

        /// What a page said at one moment.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            /// The process whose page it is, by the number that it has for itself.
            pub process: u32,
            /// The mode.
            pub mode: &'static str,
            /// The number of forks that took less than 1, 2, 4, 8… us, and not less than the one before.
            pub fork_usec_histogram: Vec<u64>,
            /// The same, for how long each block was held while it was promoted, or demoted: who used it waited.
            pub promotion_usec_histogram: Vec<u64>,
            /// The same, for how long blocks were held while copied pages went back into them.
            pub write_back_usec_histogram: Vec<u64>,
            $($(#[$what])* pub $field: u64,)*
        }

        impl Counters {
            /// What was counted, by its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            fn from(word: impl Fn(usize) -> u64) -> Option<Counters> {
                let of = |place: Word| word(place as usize);
                if (of(Word::Magic), of(Word::Layout)) != (MAGIC, LAYOUT) {
                    return None;
                }
                let histogram = |times: Times| (0..BUCKETS).map(|bucket| word(times.place() + bucket)).collect();
                Some(Counters {
                    process: u32::try_from(of(Word::Process)).ok()?,
                    mode: crate::Mode::ALL.get(of(Word::Mode) as usize)?.name(),
                    fork_usec_histogram: histogram(Times::Forks),
                    promotion_usec_histogram: histogram(Times::HeldByPromotion),
                    write_back_usec_histogram: histogram(Times::HeldByWriteBack),
                    $($field: of(Word::$word),)*
                })
            }
        }
    };
}

counters! {
    /// Mappings for which huge pages were asked; those of libc's own `malloc` are not among them.
    Mappings mappings,
    /// Their bytes.
    MappedBytes mapped_bytes,
    /// Forks with big memory, named as in Redis's INFO.
    Forks total_forks,
    /// What the last one kept the forking thread, in microseconds, named as in Redis's INFO.
    PauseLast latest_fork_usec,
    /// The longest.
    PauseMax longest_fork_usec,
    /// All together.
    PauseSum all_forks_usec,
    /// Forks of which something still lives, as far as is known.
    Outstanding forks_alive,
    /// How often blocks were looked for that can be collapsed.
    Passes passes,
    /// Blocks of 2 MiB that were put together again.
    Collapsed blocks_collapsed,
    /// Blocks for which the kernel had no huge page.
    NotCollapsed blocks_not_collapsed,
    /// How often the program was kept from switching its huge pages off.
    ThpDisablesKept thp_disables_kept,
    /// Mappings that lie on the pool, in mode `pool`.
    PoolMappings pool_mappings,
    /// 1 if there can be no pool in this process, and all is left to the kernel.
    PoolRefused pool_refused,
    /// Blocks of the pool of which the program wanted what only the kernel has, so that it has them now.
    PoolHandedOver blocks_handed_over,
    /// Blocks that the kernel refused to show to a child, which crashes if it uses them.
    PoolUnseen blocks_unseen,
    /// Pages that were copied for writers, and that went back into their blocks since.
    PagesWrittenBack pages_written_back,
    /// Blocks that were copied as a whole while a child shared them.
    Promoted blocks_promoted,
    /// Blocks of the pool that were made huge pages, where the kernel does not do so by itself.
    PoolHuge blocks_made_huge,
    /// 1 if the program does what the pool's memory is not fit for, and all is left to the kernel since.
    PoolLeft pool_left,
    /// Bytes of memory that the pool has. The kernel counts them as shared memory.
    PoolBytes pool_bytes,
    /// Bytes of those that are kept for the copies of the next child.
    PoolKept pool_kept_bytes,
    /// Blocks that this process has inherited and written densely, and that became its own memory in huge pages.
    Privatised blocks_privatised,
    /// Pages that this process shared with others and wrote, that were as before again, and that it shares again.
    PagesGivenBack pages_given_back,
    /// What it took to find those, in time of a processor.
    SharingUsec sharing_usec,
    /// Why there can be no pool: the number of a [`PoolRefusal`]; 0 if there can be one, or nobody has asked yet.
    PoolRefusedWhy pool_refused_why,
    /// Blocks that were copied as a whole, and that are copied by page again, since memory was short.
    Demoted blocks_demoted,
}

/// Why there can be no pool in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PoolRefusal {
    /// The process may have too few descriptors.
    Descriptors = 1,
    /// The program has a library that pins memory.
    PinningLibrary = 2,
    /// Page faults cannot be resolved for it, or not those of system calls.
    Userfaults = 3,
    /// It has too few addresses.
    Addresses = 4,
    /// The kernel has refused something else that the engine needs itself, such as memory.
    Kernel = 5,
}

impl PoolRefusal {
    /// Of what was counted; none if there can be a pool, nobody has asked yet, or another version knows why.
    pub fn of(counted: &Counters) -> Option<PoolRefusal> {
        use PoolRefusal::{Addresses, Descriptors, Kernel, PinningLibrary, Userfaults};
        let all = [Descriptors, PinningLibrary, Userfaults, Addresses, Kernel];
        all.into_iter().find(|why| *why as u64 == counted.pool_refused_why)
    }
}

/// The bucket of a time.
pub(crate) fn bucket_of(us: u64) -> usize {
    ((u64::BITS - us.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The page.
#[repr(C, align(4096))]
pub(crate) struct Page {
    words: [AtomicU64; WORDS],
}

impl Page {
    pub(crate) const fn new() -> Page {
        Page { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    pub(crate) fn word(&self, word: Word) -> &AtomicU64 {
        &self.words[word as usize]
    }

    /// How many times are in a bucket.
    pub(crate) fn bucket(&self, times: Times, bucket: usize) -> &AtomicU64 {
        &self.words[times.place() + bucket]
    }

    /// Says whose page it is, and that it is one.
    pub(crate) fn begin(&self, process: u32, mode: usize) {
        self.word(Word::Process).store(process.into(), Ordering::Relaxed);
        self.word(Word::Mode).store(mode as u64, Ordering::Relaxed);
        self.word(Word::Layout).store(LAYOUT, Ordering::Relaxed);
        self.word(Word::Magic).store(MAGIC, Ordering::Release);
    }

    /// Takes what another counted.
    pub(crate) fn copy_from(&self, other: &Page) {
        for (to, from) in self.words.iter().zip(&other.words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts from nothing.
    pub(crate) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

impl Counters {
    /// Reads bytes of a page; none if it is not one that this version knows.
    pub fn from_bytes(bytes: &[u8]) -> Option<Counters> {
        let word = |place: usize| bytes.get(place * 8..place * 8 + 8)?.try_into().ok().map(u64::from_le_bytes);
        (bytes.len() >= BASE_PAGE).then_some(())?;
        Counters::from(|place| word(place).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_read() {
        let page = Page::new();
        page.begin(7, 0);
        page.word(Word::Forks).store(3, Ordering::Relaxed);
        for us in [0, 1, 3, 1000, u64::MAX] {
            page.bucket(Times::Forks, bucket_of(us)).fetch_add(1, Ordering::Relaxed);
        }
        page.bucket(Times::HeldByPromotion, bucket_of(100)).store(2, Ordering::Relaxed);
        page.bucket(Times::HeldByWriteBack, bucket_of(u64::MAX)).store(3, Ordering::Relaxed);
        // SAFETY: words of the page, which nobody writes to here.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const page).cast::<u8>(), BASE_PAGE) };
        let read = Counters::from_bytes(bytes).unwrap();
        assert_eq!((read.process, read.mode, read.total_forks), (7, "collapse", 3));
        let counted: Vec<usize> = (0..BUCKETS).filter(|bucket| read.fork_usec_histogram[*bucket] == 1).collect();
        assert_eq!(counted, [0, 1, 2, 10, BUCKETS - 1]);
        assert_eq!((read.promotion_usec_histogram[7], read.write_back_usec_histogram[BUCKETS - 1]), (2, 3));
    }

    #[test]
    fn other_bytes_are_no_page() {
        assert_eq!(Counters::from_bytes(&[0; BASE_PAGE]), None);
        assert_eq!(Counters::from_bytes(&[0; 8]), None);
    }
}
