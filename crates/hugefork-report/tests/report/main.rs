//! Reading, comparing and drawing results. One test program, because none of these tests needs a process of its own.

mod browser;
mod common;
mod compare;
mod example;
mod fuzz;
#[path = "../fuzzed/mod.rs"]
mod fuzzed;
mod page;
mod predictions;
#[path = "../record/mod.rs"]
mod record;
