//! A software MMU: page tables and memory as the engine asked for them. Tests can look at them, and can make every call
//! fail.
//!
//! Loads and stores go through [`SoftMmu::load`] and [`SoftMmu::store`], which fault where hardware would. To use
//! mapped memory that was never obtained is a bug of the engine (`SIGBUS` on real memory), so it panics.
//!
//! So is what real memory would let pass: to copy private pages while somebody may write to them, to give memory back
//! that is shown somewhere, or to show other bytes than before where the program may write.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use super::budget::MappingBudget;
use super::racing::{PageBytes, ZERO_PAGE, differs};
use super::{Access, Aftermath, Extent, MapFailure, Merging, PageRun, Part, Scanned, Shows, Sys, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// The calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    MakeHuge,
    Obtain,
    Claim,
    Release,
    Map,
    MapZeros,
    Protect,
    Hide,
    Punch,
    Overlay,
    Scan,
    SetAside,
    Hold,
    DropPrivate,
    WriteThrough,
    SetApart,
    TakePages,
    BringPages,
}

impl Call {
    pub(crate) const ALL: [Call; 18] = [
        Call::MakeHuge,
        Call::Obtain,
        Call::Claim,
        Call::Release,
        Call::Map,
        Call::MapZeros,
        Call::Protect,
        Call::Hide,
        Call::Punch,
        Call::Overlay,
        Call::Scan,
        Call::SetAside,
        Call::Hold,
        Call::DropPrivate,
        Call::WriteThrough,
        Call::SetApart,
        Call::TakePages,
        Call::BringPages,
    ];
}

/// What one base page shows.
pub(crate) type Page = Shows<usize>;

/// A load or store that the page tables do not allow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault;

#[derive(Default)]
struct State {
    pages: BTreeMap<usize, Page>,
    /// The private pages, by the number of the page that shows them.
    private: BTreeMap<usize, Box<[u8; BASE_PAGE]>>,
    /// Whoever uses one of these pages waits.
    held: BTreeSet<usize>,
    /// What is held lies at these, which nobody else uses.
    aside: BTreeSet<usize>,
    /// The pages of addresses that were set apart.
    apart: Vec<std::ops::Range<usize>>,
    /// How many pages have become private.
    faults: u64,
    obtained: Vec<bool>,
    /// Whether each 2 MiB are one page.
    huge: Vec<bool>,
    next_address: usize,
    calls: BTreeMap<Call, usize>,
    /// The call that fails, and how many calls of its kind succeed before.
    failure: Option<(Call, usize)>,
    /// The call that fails after that.
    next_failure: Option<Call>,
    /// Pages that must stay writable, and whether they ever were not.
    watched: std::ops::Range<usize>,
    was_protected: bool,
    /// The call at which a thread stops, and whether one has.
    stop: Option<Call>,
    is_stopped: bool,
    /// Somebody who writes this to there as soon as a call to give or take the right to write has failed, if he can.
    writer: Option<(usize, u8)>,
    /// What somebody stores as soon as private pages were taken away.
    stores: Vec<(usize, u8)>,
    /// How many calls have failed. Every other mapping call that fails is carried out all the same.
    failures: usize,
}

impl State {
    /// Whether a page lies apart and is not private.
    fn is_left_apart(&self, at: usize) -> bool {
        !self.private.contains_key(&at) && self.apart.iter().any(|pages| pages.contains(&at))
    }

    /// Shows at `to` what `from` shows, with its private pages. `from` shows nothing then.
    fn take(&mut self, from: Part<'_>, to: Part<'_>) {
        for (from, to) in pages_of(from.at(), from.len()).zip(pages_of(to.at(), to.len())) {
            let page = self.pages.insert(from, Page::Hidden).expect("mapped");
            assert!(matches!(page, Page::Memory { .. } | Page::Overlay { .. }), "only pool memory is held");
            assert!(self.pages.insert(to, page).is_some(), "mapped outside of a claimed range");
            self.private.remove(&to);
            if let Some(page) = self.private.remove(&from) {
                self.private.insert(to, page);
            }
        }
    }
}

pub(crate) struct SoftMmu {
    memory: *mut u8,
    layout: Layout,
    merging: Merging,
    /// Whether it has page grain, as kernels from Linux 6.7 on.
    overlays: bool,
    /// Addresses are set aside for each so-many-th who asks.
    asides: usize,
    budget: MappingBudget,
    /// Whether nobody else is said to write.
    alone: AtomicBool,
    state: Mutex<State>,
    let_go: Condvar,
    stopped: Condvar,
}

// SAFETY: the memory belongs to this value; tests share it between threads under the engine's own rules.
unsafe impl Send for SoftMmu {}
// SAFETY: as above.
unsafe impl Sync for SoftMmu {}

impl SoftMmu {
    pub(crate) fn new(capacity: usize, merging: Merging, mappings: usize) -> SoftMmu {
        let layout = Layout::from_size_align(capacity, BASE_PAGE).unwrap();
        // Memory that is not obtained yet is not zero here, so that its use shows.
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(layout) };
        assert!(!memory.is_null());
        // SAFETY: just allocated with this size.
        unsafe { memory.write_bytes(0xee, capacity) };
        let obtained = vec![false; capacity / BASE_PAGE];
        let huge = vec![false; capacity.div_ceil(HUGE_PAGE)];
        let state = State { obtained, huge, next_address: 1 << 40, ..State::default() };
        let overlays = false;
        let (budget, alone, state) = (MappingBudget::new(mappings), AtomicBool::new(false), Mutex::new(state));
        SoftMmu {
            memory,
            layout,
            merging,
            overlays,
            asides: 1,
            budget,
            alone,
            state,
            let_go: Condvar::new(),
            stopped: Condvar::new(),
        }
    }

    /// The same, with page grain.
    pub(crate) fn with_overlays(mut self) -> SoftMmu {
        self.overlays = self.merging == Merging::Merge;
        self
    }

    /// The same, but only every other region can hold those who use it.
    pub(crate) fn with_few_asides(mut self) -> SoftMmu {
        self.asides = 2;
        self
    }

    /// Says from now on that nobody else writes, or that somebody may.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes the `after`-th next call of this kind fail, or no call.
    pub(crate) fn fail(&self, failure: Option<(Call, usize)>) {
        self.state().failure = failure;
    }

    /// Makes the next call of this kind fail, too, as soon as the first failure has happened.
    pub(crate) fn fail_next(&self, call: Call) {
        self.state().next_failure = Some(call);
    }

    /// From now on somebody writes `value` to `address` as soon as a call to give or take the right to write has
    /// failed, if he can.
    pub(crate) fn write_after_failure(&self, address: usize, value: u8) {
        self.state().writer = Some((address, value));
    }

    /// Whether he has done so.
    pub(crate) fn has_written(&self) -> bool {
        self.state().writer.is_none()
    }

    /// Whether that failure has yet to happen.
    pub(crate) fn failure_pending(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Has the thread that makes the next call of this kind stop there, until [`SoftMmu::go_on`].
    pub(crate) fn stop_at(&self, call: Call) {
        self.state().stop = Some(call);
    }

    /// Waits until a thread has stopped.
    pub(crate) fn until_it_stops(&self) {
        drop(self.wait(&self.stopped, |state| !state.is_stopped));
    }

    /// Has the thread that stopped go on.
    pub(crate) fn go_on(&self) {
        self.state().is_stopped = false;
        self.stopped.notify_all();
    }

    /// Waits while `goes_on` says so.
    fn wait(&self, bell: &Condvar, goes_on: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let waited = bell.wait_timeout_while(self.state(), PATIENCE, |state| goes_on(state));
        let (state, waited) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        assert!(!waited.timed_out(), "it waits for ever");
        state
    }

    /// Has somebody store these values at these addresses as soon as private pages were taken away.
    pub(crate) fn store_when_taken(&self, stores: impl Into<Vec<(usize, u8)>>) {
        self.state().stores = stores.into();
    }

    /// Watches from now on whether anything in a range of addresses loses the right to be written.
    pub(crate) fn watch(&self, range: std::ops::Range<usize>) {
        let mut state = self.state();
        (state.watched, state.was_protected) = (range.start / BASE_PAGE..range.end / BASE_PAGE, false);
    }

    /// Whether anything did.
    pub(crate) fn was_protected(&self) -> bool {
        self.state().was_protected
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, call: Call) -> usize {
        self.state().calls.get(&call).copied().unwrap_or(0)
    }

    /// What the page at `address` shows; `None` if nothing is mapped.
    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        self.state().pages.get(&(address / BASE_PAGE)).copied()
    }

    /// How many mappings (VMAs) the range consists of.
    pub(crate) fn mappings(&self, at: usize, len: usize, block: usize) -> usize {
        let pages: Vec<_> = (at..at + len).step_by(BASE_PAGE).map(|address| (address, self.page(address))).collect();
        let joined = |left: &(usize, Option<Page>), right: &(usize, Option<Page>)| match (left.1, right.1) {
            (Some(Page::Overlay { start: a, access: x }), Some(Page::Overlay { start: b, access: y })) => {
                a + BASE_PAGE == b && x == y
            }
            (Some(Page::Memory { start: a, access: x }), Some(Page::Memory { start: b, access: y })) => {
                let same_block = !right.0.is_multiple_of(block);
                a + BASE_PAGE == b && x == y && (same_block || self.merging == Merging::Merge)
            }
            (a, b) => a == b,
        };
        1 + pages.windows(2).filter(|pair| !joined(&pair[0], &pair[1])).count()
    }

    /// Waits until the page at `address` is not held.
    fn state_at(&self, address: usize) -> MutexGuard<'_, State> {
        self.wait(&self.let_go, |state| state.held.contains(&(address / BASE_PAGE)))
    }

    /// Whether whoever uses the page at `address` waits.
    pub(crate) fn is_held(&self, address: usize) -> bool {
        self.state().held.contains(&(address / BASE_PAGE))
    }

    /// Whether anything is held.
    pub(crate) fn holds_anything(&self) -> bool {
        !self.state().held.is_empty()
    }

    pub(crate) fn load(&self, address: usize) -> Result<u8, Fault> {
        let page = self.state_at(address).pages.get(&(address / BASE_PAGE)).copied();
        match page {
            None | Some(Page::Hidden) => Err(Fault),
            Some(Page::Zeros) => Ok(0),
            Some(Page::Memory { start: offset, .. }) => {
                self.check_obtained(offset);
                // SAFETY: offsets of mapped pages were checked when they were mapped.
                Ok(unsafe { self.memory.add(offset + address % BASE_PAGE).read_volatile() })
            }
            Some(Page::Overlay { start: offset, .. }) => {
                if let Some(page) = self.state().private.get(&(address / BASE_PAGE)) {
                    return Ok(page[address % BASE_PAGE]);
                }
                self.check_obtained(offset);
                // SAFETY: as above.
                Ok(unsafe { self.memory.add(offset + address % BASE_PAGE).read_volatile() })
            }
        }
    }

    pub(crate) fn store(&self, address: usize, value: u8) -> Result<(), Fault> {
        // The lock is held during the store: to take a right away waits for stores under way, as a TLB flush does.
        let mut state = self.state_at(address);
        match state.pages.get(&(address / BASE_PAGE)) {
            Some(&Page::Overlay { start: offset, access: Access::ReadWrite }) => {
                assert!(state.obtained[offset / BASE_PAGE], "copied memory that was never obtained: SIGBUS");
                let copy = || {
                    // SAFETY: offsets of mapped pages were checked when they were mapped.
                    let page = unsafe { self.memory.add(offset).cast::<[u8; BASE_PAGE]>().read_volatile() };
                    Box::new(page)
                };
                let number = address / BASE_PAGE;
                state.faults += u64::from(!state.private.contains_key(&number));
                state.private.entry(number).or_insert_with(copy)[address % BASE_PAGE] = value;
                Ok(())
            }
            Some(Page::Memory { start: offset, access: Access::ReadWrite }) => {
                assert!(state.obtained[offset / BASE_PAGE], "stored to memory that was never obtained: SIGBUS");
                // SAFETY: as in `load`.
                unsafe { self.memory.add(offset + address % BASE_PAGE).write_volatile(value) };
                Ok(())
            }
            _ => Err(Fault),
        }
    }

    /// Gives zeroed memory to those pages that have none.
    fn give(&self, state: &mut State, offset: usize, len: usize) {
        for page in pages_of(offset, len) {
            if !std::mem::replace(&mut state.obtained[page], true) {
                // SAFETY: inside the memory; nobody uses it yet.
                unsafe { self.memory.add(page * BASE_PAGE).write_bytes(0, BASE_PAGE) };
            }
        }
    }

    /// Whether the page at `offset` was obtained, and whether it is part of a huge page.
    pub(crate) fn memory_at(&self, offset: usize) -> (bool, bool) {
        let state = self.state();
        (state.obtained[offset / BASE_PAGE], state.huge[offset / HUGE_PAGE])
    }

    /// Shows other pages in a claimed range.
    fn replace(&self, call: Call, part: Part<'_>, page: impl Fn(usize) -> Page) -> Result<(), MapFailure> {
        let (mut state, result) = match self.called(call) {
            Ok(state) => (state, Ok(())),
            Err(error) => {
                let state = self.state();
                let was_refused = state.failures.is_multiple_of(2);
                let aftermath = if was_refused { Aftermath::Unchanged } else { Aftermath::Unknown };
                if was_refused {
                    return Err(MapFailure { error, aftermath });
                }
                (state, Err(MapFailure { error, aftermath }))
            }
        };
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let there = state.pages.insert(number, page(by * BASE_PAGE));
            state.private.remove(&number);
            state.held.remove(&number);
            assert!(there.is_some(), "mapped outside of a claimed range");
        }
        result
    }

    /// What is shown writable has to be what was shown before, from the first moment on: a block that is cleared or
    /// copied has to be so by then. What was hidden or held was seen by nobody. After a failure, what is put back may
    /// be anything.
    fn check_bytes_stay(&self, part: Part<'_>, start: usize) {
        let state = self.state();
        if state.failures > 0 {
            return;
        }
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let before = match (state.private.get(&number), state.pages.get(&number)) {
                (Some(page), _) => **page,
                (None, Some(Page::Zeros)) => ZERO_PAGE,
                (None, Some(&Page::Memory { start, .. } | &Page::Overlay { start, .. })) => {
                    self.bytes_at(&state, start)
                }
                (None, Some(Page::Hidden) | None) => continue,
            };
            assert!(before == self.bytes_at(&state, start + by * BASE_PAGE), "other bytes are shown than before");
        }
    }

    fn bytes_at(&self, state: &State, offset: usize) -> PageBytes {
        assert!(state.obtained[offset / BASE_PAGE], "showed memory that was never obtained: SIGBUS");
        // SAFETY: offsets of mapped pages are checked when they are mapped.
        unsafe { self.memory.add(offset).cast::<PageBytes>().read_volatile() }
    }

    /// The call that gives the right to write after another has shown something.
    fn make_writable(&self, part: Part<'_>, to: Option<Access>) -> Result<(), MapFailure> {
        if to != Some(Access::ReadWrite) {
            return Ok(());
        }
        self.protect(part, Access::ReadWrite).map_err(|error| MapFailure { error, aftermath: Aftermath::NotWritable })
    }

    /// Addresses that show nothing.
    fn hidden(mut state: MutexGuard<'_, State>, len: usize, align: usize) -> Extent {
        let at = state.next_address.next_multiple_of(align);
        state.next_address = at + len + align;
        state.pages.extend(pages_of(at, len).map(|page| (page, Page::Hidden)));
        // SAFETY: no range is handed out twice.
        unsafe { Extent::new(at, len) }
    }

    fn check_obtained(&self, offset: usize) {
        assert!(self.state().obtained[offset / BASE_PAGE], "looked at memory that was never obtained: SIGBUS");
    }

    /// Counts a call. It fails if its turn to fail has come.
    fn called(&self, call: Call) -> Result<MutexGuard<'_, State>, SystemError> {
        let mut state = self.state();
        if state.stop == Some(call) {
            (state.stop, state.is_stopped) = (None, true);
            self.stopped.notify_all();
            drop(state);
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

fn pages_of(at: usize, len: usize) -> std::ops::Range<usize> {
    assert!(at.is_multiple_of(BASE_PAGE) && len.is_multiple_of(BASE_PAGE) && len > 0);
    at / BASE_PAGE..(at + len) / BASE_PAGE
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
                // One page was touched before.
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
            // Between two resets, what lies apart is nobody's (region/at_once.rs).
            Page::Overlay { access: Access::Read, .. } if state.is_left_apart(*at) => false,
            Page::Memory { start, .. } | Page::Overlay { start, .. } => (offset..offset + len).contains(&start),
            Page::Zeros | Page::Hidden => false,
        };
        assert!(!state.pages.iter().any(shows), "gave memory back that is shown");
        for page in pages_of(offset, len) {
            state.obtained[page] = false;
            state.huge[page * BASE_PAGE / HUGE_PAGE] = false;
            // SAFETY: inside the memory; nobody uses it any more.
            unsafe { self.memory.add(page * BASE_PAGE).write_bytes(0xee, BASE_PAGE) };
        }
        Ok(())
    }

    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let mut state = self.called(Call::Claim)?;
        let at = state.next_address.next_multiple_of(align);
        // A gap behind each range.
        state.next_address = at + len + align;
        state.pages.extend(pages_of(at, len).map(|page| (page, Page::Zeros)));
        // SAFETY: no range is handed out twice.
        Ok(unsafe { Extent::new(at, len) })
    }

    fn release(&self, extent: Extent) -> Result<(), SystemError> {
        let mut state = self.called(Call::Release)?;
        for page in pages_of(extent.base(), extent.len()) {
            assert!(state.pages.remove(&page).is_some(), "released addresses that were not claimed");
            state.private.remove(&page);
        }
        state.apart.retain(|pages| pages.start != extent.base() / BASE_PAGE);
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
                // As on hugetlb, where it takes another call to give the right to write.
                let later = if self.merging == Merging::Separate { Some(access) } else { None };
                let at_once = if later.is_some() { Access::Read } else { access };
                self.replace(Call::Map, part, |by| Page::Memory { start: start + by, access: at_once })?;
                self.make_writable(part, later)
            }
            Shows::Overlay { start, access } => {
                assert!(start + part.len() <= self.layout.size() && self.merging == Merging::Merge);
                self.replace(Call::Overlay, part, |by| Page::Overlay { start: start + by, access: Access::Read })?;
                self.make_writable(part, Some(access))
            }
        }
    }

    fn protect(&self, part: Part<'_>, to: Access) -> Result<(), SystemError> {
        let (at, len) = (part.at(), part.len());
        let called = self.called(Call::Protect);
        // An mprotect that fails has done the first part of its range.
        let (mut state, result, len) = match called {
            Ok(state) => (state, Ok(()), len),
            Err(error) => (self.state(), Err(error), (len / 2).next_multiple_of(BASE_PAGE)),
        };
        for page in pages_of(at, len) {
            state.was_protected |= to == Access::Read && state.watched.contains(&page);
            match state.pages.get_mut(&page) {
                Some(Page::Memory { access, .. } | Page::Overlay { access, .. }) => *access = to,
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

    fn has_overlays(&self) -> bool {
        self.overlays
    }

    fn set_aside(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let state = self.called(Call::SetAside)?;
        if !self.overlays || state.calls[&Call::SetAside] % self.asides != 0 {
            return Err(SystemError::new("userfaultfd", Errno::NOTSUP));
        }
        Ok(SoftMmu::hidden(state, len, align))
    }

    fn hold(&self, part: Part<'_>, aside: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::Hold)?;
        state.take(part, aside);
        state.held.extend(pages_of(part.at(), part.len()));
        state.aside.extend(pages_of(aside.at(), aside.len()));
        Ok(())
    }

    fn put_back(&self, part: Part<'_>, aside: Part<'_>) {
        let mut state = self.state();
        pages_of(part.at(), part.len()).for_each(|page| assert!(state.held.remove(&page), "it was not held"));
        pages_of(aside.at(), aside.len()).for_each(|page| _ = state.aside.remove(&page));
        state.take(aside, part);
    }

    fn let_go(&self, part: Part<'_>, aside: Part<'_>) {
        let mut state = self.state();
        assert!(pages_of(part.at(), part.len()).all(|page| !state.held.contains(&page)), "they would wait again");
        for page in pages_of(aside.at(), aside.len()) {
            state.pages.insert(page, Page::Hidden);
            state.private.remove(&page);
            state.aside.remove(&page);
        }
        self.let_go.notify_all();
    }

    fn set_apart(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let extent = SoftMmu::hidden(self.called(Call::SetApart)?, len, align);
        self.state().apart.push(pages_of(extent.base(), extent.len()));
        Ok(extent)
    }

    fn take_pages(&self, part: Part<'_>, apart: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::TakePages)?;
        for page in pages_of(part.at(), part.len()) {
            assert!(matches!(state.pages[&page], Page::Overlay { .. }), "only overlays have private pages");
        }
        let below: Vec<_> = pages_of(part.at(), part.len()).map(|page| (page, state.pages[&page])).collect();
        state.take(part, apart);
        state.pages.extend(below);
        let stores = std::mem::take(&mut state.stores);
        drop(state);
        stores.into_iter().for_each(|(address, value)| assert_eq!(self.store(address, value), Ok(())));
        Ok(())
    }

    fn bring_pages(&self, part: Part<'_>, apart: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::BringPages)?;
        pages_of(part.at(), part.len()).for_each(|page| {
            state.held.remove(&page);
            state.private.remove(&page);
        });
        let below: Vec<_> = pages_of(apart.at(), apart.len()).map(|page| (page, state.pages[&page])).collect();
        state.take(apart, part);
        state.pages.extend(below);
        Ok(())
    }

    fn private_pages(&self, part: Part<'_>, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        let state = self.called(Call::Scan)?;
        let mut count = 0;
        let looked_at = |page: usize| page * BASE_PAGE - part.at();
        for page in pages_of(part.at(), part.len()) {
            assert!(matches!(state.pages.get(&page), Some(Page::Overlay { .. })), "looked for private pages elsewhere");
            if !state.private.contains_key(&page) {
                continue;
            }
            let (start, end) = ((page * BASE_PAGE) as u64, ((page + 1) * BASE_PAGE) as u64);
            if count > 0 && runs[count - 1].end == start {
                runs[count - 1].end = end;
            } else if count == runs.len() {
                return Ok(Scanned { runs: count, looked_at: looked_at(page) });
            } else {
                runs[count] = PageRun { start, end, categories: 0 };
                count += 1;
            }
        }
        Ok(Scanned { runs: count, looked_at: part.len() })
    }

    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8) {
        let state = self.state();
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let page = state.private.get(&number).expect("only private pages are copied");
            let is_open = matches!(state.pages.get(&number), Some(Page::Overlay { access: Access::ReadWrite, .. }));
            assert!(!is_open || state.aside.contains(&number), "copied what somebody may write to");
            // SAFETY: by contract.
            unsafe { to.add(by * BASE_PAGE).copy_from_nonoverlapping(page.as_ptr(), BASE_PAGE) };
        }
    }

    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool {
        assert!(part.len() == BASE_PAGE, "one page is compared");
        let state = self.state();
        let number = part.at() / BASE_PAGE;
        let start = match state.pages.get(&number) {
            Some(Page::Zeros) => return *from != ZERO_PAGE,
            Some(&Page::Memory { start, .. } | &Page::Overlay { start, .. }) => start,
            Some(Page::Hidden) | None => panic!("read what cannot be read"),
        };
        match state.private.get(&number) {
            Some(page) => **page != *from,
            None => {
                assert!(state.obtained[start / BASE_PAGE], "looked at memory that was never obtained: SIGBUS");
                // SAFETY: offsets of mapped pages were checked when they were mapped.
                unsafe { differs(self.memory.add(start), from) }
            }
        }
    }

    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError> {
        let mut state = if access == Access::Read { self.called(Call::WriteThrough)? } else { self.state() };
        let mut differed = false;
        for (by, number) in pages_of(part.at(), part.len()).enumerate() {
            let Some(&Page::Overlay { start: offset, access: now }) = state.pages.get(&number) else {
                panic!("put back where there is no overlay");
            };
            assert!(access == Access::Read || now == Access::ReadWrite, "SIGSEGV under locks");
            // SAFETY: by contract.
            let then = unsafe { from.add(by * BASE_PAGE).cast::<[u8; BASE_PAGE]>().read() };
            // SAFETY: offsets of mapped pages were checked when they were mapped.
            let below = unsafe { self.memory.add(offset).cast::<[u8; BASE_PAGE]>().read_volatile() };
            let is_private = state.private.contains_key(&number);
            if state.private.get(&number).map_or(below, |page| **page) != then {
                state.private.insert(number, Box::new(then));
                state.faults += u64::from(!is_private);
                differed = true;
            }
        }
        Ok(differed)
    }

    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError> {
        let mut state = self.called(Call::DropPrivate)?;
        for page in pages_of(part.at(), part.len()) {
            assert!(matches!(state.pages.get(&page), Some(Page::Overlay { .. })), "dropped what is not an overlay's");
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

    fn now(&self) -> u64 {
        0
    }

    fn cpu_time(&self) -> u64 {
        0
    }
}

impl Drop for SoftMmu {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory, self.layout) };
    }
}
