"""The format of a checkpoint on the disk: its manifest, read, and the headers of its files. `checkpoint` describes
it."""

from __future__ import annotations

import io
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
    """The header of a numpy file."""
    to = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(to, head)
    except ValueError:
        # The type's description takes more than 64 KiB.
        to = io.BytesIO()
        np.lib.format.write_array_header_2_0(to, head)
    return to.getvalue()


def read_manifest(directory: Path) -> Entry:
    """Reads and checks the manifest."""
    return _native.read_checkpoint(directory, json.loads)


def files_of(manifest: Entry) -> Iterator[Entry]:
    for entries in manifest["arrays"].values():
        for entry in entries:
            yield from (entry,) if "file" in entry else (entry["ranges"], entry["bytes"])
