//! Runs random programs on the software MMU beside plain vectors, and lets calls of the operating system fail.
//!
//! After each operation, the test checks the whole world: the bytes of the interesting pages, each entry against the
//! software MMU's mapping, each block's references against its holders, the mappings against the budget.
//!
//! | file | what |
//! |---|---|
//! | `world` | a pool with its regions and snapshots, their models, and the effect of each operation on both |
//! | `changes` | compares the differences that the engine reports with those of the vectors |
//! | `check` | the checks after each operation |
//! | `bytes` | programs encoded as bytes, for the fuzzer and its corpus |

mod bytes;
mod changes;
mod check;
mod world;

use std::ops::Range;

#[cfg(fuzzing)]
pub(crate) use bytes::run_bytes;
#[cfg(test)]
use proptest::prelude::*;

use crate::sys::Merging;
#[cfg(test)]
use crate::sys::soft::Call;
use crate::units::BASE_PAGE;
use world::World;

#[derive(Clone, Debug)]
enum Op {
    Create {
        blocks: usize,
        with: usize,
    },
    Write {
        region: usize,
        offset: usize,
        value: u8,
    },
    Fork {
        region: usize,
        with: usize,
    },
    Snapshot {
        region: usize,
        with: usize,
    },
    ForkSnapshot {
        snapshot: usize,
    },
    LazyFree {
        region: usize,
        start: usize,
        len: usize,
    },
    CancelLazyFree {
        region: usize,
        start: usize,
        len: usize,
    },
    Reclaim {
        blocks: usize,
    },
    Trim,
    /// One step of the thread that obtains memory ahead of snapshots.
    GetAhead,
    Pin {
        region: usize,
        start: usize,
        len: usize,
    },
    Unpin {
        region: usize,
    },
    /// A write to physical memory, past the page table.
    DeviceWrite {
        region: usize,
        value: u8,
    },
    MapSnapshot {
        snapshot: usize,
    },
    Discard {
        region: usize,
        start: usize,
        len: usize,
    },
    Populate {
        region: usize,
    },
    PrepareWrite {
        region: usize,
        start: usize,
        len: usize,
    },
    PrepareSnapshot {
        region: usize,
    },
    /// Makes a snapshot irrevocable, as an export does.
    Keep {
        snapshot: usize,
    },
    /// Compares a region or snapshot with a snapshot of the same length.
    Compare {
        newer: usize,
        older: usize,
    },
    /// Resets a region to a snapshot, perhaps one of another length.
    Reset {
        region: usize,
        snapshot: usize,
    },
    /// Resets two regions to two snapshots at one moment.
    ResetAll {
        regions: [usize; 2],
        snapshots: [usize; 2],
    },
    /// Sets whether the software MMU reports that no other thread can write.
    BeAlone(bool),
    /// Takes a snapshot during which another thread writes this byte, right after the first pages were write-protected.
    SnapshotBeside {
        region: usize,
        offset: usize,
        value: u8,
    },
    /// Sets whether the software MMU tracks writes.
    TrackWrites(bool),
    /// One step of the thread that maintains CoW mappings.
    Maintain,
    DropRegion {
        region: usize,
    },
    DropSnapshot {
        snapshot: usize,
    },
    FailNext {
        call: usize,
        after: usize,
    },
}

/// The shape of a pool under test.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block: usize,
    blocks: usize,
    merging: Merging,
    mappings: usize,
}

/// Blocks of 4 KiB share a window of 512 and are given in runs; a block of 2 MiB has a window of its own.
const SMALL: Shape = Shape { block: 4 << 10, blocks: 48, merging: Merging::Merge, mappings: 1000 };
const SPLITTING: Shape = Shape { block: 64 << 10, blocks: 12, merging: Merging::Merge, mappings: 1000 };
#[cfg(test)]
const HUGE: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Merge, mappings: 1000 };
#[cfg(test)]
const HUGETLB: Shape = Shape { block: 2 << 20, blocks: 6, merging: Merging::Separate, mappings: 1000 };
const SCARCE_MAPPINGS: Shape = Shape { block: 16 << 10, blocks: 48, merging: Merging::Merge, mappings: 14 };

/// Whether `page` is checked: only the first, a middle and the last page of a huge block are, since a run would
/// otherwise take minutes.
fn is_interesting(page: usize, block: usize) -> bool {
    let within = page % block / BASE_PAGE;
    within == 0 || within == 100 || within == block / BASE_PAGE - 1
}

/// The offset of a byte that `check_bytes` checks.
fn interesting(seed: usize, len: usize, block: usize) -> usize {
    let pages = [0, 100 * BASE_PAGE % block, block - BASE_PAGE];
    let start = seed / 9 % (len / block) * block;
    start + pages[seed / 3 % 3] + [0, 1, BASE_PAGE - 1][seed % 3]
}

/// A range whose ends are block-aligned, page-aligned or unaligned.
fn sub_range(start: usize, len: usize, whole: usize, block: usize) -> Range<usize> {
    let unit = [block, BASE_PAGE, 1][start % 3];
    let start = start % whole / unit * unit;
    let len = len % (whole - start + 1) / unit * unit;
    start..start + len
}

#[cfg(test)]
fn op() -> impl Strategy<Value = Op> {
    let index = 0..5usize;
    let any = 0..usize::MAX / 2;
    let part = (index.clone(), any.clone(), any.clone());
    prop_oneof![
        2 => (0..64usize, 0..36usize).prop_map(|(blocks, with)| Op::Create { blocks, with }),
        14 => (index.clone(), any, 1..=255u8)
            .prop_map(|(region, offset, value)| Op::Write { region, offset, value }),
        2 => (index.clone(), 0..36usize).prop_map(|(region, with)| Op::Fork { region, with }),
        2 => (index.clone(), 0..36usize).prop_map(|(region, with)| Op::Snapshot { region, with }),
        1 => index.clone().prop_map(|snapshot| Op::ForkSnapshot { snapshot }),
        1 => index.clone().prop_map(|snapshot| Op::MapSnapshot { snapshot }),
        5 => part.clone().prop_map(|(region, start, len)| Op::LazyFree { region, start, len }),
        1 => part.clone().prop_map(|(region, start, len)| Op::CancelLazyFree { region, start, len }),
        2 => (0..9usize).prop_map(|blocks| Op::Reclaim { blocks }),
        1 => Just(Op::Trim),
        2 => Just(Op::GetAhead),
        1 => part.clone().prop_map(|(region, start, len)| Op::Pin { region, start, len }),
        1 => index.clone().prop_map(|region| Op::Unpin { region }),
        1 => (index.clone(), 1..=255u8).prop_map(|(region, value)| Op::DeviceWrite { region, value }),
        3 => part.clone().prop_map(|(region, start, len)| Op::Discard { region, start, len }),
        1 => index.clone().prop_map(|region| Op::Populate { region }),
        1 => part.prop_map(|(region, start, len)| Op::PrepareWrite { region, start, len }),
        1 => index.clone().prop_map(|region| Op::PrepareSnapshot { region }),
        1 => index.clone().prop_map(|snapshot| Op::Keep { snapshot }),
        5 => (0..10usize, index.clone()).prop_map(|(newer, older)| Op::Compare { newer, older }),
        5 => (index.clone(), index.clone()).prop_map(|(region, snapshot)| Op::Reset { region, snapshot }),
        2 => ([index.clone(), index.clone()], [index.clone(), index.clone()])
            .prop_map(|(regions, snapshots)| Op::ResetAll { regions, snapshots }),
        1 => (0..2usize).prop_map(|alone| Op::BeAlone(alone == 1)),
        1 => Just(Op::Maintain),
        1 => index.clone().prop_map(|region| Op::DropRegion { region }),
        1 => index.prop_map(|snapshot| Op::DropSnapshot { snapshot }),
        1 => (0..Call::ALL.len(), 0..3usize).prop_map(|(call, after)| Op::FailNext { call, after }),
    ]
}

/// The start of a history: a region whose private page was captured in a snapshot.
#[cfg(test)]
fn begin_of_a_history() -> [Op; 5] {
    [
        Op::Create { blocks: 2, with: 3 },
        Op::Populate { region: 0 },
        Op::Snapshot { region: 0, with: 3 },
        // Not at the edge of a block, so the kernel copies the page.
        Op::Write { region: 0, offset: 3, value: 1 },
        Op::Snapshot { region: 0, with: 3 },
    ]
}

/// An operation on a single region whose snapshots are held, most often while writes are tracked.
#[cfg(test)]
fn of_a_history() -> impl Strategy<Value = Op> {
    let snapshot = 0..5usize;
    let any = 0..usize::MAX / 2;
    let part = (any.clone(), any.clone());
    let region = 0;
    prop_oneof![
        14 => (any.clone(), 1..=255u8).prop_map(move |(offset, value)| Op::Write { region, offset, value }),
        6 => Just(Op::Snapshot { region, with: 3 }),
        4 => (any, 1..=255u8).prop_map(move |(offset, value)| Op::SnapshotBeside { region, offset, value }),
        4 => snapshot.clone().prop_map(|snapshot| Op::DropSnapshot { snapshot }),
        2 => (0..4usize).prop_map(|tracks| Op::TrackWrites(tracks > 0)),
        1 => snapshot.clone().prop_map(|older| Op::Compare { newer: 0, older }),
        1 => snapshot.clone().prop_map(move |snapshot| Op::Reset { region, snapshot }),
        1 => snapshot.clone().prop_map(|snapshot| Op::MapSnapshot { snapshot }),
        1 => snapshot.prop_map(|snapshot| Op::ForkSnapshot { snapshot }),
        1 => part.clone().prop_map(move |(start, len)| Op::Discard { region, start, len }),
        1 => part.prop_map(move |(start, len)| Op::PrepareWrite { region, start, len }),
        1 => Just(Op::PrepareSnapshot { region }),
        1 => Just(Op::Maintain),
        1 => (0..Call::ALL.len(), 0..3usize).prop_map(|(call, after)| Op::FailNext { call, after }),
    ]
}

/// The number of cases. `HUGEFORK_MODEL_CASES=6000` runs a million operations.
#[cfg(test)]
fn cases(usual: u32) -> u32 {
    std::env::var("HUGEFORK_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

fn run(shape: Shape, ops: &[Op]) {
    let mut world = World::new(shape);
    for op in ops {
        world.apply(op);
        world.check();
    }
    // Drops all regions and snapshots; all blocks must be back then.
    world.mmu().fail(None);
    while let Some(index) = world.regions.len().checked_sub(1) {
        world.apply(&Op::DropRegion { region: index });
        world.apply(&Op::DropSnapshot { snapshot: 0 });
        world.check();
    }
    while !world.snapshots.is_empty() {
        world.apply(&Op::DropSnapshot { snapshot: 0 });
        world.check();
    }
    let leaked = world.pool.leaked.load(std::sync::atomic::Ordering::Relaxed);
    assert!(world.pool.frames.available() + leaked >= world.shape.blocks);
    assert_eq!(world.pool.frames.reserved(), 0);
}

#[cfg(test)]
proptest! {
    #![proptest_config(ProptestConfig { cases: cases(150), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_blocks_behave_like_vectors(ops in prop::collection::vec(op(), 1..80)) {
        run(SMALL, &ops);
    }

    #[test]
    fn blocks_that_split_behave_like_vectors(ops in prop::collection::vec(op(), 1..80)) {
        run(SPLITTING, &ops);
    }

    #[test]
    fn scarce_mappings_are_an_error_and_nothing_worse(ops in prop::collection::vec(op(), 1..80)) {
        run(SCARCE_MAPPINGS, &ops);
    }
}

#[cfg(test)]
proptest! {
    #![proptest_config(ProptestConfig { cases: cases(64), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_behave_like_vectors(ops in prop::collection::vec(of_a_history(), 1..160)) {
        run(SPLITTING, &[begin_of_a_history().to_vec(), ops].concat());
    }
}

#[cfg(test)]
proptest! {
    #![proptest_config(ProptestConfig { cases: cases(12), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn huge_blocks_behave_like_vectors(ops in prop::collection::vec(op(), 1..40)) {
        run(HUGE, &ops);
    }

    #[test]
    fn separate_mappings_behave_like_vectors(ops in prop::collection::vec(op(), 1..40)) {
        run(HUGETLB, &ops);
    }
}

/// Found by a random program: after a failure in the pause of a snapshot, the budget of mappings was off.
#[test]
fn the_budget_is_right_after_a_snapshot_that_fails_in_its_pause() {
    let beside = Op::SnapshotBeside { region: 0, offset: 606_890_207_425_134_592, value: 1 };
    let rest = [Op::MapSnapshot { snapshot: 0 }, Op::FailNext { call: 6, after: 1 }, beside];
    run(SPLITTING, &[begin_of_a_history().to_vec(), rest.to_vec()].concat());
}

/// Found by a random program: the last page set of a block still contained a page that a discard had dropped.
#[test]
fn a_page_that_was_discarded_is_in_no_later_snapshot() {
    let write = |offset| Op::Write { region: 0, offset, value: 1 };
    let snapshot = Op::Snapshot { region: 0, with: 3 };
    let rest = [
        Op::ForkSnapshot { snapshot: 1 },
        write(7752935861391002898),
        snapshot.clone(),
        Op::ForkSnapshot { snapshot: 2 },
        Op::BeAlone(true),
        snapshot.clone(),
        write(1701927082899773406),
        write(5783014477044765),
        snapshot.clone(),
        write(4580967879448918758),
        write(731420682211456287),
        write(0),
        Op::DropSnapshot { snapshot: 0 },
        Op::DropSnapshot { snapshot: 1 },
        write(0),
        snapshot.clone(),
        Op::ForkSnapshot { snapshot: 0 },
        write(2102464093624070652),
        write(23033005633369377),
        Op::Reset { region: 0, snapshot: 0 },
        Op::Discard { region: 0, start: 997754891700738560, len: 139014141887053892 },
        Op::DropSnapshot { snapshot: 0 },
        Op::DropSnapshot { snapshot: 0 },
        snapshot.clone(),
        write(3109116372188269665),
        snapshot,
    ];
    run(SPLITTING, &[begin_of_a_history().to_vec(), rest.to_vec()].concat());
}

/// Found by a random program: a region with lazily freed pages has the block of a snapshot that has pages over it.
#[test]
fn a_page_beside_freed_ones_is_a_change_of_a_fork() {
    let ops = [
        Op::Create { blocks: 14, with: 0 },
        Op::Write { region: 0, offset: 0, value: 1 },
        Op::LazyFree { region: 0, start: 8776889264081580175, len: 7752288308500681195 },
        Op::Fork { region: 0, with: 0 },
        Op::Write { region: 1, offset: 6485256958043673966, value: 1 },
        Op::Fork { region: 0, with: 0 },
        Op::Snapshot { region: 4, with: 5 },
        Op::Compare { newer: 0, older: 0 },
    ];
    run(SPLITTING, &ops);
}

/// Found by a random program: two snapshots have the same block, but only one has pages over it.
#[test]
fn pages_over_one_block_are_changes() {
    let ops = [
        Op::Create { blocks: 48, with: 24 },
        Op::Fork { region: 0, with: 0 },
        Op::Write { region: 2, offset: 0, value: 1 },
        Op::Fork { region: 0, with: 0 },
        Op::Write { region: 3, offset: 0, value: 1 },
        Op::Snapshot { region: 0, with: 1 },
        Op::Snapshot { region: 2, with: 0 },
        Op::Compare { newer: 6, older: 0 },
    ];
    run(SCARCE_MAPPINGS, &ops);
}

/// Found by a random program: of two regions reset together, one is reset at one moment and the other by the longer
/// way.
#[test]
fn mappings_are_counted_after_a_reset_of_several() {
    let ops = [
        Op::Create { blocks: 2, with: 24 },
        Op::Write { region: 0, offset: 0, value: 1 },
        Op::Snapshot { region: 0, with: 0 },
        Op::Write { region: 0, offset: 1149908978779576101, value: 1 },
        Op::Fork { region: 0, with: 9 },
        Op::ResetAll { regions: [1, 0], snapshots: [0, 0] },
    ];
    run(SCARCE_MAPPINGS, &ops);
}

/// Found by a random program: the staging of a reset still showed a block that another region gave back.
#[test]
fn what_is_staged_keeps_no_block() {
    let ops = [
        Op::Create { blocks: 0, with: 6 },
        Op::Write { region: 0, offset: 0, value: 1 },
        Op::Snapshot { region: 0, with: 0 },
        Op::Reset { region: 0, snapshot: 0 },
        Op::Pin { region: 0, start: 0, len: 0 },
        Op::ForkSnapshot { snapshot: 0 },
        Op::Write { region: 1, offset: 0, value: 1 },
        Op::DropSnapshot { snapshot: 0 },
        Op::Snapshot { region: 1, with: 0 },
        Op::Reset { region: 2, snapshot: 0 },
        Op::Create { blocks: 12, with: 0 },
        Op::Write { region: 2, offset: 0, value: 1 },
        Op::LazyFree { region: 2, start: 1764738511039758349, len: 71515489519629002 },
        Op::Reclaim { blocks: 1 },
    ];
    run(SPLITTING, &ops);
}

/// Lets each call of the operating system fail once, at the first call and at the third, in a program that makes all of
/// them.
#[test]
fn every_call_may_fail() {
    for shape in [SMALL, SPLITTING, SCARCE_MAPPINGS] {
        for call in 0..Call::ALL.len() {
            for after in [0, 2] {
                let mut ops = vec![Op::Create { blocks: 7, with: 5 }, Op::FailNext { call, after }];
                for round in 0..4 {
                    ops.extend((0..6).map(|n| Op::Write { region: 0, offset: n * 12345, value: 1 + round }));
                    ops.extend([
                        Op::Snapshot { region: 0, with: 1 },
                        Op::MapSnapshot { snapshot: round as usize },
                        Op::Fork { region: 0, with: 5 },
                        Op::Write { region: 0, offset: 7, value: 9 },
                        Op::Write { region: 1, offset: 7, value: 8 },
                        Op::LazyFree { region: 0, start: shape.block * 3, len: shape.block * 3 },
                        Op::LazyFree { region: 0, start: 1, len: shape.block * 2 + BASE_PAGE },
                        Op::Reclaim { blocks: 8 },
                        Op::Trim,
                        Op::Discard { region: 0, start: 3, len: shape.block * 3 + 1 },
                        Op::DropRegion { region: 1 },
                        Op::DropSnapshot { snapshot: 0 },
                        Op::Create { blocks: 3, with: 5 },
                        Op::Populate { region: 1 },
                        Op::LazyFree { region: 1, start: 1, len: shape.block + BASE_PAGE },
                        Op::Reclaim { blocks: 8 },
                        Op::Write { region: 1, offset: 0, value: 3 },
                        Op::DropRegion { region: 1 },
                        // The engine chooses the copy grain of this region, and begins with pages.
                        Op::Create { blocks: 3, with: 5 },
                        Op::Write { region: 1, offset: 3, value: 4 },
                        Op::Fork { region: 1, with: 5 },
                        Op::Write { region: 1, offset: 3, value: 5 },
                        Op::DropRegion { region: 2 },
                        Op::Fork { region: 1, with: 5 },
                        Op::Write { region: 1, offset: 3, value: 6 },
                        Op::DropRegion { region: 2 },
                        Op::Fork { region: 1, with: 5 },
                        Op::DropRegion { region: 2 },
                        Op::DropRegion { region: 1 },
                        // Copies by page.
                        Op::Create { blocks: 3, with: 11 },
                        Op::Write { region: 1, offset: 0, value: 4 },
                        Op::Write { region: 1, offset: 12, value: 4 },
                        Op::Snapshot { region: 1, with: 1 },
                        Op::Write { region: 1, offset: 3, value: 5 },
                        Op::Snapshot { region: 1, with: 1 },
                        Op::Write { region: 1, offset: 3, value: 6 },
                        Op::Write { region: 1, offset: 12, value: 6 },
                        Op::Compare { newer: 1, older: 0 },
                        Op::Compare { newer: 7, older: 0 },
                        Op::Compare { newer: 1, older: 1 },
                        Op::DropSnapshot { snapshot: 1 },
                        Op::DropSnapshot { snapshot: 0 },
                        Op::Write { region: 1, offset: 3, value: 7 },
                        Op::Snapshot { region: 1, with: 1 },
                        Op::Write { region: 1, offset: 12, value: 7 },
                        Op::DropSnapshot { snapshot: 0 },
                        Op::Write { region: 1, offset: 3, value: 8 },
                        Op::Snapshot { region: 1, with: 1 },
                        Op::PrepareWrite { region: 1, start: 0, len: shape.block * 3 },
                        // Resets to the snapshot, beside other threads and alone.
                        Op::Snapshot { region: 1, with: 1 },
                        Op::Write { region: 1, offset: 3, value: 7 },
                        Op::BeAlone(round < 2),
                        Op::Reset { region: 1, snapshot: 1 },
                        Op::Write { region: 1, offset: 4, value: 7 },
                        Op::Write { region: 1, offset: 12, value: 7 },
                        Op::Discard { region: 1, start: shape.block * 3, len: shape.block },
                        Op::Reset { region: 1, snapshot: 1 },
                        Op::Write { region: 1, offset: 4, value: 8 },
                        Op::Reset { region: 1, snapshot: 1 },
                        Op::DropSnapshot { snapshot: 1 },
                        Op::DropRegion { region: 1 },
                        Op::DropSnapshot { snapshot: 1 },
                        // Beside other threads, where only private pages differ.
                        Op::BeAlone(false),
                        Op::Create { blocks: 1, with: 11 },
                        Op::Write { region: 1, offset: 0, value: 4 },
                        Op::Snapshot { region: 1, with: 1 },
                    ]);
                    ops.extend((0..4).flat_map(|snapshot| {
                        [Op::Write { region: 1, offset: 0, value: 5 }, Op::Reset { region: 1, snapshot }]
                    }));
                    ops.extend([
                        // Together with another region, in which blocks differ.
                        Op::Create { blocks: 1, with: 11 },
                        Op::Write { region: 2, offset: 0, value: 4 },
                        Op::Snapshot { region: 2, with: 1 },
                        Op::Write { region: 1, offset: 0, value: 5 },
                        Op::Discard { region: 2, start: 0, len: shape.block },
                        Op::ResetAll { regions: [2, 1], snapshots: [2, 1] },
                        Op::Write { region: 1, offset: 0, value: 5 },
                        Op::Write { region: 2, offset: 0, value: 5 },
                        Op::ResetAll { regions: [1, 2], snapshots: [1, 2] },
                        Op::DropRegion { region: 2 },
                        Op::DropSnapshot { snapshot: 2 },
                        Op::DropRegion { region: 1 },
                        Op::DropSnapshot { snapshot: 1 },
                        Op::BeAlone(round < 2),
                    ]);
                }
                let mut world = World::new(shape);
                for op in &ops {
                    world.apply(op);
                    world.check();
                }
                let is_due = match Call::ALL[call] {
                    // `rows_test::exhaustion` makes it fail.
                    Call::Hide => false,
                    // These pools are smaller than a huge page; `huge_blocks_behave_like_vectors` makes it fail.
                    Call::MakeHuge => false,
                    // Blocks of one page do not split, and with few mappings no block does.
                    Call::Punch => shape.block == SPLITTING.block,
                    // A block of one page has no smaller unit.
                    Call::CowMapping | Call::Scan | Call::ClaimParking | Call::Hold | Call::WriteThrough => {
                        shape.block != SMALL.block
                    }
                    // With few mappings there is no budget for these.
                    Call::ClaimStaging | Call::TakePages | Call::BringPages => shape.block == SPLITTING.block,
                    // A write to the first page of a block may begin a stream, and in 16 KiB the first page is always
                    // written.
                    Call::DropPrivate => shape.block == SPLITTING.block,
                    _ => true,
                };
                assert!(
                    !(is_due && world.mmu().failure_pending()),
                    "{:?} was not called {after} times",
                    Call::ALL[call]
                );
            }
        }
    }
}

/// The engine makes one system call for each run, not for each block, as the design says.
#[test]
fn runs_are_one_system_call() {
    let mut world = World::new(SMALL);
    world.apply(&Op::Create { blocks: 31, with: 5 });
    world.write(0, 5 * SMALL.block, 1);
    assert_eq!(world.mmu().calls(Call::Map), 1, "32 never-written small blocks are one run");
    world.apply(&Op::Snapshot { region: 0, with: 1 });
    assert_eq!(world.mmu().calls(Call::Protect), 1);
    world.apply(&Op::MapSnapshot { snapshot: 0 });
    assert_eq!(world.mmu().calls(Call::Map), 2, "a snapshot of one run is mapped at once");
    world.apply(&Op::DropSnapshot { snapshot: 0 });
    world.write(0, 9 * SMALL.block, 2);
    assert_eq!(world.mmu().calls(Call::Protect), 2);
    world.write(0, 3 * SMALL.block, 2);
    assert_eq!(world.mmu().calls(Call::Protect), 2, "the whole run was made writable again");
    world.apply(&Op::Discard { region: 0, start: 0, len: 32 * SMALL.block });
    assert_eq!(world.mmu().calls(Call::MapZeros), 1);
    world.check();
}

/// Found by a random program: a snapshot wrote a block back during its pause, after it had changed states but before it
/// had counted mappings.
#[test]
fn mappings_are_counted_before_a_block_is_written_back_in_the_pause() {
    let write = |offset| Op::Write { region: 0, offset, value: 1 };
    let snapshot = Op::Snapshot { region: 0, with: 3 };
    let rest = [
        write(1990321009355826360),
        write(674610276091152087),
        write(5597089917341820648),
        Op::DropSnapshot { snapshot: 0 },
        snapshot.clone(),
        Op::PrepareWrite { region: 0, start: 701101833788176884, len: 1708810485610372995 },
        write(6566512530239497644),
        snapshot.clone(),
        Op::DropSnapshot { snapshot: 2 },
        Op::MapSnapshot { snapshot: 0 },
        write(0),
        Op::ForkSnapshot { snapshot: 0 },
        Op::Discard { region: 0, start: 17997901951, len: 0 },
        write(0),
        snapshot.clone(),
        Op::Discard { region: 0, start: 2137560946242150285, len: 0 },
        write(17368123823023995),
        Op::DropSnapshot { snapshot: 0 },
        write(2643603013181538540),
        write(3905169819011061480),
        write(0),
        snapshot,
        Op::Compare { newer: 0, older: 0 },
        write(7035214801127569464),
        write(1241750139242192046),
        write(1653804803273989113),
        Op::SnapshotBeside { region: 0, offset: 2470249866967515136, value: 1 },
    ];
    run(SPLITTING, &[begin_of_a_history().to_vec(), rest.to_vec()].concat());
}
