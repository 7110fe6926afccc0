//! A file in memory in which a child leaves the result of its work.
//!
//! ```text
//! | kind | bytes |       kind is written last, and zero until then
//! ```
//! A pipe would not do: children that other threads fork at that moment have its writing end, too, and it would not end
//! before they do. Either process may close all descriptors, and then have files of its own in their place, so each
//! use checks that the number still leads to this file.

use std::io;

use hugefork_linux::Descriptor;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pread;

use super::share::write_at;
use super::{kept, named};
use crate::sys::SystemError;

/// An answer, or the place for one.
#[derive(Debug)]
pub(crate) struct Answer(Descriptor);

impl Answer {
    /// A place for an answer. No other program inherits it.
    pub(crate) fn new() -> Result<Answer, SystemError> {
        let open = || memfd_create("hugefork-answer", MemfdFlags::CLOEXEC);
        Ok(Answer(named("memfd_create", Descriptor::keep(open))?))
    }

    /// Writes the answer. `kind` is not zero.
    pub(crate) fn write(&self, kind: u8, bytes: &[u8]) -> Result<(), SystemError> {
        write_at(&self.0, bytes, 1)?;
        write_at(&self.0, &[kind], 0)
    }

    /// Reads the answer, in a process that has waited for the child. `None` if it is incomplete.
    pub(crate) fn read(&self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let (file, mut kind) = (kept(&self.0)?, [0]);
        if pread(file, &mut kind, 0)? == 0 || kind == [0] {
            return Ok(None);
        }
        let mut bytes = vec![0; self.0.stat()?.st_size as usize - 1];
        let mut done = 0;
        while done < bytes.len() {
            match pread(file, &mut bytes[done..], done as u64 + 1)? {
                0 => return Ok(None),
                count => done += count,
            }
        }
        Ok(Some((kind[0], bytes)))
    }
}
