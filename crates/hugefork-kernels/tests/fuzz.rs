//! Runs the inputs that the fuzzer has found (fuzz/).

mod fuzzed;

#[test]
fn found_inputs_pass() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kernels");
    // The published crate has no corpus.
    let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
    entries.flatten().for_each(|entry| fuzzed::check(&std::fs::read(entry.path()).unwrap()));
}
