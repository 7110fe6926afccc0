"""What can be done with the memory of an array."""

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
"""So many bytes are read before Python looks after signals."""

_LOOK_AFTER_SIGNALS = 100
"""So many milliseconds a descriptor is waited for before Python looks after signals."""


class HasDescriptor(Protocol):
    """A file, pipe or socket."""

    def fileno(self) -> int: ...


def region_of(array: Array) -> _native.Region:
    """The region that an array lies in. ``region_of(a).close()`` gives its memory back, once no array is left."""
    return region_place(array)[0]


def stats(array: Array) -> RegionStats:
    """What the region of an array has, and what happened to it. Takes some nanoseconds a block."""
    return RegionStats(**region_place(array)[0].stats())


def populate(array: Array, *, threads: int = 1, progress: Callable[[int], Any] | None = None) -> None:
    """Gives all of the array's region its memory now, so that no first write faults later.

    Parameters
    ----------
    threads
        How many threads do it, at most.
    progress
        Called with the bytes that are done, after each 64 MiB, from any of them. What it raises ends the work.

    Raises
    ------
    PoolFullError, OutOfMemoryError, TooManyMappingsError, RevokedError; and what `progress` raises. What has been done by
    then stays.
    """
    if threads < 1:
        raise ValueError(f"threads={threads}: give at least one")
    region_place(array)[0].populate(min(threads, sys.maxsize), progress)


def prepare_write(array: Array) -> None:
    """Makes an array without gaps writable now, so that system calls can write there (``file.readinto(a)``,
    ``socket.recv_into(a)``, ``dataset.read_direct(a)`` of h5py) until the next fork or snapshot of it. Raises what
    `populate` raises."""
    region, start, stop = range_of(array)
    region.prepare_write(start, stop)


def prepare_snapshot(*arrays: Array) -> None:
    """Does now what the next snapshot or fork of these arrays would do before its pause. For a program whose
    `snapshot` runs under a lock that other threads wait for: call it right before that lock is taken. It matters for
    arrays with ``copy_grain="page"``: 2 us for each page that was written, or for a fork 150 us for each block that
    older snapshots hold. Nothing changes but where bytes lie.

    Raises
    ------
    PoolFullError, OutOfMemoryError, TooManyMappingsError. Then some is left to the snapshot. InsideOperationError.
    """
    for region, _ in {id(region): (region, place) for region, place in map(region_place, arrays)}.values():
        region.prepare_snapshot()


def pin(array: Array) -> _native.Pin:
    """Keeps an array without gaps writable and where it is: for system calls that write, also while others take
    snapshots, and for devices. Libraries make such calls, too: MPI where it receives (`hugefork.mpi`), h5py in
    ``dataset.read_direct(a)``. A snapshot or reset has each word of pinned pages as it is before or after a write
    meanwhile; all other pages are of one moment. Ends with ``with hugefork.pin(a):``,
    `Pin.release`, or when it is collected.

    Raises TooManyPinsError, and what `populate` raises.
    """
    region, start, stop = range_of(array)
    return region.pin(start, stop)


def read_into(array: Array, file: HasDescriptor | int, *, offset: int | None = None) -> int:
    """Reads from a file, pipe or stream socket into an array without gaps, whatever is shared or was never written.
    Returns the bytes that were read: fewer than asked for at the end of the file only. A signal whose handler raises, such
    as Ctrl-C, ends the wait for a pipe or socket; what was read by then is in the array.

    Parameters
    ----------
    file
        An object with ``fileno()``, or a descriptor. What a file object has buffered is not seen: open files with
        ``buffering=0``, or give `offset`.
    offset
        Where in the file to begin; its position stays where it is then.

    Raises
    ------
    SystemCallError, and what `populate` raises.
    """
    region, start, stop = range_to_change(array)
    if not isinstance(file, int) and not hasattr(file, "fileno"):
        raise TypeError(f"{file!r} is no file: give an object with fileno(), or a descriptor")
    if offset is not None and offset < 0:
        raise ValueError(f"offset={offset}: give the bytes from the start of the file")
    fd = file if isinstance(file, int) else file.fileno()
    done, whole = 0, stop - start
    while done < whole:
        # Between the pieces, Python looks after signals.
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
    """How many bytes to ask a descriptor for: those that are there, for which this waits. A descriptor that does not
    block, or cannot tell, is asked for more."""
    try:
        if not os.get_blocking(fd):
            return _READ_AT_ONCE
    except OSError:
        # The call that reads says what is wrong.
        return _READ_AT_ONCE
    waiting, there = select.poll(), bytearray(4)
    waiting.register(fd, select.POLLIN)
    # A signal that comes just before the call does not end it: Python looks after it when the call returns.
    while not waiting.poll(_LOOK_AFTER_SIGNALS):
        pass
    try:
        fcntl.ioctl(fd, termios.FIONREAD, there)
    except OSError:
        return _READ_AT_ONCE
    count = int.from_bytes(there, sys.byteorder, signed=True)
    # None are there at the end; and of a large file the count is too small.
    return min(count, _READ_AT_ONCE) if count > 0 else _READ_AT_ONCE


def lazy_free(array: Array) -> LazyFreed:
    """Allows hugefork to drop the contents of an array without gaps when memory is short. Until then it reads as
    before; what was dropped reads as zeros. A write to a block takes the permission back and keeps its contents. What
    forks or snapshots hold, and what is pinned, is skipped.

    Raises TooManyMappingsError, SystemCallError; nothing is lost then.
    """
    region, start, stop = range_to_change(array)
    return LazyFreed(**region.lazy_free(start, stop))


def cancel_lazy_free(array: Array) -> int:
    """Takes `lazy_free` back for what is not dropped yet. Returns how many bytes that were."""
    region, start, stop = range_of(array)
    return region.cancel_lazy_free(start, stop)


def discard(array: Array) -> None:
    """Sets an array without gaps to zeros and gives its whole blocks back to the pool. Forks and snapshots keep what
    they have. Nobody else may use the array meanwhile.

    Raises what `populate` raises.
    """
    region, start, stop = range_to_change(array)
    region.discard(start, stop)


def advise(array: Array, use: Literal["unknown", "near", "whole"]) -> None:
    """Tells how the program uses a block after its first write: what lies near (``"near"``), all of it
    (``"whole"``), or nobody knows."""
    region_place(array)[0].advise(use)


def is_revoked(array: Array) -> bool:
    """Whether a part of this fork was taken away, because the pool was full. A read there is a `SIGBUS`."""
    return region_place(array)[0].is_revoked()


def reset(*arrays: Array | Snapshot, to: Snapshot | None = None) -> None:
    """Sets arrays back to what they were in a snapshot, at the cost of what was written since. All memory of each array
    goes back, whatever the view shows of it; arrays and views of it stay where they are, and so does the snapshot.

    Pages of 4 KiB that were written since take 0.2 to 0.8 us each if they were written before the last reset, too, and
    11 to 19 us if not; some 4 us more where other threads run. Those may write meanwhile: a write comes before the reset and is gone, or after it and stays. Several arrays go back as one
    consistent cut: if a write is gone, so is every write that happened before it, in whichever thread and array. Threads
    that only read may see one array back before another.

    Parameters
    ----------
    arrays
        The arrays, and behind them where they are to go back to:

        * ``reset(a, b, s)``: a snapshot that they are in. It may be given as `to`, too.
        * ``reset(a, b, s[a], s[b])``: arrays of any snapshots, one for each, of as much memory of the same pool. So
          a fork goes back to what `a` was in `s`.

    Raises
    ------
    KeyError
        An array is not in the snapshot.
    RevokedError
        A part of the snapshot was taken away.
    AnotherPoolError, AnotherLengthError
        The snapshot is of other memory. Nothing has changed, as after those above.
    TooManyMappingsError, SystemCallError
        Each page is as before, or as in the snapshot; ``error.done`` bytes of the arrays' regions, in their order, are as
        in the snapshot. Another call goes on there.
    NotReservableError
        All is as in the snapshot, but blocks could not be set aside again (``reserve=True``).

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
    array: Array, older: Snapshot, newer: Snapshot | None = None, *, by: Literal["page", "block"] = "page"
) -> list[slice]:
    """What of an array differs from what it was in a snapshot: slices of its elements in the order of memory, so of
    ``array.reshape(-1)`` for an array in C order.

    Parameters
    ----------
    array
        An array without gaps.
    older
        A snapshot that it is in.
    newer
        A later snapshot, to be compared instead of the array as it is now.
    by
        ``"page"``: all pages of 4 KiB whose bytes differ, and no others. ``"block"``: all blocks that were written to,
        without a look at bytes.

    Raises
    ------
    KeyError
        The array is not in a snapshot.
    RevokedError
        A part of it was taken away.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(1 << 20)
    >>> s = hf.snapshot(a)
    >>> a[600] = 1
    >>> hf.changed_since(a, s)
    [slice(512, 1024, None)]
    """
    if by not in ("page", "block"):
        raise ValueError(f"by={by!r}: take one of page, block")
    for cut in (older,) if newer is None else (older, newer):
        checked_snapshot(cut)
    region, start, stop = range_of(array)
    side = region if newer is None else newer._part(region)
    size = max(1, array.itemsize)
    slices = []
    for low, high in side.changed_since(older._part(region), by == "page"):
        first, last = max(low, start) - start, min(high, stop) - start
        if first < last:
            slices.append(slice(first // size, -(-last // size)))
    return slices
