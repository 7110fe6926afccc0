"""Children of ``fork(2)`` whose arrays are as they were at snapshots."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import connection, context, popen_fork, util
from types import FunctionType, SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar

from . import _native
from ._errors import ChildDiedError
from ._snapshot import Snapshot, checked_snapshot

__all__ = ["InChild", "Process", "in_child"]

T = TypeVar("T")


class _Popen(popen_fork.Popen):
    def _launch(self, process: Process) -> None:
        # This runs the standard library's function, which differs between versions of Python, with another `os.fork`.
        # It leaves its pipes open if there is no child.
        pipes: list[int] = []
        is_forked = False

        def pipe() -> tuple[int, int]:
            ends = os.pipe()
            pipes.extend(ends)
            return ends

        def fork() -> int:
            nonlocal is_forked
            child: int = _native.fork_with(process._pairs, os.fork)
            is_forked = True
            return child

        forking = SimpleNamespace(**{**vars(os), "pipe": pipe, "fork": fork})
        launch = vars(popen_fork.Popen)["_launch"].__code__
        try:
            FunctionType(launch, {**vars(popen_fork), "os": forking})(self, process)
        except BaseException:
            if not is_forked:
                for number in pipes:
                    os.close(number)
            raise
        process._pairs = []
        # Children that other threads fork at this moment have the standard library's pipe, too, and delay its end.
        with contextlib.suppress(OSError):
            self.sentinel = os.pidfd_open(self.pid)
            util.Finalize(self, os.close, (self.sentinel,))


class Process(context.ForkProcess):
    """A `multiprocessing.Process` of the context ``fork`` whose child has the arrays of `snapshots` as they were then.

    The arrays themselves change, not those of ``snapshot[array]``: all references in the child lead to the old
    contents, as memory of its own. Other arrays are as at the fork. The ``with`` block of a snapshot may end before
    ``start``, and `Snapshot.close` may be called after it.

    Parameters
    ----------
    snapshots
        One or more, of different arrays.
    target, args, kwargs, name, daemon
        As those of `multiprocessing.Process`.

    Raises
    ------
    ValueError
        Two of the snapshots are of the same array, or an array's pool has ``children="nothing"``.
    RevokedError, ForkedChildError, NotExportableError, SystemCallError
        By `start`.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(3)
    >>> s = hf.snapshot(a)
    >>> a[:] = 1
    >>> child = hf.Process(snapshots=[s], target=lambda: exit(int(a.sum())))
    >>> child.start(), child.join(), child.exitcode
    (None, None, 0)
    """

    def __init__(
        self,
        *,
        snapshots: Iterable[Snapshot],
        target: Callable[..., object] | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] = {},
        name: str | None = None,
        daemon: bool | None = None,
    ) -> None:
        super().__init__(None, target, name, args, kwargs, daemon=daemon)
        self._pairs = [pair for snapshot in snapshots for pair in checked_snapshot(snapshot)._open().values()]
        if not self._pairs:
            raise TypeError("give at least one snapshot: a multiprocessing.Process has the arrays as they are now")
        if len({region for region, _ in self._pairs}) < len(self._pairs):
            raise ValueError("two of the snapshots have the same array: give one")
        if not all(region.is_inherited() for region, _ in self._pairs):
            raise ValueError("no child has the arrays of a pool with children='nothing': build it without that")

    @staticmethod
    def _Popen(process: Process) -> _Popen:  # type: ignore[override]
        return _Popen(process)


class InChild(Generic[T]):
    """A function that runs in a child. Made by `in_child`."""

    process: Process
    """The child, to end it or wait for it in another way."""

    def __init__(self, function: Callable[[], T], snapshots: Iterable[Snapshot]) -> None:
        # Unlike a pipe, it needs no reader, and ends although other children have it, too.
        self._answer = os.memfd_create("hugefork-answer")
        util.Finalize(self, os.close, (self._answer,))
        os.write(self._answer, _PENDING)
        self.process = Process(snapshots=snapshots, target=_answer, args=(function, self._answer))
        self.process.start()

    def done(self) -> bool:
        """Whether the child has ended."""
        return bool(connection.wait([self.process.sentinel], 0))

    def result(self, timeout: float | None = None) -> T:
        """Waits for the end of the child, and returns the result of the function. Each call returns a new copy.

        Raises
        ------
        TimeoutError
            The child has not ended after `timeout` seconds. It goes on.
        ChildDiedError
            The child has ended before the function did. The message says how.
        Exception
            That of the function, with the traceback in the child as a note; or the reason why its result cannot be
            pickled.
        """
        if not connection.wait([self.process.sentinel], timeout):
            raise TimeoutError(f"{self.process!r} has not ended after {timeout} s: it goes on")
        self.process.join()
        with mmap.mmap(self._answer, 0, access=mmap.ACCESS_READ) as answer:
            if answer[:1] != _COMPLETE:
                raise ChildDiedError(f"{self.process!r} has no result: it ended before the function did, or lost the file for it")
            with memoryview(answer) as view, view[1:] as pickled:
                result: T | _Raised = pickle.loads(pickled)
        if not isinstance(result, _Raised):
            return result
        # An exception may refuse notes.
        with contextlib.suppress(Exception):
            result.error.add_note(result.traceback)
        raise result.error

    def __repr__(self) -> str:
        return f"<hugefork.InChild of {self.process!r}>"


class _Raised(NamedTuple):
    error: Exception
    traceback: str


_PENDING, _COMPLETE = b"?", b"!"
"""The first byte of an answer."""


def _answer(function: Callable[[], object], number: int) -> None:
    """In the child: calls the function, and leaves its result or exception in a file."""
    file, answer = os.fstat(number), open(number, "r+b", closefd=False)

    def leave(result: object) -> None:
        # The function may have closed all descriptors, and have a file of its own there now.
        is_there = False
        with contextlib.suppress(OSError):
            is_there = os.path.samestat(os.fstat(number), file)
        if not is_there:
            sys.exit("hugefork: the function has closed the descriptor of the file for its result")
        answer.seek(1)
        # The default protocol loses numpy's order of bytes.
        pickle.dump(result, answer, pickle.HIGHEST_PROTOCOL)

    try:
        leave(function())
    except Exception as error:
        text = traceback.format_exc()
        try:
            if type(pickle.loads(pickle.dumps(error))) is not type(error):
                raise TypeError
        except Exception:
            error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
        leave(_Raised(error, f"\nin the child:\n{text}"))
    answer.seek(0)
    answer.write(_COMPLETE)
    answer.flush()


def in_child(function: Callable[[], T], *snapshots: Snapshot) -> InChild[T]:
    """Calls a function in a child of ``os.fork()`` that has the arrays of the snapshots as they were then, so it saves or
    evaluates an older state with the code for the present one, while this process goes on.

    The child is a `Process`, which Python waits for at the end of the program. It ends after the call, whether or not
    anybody waits for its result.

    Parameters
    ----------
    function
        Called without arguments. The child is a copy of this process, so it may be a lambda or a method.
    snapshots
        One or more, of different arrays.

    Raises
    ------
    Those of `Process` and its ``start``.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(3)
    >>> with hf.snapshot(a) as s:
    ...     a[:] = 7
    ...     child = hf.in_child(lambda: a.tolist(), s)
    >>> child.result(), a.tolist()
    ([0.0, 0.0, 0.0], [7.0, 7.0, 7.0])
    """
    return InChild(function, snapshots)
