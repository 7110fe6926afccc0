//! Programs of all operations on the software MMU, against plain vectors, with calls of the system that fail.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| hugefork::fuzz_model(program));
