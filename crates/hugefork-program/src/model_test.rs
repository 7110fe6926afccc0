//! Runs random programs on the software MMU, compares the memory of each process with plain
//! vectors, and makes every call of the operating system fail in some case.
//!
//! After each operation the test checks every process: some pages of each block byte by byte, and
//! the unmapped ranges. When a process ends, the test checks all its pages. Addresses that were
//! handed over to the kernel are never used again, so a random program has at most a few hundred
//! operations.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use hugefork::seam::SoftMmu;
use proptest::prelude::*;

use crate::memory::PLAIN;
use crate::units::{BASE_PAGE, HUGE_PAGE};
use crate::{Full, Inherited, ProgramMemory, Zeros};

#[derive(Clone, Debug)]
enum Op {
    Map {
        pages: usize,
    },
    Read {
        process: usize,
        at: usize,
    },
    Write {
        process: usize,
        at: usize,
        value: u8,
    },
    /// The program writes into each page the value that the page holds already.
    Rewrite {
        at: usize,
        pages: usize,
    },
    /// The program writes a byte in each of this many pages.
    Fill {
        at: usize,
        pages: usize,
        value: u8,
    },
    Unmap {
        at: usize,
        len: usize,
    },
    Empty {
        at: usize,
        len: usize,
    },
    HandOver {
        at: usize,
        len: usize,
    },
    /// The program makes way for a mapping at an address of its choice; the kernel may then refuse the mapping.
    MakeWay {
        at: usize,
        len: usize,
        is_mapped: bool,
    },
    Grow {
        at: usize,
        pages: usize,
    },
    /// The program or a child forks.
    Fork {
        process: usize,
    },
    /// The program replaces memory by another mapping without a call of the engine, and forks.
    IntrudeAndFork {
        at: usize,
        len: usize,
    },
    /// A child replaces some memory by another mapping.
    Replace {
        child: usize,
        at: usize,
        len: usize,
    },
    End {
        child: usize,
    },
    Maintain {
        times: usize,
    },
    FindFull {
        from: usize,
    },
    Collapse {
        full: usize,
    },
    Trim,
    FailNext {
        call: usize,
        after: usize,
    },
}

/// The parameters of a memory under test.
#[derive(Clone, Copy, Debug)]
struct Shape {
    blocks: usize,
    mappings: usize,
    by_huge_page: bool,
}

const BY_PAGE: Shape = Shape { blocks: 5, mappings: 1000, by_huge_page: false };
const BY_HUGE_PAGE: Shape = Shape { by_huge_page: true, ..BY_PAGE };
const SCARCE_MAPPINGS: Shape = Shape { mappings: 9, ..BY_PAGE };

const MOST_CHILDREN: usize = 3;

/// The pages of each block that are checked after each operation.
const INTERESTING: [usize; 3] = [0, 100, HUGE_PAGE / BASE_PAGE - 1];

static ZERO_PAGE: [u8; BASE_PAGE] = [0; BASE_PAGE];

/// The expected view of a process.
#[derive(Clone)]
struct Process {
    /// The bytes of each block; `None` for a block of zeros.
    blocks: Vec<Option<Rc<Vec<u8>>>>,
    /// Whether each page is mapped.
    mapped: Vec<bool>,
}

impl Process {
    fn new(blocks: usize) -> Process {
        Process { blocks: vec![None; blocks], mapped: vec![false; blocks * HUGE_PAGE / BASE_PAGE] }
    }

    /// The bytes of a page.
    fn page(&self, page: usize) -> &[u8; BASE_PAGE] {
        let offset = page * BASE_PAGE;
        let bytes = self.blocks[offset / HUGE_PAGE].as_ref().map(|bytes| &bytes[offset % HUGE_PAGE..]);
        bytes.map_or(&ZERO_PAGE, |bytes| bytes.first_chunk().expect("a block is whole pages"))
    }

    fn set(&mut self, offset: usize, value: u8) {
        let bytes = self.blocks[offset / HUGE_PAGE].get_or_insert_with(|| Rc::new(vec![0; HUGE_PAGE]));
        Rc::make_mut(bytes)[offset % HUGE_PAGE] = value;
    }

    fn zero(&mut self, range: &Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let next = range.end.min((at / HUGE_PAGE + 1) * HUGE_PAGE);
            let bytes = &mut self.blocks[at / HUGE_PAGE];
            if next - at == HUGE_PAGE {
                *bytes = None;
            } else if let Some(bytes) = bytes {
                Rc::make_mut(bytes)[at % HUGE_PAGE..][..next - at].fill(0);
            }
            at = next;
        }
    }

    /// Maps zeros over the range, or unmaps it.
    fn map(&mut self, range: &Range<usize>, is_mapped: bool) {
        self.zero(range);
        self.mapped[range.start / BASE_PAGE..range.end / BASE_PAGE].fill(is_mapped);
    }
}

/// A child, and the number of the fork that made it.
struct Child {
    number: usize,
    model: Process,
    fork: usize,
}

struct World {
    shape: Shape,
    memory: ProgramMemory<SoftMmu>,
    base: usize,
    program: Process,
    children: Vec<Child>,
    forks: usize,
    inherited: BTreeMap<usize, Inherited<SoftMmu>>,
    fulls: Vec<Full<SoftMmu>>,
    /// Blocks in which the program has placed another mapping.
    intruded: Vec<usize>,
    /// Whether a call of the operating system may have failed, so that operations may fail.
    is_excused: bool,
}

impl World {
    fn new(shape: Shape) -> World {
        let mmu = SoftMmu::of_program(shape.blocks * HUGE_PAGE, shape.mappings, shape.by_huge_page);
        let memory = ProgramMemory::on(mmu, shape.blocks * HUGE_PAGE).expect("nothing fails yet");
        let all = memory.addresses();
        World {
            shape,
            memory,
            base: all.start,
            program: Process::new(all.len() / HUGE_PAGE),
            children: Vec::new(),
            forks: 0,
            inherited: BTreeMap::new(),
            fulls: Vec::new(),
            intruded: Vec::new(),
            is_excused: shape.mappings < BY_PAGE.mappings,
        }
    }

    fn mmu(&self) -> &SoftMmu {
        self.memory.region.mmu()
    }

    fn len(&self) -> usize {
        self.program.mapped.len() * BASE_PAGE
    }

    fn addresses(&self, offsets: &Range<usize>) -> Range<usize> {
        self.base + offsets.start..self.base + offsets.end
    }

    fn process(&mut self, index: usize) -> (usize, &mut Process) {
        match self.children.get_mut(index.wrapping_sub(1)) {
            Some(child) => (child.number, &mut child.model),
            None => (0, &mut self.program),
        }
    }

    /// An interesting offset within a block that the program owns, if there is one.
    fn offset(&self, seed: usize) -> Option<usize> {
        let pages = HUGE_PAGE / BASE_PAGE;
        let has = |block: &usize| self.program.mapped[block * pages..(block + 1) * pages].contains(&true);
        let blocks: Vec<_> = (0..self.program.blocks.len()).filter(has).collect();
        let block = *blocks.get(seed / 64 % blocks.len().max(1))?;
        let page = [0, 1, 99, 100, 101, 300, pages - 2, pages - 1][seed % 8];
        Some(block * HUGE_PAGE + page * BASE_PAGE + [0, 1, 7, BASE_PAGE - 1][seed / 8 % 4])
    }

    /// A range that the seeds `at` and `len` select: whole blocks, whole pages, or multiples of `finest` bytes.
    fn range(&self, at: usize, len: usize, finest: usize) -> Option<Range<usize>> {
        let offset = self.offset(at)?;
        let unit = [HUGE_PAGE, BASE_PAGE, finest][len % 3];
        let start = offset / unit * unit;
        let most = [3 * HUGE_PAGE, HUGE_PAGE, 600 * BASE_PAGE, 5 * BASE_PAGE][len / 3 % 4];
        let len = (unit + len / 12 % most / unit * unit).min(self.len() - start);
        Some(start..start + len)
    }

    fn pages(range: &Range<usize>) -> Range<usize> {
        range.start / BASE_PAGE..range.end.div_ceil(BASE_PAGE)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Map { pages } => self.map(pages),
            Op::Read { process, at } => {
                if let Some(offset) = self.offset(at) {
                    let (number, model) = self.process(process % (MOST_CHILDREN + 1));
                    let is_mapped = model.mapped[offset / BASE_PAGE];
                    let expected = model.page(offset / BASE_PAGE)[offset % BASE_PAGE];
                    let read = self.mmu().read(number, self.base + offset);
                    assert!(!is_mapped || read == Some(expected), "read {read:?}, not {expected} at {offset:#x}");
                }
            }
            Op::Write { process, at, value } => {
                if let Some(offset) = self.offset(at) {
                    self.write(process % (MOST_CHILDREN + 1), offset, value);
                }
            }
            Op::Rewrite { at, pages } => {
                if let Some(offset) = self.offset(at) {
                    let end = self.len().min(offset + pages * BASE_PAGE);
                    (offset..end).step_by(BASE_PAGE).for_each(|offset| {
                        let there = self.program.page(offset / BASE_PAGE)[offset % BASE_PAGE];
                        self.write(0, offset, there);
                    });
                }
            }
            Op::Fill { at, pages, value } => {
                if let Some(offset) = self.offset(at) {
                    let end = self.len().min(offset + pages * BASE_PAGE);
                    (offset..end).step_by(BASE_PAGE).for_each(|offset| self.write(0, offset, value));
                }
            }
            Op::Unmap { at, len } => {
                if let Some(range) = self.range(at, len, BASE_PAGE) {
                    self.unmap(&range);
                }
            }
            Op::Empty { at, len } => {
                if let Some(range) = self.range(at, len, 1) {
                    self.empty(&range);
                }
            }
            Op::HandOver { at, len } => {
                if let Some(range) = self.range(at, len, 1) {
                    self.memory.hand_over(self.addresses(&range), Zeros::Copied);
                    assert!(self.is_excused || !self.memory.has(self.addresses(&range)), "it was not handed over");
                }
            }
            Op::MakeWay { at, len, is_mapped } => {
                if let Some(range) = self.range(at, len, BASE_PAGE) {
                    self.make_way(&range, is_mapped);
                }
            }
            Op::Grow { at, pages } => {
                if let Some(offset) = self.offset(at) {
                    self.grow(offset / HUGE_PAGE, pages);
                }
            }
            Op::Fork { process } => match process % (MOST_CHILDREN + 1) {
                _ if self.children.len() >= MOST_CHILDREN => {}
                0 => self.fork(),
                index if index <= self.children.len() => {
                    let child = &self.children[index - 1];
                    let (model, fork) = (child.model.clone(), child.fork);
                    let number = self.mmu().fork(child.number);
                    self.children.push(Child { number, model, fork });
                }
                _ => {}
            },
            Op::IntrudeAndFork { at, len } => {
                if let Some(range) = self.range(at, len, BASE_PAGE).filter(|_| self.children.len() < MOST_CHILDREN) {
                    self.intrude(&range);
                    self.fork();
                }
            }
            Op::Replace { child, at, len } => {
                if let Some(range) = self.range(at, len, BASE_PAGE).filter(|_| !self.children.is_empty()) {
                    let (number, model) = self.process(1 + child % self.children.len());
                    model.map(&range, true);
                    self.mmu().map_plain(number, self.addresses(&range));
                }
            }
            Op::End { child } => {
                if !self.children.is_empty() {
                    self.end(child % self.children.len());
                }
            }
            Op::Maintain { times } => (0..times).for_each(|_| _ = self.memory.maintain()),
            Op::FindFull { from } => {
                let found = self.memory.next_full(from % self.program.blocks.len()).0;
                self.fulls.extend(found.filter(|_| self.fulls.len() < 4));
            }
            Op::Collapse { full } => {
                if !self.fulls.is_empty() {
                    let full = self.fulls.swap_remove(full % self.fulls.len());
                    if full.collapse() {
                        self.memory.note_huge(&full);
                    }
                }
            }
            Op::Trim => _ = self.memory.trim(),
            Op::FailNext { call, after } => {
                self.fail_next(call % SoftMmu::CALLS, after);
            }
        }
    }

    fn fail_next(&mut self, call: usize, after: usize) -> String {
        self.is_excused = true;
        self.mmu().fail_call(call, after)
    }

    fn map(&mut self, pages: usize) {
        let (len, before) = (pages * BASE_PAGE, self.memory.blocks().count());
        let is_free = (0..self.program.blocks.len()).any(|block| {
            let start = block * HUGE_PAGE;
            self.memory.is_free(self.addresses(&(start..start + HUGE_PAGE)))
        });
        let Some(at) = self.memory.map(len) else {
            let is_full = before + len.div_ceil(HUGE_PAGE) > self.shape.blocks;
            let is_small = len <= HUGE_PAGE;
            let is_due = is_small && is_free && !is_full && self.inherited.is_empty();
            return assert!(self.is_excused || !is_due, "there was room");
        };
        let range = at - self.base..at - self.base + len;
        assert!(at.is_multiple_of(HUGE_PAGE) && !self.program.mapped[Self::pages(&range)].contains(&true));
        self.program.map(&range, true);
        assert!(self.memory.has_all(self.addresses(&range)));
        let whole = at..at + len.next_multiple_of(HUGE_PAGE);
        let mut zeros = whole.step_by(BASE_PAGE).map(|page| self.mmu().shows(0, page, &ZERO_PAGE));
        assert!(zeros.all(|is_zero| is_zero == Some(true)), "new memory is not zero");
    }

    /// Writes a byte in a process, and checks that a write to mapped memory never faults.
    fn write(&mut self, index: usize, offset: usize, value: u8) {
        let (number, model) = self.process(index);
        if model.mapped[offset / BASE_PAGE] {
            model.set(offset, value);
            assert!(self.mmu().write(number, self.base + offset, value), "a write faults at {offset:#x}");
        }
    }

    fn unmap(&mut self, range: &Range<usize>) {
        let mut others = Vec::new();
        self.memory.unmap(self.addresses(range), |piece| others.push(piece));
        others.into_iter().for_each(|piece| self.mmu().unmap(0, piece));
        self.forget_what_is_gone(range, |world, page| !world.memory.has(page));
    }

    /// Marks the pages of a range as unmapped, except pages that the memory could not unmap.
    fn forget_what_is_gone(&mut self, range: &Range<usize>, is_gone: impl Fn(&World, Range<usize>) -> bool) {
        for page in Self::pages(range).map(|page| page * BASE_PAGE..(page + 1) * BASE_PAGE) {
            if is_gone(self, self.addresses(&page)) {
                self.program.map(&page, false);
            } else {
                assert!(self.is_excused || !self.program.mapped[page.start / BASE_PAGE], "it stays");
            }
        }
    }

    fn empty(&mut self, range: &Range<usize>) {
        let mut others = Vec::new();
        self.memory.empty(self.addresses(range), |piece| others.push(piece));
        for page in others.iter().flat_map(|piece| Self::pages(&(piece.start..piece.end))) {
            let (start, end) = (page * BASE_PAGE, (page + 1) * BASE_PAGE);
            let part = start.max(self.base + range.start)..end.min(self.base + range.end);
            if !self.program.mapped[(start - self.base) / BASE_PAGE] {
                continue;
            }
            // This memory has left the piece to its caller: the kernel drops the whole pages in the piece, and the
            // program writes zeros into the parts of pages.
            match part.len() {
                BASE_PAGE => self.mmu().map_plain(0, part),
                _ => part.for_each(|at| assert!(self.mmu().write(0, at, 0))),
            }
        }
        self.program.zero(range);
    }

    fn make_way(&mut self, range: &Range<usize>, is_mapped: bool) {
        let addresses = self.addresses(range);
        let had = self.memory.has(addresses.clone());
        if !self.memory.make_way(addresses.clone()) {
            assert!(self.is_excused && had);
            return self.forget_what_is_gone(range, |world, page| world.memory.is_free(page));
        }
        if is_mapped {
            self.mmu().map_plain(0, addresses.clone());
        }
        self.memory.finish_way(addresses, is_mapped);
        if is_mapped {
            self.program.map(range, true);
        } else {
            for page in Self::pages(range).map(|page| page * BASE_PAGE..(page + 1) * BASE_PAGE) {
                if self.memory.is_free(self.addresses(&page)) {
                    self.program.map(&page, false);
                }
            }
        }
    }

    fn grow(&mut self, block: usize, pages: usize) {
        let mapped = Self::pages(&(block * HUGE_PAGE..(block + 1) * HUGE_PAGE));
        let start = block * HUGE_PAGE;
        let old = mapped.take_while(|page| self.program.mapped[*page]).count() * BASE_PAGE;
        let new = start + old + pages * BASE_PAGE;
        let is_here = old > 0 && self.memory.has_all(self.addresses(&(start..start + old)));
        if old > 0 && self.memory.grow_in_place(self.addresses(&(start..start + old)), self.base + new) {
            assert!(is_here && new <= start + HUGE_PAGE);
            self.program.map(&(start + old..new), true);
        }
    }

    fn fork(&mut self) {
        let unseen = self.memory.counts().unseen;
        let inherited = self.memory.before_fork();
        let unseen = (self.memory.counts().unseen - unseen) as usize;
        let number = self.mmu().fork(0);
        let mut model = self.program.clone();
        let here: Vec<_> = self.memory.blocks().map(|block| block.start - self.base).collect();
        let is_missing = |offset: &usize| self.mmu().shows(number, self.base + offset, &ZERO_PAGE).is_none();
        let missing: Vec<_> = here.into_iter().filter(is_missing).collect();
        assert_eq!(missing.len(), unseen, "blocks that the child does not see");
        assert!(unseen == 0 || self.is_excused);
        missing.iter().for_each(|&start| model.map(&(start..start + HUGE_PAGE), false));
        let fork = self.forks;
        self.forks += 1;
        self.inherited.insert(fork, inherited);
        self.children.push(Child { number, model, fork });
    }

    /// The program replaces memory by another mapping, if the whole range lies in blocks that no child shares.
    fn intrude(&mut self, range: &Range<usize>) {
        let (blocks, addresses) = (range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE), self.addresses(range));
        let is_here = self.program.mapped[Self::pages(range)].iter().all(|mapped| *mapped);
        if is_here && self.memory.has_all(addresses.clone()) && self.memory.region.cow_mappings() == 0 {
            self.mmu().map_plain(0, addresses);
            self.program.map(range, true);
            self.intruded.extend(blocks);
        }
    }

    fn end(&mut self, index: usize) {
        let child = self.children.swap_remove(index);
        self.check_all(child.number, &child.model);
        self.mmu().end(child.number);
        if self.children.iter().all(|other| other.fork != child.fork) {
            self.inherited.remove(&child.fork);
        }
    }

    fn check(&self) {
        assert!(!self.mmu().holds_anything());
        let processes = self.children.iter().map(|child| (child.number, &child.model));
        for (number, model) in processes.chain([(0, &self.program)]) {
            for block in 0..model.blocks.len() {
                INTERESTING.iter().for_each(|page| self.check_page(number, model, block * 512 + page));
            }
        }
        let counts = self.memory.counts();
        assert!(counts.kept <= counts.memory && counts.memory as usize <= self.shape.blocks * HUGE_PAGE);
    }

    fn check_all(&self, number: usize, model: &Process) {
        let mapped = (0..model.mapped.len()).filter(|page| model.mapped[*page]);
        mapped.for_each(|page| self.check_page(number, model, page));
    }

    fn check_page(&self, number: usize, model: &Process, page: usize) {
        let address = self.base + page * BASE_PAGE;
        let is_right = self.mmu().shows(number, address, model.page(page));
        if model.mapped[page] {
            assert_eq!(is_right, Some(true), "other bytes at page {page:#x} of process {number}");
        }
        if number > 0 {
            return;
        }
        let range = address..address + BASE_PAGE;
        let (is_here, block) = (self.memory.has(range.clone()), page * BASE_PAGE / HUGE_PAGE);
        assert_eq!(self.memory.has_all(range.clone()), is_here && model.mapped[page], "what is whose at {page:#x}");
        assert!(!self.memory.is_free(range.clone()) || !model.mapped[page], "said free at {page:#x}, and is not");
        let is_known = is_here && model.mapped[page] || self.memory.used[block] == PLAIN;
        assert_eq!(self.memory.is_free(range.clone()), !is_known);
        let known = self.memory.first_mapped(&range);
        assert_eq!(known.is_some(), model.mapped[page] || self.memory.used[block] == PLAIN);
        if !model.mapped[page] && !is_here && !self.is_excused && !self.intruded.contains(&block) {
            assert_eq!(is_right, None, "something is at {page:#x}, and nobody knows of it");
        }
    }

    /// Ends all processes and checks that all blocks are free again.
    fn finish(mut self) {
        self.mmu().fail_no_call();
        while !self.children.is_empty() {
            self.end(0);
            self.check();
        }
        for _ in 0..1000 {
            self.memory.maintain();
        }
        assert!(self.is_excused || !self.memory.is_shared(), "something is shared still");
        self.check_all(0, &self.program);
        self.unmap(&(0..self.len()));
        self.check_all(0, &self.program);
        while self.memory.trim() {}
        if !self.is_excused {
            assert_eq!(self.memory.counts().memory, 0);
            let is_free =
                |block: &usize| self.memory.is_free(self.addresses(&(block * HUGE_PAGE..(block + 1) * HUGE_PAGE)));
            let free = (0..self.program.blocks.len()).filter(is_free).count();
            let again = std::iter::from_fn(|| self.memory.map(1)).count();
            assert_eq!(again, free.min(self.shape.blocks), "blocks are lost");
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let seed = || 0..usize::MAX / 2;
    let part = || (seed(), seed());
    let pages = prop_oneof![1..4usize, 500..515usize, 1..1600usize];
    prop_oneof![
        6 => pages.prop_map(|pages| Op::Map { pages }),
        3 => (seed(), seed()).prop_map(|(process, at)| Op::Read { process, at }),
        12 => (seed(), seed(), 1..=255u8).prop_map(|(process, at, value)| Op::Write { process, at, value }),
        6 => (seed(), prop_oneof![1..50usize, 500..530usize], 1..=255u8)
            .prop_map(|(at, pages, value)| Op::Fill { at, pages, value }),
        3 => part().prop_map(|(at, len)| Op::Unmap { at, len }),
        6 => part().prop_map(|(at, len)| Op::Empty { at, len }),
        1 => part().prop_map(|(at, len)| Op::HandOver { at, len }),
        1 => (seed(), seed(), prop::bool::ANY)
            .prop_map(|(at, len, is_mapped)| Op::MakeWay { at, len, is_mapped }),
        2 => (seed(), 0..200usize).prop_map(|(at, pages)| Op::Grow { at, pages }),
        4 => seed().prop_map(|process| Op::Fork { process }),
        1 => part().prop_map(|(at, len)| Op::IntrudeAndFork { at, len }),
        2 => (seed(), seed(), seed()).prop_map(|(child, at, len)| Op::Replace { child, at, len }),
        4 => seed().prop_map(|child| Op::End { child }),
        6 => (1..4usize).prop_map(|times| Op::Maintain { times }),
        3 => (seed(), 1..200usize).prop_map(|(at, pages)| Op::Rewrite { at, pages }),
        2 => seed().prop_map(|from| Op::FindFull { from }),
        2 => seed().prop_map(|full| Op::Collapse { full }),
        1 => Just(Op::Trim),
    ]
}

/// An operation, or a call that will fail.
fn op_or_failure() -> impl Strategy<Value = Op> {
    let failure = (0..SoftMmu::CALLS, 0..3usize).prop_map(|(call, after)| Op::FailNext { call, after });
    prop_oneof![12 => op(), 1 => failure]
}

/// Number of random cases for each test; `HUGEFORK_MODEL_CASES=2500` runs a million operations.
fn cases(usual: u32) -> u32 {
    std::env::var("HUGEFORK_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

fn run(shape: Shape, ops: &[Op]) {
    let mut world = World::new(shape);
    for op in ops {
        world.apply(op);
        world.check();
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(6), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_by_page_behaves_like_vectors(ops in prop::collection::vec(op(), 1..200)) {
        run(BY_PAGE, &ops);
    }

    #[test]
    fn memory_by_huge_page_behaves_like_vectors(ops in prop::collection::vec(op(), 1..200)) {
        run(BY_HUGE_PAGE, &ops);
    }

    #[test]
    fn calls_that_fail_change_no_bytes(ops in prop::collection::vec(op_or_failure(), 1..200)) {
        run(BY_PAGE, &ops);
    }

    #[test]
    fn scarce_mappings_change_no_bytes(ops in prop::collection::vec(op_or_failure(), 1..200)) {
        run(SCARCE_MAPPINGS, &ops);
    }
}

/// A sequence of operations that once failed in a random run: a fork before any mapping.
#[test]
fn a_fork_before_any_mapping_inherits_nothing() {
    run(BY_PAGE, &[Op::Fork { process: 0 }, Op::End { child: 0 }]);
}

/// The program makes a mapping in the unused end of another mapping's last block.
#[test]
fn way_is_made_after_the_end_of_a_mapping() {
    let behind = Op::MakeWay { at: place(0, 300), len: pages(4), is_mapped: true };
    run(BY_PAGE, &[Op::Map { pages: 1 }, Op::Write { process: 0, at: 0, value: 1 }, behind]);
}

/// The seed for which [`World::offset`] returns the start of `page` in `block`.
fn place(block: usize, page: usize) -> usize {
    let nth = [0, 1, 99, 100, 101, 300].iter().position(|interesting| *interesting == page);
    64 * block + nth.expect("an interesting page")
}

/// The seed that makes [`World::range`] return `count` pages.
fn pages(count: usize) -> usize {
    12 * (count - 1) * BASE_PAGE + 1
}

/// Emptying a part of a block frees the memory of that part, unless a child holds the block too.
#[test]
fn emptied_parts_free_their_memory() {
    let mut world = World::new(BY_PAGE);
    let drop_two = Op::Empty { at: place(0, 300), len: pages(2) };
    for op in [Op::Map { pages: 512 }, Op::Fill { at: place(0, 0), pages: 512, value: 3 }, drop_two.clone()] {
        world.apply(&op);
    }
    let left = HUGE_PAGE as u64 - 2 * BASE_PAGE as u64;
    assert_eq!(world.memory.counts().memory, left);
    world.apply(&Op::Fill { at: place(0, 300), pages: 2, value: 3 });
    world.apply(&Op::Fork { process: 0 });
    world.apply(&drop_two);
    world.check();
    assert_eq!(world.memory.counts().memory, HUGE_PAGE as u64);
    world.finish();
}

/// In a program that makes all calls of the operating system, each call fails, once at its first use and once at its
/// third.
#[test]
fn each_call_may_fail_once() {
    for (call, after) in (0..SoftMmu::CALLS).flat_map(|call| [(call, 0), (call, 2)]) {
        let mut world = World::new(BY_PAGE);
        let name = world.fail_next(call, after);
        for value in 1..4 {
            let ops = [
                Op::Map { pages: 1024 },
                Op::Map { pages: 500 },
                Op::Fill { at: place(0, 0), pages: 512, value },
                Op::Fill { at: place(1, 99), pages: 30, value },
                Op::FindFull { from: 0 },
                Op::Collapse { full: 0 },
                Op::Fork { process: 0 },
                Op::Fill { at: place(1, 0), pages: 500, value: value + 10 },
                Op::Write { process: 0, at: place(0, 1), value: value + 10 },
                Op::Rewrite { at: place(0, 99), pages: 3 },
                Op::Empty { at: place(1, 300), len: pages(2) },
                Op::Empty { at: place(2, 99), len: pages(1) },
                Op::Maintain { times: 3 },
                Op::HandOver { at: place(2, 0), len: pages(1) },
                Op::End { child: 0 },
                Op::Maintain { times: 3 },
                Op::Fork { process: 0 },
                Op::Empty { at: place(0, 0), len: 0 },
                Op::End { child: 0 },
                Op::Unmap { at: place(0, 0), len: pages(1024) },
                Op::Unmap { at: place(0, 0), len: 0 },
                Op::Trim,
            ];
            for op in &ops {
                world.apply(op);
                world.check();
            }
        }
        assert!(!world.mmu().fail_no_call(), "{name} was not called {after} times");
        world.finish();
    }
}
