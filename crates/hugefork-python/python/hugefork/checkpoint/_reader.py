"""Reads checkpoints, and checks whether they were altered."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._arrays import Array
from .._errors import CheckpointError
from .._pool import Pool
from ._format import SENSELESS, Entry, files_of, read_manifest

_SMALL = 1 << 16
"""Smaller files are read, not mapped."""

_HEADS: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""The functions that parse numpy file headers, by version."""

_LONGEST_HEAD = 1 << 24
"""By default, numpy refuses headers of more than 10 000 letters, which types with some hundreds of fields have."""


def load(path: str | os.PathLike[str], *, pool: Pool | None = None, check: bool = True) -> dict[str, Array]:
    """The arrays of a checkpoint, by name.

    Parameters
    ----------
    path
        The directory.
    pool
        Copies the arrays into arrays of this pool. Without it they are mapped copy-on-write, and writes to them
        remain in memory. They remain valid when the checkpoint is replaced.
    check
        Reads all files first and compares their checksums, as `verify` does: 2.4 to 3.5 GB per second for cached
        files, otherwise at the speed of the disk. With ``check=False`` only the lengths of files and the manifest are
        checked, and a mapped array is read when it is used; damage by the disk is not noticed.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint.
    CheckpointError
        A file of it is missing, is truncated, or was altered: the message names it.
    """
    directory = Path(path)

    def read(text: str) -> dict[str, Array]:
        manifest = json.loads(text)
        if check:
            _verify(directory, manifest)
        return {name: array_of(directory, name, entries) for name, entries in manifest["arrays"].items()}

    arrays = _native.read_checkpoint(directory, read)
    return arrays if pool is None else {name: pool.array(array) for name, array in arrays.items()}


def meta(path: str | os.PathLike[str]) -> Any:
    """The `meta` that was passed to the save."""
    text = read_manifest(Path(path))["meta"]
    try:
        return json.loads(text)
    except SENSELESS as error:
        raise CheckpointError(f"the meta of {path} is not JSON: it was altered, or saved by another program; load another checkpoint") from error


def verify(path: str | os.PathLike[str]) -> None:
    """Reads a whole checkpoint and compares its checksums. Raises the same errors as `load`."""
    directory = Path(path)
    _native.read_checkpoint(directory, lambda text: _verify(directory, json.loads(text)))


def _path_of(directory: Path, file: Entry) -> Path:
    """The path of a file, after a check of its length."""
    path: Path = directory / "data" / file["file"]
    if not path.exists():
        raise CheckpointError(f"{path} is missing: it was removed; put it back, or load another checkpoint")
    if not path.is_file():
        # To open a FIFO would wait for a writer.
        raise CheckpointError(f"{path} is not a regular file: it was replaced; put the file back, or take another directory")
    found = path.stat().st_size
    if found != file["nbytes"]:
        how = "truncated" if found < file["nbytes"] else "altered"
        raise CheckpointError(f"{path} has {found} bytes instead of {file['nbytes']}: it was {how}; load another checkpoint")
    return path


def _verify(directory: Path, manifest: Entry) -> None:
    for file in files_of(manifest):
        path = _path_of(directory, file)
        if _native.crc32_of_file(path) != file["crc32"]:
            raise CheckpointError(f"{path} has another checksum: it was altered; load another checkpoint")


def array_of(directory: Path, name: str, entries: list[Entry]) -> Array:
    """An array, mapped copy-on-write, with its changes applied."""
    try:
        first, *changes = entries
        array = _read(directory, first, is_mapped=first["nbytes"] >= _SMALL)
        flat = array.ravel("K").view(np.uint8)
        for change in changes:
            ranges = _read(directory, change["ranges"], is_mapped=False)
            new = _read(directory, change["bytes"], is_mapped=False)
            # An array with elements of zero bytes may have any length.
            if ranges.dtype != np.int64 or ranges.ndim != 2 or ranges.shape[1] != 2:
                raise ValueError(f"{change['ranges']['file']} has no pairs of int64")
            at = 0
            for start, stop in ranges.tolist():
                if not 0 <= start <= stop <= flat.size:
                    raise ValueError(f"bytes {start}..{stop} of {flat.size} are said to have changed")
                flat[start:stop] = new[at : at + stop - start]
                at += stop - start
            if at != new.size:
                raise ValueError(f"{at} byte(s) have changed, and there are {new.size}")
    except (CheckpointError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001: numpy raises any error for an altered file.
        raise CheckpointError(f"array {name!r} of {directory} was altered: {error}; load another checkpoint") from error
    return array


def _read(directory: Path, entry: Entry, is_mapped: bool) -> Array:
    """The array of a numpy file, after a check of its length against its header: missing data takes no memory."""
    path = _path_of(directory, entry)
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = _HEADS[version](file, max_header_size=_LONGEST_HEAD)
        except MemoryError as error:
            # Python's error when it cannot parse the header.
            raise ValueError(f"the head of {path.name} makes no sense") from error
        length = file.tell() + dtype.itemsize * math.prod(shape)
    if length != entry["nbytes"]:
        raise ValueError(f"{path.name} is {entry['nbytes']} bytes long, and should be {length}")
    mode: Any = "c" if is_mapped else None
    array = np.load(path, mmap_mode=mode, allow_pickle=False, max_header_size=_LONGEST_HEAD)
    return array.view(np.ndarray)  # type: ignore[no-any-return]
