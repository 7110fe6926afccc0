//! The kernels of a process: which one for which work, use and block size.
//!
//! ```text
//! block of     … nt_from               … GIGANTIC           …
//! runs         |  straight, cached     |  near or whole     |  straight, past the cache
//! ```
//!
//! The set is made from defaults, by [`calibrate`](crate::calibrate()) or from names. To ask it takes two comparisons
//! and a copy, so a signal handler may.

use crate::{
    error::KernelError,
    kernel::{Kernel, WindowSize},
    name::parse_size,
    order::GIGANTIC,
};

/// From which size on the uncalibrated kernels write past the cache. Smaller blocks have next to nothing outside of the
/// window, and the program comes back to them while they are in the cache.
const NT_FROM: usize = 256 << 10;

/// What is done to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// It is cleared.
    Clear,
    /// Another one is copied to it.
    Copy,
}

/// What the program does with the block next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Use {
    /// It touches the neighbourhood of the target.
    Near,
    /// It goes on to write the whole block.
    Whole,
}

/// The kernels that a process clears and copies with; see the module's drawing for which block gets which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    clear: Choice,
    copy: Choice,
}

/// The kernels of one work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) near: Kernel,
    pub(crate) whole: Kernel,
    /// Below `nt_from`.
    pub(crate) small: Kernel,
    /// Above [`GIGANTIC`].
    pub(crate) gigantic: Kernel,
    pub(crate) nt_from: usize,
}

impl Choice {
    /// These two, and the kernels for small and for gigantic blocks that go with them. A block above [`GIGANTIC`] is
    /// written with the far primitive that is best below, and so may be one for whole use.
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
    /// What is best on most machines with these extensions, without measuring anything.
    ///
    /// After a clear for [`Use::Near`] the window around the target is in the cache; for [`Use::Whole`] there is none.
    /// A copy for [`Use::Whole`] goes through the cache: on Zen 5 2 MiB copied and then written take 162 µs with
    /// `rep movsb` and 176 past the cache, with other tasks at the memory 206 and 294.
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

    /// What clears a block of `len` bytes that is then used so.
    pub fn clear(&self, len: usize, used: Use) -> Kernel {
        self.clear.pick(len, used)
    }

    /// What copies to a block of `len` bytes that is then used so.
    pub fn copy(&self, len: usize, used: Use) -> Kernel {
        self.copy.pick(len, used)
    }

    /// [`clear`](Kernels::clear) or [`copy`](Kernels::copy).
    pub fn pick(&self, what: Work, len: usize, used: Use) -> Kernel {
        self.of(what).pick(len, used)
    }

    /// The size from which blocks get the kernels chosen for their use; smaller ones are written straight and cached.
    /// 0 where a kernel was pinned.
    pub fn nt_from(&self, what: Work) -> usize {
        self.of(what).nt_from
    }

    /// With a function to call between the steps of large blocks; see [`Kernel::with_reschedule`].
    pub fn with_reschedule(self, reschedule: fn()) -> Kernels {
        self.map(|kernel| kernel.with_reschedule(reschedule))
    }

    /// `base`, but for what the user pinned: the values of `HUGEFORK_KERNEL` and `HUGEFORK_WINDOW`, which this crate
    /// does not read by itself.
    ///
    /// `kernel` is the name of a kernel that clears blocks of every size for every use. It copies them too if it can;
    /// otherwise copies stay with `base`. `window` is a size such as `64KiB` or `131072`: that of the window of every
    /// hybrid kernel, even where the name in `kernel` has another.
    ///
    /// # Errors
    ///
    /// What is wrong with the name or the size; the message lists good values, and what this machine lacks.
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
            // Only hybrid kernels have one, so the others stay what they are.
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
