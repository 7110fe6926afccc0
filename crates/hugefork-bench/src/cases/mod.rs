//! The cases. The file of each case documents the case's sample, metrics and subjects. Several cases share `list`
//! and `ways`.

pub mod anon_cow_seq;
pub mod anon_w_seq;
pub mod changes;
pub mod clear_copy;
pub mod first_touch;
pub mod lazy_free;
mod list;
pub mod read_after;
pub mod reset;
pub mod snapshot;
mod ways;

use std::str::FromStr;

use crate::case::Case;
use crate::nearest;

/// Every case, in the order of a full run.
pub const ALL: &[&dyn Case] = &[
    &clear_copy::CLEAR,
    &clear_copy::COPY,
    &first_touch::FirstTouch,
    &anon_w_seq::AnonWSeq,
    &anon_cow_seq::AnonCowSeq,
    &snapshot::Snapshot,
    &reset::Reset,
    &changes::Changes,
    &lazy_free::LazyFree,
    &read_after::ReadAfter,
];

/// The cases of a quick run: all cases except `clear` and `copy`, which measure single kernels.
pub fn quick() -> Vec<&'static dyn Case> {
    ALL.iter().copied().filter(|case| !["clear", "copy"].contains(&case.name())).collect()
}

/// The case with the name `name`.
pub fn named(name: &str) -> Option<&'static dyn Case> {
    ALL.iter().copied().find(|case| case.name() == name)
}

impl FromStr for &'static dyn Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text).ok_or_else(|| nearest::unknown("case", text, ALL.iter().map(|case| case.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::job::Scope;

    #[test]
    fn names_read_back_and_slips_are_helped() {
        for case in ALL {
            assert_eq!(case.to_string().parse(), Ok(*case));
        }
        assert!("snapshots".parse::<&dyn Case>().unwrap_err().contains("did you mean `snapshot`?"));
    }

    #[test]
    fn no_two_cases_have_one_name() {
        for (index, case) in ALL.iter().enumerate() {
            assert!(!ALL[..index].contains(case), "{case}");
        }
    }

    #[test]
    fn every_case_has_hugefork_and_a_rival() {
        for case in ALL {
            for scope in [Scope::Quick, Scope::Full] {
                let subjects = case.subjects(scope);
                assert!(subjects[0].is_ours(), "{case}");
                assert!(subjects.len() >= 2);
                assert!(subjects.iter().all(|subject| case.has(subject)), "{case}");
            }
        }
    }
}
