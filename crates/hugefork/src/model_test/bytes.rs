//! Random programs encoded as bytes: the form in which a fuzzer mutates them and fuzz/corpus/model stores its finds.
//!
//! Every sequence of bytes is a valid program. The first byte selects the shape of the pool. Each operation follows as
//! one byte that selects it and as many bytes as its arguments need.

use super::{Op, SCARCE_MAPPINGS, SMALL, SPLITTING, Shape, run};
use crate::sys::soft::Call;

/// Longer programs find nothing more, and take longer.
const MOST_OPS: usize = 60;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(usize::from(*first))
    }

    fn below(&mut self, end: usize) -> Option<usize> {
        Some(self.byte()? % end)
    }

    /// A number larger than the length of any region.
    fn large(&mut self) -> Option<usize> {
        Some(self.byte()? << 16 | self.byte()? << 8 | self.byte()?)
    }

    /// The number of a region or snapshot.
    fn index(&mut self) -> Option<usize> {
        self.below(5)
    }

    fn value(&mut self) -> Option<u8> {
        Some(self.below(255)? as u8 + 1)
    }

    fn part(&mut self) -> Option<(usize, usize, usize)> {
        Some((self.index()?, self.large()?, self.large()?))
    }

    /// Decodes the next operation; `None` at the end.
    fn op(&mut self) -> Option<Op> {
        Some(match self.below(38)? {
            0 | 1 => Op::Create { blocks: self.below(64)?, with: self.below(36)? },
            2..11 => Op::Write { region: self.index()?, offset: self.large()?, value: self.value()? },
            11 => Op::Fork { region: self.index()?, with: self.below(36)? },
            12 | 13 => Op::Snapshot { region: self.index()?, with: self.below(36)? },
            14 => Op::ForkSnapshot { snapshot: self.index()? },
            15 => Op::MapSnapshot { snapshot: self.index()? },
            16 | 17 => {
                let (region, start, len) = self.part()?;
                Op::LazyFree { region, start, len }
            }
            18 => {
                let (region, start, len) = self.part()?;
                Op::CancelLazyFree { region, start, len }
            }
            19 => Op::Reclaim { blocks: self.below(9)? },
            20 => Op::Trim,
            21 => Op::GetAhead,
            22 => {
                let (region, start, len) = self.part()?;
                Op::Pin { region, start, len }
            }
            23 => Op::Unpin { region: self.index()? },
            24 => Op::DeviceWrite { region: self.index()?, value: self.value()? },
            25 => {
                let (region, start, len) = self.part()?;
                Op::Discard { region, start, len }
            }
            26 => Op::Populate { region: self.index()? },
            27 => {
                let (region, start, len) = self.part()?;
                Op::PrepareWrite { region, start, len }
            }
            28 => Op::Keep { snapshot: self.index()? },
            29 => Op::Compare { newer: self.below(10)?, older: self.index()? },
            30 => Op::ResetAll { regions: [self.index()?, self.index()?], snapshots: [self.index()?, self.index()?] },
            31..34 => Op::Reset { region: self.index()?, snapshot: self.index()? },
            34 => match self.below(3)? {
                0 => Op::BeAlone(self.below(2)? == 1),
                1 => Op::TrackWrites(self.below(2)? == 1),
                _ => Op::SnapshotBeside { region: self.index()?, offset: self.large()?, value: self.value()? },
            },
            35 => Op::Maintain,
            36 => match self.below(3)? {
                0 => Op::DropRegion { region: self.index()? },
                1 => Op::PrepareSnapshot { region: self.index()? },
                _ => Op::DropSnapshot { snapshot: self.index()? },
            },
            _ => Op::FailNext { call: self.below(Call::ALL.len())?, after: self.below(3)? },
        })
    }
}

/// Decodes a program.
fn program(bytes: &[u8]) -> (Shape, Vec<Op>) {
    let mut bytes = Bytes(bytes);
    let shape = [SMALL, SPLITTING, SCARCE_MAPPINGS][bytes.below(3).unwrap_or(0)];
    (shape, std::iter::from_fn(|| bytes.op()).take(MOST_OPS).collect())
}

/// Runs a program. If it fails, prints it as a line that can be pasted into a test.
pub(crate) fn run_bytes(bytes: &[u8]) {
    struct Program(Shape, Vec<Op>);
    impl Drop for Program {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("run({:?}, &{:?});", self.0, self.1);
            }
        }
    }
    let (shape, ops) = program(bytes);
    let program = Program(shape, ops);
    run(program.0, &program.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fuzzer_has_found_goes_well() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/model");
        // The published package of this crate does not contain the corpus.
        let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
        entries.flatten().for_each(|entry| run_bytes(&std::fs::read(entry.path()).unwrap()));
    }
}
