"""numpy's memory from a pool."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hugefork as hf

BIG = 4 << 20


def handler(array):
    return np._core.multiarray.get_handler_name(array)


@pytest.fixture
def allocator(pool):
    made = hf.numpy_allocator(pool)
    yield made
    gc.collect()
    assert made.stats().live == 0
    made.trim()


def test_big_arrays_come_from_the_pool_and_go_back(pool, allocator):
    with allocator:
        assert np._core.multiarray.get_handler_name() == "hugefork"
        a = np.ones(BIG, "u1")
        small = np.ones(1000)
        b = (a + 1) * 2
    assert np._core.multiarray.get_handler_name() == "default_allocator"
    assert b.sum(dtype="u8") == 4 * BIG and handler(b) == "hugefork" and small.sum() == 1000
    figures = allocator.stats()
    assert (figures.live, figures.live_bytes, figures.refused) == (2, 2 * BIG, 0)
    del a, b
    assert allocator.stats().kept_bytes == 3 * BIG
    assert allocator.trim() == 3 * BIG
    assert pool.stats().regions == 0


def test_memory_is_recycled_and_zeros_are_zeros(allocator):
    with allocator:
        for value in range(5):
            a = np.empty(BIG, "u1")
            a[:] = 255
            del a
            assert not np.zeros(BIG - value, "u1").any()
    figures = allocator.stats()
    assert (figures.made, figures.recycled) == (1, 9)


def test_arrays_grow_and_shrink(allocator):
    with allocator:
        a = np.arange(1 << 19, dtype="u4")
        for length in (1 << 20, 3 << 20, 1000, 1 << 19):
            before = a[: min(len(a), length)].copy()
            a.resize(length, refcheck=False)
            assert np.array_equal(a[: len(before)], before)
        b = np.arange(10.0)
        b.resize(1 << 20, refcheck=False)
        assert b[9] == 9 and not b[10:].any()
        del a, b, before


@pytest.mark.parametrize("length", [5 << 20, (16 << 20) + 7])
def test_arrays_begin_at_different_places_of_their_blocks(pool, length):
    """So arrays that are used together do not share cache sets."""
    allocator = hf.numpy_allocator(pool, keep=0)
    with allocator:
        arrays = [np.zeros(length, "u1") for _ in range(3)]
    assert len({array.ctypes.data % 4096 for array in arrays}) == 3
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    for value, array in enumerate(arrays):
        array[:] = value
    for value, array in enumerate(arrays):
        assert (array == value).all()
        array.resize(length + 100_000, refcheck=False)
        assert (array[:length] == value).all() and not array[length:].any()
    assert allocator.stats().live == 3
    del array, arrays
    assert allocator.stats().live == 0


def test_a_full_pool_leads_to_ordinary_memory(allocator):
    with allocator:
        many = [np.ones(20 << 20, "u1") for _ in range(5)]
    assert allocator.stats().refused == 2
    assert sum(int(each.sum(dtype="u8")) for each in many) == 100 << 20
    del many


def test_kept_memory_makes_room(allocator):
    with allocator:
        for mib in (20, 30, 40, 50, 60):
            np.ones(mib << 20, "u1")
    assert allocator.stats().refused == 0


def test_system_calls_fill_arrays(allocator, tmp_path):
    values = np.arange(BIG, dtype="u1")
    values.tofile(tmp_path / "values")
    with allocator, open(tmp_path / "values", "rb", buffering=0) as file:
        assert np.array_equal(np.fromfile(tmp_path / "values", "u1"), values)
        for make in (np.empty, np.zeros):
            a = make(BIG, "u1")
            file.seek(0)
            assert file.readinto(a) == BIG and np.array_equal(a, values)
        del a


def test_blocks_nest(pool, allocator):
    inner = hf.numpy_allocator(pool, least="1 MiB", keep=0)
    with allocator:
        with inner, inner:
            a = np.ones(1 << 20, "u1")
        b = np.ones(BIG, "u1")
    assert (inner.stats().live, allocator.stats().live) == (1, 1)
    del a, b
    assert inner.stats().kept_bytes == 0


def test_an_array_outlives_its_allocator(pool):
    with hf.numpy_allocator(pool):
        a = np.ones(BIG, "u1")
    gc.collect()
    assert a.sum(dtype="u8") == BIG
    del a


def test_the_allocator_is_that_of_its_context(allocator):
    seen = {}

    def note(name):
        seen[name] = np._core.multiarray.get_handler_name()

    async def task():
        note("task")

    with allocator:
        thread = threading.Thread(target=note, args=("thread",))
        along = threading.Thread(target=contextvars.copy_context().run, args=(note, "along"))
        for each in (thread, along):
            each.start()
            each.join()
        asyncio.run(task())
    assert seen == {"thread": "default_allocator", "along": "hugefork", "task": "hugefork"}


def test_many_threads_use_one_allocator(allocator):
    kept = {}

    def work(seed):
        random = np.random.default_rng(seed)
        assert np._core.multiarray.get_handler_name() == "hugefork"
        for _ in range(30):
            length = int(random.integers(2 << 20, 4 << 20))
            a = np.full(length, seed, "u1")
            b = a + np.zeros(length, "u1")
            assert (b == seed).all()
            # The replaced memory may belong to another thread, and is freed here.
            kept[int(random.integers(4))] = b
        return seed

    with allocator:
        contexts = [contextvars.copy_context() for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        work_done = [threads.submit(context.run, work, seed) for seed, context in enumerate(contexts)]
        assert [each.result() for each in work_done] == [0, 1, 2, 3]
    kept.clear()


def test_threads_that_use_one_allocator_go_back_to_their_own(pool, allocator):
    """Each thread has found another handler active, and the threads leave in the order in which they entered."""
    inner, seen = hf.numpy_allocator(pool, least="1 MiB"), {}
    turn = threading.Barrier(2)

    def work(name, around):
        with around:
            before = np.ones(1 << 20, "u1")
            if name == "second":
                turn.wait()
            allocator.__enter__()
            if name == "first":
                turn.wait()
            turn.wait()
            if name == "second":
                turn.wait()
            allocator.__exit__(None, None, None)
            if name == "first":
                turn.wait()
            seen[name] = handler(before), handler(np.ones(1 << 20, "u1"))

    threads = [threading.Thread(target=work, args=each) for each in (("first", contextlib.nullcontext()), ("second", inner))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first": ("default_allocator",) * 2, "second": ("hugefork",) * 2}
    assert inner.stats().made == 2 and allocator.stats().made == 0


@pytest.mark.parametrize("children", ["inherit", "nothing"])
def test_a_forked_child_uses_ordinary_memory(run, children):
    done = run(f"children = {children!r}" + """
import os
allocator = hf.numpy_allocator(hf.Pool("64 MiB", children=children))
allocator.__enter__()
a = np.ones(4 << 20, "u1")
b = np.ones(4 << 20, "u1")
del b
child = os.fork()
if child == 0:
    del a
    status = int(not (np.ones(4 << 20, "u1") + np.zeros(4 << 20, "u1")).all())
    os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a.sum(dtype="u8"))
""")
    assert done.stdout == f"0 {4 << 20}\n", done.stderr


def test_a_forked_child_has_the_arrays_of_its_parent(run):
    done = run("""
import os
pool = hf.Pool("128 MiB")
allocator = hf.numpy_allocator(pool)
allocator.__enter__()
a, b, c, d = (np.full(4 << 20, nth, "u1") for nth in range(1, 5))
del d                                        # is kept
counts = allocator.stats()
assert counts.kept_bytes > 0
child = os.fork()
if child == 0:
    status = 1
    try:
        assert [x.sum(dtype="u8") >> 22 for x in (a, b, c)] == [1, 2, 3]
        a[:] = 7
        a.resize(2 << 20, refcheck=False)    # stays
        b.resize(9 << 20, refcheck=False)    # moves into ordinary memory
        assert a.sum(dtype="u8") == 7 * (2 << 20) and b[: 4 << 20].sum(dtype="u8") == 2 * (4 << 20)
        b[:] = 1
        new = [np.ones(4 << 20, "u1") for _ in range(20)]
        new.append(a + c[: 2 << 20])
        assert new[-1][5] == 10
        del a, b, new, c
        new = np.zeros(4 << 20, "u1")
        assert not new.any()
        assert allocator.stats().made == counts.made
        inner = os.fork()
        if inner == 0:
            os._exit(int(new.any()))
        assert os.waitpid(inner, 0)[1] == 0
        status = 0
    finally:
        os._exit(status)
a[:] = 9
assert allocator.stats().kept_bytes == 0
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), [int(x.sum(dtype="u8") >> 22) for x in (a, b, c)])
""")
    assert (done.stdout, done.stderr) == ("0 [9, 2, 3]\n", "")


def test_files_can_be_read_into_arrays_while_a_child_has_them(run, tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(256)) * (8 << 12))
    done = run(f"file = open({str(tmp_path / 'file')!r}, 'rb', buffering=0)" + """
import os, time
pool = hf.Pool("128 MiB")
print(pool.no_page_grain)
allocator = hf.numpy_allocator(pool)
allocator.__enter__()
written, new, kept = np.ones(8 << 20, "u1"), np.empty(8 << 20, "u1"), np.ones(8 << 20, "u1")
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.read(reads, 1)
    os._exit(int(not written.all()))
del kept
for _ in range(2):
    again = np.empty(8 << 20, "u1")
    for array in (written, new, again):
        file.seek(0)
        assert file.readinto(array) == 8 << 20 and array[255] == 255
    assert (np.fromfile(file.name, "u1") == written).all()
    del again
os.write(writes, b".")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    if not done.stdout.startswith("None\n"):
        pytest.skip(f"single pages cannot be copied: {done.stdout}")
    assert (done.stdout, done.stderr) == ("None\n0\n", "")


class Model:
    """A model as that of a library that does not know hugefork."""

    def __init__(self):
        self.weights, self.table = np.ones((1000, 1000)), np.arange(1 << 20, dtype="f4")
        self.bias = np.zeros(10)
        self.view = self.table[::2]

    def fit(self):
        self.weights *= 2
        self.table[5:] += 1
        self.bias += 1


def test_a_model_is_snapshotted_and_reset(tmp_path):
    pool = hf.Pool("256 MiB", block_size="4 KiB")
    with hf.numpy_allocator(pool, least=1) as allocator:
        model = Model()
    before = {name: array.copy() for name, array in vars(model).items()}
    with hf.snapshot(vars(model)) as s:
        model.fit()
        after = {name: array.copy() for name, array in vars(model).items()}
        for name, array in before.items():
            assert np.array_equal(s[name], array) and not np.array_equal(vars(model)[name], array)
        branch = hf.fork(model.weights)
        branch[:] = 0
        child = hf.in_child(lambda: (model.weights.sum(), model.bias.sum(), branch.sum()), s)
        assert child.result() == (1_000_000, 0, 0)
        save = hf.checkpoint.save(tmp_path, {"weights": model.weights, "table": model.table})
        s.reset()
        for name, array in before.items():
            assert np.array_equal(vars(model)[name], array)
        save.result()
        assert np.array_equal(hf.checkpoint.load(tmp_path)["table"], after["table"])
    assert handler(model.weights) == "hugefork" and allocator.stats().live == 3
    del model, branch, save, s, array
    gc.collect()
    assert allocator.stats().live == 0 and allocator.trim() < 1 << 20
    assert pool.stats().regions == 0 and pool.stats().blocks_free == pool.stats().blocks


def test_an_error_names_the_arrays_of_a_model_that_lie_in_no_pool(allocator):
    with allocator:
        model = Model()
    with pytest.raises(ValueError, match="^array 'bias' of 80 bytes lies in no pool: make it .* `least` bytes"):
        hf.snapshot(vars(model))
    with pytest.raises(ValueError, match="^array 1 of 80 bytes, array 2 of 24 bytes lie in no pool"):
        hf.snapshot(model.weights, model.bias, np.zeros(3))
    with hf.snapshot(model.weights, model.view) as s:
        assert len(s) == 2
    del model, s


def test_memory_that_a_snapshot_has_is_not_recycled(allocator):
    with allocator:
        a = np.ones(BIG, "u1")
        s = hf.snapshot(a, a[5:])
        old = s[a]
        region = hf.region_of(a)
        assert region is hf.region_of(a[::3]) is hf.region_of(np.asarray(memoryview(a)))
        with pytest.raises(BufferError, match="1 live view"):
            region.close()
        place = a.__array_interface__["data"][0]
        a[:] = 2
        del a
        made = [np.full(BIG, 3, "u1") for _ in range(3)]
        assert place not in [each.__array_interface__["data"][0] for each in made]
        s.reset()
        assert all((each == 3).all() for each in made) and (old == 1).all()
        with pytest.raises(KeyError):
            s[made[0]]
        del old
        region.close()
        del s, region
        # The block is that of another array after it has moved.
        b = np.zeros(BIG, "u1")
        s = hf.snapshot(b)
        b.resize(3 * BIG, refcheck=False)
        with pytest.raises(KeyError):
            s[b]
        b[:] = 4
        assert (hf.snapshot(b)[b] == 4).all()
    del b, made, s


def test_threads_find_the_same_region(allocator):
    with allocator:
        arrays = [np.ones(BIG, "u1") for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            found = list(threads.map(hf.region_of, arrays * 8))
            assert len({id(each) for each in found}) == len(arrays)
    del arrays, found


@given(st.lists(st.tuples(st.sampled_from("make write snapshot reset drop read fork".split()), st.integers(0, 5)), max_size=30))
@settings(max_examples=15, deadline=None)
def test_snapshots_of_numpys_arrays_are_as_a_model_has_them(steps):
    """The model are copies, whose memory the allocator recycles."""
    pool = hf.Pool("128 MiB", block_size="64 KiB")
    arrays, cuts = [], []
    with hf.numpy_allocator(pool, keep="1 MiB"):
        for nth, (step, which) in enumerate(steps):
            if step == "make" or not arrays:
                made = np.full(100_000 + which, nth, "u4")
                arrays.append((made, made.copy()))
            array, model = arrays[which % len(arrays)]
            if step == "write":
                array[which::1000] = nth
                model[which::1000] = nth
            elif step == "snapshot":
                members = [(each, model, model.copy()) for each, model in arrays]
                cuts.append((hf.snapshot(*(each for each, _ in arrays)), members))
            elif step == "reset" and cuts:
                s, members = cuts[which % len(cuts)]
                s.reset()
                for _, model, old in members:
                    model[:] = old
            elif step == "drop":
                del arrays[which % len(arrays)]
                del cuts[: which // 3]
            elif step == "read" and cuts:
                s, members = cuts[which % len(cuts)]
                for each, _, old in members:
                    assert np.array_equal(s[each], old)
            elif step == "fork":
                arrays[which % len(arrays)] = hf.fork(array), model.copy()
            for each, model in arrays:
                assert np.array_equal(each, model)
    for s, members in cuts:
        assert all(np.array_equal(s[each], old) for each, _, old in members)


def test_a_child_cannot_snapshot_them(run):
    done = run("""
import os
with hf.numpy_allocator(hf.Pool("64 MiB")):
    a, b = np.ones(1 << 20), np.ones(1 << 20)
s = hf.snapshot(a)
a[:] = 2
if (child := os.fork()) == 0:
    assert a.sum() == 2 << 20
    for array in (a, b):
        try:
            hf.snapshot(array)
        except hf.ForkedChildError:
            array[:] = 3
    del array, a
    os._exit(int(b.sum() / (1 << 20)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3 and (s[a] == 1).all() and a.sum() == 2 << 20
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [object, np.dtype([("at", "f8"), ("name", object)])])
def test_arrays_of_python_objects_are_in_no_snapshot(pool, dtype):
    with hf.numpy_allocator(pool, keep=0):
        objects = np.zeros(BIG, dtype)
    for take in (hf.snapshot, hf.fork, hf.history):
        with pytest.raises(TypeError, match="Python objects"):
            take(objects)
