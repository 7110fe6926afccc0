"""numpy's own memory from a pool (NEP 49)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from . import _fork, _native
from ._pool import Pool, Size, parse_size

__all__ = ["AllocatorStats", "numpy_allocator"]

_before: ContextVar[tuple[object, ...]] = ContextVar("hugefork_before", default=())
"""The earlier handlers of the ``with`` blocks that are active in this context, the outermost first."""


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Statistics of an allocator."""

    live: int
    """Living arrays with memory of the pool."""
    live_bytes: int
    """Bytes of the pool that they take."""
    kept_bytes: int
    """Bytes that are kept for later arrays."""
    recycled: int
    """Arrays that got kept memory."""
    made: int
    """Arrays that got new memory of the pool."""
    refused: int
    """Arrays that got ordinary memory because the pool had too little."""


class numpy_allocator:
    """Takes the memory of numpy's big arrays, temporaries of expressions included, from a pool inside a ``with``
    block. The memory of a freed array is given to the next one as it is, mapped and in huge pages, and `numpy.zeros`
    gets zeroed blocks. Without the allocator, numpy gets new memory from the kernel for each array, and the kernel
    clears it page by page.

    It gains where arrays of 16 MB and more are created and freed often. A process that may keep all its memory for
    ever gets the same gain from glibc with ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296
    MALLOC_TOP_PAD_=268435456`` in its environment; the allocator's memory is limited by the block, the pool and
    `keep`. A pool is mapped twice: Rss counts its memory twice, Pss once.

    The memory is writable at once, so files and sockets can be read into it. If the pool has too little memory,
    arrays get ordinary memory. Arrays remain valid after the block. A child of ``os.fork()`` has them if the pool's
    `children` inherit, and takes ordinary memory for new ones.

    All functions take these arrays as those of a pool, so a model of any library whose arrays are numpy's can be
    snapshotted and reset. Arrays smaller than `least` lie in no pool, and an error names them. For a whole model, take
    ``hf.Pool(block_size="4 KiB")`` and ``least=1``: each array takes a block. A reset changes the arrays of the snapshot:
    if the library has replaced an attribute by a new array since, put the old one back. The memory of an array that was
    ever snapshotted is not kept when the array is freed.

    numpy keeps the allocator in the context (`contextvars`): the block applies to its own thread, and to asyncio
    tasks that it starts. Other threads, also those started inside, use their own allocator, which is the default at
    first (before the free-threaded Python 3.14). To use this one there, copy the context::

        threading.Thread(target=contextvars.copy_context().run, args=(work,))

    Any number of threads may use one object at a time.

    Parameters
    ----------
    pool
        The source of the memory. With ``zeroed_stock``, `numpy.zeros` does not clear.
    least
        Smaller arrays get ordinary memory; by default, those that are smaller than a block.
    keep
        Maximum number of bytes that are kept for later arrays; by default half of the pool. `trim` frees them.

    Examples
    --------
    >>> import numpy as np, hugefork as hf
    >>> pool = hf.Pool("256 MiB")
    >>> with hf.numpy_allocator(pool) as allocator:
    ...     a = np.ones(4 << 20, "f4")
    ...     b = (a * 2 + 1) / 3
    >>> float(b.sum()), allocator.stats().live
    (4194304.0, 2)
    >>> with hf.snapshot({"a": a, "b": b}) as s:
    ...     a[:], b[:] = 5, 5
    ...     s.reset()
    >>> float(b.sum())
    4194304.0
    """

    def __init__(self, pool: Pool, *, least: Size | None = None, keep: Size | None = None) -> None:
        if not isinstance(pool, Pool):
            raise TypeError(f"{type(pool).__name__} is not a pool: give a hugefork.Pool")
        self._native = _native.NumpyAllocator(
            pool._native,
            pool.block_size if least is None else parse_size(least),
            pool.capacity // 2 if keep is None else parse_size(keep),
        )
        self._is_inherited = pool._native.is_inherited()
        _fork.allocates(self)

    def __enter__(self) -> numpy_allocator:
        _before.set((*_before.get(), self._native.install()))
        return self

    def __exit__(self, *_how: object) -> None:
        *earlier, before = _before.get()
        _before.set(tuple(earlier))
        self._native.restore(before)

    def stats(self) -> AllocatorStats:
        """Statistics of the allocator."""
        return AllocatorStats(**self._native.stats())

    def trim(self) -> int:
        """Frees kept memory. Returns its size in bytes."""
        return self._native.trim()

    def __repr__(self) -> str:
        figures = self.stats()
        return f"<hugefork.numpy_allocator: {figures.live} array(s), {figures.live_bytes} bytes>"
