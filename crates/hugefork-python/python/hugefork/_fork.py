"""Forks by Python.

A child of ``os.fork()`` has the arrays of pools that its parent has (`Pool`, ``children``), except those of snapshots and
of pools with ``children="nothing"``. An access to one of these ends it. `multiprocessing.Pool` then waits for ever for the
worker's result. The child cannot report that, so the parent is warned once before the fork.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from ._allocator import numpy_allocator

_holders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Regions and snapshots that no child has, and that have had arrays, by `id`."""

_allocators: weakref.WeakValueDictionary[int, numpy_allocator] = weakref.WeakValueDictionary()

_is_told = False

_is_child = False
"""Whether this process was forked by one that has imported hugefork."""


def stays_here(holder: Any) -> None:
    """Notes that the arrays of this region or snapshot exist in this process only."""
    _holders[id(holder)] = holder


def allocates(allocator: numpy_allocator) -> None:
    """Notes an allocator."""
    _allocators[id(allocator)] = allocator


def follow() -> None:
    """Registers for forks by Python."""
    os.register_at_fork(before=_native.before_fork, after_in_parent=_native.after_fork, after_in_child=_after_in_child)
    # Handlers run in reverse order: this one comes first.
    os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    global _is_told
    # In a child, threads that are missing may hold locks of allocators.
    if _is_child:
        return
    allocators = [allocator for reference in _allocators.valuerefs() if (allocator := reference()) is not None]
    for allocator in allocators:
        if allocator._is_inherited:
            # Memory without contents is not kept for children.
            allocator.trim()
    if _is_told or _is_for_exec():
        return
    holders = [holder for reference in _holders.valuerefs() if (holder := reference()) is not None]
    live = sum(holder.exports for holder in holders)
    live += sum(allocator.stats().live for allocator in allocators if not allocator._is_inherited)
    if live == 0:
        return
    _is_told = True
    warnings.warn(
        f"this process forks and has {live} array(s) of hugefork that no child has, of snapshots or of pools with "
        "children='nothing': a child that touches one dies, and multiprocessing may wait for it for ever; copy them, or "
        "start processes with 'spawn' or 'forkserver' (multiprocessing.set_start_method) and give them "
        "hugefork.share(hugefork.snapshot(array))",
        RuntimeWarning,
        stacklevel=2,
    )


def _after_in_child() -> None:
    global _is_child
    _is_child = True
    _native.after_fork()


def _is_for_exec() -> bool:
    """Whether `subprocess` forks (visible if there is a `preexec_fn`): that child becomes another program."""
    frame = sys._getframe(2) if hasattr(sys, "_getframe") else None
    return frame is not None and frame.f_globals.get("__name__") == "subprocess"
