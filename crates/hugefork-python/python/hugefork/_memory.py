"""Functions on the memory of an array."""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
from collections.abc import Callable
from typing import Any, Literal, Protocol

from . import _native
from ._arrays import Array, place_of, range_of, range_to_change, region_place
from ._errors import HugeforkError
from ._snapshot import Snapshot, checked_snapshot
from ._stats import LazyFreed, RegionStats

__all__ = [
    "advise",
    "cancel_lazy_free",
    "changed_since",
    "discard",
    "is_revoked",
    "lazy_free",
    "pin",
    "populate",
    "prepare_snapshot",
    "prepare_write",
    "read_into",
    "region_of",
    "reset",
    "stats",
]


_READ_AT_ONCE = 64 << 20
"""Bytes read between two checks for signals."""

_LOOK_AFTER_SIGNALS = 100
"""Milliseconds to wait for a descriptor between two checks for signals."""


class HasDescriptor(Protocol):
    """A file, pipe or socket."""

    def fileno(self) -> int: ...


def region_of(array: Array) -> _native.Region:
    """The region of an array. ``region_of(a).close()`` frees its memory once no array of it is left."""
    return region_place(array)[0]


def stats(array: Array) -> RegionStats:
    """Statistics of the region of an array. Takes some nanoseconds a block."""
    return RegionStats(**region_place(array)[0].stats())


def populate(array: Array, *, threads: int = 1, progress: Callable[[int], Any] | None = None) -> None:
    """Gets memory for all of the array's region now, so that no first write faults later.

    Parameters
    ----------
    threads
        Maximum number of threads.
    progress
        Called with the number of finished bytes, after each 64 MiB, from any of these threads. An exception from it
        ends the work.

    Raises
    ------
    PoolFullError, OutOfMemoryError, TooManyMappingsError, RevokedError; and the exceptions of `progress`. The work
    done so far is not undone. """
    if threads < 1:
        raise ValueError(f"threads={threads}: give at least one")
    region_place(array)[0].populate(min(threads, sys.maxsize), progress)


def prepare_write(array: Array) -> None:
    """Makes an array without gaps writable now, so that system calls can write there (``file.readinto(a)``,
    ``socket.recv_into(a)``, ``dataset.read_direct(a)`` of h5py) until the next fork, snapshot or reset of it. Raises
    the errors of `populate`."""
    region, start, stop = range_of(array)
    region.prepare_write(start, stop)


def prepare_snapshot(*arrays: Array) -> None:
    """Does the work now that the next snapshot or fork of these arrays would do before its pause. It is for a program
    whose `snapshot` runs under a lock that other threads wait for: call it right before taking that lock. It matters
    for arrays with ``copy_grain="page"``: 2 us for each page that was written, or for a fork 150 us for each block
    that older snapshots hold. The contents do not change.

    Raises
    ------
    PoolFullError, OutOfMemoryError, TooManyMappingsError. Then some is left to the snapshot. InsideOperationError.
    """
    for region, _ in {id(region): (region, place) for region, place in map(region_place, arrays)}.values():
        region.prepare_snapshot()


def pin(array: Array) -> _native.Pin:
    """Holds an array without gaps writable and in place: for system calls that write while other threads take
    snapshots, and for devices. Libraries make such calls, too: MPI when it receives (`hugefork.mpi`), h5py in
    ``dataset.read_direct(a)``. If pinned pages are written during a snapshot or reset, each word in it is either old
    or new; all other pages are captured at one moment. The pin ends after ``with hugefork.pin(a):``, by
    `Pin.release`, or when it is collected.

    Raises TooManyPinsError, and the errors of `populate`.
    """
    region, start, stop = range_of(array)
    return region.pin(start, stop)


def read_into(array: Array, file: HasDescriptor | int, *, offset: int | None = None) -> int:
    """Reads from a file, pipe or stream socket into an array without gaps, whether or not it is shared or was ever
    written. Returns the number of bytes read: fewer than requested only at the end of the file. A signal whose
    handler raises, such as Ctrl-C, ends the wait for a pipe or socket; the bytes read by then are in the array.

    Parameters
    ----------
    file
        An object with ``fileno()``, or a descriptor. Data buffered in a file object is skipped: open files with
        ``buffering=0``, or pass `offset`.
    offset
        The position in the file to begin at; the file's own position does not change then.

    Raises
    ------
    SystemCallError, and the errors of `populate`.
    """
    region, start, stop = range_to_change(array)
    if not isinstance(file, int) and not hasattr(file, "fileno"):
        raise TypeError(f"{file!r} is not a file: give an object with fileno(), or a descriptor")
    if offset is not None and offset < 0:
        raise ValueError(f"offset={offset}: give the bytes from the start of the file")
    fd = file if isinstance(file, int) else file.fileno()
    done, whole = 0, stop - start
    while done < whole:
        # Between the pieces, Python checks for signals.
        piece = min(whole - done, _READ_AT_ONCE if offset is not None else _readable(fd))
        at = start + done
        try:
            came = region.read_from(fd, at, at + piece, None if offset is None else offset + done)
        except HugeforkError as error:
            error.done = done + (error.done or 0)
            raise
        done += came
        if came < piece:
            break
    return done


def _readable(fd: int) -> int:
    """Waits for a descriptor to have bytes, and returns their number. For a descriptor that does not block, or cannot
    report it, the result is larger."""
    try:
        if not os.get_blocking(fd):
            return _READ_AT_ONCE
    except OSError:
        # The read reports the error.
        return _READ_AT_ONCE
    waiting, there = select.poll(), bytearray(4)
    waiting.register(fd, select.POLLIN)
    # A signal right before the call does not end it: Python checks for signals after the call.
    while not waiting.poll(_LOOK_AFTER_SIGNALS):
        pass
    try:
        fcntl.ioctl(fd, termios.FIONREAD, there)
    except OSError:
        return _READ_AT_ONCE
    count = int.from_bytes(there, sys.byteorder, signed=True)
    # The count is 0 at the end, and too small for a large file.
    return min(count, _READ_AT_ONCE) if count > 0 else _READ_AT_ONCE


def lazy_free(array: Array) -> LazyFreed:
    """Allows hugefork to drop the contents of an array without gaps when memory is short. Until then it reads as
    before; dropped contents read as zeros. A write to a block cancels the permission and preserves the contents.
    Memory that forks or snapshots hold, and pinned memory, is skipped.

    Raises TooManyMappingsError or SystemCallError; no contents are lost then.
    """
    region, start, stop = range_to_change(array)
    return LazyFreed(**region.lazy_free(start, stop))


def cancel_lazy_free(array: Array) -> int:
    """Cancels `lazy_free` for contents that are not dropped yet. Returns the number of bytes."""
    region, start, stop = range_of(array)
    return region.cancel_lazy_free(start, stop)


def discard(array: Array) -> None:
    """Sets an array without gaps to zeros and returns its whole blocks to the pool. Forks and snapshots are not
    affected. No other thread may use the array meanwhile.

    Raises the errors of `populate`.
    """
    region, start, stop = range_to_change(array)
    region.discard(start, stop)


def advise(array: Array, use: Literal["unknown", "near", "whole"]) -> None:
    """Announces the program's use of a block after its first write: bytes nearby (``"near"``), all of it
    (``"whole"``), or unknown."""
    region_place(array)[0].advise(use)


def is_revoked(array: Array) -> bool:
    """Whether a part of this fork was revoked, because the pool was full. A read of that part is a `SIGBUS`."""
    return region_place(array)[0].is_revoked()


def reset(*arrays: Array | Snapshot, to: Snapshot | None = None) -> None:
    """Resets arrays to a snapshot, at a cost proportional to the amount written since. All memory of each array is
    reset, even if the array is a smaller view of it. Arrays and views remain valid, and so does the snapshot.

    Pages of 4 KiB that were written since take 0.2 to 0.8 us each if they were also written before the last reset,
    and 11 to 19 us if not; some 4 us more if other threads run. Those may write meanwhile: a write comes before the
    reset and is lost, or after it and remains. Several arrays are reset as one consistent cut: if a write is lost, so
    is every write that happened before it, in any thread and array. Threads that only read may see one array reset
    before another.

    Parameters
    ----------
    arrays
        The arrays, followed by their targets:

        * ``reset(a, b, s)``: a snapshot that they are in. It may be given as `to`, too.
        * ``reset(a, b, s[a], s[b])``: arrays of any snapshots, one for each array, with as much memory, of the same
        * pool. So a fork can be reset to `a` in `s`.

    Raises
    ------
    KeyError
        An array is not in the snapshot.
    RevokedError
        A part of the snapshot was revoked.
    AnotherPoolError, AnotherLengthError
        The snapshot is one of other memory. Nothing has changed, as after the errors above.
    TooManyMappingsError, SystemCallError
        Each page is as before, or as in the snapshot; ``error.done`` bytes of the arrays' regions, in their order,
        are as in the snapshot. Another call continues there.
    NotReservableError
        All is as in the snapshot, but blocks could not be reserved again (``reserve=True``).

    Examples
    --------
    >>> import hugefork as hf
    >>> pool = hf.Pool("64 MiB")
    >>> a, b = pool.zeros(3), pool.zeros(2)
    >>> s = hf.snapshot(a, b)
    >>> a[:], b[:] = 7, 8
    >>> hf.reset(a, b, s)
    >>> a, b
    (array([0., 0., 0.]), array([0., 0.]))
    >>> branch = hf.fork(a)
    >>> branch[0] = 1
    >>> hf.reset(branch, s[a])
    >>> branch
    array([0., 0., 0.])
    """
    if to is not None:
        checked_snapshot(to)
    *named, last = arrays or (None,)
    if isinstance(last, Snapshot):
        if to is not None:
            raise TypeError("reset() got two snapshots: give one")
        to = last
    else:
        named = list(arrays)
    if not named:
        raise TypeError("reset() needs at least one array")
    places = [place_of(array) for array in named]
    goals: list[_native.RegionSnapshot] = []
    for place in reversed(places):
        if to is not None or not isinstance(place.holder, _native.RegionSnapshot):
            break
        goals.insert(0, place.holder)
    regions = [region_place(array)[0] for array in named[: len(named) - len(goals)]]
    if goals and len(goals) != len(regions):
        raise ValueError(f"{len(regions)} arrays cannot go back to {len(goals)} of snapshots: give one for each")
    if to is not None:
        goals = [to._part(region) for region in regions]
    elif not goals:
        raise TypeError("reset() needs a snapshot: give one behind the arrays")
    pairs: dict[int, tuple[_native.Region, _native.RegionSnapshot]] = {}
    for region, goal in zip(regions, goals):
        if pairs.setdefault(id(region), (region, goal))[1] is not goal:
            raise ValueError("two views of one array cannot go back to two snapshots: give one of them")
    _native.reset_all([region for region, _ in pairs.values()], [goal for _, goal in pairs.values()])


def changed_since(
    array: Array, older: Snapshot, newer: Snapshot | None = None, *, by: Literal["page", "block", "written"] = "page"
) -> list[slice]:
    """Finds the elements of an array that differ from a snapshot, as slices of its elements in memory order, so of
    ``array.reshape(-1)`` for an array in C order.

    Parameters
    ----------
    array
        An array without gaps.
    older
        A snapshot that it is in.
    newer
        A later snapshot to compare instead of the present array.
    by
        ``"page"``: all pages of 4 KiB whose bytes differ, and no others. ``"block"``: all blocks that were written
        to, without comparing bytes. ``"written"``: all pages that may have been written to, without comparing bytes;
        pages that were read for the first time may be among them.

    Raises
    ------
    KeyError
        The array is not in a snapshot.
    RevokedError
        A part of it was revoked.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(1 << 20)
    >>> s = hf.snapshot(a)
    >>> a[600] = 1
    >>> hf.changed_since(a, s)
    [slice(512, 1024, None)]
    """
    if by not in ("page", "block", "written"):
        raise ValueError(f"by={by!r}: take one of page, block, written")
    for cut in (older,) if newer is None else (older, newer):
        checked_snapshot(cut)
    region, start, stop = range_of(array)
    side = region if newer is None else newer._part(region)
    size = max(1, array.itemsize)
    slices = []
    for low, high in side.changed_since(older._part(region), by):
        first, last = max(low, start) - start, min(high, stop) - start
        if first < last:
            slices.append(slice(first // size, -(-last // size)))
    return slices
