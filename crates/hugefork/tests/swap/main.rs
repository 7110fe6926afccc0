//! Regions whose pages the kernel swaps out. The tests add a swap file and change settings of the machine for a moment,
//! so one runs at a time, and none beside the tests of another binary.

#[path = "../common/mod.rs"]
mod common;

mod file;
mod moved;
mod written_back;
