//! The terms that programs and the engine deal in.
//!
//! | file | what |
//! |---|---|
//! | `advice` | what a program says of its writes |
//! | `backing` | what memory is made of |
//! | `code` | numbers and names of what can go wrong |
//! | `error` | what can go wrong |
//! | `extents` | which bytes of a snapshot lie where in a file |
//! | `observer` | being told of changes |
//! | `options` | what a region may be promised |
//! | `snapshot_id` | which snapshot is which, and which came of which |

pub(crate) mod advice;
pub(crate) mod backing;
pub(crate) mod code;
pub(crate) mod error;
pub(crate) mod extents;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod snapshot_id;
