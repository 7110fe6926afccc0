"""Snapshots and forks of arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NoReturn, cast, overload

import numpy as np

from . import _native
from ._arrays import IN_POOL, A, Array, Place, holder_of, place_of, region_place
from ._errors import ClosedError
from ._pool import CopyGrain, Size, in_words, parse_size

__all__ = ["Snapshot", "fork", "snapshot"]


Parts = dict[int, tuple[_native.Region, _native.RegionSnapshot]]
"""Regions and their snapshots, by the `id` of the region."""


class Snapshot:
    """The contents of arrays at one moment, taken by `snapshot`.

    ``s[a]`` is a read-only array with the shape and type of `a` and its values at that moment; it takes no memory until
    it is read. ``s[view]`` works for any other view of the same memory, and ``s["a"]`` for an array that was given by
    this name. ``list(s)`` returns the arrays in the order in which they were given.

    Leaving a ``with`` block closes the handle. Arrays taken from the snapshot remain valid, for example for a thread
    that still writes them to a file; the memory is freed when the last of them is gone.

    A snapshot captures all threads' writes at one moment. It may contain the first of two writes that belong together
    without the second; `Operations` prevent that.
    """

    def __init__(self, parts: Parts, places: dict[Hashable, Place]) -> None:
        self._parts: Parts | None = parts
        self._places = places
        """By their numbers, or by the names that were given."""

    def _open(self) -> Parts:
        if self._parts is None:
            raise ClosedError("this snapshot is closed: take its arrays before the `with` block ends")
        return self._parts

    def _part(self, region: object) -> _native.RegionSnapshot:
        found = self._open().get(id(region))
        if found is None:
            raise KeyError("this array is not in the snapshot: name it when the snapshot is taken")
        return found[1]

    @overload
    def __getitem__(self, array: A) -> A: ...
    @overload
    def __getitem__(self, array: str) -> Array: ...
    def __getitem__(self, array: Array | str) -> Array:
        """The array at the moment of the snapshot. Raises KeyError if it is not in the snapshot, and RevokedError if
        a part of it was revoked before its first use."""
        place = self._named(array) if isinstance(array, str) else region_place(array)[1]
        return place.on(self._part(place.holder))

    def _named(self, name: str) -> Place:
        if name not in self._places:
            raise KeyError(f"no array of the snapshot has the name {name!r}: give names, such as snapshot({{{name!r}: a}})")
        return self._places[name]

    def __iter__(self) -> Iterator[Array]:
        for place in self._places.values():
            yield place.on(self._part(place.holder))

    def __len__(self) -> int:
        """The number of arrays."""
        return len(self._places)

    def __contains__(self, array: Any) -> bool:
        return array in self._places if isinstance(array, str) else id(region_place(array)[0]) in self._open()

    def reset(self) -> None:
        """Resets all of its arrays to it: `hugefork.reset` of all, with the same errors."""
        parts = list(self._open().values())
        _native.reset_all([region for region, _ in parts], [part for _, part in parts])

    def copy(self, array: A) -> A:
        """A copy of an array at the moment of the snapshot, in ordinary memory. It needs no mappings. If a part was
        revoked, it raises RevokedError; a read of ``s[a]`` would be a `SIGBUS`."""
        region, place = region_place(array)
        buffer = np.empty(place.stop - place.start, np.uint8)
        self._part(region).read_at(place.start, buffer)
        copied = np.ndarray(place.shape, place.dtype, buffer, place.offset - place.start, place.strides)
        return cast(A, copied)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot stays with its process: send hugefork.share(snapshot), which copies nothing")

    @property
    def id(self) -> int:
        """Identifies the snapshot in this process. Of two, the later has the greater id."""
        return max((part.id for _, part in self._open().values()), default=0)

    @property
    def nbytes(self) -> int:
        """Size of the arrays' regions together, in bytes."""
        return sum(part.nbytes for _, part in self._open().values())

    @property
    def is_revoked(self) -> bool:
        """Whether a part was revoked because the pool was full. Check this *after* using the arrays."""
        return any(part.is_revoked() for _, part in self._open().values())

    @property
    def closed(self) -> bool:
        """Whether the handle was closed."""
        return self._parts is None

    def close(self) -> None:
        """Frees the memory now.

        Raises BufferError while arrays of it exist. A second call does nothing.
        """
        if self._parts is None:
            return
        live = sum(part.exports for _, part in self._parts.values())
        if live:
            raise BufferError(f"{live} array(s) of this snapshot live: delete them before it is closed, or only delete it")
        for _, part in self._parts.values():
            part.close()
        self._parts = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_how: object) -> None:
        self._parts = None

    def __repr__(self) -> str:
        if self._parts is None:
            return "<hugefork.Snapshot, closed>"
        lost = ", parts of which were taken away" if self.is_revoked else ""
        return f"<hugefork.Snapshot {self.id} of {len(self)} array(s), {in_words(self.nbytes)}{lost}>"


def checked_snapshot(given: Any) -> Snapshot:
    """Returns `given`, or raises if it is not a snapshot."""
    if not isinstance(given, Snapshot):
        raise TypeError(f"{type(given).__name__} is not a snapshot: give one that hugefork.snapshot has taken")
    return given


def snapshot(*arrays: Array | Mapping[str, Array], reserve: bool = False) -> Snapshot:
    """Takes one consistent cut over several arrays, in microseconds: if it contains a write, it contains every write
    that happened before it, in any thread and array. The call copies nothing; later writes copy the memory that they
    change.

    Parameters
    ----------
    arrays
        Arrays of pools or of `numpy_allocator`, or views of them: all memory of the array is in the cut, even if the
        view shows a part. Or one mapping of them by name.
    reserve
        No part is ever revoked. When the pool is full, a write to the arrays that needs a copy ends the process instead
        (SIGBUS): make the pool larger than the arrays and what is written meanwhile.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array of a pool.
    PoolFullError, TooManyMappingsError, RevokedError, ForkedChildError

    Examples
    --------
    >>> import hugefork as hf
    >>> pool = hf.Pool("64 MiB")
    >>> a, b = pool.zeros(3), pool.zeros(2, "int32")
    >>> with hf.snapshot(a, b) as s:
    ...     a[:] = 7
    ...     print(s[a], s[b], a)
    ...     s.reset()
    [0. 0. 0.] [0 0] [7. 7. 7.]
    >>> a, hf.snapshot({"left": a, "right": b})["left"]
    (array([0., 0., 0.]), array([0., 0., 0.]))
    """
    places = places_of(arrays, "snapshot")
    return snapshot_of([cast(_native.Region, place.holder) for place in places.values()], places, reserve)


def places_of(arrays: tuple[Any, ...], function: str) -> dict[Hashable, Place]:
    """The positions of arrays that a function was given, by their numbers or by their names."""
    named = dict(arrays[0] if len(arrays) == 1 and isinstance(arrays[0], Mapping) else enumerate(arrays))
    if not named:
        raise TypeError(f"{function}() needs at least one array")
    outside = [
        f"array {name!r} of {array.nbytes} bytes"
        for name, array in named.items()
        if isinstance(array, np.ndarray) and holder_of(array) is None
    ]
    if outside:
        raise ValueError(f"{', '.join(outside)} {'lies' if len(outside) == 1 else 'lie'} in no pool: {IN_POOL}")
    return {name: region_place(array)[1] for name, array in named.items()}


def snapshot_of(regions: list[_native.Region], places: dict[Hashable, Place], reserve: bool) -> Snapshot:
    """A snapshot of regions, in which `places` are."""
    return Snapshot({id(region): (region, part) for region, part in cut_of(regions, reserve).items()}, places)


def cut_of(regions: list[_native.Region], reserve: bool) -> dict[_native.Region, _native.RegionSnapshot]:
    """One consistent cut over regions, each of which may be there more than once."""
    each = list(dict.fromkeys(regions))
    return dict(zip(each, _native.snapshot_all(each, reserve)))


@overload
def fork(
    array: A,
    /,
    *,
    reserve: bool = ...,
    max_cow_bytes: Size | None = ...,
    copy_grain: CopyGrain = ...,
    calls_wait: bool = ...,
) -> A: ...
@overload
def fork(
    array: Array,
    second: Array,
    /,
    *more: Array,
    reserve: bool = ...,
    max_cow_bytes: Size | None = ...,
    copy_grain: CopyGrain = ...,
    calls_wait: bool = ...,
) -> tuple[Array, ...]: ...
def fork(
    *arrays: Array,
    reserve: bool = False,
    max_cow_bytes: Size | None = None,
    copy_grain: CopyGrain = "auto",
    calls_wait: bool = False,
) -> Array | tuple[Array, ...]:
    """Copies an array, in microseconds: a write to one does not change the other, and memory that neither has written
    to exists once. For several arrays, returns a tuple of copies of one moment.

    Parameters
    ----------
    arrays
        Arrays of pools, views of them, or arrays of snapshots. The copies have the same shapes, types and strides.
    reserve, max_cow_bytes, copy_grain, calls_wait
        As those of `Pool.empty`, for the copies.

    Raises
    ------
    Those of `snapshot`.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(3)
    >>> b = hf.fork(a)
    >>> b[0] = 1
    >>> a, b
    (array([0., 0., 0.]), array([1., 0., 0.]))
    """
    if not arrays:
        raise TypeError("fork() needs at least one array")
    places = [place_of(array) for array in arrays]
    holders = {id(place.holder): place.holder for place in places}
    forks = _native.fork_all(
        list(holders.values()),
        reserve=reserve,
        max_cow_bytes=None if max_cow_bytes is None else parse_size(max_cow_bytes),
        copy_grain=copy_grain,
        calls_wait=calls_wait,
    )
    of = dict(zip(holders, forks))
    copies = tuple(place.on(of[id(place.holder)]) for place in places)
    return copies[0] if len(copies) == 1 else copies
