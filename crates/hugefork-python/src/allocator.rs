//! numpy's memory from a pool (NEP 49).
//!
//! ```text
//!   malloc ─▶ small, or in a child of fork(2) ───────────────────────────────▶ the handler before
//!          └▶ a kept region of about that size ─▶ else a new one ─▶ else ────▶ the handler before
//!   calloc ─▶ the same, with a kept region's contents discarded: its blocks come from the zeroed stock
//!   free ───▶ keep the region, or give it back if enough are kept or Python has it; in a child: nothing
//! ```
//! Each block of numpy is a region, and the whole block is writable when numpy gets it: numpy fills
//! memory by system calls, and the kernel raises no fault signal when a system call writes. If
//! children of `fork(2)` inherit the pool's regions, a fork takes a snapshot of them, and writes to
//! them copy pages, which works in system calls, too. A pool that cannot copy pages copies kept
//! regions when they are used again.
//!
//! Arrays that are used together must not begin at the same offset of their huge pages: otherwise
//! simultaneous accesses hit the same cache sets and memory banks. An addition of arrays of 256 MB
//! took 47 ms with equal offsets, and 28 ms with offsets that differ by a page and a line. So
//! consecutive blocks begin at different offsets.
//!
//! numpy calls these functions from any thread, mostly with the interpreter's lock. The functions
//! take a lock of their own, and while they hold that lock, they neither call Python nor access
//! memory of a region.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use hugefork::{Children, CopyGrain, RegionOptions};
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::Failure;
use crate::pool::Pool;
use crate::region::Region;

/// The index of `PyDataMem_SetHandler` in numpy's C API table. These indices never change.
const SET_HANDLER: usize = 304;
/// The index of `PyDataMem_GetHandler` in the same table.
const GET_HANDLER: usize = 305;

/// The name that numpy gives to capsules of handlers.
const CAPSULE: &CStr = c"mem_handler";

/// numpy's struct `PyDataMemAllocator`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

// SAFETY: numpy demands that any thread may call the functions of a handler.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// numpy's struct `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    functions: Functions,
}

/// numpy's struct `PyArrayObject_fields`. Its layout is part of numpy's binary interface, since functions in numpy's
/// headers read its fields; `handler` exists since numpy 1.22.
#[repr(C)]
struct Array {
    head: ffi::PyObject,
    data: *mut c_void,
    count_of_dimensions: c_int,
    between: [*mut c_void; 4],
    flags: c_int,
    weak_references: *mut c_void,
    buffer_info: *mut c_void,
    /// The capsule of the handler that has allocated `data`; null if the array does not own `data`.
    handler: *mut ffi::PyObject,
}

/// A handler and the data that it uses, in a box that the handler's capsule owns.
#[repr(C)]
struct Owned {
    handler: Handler,
    blocks: Blocks,
}

/// The distance between two start offsets: a page and a line.
const STEP: usize = 4096 + 64;

/// The number of start offsets: more than the arrays of one operation.
const PLACES: usize = 16;

/// The largest start offset.
const ROOM: usize = STEP * (PLACES - 1);

/// The regions that are numpy's blocks.
struct Blocks {
    pool: hugefork::Pool,
    /// Minimum size of a block that is a region; smaller blocks come from the handler `before`.
    least: usize,
    /// Maximum total size of the regions that are kept for later blocks.
    keep: usize,
    state: Mutex<State>,
    /// The address range of all regions; no other block of numpy lies in it.
    low: AtomicUsize,
    high: AtomicUsize,
    /// Counts blocks, so that each block begins at another offset than the block before.
    next_place: AtomicUsize,
    /// The process that the regions belong to.
    process: u32,
    counts: Counts,
    before: Functions,
    /// Keeps the handler `before` alive.
    _before: Py<PyAny>,
}

#[derive(Default)]
struct State {
    /// Regions by the addresses of their blocks.
    live: HashMap<usize, Live>,
    kept: Vec<Arc<hugefork::Region>>,
    kept_bytes: usize,
}

/// The region of a block that numpy uses.
struct Live {
    region: Arc<hugefork::Region>,
    /// The region as an object, if Python has asked for it. It counts as viewed until numpy frees the block. It is not
    /// kept for later blocks, since snapshots may have it.
    object: Option<Py<Region>>,
}

#[derive(Default)]
struct Counts {
    recycled: AtomicU64,
    made: AtomicU64,
    refused: AtomicU64,
}

/// The place of a block of numpy.
enum Place {
    /// The handler `before` has allocated it.
    Before,
    /// A region, which has this many bytes from the start of the block on.
    Region { len: usize },
    /// In a child of `fork(2)`: probably a region, but the child lacks its memory or cannot find its length.
    Lost,
}

/// The required contents of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    Any,
    Zeros,
}

impl Blocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a child of `fork(2)`: there, regions are plain memory at most.
    fn is_in_child(&self) -> bool {
        std::process::id() != self.process
    }

    /// As [`Blocks::state`], but `None` if a thread that a child does not have holds the lock.
    fn state_unless_lost(&self) -> Option<MutexGuard<'_, State>> {
        if !self.is_in_child() {
            return Some(self.state());
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a block may be a region: it lies in the address range of all regions.
    fn may_be_ours(&self, block: *mut c_void) -> bool {
        (self.low.load(Ordering::Relaxed)..self.high.load(Ordering::Relaxed)).contains(&block.addr())
    }

    /// A block of `size` bytes; `None` if the handler `before` must serve the request.
    fn give(&self, size: usize, contents: Contents) -> Option<NonNull<c_void>> {
        if size < self.least || self.is_in_child() {
            return None;
        }
        let block = self.pool.block_size().bytes();
        let least = size.checked_next_multiple_of(block)?;
        // Different start offsets are used only if they add at most an eighth to the block.
        let room = if size / 8 >= ROOM.max(block) { ROOM } else { 0 };
        let len = size.checked_add(room)?.checked_next_multiple_of(block)?;
        let made = || self.make(len).or_else(|| (least < len).then(|| self.make(least)).flatten());
        let Some(region) = self.recycle(len, contents).or_else(made) else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let begin = region.as_mut_ptr();
        self.low.fetch_min(begin.addr(), Ordering::Relaxed);
        self.high.fetch_max(begin.addr() + region.len(), Ordering::Relaxed);
        let place = STEP * (self.next_place.fetch_add(1, Ordering::Relaxed) % PLACES);
        let address = begin.wrapping_add(if place <= region.len() - size { place } else { 0 });
        self.state().live.insert(address.addr(), Live { region, object: None });
        NonNull::new(address.cast())
    }

    /// Takes the kept region that fits best, if a block of `len` bytes wastes at most a quarter of that region.
    fn recycle(&self, len: usize, contents: Contents) -> Option<Arc<hugefork::Region>> {
        let region = {
            let mut state = self.state();
            let fits = |region: &hugefork::Region| (len..=len + len / 4).contains(&region.len());
            let kept = state.kept.iter().enumerate().rev().filter(|(_, region)| fits(region));
            let (nth, _) = kept.min_by_key(|(_, region)| region.len())?;
            let region = state.kept.remove(nth);
            state.kept_bytes -= region.len();
            region
        };
        if contents == Contents::Zeros {
            region.discard(0..region.len()).ok()?;
            region.populate().ok()?;
        } else if self.pool.children() == Children::Inherit && !self.pool.has_page_grain() {
            region.prepare_write(0..region.len()).ok()?;
        }
        self.counts.recycled.fetch_add(1, Ordering::Relaxed);
        Some(region)
    }

    /// Makes a new region. If the pool is full, frees all kept regions first.
    fn make(&self, len: usize) -> Option<Arc<hugefork::Region>> {
        let grain = match self.pool.children() {
            Children::Inherit => CopyGrain::Page,
            _ => CopyGrain::Auto,
        };
        let options = RegionOptions::new().copy_grain(grain);
        let make = || self.pool.region_with(len, options).and_then(|region| region.populate().map(|()| region)).ok();
        let region = make().or_else(|| (self.give_back() > 0).then(make).flatten())?;
        self.counts.made.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(region))
    }

    /// Frees all kept regions. Returns their size in bytes.
    fn give_back(&self) -> usize {
        let (kept, bytes) = {
            let mut state = self.state();
            (std::mem::take(&mut state.kept), std::mem::take(&mut state.kept_bytes))
        };
        drop(kept);
        bytes
    }

    /// Takes back a block that is a region; returns false for any other block.
    fn take_back(&self, block: *mut c_void) -> bool {
        if !self.may_be_ours(block) {
            return false;
        }
        if self.is_in_child() {
            // The memory of the region stays mapped.
            return !matches!(self.place_of(block), Place::Before);
        }
        let mut state = self.state();
        let Some(Live { region, object }) = state.live.remove(&block.addr()) else { return false };
        if object.is_none() && state.kept_bytes + region.len() <= self.keep {
            state.kept_bytes += region.len();
            state.kept.push(region);
            return true;
        }
        drop(state);
        if let Some(object) = object {
            object.get().release();
        }
        true
    }

    /// The region of a block as an object, the same one at each call; `None` if the block is no region. The caller has
    /// an array with this block.
    fn object_of(&self, py: Python<'_>, block: *mut c_void) -> PyResult<Option<Py<Region>>> {
        let region = {
            let Some(state) = self.state_unless_lost() else { return Ok(None) };
            match state.live.get(&block.addr()) {
                None => return Ok(None),
                Some(Live { object: Some(object), .. }) => return Ok(Some(object.clone_ref(py))),
                Some(Live { region, object: None }) => Arc::clone(region),
            }
        };
        // This calls Python, so it happens without the lock.
        let made = Py::new(py, Region::of_numpy(region))?;
        let Some(mut state) = self.state_unless_lost() else { return Ok(None) };
        let object = state.live.get_mut(&block.addr()).map(|live| &mut live.object);
        // Another thread may have made an object meanwhile; then this one is dropped, without the lock.
        Ok(object.map(|object| object.get_or_insert_with(|| made.clone_ref(py)).clone_ref(py)))
    }

    fn place_of(&self, block: *mut c_void) -> Place {
        if !self.may_be_ours(block) {
            return Place::Before;
        }
        let Some(state) = self.state_unless_lost() else { return Place::Lost };
        match state.live.get(&block.addr()) {
            None => Place::Before,
            Some(_) if self.is_in_child() && self.pool.children() == Children::HaveNothing => Place::Lost,
            Some(Live { region, .. }) => Place::Region { len: region.as_ptr().addr() + region.len() - block.addr() },
        }
    }
}

/// # Safety
/// The contract of all four functions: `context` belongs to this handler, which is alive, and this handler has
/// allocated `block`.
unsafe extern "C" fn malloc(context: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller vouches for `context`.
    let blocks = unsafe { &*context.cast::<Blocks>() };
    match blocks.give(size, Contents::Any) {
        Some(block) => block.as_ptr(),
        // SAFETY: the handler before is alive, too.
        None => unsafe { (blocks.before.malloc)(blocks.before.context, size) },
    }
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller vouches for `context`.
    let blocks = unsafe { &*context.cast::<Blocks>() };
    match count.checked_mul(size).and_then(|size| blocks.give(size, Contents::Zeros)) {
        Some(block) => block.as_ptr(),
        // SAFETY: the handler before is alive, too.
        None => unsafe { (blocks.before.calloc)(blocks.before.context, count, size) },
    }
}

unsafe extern "C" fn realloc(context: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller vouches for `context`.
    let blocks = unsafe { &*context.cast::<Blocks>() };
    let len = match blocks.place_of(block) {
        // SAFETY: the handler before, which is alive, has allocated it.
        Place::Before => return unsafe { (blocks.before.realloc)(blocks.before.context, block, size) },
        Place::Lost => return ptr::null_mut(),
        Place::Region { len } => len,
    };
    if size <= len {
        return block;
    }
    // SAFETY: the caller vouches for the arguments.
    let moved = unsafe { malloc(context, size) };
    if !moved.is_null() {
        // SAFETY: both blocks have at least this size, and no other thread uses them.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast::<u8>(), len) };
        blocks.take_back(block);
    }
    moved
}

unsafe extern "C" fn free(context: *mut c_void, block: *mut c_void, size: usize) {
    // SAFETY: the caller vouches for `context`.
    let blocks = unsafe { &*context.cast::<Blocks>() };
    if !blocks.take_back(block) {
        // SAFETY: the handler before, which is alive, has allocated it.
        unsafe { (blocks.before.free)(blocks.before.context, block, size) }
    }
}

/// Frees the handler's data. Python calls this function when it frees the capsule, so no array with a block of this
/// handler exists any more.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this function once, for the capsule that `NumpyAllocator::new` made from a box.
    unsafe {
        let owned = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr());
        if !owned.is_null() {
            drop(Box::from_raw(owned.cast::<Owned>()));
        }
    }
}

/// Returns a function of numpy's C API.
fn numpy_function(py: Python<'_>, place: usize) -> Result<*const c_void, Failure> {
    let module = py.import("numpy._core._multiarray_umath").or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let table = module.getattr("_ARRAY_API")?;
    // SAFETY: the capsule is numpy's and has no name; since numpy 1.22 the table has more entries than this index.
    let function = unsafe {
        let table = ffi::PyCapsule_GetPointer(table.as_ptr(), ptr::null()).cast::<*const c_void>();
        if table.is_null() { ptr::null() } else { *table.add(place) }
    };
    if function.is_null() {
        return Err(PyImportError::new_err("this numpy has no memory handlers: take 1.26 or newer").into());
    }
    Ok(function)
}

/// The handler that is active in this context.
fn current(py: Python<'_>) -> Result<Py<PyAny>, Failure> {
    // SAFETY: `PyDataMem_GetHandler` has this type.
    let get: unsafe extern "C" fn() -> *mut ffi::PyObject =
        unsafe { std::mem::transmute(numpy_function(py, GET_HANDLER)?) };
    // SAFETY: the function returns a new reference, or null with an exception.
    Ok(unsafe { Bound::from_owned_ptr_or_err(py, get()) }?.unbind())
}

/// A handler for numpy's memory.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct NumpyAllocator {
    capsule: Py<PyAny>,
    blocks: NonNull<Blocks>,
}

// SAFETY: the capsule owns the blocks, which any thread may use.
unsafe impl Send for NumpyAllocator {}
// SAFETY: as above.
unsafe impl Sync for NumpyAllocator {}

impl NumpyAllocator {
    fn blocks(&self) -> &Blocks {
        // SAFETY: the capsule owns the blocks, and all their changes happen under their locks.
        unsafe { self.blocks.as_ref() }
    }
}

#[pymethods]
impl NumpyAllocator {
    #[new]
    fn new(py: Python<'_>, pool: PyRef<'_, Pool>, least: usize, keep: usize) -> Result<NumpyAllocator, Failure> {
        let before_capsule = current(py)?;
        // SAFETY: numpy's capsule with that name points to a handler.
        let before = unsafe {
            let handler = ffi::PyCapsule_GetPointer(before_capsule.as_ptr(), CAPSULE.as_ptr()).cast::<Handler>();
            handler.as_ref().ok_or_else(|| PyErr::fetch(py))?.functions
        };
        let blocks = Blocks {
            pool: (*pool.pool.get()?).clone(),
            least: least.max(1),
            keep,
            state: Mutex::default(),
            low: AtomicUsize::new(usize::MAX),
            high: AtomicUsize::new(0),
            next_place: AtomicUsize::new(0),
            process: std::process::id(),
            counts: Counts::default(),
            before,
            _before: before_capsule,
        };
        let mut name = [0; 127];
        name.iter_mut().zip(b"hugefork").for_each(|(to, byte)| *to = *byte as c_char);
        let functions = Functions { context: ptr::null_mut(), malloc, calloc, realloc, free };
        let owned = Box::into_raw(Box::new(Owned { handler: Handler { name, version: 1, functions }, blocks }));
        // SAFETY: the box is new, and no other code knows it.
        let blocks = unsafe {
            let blocks = NonNull::from(&mut (*owned).blocks);
            (*owned).handler.functions.context = blocks.as_ptr().cast();
            blocks
        };
        // SAFETY: the new capsule owns the box; if no capsule could be made, this code frees the box.
        let capsule = unsafe {
            let made = ffi::PyCapsule_New(owned.cast(), CAPSULE.as_ptr(), Some(destroy));
            Bound::from_owned_ptr_or_err(py, made).inspect_err(|_| drop(Box::from_raw(owned)))?
        };
        Ok(NumpyAllocator { capsule: capsule.unbind(), blocks })
    }

    /// Makes this handler active in this context. Returns the handler that was active.
    fn install(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        set(py, &self.capsule)
    }

    /// Makes the handler active that `install` returned.
    #[staticmethod]
    fn restore(py: Python<'_>, before: Py<PyAny>) -> Result<(), Failure> {
        set(py, &before).map(drop)
    }

    /// Frees all kept regions. Returns their size in bytes.
    fn trim(&self, py: Python<'_>) -> usize {
        let blocks = self.blocks();
        py.detach(|| blocks.give_back())
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let blocks = self.blocks();
        let state = blocks.state();
        let live: usize = state.live.values().map(|live| live.region.len()).sum();
        let figures = [
            ("live", state.live.len() as u64),
            ("live_bytes", live as u64),
            ("kept_bytes", state.kept_bytes as u64),
            ("recycled", blocks.counts.recycled.load(Ordering::Relaxed)),
            ("made", blocks.counts.made.load(Ordering::Relaxed)),
            ("refused", blocks.counts.refused.load(Ordering::Relaxed)),
        ];
        drop(state);
        let dict = PyDict::new(py);
        figures.iter().try_for_each(|(name, figure)| dict.set_item(*name, *figure))?;
        Ok(dict)
    }
}

fn set(py: Python<'_>, capsule: &Py<PyAny>) -> Result<Py<PyAny>, Failure> {
    // SAFETY: `PyDataMem_SetHandler` has this type.
    let set: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject =
        unsafe { std::mem::transmute(numpy_function(py, SET_HANDLER)?) };
    // SAFETY: the function takes a capsule of a handler and returns a new reference, or null with an exception.
    Ok(unsafe { Bound::from_owned_ptr_or_err(py, set(capsule.as_ptr())) }?.unbind())
}

/// The region of an array that owns its memory, if that is the block of a [`NumpyAllocator`].
#[pyfunction]
pub(crate) fn region_of_numpy(array: &Bound<'_, PyAny>) -> PyResult<Option<Py<Region>>> {
    let py = array.py();
    if !array.is_instance(&py.import("numpy")?.getattr("ndarray")?)? {
        return Err(PyTypeError::new_err("give a numpy.ndarray"));
    }
    // SAFETY: the object is an array, and `Array` has the layout of its fields.
    let (data, capsule) = unsafe {
        let array = &*array.as_ptr().cast::<Array>();
        (array.data, array.handler)
    };
    // SAFETY: both calls take null or an object; the capsule lives as long as the array.
    let handler = unsafe {
        if capsule.is_null() || ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) == 0 {
            return Ok(None);
        }
        ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast::<Handler>()
    };
    // SAFETY: numpy's capsule with that name points to a handler. One with the function of this file is in an `Owned`.
    unsafe {
        let functions = &(*handler).functions;
        if !ptr::fn_addr_eq(functions.malloc, malloc as unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void) {
            return Ok(None);
        }
        (*functions.context.cast::<Blocks>()).object_of(py, data)
    }
}
