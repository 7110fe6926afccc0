//! Texts that may come from anybody: extents from another process, sizes, backings and kernels from a command line.
//! Whatever they are, the answer is a value that prints as what was read, or an error; and what was read as extents can
//! be mapped, or is refused, without harm.

use std::fmt::Display;
use std::fs::File;
use std::str::FromStr;

use hugefork::kernels::Kernel;
use hugefork::{Backing, BlockSize, ByteSize, Extents, ImportError, Imported};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const EXTENTS: &str = "hugefork-extents 1\nlength 16384\npage 4096\nextent 0 8192 4096\nextent 8192 0 8192\nend 2\n";

/// What texts are changed from, and what finds something now: add to it whatever fails once.
const CORPUS: [&str; 14] = [
    "4KiB",
    "512MiB",
    "1GiB",
    "131072",
    "18446744073709551615",
    "18014398509481984KiB",
    "auto",
    "shmem-thp",
    "hybrid/avx2-nt+rep@128KiB",
    "straight/portable",
    "target-last/rep",
    "hybrid/portable@99999999999999999999MiB",
    "hugefork-extents 1\nlength 4096\npage 4096\nend 0\n",
    "hugefork-extents 1\nlength 9223372036854771712\npage 4096\nextent 0 9223372036854767616 4096\nend 1\n",
];

/// Words that mean something somewhere.
const WORDS: [&str; 18] = [
    "\n",
    " ",
    "0",
    "1",
    "4095",
    "4096",
    "8192",
    "-1",
    "+1",
    "18446744073709551615",
    "9223372036854775807",
    "extent ",
    "end ",
    "page ",
    "length ",
    "KiB",
    "/",
    "@",
];

/// One change of a text.
#[derive(Clone, Debug)]
enum Change {
    Put(Index, &'static str),
    PutAny(Index, char),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), select(&WORDS[..])).prop_map(|(at, word)| Change::Put(at, word)),
        1 => (any::<Index>(), any::<char>()).prop_map(|(at, letter)| Change::PutAny(at, letter)),
        3 => (any::<Index>(), 1..12usize).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (any::<Index>(), 1..30usize).prop_map(|(at, count)| Change::Repeat(at, count)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for change in changes {
        let place = |at: &Index| at.index(letters.len() + 1);
        match change {
            Change::Put(at, word) => {
                let at = place(at);
                letters.splice(at..at, word.chars());
            }
            Change::PutAny(at, letter) => letters.insert(place(at), *letter),
            Change::Remove(at, count) => {
                let at = place(at);
                letters.drain(at..letters.len().min(at + count));
            }
            Change::Repeat(at, count) => {
                let at = place(at);
                let again = letters[at..letters.len().min(at + count)].to_vec();
                letters.splice(at..at, again);
            }
        }
    }
    letters.into_iter().collect()
}

/// What is read prints as something that is read as the same.
fn check<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok().as_ref(), Some(&value), "{text:?}");
    }
}

/// A file of three pages that cannot become shorter.
fn file() -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("fuzz", flags).unwrap();
    rustix::fs::ftruncate(&file, 3 * 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    file.into()
}

fn check_all(text: &str, file: &File) {
    check::<ByteSize>(text);
    check::<BlockSize>(text);
    check::<Backing>(text);
    check::<Kernel>(text);
    let Ok(extents) = text.parse::<Extents>() else { return };
    assert_eq!(extents.to_string(), text, "extents are read exactly as they print");
    match Imported::map(file, &extents) {
        Ok(imported) => {
            let mut byte = [1];
            // Pages behind the end of the file would be a SIGBUS.
            for extent in extents.iter() {
                imported.read_at(extent.offset + extent.len - 1, &mut byte).unwrap();
                assert_eq!(byte, [0]);
            }
            imported.read_at(imported.len() - 1, &mut byte).unwrap();
        }
        Err(error) => assert!(
            matches!(
                error,
                ImportError::TooShort { .. } | ImportError::TooManyMappings { .. } | ImportError::System(_)
            ),
            "{error}"
        ),
    }
}

#[test]
fn what_is_in_the_corpus_does_no_harm() {
    let file = file();
    CORPUS.iter().chain([&EXTENTS]).for_each(|text| check_all(text, &file));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_extents_are_refused_or_can_be_mapped(changes in prop::collection::vec(change(), 1..6)) {
        check_all(&changed(EXTENTS, &changes), &file());
    }

    #[test]
    fn changed_texts_are_refused_or_print_as_they_were(
        text in select(&CORPUS[..]),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        check_all(&changed(text, &changes), &file());
    }
}
