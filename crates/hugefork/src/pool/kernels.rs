//! The kernels with which a pool clears and copies. Either the environment names them, or the process measures them
//! once, on memory of the first pool that has 8 MiB of it in huge pages.
//!
//! | variable | names | example |
//! |---|---|---|
//! | `HUGEFORK_KERNEL` | clears, and copies if it can copy | `hybrid/avx512-nt`, `straight/rep` |
//! | `HUGEFORK_WINDOW` | the window of hybrid kernels | `128KiB` |

use std::env;
use std::sync::OnceLock;

use hugefork_kernels::{Calibration, Kernels, Target, Use, calibrate};

use crate::sys::linux::memory::cpu_time;
use crate::sys::linux::schedule::yield_now;
use crate::sys::{Sys, SystemError};
use crate::types::error::BuildError;

/// The size of the memory that the calibration works on.
pub(crate) const CALIBRATION_BYTES: usize = 8 << 20;

/// The result of the calibration. It is kept until the process ends.
static CALIBRATION: OnceLock<Calibration> = OnceLock::new();

/// The result of the calibration, if there has been one.
pub(crate) fn calibration() -> Option<&'static Calibration> {
    CALIBRATION.get()
}

/// Chooses the kernels. If `memory` is given and nothing is measured yet, this allocates the first
/// [`CALIBRATION_BYTES`] bytes of it and measures there, which takes some 7 ms. The bytes are zero again afterwards.
pub(crate) fn choose<S: Sys>(memory: Option<&S>) -> Result<Kernels, BuildError> {
    let (kernel, window) = (pinned("HUGEFORK_KERNEL")?, pinned("HUGEFORK_WINDOW")?);
    // This check comes first: a bad value is an error in any case, and a kernel that the environment names needs no
    // measuring.
    Kernels::pinned(kernel.as_deref(), window.as_deref(), Kernels::default_for_this_cpu()).map_err(setting)?;
    if let Some(memory) = memory.filter(|_| kernel.is_none() && CALIBRATION.get().is_none()) {
        // If there is no memory to measure on, the defaults serve as well.
        let _ = measure(memory);
    }
    let base = CALIBRATION.get().map_or_else(Kernels::default_for_this_cpu, Calibration::kernels);
    let kernels = Kernels::pinned(kernel.as_deref(), window.as_deref(), base).map_err(setting)?;
    Ok(kernels.with_reschedule(yield_now))
}

fn measure<S: Sys>(memory: &S) -> Result<(), SystemError> {
    const STEP_BYTES: usize = 2 << 20;
    for offset in (0..CALIBRATION_BYTES).step_by(STEP_BYTES) {
        memory.make_huge(offset, STEP_BYTES);
        memory.obtain(offset, STEP_BYTES, 0)?;
    }
    // SAFETY: the pool is still being built, so no other code uses its memory, which is page-aligned and was just
    // obtained.
    let calibration = unsafe { calibrate(memory.direct(), CALIBRATION_BYTES, cpu_time) };
    // The blocks are marked fresh, so they must read as zeros.
    let kernel = calibration.kernels().clear(CALIBRATION_BYTES, Use::Whole);
    // SAFETY: as above.
    unsafe { kernel.clear(memory.direct(), CALIBRATION_BYTES, Target::Unknown) };
    let _ = CALIBRATION.set(calibration);
    Ok(())
}

fn pinned(variable: &'static str) -> Result<Option<String>, BuildError> {
    match env::var(variable) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(BuildError::Setting {
            reason: format!("{variable} is not readable text: write a name in plain letters, or unset it"),
        }),
    }
}

fn setting(error: hugefork_kernels::KernelError) -> BuildError {
    BuildError::Setting { reason: format!("HUGEFORK_KERNEL or HUGEFORK_WINDOW: {error}") }
}
