//! The kernels of a process: selects one by work, use and block size.
//!
//! ```text
//! block of     … nt_from               … GIGANTIC           …
//! runs         |  straight, cached     |  near or whole     |  straight, past the cache
//! ```
//!
//! A set comes from defaults, from [`calibrate`](crate::calibrate()) or from names. A selection takes two comparisons
//! and a copy, so a signal handler may make one.

use crate::{
    error::KernelError,
    kernel::{Kernel, WindowSize},
    name::parse_size,
    order::GIGANTIC,
};

/// Block size from which uncalibrated kernels write past the cache. In smaller blocks hardly anything lies outside the
/// window, and the program uses such blocks again while they are in the cache.
const NT_FROM: usize = 256 << 10;

/// The operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Clear the block.
    Clear,
    /// Copy another block to the block.
    Copy,
}

/// The program's next use of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Use {
    /// The program touches the neighbourhood of the target.
    Near,
    /// The program continues to write the whole block.
    Whole,
}

/// The kernels with which a process clears and copies; the module's drawing shows the kernel of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    clear: Choice,
    copy: Choice,
}

/// The kernels for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) near: Kernel,
    pub(crate) whole: Kernel,
    /// The kernel for blocks smaller than `nt_from`.
    pub(crate) small: Kernel,
    /// The kernel for blocks above [`GIGANTIC`].
    pub(crate) gigantic: Kernel,
    pub(crate) nt_from: usize,
}

impl Choice {
    /// Makes a choice of the kernels `near` and `whole`, and adds the kernels for small and for gigantic blocks. A
    /// block above [`GIGANTIC`] uses the best far primitive of the smaller blocks, from either kernel.
    pub(crate) fn new(near: Kernel, whole: Kernel, nt_from: usize) -> Choice {
        let (cached, past) = (Kernel::cached(), near.straight(near.far()));
        Choice { near, whole, small: cached, gigantic: past, nt_from }
    }

    fn only(kernel: Kernel) -> Choice {
        Choice { near: kernel, whole: kernel, small: kernel, gigantic: kernel, nt_from: 0 }
    }

    fn pick(&self, len: usize, used: Use) -> Kernel {
        match used {
            _ if len > GIGANTIC => self.gigantic,
            _ if len < self.nt_from => self.small,
            Use::Near => self.near,
            Use::Whole => self.whole,
        }
    }

    fn map(self, f: impl Fn(Kernel) -> Kernel) -> Choice {
        let Choice { near, whole, small, gigantic, nt_from } = self;
        Choice { near: f(near), whole: f(whole), small: f(small), gigantic: f(gigantic), nt_from }
    }
}

impl Kernels {
    /// The best kernels for most machines with these CPU extensions, without a measurement.
    ///
    /// After a clear for [`Use::Near`], the window around the target is in the cache; for [`Use::Whole`] there is no
    /// window. A copy for [`Use::Whole`] passes through the cache: on Zen 5, 2 MiB copied and then written take 162 µs
    /// with `rep movsb` and 176 past the cache; with other tasks loading the memory, 206 and 294.
    pub fn default_for_this_cpu() -> Kernels {
        let (clear, copy) = (Kernel::for_clear(), Kernel::for_copy());
        Kernels {
            clear: Choice::new(clear, clear.straight(clear.far()), NT_FROM),
            copy: Choice::new(copy, Kernel::cached(), NT_FROM),
        }
    }

    pub(crate) fn new(clear: Choice, copy: Choice) -> Kernels {
        Kernels { clear, copy }
    }

    /// The kernel that clears a block of `len` bytes before this use.
    pub fn clear(&self, len: usize, used: Use) -> Kernel {
        self.clear.pick(len, used)
    }

    /// The kernel that copies to a block of `len` bytes before this use.
    pub fn copy(&self, len: usize, used: Use) -> Kernel {
        self.copy.pick(len, used)
    }

    /// [`clear`](Kernels::clear) or [`copy`](Kernels::copy).
    pub fn pick(&self, what: Work, len: usize, used: Use) -> Kernel {
        self.of(what).pick(len, used)
    }

    /// Block size from which blocks get the kernel for their use; smaller blocks are written straight and cached. 0 for
    /// a pinned kernel.
    pub fn nt_from(&self, what: Work) -> usize {
        self.of(what).nt_from
    }

    /// Sets a function that is called between the steps of large blocks; see [`Kernel::with_reschedule`].
    pub fn with_reschedule(self, reschedule: fn()) -> Kernels {
        self.map(|kernel| kernel.with_reschedule(reschedule))
    }

    /// `base`, changed by the user's values of `HUGEFORK_KERNEL` and `HUGEFORK_WINDOW`. This crate does not read the
    /// environment itself.
    ///
    /// `kernel` names a kernel that clears blocks of every size for every use. That kernel copies blocks too if its
    /// primitive can copy; otherwise the copy kernels of `base` remain. `window` is a size such as `64KiB` or `131072`.
    /// This size is set in every hybrid kernel, and overrides a window in the name `kernel`.
    ///
    /// # Errors
    ///
    /// A [`KernelError`] for a bad name or size; the message lists good values and the primitives that this machine
    /// lacks.
    pub fn pinned(kernel: Option<&str>, window: Option<&str>, base: Kernels) -> Result<Kernels, KernelError> {
        let mut kernels = base;
        if let Some(name) = kernel {
            let kernel = name.trim().parse::<Kernel>()?.with_reschedule(base.clear.near.reschedule());
            kernels.clear = Choice::only(kernel);
            if kernel.check_copy().is_ok() {
                kernels.copy = Choice::only(kernel);
            }
        }
        if let Some(size) = window {
            let bytes = parse_size(size.trim())?;
            let window = WindowSize::new(bytes).ok_or(KernelError::BadWindow(bytes))?;
            // Only hybrid kernels have a window; the other kernels remain unchanged.
            kernels = kernels.map(|kernel| kernel.resized(window));
        }
        Ok(kernels)
    }

    fn of(&self, what: Work) -> &Choice {
        match what {
            Work::Clear => &self.clear,
            Work::Copy => &self.copy,
        }
    }

    fn map(self, f: impl Fn(Kernel) -> Kernel) -> Kernels {
        Kernels { clear: self.clear.map(&f), copy: self.copy.map(&f) }
    }
}
