"""Snapshots by age, with a clock that the test controls."""

import gc
import math
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hugefork as hf
from hugefork import checkpoint


BLOCK_SIZE = "64 KiB"
"""Capacity of the pool: each of many snapshots may hold a block of its own."""


class Clock:
    """A clock that changes only when the test sets it."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def test_the_newest_snapshot_that_is_not_newer_is_found(pool, clock):
    a, b = pool.zeros(1000), pool.zeros((3, 4), "i4")
    with hf.history(a, b, keep=[(1, 100)], clock=clock) as history:
        assert len(history) == 0 and history.times() == [] and "no snapshot yet" in repr(history)
        with pytest.raises(LookupError, match="call its take"):
            history.at(5)
        for clock.time in (10.0, 20.0, 30.0):
            a[:], b[1] = clock.time, clock.time
            with history.take() as taken:
                assert taken[a][5] == clock.time
        a[:] = b[:] = -1
        for time, found in [(10, 10), (19.9, 10), (20, 20), (29, 20), (30, 30), (1e9, 30), (math.inf, 30)]:
            s = history.at(time)
            assert (s[a] == found).all() and s[b].tolist() == [[0] * 4, [found] * 4, [0] * 4]
        clock.time = 35.0
        for ago, found in [(0, 30), (5, 30), (5.1, 20), (25, 10)]:
            assert history.at(ago=ago)[a][0] == found
        with pytest.raises(LookupError, match="from 9.5 or before: the oldest is from 10.0; ask for that time or later"):
            history.at(9.5)
        with pytest.raises(LookupError):
            history.at(ago=25.5)
        assert history.times() == [10, 20, 30] and len(history) == 3
        assert [(time, s[a][0]) for time, s in history] == [(10, 10), (20, 20), (30, 30)]
        assert repr(history) == "<hugefork.History of 2 array(s), 3 snapshot(s) from 10.0 to 30.0>"
        del s


def test_without_a_clock_of_its_own_it_has_that_of_python(pool):
    a = pool.array([1.0])
    with hf.history(a) as history:
        history.take()
        a[0] = 2
        assert history.at(ago=0)[a][0] == 1
        with pytest.raises(LookupError):
            history.at(ago=1e9)


def test_ago_counts_from_the_time_that_was_given(pool):
    """A history with given times needs no clock."""
    a = pool.zeros(3)
    with hf.history(a, keep=[(1, 100)]) as history:
        for step in range(10):
            a[:] = step
            history.take(now=step)
        assert history.at(ago=0)[a][0] == 9 and history.at(ago=4)[a][0] == 5
        with pytest.raises(LookupError):
            history.at(ago=10)


def should_be_kept(taken, keep):
    """Applies the rules of the documentation: of all snapshots, the first in each step, for the rule's span; and the
    newest."""
    kept = {len(taken) - 1}
    for every, span in keep:
        first = {}
        for nth, time in enumerate(taken):
            first.setdefault(time // every, nth)
        kept |= {nth for nth in first.values() if taken[-1] - taken[nth] <= span}
    return [taken[nth] for nth in sorted(kept)]


# Whole numbers have exact steps.
RULES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(keep=RULES, steps=st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_the_rules_select_the_documented_snapshots(keep, steps):
    a = hf.Pool("8 MiB", block_size=BLOCK_SIZE).zeros(1)
    now, taken = 3, []
    with hf.history(a, keep=keep) as history:
        for step in steps:
            now += step
            a[0] = len(taken)
            history.take(now=now)
            taken.append(now)
            assert history.times() == should_be_kept(taken, keep)
            for time, s in history:
                assert taken[int(s[a][0])] == time


def test_steps_of_tenths_are_not_lost_to_rounding(pool, clock):
    a = pool.zeros(1)
    with hf.history(a, keep=[(0.1, 1000)], clock=clock) as history:
        for start in (0, 10_000_000):
            times = [(start + nth) * 0.1 for nth in range(200)]
            for clock.time in times:
                history.take()
            assert history.times()[-200:] == times


def test_the_default_rules_keep_an_hour(pool):
    a = pool.zeros(1)
    with hf.history(a) as history:
        for tenth in range(0, 50_000, 9):
            history.take(now=tenth / 10)
        assert 55 + 50 + 11 <= len(history) <= 224
        now = history.times()[-1]
        for ago, step in [(9, 0.9), (55, 1.9), (3500, 60.9)]:
            assert now - ago - step <= max(time for time in history.times() if time <= now - ago)


def test_a_dropped_snapshot_gives_its_memory_back(pool):
    a = pool.zeros(2 << 20, "u1", copy_grain="block")
    with hf.history(a, keep=[(1, 3)]) as history:
        for step in range(50):
            a[:] = step
            history.take(now=step)
        assert history.times() == [46, 47, 48, 49]
        figures = pool.stats()
        assert (figures.blocks - figures.blocks_free) * figures.block_size <= 6 * a.nbytes
        mine = history.at(47)
        for step in range(50, 60):
            history.take(now=step)
        assert (mine[a] == 47).all(), "who has one keeps it"


def test_a_reset_goes_back_and_forward(pool, clock):
    a, b = pool.zeros(100_000), pool.zeros(3)
    with hf.history(a, b, keep=[(1, 100)], clock=clock) as history:
        for clock.time in (1.0, 2.0, 3.0):
            a[7], b[:] = clock.time, clock.time
            history.take()
        a[7] = -1
        assert history.reset(2.5) == 2.0
        assert a[7] == 2 and (b == 2).all() and history.times() == [1, 2, 3]
        assert history.reset(ago=0) == 3.0 and a[7] == 3
        assert history.reset(1, drop_later=True) == 1.0
        assert a[7] == 1 and history.times() == [1]
        with pytest.raises(LookupError):
            history.reset(0.5)
        assert a[7] == 1


def test_after_later_ones_were_dropped_the_first_in_a_step_is_another(pool):
    a = pool.zeros(3)
    with hf.history(a, keep=[(10, 1000)]) as history:
        for now in (1, 11, 12):
            history.take(now=now)
        history.reset(5, drop_later=True)
        assert history.times() == [1]
        for now in (13, 14, 22):
            history.take(now=now)
        assert history.times() == [1, 13, 22]


def test_times_do_not_go_back(pool):
    a = pool.zeros(3)
    with hf.history(a) as history:
        history.take(now=5)
        a[:] = 1
        history.take(now=5)
        for time in (4.9, math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match="give"):
                history.take(now=time)
        assert history.times() == [5, 5] and history.at(5)[a][0] == 1


def test_senseless_arguments_are_refused(pool):
    a = pool.zeros(3)
    for keep in ([], [(0, 5)], [(-1, 5)], [(2, 1)], [(math.nan, 5)], [(1, math.nan)], [(math.inf, math.inf)]):
        with pytest.raises(ValueError, match="give|pair"):
            hf.history(a, keep=keep)
    for keep in (2.5, None, [5], [("a", "b")], [(1,)], [(1, 2, 3)], "text"):
        with pytest.raises(TypeError, match="give a number of snapshots, or pairs of seconds"):
            hf.history(a, keep=keep)
    with pytest.raises(TypeError, match="at least one array"):
        hf.history()
    with pytest.raises(ValueError, match="lies in no pool"):
        hf.history(np.zeros(3))
    with pytest.raises(ValueError, match="one of a snapshot"):
        hf.history(hf.snapshot(a)[a])
    with hf.history(a) as history:
        history.take(now=1)
        for call in (history.at, history.reset):
            for arguments, error in [
                ({}, TypeError),
                ({"time": 1, "ago": 1}, TypeError),
                ({"ago": -1}, ValueError),
                ({"ago": math.nan}, ValueError),
                ({"time": math.nan}, ValueError),
            ]:
                with pytest.raises(error, match="give"):
                    call(**arguments)
        with pytest.raises(TypeError, match="stays with its process"):
            pickle.dumps(history)


def test_a_closed_history_has_nothing(pool):
    a = pool.array([1.0])
    history = hf.history(a)
    s = history.take()
    history.close()
    history.close()
    assert history.closed and repr(history) == "<hugefork.History, closed>" and s[a][0] == 1
    for call in (history.take, history.times, lambda: len(history), lambda: list(history), lambda: history.at(0), lambda: history.reset(0)):
        with pytest.raises(hf.ClosedError, match="make another"):
            call()


def test_a_closed_region_is_an_error_and_its_snapshots_stay(pool):
    a = pool.array([1.0, 2.0])
    region = hf.region_of(a)
    with hf.history(a, keep=[(1, 9)]) as history:
        history.take(now=1)
        del a
        region.close()
        for call in (lambda: history.take(now=2), lambda: history.reset(1)):
            with pytest.raises(hf.ClosedError):
                call()
        assert history.times() == [1] and next(iter(history.at(1))).tolist() == [1, 2]


def test_a_failed_take_changes_nothing(pool):
    a, transfers = pool.zeros(3), hf.Operations()
    b = pool.zeros(3, operations=transfers)
    with hf.history(a, b, keep=[(1, 1)]) as history:
        history.take(now=1)
        with transfers, pytest.raises(hf.InsideOperationError):
            history.take(now=9)
        assert history.times() == [1]
        history.take(now=2)
        assert history.times() == [1, 2]


def test_snapshots_revoked_by_a_full_pool_are_dropped(pool):
    a = pool.array(np.ones(20 << 20, "u1"), copy_grain="block")
    with hf.history(a, keep=[(1, 100)]) as history:
        with pytest.warns(RuntimeWarning, match="the pool was full: give"):
            for step in range(6):
                a[:] = step
                history.take(now=step)
        times = history.times()
        assert 1 <= len(times) < 6 and times[-1] == 5
        for time, s in history:
            assert not s.is_revoked and (s[a] == time).all()
        # Closing a snapshot closes it in the history, too.
        history.at(5).close()
        assert history.times() == times[:-1]


def test_two_histories_of_one_array_are_two(pool):
    a, b = pool.zeros(3), pool.zeros(4)
    with hf.history(a, keep=[(1, 100)]) as one, hf.history(a[1:], b, keep=[(10, 100)]) as two:
        for step in range(30):
            a[:], b[:] = step, step
            one.take(now=step)
            if step % 5 == 0:
                two.take(now=step)
        assert len(one) == 30 and two.times() == [0, 10, 20, 25]
        two.reset(12)
        assert (a == 10).all() and (b == 10).all() and one.at(29)[a][0] == 29
        one.reset(17)
        assert (a == 17).all() and (b == 10).all()
        assert two.at(25)[a[1:]].tolist() == [25, 25]


def test_threads_may_take_and_look(pool):
    a = pool.zeros(1000)
    numbers, change, failed = iter(range(10_000)), threading.Lock(), []
    with hf.history(a, keep=[(2, 40), (10, 100)]) as history:
        history.take(now=-1)

        def work():
            try:
                for _ in range(100):
                    with change:
                        number = next(numbers)
                        a[:] = number
                        history.take(now=number)
                    times = history.times()
                    if times != sorted(times) or not all((s[a] == max(time, 0)).all() for time, s in history):
                        failed.append(times)
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == [] and history.times()[-1] == 399


def test_a_snapshot_of_it_can_be_saved(pool, tmp_path):
    a = pool.zeros(100_000)
    save = None
    with hf.history(a, keep=[(1, 100)]) as history:
        for step in range(5):
            a[step] = step + 1
            history.take(now=step)
        for step in range(5):
            save = checkpoint.save(tmp_path / str(step), {"a": history.at(step)[a]}, since=save)
            save.result()
            assert step == 0 or save.written < 10_000
    for step in range(5):
        assert checkpoint.load(tmp_path / str(step))["a"][:6].tolist() == [1 + nth if nth <= step else 0 for nth in range(6)]


def test_a_history_works_after_ctrl_c_at_any_moment(run):
    """The signal arrives before each Python instruction in turn."""
    done = run("""
import faulthandler, signal, sys
faulthandler.dump_traceback_later(80, exit=True)
a = hf.Pool("8 MiB", block_size="64 KiB").zeros(3)
count = last = 0

def trace(frame, event, argument):
    global count
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    if event == "opcode":
        count += 1
        if count == last:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace

interrupted = 0
while True:
    last += 1
    history = hf.history(a, keep=[(1, 2)])
    for now in range(4):
        a[:] = now
        history.take(now=now)
    count, came = 0, False
    try:
        sys.settrace(trace)
        history.take(now=4)
        history.reset(3, drop_later=True)
    except KeyboardInterrupt:
        came = True
    sys.settrace(None)
    interrupted += came
    times = history.times()
    assert times == sorted(set(times)) and {2, 3} <= set(times) <= {1, 2, 3, 4}, times
    assert all(s[a][0] == min(time, 3) for time, s in history)
    history.take(now=5)
    history.close()
    if not came:
        break
print(interrupted > 100)
""")
    assert done.stdout == "True\n", done.stderr


def test_a_program_that_ends_with_an_open_history_ends(run):
    done = run("h = hf.history(hf.Pool('8 MiB').zeros(3)); h.take(); print(len(h))")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_history_keeps_its_memory_until_it_is_closed(pool):
    history = hf.history(pool.zeros(3))
    history.take()
    gc.collect()
    assert pool.stats().regions == 1
    history.close()
    gc.collect()
    assert pool.stats().regions == 0


@given(most=st.integers(1, 5), steps=st.lists(st.integers(0, 3), max_size=12))
@settings(max_examples=20, deadline=None)
def test_a_number_of_snapshots_is_that_of_a_list(most, steps):
    """A model in numpy: a list of copies, the newest of which are kept."""
    a = hf.zeros(1000, copy_grain="page")
    model, time = [], 0
    with hf.history({"a": a}, keep=most) as history:
        for step in steps:
            time += step
            a[time] = time
            history.take(time)
            model = [*model, (time, a.copy())][-most:]
            assert history.times() == [time for time, _ in model] and len(history) == len(model)
            for number in range(-len(model), len(model)):
                assert np.array_equal(history[number]["a"], model[number][1])
        for number in (len(model), -len(model) - 1):
            with pytest.raises(IndexError):
                history[number]
        if model:
            history[0].reset()
            assert np.array_equal(a, model[0][1]) and len(history) == len(model)
            history.reset(model[-1][0], drop_later=True)
            assert np.array_equal(a, model[-1][1])
    with pytest.raises(hf.ClosedError):
        history[0]


@pytest.mark.parametrize("keep", [0, -1])
def test_a_history_of_no_snapshots_is_refused(pool, keep):
    with pytest.raises(ValueError, match=f"keep={keep}: give the number of snapshots"):
        hf.history(pool.zeros(3), keep=keep)
