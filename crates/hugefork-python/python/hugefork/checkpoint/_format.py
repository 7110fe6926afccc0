"""The format of a checkpoint on the disk: its manifest, its file headers, and the last step of a save. `checkpoint`
describes it."""

from __future__ import annotations

import contextlib
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
"""The names of files that a save makes."""

SENSELESS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors of a senseless manifest. Python gives up on deeply nested lists."""


def as_read_back(meta: Any) -> Any:
    """A copy of `meta` as `json` reads it back, so that the checksum is that of the later reading."""
    return json.loads(json.dumps(meta))


def head_of(array: Array) -> Entry:
    """The fields of a numpy header for an array without gaps."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    return {"descr": descr, "fortran_order": not array.flags.c_contiguous, "shape": array.shape}


def header_of(head: Entry) -> bytes:
    """The header of a numpy file."""
    to = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(to, head)
    except ValueError:
        # The type's description takes more than 64 KiB.
        to = io.BytesIO()
        np.lib.format.write_array_header_2_0(to, head)
    return to.getvalue()


def check_of(manifest: Entry) -> int:
    """The checksum of a manifest without its own checksum field."""
    rest = {key: value for key, value in manifest.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def is_name(name: str) -> bool:
    """Whether a manifest may use this name for a file of its directory."""
    return Path(name).name == name and name not in ("", "..") and "\0" not in name


def read_manifest(directory: Path) -> Entry:
    """Reads and checks the manifest."""
    try:
        text = (directory / "manifest.json").read_bytes()
    except FileNotFoundError:
        what = "there is no checkpoint: give the directory of a save that is done; there is not a file"
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
                raise ValueError(f"{file['file']!r} is not the name of a file")
            if type(file["nbytes"]) is not int or type(file["crc32"]) is not int:
                raise ValueError(f"the length or the checksum of {file['file']!r} is not a number")
    except SENSELESS as error:
        raise CheckpointError(
            f"{directory}/manifest.json is not a manifest of a checkpoint, or was altered: {error}; load another checkpoint"
        ) from error
    return manifest  # type: ignore[no-any-return]


def manifest_or_none(directory: Path) -> Entry | None:
    """The manifest, if it exists and is valid."""
    try:
        return read_manifest(directory)
    except (OSError, CheckpointError):
        return None


def manifest_before(directory: Path) -> Entry | None:
    """The manifest of the checkpoint that a save replaces, if it is valid. Raises if the directory may belong to
    another program."""
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
    # Each save makes its lock before its files and never removes it, so the lock also proves a killed save, or one in
    # progress in another thread.
    has_begun = (directory / ".lock").exists()
    foreign = [name for name in files if not (has_begun and is_of_a_save(name))]
    if foreign:
        what = f"there is no checkpoint, and {foreign[0]!r} in data was not made by a save: save to another directory"
        raise FileExistsError(errno.EEXIST, what, str(directory))
    return None


def _is_own(text: bytes) -> bool:
    """Whether an invalid manifest was one of this version: damage by the disk must not prevent further saves."""
    try:
        manifest = json.loads(text)
    except SENSELESS:
        return FORMAT.encode() in text
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT and manifest.get("version") == VERSION


def is_of_a_save(name: str) -> bool:
    """Whether a save may have made a file with this name in ``data``, such as `w.3.npy` or `w.4.ranges.npy`."""
    return _MADE.fullmatch(name) is not None


def files_of(manifest: Entry) -> Iterator[Entry]:
    for entries in manifest["arrays"].values():
        for entry in entries:
            yield from (entry,) if "file" in entry else (entry["ranges"], entry["bytes"])


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Puts the name of the file into errors of the system while it is written."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(directory: Path) -> None:
    """Makes the new entries of a directory safe on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_manifest(directory: Path, manifest: str) -> None:
    """The last step of a save."""
    made = directory / "manifest.json.new"
    try:
        with named(made), open(made, "w", encoding="utf-8") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, directory / "manifest.json")
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync(directory)
