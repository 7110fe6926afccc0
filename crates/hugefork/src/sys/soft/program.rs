//! The memory of a program that knows nothing of hugefork (../program.rs): the program's own calls to the kernel, which
//! the engine does not see, and its children.
//!
//! Process 0 is the program. A child has copies of the program's page tables and private pages, as far as they show
//! private mappings or plain memory. Below these, both show the same blocks, so the engine must not change blocks that
//! a child is shown.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Call, Page, SoftMmu, State, pages_of};
use crate::sys::program::{ProgramSys, Zeros};
use crate::sys::racing::{PageBytes, ZERO_PAGE};
use crate::sys::{Merging, Part, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// The page tables of a child.
#[derive(Clone)]
pub(super) struct Child {
    /// For each page, the memory below its private one: the pool's from an offset on, or zeros.
    pages: BTreeMap<usize, Option<usize>>,
    private: BTreeMap<usize, Box<PageBytes>>,
}

impl Child {
    /// Whether any page shows a part of `memory`.
    pub(super) fn shows(&self, memory: &Range<usize>) -> bool {
        self.pages.values().flatten().any(|start| memory.contains(start))
    }
}

/// The calls that hugefork makes for a program's memory, once it is set up.
const CALLS: [Call; 11] = [
    Call::Map,
    Call::Hide,
    Call::Punch,
    Call::CowMapping,
    Call::Scan,
    Call::Hold,
    Call::DropPrivate,
    Call::Plain,
    Call::ShowPlain,
    Call::UnmapPlain,
    Call::Collapse,
];

/// For tests of the crates above the engine.
impl SoftMmu {
    /// The number of kinds of calls that can fail.
    pub const CALLS: usize = CALLS.len();

    /// Memory for a program. Children inherit memory that is shown through private mappings. A first touch allocates a
    /// huge page or a base page.
    pub fn of_program(capacity: usize, mappings: usize, by_huge_page: bool) -> SoftMmu {
        let mut mmu = SoftMmu::new(capacity, Merging::Merge, mappings).with_cow_mappings();
        mmu.touched = Some(if by_huge_page { HUGE_PAGE } else { BASE_PAGE });
        mmu
    }

    /// Makes one call of a kind fail, after `after` others of it. Returns the name of the kind.
    pub fn fail_call(&self, kind: usize, after: usize) -> String {
        self.fail(Some((CALLS[kind], after)));
        format!("{:?}", CALLS[kind])
    }

    /// Makes no call fail. Returns whether a failure was still to come.
    pub fn fail_no_call(&self) -> bool {
        self.state().failure.take().is_some()
    }

    /// Whether a process sees these bytes in the page at an address, without a touch of the page. `None` if it sees
    /// nothing there.
    pub fn shows(&self, process: usize, address: usize, bytes: &PageBytes) -> Option<bool> {
        Some(self.page_of(&self.state(), process, address)? == bytes)
    }

    /// Lets a process read a byte. `None` if it cannot.
    pub fn read(&self, process: usize, address: usize) -> Option<u8> {
        if process == 0 {
            return self.load(address).ok();
        }
        let mut state = self.state();
        if let Some(&Some(start)) = state.children[&process].pages.get(&(address / BASE_PAGE)) {
            self.touch(&mut state, start, "looked at");
        }
        Some(self.page_of(&state, process, address)?[address % BASE_PAGE])
    }

    fn page_of<'a>(&'a self, state: &'a State, process: usize, address: usize) -> Option<&'a PageBytes> {
        let number = address / BASE_PAGE;
        let (private, below) = match state.children.get(&process) {
            Some(child) => (child.private.get(&number), *child.pages.get(&number)?),
            None => match *state.pages.get(&number)? {
                Page::Hidden => return None,
                Page::Zeros => (state.private.get(&number), None),
                Page::Memory { start, .. } | Page::CowMapping { start, .. } => {
                    (state.private.get(&number), Some(start))
                }
            },
        };
        match (private, below.filter(|start| self.has_memory(state, start / BASE_PAGE))) {
            (Some(page), _) => Some(page),
            (None, None) => Some(&ZERO_PAGE),
            // SAFETY: the engine's calls check the offsets of pages when they map them. Other writers lock the state,
            // except the engine, which this thread does not run meanwhile; a model has no other thread.
            (None, Some(start)) => Some(unsafe { &*self.memory.add(start).cast() }),
        }
    }

    /// Lets a process write a byte. Returns false if it cannot.
    pub fn write(&self, process: usize, address: usize, value: u8) -> bool {
        if process == 0 {
            return self.store(address, value).is_ok();
        }
        let (mut state, number) = (self.state(), address / BASE_PAGE);
        let Some(&below) = state.children[&process].pages.get(&number) else { return false };
        if !state.children[&process].private.contains_key(&number) {
            let page = self.copy_below(&mut state, below);
            state.children.get_mut(&process).map(|child| child.private.insert(number, page));
        }
        let page = state.children.get_mut(&process).and_then(|child| child.private.get_mut(&number));
        page.expect("copied just now")[address % BASE_PAGE] = value;
        true
    }

    /// Lets a process map plain memory, in place of whatever it has there.
    pub fn map_plain(&self, process: usize, range: Range<usize>) {
        self.replace_plain(process, &range, Page::Zeros);
    }

    /// Lets a process unmap whatever it has there.
    pub fn unmap(&self, process: usize, range: Range<usize>) {
        self.replace_plain(process, &range, Page::Hidden);
    }

    fn replace_plain(&self, process: usize, range: &Range<usize>, page: Page) {
        let state = &mut *self.state();
        for number in pages_of(range.start, range.len()) {
            match state.children.get_mut(&process) {
                Some(child) => {
                    child.private.remove(&number);
                    match page {
                        Page::Zeros => child.pages.insert(number, None),
                        Page::Memory { .. } | Page::CowMapping { .. } | Page::Hidden => child.pages.remove(&number),
                    };
                }
                None => state.show_plain(number, page),
            }
        }
    }

    /// Lets a process fork. Returns the child.
    pub fn fork(&self, process: usize) -> usize {
        let mut state = self.state();
        let number = state.children.last_key_value().map_or(1, |(last, _)| last + 1);
        let child = state.children.get(&process).cloned().unwrap_or_else(|| state.inherited());
        state.children.insert(number, child);
        number
    }

    /// Ends a child.
    pub fn end(&self, child: usize) {
        self.state().children.remove(&child);
    }
}

impl State {
    /// Shows plain memory, or nothing, in place of the program's own page.
    fn show_plain(&mut self, number: usize, page: Page) {
        let there = self.pages.insert(number, page);
        assert!(there.is_some(), "these addresses are somebody else's");
        self.private.remove(&number);
        self.held.remove(&number);
        self.plain.remove(&number);
        self.plain.extend((page == Page::Zeros).then_some(number));
    }

    /// The page tables and private pages of a new child. No page may be held then, because a child could wait for ever.
    fn inherited(&self) -> Child {
        assert!(self.held.is_empty(), "forked while somebody waits");
        let inherited = self.pages.iter().filter_map(|(&number, page)| match *page {
            Page::CowMapping { start, .. } => Some((number, Some(start))),
            Page::Zeros if self.plain.contains(&number) => Some((number, None)),
            Page::Zeros | Page::Hidden | Page::Memory { .. } => None,
        });
        let pages: BTreeMap<_, _> = inherited.collect();
        let private = self.private.iter().filter(|(number, _)| pages.contains_key(number));
        Child { private: private.map(|(&number, page)| (number, page.clone())).collect(), pages }
    }
}

impl ProgramSys for SoftMmu {
    type Plain = Vec<u8>;

    fn collapses(&self) -> bool {
        self.touched == Some(BASE_PAGE)
    }

    fn bytes(&self) -> Option<usize> {
        let state = self.state();
        Some((0..state.obtained.len()).filter(|page| self.has_memory(&state, *page)).count() * BASE_PAGE)
    }

    fn collapse_full(&self, offset: usize) -> bool {
        let is_due = self.collapses() && self.is_full(offset);
        is_due && self.called(Call::Collapse).map(|mut state| state.huge[offset / HUGE_PAGE] = true).is_ok()
    }

    fn shown(&self, range: &Range<usize>, offset: Option<usize>) -> Option<Range<usize>> {
        let state = self.state();
        let is_shown = |at: &usize| match state.pages.get(&(at / BASE_PAGE)) {
            Some(Page::Memory { start, .. } | Page::CowMapping { start, .. }) => {
                offset.is_none_or(|offset| offset + (at - range.start) == *start)
            }
            Some(Page::Zeros | Page::Hidden) | None => false,
        };
        let mut pages = range.clone().step_by(BASE_PAGE);
        let start = pages.find(is_shown)?;
        Some(start..start + BASE_PAGE * (1 + pages.take_while(is_shown).count()))
    }

    unsafe fn punch_shown(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        let mut state = self.called(Call::Punch)?;
        self.take_memory(&mut state, offset, len);
        Ok(())
    }

    unsafe fn fill_with_zeros(&self, part: Part<'_>) {
        let (mut state, mut at, end) = (self.state(), part.at(), part.at() + part.len());
        while at < end {
            let next = end.min((at / BASE_PAGE + 1) * BASE_PAGE);
            let place = self.place_to_write(&mut state, at).expect("the program may write there");
            // SAFETY: the place lies within one page of this memory or a private one.
            unsafe { place.write_bytes(0, next - at) };
            at = next;
        }
    }

    fn plain(&self, len: usize) -> Result<Vec<u8>, SystemError> {
        self.called(Call::Plain).map(|_| vec![0; len])
    }

    fn fill(&self, plain: &mut Vec<u8>, offset: usize, from: Part<'_>, _: Zeros) {
        let state = self.state();
        for (by, number) in pages_of(from.at(), from.len()).enumerate() {
            assert!(state.parked.contains_key(&number), "copied what somebody may write to");
            let bytes = match (state.private.get(&number), state.pages[&number]) {
                (Some(page), _) => **page,
                (None, Page::Memory { start, .. } | Page::CowMapping { start, .. }) => self.bytes_at(&state, start),
                (None, Page::Zeros | Page::Hidden) => panic!("only pool memory is held"),
            };
            plain[offset + by * BASE_PAGE..][..BASE_PAGE].copy_from_slice(&bytes);
        }
    }

    fn show_plain(&self, plain: Vec<u8>, part: Part<'_>) -> Result<(), SystemError> {
        assert_eq!(plain.len(), part.len(), "it is shown as a whole");
        let mut state = self.called(Call::ShowPlain)?;
        for (number, bytes) in pages_of(part.at(), part.len()).zip(plain.chunks_exact(BASE_PAGE)) {
            state.show_plain(number, Page::Zeros);
            if *bytes != ZERO_PAGE {
                state.private.insert(number, Box::new(bytes.try_into().expect("a page")));
            }
        }
        Ok(())
    }

    fn unmap_plain(&self, range: Range<usize>) -> Result<(), SystemError> {
        let mut state = self.called(Call::UnmapPlain)?;
        for number in pages_of(range.start, range.len()) {
            let is_nobodys = state.plain.contains(&number) || state.pages[&number] == Page::Hidden;
            assert!(is_nobodys, "unmapped what the engine shows");
            state.show_plain(number, Page::Hidden);
        }
        Ok(())
    }
}
