//! What the fuzzer has found goes well (fuzz/).

mod fuzzed;

#[test]
fn what_the_fuzzer_has_found_goes_well() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kernels");
    // A package of this crate alone has none.
    let Ok(entries) = std::fs::read_dir(folder) else { return println!("skipped: {folder} is not there") };
    entries.flatten().for_each(|entry| fuzzed::check(&std::fs::read(entry.path()).unwrap()));
}
