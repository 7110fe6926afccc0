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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._arrays import Array, Place, holder_of, place_of
from .._errors import AnotherLengthError, AnotherPoolError, ClosedError, ForkedChildError, HugeforkError, RevokedError
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
    replace_manifest,
    sync,
)

_MOST_CHANGES = 16
"""So many changes are kept on top of a whole array: each is applied when it is loaded."""


_Earlier = tuple[_native.RegionSnapshot, list[Entry]]
"""A snapshot of an array that was saved earlier, and its files."""


class _Over:
    """Tells threads that something is over.

    An event of `threading` has a lock, which nobody gives up if a signal interrupts who has it at the wrong moment: then
    whoever tells that it is over waits for ever. Here there is nothing to give up.
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
        # A signal that comes right before the call is handled after it: a second later at most.
        while not self._is_set and (left := end - time.monotonic()) > 0:
            waiting.poll(min(left, 1) * 1000)


class Save:
    """A checkpoint that is being written. `save` begins one.

    It keeps its snapshot, and with it the memory of what was written to since, until it is deleted, `release` is
    called, or a later save that was given it as `since` is done.
    """

    def __init__(
        self, path: Path, arrays: Mapping[str, Array], since: Save | None, meta: Any, copy_ahead: bool, at_most: int | None
    ) -> None:
        self.path = path
        """The directory."""
        # First: if the process may open no more files, nothing is begun.
        # Nobody joins the thread: Python takes one for ended whose `join` a signal has interrupted.
        self._over = _Over()
        in_pools = {name: array for name, array in arrays.items() if holder_of(array) is not None}
        places = {name: place_of(array) for name, array in in_pools.items()}
        started = time.perf_counter()
        # Arrays of snapshots are cut already.
        regions = [place.holder for place in places.values() if isinstance(place.holder, _native.Region)]
        cut = cut_of(regions, False) if regions else {}
        self._parts: dict[str, tuple[_native.RegionSnapshot, Place]] = {
            name: (cut[place.holder] if isinstance(place.holder, _native.Region) else place.holder, place)
            for name, place in places.items()
        }
        """Of each array of a pool, the snapshot that is saved, and where it lies there. Empty once it is given up."""
        # As long as there are arrays of a snapshot, nobody can close it.
        self._held = [array for array in in_pools.values() if not isinstance(holder_of(array), _native.Region)]
        self._copies = {name: np.array(array, order="K") for name, array in arrays.items() if name not in in_pools}
        self.pause = time.perf_counter() - started
        """Seconds that the program waited for the cut."""
        self.total = sum(array.nbytes for array in arrays.values())
        """Bytes of all arrays."""
        self.written = 0
        """Bytes that are written so far; in the end, how many it took."""
        self._names = list(arrays)
        self._heads = {name: head_of(array) for name, array in in_pools.items()}
        self._meta = meta
        self._since = since
        self._copy_ahead = copy_ahead
        self._at_most = at_most
        # A hundredth of a second of writing at a time, so that it is spread evenly.
        self._at_once = 64 << 20 if at_most is None else max(1 << 12, at_most // 100)
        self._manifest: Entry | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._process = os.getpid()
        # Python waits for it at the end of the program.
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
            It is not done after `timeout` seconds. It goes on.
        OSError
            It could not be written, because the disk is full, say. The checkpoint before is as it was.
        RevokedError
            The pool was full, and a part of the snapshot was taken away. As above.
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
        """Gives up what a later save would compare with. Waits until this one is done."""
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
        # Who has started this goes on at once, and not when its turn comes.
        time.sleep(0)
        try:
            if self._copy_ahead:
                self._copy_what_is_shared()
            since = self._since
            if since is not None:
                since._over.wait()
            data = self.path / "data"
            data.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                self._write(data, since)
            if since is not None:
                since._parts = {}
        except BaseException as error:  # noqa: BLE001: it is for `result` to raise.
            self._error = error
        finally:
            self._since, self._copies, self._held = None, {}, []

    def _copy_what_is_shared(self) -> None:
        """Copies in the writers' place what they share with the snapshot, as long as the pool has blocks to spare."""
        for _, place in self._parts.values():
            if not isinstance(place.holder, _native.Region):
                continue
            try:
                place.holder.copy_ahead(place.start, place.stop)
            except HugeforkError:
                # It was closed, say. The writers copy what is left.
                return

    def _write(self, data: Path, since: Save | None) -> None:
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
                # The checkpoint is there: a file that cannot be removed just takes room.
                with contextlib.suppress(OSError):
                    file.unlink()

    def _earlier(self, data: Path, number: int, since: Save, before: Entry | None, made: list[Path]) -> dict[str, _Earlier]:
        """Of arrays of which this can be a change, what `since` has written. Nothing if its checkpoint is not there any
        more."""
        # Another save since the same one may give it up.
        parts, manifest, is_here = since._parts, since._manifest, since.path == self.path
        if manifest is None or manifest != (before if is_here else manifest_or_none(since.path)):
            return {}
        found: dict[str, _Earlier] = {}
        for name, (_, place) in self._parts.items():
            older, where = parts.get(name, (None, None))
            entries = manifest["arrays"].get(name, [])
            if older is not None and where is not None and where[1:] == place[1:] and len(entries) <= _MOST_CHANGES:
                found[name] = older, entries
        if is_here:
            return found
        try:
            for name, (older, entries) in found.items():
                found[name] = older, self._linked(data, name, number, since.path, entries, made)
        except OSError:
            # Another file system, or one that has no links, or no more of them.
            return {}
        # Of a checkpoint that was replaced meanwhile, these may be files of the next.
        return found if manifest_or_none(since.path) == manifest else {}

    def _linked(
        self, data: Path, name: str, number: int, other: Path, entries: list[Entry], made: list[Path]
    ) -> list[Entry]:
        """The files of an array in another directory, as files of this one: nobody writes to a file once it is made, and
        who removes one of the two leaves the other."""

        def link(file: Entry, kind: str) -> Entry:
            # Each of these is told from all files of an array whose name has points and numbers.
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
                differing = part.changed_since(older, True)
            except (RevokedError, ClosedError, AnotherPoolError, AnotherLengthError):
                # Mostly it is the older one that has lost a part. If it is this one, to write it fails.
                differing = [(place.start, place.stop)]
            found = ((max(low, place.start), min(high, place.stop)) for low, high in differing)
            ranges = [(low, high) for low, high in found if low < high]
            changed = sum(high - low for low, high in ranges)
            if not changed:
                return entries
            whole = place.stop - place.start
            if (changed + sum(entry["bytes"]["nbytes"] for entry in entries[1:])) * 2 <= whole:
                places = np.array(ranges, np.int64).reshape(-1, 2) - place.start
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
        """Writes a file of numpy with these contents."""
        made.append(path)
        # What a killed save has left may be the file of another checkpoint, too.
        path.unlink(missing_ok=True)
        with open(path, "wb", buffering=0) as file:
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
                        self.written += end - at
                        if self._at_most is not None:
                            time.sleep(max(0, begun + (end - at) / self._at_most - time.perf_counter()))
            else:
                _write_all(file, contents)
                crc = zlib.crc32(contents, crc)
                self.written += contents.nbytes
            os.fsync(file.fileno())
            return {"file": path.name, "nbytes": file.tell(), "crc32": crc}


def save(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    *,
    since: Save | None = None,
    meta: Any = None,
    copy_ahead: bool = False,
    at_most: Size | None = None,
) -> Save:
    """Writes arrays to a directory in the background, as they are now, and returns at once.

    Parameters
    ----------
    path
        The directory. If there is a checkpoint in it, this replaces it when all of it is written. Files in ``data``
        whose names are not those of a save stay.
    arrays
        Arrays by name. Those of pools, without gaps, are taken as one consistent cut; others are copied now. Arrays of
        snapshots (``s[w]``) are saved as they were then.
    since
        An earlier save: of each array with the same name, shape and type, in the same pool, only the pages of 4 KiB that
        have changed since are written. Pages that neither has written to since they were one are not looked at. After
        some such saves, or when half of an array has changed, all of it is written.

        If it was to another directory, the files that have not changed are hard links to those there. So each directory
        is a checkpoint of its own: remove the others as you like, and what only they have is gone. Where there can be no
        links, as between file systems, all is written. All is written, too, if that save has failed or was released, or
        its checkpoint was replaced or removed.
    meta
        Anything that `json` takes, for `manifest.json`, as it is now. Keys become text.
    copy_ahead
        For a state that is soon written all over, in arrays with ``copy_grain="block"``: before the background thread
        writes, it copies their blocks, so that most first writes do not. It stops when the pool has few free blocks
        left. To other arrays it makes no difference.
    at_most
        Write no more bytes in a second: ``"500 MiB"``, say. A writer that takes what the memory and the disk can give
        takes it from the program.

    Returns
    -------
    Save
        Call its `result` to learn of failures.

    Raises
    ------
    TypeError, ValueError
        What cannot be saved: an array with Python objects or with gaps, a `since` that is no save.
    FileExistsError
        The directory is somebody else's: it has a ``manifest.json`` that was never one of a checkpoint, or is of a newer
        hugefork's, or no manifest and files in ``data`` that no save has left. Nothing there is changed.
    PoolFullError, and others of `snapshot`
    """
    directory = Path(path).absolute()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is no directory: a checkpoint is one")
    manifest_before(directory)
    if since is not None and not isinstance(since, Save):
        raise TypeError(f"since={since!r}: give what an earlier save returned")
    meta = as_read_back(meta)
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{type(arrays).__name__} is no mapping: give arrays by name, such as {{'w': w}}")
    rate = None if at_most is None else parse_size(at_most)
    if rate == 0:
        raise ValueError("at_most=0: give the bytes to write in a second, or None")
    for name, array in arrays.items():
        if not isinstance(name, str) or not 0 < len(urllib.parse.quote(name, safe="")) <= 200:
            raise ValueError(f"{name!r} cannot be the name of a file: give text of up to 200 letters")
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"{name!r} is no array of numbers: give numpy arrays without Python objects")
        if holder_of(array) is not None and not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError(f"{name!r} is a view with gaps: save the array that it is a view of")
    return Save(directory, dict(arrays), since, meta, copy_ahead, rate)


def _stem(name: str, number: int) -> str:
    """How the files of an array begin that a save makes."""
    return f"{urllib.parse.quote(name, safe='')}.{number}"


def _bytes_of(array: Array) -> memoryview:
    """The bytes of an array without gaps, as they lie in memory."""
    return array.ravel("K").view(np.uint8).data


def _write_all(file: io.RawIOBase, contents: bytes | memoryview) -> None:
    rest = memoryview(contents)
    while rest:
        rest = rest[file.write(rest) :]


class _Writers:
    """Which directories threads of this process write to. A child of `os.fork()` begins with none."""

    def __init__(self) -> None:
        self.changes = threading.Lock()
        self.locks: dict[tuple[int, int], threading.Lock] = {}

    def of(self, directory: Path) -> threading.Lock:
        """The lock of a directory, by whichever path."""
        found = os.stat(directory)
        with self.changes:
            return self.locks.setdefault((found.st_dev, found.st_ino), threading.Lock())


_writers = _Writers()
os.register_at_fork(after_in_child=_writers.__init__)  # type: ignore[misc]


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else writes a checkpoint here meanwhile, in this process or another."""
    # The lock of the file is that of `fcntl`, which children of this process do not inherit: one that lives on would
    # keep it after the save, and after the end of this process. But it does not tell threads from each other.
    with _writers.of(directory):
        # A file of the program's may have this name: nothing is written to it, and nothing taken off.
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _write(saves: list[Save], over: _Over) -> None:
    """What the thread of a save does. It holds nothing of the save any more when it tells that it is over."""
    try:
        saves.pop()._run()
    finally:
        over.set()
