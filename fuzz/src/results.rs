//! Results of `bench --json`, as the report and `bench compare` read them.
#![no_main]

#[path = "../../crates/hugefork-report/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::survive(bytes));
