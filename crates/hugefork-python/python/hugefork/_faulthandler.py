"""Keeps hugefork's fault handler on top of that of `faulthandler`.

First writes to memory of a pool are faults that hugefork resolves, in a handler for `SIGSEGV`. It passes all others on
to the handler that was there before, such as that of `faulthandler`. But where `faulthandler` is enabled or disabled
*after* the first pool was made, it puts its own or the system's handler on top, and the next first write would end the
process. So both functions are followed by `hugefork.reinstall_fault_handler`.
"""

from __future__ import annotations

import faulthandler
import functools
from collections.abc import Callable
from typing import Any

from . import _native

has_pool = False
"""Whether there has been a pool: before that, no handler is installed."""


def follow() -> None:
    """Has `faulthandler.enable` and `faulthandler.disable` followed by a reinstallation."""
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
