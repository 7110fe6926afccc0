//! Any file gives a record or an error of one line, and any record can be compared and drawn.

use std::path::Path;

use crate::fuzzed::survive;
use hugefork_report::parse;
use proptest::prelude::*;

fn golden() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema-1.json")).unwrap()
}

#[test]
fn the_fuzzers_corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/results");
    // The published package of this crate does not contain the corpus.
    let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
    entries.flatten().for_each(|entry| survive(&std::fs::read(entry.path()).unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        survive(&bytes);
    }

    #[test]
    fn truncations(part in 0.0..1.0f64) {
        let file = golden();
        survive(&file[..(part * file.len() as f64) as usize]);
    }

    #[test]
    fn flipped_bytes(
        mut file in Just(golden()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for (index, byte) in changes {
            let index = index.index(file.len());
            file[index] = byte;
        }
        survive(&file);
    }

    #[test]
    fn moved_pieces(from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), len in 0usize..60) {
        let mut file = golden();
        let from = from.index(file.len());
        let piece: Vec<u8> = file[from..].iter().take(len).copied().collect();
        let to = to.index(file.len());
        file.splice(to..to, piece);
        survive(&file);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Well-formed files of anything: any names, any parameters, any numbers.
    #[test]
    fn any_results(
        results in proptest::collection::vec((
            prop_oneof![Just("clear"), Just("snapshot"), Just("reset"), Just("new\u{0}case")],
            prop_oneof![Just("hugefork".to_owned()), Just("target-last/rep".to_owned()), ".{0,40}"],
            prop_oneof![Just("total"), Just("call"), Just("p50"), Just("p99.9"), Just("reset"), Just("p101")],
            prop_oneof![Just("4KiB"), Just("2MiB"), Just("0"), Just("many"), Just("99999999999KiB")],
            prop_oneof![Just("target-last"), Just("hybrid"), Just("straight")],
            proptest::collection::vec(prop_oneof![-1e15..1e15, -1.0..1.0, Just(0.0), Just(1e-300), Just(1e16)], 1..6),
        ), 0..30),
    ) {
        let results: Vec<_> = results.into_iter().map(|(case, subject, metric, size, order, samples)| {
            serde_json::json!({"case": case, "subject": subject, "metric": metric, "unit": "us", "samples": samples,
                "params": {"size": size, "held": "0", "pages": "same", "written": size, "block_size": size, "tasks": samples.len(), "order": order, "kernel": size,
                    "window": size}})
        }).collect();
        survive(serde_json::json!({"schema": 1, "results": results}).to_string().as_bytes());
    }
}

#[test]
fn every_truncation_of_a_record_is_one_line() {
    let file = golden();
    let end = file.trim_ascii_end().len();
    for len in 0..end {
        assert!(parse("a.json", &file[..len]).is_err(), "{len} bytes");
    }
}
