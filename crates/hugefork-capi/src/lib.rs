//! hugefork for C: what `include/hugefork.h` declares.
//!
//! The header is written by hand and has the documentation; `tests/header.rs` compares it with this, item by item. A
//! handle leads to a value of the Rust API, and such a value keeps alive what it needs: a region its pool, a
//! pin its region, changes what they compare. What is done here is
//!
//! | file | does |
//! |---|---|
//! | `boundary` | turns errors and panics into codes, and pairs of numbers into ranges |
//! | `failure` | codes, and the text and `errno` of the last error of a thread |
//! | `handle`, `kinds` | give handles out, find what is in them, close them |
//! | `words` | texts of the engine in the words of C |
//! | `live` | knows which handles are open |
//! | `versioned` | structs that begin with their size, so that they can grow |
//! | `choices` | the constants, and what they choose |
//! | `pool`, `region`, `pin`, `operations`, `import`, `transfer`, `snapshot`, `library` | functions |
//! | `pool_options`, `region_options` | structs that some of these are handed |
//! | `stats`, `observer` | functions, and the structs that they are handed |
//! | `changes`, `export` | functions, and handles of their own |
//!
//! A function for something new of the engine stands in the file of the handle that it is called on. `tests/offered.rs`
//! lists what the engine has, and which function offers it.

mod boundary;
mod changes;
mod choices;
mod export;
mod failure;
mod handle;
mod import;
mod kinds;
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
