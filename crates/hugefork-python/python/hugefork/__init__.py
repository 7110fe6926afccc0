"""numpy arrays on huge pages, with fork and snapshot in microseconds.

>>> import hugefork as hf
>>> a = hf.zeros((1000, 64), "float32")         # an ordinary numpy array
>>> with hf.snapshot(a) as s:                   # the present contents; nothing is copied
...     a += 1                                  # writing continues
...     float(s[a].sum()), float(a.sum())
(0.0, 64000.0)
>>> branch = hf.fork(a)                         # a writable copy

`zeros`, `empty`, `ones`, `full`, `array` and the ``…_like`` have the arguments of numpy's, and the options of `Pool.empty`.
Their arrays lie in `default_pool`. Functions accept arrays of any pool, also those of `numpy_allocator`, or views of
them. Sizes are bytes, or text such as ``"8 GiB"``. Threads may use everything concurrently; long calls release the
interpreter's lock.

A child of ``os.fork()``, and so a worker of `multiprocessing` with ``fork``, has the arrays of all pools as they were at
the fork, as memory of its own (`Pool`, ``children``). It has no pools: its calls raise `ForkedChildError`. `in_child` and
`Process` make children that have arrays as they were at a snapshot.

A thread that blocks all signals, like the threads of uWSGI (``--threads``), ends the process at its first write to an
array. It must call ``signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGSEGV})`` first, or make an array itself.
"""

from __future__ import annotations

from . import _faulthandler, _fork, checkpoint, dcp, mpi
from ._allocator import AllocatorStats, numpy_allocator
from ._child import InChild, Process, in_child
from ._errors import *  # noqa: F403
from ._errors import __all__ as _error_names
from ._history import History, history
from ._memory import *  # noqa: F403
from ._memory import __all__ as _memory_names
from ._native import Operations, Pin, Region, __version__ as __version__, reinstall_fault_handler
from ._pool import Pool, default_pool, parse_size
from ._shared import Shared, share
from ._snapshot import Snapshot, fork, snapshot
from ._stats import LazyFreed, PoolStats, RegionStats

__all__ = [
    "AllocatorStats",
    "History",
    "InChild",
    "LazyFreed",
    "Operations",
    "Pin",
    "Pool",
    "PoolStats",
    "Process",
    "Region",
    "RegionStats",
    "Shared",
    "Snapshot",
    "array",
    "checkpoint",
    "dcp",
    "default_pool",
    "empty",
    "empty_like",
    "fork",
    "full",
    "full_like",
    "history",
    "in_child",
    "mpi",
    "numpy_allocator",
    "ones",
    "ones_like",
    "parse_size",
    "reinstall_fault_handler",
    "share",
    "snapshot",
    "zeros",
    "zeros_like",
    *_error_names,
    *_memory_names,
]

empty, zeros, ones, full, array = (
    default_pool.empty,
    default_pool.zeros,
    default_pool.ones,
    default_pool.full,
    default_pool.array,
)
empty_like, zeros_like = default_pool.empty_like, default_pool.zeros_like
ones_like, full_like = default_pool.ones_like, default_pool.full_like


def __dir__() -> list[str]:
    return [name for name in globals() if name in __all__ or name.startswith("__")]


_faulthandler.follow()
_fork.follow()
