//! Errors, one enum a family; each message says what to do.
//!
//! | family | raised by |
//! |---|---|
//! | [`SizeError`] | sizes that cannot be |
//! | [`BuildError`] | [`PoolBuilder::build`](crate::PoolBuilder::build) |
//! | [`RegionError`] | everything asked of a pool, region or snapshot afterwards |
//!
//! What goes wrong inside a page fault has nobody to return an error to: it is reported in one line on standard error
//! and raised as `SIGBUS` (see [`crate::fault`]).

use core::fmt;

use rustix::io::Errno;
use thiserror::Error;

use crate::units::{BlockSize, ByteSize};

/// A system call that failed, by name, with what the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{call} failed: {}", Answer(*.errno))]
pub struct SystemError {
    /// The call, as its manual page is named.
    pub call: &'static str,
    /// The kernel's answer.
    pub errno: Errno,
}

/// What the kernel answered, in words. The fault handler prints it too, so nothing is allocated, as the C library's
/// messages would be.
struct Answer(Errno);

/// The answers that the calls of the engine can get.
#[rustfmt::skip]
const ANSWERS: [(Errno, &str, &str); 22] = [
    (Errno::PERM, "EPERM", "operation not permitted"),
    (Errno::NOENT, "ENOENT", "no such file or directory"),
    (Errno::INTR, "EINTR", "interrupted by a signal"),
    (Errno::IO, "EIO", "input/output error"),
    (Errno::BADF, "EBADF", "bad file descriptor"),
    (Errno::AGAIN, "EAGAIN", "resource temporarily unavailable"),
    (Errno::NOMEM, "ENOMEM", "out of memory"),
    (Errno::ACCESS, "EACCES", "permission denied"),
    (Errno::FAULT, "EFAULT", "bad address"),
    (Errno::BUSY, "EBUSY", "busy"),
    (Errno::EXIST, "EEXIST", "exists already"),
    (Errno::NODEV, "ENODEV", "no such device"),
    (Errno::INVAL, "EINVAL", "invalid argument"),
    (Errno::NFILE, "ENFILE", "too many open files in the system"),
    (Errno::MFILE, "EMFILE", "too many open files in the process"),
    (Errno::FBIG, "EFBIG", "file too large"),
    (Errno::NOSPC, "ENOSPC", "no space left"),
    (Errno::ROFS, "EROFS", "read-only file system"),
    (Errno::NOSYS, "ENOSYS", "not known to this kernel"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP", "not supported"),
    (Errno::HWPOISON, "EHWPOISON", "the memory is broken"),
    (Errno::OVERFLOW, "EOVERFLOW", "value too large"),
];

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ANSWERS.iter().find(|(errno, ..)| *errno == self.0) {
            Some((_, name, words)) => write!(f, "{words} ({name})"),
            None => write!(f, "error {}", self.0.raw_os_error()),
        }
    }
}

/// A size that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// Not a power of two from 4 KiB to 1 GiB.
    #[error("{bytes} bytes is not a block size: take a power of two from 4KiB to 1GiB")]
    NotABlockSize {
        /// What was asked.
        bytes: usize,
    },
    /// No bytes at all.
    #[error("a size of zero: take at least one block of {block_size}")]
    Zero {
        /// The pool's block size.
        block_size: BlockSize,
    },
    /// Not a whole number of blocks.
    #[error(
        "{bytes} bytes is not a whole number of {block_size} blocks: the next multiple is {} bytes",
        bytes.checked_next_multiple_of(block_size.bytes()).unwrap_or(usize::MAX - block_size.bytes() + 1)
    )]
    NotAMultiple {
        /// What was asked.
        bytes: usize,
        /// The pool's block size.
        block_size: BlockSize,
    },
    /// Text that is no size.
    #[error("`{text}` is not a size: write 4KiB, 512MiB, 1GiB or plain bytes")]
    Unreadable {
        /// The text.
        text: String,
    },
}

/// Why a pool could not be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is not a whole number of blocks.
    #[error("pool capacity: {0}")]
    Capacity(#[from] SizeError),
    /// More than this machine, or this container, has.
    #[error("a pool of {} does not fit: {limited_by} allows {}; lower the capacity", ByteSize(*.capacity), ByteSize(*.available))]
    BeyondTheMachine {
        /// What was asked, in bytes.
        capacity: usize,
        /// What there is, in bytes.
        available: usize,
        /// Who sets the limit.
        limited_by: &'static str,
    },
    /// More blocks than the page table can name.
    #[error("{blocks} blocks of {block_size}: a pool has at most {} blocks; take larger blocks", 1 << 28)]
    TooManyBlocks {
        /// The number of blocks asked for.
        blocks: usize,
        /// Their size.
        block_size: BlockSize,
    },
    /// The backing asked for cannot be had, and a fallback was refused or there is none.
    #[error("backing {backing} is not to be had: {reason}")]
    BackingUnavailable {
        /// The backing asked for.
        backing: crate::Backing,
        /// Why, and what would change it.
        reason: String,
    },
    /// The process may not have the addresses that regions live at.
    #[error(
        "could not set aside the addresses that regions live at ({source}): hugefork wants at least {}, without memory; \
         raise RLIMIT_AS (ulimit -v)", ByteSize(*.least)
    )]
    OutOfAddresses {
        /// Bytes of addresses that are needed at least.
        least: usize,
        /// The call that failed.
        source: SystemError,
    },
    /// Memory ran out while the pool was obtaining it (`Commit::Upfront`).
    #[error("could not obtain {} of memory for the pool: {source}; lower the capacity or free memory", ByteSize(*.wanted))]
    OutOfMemory {
        /// Bytes wanted.
        wanted: usize,
        /// The call that failed.
        source: SystemError,
    },
    /// An environment variable that hugefork reads has a value that cannot be.
    #[error("{reason}")]
    Setting {
        /// Which, and what it could be.
        reason: String,
    },
    /// This process is a `fork(2)` child of one that already uses hugefork.
    #[error("a fork(2) child cannot use its parent's hugefork: call exec, or build the first pool after the fork")]
    ForkedChild,
    /// The kernel refused something that has no better name.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Why a pool, region or snapshot could not do what was asked. Nothing has changed when one of these comes back, except
/// where the method says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The length is not a whole number of blocks.
    #[error("region length: {0}")]
    Length(#[from] SizeError),
    /// The region could never be filled.
    #[error("a region of {} is larger than pool `{pool}` ({}): build the pool with more capacity", ByteSize(*.len), ByteSize(*.capacity))]
    LargerThanPool {
        /// The pool's name.
        pool: String,
        /// Bytes asked for.
        len: usize,
        /// The pool's capacity in bytes.
        capacity: usize,
    },
    /// A range that is not inside.
    #[error("range {start}..{end} is not inside 0..{len}")]
    OutOfRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the region or snapshot in bytes.
        len: usize,
    },
    /// No block is free.
    #[error(
        "pool `{pool}` is full: all {capacity_blocks} blocks of {block_size} are in use; drop a fork or snapshot, \
         discard a range, or build the pool with more capacity"
    )]
    PoolFull {
        /// The pool's name.
        pool: String,
        /// Its blocks.
        capacity_blocks: usize,
        /// Their size.
        block_size: BlockSize,
    },
    /// Blocks cannot be set aside: the pool has not that many left.
    #[error(
        "pool `{pool}` cannot set {wanted} blocks of {block_size} aside: {available} are neither in use nor set aside for \
         others; drop a fork or snapshot, take Reserve::None, or build the pool with more capacity"
    )]
    NotReservable {
        /// The pool's name.
        pool: String,
        /// Blocks wanted.
        wanted: usize,
        /// Blocks left.
        available: usize,
        /// Their size.
        block_size: BlockSize,
    },
    /// Forks and snapshots of the region would hold more than it allows ([`OnLimit::Fail`](crate::OnLimit::Fail)).
    #[error(
        "forks and snapshots of this region hold {} beside it, all that it allows (max_cow_bytes): drop one, or raise the limit",
        ByteSize(*.limit)
    )]
    CowLimit {
        /// The pool's name.
        pool: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// A part of this fork or snapshot was taken away by the region that it was made from, which had no other block left.
    #[error(
        "part of this fork or snapshot was taken away, since the pool was empty and the region that it was made from had to go \
         on: make it with Reserve::Full, or build the pool with more capacity"
    )]
    Revoked,
    /// A block is pinned as often as can be counted.
    #[error("a block is pinned 255 times already: drop a pin of it first")]
    TooManyPins,
    /// A region has one observer, for good.
    #[error("this region has an observer already: let that one tell others")]
    AlreadyObserved,
    /// The machine has no memory left for a block that the pool has not used yet.
    #[error(
        "the machine has no memory left for pool `{pool}`: {source}; free memory, or build the pool with Commit::Upfront"
    )]
    OutOfMemory {
        /// The pool's name.
        pool: String,
        /// The call that failed.
        source: SystemError,
    },
    /// The process would have more mappings than `vm.max_map_count` allows.
    #[error(
        "{needed} more mappings do not fit: {used} of {limit} are in use; raise the limit \
         (sysctl -w vm.max_map_count={}), take larger blocks, or drop forks and snapshots", .limit * 4
    )]
    TooManyMappings {
        /// Mappings this call needs.
        needed: usize,
        /// Mappings in use, as counted.
        used: usize,
        /// The limit of the process.
        limit: usize,
    },
    /// The part of the address space set aside for regions is used up.
    #[error("no {} of address space left for regions: drop regions or snapshots, or raise RLIMIT_AS", ByteSize(*.len))]
    OutOfAddresses {
        /// Bytes wanted.
        len: usize,
    },
    /// This process is a `fork(2)` child; regions stay with the parent.
    #[error("regions and snapshots do not cross fork(2): this process is a child of the one that made them")]
    ForkedChild,
    /// The kernel refused something that has no better name.
    #[error(transparent)]
    System(#[from] SystemError),
}
