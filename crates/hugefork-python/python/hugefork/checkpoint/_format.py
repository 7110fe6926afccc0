"""The format of a checkpoint on the disk: its manifest, read, and the headers of its files. `checkpoint` describes
it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._arrays import Array

Entry = dict[str, Any]

SENSELESS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors of a senseless manifest. Python gives up on deeply nested lists."""


def head_of(array: Array) -> Entry:
    """The fields of a numpy header for an array without gaps."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    return {"descr": descr, "fortran_order": not array.flags.c_contiguous, "shape": array.shape}


def header_of(head: Entry) -> bytes:
    """The header of a numpy file. Names of fields have escapes for letters beyond ASCII: the functions of numpy for
    the versions 1 and 2 of the format refuse them, and there are no public ones for version 3."""
    text = ascii(head).encode()
    # Longer ones, of types with thousands of fields, need more digits for their length.
    version, digits = ((1, 0), 2) if len(text) < 0xFF00 else ((2, 0), 4)
    magic = np.lib.format.magic(*version)
    # Contents begin at a multiple of 64 bytes, and the text ends with a line.
    length = len(text) + 1 + -(len(magic) + digits + len(text) + 1) % 64
    return magic + length.to_bytes(digits, "little") + text.ljust(length - 1) + b"\n"


def read_manifest(directory: Path) -> Entry:
    """Reads and checks the manifest."""
    return _native.read_checkpoint(directory, json.loads)


def files_of(manifest: Entry) -> Iterator[Entry]:
    for entries in manifest["arrays"].values():
        for entry in entries:
            yield from (entry,) if "file" in entry else (entry["ranges"], entry["bytes"])
