//! The calls of the engine to the software MMU.

use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{Call, Page, SoftMmu, State, pages_of};
use crate::sys::budget::MappingBudget;
use crate::sys::racing::{PageBytes, ZERO_PAGE, differs};
use crate::sys::{
    Access, Aftermath, Extent, MapFailure, Merging, PageRun, Part, ScanFor, Scanned, Shows, Sys, SystemError,
};
use crate::units::{BASE_PAGE, HUGE_PAGE};

impl SoftMmu {
    /// Gives zeroed memory to those pages that have none.
    pub(super) fn give(&self, state: &mut State, offset: usize, len: usize) {
        for page in pages_of(offset, len) {
            let had_memory = self.has_memory(state, page);
            state.obtained[page] = true;
            if !had_memory {
                // SAFETY: the page lies inside the memory, and nothing uses it yet.
                unsafe { self.memory.add(page * BASE_PAGE).write_bytes(0, BASE_PAGE) };
            }
        }
    }

    /// Changes the memory that pages of a claimed range show.
    fn replace(&self, call: Call, part: Part<'_>, page: impl Fn(usize) -> Page) -> Result<(), MapFailure> {
        let (mut state, result) = match self.called(call) {
            Ok(state) => (state, Ok(())),
            Err(error) if self.state().failures.is_multiple_of(2) => {
                return Err(MapFailure { error, aftermath: Aftermath::Unchanged });
            }
            Err(error) => (self.state(), Err(MapFailure { error, aftermath: Aftermath::Unknown })),
        };
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            state.lose_marks(number);
            let there = state.pages.insert(number, page(by * BASE_PAGE));
            state.private.remove(&number);
            state.held.remove(&number);
            state.plain.remove(&number);
            assert!(there.is_some(), "mapped outside of a claimed range");
        }
        result
    }

    /// Panics if the part is about to show other bytes than before. It will be writable, so the bytes must be right
    /// from the first moment on: a block must be cleared or copied by then. No thread has seen the bytes of hidden or
    /// held pages. After a failure, any bytes may be put back. Memory that is allocated at the first touch is shown
    /// where the program wants zeros.
    fn check_bytes_stay(&self, part: Part<'_>, start: usize) {
        let state = self.state();
        if state.failures > 0 {
            return;
        }
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let shown = start + by * BASE_PAGE;
            if self.touched.is_some() && !self.has_memory(&state, shown / BASE_PAGE) {
                continue;
            }
            let before = match (state.private.get(&number), state.pages.get(&number)) {
                (Some(page), _) => **page,
                (None, Some(Page::Zeros)) => ZERO_PAGE,
                (None, Some(&Page::Memory { start, .. } | &Page::CowMapping { start, .. })) => {
                    self.bytes_at(&state, start)
                }
                (None, Some(Page::Hidden) | None) => continue,
            };
            assert!(before == self.bytes_at(&state, shown), "other bytes are shown than before");
        }
    }

    pub(super) fn bytes_at(&self, state: &State, offset: usize) -> PageBytes {
        let has_memory = self.has_memory(state, offset / BASE_PAGE);
        if self.touched.is_some() && !has_memory {
            return ZERO_PAGE;
        }
        assert!(has_memory, "showed memory that was never obtained: SIGBUS");
        // SAFETY: the engine's calls check the offsets of pages when they map them.
        unsafe { self.memory.add(offset).cast::<PageBytes>().read_volatile() }
    }

    /// Takes memory away. Panics if a child is shown some of it.
    pub(super) fn take_memory(&self, state: &mut State, offset: usize, len: usize) {
        let is_shown = state.children.values().any(|child| child.shows(&(offset..offset + len)));
        assert!(!is_shown, "gave memory back that a child is shown");
        for page in pages_of(offset, len) {
            state.obtained[page] = false;
            state.huge[page * BASE_PAGE / HUGE_PAGE] = false;
            // SAFETY: the page lies inside the memory, and nothing uses it any more.
            unsafe { self.memory.add(page * BASE_PAGE).write_bytes(0xee, BASE_PAGE) };
        }
    }

    /// Shows memory with this access. If `in_two`, a call of its own gives the right to write.
    fn show_memory(
        &self,
        (call, in_two): (Call, bool),
        part: Part<'_>,
        access: Access,
        page: impl Fn(usize, Access) -> Page,
    ) -> Result<(), MapFailure> {
        let at_once = if in_two { Access::Read } else { access };
        self.replace(call, part, |by| page(by, at_once))?;
        if at_once == access {
            return Ok(());
        }
        self.protect(part, access).map_err(|error| MapFailure { error, aftermath: Aftermath::NotWritable })
    }

    /// Makes the stores that the test has prepared, as far as the program can make them without a fault.
    fn store_meanwhile(&self) {
        let stores = std::mem::take(&mut self.state().stores);
        let left = stores.into_iter().filter(|&(address, value)| self.store(address, value).is_err()).collect();
        self.state().stores = left;
    }

    /// Claims addresses that show `shown`.
    fn claimed(mut state: MutexGuard<'_, State>, len: usize, align: usize, shown: Page) -> Extent {
        let at = state.next_address.next_multiple_of(align);
        // Each range is followed by a gap.
        state.next_address = at + len + align;
        state.pages.extend(pages_of(at, len).map(|page| (page, shown)));
        // SAFETY: no range is handed out twice.
        unsafe { Extent::new(at, len) }
    }

    /// Counts a call. Returns an error if the test has made this one fail.
    pub(super) fn called(&self, call: Call) -> Result<MutexGuard<'_, State>, SystemError> {
        let mut state = self.state();
        if state.stop == Some(call) {
            (state.stop, state.is_stopped) = (None, true);
            drop(state);
            SoftMmu::ring(&self.stopped);
            state = self.wait(&self.stopped, |state| state.is_stopped);
        }
        *state.calls.entry(call).or_default() += 1;
        match state.failure {
            Some((failing, 0)) if failing == call => {
                state.failure = state.next_failure.take().map(|call| (call, 0));
                state.failures += 1;
                Err(SystemError::new("a call that the test failed", Errno::NOMEM))
            }
            Some((failing, after)) if failing == call => {
                state.failure = Some((failing, after - 1));
                Ok(state)
            }
            _ => Ok(state),
        }
    }
}

impl Sys for SoftMmu {
    fn direct(&self) -> *mut u8 {
        self.memory
    }

    fn merging(&self) -> Merging {
        self.merging
    }

    fn budget(&self) -> &MappingBudget {
        &self.budget
    }

    fn refresh_budget(&self) {}

    fn make_huge(&self, offset: usize, len: usize) {
        assert!(offset.is_multiple_of(HUGE_PAGE) && len.is_multiple_of(HUGE_PAGE));
        assert!(offset + len <= self.layout.size());
        for at in (offset..offset + len).step_by(HUGE_PAGE) {
            match self.called(Call::MakeHuge) {
                Ok(mut state) => {
                    state.huge[at / HUGE_PAGE] = true;
                    self.give(&mut state, at, HUGE_PAGE);
                }
                // The request for a huge page has allocated one base page, before it failed.
                Err(_) => self.give(&mut self.state(), at, BASE_PAGE),
            }
        }
    }

    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError> {
        assert!(touched < len);
        let mut state = self.called(Call::Obtain)?;
        self.give(&mut state, offset, len);
        Ok(())
    }

    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        let mut state = self.called(Call::Punch)?;
        let shows = |(at, page): (&usize, &Page)| match *page {
            // Between two resets, no thread uses staged pages (region/reset/at_once.rs).
            Page::CowMapping { access: Access::Read, .. } if state.is_left_staged(*at) => false,
            // Nor does a thread use parked pages once other memory is shown where they belong.
            _ if state.parked.get(at).is_some_and(|from| !state.held.contains(from)) => false,
            Page::Memory { start, .. } | Page::CowMapping { start, .. } => (offset..offset + len).contains(&start),
            Page::Zeros | Page::Hidden => false,
        };
        assert!(!state.pages.iter().any(shows), "gave memory back that is shown");
        self.take_memory(&mut state, offset, len);
        Ok(())
    }

    fn next_memory(&self, range: Range<usize>) -> Option<Range<usize>> {
        if self.touched.is_none() {
            return Some(range).filter(|range| !range.is_empty());
        }
        let state = self.state();
        let mut pages = range.step_by(BASE_PAGE);
        let has_memory = |at: &usize| self.has_memory(&state, at / BASE_PAGE);
        let start = pages.find(has_memory)?;
        let end = start + BASE_PAGE * (1 + pages.take_while(has_memory).count());
        Some(start..end)
    }

    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        Ok(SoftMmu::claimed(self.called(Call::Claim)?, len, align, Page::Zeros))
    }

    fn release(&self, extent: Extent) -> Result<(), SystemError> {
        let mut state = self.called(Call::Release)?;
        for page in pages_of(extent.base(), extent.len()) {
            state.lose_marks(page);
            assert!(state.pages.remove(&page).is_some(), "released addresses that were not claimed");
            state.private.remove(&page);
            state.plain.remove(&page);
        }
        state.staging.retain(|pages| pages.start != extent.base() / BASE_PAGE);
        Ok(())
    }

    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure> {
        match what {
            Shows::Zeros => self.replace(Call::MapZeros, part, |_| Page::Zeros),
            Shows::Hidden => self.replace(Call::Hide, part, |_| Page::Hidden),
            Shows::Memory { start, access } => {
                assert!(start + part.len() <= self.layout.size());
                if access == Access::ReadWrite {
                    self.check_bytes_stay(part, start);
                }
                // As on hugetlb, where the right to write takes another call.
                let in_two = self.merging == Merging::Separate;
                let page = |by, access| Page::Memory { start: start + by, access };
                self.show_memory((Call::Map, in_two), part, access, page)
            }
            Shows::CowMapping { start, access } => {
                assert!(start + part.len() <= self.layout.size() && self.merging == Merging::Merge);
                // Mappings that children inherit are writable at once.
                let page = |by, access| Page::CowMapping { start: start + by, access };
                self.show_memory((Call::CowMapping, self.touched.is_none()), part, access, page)?;
                let stores = std::mem::take(&mut self.state().stores_when_shown);
                stores.into_iter().for_each(|(address, value)| _ = self.store(address, value));
                Ok(())
            }
        }
    }

    fn protect(&self, part: Part<'_>, to: Access) -> Result<(), SystemError> {
        let (at, len) = (part.at(), part.len());
        let called = self.called(Call::Protect);
        // A failed mprotect has changed the first part of its range.
        let (mut state, result, len) = match called {
            Ok(state) => (state, Ok(()), len),
            Err(error) => (self.state(), Err(error), (len / 2).next_multiple_of(BASE_PAGE)),
        };
        for page in pages_of(at, len) {
            state.was_protected |= to == Access::Read && state.watched.contains(&page);
            match state.pages.get_mut(&page) {
                Some(Page::Memory { access, .. } | Page::CowMapping { access, .. }) => *access = to,
                Some(Page::Zeros) => assert_eq!(to, Access::Read, "zeros made writable"),
                Some(Page::Hidden) => panic!("protected a hidden page"),
                None => panic!("protected a page that is not mapped"),
            }
        }
        let writer = if result.is_err() { state.writer } else { None };
        drop(state);
        if let Some((address, value)) = writer
            && self.store(address, value).is_ok()
        {
            self.state().writer = None;
        }
        result
    }

    fn has_cow_mappings(&self) -> bool {
        self.cow_mappings
    }

    fn claim_parking(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let state = self.called(Call::ClaimParking)?;
        if !self.cow_mappings || state.calls[&Call::ClaimParking] % self.parkings != 0 {
            return Err(SystemError::new("userfaultfd", Errno::NOTSUP));
        }
        Ok(SoftMmu::claimed(state, len, align, Page::Hidden))
    }

    fn hold(&self, part: Part<'_>, parked: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::Hold)?;
        if pages_of(part.at(), part.len()).any(|page| state.plain.contains(&page)) {
            return Err(SystemError::new("the program has put something else there", Errno::FAULT));
        }
        state.take(part, parked);
        state.held.extend(pages_of(part.at(), part.len()));
        state.parked.extend(pages_of(parked.at(), parked.len()).zip(pages_of(part.at(), part.len())));
        Ok(())
    }

    fn unpark(&self, part: Part<'_>, parked: Part<'_>) {
        let mut state = self.state();
        pages_of(part.at(), part.len()).for_each(|page| assert!(state.held.remove(&page), "it was not held"));
        pages_of(parked.at(), parked.len()).for_each(|page| _ = state.parked.remove(&page));
        state.take(parked, part);
    }

    fn resume(&self, part: Part<'_>, parked: Part<'_>) {
        let mut state = self.state();
        assert!(pages_of(part.at(), part.len()).all(|page| !state.held.contains(&page)), "they would wait again");
        for page in pages_of(parked.at(), parked.len()) {
            state.pages.insert(page, Page::Hidden);
            state.private.remove(&page);
            state.parked.remove(&page);
        }
        drop(state);
        SoftMmu::ring(&self.resumed);
    }

    fn claim_staging(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let extent = SoftMmu::claimed(self.called(Call::ClaimStaging)?, len, align, Page::Hidden);
        self.state().staging.push(pages_of(extent.base(), extent.len()));
        Ok(extent)
    }

    fn take_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::TakePages)?;
        let below: Vec<_> = pages_of(part.at(), part.len()).map(|page| (page, state.pages[&page])).collect();
        let are_private = below.iter().all(|(_, page)| matches!(page, Page::CowMapping { .. }));
        assert!(are_private, "only CoW mappings have private pages");
        state.take(part, staging);
        state.pages.extend(below);
        drop(state);
        self.store_meanwhile();
        Ok(())
    }

    fn bring_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::BringPages)?;
        pages_of(part.at(), part.len()).for_each(|page| {
            state.held.remove(&page);
            state.private.remove(&page);
        });
        let below: Vec<_> = pages_of(staging.at(), staging.len()).map(|page| (page, state.pages[&page])).collect();
        state.take(staging, part);
        state.pages.extend(below);
        Ok(())
    }

    fn scan(&self, part: Part<'_>, wanted: ScanFor, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        let mut state = self.called(Call::Scan)?;
        let (mut scanned, found) = match wanted {
            ScanFor::Private | ScanFor::PrivateAndMark => state.scan(part, runs, State::is_private),
            ScanFor::Unmarked | ScanFor::UnmarkedAndMark => state.scan(part, runs, State::is_unmarked),
        };
        if wanted.marks() {
            scanned.are_marked = state.mark(found);
            drop(state);
            self.store_meanwhile();
        } else if wanted == ScanFor::Unmarked {
            let stores = std::mem::take(&mut state.stores_when_looked);
            drop(state);
            stores.into_iter().for_each(|(address, value)| assert_eq!(self.store(address, value), Ok(())));
        }
        Ok(scanned)
    }

    fn track_writes(&self, part: Part<'_>) -> bool {
        if !self.tracks.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        let State { pages, tracked, .. } = &mut *state;
        let is_shown = |page: &usize| matches!(pages.get(page), Some(Page::CowMapping { .. }));
        tracked.extend(pages_of(part.at(), part.len()).filter(is_shown));
        true
    }

    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8) {
        let state = self.state();
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            assert!(!state.may_be_written(number) || self.is_alone(), "copied what somebody may write to");
            // SAFETY: by this function's contract.
            unsafe { state.copy_private(number, to.add(by * BASE_PAGE)) };
        }
    }

    unsafe fn copy_shown_page(&self, part: Part<'_>, to: *mut u8) {
        assert!(part.len() == BASE_PAGE, "one page is copied");
        let (state, number) = (self.state(), part.at() / BASE_PAGE);
        // A write to a tracked page takes its mark away. Once any page is tracked, an untracked one, which was shown a
        // moment ago, counts as written at each scan, so the pause finds it.
        let is_told = !state.tracked.is_empty();
        assert!(is_told || !state.may_be_written(number), "copied what somebody may write to, and nobody is told");
        // SAFETY: by this function's contract.
        unsafe { state.copy_private(number, to) };
    }

    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool {
        assert!(part.len() == BASE_PAGE, "one page is compared");
        let state = self.state();
        let number = part.at() / BASE_PAGE;
        let start = match state.pages.get(&number) {
            Some(Page::Zeros) => return *from != ZERO_PAGE,
            Some(&Page::Memory { start, .. } | &Page::CowMapping { start, .. }) => start,
            Some(Page::Hidden) | None => panic!("read what cannot be read"),
        };
        match state.private.get(&number) {
            Some(page) => **page != *from,
            None => {
                assert!(state.obtained[start / BASE_PAGE], "looked at memory that was never obtained: SIGBUS");
                // SAFETY: the engine's calls check the offsets of pages when they map them.
                unsafe { differs(self.memory.add(start), from) }
            }
        }
    }

    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError> {
        let mut state = if access == Access::Read { self.called(Call::WriteThrough)? } else { self.state() };
        let mut differed = false;
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let Some(&Page::CowMapping { start: offset, access: now }) = state.pages.get(&number) else {
                panic!("put back where there is no cow_mapping");
            };
            assert!(access == Access::Read || now == Access::ReadWrite, "SIGSEGV under locks");
            // SAFETY: by this function's contract.
            let then = unsafe { from.add(by * BASE_PAGE).cast::<PageBytes>().read() };
            let now = state.private.get(&number).map_or_else(|| self.bytes_at(&state, offset), |page| **page);
            if now != then {
                if access == Access::Read && !self.writes_through() {
                    return Err(SystemError::new("a write where the program may not", Errno::IO));
                }
                let is_new = state.private.insert(number, Box::new(then)).is_none();
                state.faults += u64::from(state.unwritten.remove(&number) || is_new);
                differed = true;
            }
        }
        Ok(differed)
    }

    fn writes_through(&self) -> bool {
        self.writes_through.load(Ordering::Relaxed)
    }

    unsafe fn overwrite(&self, part: Part<'_>, from: *const u8) {
        let mut state = self.state();
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            assert!(state.is_open(number), "SIGSEGV under locks");
            // SAFETY: by this function's contract.
            let page = unsafe { from.add(by * BASE_PAGE).cast::<PageBytes>().read() };
            let is_new = state.private.insert(number, Box::new(page)).is_none();
            state.faults += u64::from(state.unwritten.remove(&number) || is_new);
        }
    }

    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::DropPrivate)?;
        for page in pages_of(part.at(), part.len()) {
            assert!(
                matches!(state.pages.get(&page), Some(Page::CowMapping { .. })) || state.plain.contains(&page),
                "dropped what is not an cow_mapping's"
            );
            state.private.remove(&page);
        }
        Ok(())
    }

    fn tidy(&self) {}

    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    fn minor_faults(&self) -> u64 {
        self.state().faults
    }

    fn faults_of_others(&self) -> Option<u64> {
        let state = self.state();
        // A store that the test has prepared for the next scan must not be foreseen.
        state.stores_when_looked.is_empty().then_some(state.faults_of_program)
    }

    fn sleeps(&self) -> u64 {
        0
    }

    fn now(&self) -> u64 {
        0
    }

    fn cpu_time(&self) -> u64 {
        0
    }
}
