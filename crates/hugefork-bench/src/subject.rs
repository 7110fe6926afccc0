//! The subjects of a bench: hugefork, the kernel's own ways, libc's functions, and single clear and copy kernels.

use std::fmt;
use std::str::FromStr;

use hugefork_kernels::{Kernel, Order, Primitive, PrimitiveName, every_kernel};

use crate::memory::kernel_memory::PageKind;
use crate::nearest;

/// The subjects that have a fixed name.
macro_rules! subjects {
    ($($(#[$doc:meta])* $one:ident = $name:literal,)*) => {
        /// One contestant. Names are stable, because results of several releases are compared by these names.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Subject {
            $($(#[$doc])* $one,)*
            /// One kernel of `hugefork_kernels`, by its full name, such as `target-last/rep`.
            Kernel(Kernel),
        }

        impl Subject {
            /// Every subject that has a fixed name.
            pub const NAMED: &[Subject] = &[$(Subject::$one),*];

            /// The fixed name; `None` for a single kernel, which has the name of its `Kernel`.
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
    /// hugefork with its defaults. In the cases `clear` and `copy`, this subject is the clear or copy kernel that
    /// hugefork would choose on this machine.
    Hugefork = "hugefork",
    /// A pool of hugefork that got all of its memory when it was built.
    HugeforkUpfront = "hugefork-upfront",
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
    /// A private mapping of a `memfd`; dropping its private pages restores the contents of the file.
    MemfdPrivate = "memfd-private",
    /// The kernel's marks of written pages (`PAGEMAP_SCAN`).
    PagemapScan = "pagemap-scan",
    /// A copy that is kept up to date with the pages that `PAGEMAP_SCAN` names.
    ShadowCopy = "shadow-copy",
    /// Copies of pages by a program that knows itself which pages it wrote.
    KnownPages = "known-pages",
    /// libc's `memset`.
    Memset = "memset",
    /// libc's `memcpy`.
    Memcpy = "memcpy",
    /// libc's `memcmp`.
    Memcmp = "memcmp",
}

impl Subject {
    /// Whether the subject is hugefork, which is not its own rival.
    pub fn is_ours(&self) -> bool {
        matches!(self, Subject::Hugefork | Subject::HugeforkUpfront)
    }

    /// The kind of pages of a subject with anonymous memory; `None` for the other subjects.
    pub fn pages(&self) -> Option<PageKind> {
        match self {
            Subject::KernelThp | Subject::ForkThp => Some(PageKind::Thp),
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

/// The kernel that clears a huge page as Linux does up to 6.19: in target-last order, with a call for each 4 KiB.
pub(crate) fn linux_order() -> Kernel {
    with_rep(Order::TargetLast)
}

/// The kernel that writes the whole block in one call.
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
