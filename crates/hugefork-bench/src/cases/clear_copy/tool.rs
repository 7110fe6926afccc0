//! The operation on a block, the tool that does the operation, and the use of the block afterwards.

use hugefork_kernels::{Kernel, Order, Target, Use};

use crate::measure::work;
use crate::results::result::{Param, Params};
use crate::subject::Subject;

/// The operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Clear,
    Copy,
}

impl Operation {
    /// The name of the case that measures the operation.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Clear => "clear",
            Operation::Copy => "copy",
        }
    }
}

/// The parameter of results that describes the use of the block after the operation: read-modify-write of the 64 KiB
/// around the target, or every word of the block written in order.
pub(super) fn use_param(used: Use, block: usize) -> Param {
    if used == Use::Whole { Param::text("block") } else { Param::size(work::NEAR.min(block)) }
}

/// A kernel of hugefork, or libc.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tool {
    Kernel(Kernel),
    Libc,
}

impl Tool {
    /// The tool of `subject` for blocks of `block` bytes, or the reason why the subject has no tool for these blocks.
    pub(super) fn of(subject: &Subject, operation: Operation, block: usize, used: Use) -> Result<Tool, String> {
        Ok(match subject {
            Subject::Kernel(kernel) => Tool::Kernel(*kernel),
            Subject::Hugefork => {
                let kernels = hugefork::machine::kernels().map_err(|error| error.to_string())?;
                Tool::Kernel(match operation {
                    Operation::Clear => kernels.clear(block, used),
                    Operation::Copy => kernels.copy(block, used),
                })
            }
            _ => Tool::Libc,
        })
    }

    /// Adds the tool's properties to `params`.
    pub(super) fn name(self, params: &mut Params) {
        match self {
            Tool::Kernel(kernel) => {
                params.insert("kernel".to_owned(), Param::text(kernel.far().name()));
                params.insert("order".to_owned(), Param::text(kernel.order()));
                // Only the hybrid order has a window, with a primitive of its own.
                if kernel.order() == Order::Hybrid {
                    params.insert("near".to_owned(), Param::text(kernel.near().name()));
                    params.insert("window".to_owned(), Param::size(kernel.window()));
                }
            }
            Tool::Libc => {}
        }
    }

    /// Clears `to`, or copies `from` to it.
    ///
    /// # Safety
    /// `to` and, for a copy, `from` are blocks of `len` bytes, aligned to 4096, that do not overlap and that nobody
    /// else accesses; `target < len`.
    #[inline]
    pub(super) unsafe fn run(self, to: *mut u8, from: Option<*const u8>, len: usize, target: usize) {
        // SAFETY: by contract, in each arm.
        unsafe {
            match (self, from) {
                (Tool::Kernel(kernel), None) => kernel.clear(to, len, Target::At(target)),
                (Tool::Kernel(kernel), Some(from)) => kernel.copy(to, from, len, Target::At(target)),
                // `memset` and `memcpy` are called through libc and not as `ptr::write_bytes`, so that the compiler
                // puts no code of its own in place of these functions.
                (Tool::Libc, None) => drop(libc::memset(to.cast(), 0, len)),
                (Tool::Libc, Some(from)) => drop(libc::memcpy(to.cast(), from.cast(), len)),
            }
        }
    }
}
