//! Texts of extents, sizes, backings and kernels; what is read as extents of an export is mapped.
#![no_main]

#[path = "../../crates/hugefork/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|text: &[u8]| fuzzed::check_all(&String::from_utf8_lossy(text), &fuzzed::files()));
