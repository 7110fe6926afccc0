//! Regions: the memory of arrays.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hugefork::{Children, RegionError, RegionOptions};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::Failure;
use crate::interrupt::{interruptible, look_after_signals};
use crate::operations::Operations;
use crate::options::{advice, region_options};
use crate::pin::Pin;
use crate::shared::{Memory, Shared};
use crate::snapshot::RegionSnapshot;
use crate::stats;

/// `copy_ahead` checks the pool's free blocks again after copying this fraction of the pool: one in 64 blocks.
const LITTLE: usize = 64;

/// Maximum number of blocks that `copy_ahead` copies between two of these checks.
const MOST_AHEAD: usize = 32;

/// Memory of a pool: zeros at first; a write to a block of the region takes a block from the pool. A region has the
/// buffer protocol, writable.
///
/// Each array of `Pool.empty` lies in a region of its own. A region lives as long as a view of the region. `close()`
/// frees the region earlier; `close()` raises BufferError while views exist.
#[pyclass(frozen, weakref, module = "hugefork")]
pub(crate) struct Region {
    region: Shared<hugefork::Region>,
    nbytes: usize,
    address: usize,
}

impl Region {
    pub(crate) fn new(region: hugefork::Region) -> Region {
        let (nbytes, address) = (region.len(), region.as_ptr().addr());
        Region { region: Shared::new("region", region), nbytes, address }
    }

    /// A region that is a block of numpy. It has a view, so that nobody closes it, until `release` is called.
    pub(crate) fn of_numpy(region: Arc<hugefork::Region>) -> Region {
        let (nbytes, address) = (region.len(), region.as_ptr().addr());
        Region { region: Shared::viewed("region", region), nbytes, address }
    }

    pub(crate) fn release(&self) {
        self.region.release();
    }

    pub(crate) fn get(&self) -> Result<Arc<hugefork::Region>, Failure> {
        self.region.get()
    }

    /// Runs a call on a range without the interpreter's lock.
    fn on_range<T: Send, E: Send>(
        &self,
        py: Python<'_>,
        range: Range<usize>,
        call: impl FnOnce(&hugefork::Region, Range<usize>) -> Result<T, E> + Send,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let region = self.get()?;
        Ok(py.detach(|| call(&region, range))?)
    }
}

#[pymethods]
impl Region {
    /// The region's length in bytes, a multiple of the block size.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The address of the region's first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Number of living views of the region: arrays and memoryviews, but not views of these views.
    #[getter]
    fn exports(&self) -> usize {
        self.region.exports()
    }

    /// Whether the region was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.region.is_closed()
    }

    /// Frees the region's memory.
    ///
    /// Raises BufferError while arrays or memoryviews of the region exist. A second call does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.region.close(py)
    }

    fn __enter__(slf: Py<Region>) -> Py<Region> {
        slf
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, py: Python<'_>, _how: &Bound<'_, pyo3::types::PyTuple>) -> Result<(), Failure> {
        self.close(py)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> Result<(), Failure> {
        let memory = |region: &hugefork::Region| {
            Ok(Memory { address: region.as_mut_ptr().cast(), len: region.len(), is_read_only: false })
        };
        // SAFETY: Python passes a view to fill; the addresses of the region are valid as long as the region lives.
        unsafe { slf.get().region.export(slf.clone().into_any(), view, flags, memory) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.region.release();
    }

    fn __repr__(&self) -> Result<String, Failure> {
        let Ok(region) = self.get() else { return Ok("<hugefork.Region, closed>".to_owned()) };
        let (name, nbytes) = (region.pool().name(), self.nbytes);
        let revoked = if region.is_revoked() { ", parts of which were taken away" } else { "" };
        Ok(format!("<hugefork.Region of pool '{name}': {nbytes} bytes, {} live view(s){revoked}>", self.exports()))
    }

    fn pool_name(&self) -> Result<String, Failure> {
        Ok(self.get()?.pool().name().to_owned())
    }

    /// Whether a child of `fork(2)` has the region.
    fn is_inherited(&self) -> Result<bool, Failure> {
        Ok(self.get()?.pool().children() == Children::Inherit)
    }

    #[pyo3(signature = (threads, progress))]
    fn populate(&self, py: Python<'_>, threads: usize, progress: Option<Py<PyAny>>) -> Result<(), Failure> {
        let region = self.get()?;
        let tell = |done: usize| {
            look_after_signals(|py| progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (done,)).map(drop)));
        };
        interruptible(py, || region.populate_with(threads, tell))
    }

    fn prepare_write(&self, py: Python<'_>, start: usize, stop: usize) -> Result<(), Failure> {
        self.on_range(py, start..stop, |region, range| region.prepare_write(range))
    }

    fn prepare_snapshot(&self, py: Python<'_>) -> Result<(), Failure> {
        let region = self.get()?;
        Ok(py.detach(|| region.prepare_snapshot())?)
    }

    /// Copies the blocks of a range that are shared with snapshots, so that later writes need not copy these blocks.
    /// Returns false when the pool has few free blocks left: copying the rest would revoke blocks of those snapshots.
    fn copy_ahead(&self, py: Python<'_>, start: usize, stop: usize) -> Result<bool, Failure> {
        let region = self.get()?;
        let block = region.pool().block_size().bytes();
        let at_once = (region.pool().capacity() / block / LITTLE).clamp(1, MOST_AHEAD);
        py.detach(|| {
            for (nth, at) in (start..stop).step_by(block).enumerate() {
                // The check takes as long as copying some blocks, so it is not made for each block. The limit is four
                // times the blocks until the next check, because writers take blocks meanwhile, too.
                if nth % at_once == 0 && region.pool().stats().blocks_free < 4 * at_once {
                    return Ok(false);
                }
                region.prepare_write(at..stop.min(at + block))?;
            }
            Ok(true)
        })
    }

    fn discard(&self, py: Python<'_>, start: usize, stop: usize) -> Result<(), Failure> {
        self.on_range(py, start..stop, |region, range| region.discard(range))
    }

    fn lazy_free<'py>(&self, py: Python<'py>, start: usize, stop: usize) -> Result<Bound<'py, PyDict>, Failure> {
        let came = self.on_range(py, start..stop, |region, range| region.lazy_free(range))?;
        Ok(stats::of_lazy_free(py, &came)?)
    }

    fn cancel_lazy_free(&self, py: Python<'_>, start: usize, stop: usize) -> Result<usize, Failure> {
        self.on_range(py, start..stop, |region, range| region.cancel_lazy_free(range))
    }

    fn pin(&self, py: Python<'_>, start: usize, stop: usize) -> Result<Pin, Failure> {
        self.on_range(py, start..stop, |region, range| region.pin_owned(range)).map(Pin::new)
    }

    fn advise(&self, word: &str) -> Result<(), Failure> {
        self.get()?.advise(advice(word)?);
        Ok(())
    }

    /// Makes forks, snapshots and resets of the region wait for operations. A region has one `Operations`, which cannot
    /// be changed.
    ///
    /// Raises AnotherOperationsError.
    fn set_operations(&self, operations: PyRef<'_, Operations>) -> Result<(), Failure> {
        Ok(self.get()?.set_operations(&operations.operations)?)
    }

    fn is_revoked(&self) -> Result<bool, Failure> {
        Ok(self.get()?.is_revoked())
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let region = self.get()?;
        let stats = py.detach(|| region.stats());
        Ok(stats::of_region(py, &stats)?)
    }

    /// Reads from a descriptor into the range: from the descriptor's position, or from `offset` of a file.
    fn read_from(
        &self,
        py: Python<'_>,
        fd: c_int,
        start: usize,
        stop: usize,
        offset: Option<u64>,
    ) -> Result<usize, Failure> {
        let fd = borrowed(fd)?;
        self.on_range(py, start..stop, |region, range| match offset {
            Some(offset) => region.read_from_at(fd, range, offset),
            None => region.read_from(fd, range),
        })
    }

    /// Byte ranges that differ from the snapshot.
    fn changed_since(
        &self,
        py: Python<'_>,
        older: PyRef<'_, RegionSnapshot>,
        by: &str,
    ) -> Result<Vec<(usize, usize)>, Failure> {
        let (region, older) = (self.get()?, older.get()?);
        py.detach(|| {
            let changes = region.changed_since(&older)?;
            crate::snapshot::listed(&changes, by)
        })
    }
}

/// Borrows a descriptor from Python.
pub(crate) fn borrowed(fd: c_int) -> Result<BorrowedFd<'static>, Failure> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is not a descriptor: give one that is open")).into());
    }
    // SAFETY: the number is not -1. The kernel checks at each call whether the descriptor is open.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Takes snapshots of several different regions at one moment.
#[pyfunction]
pub(crate) fn snapshot_all(
    py: Python<'_>,
    regions: Vec<PyRef<'_, Region>>,
    reserve: bool,
) -> Result<Vec<RegionSnapshot>, Failure> {
    let regions = regions.iter().map(|region| region.get()).collect::<Result<Vec<_>, _>>()?;
    let options = region_options(reserve, None, "auto", false)?;
    let made = py.detach(|| {
        let regions: Vec<&hugefork::Region> = regions.iter().map(|region| &**region).collect();
        hugefork::Region::snapshot_all_with(&regions, options)
    })?;
    Ok(made.into_iter().map(RegionSnapshot::new).collect())
}

/// Resets several different regions at one moment, each region to the snapshot given for it.
#[pyfunction]
pub(crate) fn reset_all(
    py: Python<'_>,
    regions: Vec<PyRef<'_, Region>>,
    to: Vec<PyRef<'_, RegionSnapshot>>,
) -> Result<(), Failure> {
    let regions = regions.iter().map(|region| region.get()).collect::<Result<Vec<_>, _>>()?;
    let goals = to.iter().map(|snapshot| snapshot.get()).collect::<Result<Vec<_>, _>>()?;
    py.detach(|| {
        let pairs: Vec<_> = regions.iter().zip(&goals).map(|(region, goal)| (&**region, &**goal)).collect();
        Ok(hugefork::Region::reset_all(&pairs)?)
    })
}

/// A region or a snapshot, which can both be forked.
enum Source {
    Region(Arc<hugefork::Region>),
    Snapshot(Arc<hugefork::Snapshot>),
}

/// Forks several regions and snapshots. The regions are different and are forked at one moment.
#[pyfunction]
#[pyo3(signature = (sources, *, reserve, max_cow_bytes, copy_grain, calls_wait))]
pub(crate) fn fork_all(
    py: Python<'_>,
    sources: Vec<Bound<'_, PyAny>>,
    reserve: bool,
    max_cow_bytes: Option<usize>,
    copy_grain: &str,
    calls_wait: bool,
) -> Result<Vec<Region>, Failure> {
    let options = region_options(reserve, max_cow_bytes, copy_grain, calls_wait)?;
    let sources = sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let forks = py.detach(|| {
        loop {
            match fork_once(&sources, options) {
                // The pool is full, so it revoked a part of a snapshot that this call took of a region, before the fork
                // of that snapshot. The next attempt takes new snapshots, of the present contents.
                Err(RegionError::Revoked) if !sources.iter().any(is_revoked) => {}
                forks => return forks,
            }
        }
    })?;
    Ok(forks.into_iter().map(Region::new).collect())
}

fn fork_once(sources: &[Source], options: RegionOptions) -> Result<Vec<hugefork::Region>, RegionError> {
    let regions: Vec<&hugefork::Region> = sources.iter().filter_map(region).collect();
    if let ([one], 1) = (&regions[..], sources.len()) {
        return Ok(vec![one.fork_with(options)?]);
    }
    let mut snapshots = hugefork::Region::snapshot_all(&regions)?.into_iter();
    let forks = sources.iter().map(|source| match source {
        Source::Region(_) => snapshots.next().expect("each region is in the cut").fork_with(options),
        Source::Snapshot(snapshot) => snapshot.fork_with(options),
    });
    forks.collect()
}

fn source(any: &Bound<'_, PyAny>) -> Result<Source, Failure> {
    if let Ok(region) = any.cast::<Region>() {
        return Ok(Source::Region(region.get().get()?));
    }
    let snapshot = any.cast::<RegionSnapshot>().map_err(|_| PyTypeError::new_err("only regions and snapshots fork"))?;
    Ok(Source::Snapshot(snapshot.get().get()?))
}

fn region(source: &Source) -> Option<&hugefork::Region> {
    if let Source::Region(region) = source { Some(region) } else { None }
}

fn is_revoked(source: &Source) -> bool {
    match source {
        Source::Region(region) => region.is_revoked(),
        Source::Snapshot(snapshot) => snapshot.is_revoked(),
    }
}

/// Installs the engine's fault handler again, in front of handlers installed since. Does nothing before the first pool.
#[pyfunction]
pub(crate) fn reinstall_fault_handler() -> Result<(), Failure> {
    Ok(hugefork::reinstall_fault_handler()?)
}
