"""numpy's own memory from a pool (NEP 49)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from . import _fork, _native
from ._pool import Pool, Size, parse_size

__all__ = ["AllocatorStats", "numpy_allocator"]

_before: ContextVar[tuple[object, ...]] = ContextVar("hugefork_before", default=())
"""What each block that is entered in this context has found in force, the outermost first."""


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """What an allocator did."""

    live: int
    """Arrays that have their memory from it."""
    live_bytes: int
    kept_bytes: int
    """Bytes that are kept for the next array."""
    recycled: int
    """Arrays that got memory that was kept."""
    made: int
    """Arrays that got new memory of the pool."""
    refused: int
    """Arrays that got ordinary memory, because the pool had not enough."""


class numpy_allocator:
    """Has numpy take the memory of big arrays from a pool, temporaries of expressions among them, inside a ``with``
    block: memory of an array that is gone goes to the next one as it is, mapped and in huge pages, and `numpy.zeros`
    takes zeroed blocks. Without it, numpy gets fresh memory from the kernel for each, which clears it page by page.

    It gains where arrays of 16 MB and more come and go. A process that may keep all memory that it ever had gets as much from
    glibc with ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456`` in its environment; here it
    ends, with the block, the pool and `keep`. A pool is mapped twice: Rss counts its memory twice, Pss once.

    The memory is writable at once, so files and sockets can be read into it. Where the pool has not enough, arrays get
    ordinary memory. Arrays stay good after the block. They are no arrays of `Pool.empty`: they cannot be snapshotted,
    and a child of ``os.fork()`` does not have them.

    numpy keeps the allocator in the context (`contextvars`): the block is in force in its own thread, and in tasks of
    asyncio that it starts. Other threads, also those started inside, go on with the allocator of their own, the default
    at first (before the free-threaded Python 3.14). To take it along::

        threading.Thread(target=contextvars.copy_context().run, args=(work,))

    Any number of threads may use one object at a time.

    Parameters
    ----------
    pool
        Where the memory comes from. With ``zeroed_stock``, `numpy.zeros` does not clear.
    least
        Smaller arrays get ordinary memory; by default, those that are smaller than a block.
    keep
        The most bytes that are kept for the next array; by default half of the pool. `trim` gives them back.

    Examples
    --------
    >>> import numpy as np, hugefork as hf
    >>> pool = hf.Pool("256 MiB")
    >>> with hf.numpy_allocator(pool) as allocator:
    ...     a = np.ones(4 << 20, "f4")
    ...     b = (a * 2 + 1) / 3
    >>> float(b.sum()), allocator.stats().live
    (4194304.0, 2)
    """

    def __init__(self, pool: Pool, *, least: Size | None = None, keep: Size | None = None) -> None:
        if not isinstance(pool, Pool):
            raise TypeError(f"{type(pool).__name__} is no pool: give a hugefork.Pool")
        self._native = _native.NumpyAllocator(
            pool._native,
            pool.block_size if least is None else parse_size(least),
            pool.capacity // 2 if keep is None else parse_size(keep),
        )
        _fork.allocates(self)

    def __enter__(self) -> numpy_allocator:
        _before.set((*_before.get(), self._native.install()))
        return self

    def __exit__(self, *_how: object) -> None:
        *earlier, before = _before.get()
        _before.set(tuple(earlier))
        self._native.restore(before)

    def stats(self) -> AllocatorStats:
        """What it did."""
        return AllocatorStats(**self._native.stats())

    def trim(self) -> int:
        """Gives memory that is kept back to the pool. Returns how many bytes that were."""
        return self._native.trim()

    def __repr__(self) -> str:
        figures = self.stats()
        return f"<hugefork.numpy_allocator: {figures.live} array(s), {figures.live_bytes} bytes>"
