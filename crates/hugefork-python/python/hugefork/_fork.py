"""Warns a process once when it forks while it has arrays of pools.

A child of ``os.fork()`` has no pools, and an access to an array ends it. `multiprocessing.Pool` then waits for ever
for the worker's result. The child cannot report that, so the parent is warned before the fork.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._allocator import numpy_allocator

_holders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Regions and snapshots that have had arrays, by `id`."""

_allocators: weakref.WeakValueDictionary[int, numpy_allocator] = weakref.WeakValueDictionary()

_is_told = False


def stays_here(holder: Any) -> None:
    """Notes that the arrays of this region or snapshot exist in this process only."""
    _holders[id(holder)] = holder


def allocates(allocator: numpy_allocator) -> None:
    """Notes the same for arrays with memory of this allocator."""
    _allocators[id(allocator)] = allocator


def follow() -> None:
    """Registers the warning for forks by Python."""
    os.register_at_fork(before=_before_fork)


def _live() -> int:
    """Arrays that a child would not have."""
    holders = [holder for reference in _holders.valuerefs() if (holder := reference()) is not None]
    allocators = [allocator for reference in _allocators.valuerefs() if (allocator := reference()) is not None]
    in_arrays: int = sum(holder.exports for holder in holders)
    return in_arrays + sum(allocator.stats().live for allocator in allocators)


def _before_fork() -> None:
    global _is_told
    if _is_told or _is_for_exec():
        return
    live = _live()
    if live == 0:
        return
    _is_told = True
    warnings.warn(
        f"this process forks and has {live} array(s) of hugefork: a child that touches one dies, and multiprocessing may "
        "wait for it for ever; start processes with 'spawn' or 'forkserver' (multiprocessing.set_start_method) and give "
        "them hugefork.share(hugefork.snapshot(array)), or only use copies in the child",
        RuntimeWarning,
        stacklevel=2,
    )


def _is_for_exec() -> bool:
    """Whether `subprocess` forks (visible if there is a `preexec_fn`): that child becomes another program."""
    frame = sys._getframe(2) if hasattr(sys, "_getframe") else None
    return frame is not None and frame.f_globals.get("__name__") == "subprocess"
