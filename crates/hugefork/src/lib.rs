//! Huge-page memory whose page faults are resolved in user space: demand-zero and copy-on-write of whole huge pages,
//! with [`Region::fork`] and [`Region::snapshot`] in microseconds.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = hugefork::Pool::builder().name("state").capacity(64 << 20).build()?;
//! let mut live = pool.region(16 << 20)?; // reads as zeros, takes memory as it is written to
//! live.as_mut_slice()[..5].copy_from_slice(b"hello");
//!
//! let saved = live.snapshot()?; // a consistent copy, without copying
//! live.as_mut_slice()[..5].copy_from_slice(b"world");
//! assert_eq!(&saved[..5], b"hello");
//!
//! let mut what_if = saved.fork()?; // a branch that can be written to
//! what_if.as_mut_slice()[0] = b'j';
//! assert_eq!(&what_if.as_mut_slice()[..5], b"jello");
//! # Ok(())
//! # }
//! ```
//!
//! * [`Pool`]: physical memory in blocks of one size, on the best backing that the machine grants.
//! * [`Region`]: memory that is zero at first. The first write to a block is a page fault, which hugefork resolves on
//!   the writing thread.
//! * [`Snapshot`]: a region at one moment, immutable, `&[u8]`.
//! * [`Operations`]: groups of writes; a snapshot has all of a group or none.
//!
//! A snapshot shows the writes of all threads at one moment, but knows nothing of their meaning: of a `put` that writes
//! several words, it may have the first half. [`Operations`] prevent that.
//!
//! While snapshots are taken, several threads can write to a region as values of plain types ([`Region::values_of`],
//! [`Region::writers_of`]), as atomic words ([`Region::as_atomic_u64s`]), or by address. A single user of a region has
//! [`Region::as_mut_slice`] and [`Region::slice_of_mut`], whose chunks serve several threads while none are taken.
//! Values of plain types need the feature `bytemuck`, which is on by default. [`Region::read_from`] and
//! [`Region::write_to`] serve files, pipes and sockets; [`Snapshot::write_to`] serves every `io::Write`, and
//! [`Snapshot::reader`] is an `io::Read`. The crate `hugefork-checkpoint` saves snapshots to files with checksums, and
//! loads them. [`Region::pin`] and [`Region::pin_owned`] keep memory in place for the kernel, for devices and for other
//! languages.
//!
//! # When memory is taken
//! A block has no memory until its first use, and then the kernel takes ten times as long to provide it as the rest of
//! the fault takes. A thread of the pool obtains memory ahead for the pages that the next snapshot will hold
//! ([`PoolBuilder::obtain_ahead`]). A program that must never wait for memory takes all of it when it builds the pool:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hugefork::{Commit, Pool};
//! let pool = Pool::builder().name("state").capacity(64 << 20).commit(Commit::Upfront).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Process
//! The first pool installs a `SIGSEGV` handler, which passes faults that are not hugefork's on to the earlier handler
//! (see [`reinstall_fault_handler`] for the other order). A child of `fork(2)` has the regions of pools that are built
//! with [`Children::Inherit`], as plain memory at the same addresses, and no other regions. In a child, methods return
//! [`RegionError::ForkedChild`], except those that return addresses or slices of inherited regions.
//!
//! # Errors
//! There is one type for each family: [`SizeError`], [`BuildError`], [`RegionError`], and [`TransferError`], which also
//! says how many bytes a transfer moved. Each message says what to do, each error has an [`ErrorCode`] that never
//! changes, and `?` turns each into an `io::Error`.
//!
//! # Units
//! Sizes and offsets are bytes. Needs Linux 5.14 with 4 KiB pages on x86-64 or aarch64 (tried in an emulator only).

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

#[macro_use]
extern crate hugefork_kernels as _;

mod api;
mod fault;
#[cfg(feature = "heap")]
mod heap;
mod mapping;
mod mem;
#[cfg(any(test, fuzzing))]
mod model_test;
mod pool;
mod ranges;
mod region;
#[cfg(test)]
mod rows_test;
// For `hugefork run --pool`, in the crate hugefork-program.
#[doc(hidden)]
pub mod seam;
mod snapshot;
mod stats;
mod sync;
mod sys;
mod table;
mod types;
mod units;

pub use api::builder::PoolBuilder;
pub use api::changes::{Changed, Changes};
pub use api::export::Export;
pub use api::import::Imported;
pub use api::in_child::InChild;
pub use api::machine;
pub use api::metrics::{Metric, MetricKind, MetricUnit};
pub use api::operations::{Operation, Operations};
pub use api::pinned::{OwnedPin, Pinned};
pub use api::pool::Pool;
pub use api::region::Region;
pub use api::snapshot::Snapshot;
pub use api::stats::{PoolStats, RegionStats};
#[cfg(feature = "bytemuck")]
pub use api::values::{OwnedValues, Snapshotter, Values};
pub use api::views::SnapshotReader;
pub use fault::delivery::reinstall_fault_handler;
#[cfg(feature = "heap")]
pub use heap::allocator::Heap;
#[cfg(feature = "heap")]
pub use heap::rooted::Rooted;
#[cfg(feature = "heap")]
pub use heap::scoped::ScopedAllocator;
pub use hugefork_kernels as kernels;
pub use pool::ahead::SupplyStats;
pub use pool::pressure::{PressureStats, PressureWatch};
pub use pool::stock::{StockStats, ZeroedStock};
pub use region::children::BeforeFork;
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut region = pool.region(4 << 20)?;
/// region.as_mut_slice()[..2 << 20].fill(1); // one block of two
/// let came = region.lazy_free(0..4 << 20)?;
/// assert_eq!((came.freed, came.already, came.skipped()), (2 << 20, 2 << 20, 0));
/// # Ok(())
/// # }
/// ```
pub use region::free::LazyFreed;
pub use stats::counters::FaultStats;
pub use stats::histogram::Histogram;
pub use sys::SystemError;
pub use types::advice::Advice;
pub use types::backing::{Backing, Commit, CoreDump, Fallback, Granted, Swap};
pub use types::children::Children;
pub use types::code::ErrorCode;
pub use types::error::{BuildError, ImportError, RegionError, ResetError, TransferError};
pub use types::extents::{Extent, Extents};
pub use types::observer::Observer;
pub use types::options::{CopyGrain, RegionOptions, Reserve};
pub use types::snapshot_id::SnapshotId;
pub use units::{BlockSize, ByteSize, SizeError};

/// Runs a program on the software MMU, for the fuzzer. Exists only with `--cfg fuzzing`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_model(program: &[u8]) {
    model_test::run_bytes(program);
}

/// Runs the code of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
