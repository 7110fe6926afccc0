//! A software MMU: simulates the page tables and the memory that the engine asks the kernel for. Tests can inspect it,
//! and can make every call fail.
//!
//! ```text
//!   the test    loads, stores, and decides which calls fail or stop (here)
//!   the engine  makes the same calls as to the kernel (calls.rs)
//! ```
//! Loads and stores go through [`SoftMmu::load`] and [`SoftMmu::store`], which fault where hardware would. The use of
//! mapped memory that was never obtained is a bug of the engine (`SIGBUS` on real memory), so it panics.
//!
//! It also panics on bugs that real memory would not reveal: when the engine copies private pages while the program may
//! write to them, gives memory back that some address shows, or changes bytes where the program may write.
//!
//! A program that knows nothing of hugefork gets memory at the first touch instead, and its children inherit it
//! (program.rs).

mod calls;
mod program;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::budget::{MARGIN_MAPPINGS, MappingBudget};
use super::racing::{PageBytes, ZERO_PAGE};
use super::{Access, Merging, PageRun, Part, Scanned, Shows};
use crate::sync;
use crate::sync::atomic::AtomicU32;
use crate::sync::steps::step;
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// One page in this many counts as read, if it is not private.
const ONE_IN_SO_MANY_IS_READ: usize = 5;

/// The kinds of calls that can fail.
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
    CowMapping,
    Scan,
    ClaimParking,
    Hold,
    DropPrivate,
    WriteThrough,
    ClaimStaging,
    TakePages,
    BringPages,
    Plain,
    ShowPlain,
    UnmapPlain,
    Collapse,
}

impl Call {
    /// The calls that regions make.
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
        Call::CowMapping,
        Call::Scan,
        Call::ClaimParking,
        Call::Hold,
        Call::DropPrivate,
        Call::WriteThrough,
        Call::ClaimStaging,
        Call::TakePages,
        Call::BringPages,
    ];
}

/// The memory that one base page shows.
pub(crate) type Page = Shows<usize>;

/// A load or store that the page tables do not allow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault;

#[derive(Default)]
struct State {
    pages: BTreeMap<usize, Page>,
    /// The private pages, by the number of the page that shows them.
    private: BTreeMap<usize, Box<PageBytes>>,
    /// The pages whose writes are tracked, as long as they show the same memory. Those among them that were not written
    /// since the last scan that marked them are `unwritten`.
    tracked: BTreeSet<usize>,
    unwritten: BTreeSet<usize>,
    /// Held pages: a thread that uses one of them waits.
    held: BTreeSet<usize>,
    /// The pages where the memory of held pages is parked, and for each the page where it belongs.
    parked: BTreeMap<usize, usize>,
    /// Private memory of the process that the engine does not manage: zeros below its private pages.
    plain: BTreeSet<usize>,
    children: BTreeMap<usize, program::Child>,
    /// The ranges of pages that are claimed for staging.
    staging: Vec<std::ops::Range<usize>>,
    /// How many pages have become private, or have lost a mark.
    faults: u64,
    /// The part of `faults` that writes of the program caused.
    faults_of_program: u64,
    obtained: Vec<bool>,
    /// For each 2 MiB, whether it is one huge page.
    huge: Vec<bool>,
    next_address: usize,
    calls: BTreeMap<Call, usize>,
    /// The kind of call that fails, and how many calls of this kind succeed before.
    failure: Option<(Call, usize)>,
    /// The kind of call that fails after that one.
    next_failure: Option<Call>,
    /// Pages that must stay writable, and whether any of them ever was not.
    watched: std::ops::Range<usize>,
    was_protected: bool,
    /// The kind of call at which a thread stops, and whether one has stopped.
    stop: Option<Call>,
    is_stopped: bool,
    /// A store by another thread of the program: the value goes to the address when a call to give or take the right to
    /// write has failed, if the thread may write there.
    writer: Option<(usize, u8)>,
    /// Stores by other threads of the program when private pages were taken away or marked, if they may write there.
    stores: Vec<(usize, u8)>,
    /// Stores by other threads of the program when the engine has looked for an unmarked private page.
    stores_when_looked: Vec<(usize, u8)>,
    /// Stores by other threads of the program at the moment when a new CoW mapping is shown.
    stores_when_shown: Vec<(usize, u8)>,
    /// How many calls have failed. Every other mapping call that fails does its work all the same.
    failures: usize,
}

impl State {
    /// Whether a page is claimed for staging and is not private.
    fn is_left_staged(&self, at: usize) -> bool {
        !self.private.contains_key(&at) && self.staging.iter().any(|pages| pages.contains(&at))
    }

    /// Removes the marks of a page that shows other memory now or was moved.
    fn lose_marks(&mut self, page: usize) {
        self.tracked.remove(&page);
        self.unwritten.remove(&page);
    }

    /// Finds wanted pages of a part. Returns them in runs of equal pages, and one by one.
    fn scan(
        &self,
        part: Part<'_>,
        runs: &mut [PageRun],
        is_wanted: impl Fn(&State, usize) -> bool,
    ) -> (Scanned, Vec<usize>) {
        let (mut count, mut found) = (0, Vec::new());
        for page in pages_of(part.at(), part.len()) {
            // A caller that scans without the lock of a window may come too late, but only to a claimed range: private
            // pages exist nowhere else.
            assert!(self.pages.contains_key(&page), "looked for private pages where nothing is");
            if !is_wanted(self, page) {
                continue;
            }
            let mut run =
                PageRun { start: (page * BASE_PAGE) as u64, end: ((page + 1) * BASE_PAGE) as u64, categories: 0 };
            run.set_written(!self.unwritten.contains(&page));
            if count > 0 && runs[count - 1].end == run.start && runs[count - 1].categories == run.categories {
                runs[count - 1].end = run.end;
            } else if count == runs.len() {
                let looked_at = page * BASE_PAGE - part.at();
                return (Scanned { runs: count, looked_at, are_marked: false }, found);
            } else {
                runs[count] = run;
                count += 1;
            }
            found.push(page);
        }
        (Scanned { runs: count, looked_at: part.len(), are_marked: false }, found)
    }

    /// Marks those of the pages whose writes are tracked. Returns true if all are.
    fn mark(&mut self, mut found: Vec<usize>) -> bool {
        let count = found.len();
        found.retain(|page| self.tracked.contains(page));
        let are_marked = found.len() == count;
        self.unwritten.extend(found);
        are_marked
    }

    fn is_private(&self, page: usize) -> bool {
        self.private.contains_key(&page)
    }

    /// Whether a page shows a writable CoW mapping.
    fn is_open(&self, page: usize) -> bool {
        matches!(self.pages.get(&page), Some(Page::CowMapping { access: Access::ReadWrite, .. }))
    }

    /// Whether the program may write to a page that shows a CoW mapping without a fault.
    fn may_be_written(&self, page: usize) -> bool {
        self.is_open(page) && !self.parked.contains_key(&page)
    }

    /// Copies a private page.
    ///
    /// # Safety
    /// `to` is valid for writes of a base page, and no other code uses it.
    unsafe fn copy_private(&self, page: usize, to: *mut u8) {
        let page = self.private.get(&page).expect("only private pages are copied");
        // SAFETY: by this function's contract.
        unsafe { to.copy_from_nonoverlapping(page.as_ptr(), BASE_PAGE) };
    }

    /// Whether a page has no mark, and is private or counts as read.
    fn is_unmarked(&self, page: usize) -> bool {
        let is_there = self.is_private(page) || page.is_multiple_of(ONE_IN_SO_MANY_IS_READ);
        is_there && !self.unwritten.contains(&page)
    }

    /// Moves the memory that `from` shows to `to`, with the private pages. `from` then shows nothing.
    fn take(&mut self, from: Part<'_>, to: Part<'_>) {
        for (from, to) in pages_of(from.at(), from.len()).zip(pages_of(to.at(), to.len())) {
            self.lose_marks(from);
            self.lose_marks(to);
            let page = self.pages.insert(from, Page::Hidden).expect("mapped");
            assert!(matches!(page, Page::Memory { .. } | Page::CowMapping { .. }), "only pool memory is held");
            assert!(self.pages.insert(to, page).is_some(), "mapped outside of a claimed range");
            self.private.remove(&to);
            if let Some(page) = self.private.remove(&from) {
                self.private.insert(to, page);
            }
        }
    }
}

/// The memory and page tables of a process that has only hugefork's memory.
pub struct SoftMmu {
    memory: *mut u8,
    layout: Layout,
    merging: Merging,
    /// Whether it has CoW mappings, as kernels from Linux 6.7 on.
    cow_mappings: bool,
    /// Only one in this many claims of addresses for parking succeeds.
    parkings: usize,
    /// How much memory a first touch allocates; `None` if a touch allocates nothing.
    touched: Option<usize>,
    budget: MappingBudget,
    /// The answer of [`Sys::is_alone`](super::Sys::is_alone).
    alone: AtomicBool,
    /// Whether the engine can start to track writes.
    tracks: AtomicBool,
    /// The answer of [`Sys::writes_through`](super::Sys::writes_through).
    writes_through: AtomicBool,
    state: Mutex<State>,
    /// A thread that waits checks again when these change.
    resumed: AtomicU32,
    stopped: AtomicU32,
}

// SAFETY: the memory belongs to this value; tests share it between threads under the engine's own rules.
unsafe impl Send for SoftMmu {}
// SAFETY: as above.
unsafe impl Sync for SoftMmu {}

impl SoftMmu {
    pub(crate) fn new(capacity: usize, merging: Merging, mappings: usize) -> SoftMmu {
        let layout = Layout::from_size_align(capacity, BASE_PAGE).expect("a size");
        // Memory that is not obtained yet is not zero here, so that its use shows.
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(layout) };
        assert!(!memory.is_null());
        // SAFETY: the memory was just allocated with this size.
        unsafe { memory.write_bytes(0xee, capacity) };
        let obtained = vec![false; capacity / BASE_PAGE];
        let huge = vec![false; capacity.div_ceil(HUGE_PAGE)];
        let state = State { obtained, huge, next_address: 1 << 40, ..State::default() };
        SoftMmu {
            memory,
            layout,
            merging,
            cow_mappings: false,
            parkings: 1,
            touched: None,
            budget: MappingBudget::new(mappings.saturating_add(MARGIN_MAPPINGS)),
            alone: AtomicBool::new(false),
            tracks: AtomicBool::new(true),
            writes_through: AtomicBool::new(true),
            state: Mutex::new(state),
            resumed: AtomicU32::new(0),
            stopped: AtomicU32::new(0),
        }
    }

    /// The same MMU, with CoW mappings.
    pub(crate) fn with_cow_mappings(mut self) -> SoftMmu {
        self.cow_mappings = self.merging == Merging::Merge;
        self
    }

    /// The same MMU, but only every other region can hold the users of its memory.
    pub(crate) fn with_few_parkings(mut self) -> SoftMmu {
        self.parkings = 2;
        self
    }

    /// Sets whether the calling thread counts as the only one of the program.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// Has the kernel refuse all writes where the program may not write.
    pub(crate) fn refuse_writes_through(&self) {
        self.writes_through.store(false, Ordering::Relaxed);
    }

    /// Sets whether the engine can start to track writes from now on.
    pub(crate) fn set_tracking(&self, tracks: bool) {
        self.tracks.store(tracks, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        step();
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes a call of this kind fail, after the given number of others of its kind. `None` makes no call fail.
    pub(crate) fn fail(&self, failure: Option<(Call, usize)>) {
        self.state().failure = failure;
    }

    /// Makes the next call of this kind fail, too, once the first failure has happened.
    pub(crate) fn fail_next(&self, call: Call) {
        self.state().next_failure = Some(call);
    }

    /// Lets another thread of the program write `value` to `address` when a call to give or take the right to write has
    /// failed, if it may write there.
    pub(crate) fn write_after_failure(&self, address: usize, value: u8) {
        self.state().writer = Some((address, value));
    }

    /// Whether that thread has written.
    pub(crate) fn has_written(&self) -> bool {
        self.state().writer.is_none()
    }

    /// Whether the failure has yet to happen.
    pub(crate) fn failure_pending(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Stops the thread that makes the next call of this kind, until [`SoftMmu::go_on`].
    pub(crate) fn stop_at(&self, call: Call) {
        self.state().stop = Some(call);
    }

    /// Waits until a thread has stopped.
    pub(crate) fn until_it_stops(&self) {
        drop(self.wait(&self.stopped, |state| !state.is_stopped));
    }

    /// Lets the stopped thread go on.
    pub(crate) fn go_on(&self) {
        self.state().is_stopped = false;
        SoftMmu::ring(&self.stopped);
    }

    /// Waits while `goes_on` returns true. It is checked again when another thread rings `queue`.
    fn wait(&self, queue: &AtomicU32, goes_on: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let started = Instant::now();
        loop {
            let rung = queue.load(Ordering::SeqCst);
            let state = self.state();
            if !goes_on(&state) {
                return state;
            }
            drop(state);
            assert!(started.elapsed() < PATIENCE, "it waits for ever");
            sync::wait_at_most(queue, rung, PATIENCE);
        }
    }

    /// Wakes the threads that wait on a queue, so that they check again.
    fn ring(queue: &AtomicU32) {
        queue.fetch_add(1, Ordering::SeqCst);
        sync::wake(queue, u32::MAX >> 1);
    }

    /// Lets other threads of the program store these values at these addresses when private pages were taken away.
    pub(crate) fn store_when_taken(&self, stores: impl Into<Vec<(usize, u8)>>) {
        self.state().stores = stores.into();
    }

    /// Lets other threads of the program store these values when the engine has shown a new CoW mapping.
    pub(crate) fn store_when_shown(&self, stores: impl Into<Vec<(usize, u8)>>) {
        self.state().stores_when_shown = stores.into();
    }

    /// Lets other threads of the program store these values when the engine has looked for an unmarked private page.
    pub(crate) fn store_when_looked(&self, stores: impl Into<Vec<(usize, u8)>>) {
        self.state().stores_when_looked = stores.into();
    }

    /// Removes and returns the stores that have not happened.
    pub(crate) fn stores_left(&self) -> Vec<(usize, u8)> {
        std::mem::take(&mut self.state().stores)
    }

    /// Watches from now on whether any page in a range of addresses loses the right to be written.
    pub(crate) fn watch(&self, range: std::ops::Range<usize>) {
        let mut state = self.state();
        (state.watched, state.was_protected) = (range.start / BASE_PAGE..range.end / BASE_PAGE, false);
    }

    /// Whether any watched page has lost it.
    pub(crate) fn was_protected(&self) -> bool {
        self.state().was_protected
    }

    /// How many calls of this kind were made.
    pub(crate) fn calls(&self, call: Call) -> usize {
        self.state().calls.get(&call).copied().unwrap_or(0)
    }

    /// The memory that the page at `address` shows; `None` if nothing is mapped.
    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        self.state().pages.get(&(address / BASE_PAGE)).copied()
    }

    /// How many mappings (VMAs) the range consists of.
    pub(crate) fn mappings(&self, at: usize, len: usize, block: usize) -> usize {
        let pages: Vec<_> = (at..at + len).step_by(BASE_PAGE).map(|address| (address, self.page(address))).collect();
        let is_joined = |(_, left): (usize, Option<Page>), (at, right): (usize, Option<Page>)| {
            let begins_block = matches!(right, Some(Page::Memory { .. })) && at.is_multiple_of(block);
            let continues = left.map(|page| page.map(|start| start + BASE_PAGE)) == right;
            continues && !(begins_block && self.merging == Merging::Separate)
        };
        1 + pages.windows(2).filter(|pair| !is_joined(pair[0], pair[1])).count()
    }

    /// Waits until the page at `address` is not held.
    fn state_at(&self, address: usize) -> MutexGuard<'_, State> {
        self.wait(&self.resumed, |state| state.held.contains(&(address / BASE_PAGE)))
    }

    /// Whether the page at `address` is held.
    pub(crate) fn is_held(&self, address: usize) -> bool {
        self.state().held.contains(&(address / BASE_PAGE))
    }

    /// Whether any page is held.
    pub fn holds_anything(&self) -> bool {
        !self.state().held.is_empty()
    }

    pub(crate) fn load(&self, address: usize) -> Result<u8, Fault> {
        let mut state = self.state_at(address);
        let number = address / BASE_PAGE;
        let start = match state.pages.get(&number) {
            None | Some(Page::Hidden) => return Err(Fault),
            Some(Page::Zeros) => None,
            Some(&Page::Memory { start, .. } | &Page::CowMapping { start, .. }) => Some(start),
        };
        match (state.private.get(&number), start) {
            (Some(page), _) => Ok(page[address % BASE_PAGE]),
            (None, None) => Ok(0),
            (None, Some(start)) => {
                self.touch(&mut state, start, "looked at");
                // SAFETY: the engine's calls check the offsets of pages when they map them.
                Ok(unsafe { self.memory.add(start + address % BASE_PAGE).read_volatile() })
            }
        }
    }

    pub(crate) fn store(&self, address: usize, value: u8) -> Result<(), Fault> {
        // The state stays locked during the store. So a call that takes the right to write away waits for stores under
        // way, as a TLB flush does.
        let mut state = self.state_at(address);
        let place = self.place_to_write(&mut state, address).ok_or(Fault)?;
        // SAFETY: the place lies within a page of this memory or a private one, which stays as long as the state is
        // locked.
        unsafe { place.write_volatile(value) };
        Ok(())
    }

    /// The place that a write of the program goes to, which is valid up to the end of its page. Makes a private copy of
    /// the page first, as the kernel does. Returns `None` if the program may not write there.
    fn place_to_write(&self, state: &mut State, address: usize) -> Option<*mut u8> {
        let (number, within) = (address / BASE_PAGE, address % BASE_PAGE);
        let below = match state.pages.get(&number) {
            Some(&Page::CowMapping { start, access: Access::ReadWrite }) => Some(start),
            Some(Page::Zeros) if state.plain.contains(&number) => None,
            Some(&Page::Memory { start, access: Access::ReadWrite }) => {
                self.touch(state, start, "stored to");
                // SAFETY: the engine's calls check the offsets of pages when they map them.
                return Some(unsafe { self.memory.add(start + within) });
            }
            None
            | Some(
                Page::Zeros
                | Page::Hidden
                | Page::Memory { access: Access::Read, .. }
                | Page::CowMapping { access: Access::Read, .. },
            ) => return None,
        };
        let mut faults = u64::from(state.unwritten.remove(&number));
        if !state.private.contains_key(&number) {
            let page = self.copy_below(state, below);
            state.private.insert(number, page);
            faults += 1;
        }
        state.faults += faults;
        state.faults_of_program += faults;
        state.private.get_mut(&number).map(|page| &raw mut page[within])
    }

    /// A copy of the page of memory at the offset `below`, or of zeros.
    fn copy_below(&self, state: &mut State, below: Option<usize>) -> Box<PageBytes> {
        let Some(start) = below else { return Box::new(ZERO_PAGE) };
        self.touch(state, start, "copied");
        Box::new(self.bytes_at(state, start))
    }

    /// Whether a page has memory. If touches allocate memory, a page also has some that the engine has written to
    /// through the direct map.
    fn has_memory(&self, state: &State, page: usize) -> bool {
        // SAFETY: the page lies inside the memory.
        let word = || unsafe { self.memory.add(page * BASE_PAGE).cast::<u64>().read_volatile() };
        state.obtained[page] || self.touched.is_some() && word() != u64::from_ne_bytes([0xee; 8])
    }

    /// Allocates the memory at `start` if touches do so; panics if it has none and they do not.
    fn touch(&self, state: &mut State, start: usize, what: &str) {
        if self.has_memory(state, start / BASE_PAGE) {
            return;
        }
        let len = self.touched.unwrap_or_else(|| panic!("{what} memory that was never obtained: SIGBUS"));
        self.give(state, start / len * len, len);
        state.huge[start / HUGE_PAGE] |= len == HUGE_PAGE;
    }

    /// Whether the page at `offset` was obtained, and whether it is part of a huge page.
    pub(crate) fn memory_at(&self, offset: usize) -> (bool, bool) {
        let state = self.state();
        (state.obtained[offset / BASE_PAGE], state.huge[offset / HUGE_PAGE])
    }
}

fn pages_of(at: usize, len: usize) -> std::ops::Range<usize> {
    assert!(at.is_multiple_of(BASE_PAGE) && len.is_multiple_of(BASE_PAGE) && len > 0);
    at / BASE_PAGE..(at + len) / BASE_PAGE
}

impl Drop for SoftMmu {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.memory, self.layout) };
    }
}
