"""Pools: physical memory in blocks, of which arrays are made."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from . import _faulthandler, _native
from ._arrays import Array, bytes_of, checked_dtype, checked_shape, region_place
from ._errors import in_words_of_python
from ._stats import PoolStats

__all__ = ["CopyGrain", "Pool", "Size", "parse_size"]

Size = int | str
"""A number of bytes, or words for one: ``"512 MiB"``, ``"8GiB"``, ``"64k"``. Units are powers of two."""

CopyGrain = Literal["auto", "page", "block"]


def parse_size(size: Size) -> int:
    """Bytes of a size, such as ``"512 MiB"``. Raises TypeError, or ValueError with a word on what to write."""
    if isinstance(size, str):
        return _native.parse_size(size)
    if not hasattr(size, "__index__"):
        raise TypeError(f"{size!r} is no size: give bytes, or text such as '512 MiB'")
    nbytes = int(size.__index__())
    if not 0 <= nbytes <= sys.maxsize:
        raise ValueError(f"a size of {nbytes} bytes: give a positive one that memory can have")
    return nbytes


def in_words(nbytes: int) -> str:
    """A number of bytes for people."""
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size == int(size) else f"{size:.3g} {unit}"


class Pool:
    """Physical memory in blocks of one size, on the best huge pages that the machine grants.

    A pool is a handle. Its memory goes back to the system when the handle and all of its arrays and snapshots are gone.

    Parameters
    ----------
    capacity
        The most bytes that it may have, a multiple of the block size: a number, or ``"8 GiB"``.
    name
        What messages call it.
    block_size
        The unit in which memory is given: a power of two from 4 KiB to 1 GiB. Each array takes whole blocks.
    backing
        ``"auto"``, ``"hugetlb"``, ``"shmem-thp"`` or ``"shmem-base"``. `Pool.backing` tells what it became.
    strict
        Fail rather than take another backing than the one that was asked for.
    commit
        ``"on_demand"``: memory comes as it is used. ``"upfront"``: all of it now, 240 to 300 ms for each GiB.
    obtain_ahead
        Bytes of free blocks that a thread gets memory for, while pages are written that the next snapshot may have to
        hold; by default 128 MiB, and none in pools of less than 128 MiB. It gives them back when nothing was written
        for a second.
    zeroed_stock
        ``(low, high)`` in blocks: a thread clears used blocks in the background whenever fewer than `low` are
        clear, until `high` are.
    zeroed_cpu_percent
        The most CPU time that this thread may take, in percent of one CPU.
    core_dump
        Whether core dumps have the contents. Without, gdb may show **zeros** in place of arrays.
    swap
        Whether the system may swap the memory out. False takes ``CAP_SYS_ADMIN`` and Linux 6.4, or hugetlb pages;
        where neither is there, `fallback_reason` says so, or `strict` refuses it.
    exports
        Whether `share` works without a copy. The pool keeps a descriptor of its memory for that, for reading. Without,
        it keeps none (but of hugetlb pages), and no process of the same user can open the memory and write to it by way
        of ``/proc/PID/fd``.
    reclaim_under_pressure
        Give memory back when the machine is short of it.

    Raises
    ------
    SizeError, BeyondTheMachineError, BackingUnavailableError, OutOfMemoryError, UnknownBackingError, ForkedChildError
        The message says what to change.

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
        capacity: Size,
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
        reclaim_under_pressure: bool = False,
    ) -> None:
        self._native = _native.Pool(
            parse_size(capacity),
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
            reclaim_under_pressure=reclaim_under_pressure,
        )
        _faulthandler.has_pool = True

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: Any = np.float64,
        *,
        order: Literal["C", "F"] = "C",
        reserve: bool = False,
        max_cow_bytes: Size | None = None,
        copy_grain: CopyGrain = "auto",
        calls_wait: bool = False,
        operations: _native.Operations | None = None,
    ) -> Array:
        """A new array in a region of its own. It reads as zeros, and takes memory as it is written to.

        Parameters
        ----------
        shape, dtype, order
            As those of `numpy.empty`; a dtype with Python objects is refused.
        reserve
            Set blocks aside, so that no first write finds the pool full.
        max_cow_bytes
            The most bytes that forks and snapshots of it may hold beside it. A write that would exceed that takes its
            block away from those without a reservation.
        copy_grain
            What a write copies that finds its block shared with a fork or snapshot: pages of 4 KiB, blocks, or what is
            cheaper.
        calls_wait
            System calls that write to such pages (``readinto``, ``recv_into``) wait while a snapshot is taken or pages
            go back into blocks. Otherwise they may fail with `EFAULT` at such a moment. It takes the right to handle
            the faults of system calls (root, or ``vm.unprivileged_userfaultfd=1``).
        operations
            What forks, snapshots and resets of it wait for, so that they come between writes that belong together.

        Raises
        ------
        TypeError, ValueError
            A dtype or shape that cannot be.
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

    def array(self, values: Any, dtype: Any = None, *, order: Literal["C", "F"] = "C", **options: Any) -> Array:
        """A new array with a copy of `values`, which is anything that `numpy.asarray` takes. `options` are those of
        `empty`.

        Raises
        ------
        PoolFullError, and those of `empty`
        """
        source = np.asarray(values, dtype)
        made = self.empty(source.shape, source.dtype, order=order, **options)
        # A write that found the pool full would be a SIGBUS.
        region_place(made)[0].prepare_write(0, made.nbytes)
        made[...] = source
        return made

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
        """What messages call it."""
        return self._native.name

    @property
    def capacity(self) -> int:
        """Bytes of all of its blocks."""
        return self._native.capacity

    @property
    def block_size(self) -> int:
        """Bytes of a block."""
        return self._native.block_size

    @property
    def backing(self) -> str:
        """What its memory is made of, as the kernel granted it."""
        return self._native.backing

    @property
    def fallback_reason(self) -> str | None:
        """Why the machine refused a better backing, if it did."""
        reason = self._native.fallback_reason
        return None if reason is None else in_words_of_python(reason)

    @property
    def no_page_grain(self) -> str | None:
        """Why writes to what is shared cannot copy single pages; None if they can."""
        reason = self._native.no_page_grain
        return None if reason is None else in_words_of_python(reason)

    def stats(self) -> PoolStats:
        """What it has, and what happened in it. Takes up to 1.6 ms for each GiB."""
        native = self._native
        return PoolStats(name=native.name, block_size=native.block_size, **native.stats())

    def reclaim(self, size: Size) -> int:
        """Drops what was lazily freed, oldest first, until so many bytes are dropped. Returns how many were."""
        return self._native.reclaim(parse_size(size))

    def trim(self) -> int:
        """Gives the memory of free blocks back to the system. Returns how many bytes that were."""
        return self._native.trim()

    @property
    def closed(self) -> bool:
        """Whether the handle was closed."""
        return self._native.closed

    def close(self) -> None:
        """Gives the handle up: no new arrays. Those that are there stay, and keep the memory."""
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
