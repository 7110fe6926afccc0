//! Files of programs, as `hugefork run` reads them.
#![no_main]

#[path = "../../crates/hugefork-cli/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::check(bytes));
