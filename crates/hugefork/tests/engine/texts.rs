//! Texts from untrusted sources: extents from another process; sizes, backings and kernels from a command line. Any
//! text gives either a value that prints as a text with the same value, or an error. Extents that were read can be
//! mapped without harm, or are refused.

use crate::fuzzed::{check_all, files};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const EXTENTS: &str = "hugefork-extents 1\nlength 16384\npage 4096\nextent 0 8192 4096\nextent 8192 0 8192\nend 2\n";

/// Extents of a file with huge pages.
const LARGE: &str = "hugefork-extents 1\nlength 8388608\npage 2097152\nextent 0 4194304 2097152\nextent 4194304 0 4194304\n\
                     end 2\n";

/// The texts that the test changes. Add every text that once failed.
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

/// Words that have a meaning in some of the texts.
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

#[test]
fn what_the_fuzzer_has_found_does_no_harm() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/texts");
    // The published package of this crate does not contain the corpus.
    let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
    let texts = entries.flatten().map(|entry| std::fs::read(entry.path()).unwrap());
    texts.for_each(|text| check_all(&String::from_utf8_lossy(&text), &files()));
}

#[test]
fn what_is_in_the_corpus_does_no_harm() {
    let files = files();
    CORPUS.iter().chain([&EXTENTS, &LARGE]).for_each(|text| check_all(text, &files));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_extents_are_refused_or_can_be_read(
        extents in select(&[EXTENTS, EXTENTS, EXTENTS, LARGE][..]),
        changes in prop::collection::vec(change(), 1..6),
    ) {
        check_all(&changed(extents, &changes), &files());
    }

    #[test]
    fn changed_texts_are_refused_or_print_as_they_were(
        text in select(&CORPUS[..]),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        check_all(&changed(text, &changes), &files());
    }
}
