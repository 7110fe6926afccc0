"""Keeps hugefork's fault handler above that of `faulthandler`.

First writes to memory of a pool raise faults, which hugefork resolves in a handler for `SIGSEGV`. It passes all other
faults to the previous handler, such as that of `faulthandler`. But if `faulthandler` is enabled or disabled *after*
the first pool was made, it puts its own or the system's handler on top, and the next first write would end the
process. So after both functions `hugefork.reinstall_fault_handler` is called.
"""

from __future__ import annotations

import faulthandler
import functools
from collections.abc import Callable
from typing import Any

from . import _native

has_pool = False
"""Whether a pool was made: before that, no handler is installed."""


def follow() -> None:
    """Wraps `faulthandler.enable` and `faulthandler.disable`, so that they reinstall hugefork's handler."""
    for name in ("enable", "disable"):
        setattr(faulthandler, name, _followed(getattr(faulthandler, name)))


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(function, "__wrapped__"):
        return function

    @functools.wraps(function)
    def followed(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        finally:
            if has_pool:
                _native.reinstall_fault_handler()

    return followed
