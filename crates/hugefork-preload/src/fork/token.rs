//! Whether descendants of a fork still live, without knowing their numbers, without `SIGCHLD`, which is the
//! program's, and without a descriptor.
//!
//! Each fork makes a token, a segment of System V shared memory that is marked for removal at once. The kernel removes
//! it with the last process that has it attached: the child, and all that the child has forked since, however deep.
//! They keep it until they have ended, were killed, or have become another program. From then on the kernel knows no
//! such segment.
//!
//! ```text
//! prepare                 Token::next        attached here
//! fork(2)                                    attached here and in the child
//! parent  outstanding ◀── Token::hold        attached in the child          child keeps it attached
//! worker  reap                               removed once nobody has it
//! ```

use std::ffi::c_int;

use syscalls::{Errno, Sysno, syscall};

use crate::BASE_PAGE;

/// A segment that a fork's descendants have attached.
pub(crate) struct Token {
    pub(super) segment: c_int,
    /// An address. Nobody looks there, so the segment needs no memory.
    attached: usize,
}

impl Token {
    /// A new one.
    pub(super) fn new() -> Option<Token> {
        let rights = libc::IPC_CREAT | 0o600;
        // SAFETY: names no memory.
        let segment = unsafe { syscall!(Sysno::shmget, libc::IPC_PRIVATE, BASE_PAGE, rights) }.ok()? as c_int;
        let token = Token::attach(segment);
        // SAFETY: as above. It stays where it is attached.
        let _ = unsafe { syscall!(Sysno::shmctl, segment, libc::IPC_RMID, 0) };
        token
    }

    /// The token of a segment.
    pub(super) fn attach(segment: c_int) -> Option<Token> {
        // SAFETY: a new mapping where the kernel likes.
        let attached = unsafe { syscall!(Sysno::shmat, segment, 0, 0) }.ok()?;
        Some(Token { segment, attached })
    }

    /// In the parent: lets go of it.
    pub(super) fn let_go(&self) {
        // SAFETY: attached by this token, and nobody looks there.
        let _ = unsafe { syscall!(Sysno::shmdt, self.attached) };
    }
}

/// Whether the kernel makes tokens.
pub(crate) fn can_be_made() -> bool {
    Token::new().inspect(Token::let_go).is_some()
}

/// Whether nobody has a segment attached any more.
pub(super) fn is_gone(segment: c_int) -> bool {
    // More than `struct shmid_ds` of any architecture.
    let mut known = [0_u64; 32];
    // SAFETY: the call writes to the structure.
    let asked = unsafe { syscall!(Sysno::shmctl, segment, libc::IPC_STAT, &raw mut known) };
    matches!(asked, Err(Errno::EINVAL | Errno::EIDRM))
}
