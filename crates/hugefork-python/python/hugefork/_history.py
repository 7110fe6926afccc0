"""Snapshots of arrays by age."""

from __future__ import annotations

import bisect
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, cast

from . import _native
from ._arrays import Array
from ._errors import ClosedError
from ._snapshot import Snapshot, places_of, snapshot_of

__all__ = ["History", "history"]

_KEEP = ((0.1, 10.0), (1.0, 60.0), (60.0, 3600.0))
"""The default rules of `history`."""

_ROUNDED = 1e-6
"""Tolerance as a part of a step, for rounding errors: 0.3 / 0.1 is 2.9999999999999996."""


class _Kept(NamedTuple):
    """A snapshot of a history."""

    time: float
    until: float
    """The time until which a rule keeps it; minus infinity if none does."""
    snapshot: Snapshot


class History:
    """Snapshots of arrays by age: many from the last seconds, fewer from the last hour. Made by `history`.

    It keeps the newest snapshot, and the older ones that its rules select. Iteration gives pairs ``(time,
    snapshot)``, oldest first; ``h[0]`` is the oldest snapshot, and ``h[-1]`` the newest. A snapshot taken from it
    remains valid after the history has dropped it, and holds its memory until then; but `Snapshot.close` closes it in
    the history, too.

    A snapshot with a revoked part (the pool was full) is no longer listed, and the next `take` warns of it: make the
    pool larger. Several threads may use a history concurrently; a signal handler must not.
    """

    def __init__(
        self,
        arrays: tuple[Array | Mapping[str, Array], ...],
        keep: int | Iterable[tuple[float, float]],
        reserve: bool,
        clock: Callable[[], float],
    ) -> None:
        self._most = keep if isinstance(keep, int) else sys.maxsize
        """Maximum number of snapshots."""
        if self._most < 1:
            raise ValueError(f"keep={keep}: give the number of snapshots, 1 or more")
        self._rules = [] if isinstance(keep, int) else _checked_rules(keep)
        # Stores no arrays: they would prevent their regions from being closed.
        self._places = places_of(arrays, "history")
        self._regions = [cast(_native.Region, place.holder) for place in self._places.values()]
        self._reserve = reserve
        self._clock = clock
        self._given: float | None = None
        """The time passed to the last `take`."""
        self._steps: list[int] | None = None
        """For each rule, the step of the newest snapshot. None before the first."""
        self._kept: tuple[_Kept, ...] | None = ()
        """Snapshots by time. The tuple is replaced, not changed, so readers need no lock. None after `close`."""
        self._changes = threading.RLock()
        """Held by the thread that changes the history. Reentrant, because a signal at the wrong moment may leave it
        locked."""

    def take(self, now: float | None = None) -> Snapshot:
        """Takes a snapshot of all arrays at one moment, adds it, and drops older ones that no rule selects any more.

        Costs the time of `snapshot`, and of freeing the memory of the dropped ones.

        Parameters
        ----------
        now
            The snapshot's time. Without it, the time of the history's clock.

        Raises
        ------
        ValueError
            The time is before that of the newest snapshot. Nothing has changed, as after the errors below.
        ClosedError, PoolFullError, and others of `snapshot`
        """
        with self._changes:
            kept = self._all()
            at = self._clock() if now is None else now
            if not math.isfinite(at):
                raise ValueError(f"time {at} is not a time: give seconds")
            if kept and at < kept[-1].time:
                order = f"the newest snapshot, {kept[-1].time}: give times in their order, or reset with drop_later=True"
                raise ValueError(f"time {at} is before that of {order}")
            made = snapshot_of(self._regions, self._places, self._reserve)
            steps = self._steps_of(at)
            # Each rule keeps the first snapshot of each of its steps.
            before = self._steps
            spans = [span for nth, (_, span) in enumerate(self._rules) if before is None or steps[nth] != before[nth]]
            newest = _Kept(at, at + max(spans, default=-math.inf if self._rules else math.inf), made)
            whole = [each for each in kept if not _is_lost(each.snapshot)]
            self._kept = (*(each for each in whole if each.until >= at), newest)[-self._most :]
            self._steps, self._given = steps, now
            if lost := sum(_is_revoked(each.snapshot) for each in kept):
                words = f"{lost} snapshot(s) of this history were taken away, because the pool was full"
                warnings.warn(f"{words}: give the pool more capacity, or keep fewer", RuntimeWarning, stacklevel=2)
            return _again(made)

    def at(self, time: float | None = None, *, ago: float | None = None) -> Snapshot:
        """The newest snapshot at or before a time.

        Parameters
        ----------
        time
            A time of the history's clock.
        ago
            Instead of a time, seconds before now. Now is the time of the clock, or the time passed to the last `take`
            if one was passed.

        Raises
        ------
        LookupError
            No snapshot is that old.
        ClosedError
            The history was closed.
        """
        kept = self._all()
        return _again(kept[_last_of(kept, self._time(time, ago))].snapshot)

    def reset(self, time: float | None = None, *, ago: float | None = None, drop_later: bool = False) -> float:
        """Resets all arrays to the snapshot ``at(time, ago=ago)``, as one consistent cut, at the cost of `reset`.
        Their present contents are lost: call `take` first to be able to return to them.

        Parameters
        ----------
        time, ago
            As those of `at`.
        drop_later
            Drop the snapshots that are later than that one. If false, they remain, and a later reset can return to
            them.

        Returns
        -------
        float
            The time of that snapshot.

        Raises
        ------
        LookupError
            No snapshot is that old. Nothing has changed.
        ClosedError, and others of `reset`
            No snapshot was dropped.
        """
        with self._changes:
            kept = self._all()
            last = _last_of(kept, self._time(time, ago))
            goal = kept[last]
            parts = {region: goal.snapshot._part(region) for region in self._regions}
            _native.reset_all(list(parts), list(parts.values()))
            if drop_later:
                self._kept = kept[: last + 1]
                self._steps = self._steps_of(goal.time)
            return goal.time

    def times(self) -> list[float]:
        """The times of its snapshots, oldest first."""
        return [each.time for each in self._open()]

    def __iter__(self) -> Iterator[tuple[float, Snapshot]]:
        """Iterates over the snapshots of the moment of the call."""
        return iter([(each.time, _again(each.snapshot)) for each in self._open()])

    def __getitem__(self, number: int) -> Snapshot:
        """A snapshot by its number, from the oldest on, or from the newest back if negative. Raises IndexError."""
        return _again(self._open()[number].snapshot)

    def __len__(self) -> int:
        """The number of snapshots."""
        return len(self._open())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._kept is None

    def close(self) -> None:
        """Drops all snapshots. Those taken from the history, and their arrays, remain valid. A second call does
        nothing."""
        with self._changes:
            self._kept = None
            self._places, self._regions = {}, []

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_how: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a history stays with its process: send hugefork.share(history.at(time)), which copies nothing")

    def __repr__(self) -> str:
        if self.closed:
            return "<hugefork.History, closed>"
        times = self.times()
        which = f"{len(times)} snapshot(s) from {times[0]} to {times[-1]}" if times else "no snapshot yet"
        return f"<hugefork.History of {len(self._places)} array(s), {which}>"

    def _all(self) -> tuple[_Kept, ...]:
        """All kept snapshots, including those with revoked parts."""
        if self._kept is None:
            raise ClosedError("this history is closed: make another with hugefork.history")
        return self._kept

    def _open(self) -> list[_Kept]:
        """All kept snapshots that are usable."""
        return [each for each in self._all() if not _is_lost(each.snapshot)]

    def _time(self, time: float | None, ago: float | None) -> float:
        if (time is None) == (ago is None):
            raise TypeError("give either a time or ago, the seconds before now")
        if time is None:
            assert ago is not None
            if not ago >= 0:
                raise ValueError(f"ago={ago}: give seconds, 0 or more")
            time = (self._clock() if self._given is None else self._given) - ago
        if math.isnan(time):
            raise ValueError(f"time {time} is not a time: give seconds")
        return time

    def _steps_of(self, time: float) -> list[int]:
        return [math.floor(time / every + _ROUNDED) for every, _ in self._rules]


def _last_of(kept: tuple[_Kept, ...], time: float) -> int:
    """Index of the newest usable snapshot at or before `time`."""
    after = bisect.bisect_right(kept, time, key=lambda each: each.time)
    while after and _is_lost(kept[after - 1].snapshot):
        after -= 1
    if after:
        return after - 1
    oldest = next((each.time for each in kept if not _is_lost(each.snapshot)), None)
    if oldest is None:
        raise LookupError("this history has no snapshot: call its take() first")
    raise LookupError(f"no snapshot is from {time} or before: the oldest is from {oldest}; ask for that time or later")


def _again(snapshot: Snapshot) -> Snapshot:
    """Another handle of the snapshot: the end of a `with` block closes only that handle."""
    return Snapshot(snapshot._open().copy(), snapshot._places)


def _is_lost(snapshot: Snapshot) -> bool:
    """Whether the snapshot was closed, or a part of it was revoked."""
    return any(part.closed or part.is_revoked() for _, part in snapshot._open().values())


def _is_revoked(snapshot: Snapshot) -> bool:
    return any(not part.closed and part.is_revoked() for _, part in snapshot._open().values())


def _checked_rules(keep: Any) -> list[tuple[float, float]]:
    try:
        rules = [(float(every), float(span)) for every, span in keep]
    except (TypeError, ValueError):
        raise TypeError(f"keep={keep!r}: give a number of snapshots, or pairs of seconds such as [(0.1, 10), (1, 60)]") from None
    for every, span in rules:
        if not (0 < every < math.inf and every <= span):
            raise ValueError(f"keep has ({every}, {span}): give a step of more than 0 seconds, and a span of a step or more")
    if not rules:
        raise ValueError("keep has no pair: give at least one, such as (1, 60)")
    return rules


def history(
    *arrays: Array | Mapping[str, Array],
    keep: int | Iterable[tuple[float, float]] = _KEEP,
    reserve: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> History:
    """Keeps snapshots of arrays by age, to read old contents or to return to them. Nothing runs in the background:
    each call of `History.take` takes one snapshot and drops those that are too old.

    Parameters
    ----------
    arrays
        As those of `snapshot`. Each snapshot is one consistent cut over all. The history keeps their memory until it is
        closed.
    keep
        The number of snapshots: it keeps the newest ones. Or pairs of seconds ``(every, span)``: one snapshot of each
        `every`, for `span`. The steps begin at whole multiples of `every`, and the first snapshot in a step is kept. A
        snapshot is kept if any pair keeps it, and so is the newest. `span` may be ``math.inf``. The default: one per
        0.1 s for 10 s, per second for a minute, per minute for an hour; so up to 224.
    reserve
        As that of `snapshot`: no part of a snapshot is revoked, and a write that needs a copy ends the process (SIGBUS)
        when the pool is full.
    clock
        A function that returns the time in seconds, used if none is passed to `History.take`. It must not go
        backwards.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array of a pool, or `keep` is neither a number nor a list of pairs of seconds.

    Notes
    -----
    A snapshot holds the old contents of memory that was written between it and the next kept one: pages of 4 KiB, and
    whole blocks (2 MiB) if a program writes to many pages of a block, or in sequence. If the pool fills up
    (``pool.stats().blocks_free``), use ``copy_grain="page"``, or a pool with a smaller `block_size`.

    `History.at` searches for one snapshot; `History.times`, ``len`` and iteration check each snapshot for revoked
    parts.

    Examples
    --------
    >>> import hugefork as hf
    >>> a = hf.Pool("64 MiB").zeros(3)
    >>> with hf.history(a, keep=[(1, 10), (5, 60)]) as h:
    ...     for second in range(60):
    ...         a[:] = second
    ...         _ = h.take(now=second)
    ...     h.times()
    ...     h.at(ago=3)[a]
    ...     h.reset(31), a
    [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
    array([56., 56., 56.])
    (30, array([30., 30., 30.]))
    """
    return History(arrays, keep, reserve, clock)
