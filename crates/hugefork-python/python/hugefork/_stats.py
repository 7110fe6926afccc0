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
    bytes_copied: int
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
    blocks_promoted: int
    """Blocks that were copied in the background, because many of their pages had been."""
    resets: int
    """Resets to a snapshot."""
    pages_put_back: int
    """Pages of 4 KiB that were written, and restored by a reset."""
    blocks_exchanged: int
    """Blocks that a reset replaced by those of the snapshot."""
    handler_p50_seconds: float
    """Time in the fault handler, including clearing and copying."""
    handler_p99_seconds: float
    held_by_promotion_p99_seconds: float
    """How long threads had to wait for blocks that were copied in the background."""
    held_by_write_back_p99_seconds: float
    """How long threads had to wait for blocks into which pages were written back."""


@dataclass(frozen=True, slots=True)
class PoolStats(_Faults):
    """Statistics of a pool. Sizes are bytes or blocks, as the names say; times are seconds."""

    name: str
    block_size: int
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
    supply_blocks_ahead: int
    """Blocks whose memory a thread got ahead of their use."""
    supply_seconds: float
    supply_blocks_late: int
    supply_stopped: int
    supply_blocks_given_back: int
    """Blocks whose memory was returned, because none was used for a second."""
    stock_running: bool
    stock_blocks: int
    """Blocks that a background thread has zeroed."""
    stock_seconds: float
    pressure_running: bool
    pressure_events: int
    pressure_bytes_reclaimed: int
    pressure_bytes_trimmed: int
    regions: int
    """Living regions."""
    metadata_bytes: int
    mappings: int
    """Mappings that regions of all pools use."""
    mappings_limit: int


@dataclass(frozen=True, slots=True)
class RegionStats(_Faults):
    """Statistics of the region of an array."""

    blocks: int
    blocks_present: int
    """Blocks that it holds, alone or with others."""
    blocks_shared: int
    """Of those, the blocks that a fork or snapshot may hold too."""
    blocks_lazy: int
    blocks_split: int
    blocks_cow_mapped: int
    """Blocks in which the kernel copies single pages."""
    pages_private: int
    """Pages of 4 KiB that the kernel has copied there."""
    blocks_reserved: int
    blocks_revoked: int
    """Blocks that were revoked from it."""
    bytes_lazy: int
    """Bytes that were lazily freed and not dropped yet."""
    cow_bytes: int
    """Bytes that only its forks and snapshots hold."""
    mappings: int
    metadata_bytes: int


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
