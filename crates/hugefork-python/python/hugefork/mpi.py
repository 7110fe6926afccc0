"""Checkpoints of a program that runs on several machines with MPI (`mpi4py`).

::

    from mpi4py import MPI
    save = hf.mpi.save(MPI.COMM_WORLD, path, {"w": w})      # all ranks, between two steps; returns at once
    w += 1                                                   # continues; the files get the earlier contents
    save.result()                                            # all ranks: waits for all of them
    save = hf.mpi.save(MPI.COMM_WORLD, path, {"w": w}, since=save)      # later: only the changes since
    w = hf.mpi.load(MPI.COMM_WORLD, path)["w"]              # each rank loads its own arrays, and after a restart
    save = hf.mpi.save(MPI.COMM_WORLD, path, {"w": w}, since=path)      # writes what differs from the files there

If MPI receives into an array of a pool, pin it. Open MPI reads large messages of ranks on the same machine by a
system call (``process_vm_readv``), which fails if the array is not writable yet. It then prints ``Read -1, expected
N, errno = 14``, and the message is lost::

    with hf.pin(w):                                          # or hf.prepare_write(w) after each snapshot of it
        MPI.COMM_WORLD.Recv(w, source=0)

All ranks call `save` at the same point of the program. They wait for each other, and each takes a snapshot before any
continues: a message sent after the call was received by no rank before it. A message that is sent before the call and
received after it is in neither snapshot.

A checkpoint is a directory that all ranks can reach::

    manifest.json     names its parts; rank 0 replaces it as the last step, when all ranks are done
    4.rank-0/         the arrays of rank 0 at save 4: an ordinary checkpoint of `hugefork.checkpoint`
    4.rank-1/

The manifest is that of a checkpoint of `hugefork.checkpoint` without arrays. Its ``meta`` has the number of the save,
the checksum of each part's manifest, and the program's own ``meta``.

If a rank fails or is killed, the previous checkpoint remains: until all parts are safe on the disk, the manifest is
the previous one, and so are the parts that it names.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import _native, checkpoint
from ._arrays import Array
from ._errors import CheckpointError
from ._pool import Pool, Size

__all__ = ["Save", "load", "meta", "save"]

Comm = Any
"""A communicator of `mpi4py`, or an object with its methods `Get_rank`, `Get_size`, `Barrier`, `allgather` and
`bcast`."""


class Save:
    """A checkpoint that all ranks are writing. Made by `save`.

    On each rank it holds the rank's snapshot, as a `checkpoint.Save` does: until it is deleted, `release` is called,
    or a later save with it as `since` is done.
    """

    def __init__(self, comm: Comm, path: Path, number: int, mine: checkpoint.Save, meta: Any) -> None:
        self.path = path
        """The directory."""
        self.number = number
        """The number of the save to this directory."""
        self.mine = mine
        """The part of this rank."""
        self._comm = comm
        self._meta = meta

    def done(self) -> bool:
        """Whether the part of this rank is written, or has failed."""
        return self.mine.done()

    def result(self) -> Path:
        """Waits until all ranks have written, makes their parts the checkpoint, and returns its directory. All ranks
        must call it once.

        Raises
        ------
        OSError, RevokedError
            This rank could not write.
        CheckpointError
            Another rank could not write. In all of these cases the previous checkpoint is unchanged.
        """
        part, error = None, None
        try:
            part = _checksum_of(self.mine.result())
        except Exception as caught:  # noqa: BLE001: the other ranks must get every error.
            error = caught
        parts = _agree(self._comm, part, error, "no rank's part counts")
        _once(self._comm, lambda: self._publish(parts))
        return self.path

    def release(self) -> None:
        """Releases the snapshot for later comparisons, on this rank. Waits until its part is written."""
        self.mine.release()

    def _publish(self, parts: list[int]) -> None:
        """Makes the parts the checkpoint, and removes the earlier parts."""
        checkpoint.save(self.path, {}, meta={"save": self.number, "parts": parts, "meta": self._meta}).result()
        for number, directory in _parts_in(self.path):
            if number < self.number:
                shutil.rmtree(directory, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<hugefork.mpi.Save {self.number} to {str(self.path)!r}: {self.mine!r}>"


def save(
    comm: Comm,
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    *,
    since: Save | str | os.PathLike[str] | None = None,
    meta: Any = None,
    copy_ahead: bool = False,
    at_most: Size | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Save:
    """Writes the arrays of all ranks to a directory in the background, as they are now. All ranks call it.

    Parameters
    ----------
    comm
        The communicator, such as ``MPI.COMM_WORLD``. It is used in this call and in `Save.result` only, and by the
        thread that calls.
    path
        A directory that all ranks reach, the same for all.
    arrays
        Those of this rank, by name. Each rank may have others.
    since
        An earlier save, to this directory or another: each rank writes its changes since then, as `checkpoint.save`
        does, and its part has hard links to the unchanged files. A rank whose part of that save is gone or released
        writes everything. Or the directory of a checkpoint of ranks, for example that of an earlier run: each rank
        compares with its part there, and a rank without one writes everything.
    meta
        As that of `checkpoint.save`; that of rank 0 counts.
    copy_ahead, at_most, progress
        As those of `checkpoint.save`.

    Raises
    ------
    Those of `checkpoint.save`, on the rank that fails; CheckpointError on the others. The previous checkpoint remains
    then. """
    if since is not None and not isinstance(since, (Save, str, os.PathLike)):
        raise TypeError(f"since={since!r}: give what an earlier hf.mpi.save returned, or the directory of a checkpoint")
    directory, rank = Path(path).absolute(), comm.Get_rank()
    number = _once(comm, lambda: _next_number(directory))
    # The barriers keep the ranks in step: all ranks have ended a step before any rank begins the next one.
    comm.Barrier()
    mine, error = None, None
    try:
        # As it is now.
        meta = json.loads(json.dumps(meta))
        part, before = _part(directory, number, rank), _part_before(since, rank)
        mine = checkpoint.save(
            part, arrays, since=before, copy_ahead=copy_ahead, at_most=at_most, progress=progress
        )
    except Exception as caught:  # noqa: BLE001: the other ranks must get every error.
        error = caught
    _agree(comm, None, error, "nothing is saved")
    assert mine is not None
    return Save(comm, directory, number, mine, meta)


def load(comm: Comm, path: str | os.PathLike[str], *, pool: Pool | None = None, check: bool = True) -> dict[str, Array]:
    """Loads the arrays that this rank has saved, by name. `pool` and `check` are those of `checkpoint.load`.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint.
    CheckpointError
        It is truncated, or was altered, or is of another number of ranks: ``hf.checkpoint.load`` loads the directory of
        one part.
    """
    directory, rank, size = Path(path), comm.Get_rank(), comm.Get_size()
    number, parts, _ = _manifest(directory)
    if len(parts) != size:
        raise CheckpointError(f"{directory} is of {len(parts)} ranks, and these are {size}: start as many")
    part = _part(directory, number, rank)
    if _checksum_of(part) != parts[rank]:
        raise CheckpointError(f"{part} is not what was saved: it was altered; load another checkpoint")
    return checkpoint.load(part, pool=pool, check=check)


def meta(path: str | os.PathLike[str]) -> Any:
    """The `meta` that rank 0 passed to the save."""
    return _manifest(Path(path))[2]


def _part_before(since: Save | str | os.PathLike[str] | None, rank: int) -> checkpoint.Save | Path | None:
    """The part of an earlier save that belongs to a rank; None if that save had fewer ranks."""
    if since is None:
        return None
    if isinstance(since, Save):
        return since.mine
    number, parts, _ = _manifest(Path(since))
    return _part(Path(since), number, rank) if rank < len(parts) else None


def _agree(comm: Comm, mine: Any, error: Exception | None, so: str) -> list[Any]:
    """Collects the value of each rank; raises on all ranks if one has an error."""
    answers = comm.allgather((mine, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    failed = [f"rank {rank} failed: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if failed:
        raise CheckpointError(f"{'; '.join(failed)}; {so}")
    return [answer for answer, _ in answers]


def _once(comm: Comm, work: Any) -> Any:
    """Runs work on rank 0, and returns its result on all ranks."""
    answer, error = None, None
    if comm.Get_rank() == 0:
        try:
            answer = work()
        except Exception as caught:  # noqa: BLE001: the other ranks must get every error.
            error = caught
    return _agree(comm, answer, error, "the checkpoint before is as it was")[0]


def _parts_in(directory: Path) -> Iterator[tuple[int, Path]]:
    for found in directory.iterdir():
        number, dot, _ = found.name.partition(".rank-")
        if dot and number.isdigit():
            yield int(number), found


def _next_number(directory: Path) -> int:
    """A number greater than that of any save that has left files."""
    _native.check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    return 1 + max((number for number, _ in _parts_in(directory)), default=0)


def _manifest(directory: Path) -> tuple[int, list[int], Any]:
    """The number of the save, the checksum of each rank's part, and `meta`."""
    match checkpoint.meta(directory):
        case {"save": int(number), "parts": [*parts], "meta": meta}:
            return number, parts, meta
    raise CheckpointError(f"{directory} is not a checkpoint of MPI: load it with hf.checkpoint.load, or load another checkpoint")


def _part(directory: Path, number: int, rank: int) -> Path:
    return directory / f"{number}.rank-{rank}"


def _checksum_of(part: Path) -> int:
    """The checksum of a part's manifest, which has those of its files."""
    return zlib.crc32(_native.read_checkpoint(part, str.encode))
