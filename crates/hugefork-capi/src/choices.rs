//! The constants, and what they choose. They are named after the variants of the engine that they stand for, but for
//! `HF_ON_LIMIT_NO_LIMIT` and `HF_CHANGES_…`, which stand for none.

use std::ffi::{CStr, c_char, c_int};

use hugefork::{Advice, Backing, Commit, CopyGrain, CoreDump, Fallback, Granted, OnLimit, Reserve, Swap};

use crate::failure::Failure;

pub(crate) const HF_BACKING_AUTO: c_int = 0;
pub(crate) const HF_BACKING_HUGETLB: c_int = 1;
pub(crate) const HF_BACKING_SHMEM_HUGE: c_int = 2;
pub(crate) const HF_BACKING_SHMEM_BASE: c_int = 3;

pub(crate) const HF_GRANTED_HUGETLB: c_int = 1;
pub(crate) const HF_GRANTED_SHMEM_HUGE: c_int = 2;
pub(crate) const HF_GRANTED_SHMEM_COLLAPSED: c_int = 3;
pub(crate) const HF_GRANTED_SHMEM_BASE: c_int = 4;
pub(crate) const HF_GRANTED_SHMEM_OWN_TMPFS: c_int = 5;

pub(crate) const HF_FALLBACK_ALLOWED: c_int = 0;
pub(crate) const HF_FALLBACK_REFUSED: c_int = 1;

pub(crate) const HF_COMMIT_ON_DEMAND: c_int = 0;
pub(crate) const HF_COMMIT_UPFRONT: c_int = 1;

pub(crate) const HF_CORE_DUMP_LEFT_OUT: c_int = 0;
pub(crate) const HF_CORE_DUMP_INCLUDED: c_int = 1;

pub(crate) const HF_SWAP_ALLOWED: c_int = 0;
pub(crate) const HF_SWAP_REFUSED: c_int = 1;

pub(crate) const HF_RESERVE_NONE: c_int = 0;
pub(crate) const HF_RESERVE_FULL: c_int = 1;

/// No limit, which is not a variant of the engine's.
pub(crate) const HF_ON_LIMIT_NO_LIMIT: c_int = 0;
pub(crate) const HF_ON_LIMIT_REVOKE: c_int = 1;
pub(crate) const HF_ON_LIMIT_STALL: c_int = 2;
pub(crate) const HF_ON_LIMIT_FAIL: c_int = 3;

pub(crate) const HF_COPY_GRAIN_AUTO: c_int = 0;
pub(crate) const HF_COPY_GRAIN_PAGE: c_int = 1;
pub(crate) const HF_COPY_GRAIN_BLOCK: c_int = 2;

pub(crate) const HF_CHANGES_BY_BLOCK: c_int = 0;
pub(crate) const HF_CHANGES_BY_PAGE: c_int = 1;

pub(crate) const HF_ADVICE_UNKNOWN: c_int = 0;
pub(crate) const HF_ADVICE_NEAR: c_int = 1;
pub(crate) const HF_ADVICE_WHOLE: c_int = 2;

/// Something that a number chooses.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// What it is, for people.
    const WHAT: &'static str;
    /// All there are.
    const ALL: &'static [(c_int, Self)];
}

/// What `number` chooses.
pub(crate) fn chosen<T: Choice>(number: c_int) -> Result<T, Failure> {
    let found = T::ALL.iter().find(|(known, _)| *known == number).map(|(_, choice)| *choice);
    found.ok_or_else(|| Failure::bad_value(format!("{number} is no {}: take a constant of hugefork.h", T::WHAT)))
}

/// The number of a choice.
pub(crate) fn number_of<T: Choice>(choice: T) -> Result<c_int, Failure> {
    let found = T::ALL.iter().find(|(_, known)| *known == choice).map(|(number, _)| *number);
    found.ok_or_else(|| Failure::bad_value(format!("this {} has no constant in hugefork.h", T::WHAT)))
}

impl Choice for Backing {
    const WHAT: &'static str = "backing";
    const ALL: &'static [(c_int, Self)] = &[
        (HF_BACKING_AUTO, Backing::Auto),
        (HF_BACKING_HUGETLB, Backing::Hugetlb),
        (HF_BACKING_SHMEM_HUGE, Backing::ShmemHuge),
        (HF_BACKING_SHMEM_BASE, Backing::ShmemBase),
    ];
}

impl Choice for Granted {
    const WHAT: &'static str = "granted backing";
    const ALL: &'static [(c_int, Self)] = &[
        (HF_GRANTED_HUGETLB, Granted::Hugetlb),
        (HF_GRANTED_SHMEM_HUGE, Granted::ShmemHuge),
        (HF_GRANTED_SHMEM_COLLAPSED, Granted::ShmemCollapsed),
        (HF_GRANTED_SHMEM_BASE, Granted::ShmemBase),
        (HF_GRANTED_SHMEM_OWN_TMPFS, Granted::ShmemOwnTmpfs),
    ];
}

impl Choice for Fallback {
    const WHAT: &'static str = "fallback";
    const ALL: &'static [(c_int, Self)] =
        &[(HF_FALLBACK_ALLOWED, Fallback::Allowed), (HF_FALLBACK_REFUSED, Fallback::Refused)];
}

impl Choice for Commit {
    const WHAT: &'static str = "commit";
    const ALL: &'static [(c_int, Self)] =
        &[(HF_COMMIT_ON_DEMAND, Commit::OnDemand), (HF_COMMIT_UPFRONT, Commit::Upfront)];
}

impl Choice for CoreDump {
    const WHAT: &'static str = "core dump";
    const ALL: &'static [(c_int, Self)] =
        &[(HF_CORE_DUMP_LEFT_OUT, CoreDump::LeftOut), (HF_CORE_DUMP_INCLUDED, CoreDump::Included)];
}

impl Choice for Swap {
    const WHAT: &'static str = "swap";
    const ALL: &'static [(c_int, Self)] = &[(HF_SWAP_ALLOWED, Swap::Allowed), (HF_SWAP_REFUSED, Swap::Refused)];
}

impl Choice for Reserve {
    const WHAT: &'static str = "reservation";
    const ALL: &'static [(c_int, Self)] = &[(HF_RESERVE_NONE, Reserve::None), (HF_RESERVE_FULL, Reserve::Full)];
}

impl Choice for Option<OnLimit> {
    const WHAT: &'static str = "on_limit";
    const ALL: &'static [(c_int, Self)] = &[
        (HF_ON_LIMIT_NO_LIMIT, None),
        (HF_ON_LIMIT_REVOKE, Some(OnLimit::Revoke)),
        (HF_ON_LIMIT_STALL, Some(OnLimit::Stall)),
        (HF_ON_LIMIT_FAIL, Some(OnLimit::Fail)),
    ];
}

impl Choice for CopyGrain {
    const WHAT: &'static str = "copy grain";
    const ALL: &'static [(c_int, Self)] = &[
        (HF_COPY_GRAIN_AUTO, CopyGrain::Auto),
        (HF_COPY_GRAIN_PAGE, CopyGrain::Page),
        (HF_COPY_GRAIN_BLOCK, CopyGrain::Block),
    ];
}

impl Choice for Advice {
    const WHAT: &'static str = "advice";
    const ALL: &'static [(c_int, Self)] =
        &[(HF_ADVICE_UNKNOWN, Advice::Unknown), (HF_ADVICE_NEAR, Advice::Near), (HF_ADVICE_WHOLE, Advice::Whole)];
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
    fn the_names_of_backings_are_the_engines() {
        for (number, granted) in Granted::ALL {
            // SAFETY: names are static and end with a zero byte.
            let name = unsafe { CStr::from_ptr(hf_granted_name(*number)) };
            assert_eq!((name.to_str().unwrap(), number_of(*granted).unwrap()), (granted.to_string().as_str(), *number));
        }
    }

    #[test]
    fn a_number_that_chooses_nothing_is_refused() {
        assert!(chosen::<Backing>(4).is_err() && chosen::<Advice>(-1).is_err());
        assert_eq!(chosen::<Backing>(3).unwrap(), Backing::ShmemBase);
    }
}
