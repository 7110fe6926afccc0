//! Saves of checkpoints, and their manifests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugefork::Snapshot;
use hugefork_checkpoint::{Checkpoint, CheckpointError, Part, Save, Since};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyFileExistsError, PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::snapshot::RegionSnapshot;

/// Bytes between two reports of progress, if these are as many as are written in a hundredth of a second or fewer.
const BETWEEN_REPORTS: u64 = 64 << 20;

/// A checkpoint that was saved, to save others since.
#[pyclass(frozen, module = "hugefork._native")]
pub(crate) struct Saved(hugefork_checkpoint::Saved);

/// The bytes of an array: a snapshot, which may be closed meanwhile, or a buffer.
enum Source {
    Snapshot(Arc<Snapshot>),
    /// Address and length.
    Buffer(usize, usize),
}

/// An array: its name, the header of its numpy file, its bytes, the range of these, and the snapshot of the earlier
/// save.
type Array<'py> = (String, Vec<u8>, Bound<'py, PyAny>, usize, usize, Option<PyRef<'py, RegionSnapshot>>);

/// An earlier save, or a directory.
#[derive(FromPyObject)]
pub(crate) enum Earlier<'py> {
    Saved(PyRef<'py, Saved>),
    Directory(PathBuf),
}

/// Writes a checkpoint. Calls `progress` with the bytes that are done and the bytes in all; its exception ends the
/// save. Writes at most `at_most` bytes in a second.
#[pyfunction]
#[pyo3(signature = (directory, arrays, *, since, meta, at_most, progress))]
pub(crate) fn save_checkpoint(
    py: Python<'_>,
    directory: PathBuf,
    arrays: Vec<Array<'_>>,
    since: Option<Earlier<'_>>,
    meta: String,
    at_most: Option<u64>,
    progress: Py<PyAny>,
) -> Result<Saved, Failure> {
    let mut buffers = Vec::new();
    let mut sources = Vec::new();
    for (name, head, bytes, start, stop, older) in &arrays {
        let source = match bytes.cast::<RegionSnapshot>() {
            Ok(snapshot) => Source::Snapshot(snapshot.get().get()?),
            Err(_) => {
                let buffer = PyBuffer::<u8>::get(bytes)?;
                if !buffer.is_c_contiguous() {
                    return Err(PyValueError::new_err("give a contiguous buffer of bytes").into());
                }
                let source = Source::Buffer(buffer.buf_ptr().addr(), buffer.len_bytes());
                buffers.push(buffer);
                source
            }
        };
        // A closed one is replaced by the files.
        let older = older.as_ref().and_then(|older| older.get().ok());
        sources.push((name.as_str(), head.as_slice(), source, *start..*stop, older));
    }
    let (saved, other): (Option<&hugefork_checkpoint::Saved>, Option<&Path>) = match &since {
        Some(Earlier::Saved(saved)) => (Some(&saved.0), None),
        Some(Earlier::Directory(directory)) => (None, Some(directory)),
        None => (None, None),
    };
    let since = saved.map(Since::Save).or_else(|| other.map(Since::Directory));
    py.detach(|| {
        let parts = sources.iter().map(|(name, head, source, range, older)| {
            let part = match source {
                Source::Snapshot(snapshot) => Part::of_range(name, snapshot, range.clone()),
                Source::Buffer(_, 0) => Part::of_bytes(name, &[]),
                // SAFETY: the buffer is held until the save is done. It is a copy that only this save uses.
                Source::Buffer(at, len) => Part::of_bytes(name, unsafe {
                    std::slice::from_raw_parts(std::ptr::with_exposed_provenance(*at), *len)
                }),
            };
            let part = part.head(head);
            match older {
                Some(older) => part.since(older),
                None => part,
            }
        });
        let parts: Vec<_> = parts.collect();
        let (mut last, mut told) = ((0, Instant::now()), 0);
        let between = at_most.map_or(BETWEEN_REPORTS, |rate| BETWEEN_REPORTS.min(rate / 100));
        let mut report = |done: u64, total: u64| {
            if let Some(rate) = at_most {
                let end = last.1 + Duration::from_secs_f64((done - last.0) as f64 / rate as f64);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                last = (done, Instant::now());
            }
            if done - told >= between || done >= total {
                Python::attach(|py| progress.call1(py, (done, total)))?;
                told = done;
            }
            Ok(())
        };
        let save = Save::to(directory).meta(&meta).progress(&mut report);
        let save = if let Some(since) = since { save.since(since) } else { save };
        Ok(Saved(save.write(&parts)?))
    })
}

/// Calls `work` with the manifest of a checkpoint, checked. Saves that replace the checkpoint leave its files in place
/// meanwhile.
#[pyfunction]
pub(crate) fn read_checkpoint<'py>(directory: PathBuf, work: Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, Failure> {
    let checkpoint = work.py().detach(|| Checkpoint::open(directory))?;
    Ok(work.call1((checkpoint.manifest(),))?)
}

/// Raises FileExistsError if the directory may belong to another program.
#[pyfunction]
pub(crate) fn check_directory(directory: PathBuf) -> Result<(), Failure> {
    Ok(hugefork_checkpoint::check_directory(directory)?)
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        let text = error.to_string();
        Failure::Python(match error {
            CheckpointError::Region(error) => return error.into(),
            CheckpointError::Ended(error) => return error.into(),
            // Python picks the class by the error number, and adds the name of the file.
            CheckpointError::Io { path, source, .. } => match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, source.to_string(), path.into_os_string())),
                None => PyOSError::new_err(text),
            },
            CheckpointError::Missing { path, .. } => {
                let what = "there is no checkpoint: give the directory of a save that is done; there is not a file";
                PyFileNotFoundError::new_err((2, what, path.into_os_string()))
            }
            CheckpointError::Foreign { path, why, .. } => {
                let what = format!("{why}; save to another directory, or remove it if nobody needs it");
                PyFileExistsError::new_err((17, what, path.into_os_string()))
            }
            CheckpointError::Part { .. } => PyValueError::new_err(text),
            _ => Python::attach(|py| {
                let class = py.import("hugefork._errors").and_then(|errors| errors.getattr("CheckpointError"));
                class.and_then(|class| class.call1((text,))).map_or_else(|error| error, PyErr::from_value)
            }),
        })
    }
}
