//! Who is measured: hugefork, the kernel's own ways, libc's functions, and single clear and copy kernels.

use std::fmt;
use std::str::FromStr;

use hugefork::CopyGrain;
use hugefork_kernels::{Kernel, Order, Primitive, PrimitiveName, every_kernel};

use crate::memory::kernel_memory::PageKind;
use crate::nearest;

/// The subjects that have a fixed name.
macro_rules! subjects {
    ($($(#[$what:meta])* $one:ident = $name:literal,)*) => {
        /// One contestant. Names are stable: results are compared across releases by them.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Subject {
            $($(#[$what])* $one,)*
            /// One kernel of `hugefork_kernels`, by its full name, such as `target-last/rep`.
            Kernel(Kernel),
        }

        impl Subject {
            /// Every subject that has a fixed name.
            pub const NAMED: &[Subject] = &[$(Subject::$one),*];

            /// The fixed name; none for a single kernel, whose name says what it does.
            fn fixed_name(&self) -> Option<&'static str> {
                Some(match self {
                    $(Subject::$one => $name,)*
                    Subject::Kernel(_) => return None,
                })
            }
        }
    };
}

subjects! {
    /// hugefork as it comes: in `clear` and `copy`, the kernel that it would choose on this machine.
    Hugefork = "hugefork",
    /// hugefork with every default of its pools: a new one for each sample, which has no memory yet.
    HugeforkDefault = "hugefork-default",
    /// hugefork with a stock of zeroed blocks, filled before each sample.
    HugeforkZeroed = "hugefork-zeroed",
    /// hugefork with a stock of zeroed blocks that is empty when a sample begins, and refills during it.
    HugeforkRefilling = "hugefork-refilling",
    /// hugefork with copies of whole blocks only.
    HugeforkBlock = "hugefork-block",
    /// hugefork with copies of single pages only.
    HugeforkPage = "hugefork-page",
    /// Anonymous memory with transparent huge pages.
    KernelThp = "kernel-thp",
    /// Anonymous memory of hugetlb pages.
    KernelHugetlb = "kernel-hugetlb",
    /// Anonymous memory of 4 KiB pages.
    Kernel4k = "kernel-4k",
    /// Anonymous memory in folios of the case's block size.
    KernelFolios = "kernel",
    /// `fork(2)` over transparent huge pages.
    ForkThp = "fork-thp",
    /// `fork(2)` over hugetlb pages.
    ForkHugetlb = "fork-hugetlb",
    /// `fork(2)` over 4 KiB pages.
    Fork4k = "fork-4k",
    /// An unmodified program under `hugefork run --pool`.
    RunPool = "run-pool",
    /// A `memfd` that is mapped privately at the snapshot.
    MemfdPrivate = "memfd-private",
    /// The same work where nothing has to be cleared, copied or mapped.
    Limit = "limit",
    /// libc's `memset`.
    Memset = "memset",
    /// libc's `memcpy`.
    Memcpy = "memcpy",
    /// libc's `memcmp`.
    Memcmp = "memcmp",
    /// The kernel's marks of written pages (`PAGEMAP_SCAN`), and copies of these.
    PagemapScan = "pagemap-scan",
}

/// What a pool of hugefork does about blocks that were used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// Nothing, since there are none: all blocks are new, and get their memory when they are used or before.
    Unused,
    /// Clears them at the fault.
    Without,
    /// A thread clears them before they fault; when a sample begins it has cleared all of them.
    Filled,
    /// A thread clears them before they fault; when a sample begins all of them have just come back, and none is
    /// cleared.
    Refilling,
}

impl Subject {
    /// How hugefork's pool gets zeroed blocks; none for the other subjects.
    pub fn stock(&self) -> Option<Stock> {
        match self {
            Subject::Hugefork | Subject::HugeforkBlock | Subject::HugeforkPage => Some(Stock::Without),
            Subject::HugeforkDefault => Some(Stock::Unused),
            Subject::HugeforkZeroed => Some(Stock::Filled),
            Subject::HugeforkRefilling => Some(Stock::Refilling),
            _ => None,
        }
    }

    /// Whether it is hugefork: a pool, or a program under `hugefork run`.
    pub fn is_ours(&self) -> bool {
        self.stock().is_some() || matches!(self, Subject::RunPool)
    }

    /// What a write to a shared block of hugefork's pool copies.
    pub fn grain(&self) -> CopyGrain {
        match self {
            Subject::HugeforkBlock => CopyGrain::Block,
            Subject::HugeforkPage => CopyGrain::Page,
            _ => CopyGrain::Auto,
        }
    }

    /// The pages of anonymous memory that a subject stands on; none for the others.
    pub fn pages(&self) -> Option<PageKind> {
        match self {
            Subject::KernelThp | Subject::ForkThp | Subject::RunPool | Subject::Limit => Some(PageKind::Thp),
            Subject::KernelHugetlb | Subject::ForkHugetlb => Some(PageKind::Hugetlb),
            Subject::Kernel4k | Subject::Fork4k => Some(PageKind::Base),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Kernel(kernel) => f.pad(&kernel.to_string()),
            named => f.pad(named.fixed_name().unwrap_or_default()),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(named) = Self::NAMED.iter().find(|subject| subject.fixed_name() == Some(text)) {
            return Ok(named.clone());
        }
        // Names of kernels have a slash; a name without one is a slip in a fixed name.
        if !text.contains('/') {
            return Err(nearest::unknown("subject", text, Self::NAMED.iter().filter_map(Subject::fixed_name)));
        }
        text.parse().map(Subject::Kernel).map_err(|error| {
            let names: Vec<String> = every_kernel().map(|kernel| kernel.to_string()).collect();
            match nearest::nearest(text, names.iter().map(String::as_str)) {
                Some(name) => format!("{error} (did you mean `{name}`?)"),
                None => error.to_string(),
            }
        })
    }
}

/// What Linux up to 6.19 does to a huge page: target-last, one 4 KiB call at a time.
pub(crate) fn linux_order() -> Kernel {
    with_rep(Order::TargetLast)
}

/// One call over the whole block.
pub(crate) fn one_call() -> Kernel {
    with_rep(Order::Straight)
}

fn with_rep(order: Order) -> Kernel {
    Kernel::new(order, Primitive::new(PrimitiveName::Rep).unwrap_or(Primitive::PORTABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for subject in Subject::NAMED.iter().cloned().chain(every_kernel().map(Subject::Kernel)) {
            assert_eq!(subject.to_string().parse::<Subject>().unwrap(), subject);
        }
    }

    #[test]
    fn a_slip_names_the_nearest() {
        let error = "kernel-tph".parse::<Subject>().unwrap_err();
        assert!(error.contains("did you mean `kernel-thp`?"), "{error}");
        let error = "target-lost/rep".parse::<Subject>().unwrap_err();
        assert!(error.contains("target-last/rep"), "{error}");
    }
}
