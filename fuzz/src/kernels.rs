//! Kernels with any parameters clear or copy the block, the whole block, and nothing but the block.
#![no_main]

#[path = "../../crates/hugefork-kernels/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::check(bytes));
