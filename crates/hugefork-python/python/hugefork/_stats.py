"""Figures of pools and regions, as flat dataclasses: ``pandas.DataFrame([pool.stats()])`` is a table of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LazyFreed", "PoolStats", "RegionStats"]


@dataclass(frozen=True, slots=True)
class _Faults:
    """What happened at writes, counted since the beginning."""

    faults: int
    """First writes that hugefork resolved, of all kinds."""
    faults_demand_zero: int
    """First writes: the block was given, zeroed."""
    faults_copied: int
    """Writes to a block that a fork or snapshot held: it was copied."""
    faults_reused: int
    """Writes to a block that nobody else held any more."""
    faults_cow_mapped: int
    """Writes to a block that a fork or snapshot held, from which on the kernel copies single pages."""
    faults_raced: int
    """Faults whose work another thread had done."""
    faults_failed: int
    """Faults that could not be resolved."""
    blocks_zeroed_before: int
    """Blocks that were zero already when they were first written to."""
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
    """Blocks that regions took away from their forks and snapshots, because the pool was full."""
    longest_pause_seconds: float
    """The longest time for which a fork or snapshot kept writers waiting."""
    paused_seconds: float
    """The same, all together."""
    pages_written_back: int
    """Pages of 4 KiB that the kernel had copied, and that went back into blocks."""
    blocks_written_back: int
    blocks_promoted: int
    """Blocks that were copied in the background, because so many of their pages had been."""
    resets: int
    """Resets to a snapshot."""
    pages_put_back: int
    """Pages of 4 KiB that had been written and that a reset put back."""
    blocks_exchanged: int
    """Blocks in whose place a reset has put those of the snapshot."""
    handler_p50_seconds: float
    """Time in the fault handler, clears and copies included."""
    handler_p99_seconds: float
    held_by_promotion_p99_seconds: float
    """For how long blocks were held that were copied in the background: whoever used one waited meanwhile."""
    held_by_write_back_p99_seconds: float
    """The same, where pages went back into blocks."""


@dataclass(frozen=True, slots=True)
class PoolStats(_Faults):
    """What a pool has, and what happened in it. Sizes are bytes or blocks, as the names say; times are seconds."""

    name: str
    block_size: int
    blocks: int
    """Blocks of the pool."""
    blocks_free: int
    """Blocks that nobody holds and that are set aside for nobody."""
    blocks_reserved: int
    """Blocks that nobody holds and that are set aside."""
    blocks_zeroed_free: int
    """Free blocks that are zero and have memory."""
    blocks_leaked: int
    """Blocks whose release the kernel refused."""
    pages_held: int
    """Pages of 4 KiB that snapshots hold over blocks that others hold too."""
    blocks_of_pages: int
    """Blocks in use that have these pages."""
    pages_in_views: int
    """Copies of such pages in the process's own memory, made where arrays of snapshots are read."""
    bytes_huge: int | None
    """Memory in huge pages; None before Linux 6.7."""
    bytes_base: int | None
    """Memory in base pages; None before Linux 6.7."""
    not_collapsed: int
    """2 MiB that the kernel refused to make one page of."""
    supply_running: bool
    supply_blocks_ahead: int
    """Blocks whose memory a thread got before it was needed."""
    supply_seconds: float
    supply_blocks_late: int
    supply_stopped: int
    supply_blocks_given_back: int
    """Blocks whose memory went back, because nobody had used any for a second."""
    stock_running: bool
    stock_blocks: int
    """Blocks that a thread has zeroed."""
    stock_seconds: float
    pressure_running: bool
    pressure_events: int
    pressure_bytes_reclaimed: int
    pressure_bytes_trimmed: int
    regions: int
    """Regions that live."""
    metadata_bytes: int
    mappings: int
    """Mappings that regions of all pools take."""
    mappings_limit: int


@dataclass(frozen=True, slots=True)
class RegionStats(_Faults):
    """What the region of an array has, and what happened to it."""

    blocks: int
    blocks_present: int
    """Blocks that it holds, alone or with others."""
    blocks_shared: int
    """Of those, blocks that a fork or snapshot may hold too."""
    blocks_lazy: int
    blocks_split: int
    blocks_cow_mapped: int
    """Blocks of which the kernel copies single pages."""
    pages_private: int
    """Pages of 4 KiB that it has copied so."""
    blocks_reserved: int
    blocks_revoked: int
    """Blocks that were taken away from it."""
    bytes_lazy: int
    """Bytes that were lazily freed and not dropped yet."""
    cow_bytes: int
    """Bytes that its forks and snapshots alone hold."""
    mappings: int
    metadata_bytes: int


@dataclass(frozen=True, slots=True)
class LazyFreed:
    """What came of each byte that `lazy_free` was asked for."""

    freed: int
    """May be dropped from now on."""
    already: int
    """Never written, or lazily freed before."""
    shared: int
    """Skipped: a fork or snapshot holds it."""
    pinned: int
    """Skipped: pinned."""
    indivisible: int
    """Skipped: part of a block that cannot be split."""
    revoked: int
    """Skipped: taken away."""
    unaligned: int
    """Skipped: less than a page of 4 KiB, at the ends."""
