"""Exceptions: one class for each error of the engine, below a builtin that fits.

``HugeforkError`` catches all of them. Each instance has ``code`` (the engine's name for it, such as ``pool_full``) and
``number``, which never change, and ``errno``, the one that comes closest.
"""

from __future__ import annotations

__all__ = [
    "AlreadyObservedError",
    "AnotherLengthError",
    "AnotherOperationsError",
    "AnotherPoolError",
    "BackingUnavailableError",
    "BadExtentsError",
    "BadKernelError",
    "BadSettingError",
    "BeyondTheMachineError",
    "CheckpointError",
    "ClosedError",
    "ForkedChildError",
    "HugeforkError",
    "InsideOperationError",
    "InvalidError",
    "LargerThanPoolError",
    "LimitOnSnapshotError",
    "LostError",
    "NotABlockSizeError",
    "NotAMultipleError",
    "NotAViewError",
    "NotAnExportError",
    "NotExportableError",
    "NotReservableError",
    "OperationGoesOnError",
    "OutOfAddressesError",
    "OutOfBlocksError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "PoolFullError",
    "PressureUnwatchedError",
    "RevokedError",
    "SizeError",
    "SystemCallError",
    "TooManyBlocksError",
    "TooManyMappingsError",
    "TooManyPinsError",
    "UnknownBackingError",
    "UnreadableSizeError",
    "UnsupportedError",
    "UsedUpError",
    "ZeroSizeError",
]


class HugeforkError(Exception):
    """Any error of hugefork. The message says what happened, and then what to do."""

    code: str = ""
    """The engine's name for it; empty for errors of the binding's own."""
    number: int = 0
    """The engine's number for it; 0 for errors of the binding's own."""
    errno: int | None = None
    """The ``errno`` that comes closest; of a refused system call, what the kernel answered."""
    done: int | None = None
    """Of `read_into` and `reset`: bytes at the start of the memory that were done before the error."""


class ClosedError(HugeforkError, ValueError):
    """A pool, region or snapshot was used after it was closed."""


class CheckpointError(HugeforkError, ValueError):
    """A checkpoint cannot be read: it is truncated, was altered, or is none."""


class InvalidError(HugeforkError, ValueError):
    """What was asked for cannot be."""


class SizeError(InvalidError):
    """A size that is not possible."""


class NotABlockSizeError(SizeError):
    """A block size that is no power of two from 4 KiB to 1 GiB."""


class ZeroSizeError(SizeError):
    """A size of zero bytes."""


class NotAMultipleError(SizeError):
    """A size that is no whole number of blocks."""


class UnreadableSizeError(SizeError):
    """Text that is no size."""


class UnknownBackingError(InvalidError):
    """Text that names no backing."""


class TooManyBlocksError(InvalidError):
    """More blocks than a pool can have."""


class LargerThanPoolError(InvalidError):
    """A region that is larger than its pool."""


class OutOfRangeError(InvalidError):
    """A range that does not lie inside."""


class NotAViewError(InvalidError):
    """A range that is no slice of the type."""


class LimitOnSnapshotError(InvalidError):
    """A limit on copies for a snapshot, which has none."""


class BadSettingError(InvalidError):
    """An environment variable with an impossible value."""


class BadKernelError(InvalidError):
    """``HUGEFORK_KERNEL`` names a kernel that this machine lacks, or none."""


class AnotherPoolError(InvalidError):
    """A snapshot of another pool."""


class AnotherLengthError(InvalidError):
    """A snapshot of another length."""


class BadExtentsError(InvalidError):
    """Text that lists no extents of a snapshot."""


class NotAnExportError(InvalidError):
    """A descriptor that is not of an export, or of another."""


class AnotherOperationsError(InvalidError):
    """`Operations` that are not those of the array, or of others in its cut."""


class UsedUpError(HugeforkError, MemoryError):
    """Memory, addresses or mappings are used up."""


class BeyondTheMachineError(UsedUpError):
    """More memory than the machine or container has."""


class OutOfMemoryError(UsedUpError):
    """The machine has no memory left."""


class OutOfAddressesError(UsedUpError):
    """No addresses are left."""


class TooManyMappingsError(UsedUpError):
    """More mappings than ``vm.max_map_count`` allows."""


class OutOfBlocksError(UsedUpError):
    """The pool has too few blocks left."""


class PoolFullError(OutOfBlocksError):
    """The pool has no free block."""


class NotReservableError(OutOfBlocksError):
    """The pool has too few blocks to reserve."""


class TooManyPinsError(UsedUpError):
    """A block has as many pins as can be counted."""


class LostError(HugeforkError):
    """Something is not there any more."""


class RevokedError(LostError):
    """Part of a fork or snapshot was taken away, because the pool was full."""


class AlreadyObservedError(HugeforkError):
    """The region has an observer."""


class InsideOperationError(HugeforkError, RuntimeError):
    """A fork, snapshot, reset or `prepare_snapshot` inside of an operation of the same thread, which it would wait for."""


class OperationGoesOnError(HugeforkError, TimeoutError):
    """A thread was inside of an operation for longer than a fork, snapshot or reset waits (`Operations`)."""


class UnsupportedError(HugeforkError, RuntimeError):
    """This process or machine cannot do it."""


class ForkedChildError(UnsupportedError):
    """The process is a child of ``os.fork()``, which has no regions: start it with ``spawn`` or ``forkserver``, and
    hand it snapshots (``hugefork.share``)."""


class BackingUnavailableError(UnsupportedError):
    """The machine lacks the backing that was asked for."""


class PressureUnwatchedError(UnsupportedError):
    """Memory pressure cannot be watched."""


class NotExportableError(UnsupportedError):
    """The pool's memory cannot be opened for reading only."""


class SystemCallError(HugeforkError, OSError):
    """The kernel refused a call; ``errno`` is what it answered."""


_CLASSES: dict[str, type[HugeforkError]] = {
    "not_a_block_size": NotABlockSizeError,
    "zero_size": ZeroSizeError,
    "not_a_multiple": NotAMultipleError,
    "unreadable_size": UnreadableSizeError,
    "unknown_backing": UnknownBackingError,
    "too_many_blocks": TooManyBlocksError,
    "larger_than_pool": LargerThanPoolError,
    "out_of_range": OutOfRangeError,
    "not_a_view": NotAViewError,
    "limit_on_snapshot": LimitOnSnapshotError,
    "bad_setting": BadSettingError,
    "bad_kernel": BadKernelError,
    "another_pool": AnotherPoolError,
    "another_length": AnotherLengthError,
    "bad_extents": BadExtentsError,
    "not_an_export": NotAnExportError,
    "another_operations": AnotherOperationsError,
    "beyond_the_machine": BeyondTheMachineError,
    "out_of_memory": OutOfMemoryError,
    "out_of_addresses": OutOfAddressesError,
    "too_many_mappings": TooManyMappingsError,
    "pool_full": PoolFullError,
    "not_reservable": NotReservableError,
    "too_many_pins": TooManyPinsError,
    "revoked": RevokedError,
    "already_observed": AlreadyObservedError,
    "inside_operation": InsideOperationError,
    "operation_goes_on": OperationGoesOnError,
    "forked_child": ForkedChildError,
    "backing_unavailable": BackingUnavailableError,
    "pressure_unwatched": PressureUnwatchedError,
    "not_exportable": NotExportableError,
    "system": SystemCallError,
}


_WORDS: dict[str, str] = {
    "Backing::ShmemHuge": 'backing="shmem-thp"',
    "Commit::Upfront": 'commit="upfront"',
    "(Region::reset_to)": "(hugefork.reset(array, snapshot))",
    "Reserve::Full": "reserve=True",
    "Reserve::None": "reserve=False",
    "drop its guard": "end its `with` block",
    "take the text as `Extents` prints it": "take what hugefork.share gives",
    "take the one that `Export` gives": "take what hugefork.share gives",
    "keep its `Export`": "keep what hugefork.share gave",
    "an `export_copy`": "hugefork.share(snapshot, copy=True)",
    "exports(true)": "exports=True",
    "take export_copy": "take hugefork.share(snapshot, copy=True)",
    "use the method without `_at`": "leave `offset` out",
}
"""What the engine says, and what Python has for it."""


def in_words_of_python(text: str) -> str:
    """A text of the engine, with the names that Python has."""
    for of_engine, of_python in _WORDS.items():
        text = text.replace(of_engine, of_python)
    return text


def _make(code: str, number: int, errno: int, text: str, done: int | None = None) -> HugeforkError:
    """The exception for an error of the engine."""
    error = _CLASSES.get(code, HugeforkError)(in_words_of_python(text))
    error.code, error.number, error.errno, error.done = code, number, errno, done
    return error
