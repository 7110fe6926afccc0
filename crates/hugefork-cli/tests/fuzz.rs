//! Reading the file of any program takes work proportional to its size, and reports only facts that
//! are in it.

mod fuzzed;

use fuzzed::{check, check_program, check_written};
use proptest::prelude::*;

#[test]
fn found_inputs_pass() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/foreign");
    // The published crate has no corpus.
    let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
    entries.flatten().for_each(|entry| check(&std::fs::read(entry.path()).unwrap()));
}

/// The start of an ELF file with this many program headers, from byte 64 on.
fn header(parts: u16) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    file[32] = 64;
    file[54] = 56;
    file[56..58].copy_from_slice(&parts.to_le_bytes());
    file
}

/// Each loader path takes half of the file, begins at another offset, and is not terminated.
#[test]
fn a_thousand_loaders_are_not_read() {
    let mut file = header(1000);
    let text = 64 + 1000 * 56;
    let part = |nth: u64| [3, text + nth, 0, 0, 50_000, 50_000, 1].into_iter().flat_map(u64::to_le_bytes);
    file.extend((0..1000).flat_map(part));
    file.extend([b'n'; 60_000]);
    check_program(&file);
}

/// A file with only three sections: `strings`, and the given contents of `dynamic` and `symbols`.
fn with_sections(strings: &[u8], dynamic: &[u8], symbols: &[u8]) -> Vec<u8> {
    let mut file = header(0);
    file[32] = 0;
    let mut sections = vec![0; 64];
    for (kind, link, part) in [(3_u32, 0_u64, strings), (6, 1, dynamic), (11, 1, symbols)] {
        sections.extend([0, kind].map(u32::to_le_bytes).concat());
        let words = [0, 0, file.len() as u64, part.len() as u64, link, 8, 0];
        sections.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(part);
        file.resize(file.len().next_multiple_of(8), 0);
    }
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file[58] = 64;
    file[60] = 4;
    file[62] = 1;
    file.extend(sections);
    file
}

#[test]
fn a_library_that_is_needed_100_000_times_is_read_once() {
    let name = [[b'n'; 4000].as_slice(), b"\0"].concat();
    let needed: Vec<u8> = (0..100_000_u64).flat_map(|nth| [1, 3800 + nth % 100]).flat_map(u64::to_le_bytes).collect();
    check_program(&with_sections(&name, &needed, &[]));
}

/// Each symbol has a different name: a suffix of one long string.
#[test]
fn overlapping_names_are_read_once() {
    let name = [[b'n'; 4000].as_slice(), b"\0"].concat();
    let symbol = |nth: u32| [nth.to_le_bytes(), [0x12, 0, 1, 0]].concat().into_iter().chain([0; 16]);
    check_program(&with_sections(&name, &[], &(0..4000).flat_map(symbol).collect::<Vec<_>>()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes);
    }

    #[test]
    fn programs_are_read_back_as_they_were_built(
        whole: u8,
        names in proptest::collection::vec((any::<u8>(), prop_oneof!["[\u{1}-\u{b}]", "lib(jemalloc|asan|c)\\.so", ".{0,300}"]), 0..40),
    ) {
        let said = names.iter().flat_map(|(whose, name)| [&[whose % 5 + 5], name.as_bytes(), b"\0"].concat());
        check_written(&[whole].into_iter().chain(said).collect::<Vec<_>>());
    }

    /// A shell, with bytes of its header and of its tables changed.
    #[test]
    fn changed_programs(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..8),
        len in prop_oneof![Just(1.0), 0.0..1.0f64],
    ) {
        let mut file = std::fs::read("/bin/sh").unwrap();
        let sections = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        for (index, is_of_sections, byte) in changes {
            let at = if is_of_sections { sections + index.index(file.len() - sections) } else { index.index(2048) };
            file[at] = byte;
        }
        file.truncate((len * file.len() as f64) as usize);
        check_program(&file);
    }
}
