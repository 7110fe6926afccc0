//! [`Children`]: the regions that a child of `fork(2)` has.

/// The regions that a child of `fork(2)` has.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Children, Pool};
/// let pool = Pool::builder().capacity(64 << 20).children(Children::Inherit).build()?;
/// let mut counters = pool.region(2 << 20)?;
/// counters.as_mut_slice()[0] = 1;
/// // SAFETY: the child calls only what a child of one thread may call.
/// let child = unsafe { libc::fork() };
/// if child == 0 {
///     // It has the region at the same address, as it was at the fork.
///     let seen = counters.as_mut_slice()[0];
///     counters.as_mut_slice()[0] = 7; // its own copy of the page
///     unsafe { libc::_exit(i32::from(seen != 1)) };
/// }
/// counters.as_mut_slice()[0] = 2; // the child does not see this
/// let mut status = -1;
/// unsafe { libc::waitpid(child, &mut status, 0) };
/// assert_eq!((status, counters.as_mut_slice()[0]), (0, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Children {
    /// None. An access to their addresses raises `SIGSEGV`, with a message.
    #[default]
    HaveNothing,
    /// All regions of the pool, at their addresses, as they were at one moment of the call of `fork(2)`.
    ///
    /// # The child
    /// It reads and writes the memory as plain memory of its own: the kernel copies each page of 4 KiB that it writes.
    /// No write of the parent reaches it, and none of its writes reaches the parent. So do its own children inherit
    /// the memory. Everything else stays with the parent: methods of pools, regions and snapshots return
    /// [`RegionError::ForkedChild`](crate::RegionError::ForkedChild), except those that return addresses or slices of
    /// a region. To drop a region there has no effect.
    ///
    /// All memory outside of regions is that of a later moment in the call of `fork(2)`: other threads may have written
    /// in between. So a thread that forks should hold the locks of data that lie partly in a region and partly outside.
    /// If another thread holds a lock out there, the lock is held in the child for ever, even if threads take it inside
    /// operations only. A lock in a region is free in the child if threads take it inside operations only.
    ///
    /// A child whose pool has hugetlb pages copies a whole page of hugetlb at a write, and gets `SIGBUS` if the machine
    /// has none left.
    ///
    /// # The parent
    /// The call of `fork(2)` takes a snapshot of all such regions of the process at one moment, whatever their pool
    /// ([`Region::snapshot_all`](crate::Region::snapshot_all)), and goes on. The parent holds that snapshot until the
    /// child and all that it has forked have ended, called `exec`, or unmapped the memory. A thread of the pool sleeps
    /// until then. The blocks of the snapshot are not taken away in a full pool: a write that needs one fails.
    ///
    /// The snapshot lies between the operations of regions that have some ([`Operations`](crate::Operations)), unless
    /// the thread that forks is inside one: then it is taken at once, and the child goes on inside that operation.
    ///
    /// `posix_spawn`, `vfork` and raw `clone` take no snapshot, and cost nothing. `fork` and `exec` one after the other
    /// cost what a snapshot costs, and the parent gives it up at the `exec`.
    ///
    /// If the snapshot fails, for example in a full pool, or the process has closed the pool's descriptor, the child
    /// has none of the regions. One line on standard error says why. The same holds for a fork in a signal handler that
    /// has interrupted a snapshot or reset of the same thread, and for a fork by another `pthread_atfork` handler.
    ///
    /// # Access
    /// The child maps the pool's file, so it can get at *all* memory of the pool, also at what the parent writes later:
    /// by `mremap(2)` it can make a mapping longer. If a child gives up its rights, what it must not see belongs in
    /// another pool.
    Inherit,
}
