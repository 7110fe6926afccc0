//! Memory of a program: inheritance by children of `fork(2)`, and the return of blocks afterwards.

#[path = "../../hugefork/tests/common/mod.rs"]
mod common;

use std::ops::Range;

use common::alone::alone;
use common::refusals::{Kind, Refusals};
use hugefork_program::{ProgramMemory, Zeros};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

/// A memory; prints the reason if this machine cannot provide one.
fn memory(capacity: usize) -> Option<ProgramMemory> {
    ProgramMemory::new(capacity).inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

/// The first word of each page of a range.
fn words(range: Range<usize>) -> impl Iterator<Item = *mut u64> {
    range.step_by(PAGE).map(std::ptr::with_exposed_provenance_mut)
}

fn fill(range: Range<usize>, value: u64) {
    // SAFETY: the range is mapped, and only this thread uses it.
    words(range).for_each(|word| unsafe { word.write_volatile(value) });
}

fn holds(range: Range<usize>, value: u64) -> bool {
    // SAFETY: as above.
    words(range).all(|word| unsafe { word.read_volatile() } == value)
}

/// Forks, runs `work` in the child and `meanwhile` in the parent, and returns the child's result.
fn forked(memory: &mut ProgramMemory, work: impl FnOnce() -> bool, meanwhile: impl FnOnce(&mut ProgramMemory)) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: the child runs its work, reports the result, and exits.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let inherited = memory.before_fork();
        let child = libc::fork();
        if child == 0 {
            std::mem::forget(inherited);
            let mut byte = 0_u8;
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(i32::from(!work()));
        }
        assert!(child > 0);
        meanwhile(memory);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        drop(inherited);
        status == 0
    }
}

/// Maintains the memory until nothing is shared.
fn share_nothing(memory: &mut ProgramMemory) {
    while memory.is_shared() {
        memory.maintain();
    }
}

#[test]
fn a_child_sees_the_fork_and_the_parent_its_own_writes() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(8 * BLOCK).unwrap();
        let all = at..at + 8 * BLOCK;
        assert!(holds(all.clone(), 0));
        fill(at..at + 6 * BLOCK, 1); // The last two blocks remain untouched.
        for round in 1..4 {
            let (old, new) = (at..at + 6 * BLOCK, at + 6 * BLOCK..at + 8 * BLOCK);
            let work = || {
                let is_as_before = holds(old.clone(), round) && holds(new.clone(), 0);
                fill(old.clone(), 77);
                is_as_before && holds(old.clone(), 77)
            };
            let meanwhile = |memory: &mut ProgramMemory| {
                // Writes a few pages of one block, and all of another.
                fill(at..at + 5 * PAGE, round + 1);
                fill(at + BLOCK..at + 2 * BLOCK, round + 1);
                while memory.maintain() {}
                fill(at..at + 6 * BLOCK, round + 1);
            };
            assert!(forked(&mut memory, work, meanwhile), "round {round}");
            assert!(holds(old.clone(), round + 1) && holds(new, 0));
            share_nothing(&mut memory);
            assert!(holds(old, round + 1));
        }
        assert!(memory.counts().pages_written_back > 0, "{:?}", memory.counts());
        memory.unmap(all.clone(), |_| panic!("all of it was here"));
        assert!(!memory.has(all));
    })
    .well();
}

#[test]
fn overlapping_children_each_see_their_own_fork() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(4 * BLOCK).unwrap();
        let all = at..at + 4 * BLOCK;
        fill(all.clone(), 1);
        let outer = all.clone();
        let meanwhile = |memory: &mut ProgramMemory| {
            fill(at..at + BLOCK, 2);
            let inner = || holds(at..at + BLOCK, 2) && holds(at + BLOCK..at + 4 * BLOCK, 1);
            assert!(forked(memory, inner, |memory| {
                fill(at..at + 2 * BLOCK, 3);
                while memory.maintain() {}
            }));
            while memory.maintain() {}
            fill(at + 3 * BLOCK..at + 4 * BLOCK, 4);
        };
        assert!(forked(&mut memory, || holds(outer, 1), meanwhile));
        share_nothing(&mut memory);
        assert!(holds(at..at + 2 * BLOCK, 3) && holds(at + 2 * BLOCK..at + 3 * BLOCK, 1));
        assert!(holds(at + 3 * BLOCK..at + 4 * BLOCK, 4));
    })
    .well();
}

#[test]
fn a_child_retains_memory_that_the_parent_empties_or_unmaps() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(4 * BLOCK).unwrap();
        fill(at..at + 4 * BLOCK, 5);
        let work = || holds(at..at + 4 * BLOCK, 5);
        let meanwhile = |memory: &mut ProgramMemory| {
            memory.empty(at..at + BLOCK + 3 * PAGE, |_| panic!("all of it is here"));
            assert!(holds(at..at + BLOCK + 3 * PAGE, 0) && holds(at + BLOCK + 3 * PAGE..at + 4 * BLOCK, 5));
            memory.unmap(at + 2 * BLOCK..at + 3 * BLOCK, |_| panic!("all of it is here"));
            let (page, mut calls) = (at + 3 * BLOCK + PAGE..at + 3 * BLOCK + 2 * PAGE, 0);
            memory.unmap(page.clone(), |piece| {
                assert_eq!(piece, page, "the kernel's from now on");
                calls += 1;
            });
            assert_eq!(calls, 1);
            assert!(holds(at + 3 * BLOCK..at + 4 * BLOCK, 5), "with its contents");
        };
        assert!(forked(&mut memory, work, meanwhile));
        share_nothing(&mut memory);
        assert!(!memory.has(at + 2 * BLOCK..at + 4 * BLOCK) && memory.has_all(at..at + 2 * BLOCK));
        // Unmapped addresses give no piece, and handed-over blocks remain the kernel's.
        let freed = at + 2 * BLOCK..at + 3 * BLOCK;
        memory.unmap(freed.clone(), |_| panic!("nothing is there"));
        assert!(memory.is_free(freed.clone()) && !memory.is_free(at..at + BLOCK));
        // The addresses and the blocks can be mapped again.
        let again = memory.map(BLOCK).unwrap();
        assert_eq!(again, at + 2 * BLOCK);
        assert!(holds(again..again + BLOCK, 0));
        assert!(memory.make_way(freed.clone()) && !memory.has(freed.clone()) && !memory.is_free(freed.clone()));
        memory.finish_way(freed, true);
        assert!(memory.map(BLOCK).unwrap() > at + 3 * BLOCK, "not where the kernel has something");
        // The rest of a mapping's last block is not mapped.
        let short = memory.map(BLOCK + PAGE).unwrap();
        let end = short + BLOCK + PAGE;
        assert!(
            memory.behind_ends(&(0..usize::MAX)).eq(std::iter::once(end..end.next_multiple_of(BLOCK)))
                && memory.is_free(end..short + 2 * BLOCK)
        );
        assert!(!memory.is_free(end - PAGE..end + PAGE));
    })
    .well();
}

/// The kernel refuses the private mapping, and also the check of the state that this has left.
#[test]
fn memory_that_a_child_cannot_inherit_remains_writable() {
    alone(|| {
        let Some(mut memory) = memory(16 * BLOCK) else { return };
        let at = memory.map(2 * BLOCK).unwrap();
        let all = at..at + 2 * BLOCK;
        fill(all.clone(), 1);
        let refusals = match Refusals::start(1) {
            Ok(refusals) => refusals,
            Err(error) => return println!("skipped: no supervised system calls: {error}"),
        };
        refusals.arm(1, &[Kind::Protect, Kind::Look]);
        let inherited = memory.before_fork();
        refusals.disarm();
        let refused = [Kind::Protect, Kind::Look].map(|kind| refusals.refused(kind));
        assert_eq!((refused, memory.counts().unseen), ([1, 1], 2));
        fill(all.clone(), 2);
        drop(inherited);
        assert!(!memory.is_shared() && forked(&mut memory, || holds(all.clone(), 2), |_| fill(at..at + BLOCK, 3)));
        assert!(holds(at..at + BLOCK, 3) && holds(at + BLOCK..at + 2 * BLOCK, 2));
    })
    .well();
}

#[test]
fn mappings_beyond_the_capacity_are_refused() {
    alone(|| {
        let Some(mut memory) = memory(16 * BLOCK) else { return };
        assert_eq!(memory.map(17 * BLOCK), None);
        let all = memory.map(16 * BLOCK).unwrap();
        assert_eq!(memory.map(1), None);
        fill(all..all + 16 * BLOCK, 9);
        memory.unmap(all..all + 16 * BLOCK, |_| panic!("all of it was here"));
        let again = memory.map(16 * BLOCK - PAGE).unwrap();
        assert!(holds(again..again + 16 * BLOCK - PAGE, 0));
        assert!(memory.grow_in_place(again..again + 16 * BLOCK - PAGE, again + 16 * BLOCK));
        assert!(!memory.grow_in_place(again..again + 16 * BLOCK, again + 16 * BLOCK + PAGE));
    })
    .well();
}

/// Number of plain pages in memory.
fn touched(range: Range<usize>) -> usize {
    let mut pages = vec![0_u8; range.len() / PAGE];
    // SAFETY: a byte for each page of the range.
    assert_eq!(unsafe { libc::mincore(range.start as *mut _, range.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

fn empty(memory: &mut ProgramMemory, range: Range<usize>) {
    memory.empty(range, |_| panic!("all of it is here"));
}

#[test]
fn memory_emptied_in_parts_is_freed() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(4 * BLOCK).unwrap();
        empty(&mut memory, at + PAGE..at + BLOCK / 2);
        assert_eq!(memory.counts().memory, 0, "nobody has touched it");
        fill(at..at + 4 * BLOCK, 3);
        let full = memory.counts().memory as usize;
        assert_eq!(full, 4 * BLOCK);
        // This part ends within a page, so `ProgramMemory` writes zeros there and drops nothing.
        empty(&mut memory, at..at + 5);
        for piece in 0..4 {
            empty(&mut memory, at + piece * BLOCK / 4..at + (piece + 1) * BLOCK / 4);
        }
        assert_eq!(memory.counts().memory as usize, full - BLOCK);
        assert!(holds(at..at + BLOCK, 0) && holds(at + BLOCK..at + 4 * BLOCK, 3));
    })
    .well();
}

#[test]
fn an_emptied_part_of_a_huge_page_is_freed_at_once() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(2 * BLOCK).unwrap();
        fill(at..at + 2 * BLOCK, 3);
        let (mut next, mut huge) = (Some(0), 0);
        while let Some(from) = next {
            let (full, rest) = memory.next_full(from);
            if let Some(full) = full.filter(|full| full.collapse()) {
                memory.note_huge(&full);
                huge += 1;
            }
            next = rest;
        }
        if huge < 2 {
            return println!("skipped: the kernel makes no huge pages");
        }
        let halves = |block: usize| {
            let start = at + block * BLOCK;
            [start..start + BLOCK / 2, start + BLOCK / 2..start + BLOCK]
        };
        for (half, left) in halves(0).into_iter().zip([BLOCK + BLOCK / 2, BLOCK]) {
            empty(&mut memory, half);
            assert_eq!(memory.counts().memory as usize, left);
        }
        let [first, second] = halves(1);
        empty(&mut memory, first.clone());
        fill(first.start..first.start + PAGE, 7);
        empty(&mut memory, second.clone());
        assert!(holds(first.start..first.start + PAGE, 7) && holds(first.start + PAGE..second.end, 0));
        assert!(holds(at..at + BLOCK, 0));
    })
    .well();
}

/// The file's pages below copied pages may be missing: under memory pressure the kernel frees file pages that were
/// never written.
#[test]
fn pages_reclaimed_below_copied_pages_read_as_zeros() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(BLOCK).unwrap();
        let (written, rest) = (at..at + 460 * PAGE, at + 460 * PAGE..at + BLOCK);
        // SAFETY: makes a second mapping of the block.
        let second = unsafe { libc::mremap(std::ptr::with_exposed_provenance_mut(at), 0, BLOCK, libc::MREMAP_MAYMOVE) };
        assert_ne!(second, libc::MAP_FAILED);
        let meanwhile = |_: &mut ProgramMemory| {
            fill(written.clone(), 2);
            // SAFETY: does not affect the copied pages; no other page has been written.
            assert_eq!(unsafe { libc::madvise(second, BLOCK, libc::MADV_REMOVE) }, 0);
            assert!(holds(written.clone(), 2) && holds(rest.clone(), 0));
        };
        assert!(forked(&mut memory, || holds(at..at + BLOCK, 0), meanwhile));
        share_nothing(&mut memory);
        assert!(holds(written, 2) && holds(rest, 0));
    })
    .well();
}

#[test]
fn untouched_pages_take_no_memory_after_fork_and_hand_over() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        if !memory.needs_collapse() {
            return println!("skipped: the kernel makes huge pages at the first touch");
        }
        let at = memory.map(2 * BLOCK).unwrap();
        let (block, other) = (at..at + BLOCK, at + BLOCK..at + 2 * BLOCK);
        fill(block.start..block.start + 100 * PAGE, 1);
        fill(other.start + 7 * PAGE..other.start + 9 * PAGE, 1);
        let written = block.start + 50 * PAGE..block.start + 500 * PAGE;
        let meanwhile = |memory: &mut ProgramMemory| {
            fill(written.clone(), 2);
            // If a copied page has none below it, the kernel allocates one there.
            assert_eq!(memory.counts().memory as usize, 502 * PAGE);
            fill(other.start + 9 * PAGE..other.start + 10 * PAGE, 3);
            memory.hand_over(other.clone(), Zeros::Copied);
            assert_eq!(touched(other.clone()), 3);
        };
        assert!(forked(&mut memory, || holds(block.start..block.start + 100 * PAGE, 1), meanwhile));
        share_nothing(&mut memory);
        assert!(holds(block.start..written.start, 1) && holds(written.clone(), 2) && holds(written.end..block.end, 0));
        let (old, new) =
            (other.start + 7 * PAGE..other.start + 9 * PAGE, other.start + 9 * PAGE..other.start + 10 * PAGE);
        assert!(
            holds(other.start..old.start, 0) && holds(old, 1) && holds(new.clone(), 3) && holds(new.end..other.end, 0)
        );
    })
    .well();
}

#[test]
fn unused_memory_never_exceeds_all_memory() {
    alone(|| {
        let Some(mut memory) = memory(64 * BLOCK) else { return };
        let at = memory.map(4 * BLOCK).unwrap();
        (at..at + 4 * BLOCK).step_by(BLOCK).for_each(|block| fill(block..block + PAGE, 1));
        let meanwhile = |memory: &mut ProgramMemory| memory.unmap(at..at + 4 * BLOCK, |_| unreachable!());
        assert!(forked(&mut memory, || true, meanwhile));
        share_nothing(&mut memory);
        let counts = memory.counts();
        assert_eq!(counts.memory as usize, if memory.needs_collapse() { 4 * PAGE } else { 4 * BLOCK });
        assert_eq!(counts.kept, counts.memory);
    })
    .well();
}
