"""Snapshots of arrays by age."""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from . import _native
from ._arrays import Array, region_place
from ._errors import ClosedError
from ._snapshot import Snapshot, cut_of

__all__ = ["History", "history"]

_KEEP = ((0.1, 10.0), (1.0, 60.0), (60.0, 3600.0))
"""What `history` keeps if nothing else is said."""

_ROUNDED = 1e-6
"""So much of a step may be missing to its end: 0.3 / 0.1 is 2.9999999999999996."""


class _Kept(NamedTuple):
    """A snapshot of a history."""

    time: float
    until: float
    """The time until which a rule keeps it. Before any, if none does."""
    snapshot: Snapshot


class History:
    """Snapshots of arrays by age: many of the last seconds, fewer of the last hour. `history` makes it.

    It has one snapshot after each `take`, the newest, and of older ones those that its rules keep. Iteration gives pairs
    ``(time, snapshot)``, oldest first. A snapshot that was got from it stays good after the history has dropped it, and
    keeps its memory so long; but `Snapshot.close` gives that up in the history, too.

    A snapshot that lost a part because the pool was full is not in it any more: make the pool larger. Other threads may
    use all of it at once; a signal handler may not.
    """

    def __init__(
        self, arrays: tuple[Array, ...], keep: Iterable[tuple[float, float]], reserve: bool, clock: Callable[[], float]
    ) -> None:
        self._rules = _checked_rules(keep)
        # No arrays: they would keep their regions from being closed.
        self._places = [region_place(array)[1] for array in arrays]
        self._regions = [region_place(array)[0] for array in arrays]
        self._reserve = reserve
        self._clock = clock
        self._given: float | None = None
        """The time that the last `take` was given."""
        self._steps: list[int] | None = None
        """In which step of each rule the newest snapshot lies. None before the first."""
        self._kept: tuple[_Kept, ...] | None = ()
        """By time. It is replaced, not changed, so that who reads need not wait. None after `close`."""
        self._changes = threading.RLock()
        """Of who changes the history. A signal at the wrong moment may leave it taken: its thread can take it again."""

    def take(self, now: float | None = None) -> Snapshot:
        """Takes a snapshot of all arrays at one moment, keeps it, and drops older ones that no rule keeps any more.

        Costs what `snapshot` costs, and what it takes to give the memory of the dropped ones back.

        Parameters
        ----------
        now
            Its time. Without it, the history's clock is asked.

        Raises
        ------
        ValueError
            The time is before that of the newest snapshot. Nothing has changed, as after those below.
        ClosedError, PoolFullError, and others of `snapshot`
        """
        with self._changes:
            kept = self._all()
            at = self._clock() if now is None else now
            if not math.isfinite(at):
                raise ValueError(f"time {at} is no time: give seconds")
            if kept and at < kept[-1].time:
                raise ValueError(f"time {at} is before that of the newest snapshot, {kept[-1].time}: give times in their order")
            parts = cut_of(self._regions, self._reserve)
            made = Snapshot({id(region): (region, part) for region, part in parts.items()}, self._places)
            steps = self._steps_of(at)
            # Each rule keeps the first snapshot of each of its steps.
            before = self._steps
            spans = [span for nth, (_, span) in enumerate(self._rules) if before is None or steps[nth] != before[nth]]
            newest = _Kept(at, at + max(spans, default=-math.inf), made)
            self._kept = (*(each for each in kept if each.until >= at), newest)
            self._steps, self._given = steps, now
            return _again(made)

    def at(self, time: float | None = None, *, ago: float | None = None) -> Snapshot:
        """The newest snapshot that is not newer than a time.

        Parameters
        ----------
        time
            A time of the history's clock.
        ago
            Instead: so many seconds before now. Now is what the clock says; if the last `take` was given a time, it is that
            time.

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
        """Sets all arrays back to what they were in ``at(time, ago=ago)``, as one consistent cut, at the cost of `reset`.
        What they are now is lost: call `take` first to be able to return to it.

        Parameters
        ----------
        time, ago
            As those of `at`.
        drop_later
            Drop the snapshots that are later than that one. Without it they stay, and a reset can go forward again.

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
        """Those of the moment at which this is asked for."""
        return iter([(each.time, _again(each.snapshot)) for each in self._open()])

    def __len__(self) -> int:
        """The number of snapshots."""
        return len(self._open())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._kept is None

    def close(self) -> None:
        """Drops all snapshots. Those that were got from it, and their arrays, stay good. A second call does nothing."""
        with self._changes:
            self._kept = None
            self._places, self._regions = [], []

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
        """What is kept, also what was taken away."""
        if self._kept is None:
            raise ClosedError("this history is closed: make another with hugefork.history")
        return self._kept

    def _open(self) -> list[_Kept]:
        """What is kept, and can still be used."""
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
            raise ValueError(f"time {time} is no time: give seconds")
        return time

    def _steps_of(self, time: float) -> list[int]:
        return [math.floor(time / every + _ROUNDED) for every, _ in self._rules]


def _last_of(kept: tuple[_Kept, ...], time: float) -> int:
    """Which is the newest that is not newer than `time`, and can still be used."""
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
    """Another handle: at the end of a `with` block only that one is given up."""
    return Snapshot(snapshot._open().copy(), snapshot._places)


def _is_lost(snapshot: Snapshot) -> bool:
    """Whether somebody has closed it, or a part of it was taken away."""
    return any(part.closed or part.is_revoked() for _, part in snapshot._open().values())


def _checked_rules(keep: Any) -> list[tuple[float, float]]:
    try:
        rules = [(float(every), float(span)) for every, span in keep]
    except (TypeError, ValueError):
        raise TypeError(f"keep={keep!r}: give pairs of seconds such as [(0.1, 10), (1, 60)]") from None
    for every, span in rules:
        if not (0 < every < math.inf and every <= span):
            raise ValueError(f"keep has ({every}, {span}): give a step of more than 0 seconds, and a span of a step or more")
    if not rules:
        raise ValueError("keep has no pair: give at least one, such as (1, 60)")
    return rules


def history(
    *arrays: Array,
    keep: Iterable[tuple[float, float]] = _KEEP,
    reserve: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> History:
    """Keeps snapshots of arrays by age, so that they can be looked at, or go back, as they were some time ago. Nothing
    runs by itself: each call of `History.take` takes one snapshot and drops what is too old.

    Parameters
    ----------
    arrays
        Arrays of pools, or views of them. Each snapshot is one consistent cut over all. The history keeps their memory
        until it is closed.
    keep
        Pairs of seconds ``(every, span)``: one snapshot of each `every`, for `span`. The steps begin at whole multiples of
        `every`, and the first snapshot in a step is kept. One that any pair keeps is kept, and so is the newest. `span` may
        be ``math.inf``. As it is: one of each 0.1 s for 10 s, of each second for a minute, of each minute for an hour; so
        up to 224.
    reserve
        As that of `snapshot`: no snapshot loses a part, and a write that needs a copy fails when the pool is full.
    clock
        What tells the time in seconds, if `History.take` is given none. It must not go back.

    Raises
    ------
    TypeError, ValueError
        What is no array of a pool, or no pairs of seconds.

    Notes
    -----
    A snapshot holds what was written to between it and the next that is kept: pages of 4 KiB, and whole blocks (2 MiB)
    where a program writes to many pages of one, or to one after the other. If the pool fills up
    (``pool.stats().blocks_free``), take ``copy_grain="page"``, or a pool with a smaller `block_size`.

    `History.at` looks for one snapshot; `History.times`, ``len`` and iteration ask each whether it still has all its parts.

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
    if not arrays:
        raise TypeError("history() needs at least one array")
    return History(arrays, keep, reserve, clock)
