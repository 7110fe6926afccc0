//! Errors of the engine as exceptions: `hugefork._errors` has a class for each code.

use hugefork::{BuildError, ErrorCode, ImportError, RegionError, ResetError, SizeError, SystemError, TransferError};
use pyo3::exceptions::{PyImportError, PyOSError};
use pyo3::prelude::*;

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Number of bytes done before the failure, for calls that can fail half way.
    Engine {
        code: ErrorCode,
        errno: i32,
        text: String,
        done: Option<usize>,
    },
    Python(PyErr),
}

impl Failure {
    fn engine(error: &(dyn std::error::Error + 'static), code: ErrorCode) -> Failure {
        let errno = refused(error).map_or(code.errno(), SystemError::raw_os_error);
        Failure::Engine { code, errno, text: error.to_string(), done: done(error) }
    }
}

/// Number of bytes done before the failure, if the error reports that number.
fn done(error: &(dyn std::error::Error + 'static)) -> Option<usize> {
    let transfer = error.downcast_ref().map(|error: &TransferError| error.done);
    transfer.or_else(|| error.downcast_ref().map(|error: &ResetError| error.done))
}

/// The kernel's refusal, if that is the reason of the error. An error that is transparent for another error does not
/// report that other error as its source.
fn refused<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a SystemError> {
    if let Some(RegionError::System(refused)) = error.downcast_ref() {
        return Some(refused);
    }
    if let Some(BuildError::System(refused)) = error.downcast_ref() {
        return Some(refused);
    }
    if let Some(ImportError::System(refused)) = error.downcast_ref() {
        return Some(refused);
    }
    error.downcast_ref().or_else(|| error.source().and_then(refused))
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Python(error)
    }
}

macro_rules! from_engine {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::engine(&error, error.code())
            }
        }
    )*};
}

from_engine!(SizeError, BuildError, RegionError, ResetError, TransferError, ImportError, SystemError);

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match ErrorCode::of(&error) {
            Some(code) => Failure::engine(&error, code),
            None => Failure::Python(match error.raw_os_error() {
                // Python picks the exception class by the error number.
                Some(number) => PyOSError::new_err((number, error.to_string())),
                None => error.into(),
            }),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let (code, errno, text, done) = match failure {
            Failure::Python(error) => return error,
            Failure::Engine { code, errno, text, done } => (code, errno, text, done),
        };
        Python::attach(|py| {
            let made = py.import("hugefork._errors").and_then(|errors| {
                errors.getattr("_make")?.call1((code.as_str(), code.number(), errno, text.as_str(), done))
            });
            match made {
                Ok(error) => PyErr::from_value(error),
                Err(error) => {
                    let failed = PyImportError::new_err(text);
                    failed.set_cause(py, Some(error));
                    failed
                }
            }
        })
    }
}

/// Names, numbers and `errno` of all errors of the engine.
#[pyfunction]
pub(crate) fn error_codes() -> Vec<(&'static str, i32, i32)> {
    ErrorCode::ALL.iter().map(|code| (code.as_str(), code.number(), code.errno())).collect()
}
