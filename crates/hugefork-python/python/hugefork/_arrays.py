"""Finds the region or snapshot that an array is a view of, and the array's bytes in it."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from . import _fork, _native

Array = np.ndarray[Any, np.dtype[Any]]
A = TypeVar("A", bound=Array)


IN_POOL = (
    "make it with hugefork.zeros or hugefork.array, or those of a pool, or while a hugefork.numpy_allocator is active, "
    "which leaves out arrays with less than `least` bytes"
)


class Place(NamedTuple):
    """The position of an array: its holder, and its layout there."""

    holder: _native.Region | _native.RegionSnapshot
    start: int
    """Bytes from the start of the holder to the lowest byte of the array."""
    stop: int
    """Bytes from the start of the holder to the end of the array's highest element."""
    offset: int
    """Bytes from the start of the holder to the array's first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def on(self, holder: _native.Region | _native.RegionSnapshot) -> Array:
        """The array at the same position of another holder: a fork, or a snapshot."""
        return np.ndarray(self.shape, self.dtype, bytes_of(holder), self.offset, self.strides)


def bytes_of(holder: _native.Region | _native.RegionSnapshot | _native.Imported) -> Array:
    """All bytes of a holder, as an array that owns a view of it. Only `frombuffer` does that: an array of
    ``np.ndarray(buffer=memoryview(holder))`` releases the view at once."""
    if isinstance(holder, _native.RegionSnapshot) or (isinstance(holder, _native.Region) and not holder.is_inherited()):
        _fork.stays_here(holder)
    # Before Python 3.12, type checkers do not know that the holder is a buffer.
    return np.frombuffer(cast(memoryview, holder), np.uint8)


def holder_of(array: Any) -> _native.Region | _native.RegionSnapshot | None:
    """The region or snapshot that `array` is a view of; None for other arrays."""
    at = array
    while isinstance(at, (np.ndarray, memoryview)):
        if isinstance(at, memoryview):
            at = at.obj
        else:
            at = _native.region_of_numpy(at) if at.base is None else at.base
    return at if isinstance(at, (_native.Region, _native.RegionSnapshot)) else None


def place_of(array: Any) -> Place:
    """The position of `array`.

    Raises TypeError if it is not an array or has Python objects, ValueError if it is not a view of a region or snapshot.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} is not a numpy array: give arrays of a pool, or views of them")
    holder = holder_of(array)
    if holder is None:
        raise ValueError(f"this array of {array.nbytes} bytes lies in no pool: {IN_POOL}")
    checked_dtype(array.dtype)
    offset = int(array.__array_interface__["data"][0]) - holder.address
    low, high = offset, offset
    if array.size:
        for length, stride in zip(array.shape, array.strides):
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
        high += array.itemsize
    return Place(holder, low, high, offset, array.shape, array.strides, array.dtype)


def region_place(array: Any) -> tuple[_native.Region, Place]:
    """The position of a writable array."""
    place = place_of(array)
    if not isinstance(place.holder, _native.Region):
        raise ValueError("this array is one of a snapshot, which nobody can write to: fork it with hugefork.fork")
    return place.holder, place


def range_of(array: Any) -> tuple[_native.Region, int, int]:
    """The byte range of an array without gaps."""
    region, place = region_place(array)
    step = array.itemsize
    for stride, length in sorted((abs(stride), length) for length, stride in zip(array.shape, array.strides)):
        if length > 1 and stride != step and array.size:
            raise ValueError("this view has gaps, whose bytes are not its own: give one without (a[i:j], not a[:, i])")
        step *= length
    return region, place.start, place.stop


def range_to_change(array: Any) -> tuple[_native.Region, int, int]:
    """The byte range of a writable array without gaps."""
    found = range_of(array)
    if not array.flags.writeable:
        raise ValueError("this array is read-only: give one that may be written to")
    return found


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype, if memory of a pool can hold its elements."""
    made: np.dtype[Any] = np.dtype(dtype)
    if made.hasobject:
        raise TypeError(f"dtype {made} has references to Python objects, which a snapshot cannot copy: take numbers")
    if made.itemsize == 0 and made.char in "SU":
        # numpy gives text without a length one letter.
        made = np.empty(0, made).dtype
    return made


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple."""
    try:
        made = tuple(map(operator.index, (shape,) if hasattr(shape, "__index__") else shape))
    except TypeError:
        raise TypeError(f"{shape!r} is not a shape: give a length, or a tuple of lengths") from None
    if any(length < 0 for length in made):
        raise ValueError(f"shape {made} has a negative length")
    return made
