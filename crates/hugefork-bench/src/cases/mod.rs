//! The cases. The file of each says what one sample is, which subjects take part, and what they need. `footprint`,
//! `limit`, `list`, `overhead`, `program` and `rival` are what several of them share.

pub mod anon_cow_seq;
pub mod anon_w_seq;
pub mod changes;
pub mod clear_copy;
mod footprint;
pub mod fork;
pub mod history;
pub mod lazy_free;
mod limit;
mod list;
mod overhead;
pub mod paced;
mod program;
pub mod reset;
mod rival;
pub mod snapshot;
pub mod writer_latency;
pub mod zero_fault;

use std::str::FromStr;

use crate::case::Case;
use crate::nearest;

/// Every case, in the order of a full run.
pub const ALL: &[&dyn Case] = &[
    &clear_copy::CLEAR,
    &clear_copy::COPY,
    &zero_fault::ZeroFault,
    &anon_w_seq::AnonWSeq,
    &anon_cow_seq::AnonCowSeq,
    &snapshot::Snapshot,
    &writer_latency::WriterLatency,
    &paced::Paced,
    &history::History,
    &lazy_free::LazyFree,
    &fork::Fork,
    &changes::Changes,
    &reset::Reset,
];

/// The case of this name.
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
