//! The constants of the header and their Rust values. They are named after the engine's variants,
//! except `HF_CHANGES_…`, which have none.

use std::ffi::{CStr, c_char, c_int};

use hugefork::{Advice, Backing, Children, Commit, CopyGrain, CoreDump, Fallback, Granted, Reserve, Swap};

use crate::failure::Failure;

pub(crate) const HF_CHANGES_BY_BLOCK: c_int = 0;
pub(crate) const HF_CHANGES_BY_PAGE: c_int = 1;
pub(crate) const HF_CHANGES_WRITTEN: c_int = 2;

/// A type of options: a C caller selects a value of this type by passing one of the constants in [`Choice::ALL`].
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// The meaning of the value, for messages.
    const WHAT: &'static str;
    /// All constants and their values.
    const ALL: &'static [(c_int, Self)];
}

/// Defines constants: for each, its number and its value, grouped by their meaning for messages.
macro_rules! choices {
    ($($of:ty, $what:literal { $($constant:ident = $number:literal => $choice:expr,)* })*) => {$(
        $(pub(crate) const $constant: c_int = $number;)*

        impl Choice for $of {
            const WHAT: &'static str = $what;
            const ALL: &'static [(c_int, Self)] = &[$(($constant, $choice)),*];
        }
    )*};
}

choices! {
    Backing, "backing" {
        HF_BACKING_AUTO = 0 => Backing::Auto,
        HF_BACKING_HUGETLB = 1 => Backing::Hugetlb,
        HF_BACKING_SHMEM_HUGE = 2 => Backing::ShmemHuge,
        HF_BACKING_SHMEM_BASE = 3 => Backing::ShmemBase,
    }
    Granted, "granted backing" {
        HF_GRANTED_HUGETLB = 1 => Granted::Hugetlb,
        HF_GRANTED_SHMEM_HUGE = 2 => Granted::ShmemHuge,
        HF_GRANTED_SHMEM_COLLAPSED = 3 => Granted::ShmemCollapsed,
        HF_GRANTED_SHMEM_BASE = 4 => Granted::ShmemBase,
        HF_GRANTED_SHMEM_OWN_TMPFS = 5 => Granted::ShmemOwnTmpfs,
    }
    Fallback, "fallback" {
        HF_FALLBACK_ALLOWED = 0 => Fallback::Allowed,
        HF_FALLBACK_REFUSED = 1 => Fallback::Refused,
    }
    Commit, "commit" {
        HF_COMMIT_ON_DEMAND = 0 => Commit::OnDemand,
        HF_COMMIT_UPFRONT = 1 => Commit::Upfront,
    }
    CoreDump, "core dump" {
        HF_CORE_DUMP_LEFT_OUT = 0 => CoreDump::LeftOut,
        HF_CORE_DUMP_INCLUDED = 1 => CoreDump::Included,
    }
    Swap, "swap" {
        HF_SWAP_ALLOWED = 0 => Swap::Allowed,
        HF_SWAP_REFUSED = 1 => Swap::Refused,
    }
    Children, "regions of children" {
        HF_CHILDREN_HAVE_NOTHING = 0 => Children::HaveNothing,
        HF_CHILDREN_INHERIT = 1 => Children::Inherit,
    }
    Reserve, "reservation" {
        HF_RESERVE_NONE = 0 => Reserve::None,
        HF_RESERVE_FULL = 1 => Reserve::Full,
    }
    CopyGrain, "copy grain" {
        HF_COPY_GRAIN_AUTO = 0 => CopyGrain::Auto,
        HF_COPY_GRAIN_PAGE = 1 => CopyGrain::Page,
        HF_COPY_GRAIN_BLOCK = 2 => CopyGrain::Block,
    }
    Advice, "advice" {
        HF_ADVICE_UNKNOWN = 0 => Advice::Unknown,
        HF_ADVICE_NEAR = 1 => Advice::Near,
        HF_ADVICE_WHOLE = 2 => Advice::Whole,
    }
}

/// The value that `number` selects.
pub(crate) fn chosen<T: Choice>(number: c_int) -> Result<T, Failure> {
    let found = T::ALL.iter().find(|(known, _)| *known == number).map(|(_, choice)| *choice);
    found.ok_or_else(|| Failure::bad_value(format_args!("{number} is no {}: take a constant of hugefork.h", T::WHAT)))
}

/// The number of a value.
pub(crate) fn number_of<T: Choice>(choice: T) -> Result<c_int, Failure> {
    let found = T::ALL.iter().find(|(_, known)| *known == choice).map(|(number, _)| *number);
    found.ok_or_else(|| Failure::bad_value(format_args!("this {} has no constant in hugefork.h", T::WHAT)))
}

#[unsafe(no_mangle)]
extern "C" fn hf_granted_name(granted: c_int) -> *const c_char {
    let name: &CStr = match granted {
        HF_GRANTED_HUGETLB => c"hugetlb",
        HF_GRANTED_SHMEM_HUGE => c"shmem-thp",
        HF_GRANTED_SHMEM_COLLAPSED => c"shmem-thp (MADV_COLLAPSE)",
        HF_GRANTED_SHMEM_BASE => c"shmem-base",
        HF_GRANTED_SHMEM_OWN_TMPFS => c"shmem-thp (own tmpfs)",
        _ => c"unknown",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_backings_equal_the_engines() {
        for (number, granted) in Granted::ALL {
            // SAFETY: names are static and end with a zero byte.
            let name = unsafe { CStr::from_ptr(hf_granted_name(*number)) };
            assert_eq!((name.to_str().unwrap(), number_of(*granted).unwrap()), (granted.to_string().as_str(), *number));
        }
    }

    #[test]
    fn a_number_without_a_constant_is_refused() {
        assert!(chosen::<Backing>(4).is_err() && chosen::<Advice>(-1).is_err());
        assert_eq!(chosen::<Backing>(3).unwrap(), Backing::ShmemBase);
    }
}
