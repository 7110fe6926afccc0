//! Types shared by programs and the engine.
//!
//! | file | contents |
//! |---|---|
//! | `advice` | the announced use of written blocks |
//! | `backing` | the kind of memory |
//! | `code` | numbers and names of errors |
//! | `error` | errors |
//! | `extents` | the offsets of a snapshot's bytes in a file |
//! | `observer` | callbacks around changes of memory |
//! | `options` | the guarantees of a region |
//! | `snapshot_id` | ids and ancestry of snapshots |

pub(crate) mod advice;
pub(crate) mod backing;
pub(crate) mod children;
pub(crate) mod code;
pub(crate) mod error;
pub(crate) mod extents;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod snapshot_id;
