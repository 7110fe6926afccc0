"""Arrays, views, snapshots and forks, dropped in any order, compared with plain numpy arrays."""

import gc

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

import hugefork as hf

LENGTHS = st.sampled_from([1, 1000, (2 << 20) // 4, (5 << 20) // 4])
PLACES = st.floats(0, 1, exclude_max=True)


class Held:
    """An array, and its expected contents."""

    def __init__(self, array, expected):
        self.array, self.expected = array, expected

    def check(self):
        assert np.array_equal(self.array, self.expected)


class Cut:
    """A snapshot, and the expected contents of its arrays."""

    def __init__(self, snapshot, held):
        self.snapshot = snapshot
        self.members = [(each, each.expected.copy()) for each in held]


class Arrays(RuleBasedStateMachine):
    arrays = Bundle("arrays")
    cuts = Bundle("cuts")
    olds = Bundle("olds")

    @initialize()
    def begin(self):
        self.pool = hf.Pool("128 MiB", name="model")

    @rule(target=arrays, length=LENGTHS, grain=st.sampled_from(["auto", "page", "block"]))
    def make(self, length, grain):
        if self.pool.stats().regions >= 4:
            return multiple()
        return Held(self.pool.zeros(length, "u4", copy_grain=grain), np.zeros(length, "u4"))

    @rule(held=arrays, place=PLACES, count=st.integers(1, 5000), value=st.integers(0, 1 << 31))
    def write(self, held, place, count, value):
        start = int(place * len(held.expected))
        held.array[start : start + count] = value
        held.expected[start : start + count] = value

    @rule(held=arrays)
    def write_all(self, held):
        held.array += 1
        held.expected += 1

    @rule(held=arrays, place=PLACES)
    def discard(self, held, place):
        start = int(place * len(held.expected))
        hf.discard(held.array[start:])
        held.expected[start:] = 0

    @rule(held=arrays)
    def lazy_free_and_take_back(self, held):
        hf.lazy_free(held.array)
        hf.cancel_lazy_free(held.array)

    @rule(target=cuts, held=st.lists(arrays, min_size=1, max_size=3))
    def snapshot(self, held):
        return Cut(hf.snapshot(*(each.array for each in held)), held)

    @rule(target=olds, cut=cuts, nth=st.integers(0, 2))
    def look_back(self, cut, nth):
        held, expected = cut.members[nth % len(cut.members)]
        old = Held(cut.snapshot[held.array], expected)
        old.check()
        return old

    @rule(cut=cuts, nth=st.integers(0, 2))
    def compare(self, cut, nth):
        held, expected = cut.members[nth % len(cut.members)]
        changed = np.zeros(len(expected), bool)
        for part in hf.changed_since(held.array, cut.snapshot):
            changed[part] = True
        assert not (held.expected != expected)[~changed].any()

    @rule(cut=cuts, nth=st.integers(0, 2))
    def reset(self, cut, nth):
        held, expected = cut.members[nth % len(cut.members)]
        hf.reset(held.array, cut.snapshot)
        held.expected[:] = expected
        held.check()

    @rule(held=arrays, old=olds)
    def reset_to_any(self, held, old):
        if len(held.expected) == len(old.expected):
            hf.reset(held.array, old.array)
            held.expected[:] = old.expected
            held.check()

    @rule(cut=cuts)
    def reset_all(self, cut):
        hf.reset(*(held.array for held, _ in cut.members), cut.snapshot)
        for held, expected in cut.members:
            held.expected[:] = expected
            held.check()

    @rule(target=arrays, held=arrays)
    def fork(self, held):
        if self.pool.stats().regions >= 6:
            return multiple()
        return Held(hf.fork(held.array), held.expected.copy())

    @rule(target=arrays, old=olds)
    def fork_back(self, old):
        if self.pool.stats().regions >= 6:
            return multiple()
        return Held(hf.fork(old.array), old.expected.copy())

    @rule(held=consumes(arrays))
    def drop_array(self, held):
        held.check()

    @rule(cut=consumes(cuts))
    def drop_cut(self, cut):
        pass

    @rule(old=consumes(olds))
    def drop_old(self, old):
        old.check()

    @rule()
    def collect(self):
        gc.collect()

    @rule(held=arrays)
    def check(self, held):
        held.check()

    def teardown(self):
        if hasattr(self, "pool"):
            assert self.pool.stats().faults_failed == 0


TestArrays = Arrays.TestCase
TestArrays.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
