//! Detects whether descendants of a fork still live. It works without their process numbers,
//! without `SIGCHLD`, which belongs to the program, and without a descriptor.
//!
//! Each fork makes a token: a segment of System V shared memory that is marked for removal at once.
//! The kernel removes it when the last process that has it attached ends or calls `exec`. These are
//! the child and all processes forked from it, at any depth. After that the kernel no longer knows
//! the segment.
//!
//! ```text
//! prepare                 Token::next        attached here
//! fork(2)                                    attached here and in the child
//! parent  outstanding ◀── Token::hold        attached in the child          child keeps it attached
//! worker  reap                               removed with its last holder
//! ```

use std::ffi::c_int;

use syscalls::{Errno, Sysno, syscall};

use crate::BASE_PAGE;

/// A shared-memory segment that the descendants of a fork have attached.
pub(crate) struct Token {
    pub(super) segment: c_int,
    /// The address of the segment. The library never accesses it, so it takes no memory.
    attached: usize,
}

impl Token {
    /// Creates a token.
    pub(super) fn new() -> Option<Token> {
        let rights = libc::IPC_CREAT | 0o600;
        // SAFETY: the call takes no address.
        let segment = unsafe { syscall!(Sysno::shmget, libc::IPC_PRIVATE, BASE_PAGE, rights) }.ok()? as c_int;
        let token = Token::attach(segment);
        // SAFETY: the call takes no address. The segment remains attached.
        let _ = unsafe { syscall!(Sysno::shmctl, segment, libc::IPC_RMID, 0) };
        token
    }

    /// Attaches the token of an existing segment.
    pub(super) fn attach(segment: c_int) -> Option<Token> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let attached = unsafe { syscall!(Sysno::shmat, segment, 0, 0) }.ok()?;
        Some(Token { segment, attached })
    }

    /// In the parent: detaches the segment.
    pub(super) fn let_go(&self) {
        // SAFETY: this token has attached it, and no code accesses it.
        let _ = unsafe { syscall!(Sysno::shmdt, self.attached) };
    }
}

/// Whether the kernel allows tokens.
pub(crate) fn can_be_made() -> bool {
    Token::new().inspect(Token::let_go).is_some()
}

/// Whether no process has the segment attached any more.
pub(super) fn is_gone(segment: c_int) -> bool {
    // At least as large as `struct shmid_ds` of any architecture.
    let mut known = [0_u64; 32];
    // SAFETY: the call writes to the structure.
    let asked = unsafe { syscall!(Sysno::shmctl, segment, libc::IPC_STAT, &raw mut known) };
    matches!(asked, Err(Errno::EINVAL | Errno::EIDRM))
}
