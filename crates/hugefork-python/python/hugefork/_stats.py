"""Statistics of pools and regions, as flat dataclasses: ``pandas.DataFrame([pool.stats()])`` makes a table of
them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LazyFreed", "PoolStats", "RegionStats"]


@dataclass(frozen=True, slots=True)
class _Faults:
    """Statistics of write faults since the beginning."""

    faults: int
    """First writes of all kinds that hugefork resolved."""
    faults_demand_zero: int
    """First writes to unused memory: the write got a zeroed block."""
    faults_copied: int
    """Writes to a block that a fork or snapshot also held: the block was copied."""
    faults_reused: int
    """Writes to a block that no fork or snapshot held any more."""
    faults_cow_mapped: int
    """Writes to a block that a fork or snapshot also held, after which the kernel copies single pages."""
    faults_raced: int
    """Faults that another thread had resolved already."""
    faults_failed: int
    """Faults that could not be resolved."""
    blocks_zeroed_before: int
    """Blocks that were zero already at their first write."""
    blocks_cleared: int
    """Blocks that hugefork cleared."""
    blocks_copied: int
    """Blocks that hugefork copied."""
    bytes_cleared: int
    """Bytes that hugefork cleared."""
    bytes_copied: int
    """Bytes that hugefork copied."""
    snapshots: int
    """Forks and snapshots taken."""
    bytes_cancelled: int
    """Bytes that were lazily freed and then written to before they were dropped."""
    blocks_reclaimed: int
    """Lazily freed blocks that were dropped."""
    blocks_taken_away: int
    """Blocks that regions revoked from their forks and snapshots, because the pool was full."""
    longest_pause_seconds: float
    """The longest time for which a fork or snapshot stopped writers, in seconds."""
    paused_seconds: float
    """The total of these times."""
    pages_written_back: int
    """Pages of 4 KiB that the kernel had copied, and that were written back into blocks."""
    blocks_written_back: int
    """Blocks into which these pages were written back."""
    blocks_promoted: int
    """Blocks that were copied in the background, because many of their pages had been."""
    resets: int
    """Resets to a snapshot."""
    pages_put_back: int
    """Pages of 4 KiB that were written, and restored by a reset."""
    blocks_exchanged: int
    """Blocks that a reset replaced by those of the snapshot."""
    handler_p50_seconds: float
    """The median time of a fault in the handler, including clearing and copying."""
    handler_p99_seconds: float
    """As above, of all but the slowest hundredth of the faults."""
    held_by_promotion_p99_seconds: float
    """How long threads had to wait for blocks that were copied in the background."""
    held_by_write_back_p99_seconds: float
    """How long threads had to wait for blocks into which pages were written back."""


@dataclass(frozen=True, slots=True)
class PoolStats(_Faults):
    """Statistics of a pool. Sizes are bytes or blocks, as the names say; times are seconds."""

    name: str
    """The pool's name in messages."""
    block_size: int
    """Size of a block in bytes."""
    blocks: int
    """Blocks of the pool."""
    blocks_free: int
    """Blocks without a holder that are not reserved."""
    blocks_reserved: int
    """Blocks without a holder that are reserved."""
    blocks_zeroed_free: int
    """Free blocks that are zero and have memory."""
    blocks_leaked: int
    """Blocks whose release the kernel refused."""
    pages_held: int
    """Pages of 4 KiB that snapshots hold in place of pages of shared blocks."""
    blocks_of_pages: int
    """Used blocks that contain these pages."""
    pages_in_views: int
    """Copies of such pages in the process's own memory, made when arrays of snapshots are read."""
    bytes_huge: int | None
    """Memory in huge pages; None before Linux 6.7."""
    bytes_base: int | None
    """Memory in base pages; None before Linux 6.7."""
    not_collapsed: int
    """Blocks of 2 MiB that the kernel refused to collapse into a huge page."""
    supply_running: bool
    """Whether a thread gets memory ahead of snapshots (`Pool`, `obtain_ahead`)."""
    supply_blocks_ahead: int
    """Blocks whose memory a thread got ahead of their use."""
    supply_seconds: float
    """CPU time of this thread."""
    supply_blocks_late: int
    """Blocks that got their memory only at their use: a write, fork, snapshot or call waited for it."""
    supply_stopped: int
    """How often the thread stopped, because the machine had no memory to spare."""
    supply_blocks_given_back: int
    """Blocks whose memory was returned, because none was used for a second."""
    stock_running: bool
    """Whether a thread clears used blocks (`Pool`, `zeroed_stock`)."""
    stock_blocks: int
    """Blocks that this thread has cleared."""
    stock_seconds: float
    """CPU time of this thread."""
    pressure_running: bool
    """Whether a thread watches for a shortage of memory (`Pool`, `reclaim_under_pressure`)."""
    pressure_events: int
    """How often the kernel has reported one."""
    pressure_bytes_reclaimed: int
    """Lazily freed contents that were dropped then."""
    pressure_bytes_trimmed: int
    """Memory of free blocks that was returned to the system then."""
    regions: int
    """Living regions."""
    metadata_bytes: int
    """Bytes of metadata for the pool's blocks, without the page tables of regions."""
    mappings: int
    """Mappings that regions of all pools use."""
    mappings_limit: int
    """The process's limit for them (``vm.max_map_count``)."""


@dataclass(frozen=True, slots=True)
class RegionStats(_Faults):
    """Statistics of the region of an array."""

    blocks: int
    """Blocks that it spans."""
    blocks_present: int
    """Blocks that it holds, alone or with others."""
    blocks_shared: int
    """Of those, the blocks that a fork or snapshot may hold too."""
    blocks_lazy: int
    """Present blocks that were lazily freed as a whole."""
    blocks_split: int
    """Blocks that were lazily freed in part."""
    blocks_cow_mapped: int
    """Blocks in which the kernel copies single pages."""
    pages_private: int
    """Pages of 4 KiB that the kernel has copied there."""
    blocks_reserved: int
    """Blocks that are reserved for it (``reserve=True``)."""
    blocks_revoked: int
    """Blocks that were revoked from it."""
    bytes_lazy: int
    """Bytes that were lazily freed and not dropped yet."""
    cow_bytes: int
    """Bytes that only its forks and snapshots hold."""
    mappings: int
    """Mappings that it uses."""
    metadata_bytes: int
    """Bytes of its page table."""


@dataclass(frozen=True, slots=True)
class LazyFreed:
    """The result of `lazy_free` for each byte."""

    freed: int
    """Bytes that may be dropped from now on."""
    already: int
    """Unchanged: never written, or lazily freed before."""
    shared: int
    """Skipped: a fork or snapshot holds it."""
    pinned: int
    """Skipped: pinned."""
    indivisible: int
    """Skipped: part of a block that cannot be split."""
    revoked: int
    """Skipped: revoked."""
    unaligned: int
    """Skipped: less than a page of 4 KiB, at the ends of the range."""
