"""Pools: physical memory in blocks, for arrays."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from . import _faulthandler, _makers, _native
from ._arrays import Array, bytes_of, checked_dtype, checked_shape, region_place
from ._errors import in_words_of_python
from ._makers import CopyGrain, Size
from ._stats import PoolStats

__all__ = ["CopyGrain", "Pool", "Size", "default_pool", "parse_size"]


def parse_size(size: Size) -> int:
    """Converts a size such as ``"512 MiB"`` to bytes. Raises TypeError, or ValueError with a hint."""
    if isinstance(size, str):
        return _native.parse_size(size)
    if not hasattr(size, "__index__"):
        raise TypeError(f"{size!r} is not a size: give bytes, or text such as '512 MiB'")
    nbytes = int(size.__index__())
    if not 0 <= nbytes <= sys.maxsize:
        raise ValueError(f"a size of {nbytes} bytes: give a positive one that memory can have")
    return nbytes


def in_words(nbytes: int) -> str:
    """A number of bytes as text for people."""
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size == int(size) else f"{size:.3g} {unit}"


class Pool:
    """Physical memory in blocks of one size, on the best huge pages that the machine grants.

    A pool is a handle. Its memory is freed when the handle and all of its arrays and snapshots are gone.

    Parameters
    ----------
    capacity
        Maximum size in bytes, a multiple of the block size: a number, or ``"8 GiB"``. By default all memory of the
        machine or container, since a pool takes memory only as it is written to: pools of 64 MiB and of 22 GiB are
        made in 5 to 14 ms, take a snapshot in 35 us and fork in 2 ms; their metadata takes 10 and 57 KiB (with blocks of
        4 KiB 78 KiB and 25 MiB, of which 1.5 MiB are used).
    name
        Its name in messages.
    block_size
        The unit in which memory is handed out: a power of two from 4 KiB to 1 GiB. Each array takes whole blocks.
    backing
        ``"auto"``, ``"hugetlb"``, ``"shmem-thp"`` or ``"shmem-base"``. `Pool.backing` returns the granted one.
    strict
        Fail rather than use another backing than the requested one.
    commit
        ``"on_demand"``: get memory when it is used. ``"upfront"``: get all of it now, 240 to 300 ms for each GiB.
    obtain_ahead
        Bytes of free blocks for which a thread gets memory in advance, while pages are written that the next snapshot
        may have to hold; by default 128 MiB, and none in pools of less than 128 MiB. It frees the memory when nothing
        was written for a second.
    zeroed_stock
        ``(low, high)`` in blocks: a thread clears used blocks in the background whenever fewer than `low` are
        clear, until `high` are.
    zeroed_cpu_percent
        Maximum CPU time of this thread, in percent of one CPU.
    core_dump
        Whether core dumps contain the contents. If not, gdb may show **zeros** in place of arrays.
    swap
        Whether the system may swap the memory out. False needs ``CAP_SYS_ADMIN`` and Linux 6.4, or hugetlb pages;
        without these, `fallback_reason` says so, or `strict` makes it an error.
    exports
        Whether `share` works without a copy. If so, the pool holds a read-only descriptor of its memory. If not, it
        holds none (except for hugetlb pages), and no process of the same user can open the memory through
        ``/proc/PID/fd`` and write to it. False needs ``children="nothing"``.
    children
        The arrays that a child of ``os.fork()`` has, and so a worker of `multiprocessing` with ``fork``.

        ``"inherit"``: all arrays of the pool, also those of `numpy_allocator`, as they were at one moment of the fork.
        The child reads and writes them as ordinary arrays of its own, and so do its children. Calls of hugefork raise
        `ForkedChildError` there. A fork costs what a snapshot of all arrays of such pools costs. The snapshot lies
        between their `Operations`, unless the forking thread is inside one. The pool holds it until the child has ended
        or called ``exec``; in a full pool, its blocks are not taken away. If it cannot be taken, for example because
        the pool is full, a line on standard error says so, and the child has none of the arrays. A child can get at
        *all* memory of the pool, also at later contents. If it must not see something, put that into another pool.

        ``"nothing"``: none. A child that touches an array dies, and the first fork with arrays warns.

        No child has the arrays of a snapshot.
    reclaim_under_pressure
        Return memory to the system when the machine is short of it.

    Raises
    ------
    SizeError, BeyondTheMachineError, BackingUnavailableError, OutOfMemoryError, UnknownBackingError, ForkedChildError
        The message names the remedy.
    ValueError
        An unknown word, or ``exports=False`` with ``children="inherit"``.

    Examples
    --------
    >>> import hugefork as hf
    >>> pool = hf.Pool("64 MiB", name="state")
    >>> a = pool.zeros((1000, 64), "float32")
    >>> a.shape, a.flags.writeable
    ((1000, 64), True)
    """

    def __init__(
        self,
        capacity: Size | None = None,
        *,
        name: str = "unnamed",
        block_size: Size = "2 MiB",
        backing: Literal["auto", "hugetlb", "shmem-thp", "shmem-base"] = "auto",
        strict: bool = False,
        commit: Literal["on_demand", "upfront"] = "on_demand",
        obtain_ahead: Size | None = None,
        zeroed_stock: tuple[int, int] | None = None,
        zeroed_cpu_percent: int | None = None,
        core_dump: bool = False,
        swap: bool = True,
        exports: bool = True,
        children: Literal["inherit", "nothing"] = "inherit",
        reclaim_under_pressure: bool = False,
    ) -> None:
        if children == "inherit" and not exports:
            raise ValueError("exports=False: children inherit by the same descriptor; take children='nothing', too")
        self._native = _native.Pool(
            None if capacity is None else parse_size(capacity),
            name=name,
            block_size=parse_size(block_size),
            backing=backing,
            strict=strict,
            commit=commit,
            obtain_ahead=None if obtain_ahead is None else parse_size(obtain_ahead),
            zeroed_stock=zeroed_stock,
            zeroed_cpu_percent=zeroed_cpu_percent,
            core_dump=core_dump,
            swap=swap,
            exports=exports,
            children=children,
            reclaim_under_pressure=reclaim_under_pressure,
        )
        _faulthandler.has_pool = True

    @_makers.of_shape
    def empty(
        self,
        shape: Any,
        dtype: Any = np.float64,
        order: Literal["C", "F"] = "C",
        *,
        reserve: bool = False,
        max_cow_bytes: Size | None = None,
        copy_grain: CopyGrain = "auto",
        calls_wait: bool = False,
        operations: _native.Operations | None = None,
    ) -> Array:
        """Makes an array in a region of its own. It reads as zeros, and takes memory as it is written to.

        Parameters
        ----------
        shape, dtype, order
            As those of `numpy.empty`; a dtype with Python objects is refused.
        reserve
            Reserve blocks, so that no first write finds the pool full.
        max_cow_bytes
            Maximum number of bytes that forks and snapshots of it may hold besides it. A write that would exceed it
            revokes its block from forks and snapshots without a reservation.
        copy_grain
            The amount that a write to a shared block copies: a page of 4 KiB, the block, or the cheaper one.
        calls_wait
            System calls that write to such pages (``readinto``, ``recv_into``) wait while a snapshot is taken or
            pages are written back into blocks. Otherwise they may fail with `EFAULT` at such a moment. It needs the
            right to handle the faults of system calls (root, or ``vm.unprivileged_userfaultfd=1``).
        operations
            The operations that forks, snapshots and resets of it wait for, so that they do not separate writes that
            belong together.

        Raises
        ------
        TypeError, ValueError
            An impossible dtype or shape.
        LargerThanPoolError, NotReservableError, TooManyMappingsError, OutOfAddressesError, ForkedChildError, ClosedError
        """
        elements, lengths = checked_dtype(dtype), checked_shape(shape)
        nbytes = math.prod(lengths) * elements.itemsize
        if nbytes > sys.maxsize:
            raise ValueError(f"shape {lengths} of {elements} takes {nbytes} bytes: give one that memory can have")
        block = self._native.block_size
        region = self._native.region(
            max(1, -(-nbytes // block)) * block,
            reserve=reserve,
            max_cow_bytes=None if max_cow_bytes is None else parse_size(max_cow_bytes),
            copy_grain=copy_grain,
            calls_wait=calls_wait,
        )
        if operations is not None:
            region.set_operations(operations)
        return np.ndarray(lengths, elements, bytes_of(region), order=order)

    zeros = empty

    @_makers.of_shape
    def ones(self, shape: Any, dtype: Any = None, order: Literal["C", "F"] = "C", **options: Any) -> Array:
        """Makes an array of ones, as `numpy.ones`. `options` are those of `empty`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        return _filled(self.empty(shape, dtype, order, **options), 1)

    @_makers.of_value
    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: Literal["C", "F"] = "C", **options: Any) -> Array:
        """Makes an array of one value, as `numpy.full`. `options` are those of `empty`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        elements = np.asarray(fill_value).dtype if dtype is None else dtype
        return _filled(self.empty(shape, elements, order, **options), fill_value)

    @_makers.of_values
    def array(self, object: Any, dtype: Any = None, *, order: Any = "K", **options: Any) -> Array:
        """Makes an array with a copy of `object`, which may be anything that `numpy.asarray` accepts. `options` are
        those of `empty`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        source = np.asarray(object, dtype)
        return _filled(self.empty_like(source, order=order, **options), source)

    @_makers.like
    def empty_like(
        self, prototype: Any, dtype: Any = None, order: Any = "K", *, shape: Any = None, **options: Any
    ) -> Array:
        """Makes an array of zeros with the shape, type and order of another, as `numpy.zeros_like`, but always a plain
        `numpy.ndarray`. `options` and errors are those of `empty`."""
        like = np.asanyarray(prototype)
        elements = like.dtype if dtype is None else dtype
        lengths = like.shape if shape is None else checked_shape(shape)
        is_c, is_f = like.flags.c_contiguous, like.flags.f_contiguous
        if order == "K" and not is_c and not is_f and len(lengths) == like.ndim:
            # The axes by their strides, the longest first.
            axes = sorted(range(like.ndim), key=lambda axis: -abs(like.strides[axis]))
            return self.empty([lengths[axis] for axis in axes], elements, **options).transpose(np.argsort(axes))
        if order in ("A", "K"):
            order = "F" if is_f and not is_c and (order == "A" or len(lengths) == like.ndim) else "C"
        return self.empty(lengths, elements, order, **options)

    zeros_like = empty_like

    @_makers.like
    def ones_like(self, a: Any, dtype: Any = None, order: Any = "K", **options: Any) -> Array:
        """Makes an array of ones, with the arguments of `empty_like`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        return _filled(self.empty_like(a, dtype, order, **options), 1)

    @_makers.like_with_value
    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", **options: Any) -> Array:
        """Makes an array of one value, with the other arguments of `empty_like`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        return _filled(self.empty_like(a, dtype, order, **options), fill_value)

    def region(
        self, size: Size, *, reserve: bool = False, copy_grain: CopyGrain = "auto", calls_wait: bool = False
    ) -> _native.Region:
        """Plain memory, a multiple of the block size, with the buffer protocol: for `memoryview`, `struct`, and arrays
        that lie side by side (``np.frombuffer(region, dtype, count, offset)``)."""
        return self._native.region(
            parse_size(size),
            reserve=reserve,
            max_cow_bytes=None,
            copy_grain=copy_grain,
            calls_wait=calls_wait,
        )

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._native.name

    @property
    def capacity(self) -> int:
        """Size of all of its blocks in bytes."""
        return self._native.capacity

    @property
    def block_size(self) -> int:
        """Size of a block in bytes."""
        return self._native.block_size

    @property
    def backing(self) -> str:
        """The kind of its memory that the kernel granted."""
        return self._native.backing

    @property
    def fallback_reason(self) -> str | None:
        """The reason why the machine refused a better kind of memory, if it did."""
        reason = self._native.fallback_reason
        return None if reason is None else in_words_of_python(reason)

    @property
    def no_page_grain(self) -> str | None:
        """The reason why writes to shared memory cannot copy single pages; None if they can."""
        reason = self._native.no_page_grain
        return None if reason is None else in_words_of_python(reason)

    def stats(self) -> PoolStats:
        """Statistics of the pool. Takes up to 1.6 ms for each GiB."""
        native = self._native
        return PoolStats(name=native.name, block_size=native.block_size, **native.stats())

    def reclaim(self, size: Size) -> int:
        """Drops lazily freed contents, oldest first, until `size` bytes are dropped. Returns the number of dropped
        bytes."""
        return self._native.reclaim(parse_size(size))

    def trim(self) -> int:
        """Returns the memory of free blocks to the system. Returns the number of bytes."""
        return self._native.trim()

    @property
    def closed(self) -> bool:
        """Whether the handle was closed."""
        return self._native.closed

    def close(self) -> None:
        """Closes the handle: no new arrays can be made. Existing arrays remain valid and keep the memory."""
        self._native.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_how: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<hugefork.Pool, closed>"
        figures = self._native.stats()
        used = (figures["blocks"] - figures["blocks_free"] - figures["blocks_reserved"]) * self.block_size
        return (
            f"<hugefork.Pool {self.name!r}: {in_words(used)} of {in_words(self.capacity)} in use by "
            f"{figures['regions']} region(s); blocks of {in_words(self.block_size)} on {self.backing}>"
        )


def _filled(made: Array, values: Any) -> Array:
    """Writes to a new array."""
    # Without populating first, a write to a full pool would be a SIGBUS.
    region_place(made)[0].prepare_write(0, made.nbytes)
    made[...] = values
    return made


class _DefaultPool(Pool):
    """A pool that is made when it is first used."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name != "_native":
            raise AttributeError(name)
        # If two threads are here at once, the pool of one is dropped. A lock could be held at a fork.
        return vars(self).setdefault(name, Pool(name="default")._native)


default_pool: Pool = _DefaultPool()
"""The pool of `hugefork.zeros` and its kin, with all memory of the machine or container. It is made at its first use."""
