//! Ways to take snapshots of a populated area while its program continues to write to the area.

use std::ops::Range;
use std::ptr;

use hugefork::{Pool, Region, Snapshot};

use crate::error::BenchError;
use crate::measure::warm::warm;
use crate::measure::work::reader;
use crate::memory::holder::Holder;
use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};
use crate::memory::pools;
use crate::memory::tracked::Tracked;

/// Areas hold `p[i] = i + BIAS` at first.
pub(super) const BIAS: u64 = 1;

/// A function that reads the word at an offset of an area or snapshot.
pub(super) type Read<'a> = &'a dyn Fn(usize) -> u64;

/// A populated area, and a way to take snapshots of it.
pub(super) trait Way {
    /// A snapshot.
    type Snapshot;

    /// First byte of the area.
    fn start(&self) -> *mut u8;

    /// Takes a snapshot. `is_kept` checks the snapshot through the function that it is given, and neither allocates nor
    /// locks.
    fn take(&mut self, is_kept: impl Fn(Read<'_>) -> bool) -> Result<Self::Snapshot, BenchError>;

    /// Checks a snapshot, and drops it.
    fn check(
        &mut self,
        snapshot: Self::Snapshot,
        check: impl FnOnce(Read<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError>;

    /// The pool under the area, if it is hugefork's.
    fn pool(&self) -> Option<&Pool> {
        None
    }
}

/// Warms the memory of an area of `size` bytes, and of a quarter as much for copies of pages.
fn warm_area(kind: PageKind, size: usize, cpu: usize) -> Result<(), BenchError> {
    warm(kind, size + (size / 4).next_multiple_of(HUGE_PAGE), 1, &[cpu])
}

/// hugefork: a region of a pool with all defaults.
pub(super) struct RegionWay {
    // The region before its pool: fields drop in order.
    region: Region,
    pool: Pool,
}

impl RegionWay {
    /// `room` is the number of bytes for blocks and pages that only snapshots hold.
    pub(super) fn new(size: usize, room: usize, cpu: usize) -> Result<RegionWay, BenchError> {
        warm_area(PageKind::Thp, size, cpu)?;
        let pool = pools::new(size + room.next_multiple_of(HUGE_PAGE))?;
        Ok(RegionWay { region: pools::written(&pool, size, BIAS)?, pool })
    }
}

impl Way for RegionWay {
    type Snapshot = Snapshot;

    fn start(&self) -> *mut u8 {
        self.region.as_mut_ptr()
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<Snapshot, BenchError> {
        Ok(self.region.snapshot()?)
    }

    fn check(
        &mut self,
        snapshot: Snapshot,
        check: impl FnOnce(Read<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let view = snapshot.map()?;
        // SAFETY: the snapshot is as long as the region.
        check(&unsafe { reader(view.as_ptr()) })
    }

    fn pool(&self) -> Option<&Pool> {
        Some(&self.pool)
    }
}

/// `fork(2)`: a child holds the memory, and sleeps until the parent asks for the check of that memory.
pub(super) struct ForkWay(KernelMemory);

impl ForkWay {
    pub(super) fn new(kind: PageKind, size: usize, cpu: usize) -> Result<ForkWay, BenchError> {
        warm_area(kind, size, cpu)?;
        let area = KernelMemory::written(kind, size, BIAS)?;
        area.check_huge()?;
        area.inherit(Inherit::Yes)?;
        Ok(ForkWay(area))
    }
}

impl Way for ForkWay {
    type Snapshot = Holder;

    fn start(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    fn take(&mut self, is_kept: impl Fn(Read<'_>) -> bool) -> Result<Holder, BenchError> {
        // SAFETY: the child's own copy of the mapping.
        let read = unsafe { reader(self.start()) };
        // SAFETY: the child reads and compares.
        unsafe { Holder::fork(|| is_kept(&read)) }
    }

    /// Lets the child check its memory, and waits for the result.
    fn check(&mut self, child: Holder, _: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        child.let_go()
    }
}

/// `memcpy` of the whole area to memory that is present.
pub(super) struct CopyWay {
    area: KernelMemory,
    /// The memory for copies. Snapshot `nth` is the element `nth`.
    copies: Vec<KernelMemory>,
    taken: usize,
}

impl CopyWay {
    /// Creates an area, and memory for `copies` copies of the area.
    pub(super) fn new(size: usize, copies: usize, cpu: usize) -> Result<CopyWay, BenchError> {
        warm(PageKind::Thp, (1 + copies) * size, 1, &[cpu])?;
        let huge = |bias| KernelMemory::written(PageKind::Thp, size, bias);
        Ok(CopyWay { area: huge(BIAS)?, copies: (0..copies).map(|_| huge(0)).collect::<Result<_, _>>()?, taken: 0 })
    }
}

impl Way for CopyWay {
    type Snapshot = usize;

    fn start(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<usize, BenchError> {
        let to = &self.copies[self.taken];
        // SAFETY: two mappings of our own of the same length.
        unsafe { libc::memcpy(to.as_ptr().cast(), self.area.as_ptr().cast(), to.len()) };
        self.taken += 1;
        Ok(self.taken - 1)
    }

    fn check(&mut self, nth: usize, check: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        check(&unsafe { reader(self.copies[nth].as_ptr()) })
    }
}

/// A shadow copy: a full copy from before the first snapshot, and for each snapshot a log of the pages that the kernel
/// has marked as written since the snapshot before.
pub(super) struct ShadowWay {
    area: Tracked,
    base: KernelMemory,
    logs: Vec<Log>,
}

/// The pages that were written between one snapshot and the next, with their contents.
struct Log {
    /// Ranges of the area, in order, with the place of each in `bytes`.
    ranges: Vec<(Range<usize>, usize)>,
    bytes: Vec<u8>,
}

impl Log {
    /// The word at an offset of the area, if the log has its page.
    fn word(&self, offset: usize) -> Option<u64> {
        let nth = self.ranges.partition_point(|(range, _)| range.end <= offset);
        let (range, place) = self.ranges.get(nth).filter(|(range, _)| range.contains(&offset))?;
        let at = place + offset - range.start;
        Some(u64::from_ne_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes")))
    }
}

impl ShadowWay {
    pub(super) fn new(size: usize, cpu: usize) -> Result<ShadowWay, BenchError> {
        warm_area(PageKind::Thp, size, cpu)?;
        let base = KernelMemory::written(PageKind::Thp, size, BIAS)?;
        Ok(ShadowWay { area: Tracked::written(size, BIAS)?, base, logs: Vec::new() })
    }
}

impl Way for ShadowWay {
    type Snapshot = usize;

    fn start(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<usize, BenchError> {
        let (mut ranges, mut len) = (Vec::new(), 0);
        self.area.scan(|range| {
            ranges.push((range.clone(), len));
            len += range.len();
        })?;
        let mut bytes = Vec::<u8>::with_capacity(len);
        let start = self.area.as_ptr();
        for (range, place) in &ranges {
            // SAFETY: pages of our own mapping go to as many bytes of the vector, which has the capacity for all.
            unsafe { ptr::copy_nonoverlapping(start.add(range.start), bytes.as_mut_ptr().add(*place), range.len()) };
        }
        // SAFETY: the ranges fill all `len` bytes.
        unsafe { bytes.set_len(len) };
        self.area.protect()?;
        self.logs.push(Log { ranges, bytes });
        Ok(self.logs.len() - 1)
    }

    fn check(&mut self, nth: usize, check: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        let base = unsafe { reader(self.base.as_ptr()) };
        let logs = &self.logs[..=nth];
        check(&|offset| logs.iter().rev().find_map(|log| log.word(offset)).unwrap_or_else(|| base(offset)))
    }
}

/// Checks that `read` returns the expected word at each of `offsets`. A child or this process may call it.
pub(super) fn check_words(
    offsets: &[usize],
    expected: impl Fn(usize) -> u64,
    read: Read<'_>,
) -> Result<(), BenchError> {
    for &offset in offsets {
        let (found, expected) = (read(offset), expected(offset));
        if found != expected {
            return Err(BenchError::WrongContents { offset, found, expected });
        }
    }
    Ok(())
}

/// Returns `None`, so that the caller skips its test, if the machine lacks something; prints the reason.
#[cfg(test)]
pub(super) fn unless_lacking<T>(made: Result<T, BenchError>) -> Option<T> {
    match made {
        Err(error) if error.is_lack() => {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {error}\n").as_bytes());
            None
        }
        made => Some(made.unwrap()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 2 * HUGE_PAGE;

    /// Takes two snapshots with writes before, between and after; each snapshot must hold the words of the moment at
    /// which it was taken.
    fn keeps<W: Way>(way: Result<W, BenchError>) {
        let Some(mut way) = unless_lacking(way) else { return };
        let write = |way: &W, page: usize, value: u64| {
            // SAFETY: the first word of a page of the area, which is ours alone.
            unsafe { way.start().add(page * 4096).cast::<u64>().write_volatile(value) };
        };
        write(&way, 1, 77);
        let first = way.take(|read| read(4096) == 77 && read(8192) == 1024 + BIAS).unwrap();
        write(&way, 1, 78);
        write(&way, 2, 79);
        let second = way.take(|read| read(4096) == 78 && read(8192) == 79).unwrap();
        write(&way, 2, 80);
        for (snapshot, words) in [(first, [77, 1024 + BIAS]), (second, [78, 79])] {
            way.check(snapshot, |read| {
                assert_eq!([read(4096), read(8192)], words);
                assert_eq!(read(3 * 4096), 3 * 512 + BIAS);
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn every_way_keeps_snapshots_as_they_were() {
        let cpu = crate::measure::affinity::allowed_cpus()[0];
        keeps(RegionWay::new(SIZE, 4 * SIZE, cpu));
        keeps(ForkWay::new(PageKind::Base, SIZE, cpu));
        keeps(ForkWay::new(PageKind::Thp, SIZE, cpu));
        keeps(CopyWay::new(SIZE, 2, cpu));
        keeps(ShadowWay::new(SIZE, cpu));
    }

    #[test]
    fn a_child_that_lost_its_memory_fails_the_check() {
        let cpu = crate::measure::affinity::allowed_cpus()[0];
        let mut way = ForkWay::new(PageKind::Base, SIZE, cpu).unwrap();
        let child = way.take(|read| read(0) == 12345).unwrap();
        assert!(way.check(child, |_| Ok(())).is_err());
    }
}
