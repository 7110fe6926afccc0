//! The engine on real memory, a module for each subject, in one binary: linking takes longer than most of the tests.
//!
//! The harness runs the tests of a binary in threads of one process. A test stays in that process if it only makes
//! pools and checks their answers. A test runs in a process of its own (`common::alone`) if it starts threads that
//! write to regions, or if it changes or reads a property of the process: signals, limits, descriptors, mappings,
//! children, threads by their names, the environment.
//!
//! A test has a binary of its own if it needs another allocator, changes settings of the machine, or takes so much of
//! the machine that no other test may run beside it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fuzzed/mod.rs"]
mod fuzzed;

mod changes;
mod cuts;
mod descriptors;
mod errors;
mod export;
mod first_steps;
mod foreign_advice;
mod handlers;
mod hostile;
mod kernel_reads;
mod kernels;
mod limits;
mod locked;
mod many_threads;
mod operations;
mod page_grain;
mod pins;
mod plain_fork;
mod promises;
mod reset;
mod snapshots;
mod supply;
mod texts;
mod transfers;
mod views;
