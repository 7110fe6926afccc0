"""Snapshots for other processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

import numpy as np

from . import _native
from ._arrays import Array, bytes_of
from ._snapshot import Snapshot, checked_snapshot

__all__ = ["Shared", "share"]

Layout = tuple[int, int, tuple[int, ...], tuple[int, ...], np.dtype[Any]]
"""The index of the holder, and the array's offset, shape, strides and type there."""


class Shared:
    """The arrays of a snapshot, for other processes of this machine. Made by `share`.

    It is pickled by descriptor: it may be an argument of a `multiprocessing.Process` or go through a queue of
    `multiprocessing`, and nothing is copied. In the other process, ``list(shared)`` are the arrays, mapped
    copy-on-write: writes copy single pages and are private to that process.

    The sharing process holds the snapshot's memory until `close`, or until this object is deleted. Keep it until the
    other processes are done: afterwards their arrays may change. The arrays of a `share` with ``copy=True`` never
    change.
    """

    def __init__(self, exports: list[_native.Export], layouts: list[Layout]) -> None:
        self._exports: list[_native.Export] | None = exports
        self._layouts = layouts
        self._imported: list[_native.Imported] | None = None

    def __iter__(self) -> Iterator[Array]:
        if self._imported is None:
            exports = self._exports or []
            self._imported = [_native.Imported(export.fileno(), export.extents()) for export in exports]
        for nth, offset, shape, strides, dtype in self._layouts:
            yield np.ndarray(shape, dtype, bytes_of(self._imported[nth]), offset, strides)

    def __len__(self) -> int:
        """The number of arrays."""
        return len(self._layouts)

    def close(self) -> None:
        """Frees the memory, in the sharing process; does nothing in other processes."""
        for export in self._exports or []:
            export.close()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_how: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._exports is None:
            raise TypeError("this was shared by another process: pickle it there")
        sent = [(reduction.DupFd(export.fileno()), export.extents()) for export in self._exports]
        return _receive, (sent, self._layouts)

    def __repr__(self) -> str:
        return f"<hugefork.Shared of {len(self)} array(s)>"


def _receive(sent: list[tuple[Any, str]], layouts: list[Layout]) -> Shared:
    shared = Shared([], layouts)
    shared._exports, shared._imported = None, []
    for descriptor, extents in sent:
        fd = descriptor.detach()
        try:
            shared._imported.append(_native.Imported(fd, extents))
        finally:
            os.close(fd)
    return shared


def share(snapshot: Snapshot, *, copy: bool = False) -> Shared:
    """The arrays of a snapshot, for other processes of this machine.

    Parameters
    ----------
    snapshot
        It may be closed afterwards.
    copy
        If false, nothing is copied (some 20 us for each array), except single pages of a snapshot of a history, which
        the receiving process copies. A receiving process could read the whole pool through the descriptor: use one
        pool for each trust domain. If true, other processes get a sealed copy, some 0.3 s for each GiB, which gives
        access to nothing else and never changes.

    Raises
    ------
    NotExportableError, RevokedError, SystemCallError, ForkedChildError, ClosedError

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").array([1.0, 2.0])
    >>> with hf.share(hf.snapshot(a)) as shared:  # an argument of a multiprocessing.Process, say
    ...     a += 1
    ...     next(iter(shared)).tolist()
    [1.0, 2.0]
    """
    parts = checked_snapshot(snapshot)._open()
    numbers = {region: nth for nth, region in enumerate(parts)}
    exports = [_native.Export(part, copy) for _, part in parts.values()]
    layouts = [
        (numbers[id(place.holder)], place.offset, place.shape, place.strides, place.dtype)
        for place in snapshot._places.values()
    ]
    return Shared(exports, layouts)
