//! hugefork for C: implements `include/hugefork.h`.
//!
//! The header is written by hand and contains the documentation; `tests/header.rs` compares it with
//! this crate, item by item. A handle points to a value of the Rust API. Such a value keeps its
//! dependencies alive: a region its pool, a pin its region, changes the objects that they compare.
//! The files of this crate:
//!
//! | file | contents |
//! |---|---|
//! | `boundary` | turns errors and panics into codes, and offset and length into ranges |
//! | `failure`, `last` | codes, and the text and `errno` of the last error of a thread |
//! | `handle`, `kinds` | create handles, return their values, close them |
//! | `words` | translates texts of the engine into C terms |
//! | `live` | records the open handles |
//! | `versioned` | structs that begin with their size, so that they can grow |
//! | `choices` | the constants and their values |
//! | `pool`, `region`, `heap`, `pin`, `operations`, `import`, `transfer`, `snapshot`, `library` | functions |
//! | `pool_options`, `region_options` | option structs of these functions |
//! | `stats`, `observer` | functions, and their structs |
//! | `changes`, `export` | functions, and handles of their own |
//!
//! A function for a new feature of the engine belongs in the file of the handle that it takes.
//! `tests/offered.rs` lists the engine's features and the function for each.

mod boundary;
mod changes;
mod choices;
mod export;
mod failure;
mod handle;
mod heap;
mod import;
mod kinds;
mod last;
mod library;
mod live;
mod observer;
mod operations;
mod pin;
mod pool;
mod pool_options;
mod region;
mod region_options;
mod snapshot;
mod stats;
mod transfer;
mod versioned;
mod words;
