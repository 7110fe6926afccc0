//! Errors, one enum per family; each message contains a remedy.
//!
//! | family | raised by |
//! |---|---|
//! | [`SizeError`] | impossible sizes |
//! | [`BuildError`] | [`PoolBuilder::build`](crate::PoolBuilder::build) |
//! | [`RegionError`] | all later calls on a pool, region or snapshot |
//! | [`TransferError`] | reading and writing files: the progress, and a [`RegionError`] |
//! | [`ImportError`] | imports of another process's export |
//!
//! Each has a stable code (types/code.rs), and becomes a [`std::io::Error`] by `?`: of the matching
//! kind, with the error itself inside ([`io::Error::get_ref`]).
//!
//! A failure inside a page fault cannot be returned to a caller: it is printed as one line on
//! standard error and raised as `SIGBUS` (see [`crate::fault`]).

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

use super::backing::Backing;
use crate::sys::budget::{MARGIN_MAPPINGS, MappingBudget};
use crate::sys::linux::pressure::PressureError;
use crate::sys::linux::settings::DEFAULT_MAP_COUNT;
use crate::sys::{SystemError, answer};
use crate::units::{BlockSize, ByteSize, Bytes, SizeError};

/// The reason why a pool could not be built. The message contains the remedy.
///
/// ```
/// use hugefork::{BuildError, Pool};
/// match Pool::builder().name("cache").capacity(1 << 48).build() {
///     Err(BuildError::BeyondTheMachine { available, .. }) => println!("at most {available} bytes"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is not a whole number of blocks.
    #[error("pool capacity: {0}")]
    Capacity(#[from] SizeError),
    /// The capacity is more than this machine, or this container, has.
    #[error("a pool of {} does not fit: {limited_by} allows {}; lower the capacity", ByteSize(*.capacity), ByteSize(*.available))]
    #[non_exhaustive]
    BeyondTheMachine {
        /// The requested size, in bytes.
        capacity: usize,
        /// The available size, in bytes.
        available: usize,
        /// The source of the limit.
        limited_by: &'static str,
    },
    /// More blocks than the page table can name.
    #[error(
        "{blocks} blocks of {block_size}: a pool has at most {} blocks; take larger blocks",
        crate::units::BlockId::LIMIT
    )]
    #[non_exhaustive]
    TooManyBlocks {
        /// The requested number of blocks.
        blocks: usize,
        /// Their size.
        block_size: BlockSize,
    },
    /// The requested backing is unavailable, and a fallback was refused or does not exist.
    #[error("backing {backing} is not to be had: {reason}")]
    #[non_exhaustive]
    BackingUnavailable {
        /// The requested backing.
        backing: Backing,
        /// The reason, and a remedy.
        reason: String,
    },
    /// The text names no backing.
    #[error("`{text}` is no backing: take auto, hugetlb, shmem-thp or shmem-base")]
    #[non_exhaustive]
    UnknownBacking {
        /// The text.
        text: String,
    },
    /// The process may not have the addresses for regions.
    #[error(
        "could not set aside the addresses that regions live at ({source}): hugefork wants at least {}, without memory; \
         raise RLIMIT_AS (ulimit -v)", ByteSize(*.least)
    )]
    #[non_exhaustive]
    OutOfAddresses {
        /// The minimum number of bytes of addresses.
        least: usize,
        /// The call that failed.
        source: SystemError,
    },
    /// Memory ran out while the pool was obtaining it (`Commit::Upfront`).
    #[error("could not obtain {} of memory for the pool: {source}; lower the capacity or free memory", ByteSize(*.wanted))]
    #[non_exhaustive]
    OutOfMemory {
        /// Bytes wanted.
        wanted: usize,
        /// The call that failed.
        source: SystemError,
    },
    /// An environment variable that hugefork reads has an impossible value.
    #[error("{reason}")]
    #[non_exhaustive]
    Setting {
        /// The variable, and its possible values.
        reason: String,
    },
    /// This process is a `fork(2)` child of one that already uses hugefork.
    #[error("a fork(2) child cannot use its parent's hugefork: call exec, or build the first pool after the fork")]
    ForkedChild,
    /// The kernel refused a call, for a reason without a variant of its own.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// The reason why a pool, region or snapshot could not execute a call. The message contains the remedy. Nothing has
/// changed, except where the method says so.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::RegionError;
/// let (one, two) = (pool.region(4 << 20)?, pool.region(8 << 20)?);
/// one.populate()?;
/// match two.populate() {
///     Err(error @ RegionError::PoolFull { .. }) => println!("{error}"), // says what to drop
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The length is not a whole number of blocks.
    #[error("region length: {0}")]
    Length(#[from] SizeError),
    /// The region is larger than the pool, so it could never be filled.
    #[error("a region of {} is larger than pool `{pool}` ({}): build the pool with more capacity", ByteSize(*.len), ByteSize(*.capacity))]
    #[non_exhaustive]
    LargerThanPool {
        /// The pool's name.
        pool: String,
        /// Requested bytes.
        len: usize,
        /// The pool's capacity in bytes.
        capacity: usize,
    },
    /// The range does not lie inside.
    #[error("range {start}..{end} {}", outside(*.start, *.end, *.len))]
    #[non_exhaustive]
    OutOfRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the region or snapshot in bytes.
        len: usize,
    },
    /// The range does not contain a whole number of values of a type, or starts at a wrong alignment.
    #[error(
        "bytes {start}..{end} are no slice of {of}: {}",
        if *.size == 0 { "it takes no bytes".to_owned() } else {
            format!("take a range that starts at a multiple of {align} and is a multiple of {} long", Bytes(*.size))
        }
    )]
    #[non_exhaustive]
    NotAView {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// The type.
        of: &'static str,
        /// Its size in bytes.
        size: usize,
        /// Its alignment.
        align: usize,
    },
    /// Values shared by threads are not whole words of 8 bytes.
    #[error(
        "values of {of} take {}, and what threads share are whole words of 8: take arrays or structures of them that are, or \
         Region::writers_of, which gives each thread a part", Bytes(*.size)
    )]
    #[non_exhaustive]
    NotWords {
        /// The type.
        of: &'static str,
        /// Its size in bytes.
        size: usize,
    },
    /// A snapshot of another pool.
    #[error(
        "a snapshot of pool `{other}` does not go together with what is of pool `{pool}`: take one of the same pool"
    )]
    #[non_exhaustive]
    AnotherPool {
        /// The pool's name.
        pool: String,
        /// The name of the snapshot's pool.
        other: String,
    },
    /// A snapshot of another length.
    #[error("a snapshot of {other} bytes does not go together with what has {len}: take one of the same length")]
    #[non_exhaustive]
    AnotherLength {
        /// Length in bytes.
        len: usize,
        /// That of the snapshot.
        other: usize,
    },
    /// No block is free.
    #[error(
        "pool `{pool}` is full: all {capacity_blocks} blocks of {block_size} are in use; drop a fork or snapshot, \
         discard a range, or build the pool with more capacity"
    )]
    #[non_exhaustive]
    PoolFull {
        /// The pool's name.
        pool: String,
        /// Its blocks.
        capacity_blocks: usize,
        /// Their size.
        block_size: BlockSize,
    },
    /// Blocks cannot be reserved: the pool has too few left.
    #[error(
        "pool `{pool}` cannot set {wanted} blocks of {block_size} aside: {available} are neither in use nor set aside for \
         others; drop a fork or snapshot, take Reserve::None, or build the pool with more capacity"
    )]
    #[non_exhaustive]
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
    /// A limit on the cost of copies was given for a snapshot
    /// ([`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes)).
    #[error(
        "a snapshot is not written to, so it has no copies that max_cow_bytes could limit: leave it out, or set it for the \
         region or for a fork"
    )]
    LimitOnSnapshot,
    /// A part of this fork or snapshot was revoked by its parent's write: the pool had no other block left, or the
    /// parent had reached its limit of copies ([`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes)).
    #[error(
        "part of this fork or snapshot was taken away, since its parent wrote and the pool was full, or the parent's \
         max_cow_bytes were used up: make it with Reserve::Full, build the pool with more capacity, or raise max_cow_bytes"
    )]
    Revoked,
    /// A block has the maximum number of pins.
    #[error("a block is pinned 255 times already: drop a pin of it first")]
    TooManyPins,
    /// A fork, snapshot or reset, or the preparation of one, was called inside an operation of the same thread
    /// ([`Operations`](crate::Operations)), and would wait for itself.
    #[error(
        "this thread is inside of an operation, which forks, snapshots and resets wait for: leave it first, that is, drop \
         its guard"
    )]
    InsideOperation,
    /// A thread was inside an operation ([`Operations`](crate::Operations)) for longer than a fork, snapshot or reset
    /// waits. Nothing was changed, and other threads continue.
    #[error(
        "thread {thread} has been inside of an operation for {patience:?}, for which a fork, snapshot or reset waits no \
         longer: have it leave (nothing that may block belongs into an operation; enter before you take a lock), or make the \
         Operations with more patience"
    )]
    #[non_exhaustive]
    OperationGoesOn {
        /// The thread's number, as `/proc` and debuggers name it.
        thread: u32,
        /// The time waited.
        patience: Duration,
    },
    /// The region has other operations, or regions that are cut together have different ones.
    #[error(
        "these operations are not those that the region, or another region of the same cut, has already: make one \
         Operations, and give it to all regions that are written to or cut together"
    )]
    AnotherOperations,
    /// The region has an observer already, which cannot be changed.
    #[error("this region has an observer already: let that one tell others")]
    AlreadyObserved,
    /// The machine has no memory left for a block that the pool has not used yet.
    #[error(
        "the machine has no memory left for pool `{pool}`: {source}; free memory, or build the pool with Commit::Upfront"
    )]
    #[non_exhaustive]
    OutOfMemory {
        /// The pool's name.
        pool: String,
        /// The call that failed.
        source: SystemError,
    },
    /// The process would have more mappings than `vm.max_map_count` allows.
    #[error(
        "{needed} more mappings do not fit: the process has {used} of {limit} (vm.max_map_count), {MARGIN_MAPPINGS} of \
         which stay for the rest of the program; raise the limit (sysctl -w vm.max_map_count={}), take larger blocks, or \
         drop forks and snapshots", .limit.saturating_mul(4).max(DEFAULT_MAP_COUNT)
    )]
    #[non_exhaustive]
    TooManyMappings {
        /// Mappings that this call needs.
        needed: usize,
        /// Present mappings of the process, as counted.
        used: usize,
        /// The limit of the kernel for the process (`vm.max_map_count`).
        limit: usize,
    },
    /// The part of the address space set aside for regions is used up.
    #[error("no {} of address space left for regions: drop regions or snapshots, or raise RLIMIT_AS", ByteSize(*.len))]
    #[non_exhaustive]
    OutOfAddresses {
        /// Bytes wanted.
        len: usize,
    },
    /// The pool's memory cannot be opened read-only.
    #[error(
        "the pool's memory cannot be opened for reading only: {source}; {}",
        way_out(*source)
    )]
    #[non_exhaustive]
    NotExportable {
        /// The call that failed.
        source: SystemError,
    },
    /// This process is a `fork(2)` child, which has the memory of regions at most
    /// ([`Children`](crate::Children)); calls belong to the parent.
    #[error("calls of regions and snapshots do not cross fork(2): this process is a child of the one that made them")]
    ForkedChild,
    /// The kernel refused a call, for a reason without a variant of its own.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// A transfer that ended before all of its range was done.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(4 << 20)?;
/// let full = std::fs::File::options().write(true).open("/dev/full")?;
/// let error = region.write_to(&full, 0..4096).unwrap_err();
/// assert_eq!(error.done, 0);
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("after {} of the range: {reason}{}", Bytes(*.done), hint(.reason))]
#[non_exhaustive]
pub struct TransferError {
    /// Bytes at the start of the range that were read or written before the error.
    pub done: usize,
    /// The reason.
    #[source]
    pub reason: RegionError,
}

/// The reason why another process's export could not be read or mapped. The message contains the remedy.
///
/// ```
/// use hugefork::{Extents, ImportError};
/// let error = "extents\n".parse::<Extents>().unwrap_err();
/// assert!(matches!(error, ImportError::Unreadable { line: 1, .. }), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The text is not a list of extents.
    #[error("line {line} of the extents: {reason}; take the text as `Extents` prints it")]
    #[non_exhaustive]
    Unreadable {
        /// The number of the line, from 1 on.
        line: usize,
        /// The problem of the line.
        reason: &'static str,
    },
    /// The descriptor's file may shrink, so that a read of it may kill the process.
    #[error(
        "the descriptor is not of an export: it may become shorter (no F_SEAL_SHRINK), and is no tmpfs of a pool; take the one that `Export` gives"
    )]
    NotAnExport,
    /// The descriptor's file ends before the extents do.
    #[error(
        "the file has {}, and the extents reach to {needed}: take the extents and the descriptor of one export",
        Bytes(*.len as usize)
    )]
    #[non_exhaustive]
    TooShort {
        /// Required bytes.
        needed: usize,
        /// Present bytes.
        len: u64,
    },
    /// The descriptor's file has hugetlb pages, and the extents have smaller pages.
    #[error(
        "the extents have pages of {page} bytes, and the file of {of_file}: take the extents and the descriptor of one \
         export"
    )]
    #[non_exhaustive]
    OtherPages {
        /// [`Extents::page_size`](crate::Extents::page_size), in bytes.
        page: usize,
        /// The size of the file's pages in bytes.
        of_file: usize,
    },
    /// A part of the hugetlb file has no page: the exporting process had none there, or has freed it.
    #[error(
        "there is no hugetlb page for what was exported: {source}; have the exporting process keep its `Export`, or \
         raise vm.nr_hugepages"
    )]
    #[non_exhaustive]
    NoPages {
        /// The call that failed.
        source: SystemError,
    },
    /// The extents and the gaps between them need more mappings than the process may have.
    #[error(
        "{extents} extents could not be mapped: {source}; raise vm.max_map_count, RLIMIT_AS, or take an `export_copy`"
    )]
    #[non_exhaustive]
    TooManyMappings {
        /// The number of extents.
        extents: usize,
        /// The call that failed.
        source: SystemError,
    },
    /// The range does not lie inside.
    #[error("range {start}..{end} {}", outside(*.start, *.end, *.len))]
    #[non_exhaustive]
    OutOfRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The kernel refused a call, for a reason without a variant of its own.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// A reset that ended before all of the region equalled the snapshot.
///
/// The first `done` bytes are as in the snapshot. Each page (4 KiB) behind them is as before, as in the snapshot, or,
/// if the snapshot holds pages over a block, as in an older snapshot. Another call of the method completes the reset.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let (long, short) = (pool.region(4 << 20)?, pool.region(2 << 20)?);
/// let error = long.reset_to(&short.snapshot()?).unwrap_err();
/// assert_eq!((error.done, error.code()), (0, hugefork::ErrorCode::AnotherLength));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("after {done} bytes: {reason}")]
#[non_exhaustive]
pub struct ResetError {
    /// Bytes at the start of the region, or of all regions in the order of the call, that equal the snapshot.
    pub done: usize,
    /// The reason.
    #[source]
    pub reason: RegionError,
}

/// The way to make the pool's memory openable.
fn way_out(refused: SystemError) -> &'static str {
    match refused.raw_os_error() {
        answer::NOT_INHERITED => "build the pool with children(Children::Inherit)",
        answer::BAD_DESCRIPTOR => "close only descriptors that the program has opened itself, or take export_copy",
        answer::NOT_KEPT => "build the pool with exports(true), or take export_copy",
        _ => "mount /proc, or take export_copy",
    }
}

/// The problem of a range, and its remedy.
fn outside(start: usize, end: usize, len: usize) -> String {
    if start > end {
        "ends before it starts: give its start first".to_owned()
    } else {
        format!("is not inside 0..{len}: take one that is")
    }
}

/// Remedies for kernel errors that are unclear by themselves.
fn hint(reason: &RegionError) -> &'static str {
    let RegionError::System(refused) = reason else { return "" };
    match refused.raw_os_error() {
        answer::BAD_DESCRIPTOR => ": give a descriptor that is open, and open for this",
        answer::NO_OFFSETS => ": what is no file has no offsets, use the method without `_at`",
        answer::NOT_READY => ": wait until the descriptor is ready, then go on behind what is done",
        _ => "",
    }
}

/// Each family converts to an [`io::Error`] of the matching kind.
macro_rules! into_io_error {
    ($($family:ty: $kind:expr;)*) => {$(
        impl From<$family> for io::Error {
            fn from(error: $family) -> io::Error {
                let kind: fn(&$family) -> ErrorKind = $kind;
                io::Error::new(kind(&error), error)
            }
        }
    )*};
}

into_io_error! {
    SizeError: |error| error.code().kind();
    PressureError: |error| error.code().kind();
    BuildError: |error| if let BuildError::System(refused) = error { refused.kind() } else { error.code().kind() };
    RegionError: RegionError::kind;
    ImportError: |error| if let ImportError::System(refused) = error { refused.kind() } else { error.code().kind() };
    TransferError: |error| error.reason.kind();
    ResetError: |error| error.reason.kind();
}

impl RegionError {
    /// An error unless `range` lies in `0..len`.
    pub(crate) fn check_range(range: &Range<usize>, len: usize) -> Result<(), RegionError> {
        if range.start > range.end || range.end > len {
            return Err(RegionError::OutOfRange { start: range.start, end: range.end, len });
        }
        Ok(())
    }

    /// A call needs more mappings than `budget` has left.
    pub(crate) fn too_many_mappings(needed: usize, budget: &MappingBudget) -> RegionError {
        RegionError::TooManyMappings { needed, used: budget.of_process(), limit: budget.most() }
    }

    fn kind(&self) -> ErrorKind {
        if let RegionError::System(refused) = self { refused.kind() } else { self.code().kind() }
    }
}
