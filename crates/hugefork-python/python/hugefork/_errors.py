"""Exceptions: one class for each error of the engine, derived from a matching builtin.

``HugeforkError`` catches all of them. Each instance has ``code`` (the engine's name for it, such as ``pool_full``)
and ``number``, which never change, and ``errno``, the closest ``errno``.
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
    "ChildDiedError",
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
    """Base class of hugefork's errors. The message says what happened, and then what to do."""

    code: str = ""
    """The engine's name for the error; empty for errors of the Python binding."""
    number: int = 0
    """The engine's number for the error; 0 for errors of the Python binding."""
    errno: int | None = None
    """The closest ``errno``; for a refused system call, the kernel's error."""
    done: int | None = None
    """For `read_into` and `reset`: number of bytes at the start of the memory that were done before the error."""


class ClosedError(HugeforkError, ValueError):
    """A pool, region or snapshot was used after it was closed."""


class CheckpointError(HugeforkError, ValueError):
    """A checkpoint cannot be read: it is truncated or altered, or is not a checkpoint."""


class ChildDiedError(HugeforkError, RuntimeError):
    """The child of `in_child` ended before its function did, or the function has closed all descriptors."""


class InvalidError(HugeforkError, ValueError):
    """The request is impossible."""


class SizeError(InvalidError):
    """A size that is not possible."""


class NotABlockSizeError(SizeError):
    """The block size is not a power of two from 4 KiB to 1 GiB."""


class ZeroSizeError(SizeError):
    """A size of zero bytes."""


class NotAMultipleError(SizeError):
    """The size is not a whole number of blocks."""


class UnreadableSizeError(SizeError):
    """The text is not a size."""


class UnknownBackingError(InvalidError):
    """The text names no backing."""


class TooManyBlocksError(InvalidError):
    """More blocks than a pool can have."""


class LargerThanPoolError(InvalidError):
    """A region that is larger than its pool."""


class OutOfRangeError(InvalidError):
    """The range does not lie inside."""


class NotAViewError(InvalidError):
    """The range is not a slice of the type."""


class LimitOnSnapshotError(InvalidError):
    """A limit on copies was given for a snapshot, which cannot have one."""


class BadSettingError(InvalidError):
    """An environment variable with an impossible value."""


class BadKernelError(InvalidError):
    """``HUGEFORK_KERNEL`` names a kernel that this machine lacks, or that does not exist."""


class AnotherPoolError(InvalidError):
    """A snapshot of another pool."""


class AnotherLengthError(InvalidError):
    """A snapshot of another length."""


class BadExtentsError(InvalidError):
    """The text is not a list of extents of a snapshot."""


class NotAnExportError(InvalidError):
    """The descriptor belongs to no export, or to another one."""


class AnotherOperationsError(InvalidError):
    """The `Operations` differ from those of the array, or of the other arrays in its cut."""


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
    """A block has the maximum number of pins."""


class LostError(HugeforkError):
    """The memory or the state no longer exists."""


class RevokedError(LostError):
    """A part of a fork or snapshot was revoked, because the pool was full."""


class AlreadyObservedError(HugeforkError):
    """The region has an observer already."""


class InsideOperationError(HugeforkError, RuntimeError):
    """A fork, snapshot, reset or `prepare_snapshot` inside an operation of the same thread would wait for itself."""


class OperationGoesOnError(HugeforkError, TimeoutError):
    """A thread was inside an operation for longer than a fork, snapshot or reset waits (`Operations`)."""


class UnsupportedError(HugeforkError, RuntimeError):
    """This process or machine does not support the request."""


class ForkedChildError(UnsupportedError):
    """The process is a child of ``os.fork()``, where arrays of pools are plain memory. Calls belong to the parent, or to
    a process that was started with ``spawn`` or ``forkserver``."""


class BackingUnavailableError(UnsupportedError):
    """The machine lacks the requested backing."""


class PressureUnwatchedError(UnsupportedError):
    """Memory pressure cannot be watched."""


class NotExportableError(UnsupportedError):
    """The pool's memory cannot be opened read-only."""


class SystemCallError(HugeforkError, OSError):
    """The kernel refused a call; ``errno`` is its error."""


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
    "children(Children::Inherit)": "children='inherit'",
    "take export_copy": "take hugefork.share(snapshot, copy=True)",
    "use the method without `_at`": "leave `offset` out",
}
"""Phrases of the engine, and their replacements for Python."""


def in_words_of_python(text: str) -> str:
    """Translates a text of the engine into Python's names."""
    for of_engine, of_python in _WORDS.items():
        text = text.replace(of_engine, of_python)
    return text


def _make(code: str, number: int, errno: int, text: str, done: int | None = None) -> HugeforkError:
    """Makes the exception for an error of the engine."""
    error = _CLASSES.get(code, HugeforkError)(in_words_of_python(text))
    error.code, error.number, error.errno, error.done = code, number, errno, done
    return error
