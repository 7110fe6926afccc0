"""Writes checkpoints, each in a thread of its own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import select
import threading
import time
import urllib.parse
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._arrays import Array, Place, holder_of, place_of
from .._errors import (
    AnotherLengthError,
    AnotherPoolError,
    CheckpointError,
    ClosedError,
    ForkedChildError,
    HugeforkError,
    RevokedError,
)
from .._pool import Size, parse_size
from .._snapshot import cut_of
from ._format import (
    FORMAT,
    VERSION,
    Entry,
    as_read_back,
    check_of,
    files_of,
    head_of,
    header_of,
    is_of_a_save,
    manifest_before,
    manifest_or_none,
    named,
    read_manifest,
    replace_manifest,
    sync,
)
from ._reader import array_of

_MOST_CHANGES = 16
"""Maximum number of changes on top of a whole array: loading applies each of them."""


_COMPARED_AT_ONCE = 16 << 20
"""Bytes that are read at once to compare them with those of a file."""

_Earlier = tuple[_native.RegionSnapshot | Array, list[Entry]]
"""An earlier saved array, as a snapshot or as mapped files, and its files."""


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
        meta: Any,
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
        """Bytes to write: those of all arrays, without those that turn out to be unchanged since the earlier save."""
        self.written = 0
        """Bytes written so far; in the end, the size of the checkpoint."""
        self._names = list(arrays)
        self._heads = {name: head_of(array) for name, array in in_pools.items()}
        self._meta = meta
        self._since = since
        self._copy_ahead = copy_ahead
        self._at_most = at_most
        self._progress = progress
        # Writes for a hundredth of a second at a time, so that the load is even.
        self._at_once = 64 << 20 if at_most is None else max(1 << 12, at_most // 100)
        self._manifest: Entry | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._process = os.getpid()
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
            data = self.path / "data"
            data.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                self._write(data, since)
            if isinstance(since, Save):
                since._parts = {}
        except BaseException as error:  # noqa: BLE001: `result` raises it.
            self._error = error
        finally:
            self._since, self._copies, self._held = None, {}, []

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

    def _write(self, data: Path, since: Save | Path | None) -> None:
        before = manifest_before(self.path)
        number = int(before["save"]) + 1 if before else 1
        made: list[Path] = []
        try:
            earlier = {} if since is None else self._earlier(data, number, since, before, made)
            arrays = {name: self._write_array(data, name, number, earlier.get(name), made) for name in self._names}
            manifest = {"format": FORMAT, "version": VERSION, "save": number, "meta": self._meta, "arrays": arrays}
            manifest["crc32"] = check_of(manifest)
            sync(data)
            replace_manifest(self.path, json.dumps(manifest, indent=1))
        except BaseException:
            for file in made:
                file.unlink(missing_ok=True)
            raise
        self._manifest = manifest
        kept = {file["file"] for file in files_of(manifest)}
        for file in data.iterdir():
            if file.name not in kept and is_of_a_save(file.name):
                # The checkpoint is complete: a file that cannot be removed only takes space.
                with contextlib.suppress(OSError):
                    file.unlink()

    def _earlier(
        self, data: Path, number: int, since: Save | Path, before: Entry | None, made: list[Path]
    ) -> dict[str, _Earlier]:
        """The files that `since` has written for arrays that may be saved as changes. Empty if its checkpoint no
        longer exists."""
        path = since.path if isinstance(since, Save) else since
        is_here = path == self.path
        manifest = before if is_here else manifest_or_none(path)
        # Another save since the same one may release it.
        parts = since._parts if isinstance(since, Save) else None
        if manifest is None or isinstance(since, Save) and manifest != since._manifest:
            return {}
        found: dict[str, _Earlier] = {}
        for name, (_, place) in self._parts.items():
            entries = manifest["arrays"].get(name, [])
            if not 0 < len(entries) <= _MOST_CHANGES:
                continue
            if parts is None:
                with contextlib.suppress(CheckpointError, OSError):
                    mapped = array_of(path, name, entries)
                    if head_of(mapped) == self._heads[name]:
                        found[name] = mapped, entries
            elif name in parts and parts[name][1][1:] == place[1:]:
                found[name] = parts[name][0], entries
        if is_here:
            return found
        try:
            for name, (older, entries) in found.items():
                found[name] = older, self._linked(data, name, number, path, entries, made)
        except OSError:
            # The other directory is in another file system, or its file system has no links, or the files have too
            # many.
            return {}
        # If the checkpoint was replaced meanwhile, these may be files of the next one.
        return found if manifest_or_none(path) == manifest else {}

    def _linked(
        self, data: Path, name: str, number: int, other: Path, entries: list[Entry], made: list[Path]
    ) -> list[Entry]:
        """Links the files of an array in another directory into this one. A file is never written to after it was
        made, and removing one of the two names does not affect the other."""

        def link(file: Entry, kind: str) -> Entry:
            # These names differ from all names that another array's name with points and numbers can produce.
            path = data / f"{_stem(name, number)}.{kind}.npy"
            made.append(path)
            path.unlink(missing_ok=True)
            os.link(other / "data" / file["file"], path)
            return {**file, "file": path.name}

        first, *changes = entries
        return [
            link(first, "first"),
            *(
                {kind: link(change[kind], f"{kind}-{nth}") for kind in ("ranges", "bytes")}
                for nth, change in enumerate(changes, 1)
            ),
        ]

    def _write_array(
        self, data: Path, name: str, number: int, earlier: _Earlier | None, made: list[Path]
    ) -> list[Entry]:
        stem = _stem(name, number)
        copy = self._copies.get(name)
        if copy is not None:
            return [self._file(data / f"{stem}.npy", made, head_of(copy), _bytes_of(copy))]
        part, place = self._parts[name]
        if earlier is not None:
            older, entries = earlier
            try:
                if isinstance(older, np.ndarray):
                    differing = _differing(part, place, older)
                else:
                    differing = part.changed_since(older, "page")
            except (RevokedError, ClosedError, AnotherPoolError, AnotherLengthError):
                # Normally the older snapshot has lost a part. If it is this one, writing it fails.
                differing = [(place.start, place.stop)]
            found = ((max(low, place.start), min(high, place.stop)) for low, high in differing)
            ranges = [(low, high) for low, high in found if low < high]
            changed = sum(high - low for low, high in ranges)
            whole = place.stop - place.start
            if not changed:
                self._count(0, whole)
                return entries
            if (changed + sum(entry["bytes"]["nbytes"] for entry in entries[1:])) * 2 <= whole:
                places = np.array(ranges, np.int64).reshape(-1, 2) - place.start
                self._count(0, whole - changed - places.nbytes)
                head: Entry = {"descr": "|u1", "fortran_order": False, "shape": (changed,)}
                entry = {
                    "ranges": self._file(data / f"{stem}.ranges.npy", made, head_of(places), _bytes_of(places)),
                    "bytes": self._file(data / f"{stem}.bytes.npy", made, head, (part, ranges)),
                }
                return [*entries, entry]
        return [self._file(data / f"{stem}.npy", made, self._heads[name], (part, [(place.start, place.stop)]))]

    def _file(
        self,
        path: Path,
        made: list[Path],
        head: Entry,
        contents: memoryview | tuple[_native.RegionSnapshot, list[tuple[int, int]]],
    ) -> Entry:
        """Writes a numpy file with these contents."""
        made.append(path)
        # A file left by a killed save may also be a file of another checkpoint.
        path.unlink(missing_ok=True)
        with named(path), open(path, "wb", buffering=0) as file:
            header = header_of(head)
            _write_all(file, header)
            crc = zlib.crc32(header)
            if isinstance(contents, tuple):
                part, ranges = contents
                for start, stop in ranges:
                    for at in range(start, stop, self._at_once):
                        end = min(stop, at + self._at_once)
                        begun = time.perf_counter()
                        crc = part.write_to(file.fileno(), at, end, crc)
                        self._count(end - at)
                        if self._at_most is not None:
                            time.sleep(max(0, begun + (end - at) / self._at_most - time.perf_counter()))
            else:
                _write_all(file, contents)
                crc = zlib.crc32(contents, crc)
                self._count(contents.nbytes)
            os.fsync(file.fileno())
            return {"file": path.name, "nbytes": file.tell(), "crc32": crc}

    def _count(self, written: int, unchanged: int = 0) -> None:
        """Counts bytes that were written, and bytes that need not be, and reports the progress."""
        self.written += written
        self.total -= unchanged
        if self._progress is not None:
            self._progress(self.written, self.total)


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
        The directory. An existing checkpoint in it is replaced when the new one is complete. Files in ``data`` that
        no save could have made are not touched.
    arrays
        Arrays by name, without gaps. Arrays of pools are captured as one consistent cut; others are copied now.
        Arrays of snapshots (``s[w]``) are saved with the contents of the snapshot.
    since
        An earlier save: for each array with the same name, shape and type, in the same pool, only the pages of 4 KiB
        that have changed since are written. Pages that were not written to are not compared. After some such saves,
        or when half of an array has changed, all of it is written.

        If it was to another directory, unchanged files become hard links to the files there. So each directory is a
        complete checkpoint, and removing one does not affect the others. If links are impossible, as between file
        systems, everything is written. Everything is also written if that save has failed or was released, or its
        checkpoint was replaced or removed.

        Or the directory of a checkpoint, for example that of an earlier process which `load` has read: the background
        thread reads its files and compares them with the arrays.
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
    manifest_before(directory)
    if since is not None and not isinstance(since, Save):
        if not isinstance(since, (str, os.PathLike)):
            raise TypeError(f"since={since!r}: give what an earlier save returned, or the directory of a checkpoint")
        since = Path(since).absolute()
        read_manifest(since)
    meta = as_read_back(meta)
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
    return Save(directory, dict(arrays), since, meta, copy_ahead, rate, progress)


def _stem(name: str, number: int) -> str:
    """The prefix of the names of the files that a save makes for an array."""
    return f"{urllib.parse.quote(name, safe='')}.{number}"


def _bytes_of(array: Array) -> memoryview:
    """The bytes of an array without gaps, in memory order."""
    return array.ravel("K").view(np.uint8).data


def _differing(part: _native.RegionSnapshot, place: Place, older: Array) -> list[tuple[int, int]]:
    """The pages of 4 KiB of an array in a snapshot whose bytes differ from those of an earlier array."""
    buffer, before = np.empty(_COMPARED_AT_ONCE, np.uint8), np.frombuffer(_bytes_of(older), np.uint8)
    ranges: list[tuple[int, int]] = []
    for start in range(place.start, place.stop, _COMPARED_AT_ONCE):
        new = buffer[: place.stop - start]
        part.read_at(start, new)
        differs = new != before[start - place.start :][: new.size]
        pages = np.logical_or.reduceat(differs, np.arange(0, new.size, 4096))
        edges = start + 4096 * np.flatnonzero(np.diff(pages, prepend=False, append=False))
        ranges += zip(edges[::2].tolist(), edges[1::2].tolist())
    return ranges


def _write_all(file: io.RawIOBase, contents: bytes | memoryview) -> None:
    rest = memoryview(contents)
    while rest:
        rest = rest[file.write(rest) :]


class _Writers:
    """The directories that threads of this process write to. A child of `os.fork()` begins with none."""

    def __init__(self) -> None:
        self.changes = threading.Lock()
        self.locks: dict[tuple[int, int], threading.Lock] = {}

    def of(self, directory: Path) -> threading.Lock:
        """The lock of a directory, whichever path leads to it."""
        found = os.stat(directory)
        with self.changes:
            return self.locks.setdefault((found.st_dev, found.st_ino), threading.Lock())


_writers = _Writers()
os.register_at_fork(after_in_child=_writers.__init__)  # type: ignore[misc]


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Excludes other writers of checkpoints in this directory, in this process and others."""
    # The file is locked by `fcntl`: children do not inherit such a lock, so a long-lived child cannot hold it after
    # the save. But it does not exclude other threads, so there is also a lock for these.
    with _writers.of(directory):
        # The program may have a file of this name: nothing is written to it, and it is not removed.
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _write(saves: list[Save], over: _Over) -> None:
    """The main function of a save's thread. It releases the save before it reports the end."""
    try:
        saves.pop()._run()
    finally:
        over.set()
