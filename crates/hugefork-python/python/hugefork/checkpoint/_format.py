"""What a checkpoint is on the disk: its manifest, the heads of its files, and its last step. `checkpoint` describes it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._arrays import Array
from .._errors import CheckpointError

FORMAT = "hugefork-checkpoint"
VERSION = 1

Entry = dict[str, Any]

_MADE = re.compile(r"[^/]+\.[0-9]+(\.(first|(ranges|bytes)(-[0-9]+)?))?\.npy")
"""The names of files that saves make."""

SENSELESS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What comes of a manifest that makes no sense. Python cannot follow lists within lists for ever."""


def as_read_back(meta: Any) -> Any:
    """A copy of what is saved beside arrays, as `json` reads it back: its checksum is that of what will be read."""
    return json.loads(json.dumps(meta))


def head_of(array: Array) -> Entry:
    """What the head of a file of numpy says of an array without gaps."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    return {"descr": descr, "fortran_order": not array.flags.c_contiguous, "shape": array.shape}


def header_of(head: Entry) -> bytes:
    """The head of a file of numpy."""
    to = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(to, head)
    except ValueError:
        # The type takes more than 64 KiB of words.
        to = io.BytesIO()
        np.lib.format.write_array_header_2_0(to, head)
    return to.getvalue()


def check_of(manifest: Entry) -> int:
    """The checksum of a manifest, without the one that it has."""
    rest = {key: value for key, value in manifest.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def is_name(name: str) -> bool:
    """Whether a manifest may name a file of its directory so."""
    return Path(name).name == name and name not in ("", "..") and "\0" not in name


def read_manifest(directory: Path) -> Entry:
    """The manifest, checked."""
    try:
        text = (directory / "manifest.json").read_bytes()
    except FileNotFoundError:
        what = "there is no checkpoint: give the directory of a save that is done; there is no file"
        raise FileNotFoundError(errno.ENOENT, what, f"{directory}/manifest.json") from None
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}")
        if manifest["version"] != VERSION:
            raise ValueError(f"its version is {manifest['version']!r}: take a newer hugefork")
        if manifest["crc32"] != check_of(manifest):
            raise ValueError("its checksum is another")
        if type(manifest["save"]) is not int or "meta" not in manifest:
            raise ValueError("something is missing")
        for file in files_of(manifest):
            if not is_name(file["file"]):
                raise ValueError(f"{file['file']!r} is no name of a file")
            if type(file["nbytes"]) is not int or type(file["crc32"]) is not int:
                raise ValueError(f"the length or the checksum of {file['file']!r} is no number")
    except SENSELESS as error:
        raise CheckpointError(
            f"{directory}/manifest.json is no manifest of a checkpoint, or was altered: {error}; load another checkpoint"
        ) from error
    return manifest  # type: ignore[no-any-return]


def manifest_or_none(directory: Path) -> Entry | None:
    """The manifest, if there is a good one."""
    try:
        return read_manifest(directory)
    except (OSError, CheckpointError):
        return None


def manifest_before(directory: Path) -> Entry | None:
    """The manifest of the checkpoint that a save replaces, if there is a good one. An error where it may be somebody
    else's."""
    try:
        return read_manifest(directory)
    except CheckpointError as error:
        if _is_own((directory / "manifest.json").read_bytes()):
            return None
        what = f"{error.args[0].partition('; ')[0]}; save to another directory, or remove it if nobody needs it"
        raise FileExistsError(errno.EEXIST, what, str(directory)) from None
    except FileNotFoundError:
        pass
    data = directory / "data"
    files = [file.name for file in data.iterdir()] if data.is_dir() else []
    # Each save makes its lock before its files, and leaves it: one that was killed, or is under way in another thread.
    has_begun = (directory / ".lock").exists()
    foreign = [name for name in files if not (has_begun and is_of_a_save(name))]
    if foreign:
        what = f"there is no checkpoint, and {foreign[0]!r} in data is of no save: save to another directory"
        raise FileExistsError(errno.EEXIST, what, str(directory))
    return None


def _is_own(text: bytes) -> bool:
    """Whether a bad manifest was one of this version: a disk that alters it keeps nobody from saving."""
    try:
        manifest = json.loads(text)
    except SENSELESS:
        return FORMAT.encode() in text
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT and manifest.get("version") == VERSION


def is_of_a_save(name: str) -> bool:
    """Whether a save may have made a file of this name in data, such as `w.3.npy` or `w.4.ranges.npy`."""
    return _MADE.fullmatch(name) is not None


def files_of(manifest: Entry) -> Iterator[Entry]:
    for entries in manifest["arrays"].values():
        for entry in entries:
            yield from (entry,) if "file" in entry else (entry["ranges"], entry["bytes"])


def sync(directory: Path) -> None:
    """Makes what was made in a directory safe on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_manifest(directory: Path, manifest: str) -> None:
    """The last step of a save."""
    made = directory / "manifest.json.new"
    try:
        with open(made, "w", encoding="utf-8") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, directory / "manifest.json")
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync(directory)
