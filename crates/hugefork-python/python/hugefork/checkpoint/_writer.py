"""Writes checkpoints, each in a thread of its own."""

from __future__ import annotations

import json
import math
import os
import select
import threading
import time
import urllib.parse
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._arrays import Array, Place, holder_of, place_of
from .._errors import ForkedChildError, HugeforkError
from .._pool import Size, parse_size
from .._snapshot import cut_of
from ._format import head_of, header_of, read_manifest


class _Over:
    """A flag that threads wait for.

    An event of `threading` has a lock that is never released if a signal interrupts its holder at the wrong moment;
    the next `set` would wait for ever. This class has no lock to lose.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout: float | None = None) -> None:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        # A signal that arrives right before the call is handled after it: at most a second later.
        while not self._is_set and (left := end - time.monotonic()) > 0:
            waiting.poll(min(left, 1) * 1000)


_last: weakref.WeakValueDictionary[tuple[int, Path], _Over] = weakref.WeakValueDictionary()
"""The end of the last save to each directory, by process: its child has no such threads. A save waits for the one before
it, so that the checkpoint that remains is the last."""


class Save:
    """A checkpoint that is being written. Made by `save`.

    It holds its snapshot, and so the old contents of memory that was written since, until it is deleted, `release` is
    called, or a later save with it as `since` is done.
    """

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, Array],
        since: Save | Path | None,
        meta: str,
        copy_ahead: bool,
        at_most: int | None,
        progress: Callable[[int, int], Any] | None,
    ) -> None:
        self.path = path
        """The directory."""
        # This comes first: if the process can open no more files, the save begins nothing. The thread is never joined,
        # because Python considers a thread ended if a signal interrupts its `join`.
        self._over = _Over()
        in_pools = {name: array for name, array in arrays.items() if holder_of(array) is not None}
        places = {name: place_of(array) for name, array in in_pools.items()}
        started = time.perf_counter()
        # Arrays of snapshots are consistent already.
        regions = [place.holder for place in places.values() if isinstance(place.holder, _native.Region)]
        cut = cut_of(regions, False) if regions else {}
        self._parts: dict[str, tuple[_native.RegionSnapshot, Place]] = {
            name: (cut[place.holder] if isinstance(place.holder, _native.Region) else place.holder, place)
            for name, place in places.items()
        }
        """The snapshot and the position of each array of a pool. Empty after the release."""
        # As long as arrays of a snapshot exist, the snapshot cannot be closed.
        self._held = [array for array in in_pools.values() if not isinstance(holder_of(array), _native.Region)]
        self._copies = {name: np.array(array, order="K") for name, array in arrays.items() if name not in in_pools}
        self.pause = time.perf_counter() - started
        """Seconds for which the cut stopped the program."""
        self.total = sum(array.nbytes for array in arrays.values())
        """Bytes to write: those of all arrays, without those that turn out to be unchanged since the earlier save or
        were never written to."""
        self.written = 0
        """Bytes written so far."""
        self._names = list(arrays)
        self._heads = {name: head_of(array) for name, array in in_pools.items()}
        self._meta = meta
        self._since = since
        self._copy_ahead = copy_ahead
        self._at_most = at_most
        self._progress = progress
        self._saved: _native.Saved | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._process = os.getpid()
        # Several paths may lead to one directory.
        place = (self._process, path.resolve())
        self._before = _last.get(place)
        _last[place] = self._over
        # Python waits for the thread at the end of the program.
        self._thread = threading.Thread(target=_write, args=([self], self._over), name="hugefork-checkpoint")
        self._thread.start()

    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> Path:
        """Waits until the checkpoint is written and safe on the disk, and returns its directory.

        Raises
        ------
        TimeoutError
            It is not done after `timeout` seconds. Writing continues.
        OSError
            It could not be written, for example because the disk is full: the message names the file. The previous
            checkpoint is unchanged.
        RevokedError
            The pool was full, and a part of the snapshot was revoked. The previous checkpoint is unchanged.
        Exception
            That of `progress`. The previous checkpoint is unchanged.
        ForkedChildError
            The parent of this process writes it.
        """
        self._wait(timeout)
        if not self.done():
            raise TimeoutError(f"the checkpoint is not written after {timeout} seconds: wait longer")
        self._is_told = True
        if self._error is not None:
            raise self._error
        return self.path

    def release(self) -> None:
        """Releases the snapshot for later comparisons. Waits until this save is done."""
        self._wait()
        self._parts = {}

    def _wait(self, timeout: float | None = None) -> None:
        if not self.done() and self._process != os.getpid():
            raise ForkedChildError("this checkpoint is written by the parent of this process: wait for it there")
        self._over.wait(timeout)

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._is_told:
            warnings.warn(f"a checkpoint was not written: {self._error}", RuntimeWarning, stacklevel=1)

    def __repr__(self) -> str:
        if not self.done():
            state = f"{self.written} of {self.total} bytes written"
        else:
            state = "written" if self._error is None else f"failed: {self._error}"
        return f"<hugefork.checkpoint.Save {str(self.path)!r}: {state}>"

    def _run(self) -> None:
        # Lets the thread that started this one continue at once.
        time.sleep(0)
        try:
            if self._copy_ahead:
                self._copy_what_is_shared()
            since = self._since
            if isinstance(since, Save):
                since._over.wait()
            if self._before is not None:
                self._before.wait()
            self._write(since)
            if isinstance(since, Save):
                since._parts = {}
        except BaseException as error:  # noqa: BLE001: `result` raises it.
            self._error = error
        finally:
            self._since, self._before, self._copies, self._held = None, None, {}, []

    def _copy_what_is_shared(self) -> None:
        """Copies memory shared with the snapshot before the writers do, as long as the pool has enough free
        blocks."""
        for _, place in self._parts.values():
            if not isinstance(place.holder, _native.Region):
                continue
            try:
                place.holder.copy_ahead(place.start, place.stop)
            except HugeforkError:
                # The region was closed, for example. The writers copy the rest.
                return

    def _write(self, since: Save | Path | None) -> None:
        # Another save since the same one may release it.
        older = since._parts if isinstance(since, Save) else {}
        arrays: list[tuple[str, bytes, Any, int, int, Any]] = []
        for name in self._names:
            if name in self._copies:
                copy = self._copies[name]
                arrays.append((name, header_of(head_of(copy)), _bytes_of(copy), 0, copy.nbytes, None))
            else:
                part, place = self._parts[name]
                before = older[name][0] if name in older else None
                arrays.append((name, header_of(self._heads[name]), part, place.start, place.stop, before))
        self._saved = _native.save_checkpoint(
            self.path,
            arrays,
            since=since._saved if isinstance(since, Save) else since,
            meta=self._meta,
            at_most=self._at_most,
            progress=self._count,
        )

    def _count(self, written: int, total: int) -> None:
        self.written, self.total = written, total
        if self._progress is not None:
            self._progress(written, total)


def save(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    *,
    since: Save | str | os.PathLike[str] | None = None,
    meta: Any = None,
    copy_ahead: bool = False,
    at_most: Size | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Save:
    """Writes arrays to a directory in the background, as they are now, and returns at once.

    Parameters
    ----------
    path
        The directory. An existing checkpoint in it is replaced when the new one is complete. Saves of one process to
        one directory are written one after the other. Files in ``data`` that no save could have made are not touched.
    arrays
        Arrays by name, without gaps. Arrays of pools are captured as one consistent cut; others are copied now.
        Arrays of snapshots (``s[w]``) are saved with the contents of the snapshot.
    since
        An earlier save: for each array with the same name, shape and type, in the same pool, only the pages of 4 KiB
        that have changed since are written. Pages that were not written to are not compared. After some such saves,
        or when half of an array has changed, all of it is written.

        If it was to another directory, unchanged files become hard links to the files there. So each directory is a
        complete checkpoint, and removing one does not affect the others. If links are impossible, as between file
        systems, everything is written. Everything is also written if that save has failed, or its checkpoint was
        replaced or removed. If it was released, its files are read and compared.

        Or the directory of a checkpoint, for example that of an earlier process, whose arrays ``load(…, pool=…)`` has
        read into regions: the background thread reads its files and compares them with the arrays. Arrays that lie in no
        pool are written as a whole.
    meta
        Anything that `json` takes, for `manifest.json`, as it is now. Keys become text.
    copy_ahead
        For state that is soon overwritten completely, in arrays with ``copy_grain="block"``: before the background
        thread writes, it copies their blocks, so that most first writes of the program need no copy. It stops when the
        pool has few free blocks left. No effect on other arrays.
    at_most
        Maximum number of bytes to write per second, such as ``"500 MiB"``. An unlimited writer uses memory and disk
        bandwidth that the program may need.
    progress
        Called with `Save.written` and `Save.total`, after each 64 MiB, by the background thread. An exception from it
        ends the save.

    Returns
    -------
    Save
        Its `result` raises the error of a failed save.

    Raises
    ------
    TypeError, ValueError
        An array has Python objects or gaps, or `since` is neither a save nor a path.
    FileNotFoundError, CheckpointError
        There is no checkpoint in the directory `since`.
    FileExistsError
        The directory belongs to another program: its ``manifest.json`` was never that of a checkpoint, or is that of
        a newer hugefork; or it has no manifest, but files in ``data`` that no save has made. Nothing there is
        changed.
    PoolFullError, and others of `snapshot`
    """
    directory = Path(path).absolute()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is not a directory: a checkpoint is one")
    _native.check_directory(directory)
    if since is not None and not isinstance(since, Save):
        if not isinstance(since, (str, os.PathLike)):
            raise TypeError(f"since={since!r}: give what an earlier save returned, or the directory of a checkpoint")
        since = Path(since).absolute()
        read_manifest(since)
    meta = json.dumps(meta)
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{type(arrays).__name__} is not a mapping: give arrays by name, such as {{'w': w}}")
    rate = None if at_most is None else parse_size(at_most)
    if rate == 0:
        raise ValueError("at_most=0: give the bytes to write in a second, or None")
    for name, array in arrays.items():
        if not isinstance(name, str) or not 0 < len(urllib.parse.quote(name, safe="")) <= 200:
            raise ValueError(f"{name!r} cannot be the name of a file: give text of up to 200 letters")
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"{name!r} is not an array of numbers: give numpy arrays without Python objects")
        if holder_of(array) is not None and not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError(f"{name!r} is a view with gaps: save the array that it is a view of")
        try:
            head_of(array)
        except ValueError as error:
            why = f"{name!r} is of {array.dtype}, which no numpy file can describe: give fields in order, without overlap"
            raise ValueError(why) from error
    return Save(directory, dict(arrays), since, meta, copy_ahead, rate, progress)


def _bytes_of(array: Array) -> memoryview:
    """The bytes of an array without gaps, in memory order."""
    return array.ravel("K").view(np.uint8).data


def _write(saves: list[Save], over: _Over) -> None:
    """The main function of a save's thread. It releases the save before it reports the end."""
    try:
        saves.pop()._run()
    finally:
        over.set()
