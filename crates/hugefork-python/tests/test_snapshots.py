"""Snapshots and forks of arrays."""

import gc
import sys
import threading
import time

import numpy as np
import pytest

import hugefork as hf


def test_a_snapshot_is_read_only_and_does_not_change(pool):
    a, b = pool.zeros((100, 3)), pool.array(np.arange(5, dtype="u1"))
    with hf.snapshot(a, b) as s:
        a[:], b[:] = 1, 0
        old_a, old_b = s[a], s[b]
        assert not old_a.any() and old_b.tolist() == [0, 1, 2, 3, 4]
        assert (old_a.shape, old_a.dtype, old_a.strides) == (a.shape, a.dtype, a.strides)
        assert np.array_equal(s.copy(b), old_b) and s.copy(b).flags.writeable
        assert [each.shape for each in s] == [(100, 3), (5,)] and len(s) == 2 and a in s
        assert s.nbytes == 4 << 20 and not s.is_revoked and s.id > 0
        assert repr(s) == f"<hugefork.Snapshot {s.id} of 2 array(s), 4 MiB>"
    with pytest.raises(ValueError):
        old_a[0] = 1
    with pytest.raises(ValueError):
        old_a.flags.writeable = True
    with pytest.raises(hf.ClosedError):
        s[a]
    assert s.closed and repr(s) == "<hugefork.Snapshot, closed>" and not old_a.any()


def test_views_are_found_in_a_snapshot(pool):
    a = pool.array(np.arange(24.0).reshape(4, 6))
    views = [a[1:3], a[::-1], a[:, 1::2], a.T, a[2, 3:], a.reshape(3, 8)[::2, ::-3], a.view("u8"), a[1:1]]
    with hf.snapshot(a[1]) as s:
        before = [view.copy() for view in views]
        a[:] = -1
        for view, expected in zip(views, before):
            assert np.array_equal(s[view], expected) and s[view].strides == view.strides
            assert np.array_equal(s.copy(view), expected)
        with pytest.raises(KeyError, match="not in the snapshot"):
            s[pool.zeros(1)]
        with pytest.raises(ValueError, match="nobody can write to"):
            s[s[a]]


def test_a_snapshot_with_live_arrays_cannot_be_closed(pool):
    a = pool.zeros(10)
    s = hf.snapshot(a)
    old = s[a]
    with pytest.raises(BufferError, match="1 array"):
        s.close()
    assert old.sum() == 0
    del old
    s.close()
    s.close()


def test_snapshots_are_handed_on_by_dlpack_with_their_flag(pool):
    a = pool.array(np.arange(4.0))
    with hf.snapshot(a) as s:
        handed = np.from_dlpack(s[a])
        assert not handed.flags.writeable and np.shares_memory(handed, s[a])
    assert np.from_dlpack(a).flags.writeable


def test_forks_are_independent(pool):
    a, b = pool.array(np.arange(6.0).reshape(2, 3)), pool.zeros(4, "i4")
    branch = hf.fork(a)
    branch[0, 0] = 9
    a[1, 2] = 8
    assert a.tolist() == [[0, 1, 2], [3, 4, 8]] and branch.tolist() == [[9, 1, 2], [3, 4, 5]]
    both = hf.fork(a[:, ::2], b)
    assert isinstance(both, tuple) and both[0].tolist() == [[0, 2], [3, 8]] and both[0].strides == a[:, ::2].strides
    s = hf.snapshot(a)
    again = hf.fork(s[a])
    again += 1
    assert again[0, 0] == 1 and s[a][0, 0] == 0
    mixed = hf.fork(s[a], b, a)
    assert [part.shape for part in mixed] == [(2, 3), (4,), (2, 3)]
    assert hf.fork(branch, reserve=True, copy_grain="page", max_cow_bytes="4 MiB")[0, 0] == 9


def test_the_same_array_twice_is_one_region(pool):
    a = pool.zeros(4)
    with hf.snapshot(a, a[2:]) as s:
        assert s.nbytes == 2 << 20 and len(s) == 2
    one, two = hf.fork(a, a)
    assert np.shares_memory(one, two) and not np.shares_memory(one, a)


def test_a_cut_over_several_arrays_is_consistent(pool):
    """Writers pass a number on: each holder writes it to an array of its own. The numbers in a cut must be
    successive."""
    arrays = [pool.zeros(1 << 20, "u1").view("u8") for _ in range(3)]
    token, over = [0], threading.Event()

    def relay(own, mine):
        while not over.is_set():
            if token[0] % 3 == own:
                mine[700] = token[0]
                token[0] += 1
            time.sleep(0)

    threads = [threading.Thread(target=relay, args=each) for each in enumerate(arrays)]
    for thread in threads:
        thread.start()
    while token[0] < 3:
        time.sleep(0)
    for _ in range(40):
        with hf.snapshot(*arrays) as s:
            seen = sorted(int(s.copy(array)[700]) for array in arrays)
        assert [seen[0] + 1, seen[0] + 2] == seen[1:]
    over.set()
    for thread in threads:
        thread.join()


def test_a_snapshot_of_a_full_pool_loses_its_blocks_loudly(pool):
    a = pool.array(np.ones(40 << 20, "u1"), copy_grain="block")
    s, kept = hf.snapshot(a), None
    a[:] = 2
    assert s.is_revoked and "taken away" in repr(s)
    with pytest.raises(hf.RevokedError, match="taken away"):
        s.copy(a)
    with pytest.raises(hf.RevokedError):
        s[a]
    with pytest.raises(hf.NotReservableError) as error:
        kept = hf.fork(a, reserve=True)
    assert (error.value.code, isinstance(error.value, MemoryError)) == ("not_reservable", True)
    assert kept is None
    assert not hf.snapshot(a, reserve=True).is_revoked


def test_prepare_snapshot_does_the_work_before_the_snapshot(pool):
    a = pool.array(np.arange(1 << 20, dtype="u4"), copy_grain="page")
    earlier = hf.snapshot(a)
    a[::1024] = 7
    by_page = hf.stats(a).pages_private
    hf.prepare_snapshot(a, a[3:])
    if by_page:
        assert hf.stats(a).pages_private < by_page
    later = hf.snapshot(a)
    a[:] = 9
    assert later[a][1024] == 7 and earlier[a][1024] == 1024
    with pytest.raises(ValueError, match="lies in no pool"):
        hf.prepare_snapshot(np.zeros(3))


def test_changes_are_found_by_page_and_by_block(pool):
    a, b = pool.zeros((1 << 20, 2), "f4"), pool.zeros(10)
    s = hf.snapshot(a, b)
    assert hf.changed_since(a, s) == []
    a[700, 1] = 1
    a[700_000, 0] = 1
    expected = [slice(1024, 2048), slice(1399808, 1400832)]
    assert hf.changed_since(a, s) == expected
    flat, old = a.reshape(-1), s[a].reshape(-1)
    for part in expected:
        assert not np.array_equal(flat[part], old[part])
    assert hf.changed_since(a[:1000], s) == [slice(1024, 2000)]
    written = hf.changed_since(a, s, by="written")
    assert all(any(one.start <= part.start and part.stop <= one.stop for one in written) for part in expected)
    with pytest.raises(ValueError, match="page, block, written"):
        hf.changed_since(a, s, by="byte")
    assert hf.changed_since(a, s, by="block") == [slice(0, 1 << 19), slice(1 << 20, 3 << 19)]
    newer = hf.snapshot(a)
    a[0] = 5
    assert hf.changed_since(a, s, newer) == expected
    with pytest.raises(KeyError):
        hf.changed_since(b, newer)
    with pytest.raises(ValueError, match="page, block"):
        hf.changed_since(a, s, by="bit")


def test_a_reset_restores_the_cut(pool):
    a, b = pool.array(np.arange(1 << 20, dtype="f8")), pool.zeros(4)
    before, view, address = a.copy(), a[5:], a.ctypes.data
    with hf.snapshot(a, b) as s:
        for value in range(3):
            a[value * 1000 :: 70_000], b[:] = -1, -1
            assert hf.reset(view, s) is None
            assert np.array_equal(a, before) and (b == -1).all() and a.ctypes.data == address
        a += 1
        hf.reset(a, s[a])
        assert np.array_equal(a, before) and np.array_equal(s[a], before) and np.array_equal(view, before[5:])
        hf.reset(b, s)
        assert not b.any() and hf.changed_since(a, s) == []
    figures = hf.stats(a)
    assert figures.resets == 4 and figures.pages_put_back + figures.blocks_exchanged > 0


def test_several_arrays_go_back_to_one_cut(pool):
    a, b = pool.array(np.arange(3.0)), pool.array(np.arange(4, dtype="u1"))
    s, t = hf.snapshot(a, b), hf.snapshot(b)
    b[0] = 9
    later = hf.snapshot(a, b)
    calls = [
        lambda: hf.reset(a, b, s),
        lambda: hf.reset(b[1:], a, b, to=s),
        lambda: hf.reset(a, b, s[a], s[b]),
        lambda: hf.reset(a, b[2:], s[a], t[b]),
    ]
    for call in calls:
        a[:], b[:] = 7, 7
        assert call() is None
        assert a.tolist() == [0, 1, 2] and b.tolist() == [0, 1, 2, 3]
    hf.reset(a, b, later)
    assert a.tolist() == [0, 1, 2] and b.tolist() == [9, 1, 2, 3]


@pytest.mark.parametrize("grain", ["auto", "page", "block"])
def test_several_arrays_go_back_as_one_cut_beside_a_thread_that_writes(pool, grain):
    """The thread writes to one array after another. If a reset loses a write, it loses all later ones, too."""
    arrays = [pool.zeros(3 << 20, "i8", copy_grain=grain) for _ in range(4)]
    s = hf.snapshot(*arrays)
    begun, ended, written, torn, over = [0], [0], [0], [], threading.Event()

    def write():
        count = 0
        while not over.is_set():
            count += 1
            before = ended[0]
            for array in arrays:
                array[1000] = count
            seen = [int(array[1000]) for array in reversed(arrays)]
            if begun[0] <= before + 1 and seen != sorted(seen, reverse=True):
                # A reset may still be in progress. It does not suspend readers, so this waits for its end.
                while begun[0] != ended[0]:
                    time.sleep(0)
                seen = [int(array[1000]) for array in reversed(arrays)]
                if begun[0] <= before + 1 and seen != sorted(seen, reverse=True):
                    torn.append(seen)
            written[0] = count

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for nth in range(60):
            enough = written[0] + 2
            while written[0] < enough and thread.is_alive():
                time.sleep(0)
            begun[0] = nth + 1
            hf.reset(*arrays, s)
            ended[0] = nth + 1
    finally:
        over.set()
        thread.join()
    assert torn == []


def test_several_arrays_go_back_or_none(pool):
    a, b = pool.array([1.0, 2.0]), pool.array([3.0])
    s, only_b, long = hf.snapshot(a, b), hf.snapshot(b), hf.snapshot(pool.zeros(3 << 20, "u1"))
    other = hf.Pool("8 MiB").zeros(2)
    elsewhere = hf.snapshot(other)
    fork = hf.fork(a)
    a[0], b[0], fork[0] = 5, 6, 7
    for call, error in [
        (lambda: hf.reset(b, a, only_b), KeyError),
        (lambda: hf.reset(a, b, s[a]), ValueError),
        (lambda: hf.reset(a, a, s[a], only_b[b]), ValueError),
        (lambda: hf.reset(a, b, s[a], next(iter(long))), hf.AnotherLengthError),
        (lambda: hf.reset(a, b, s[a], elsewhere[other]), hf.AnotherPoolError),
        (lambda: hf.reset(fork, b), TypeError),
        (lambda: hf.reset(a, b, s, to=s), TypeError),
        (lambda: hf.reset(s), TypeError),
        (lambda: hf.reset(), TypeError),
    ]:
        with pytest.raises(error):
            call()
        assert (a[0], b[0], fork[0]) == (5, 6, 7)


def test_a_fork_can_be_reset_to_its_origin(pool):
    a, b = pool.array(np.arange(4.0)), pool.zeros(2)
    s = hf.snapshot(a)
    a[0] = 5
    later = hf.snapshot(a, b)
    of_snapshot, both = hf.fork(s[a]), hf.fork(later[a], later[b])
    of_branch = hf.fork(both[0])
    a[:], b[:] = -1, -1
    for value in range(3):
        for array in (of_snapshot, of_branch, *both):
            array[:] = value
        hf.reset(of_snapshot, s[a])
        hf.reset(of_branch, *both, later[a], later[a], later[b])
        assert of_snapshot.tolist() == [0, 1, 2, 3] and both[1].tolist() == [0, 0]
        assert of_branch.tolist() == both[0].tolist() == [5, 1, 2, 3]
    assert (a == -1).all()


def test_a_fork_is_not_in_the_snapshot_that_it_was_made_of(pool):
    a = pool.array(np.arange(4.0))
    s = hf.snapshot(a)
    branch = hf.fork(s[a])
    branch[:] = 9
    with pytest.raises(KeyError, match="not in the snapshot"):
        hf.reset(branch, s)
    assert (branch == 9).all()


@pytest.mark.parametrize("grain", ["auto", "page", "block"])
def test_a_full_pool_takes_the_snapshot_of_a_fork_and_not_the_fork(pool, grain):
    a = pool.array(np.ones(40 << 20, "u1"), copy_grain=grain)
    branch = hf.fork(a, copy_grain=grain)
    start = hf.snapshot(branch)
    del a
    gc.collect()
    for value in range(2, 6):
        branch[:] = value
        assert (branch == value).all()
    assert not hf.is_revoked(branch)
    if grain == "block":
        with pytest.raises(hf.RevokedError):
            hf.reset(branch, start)
        assert (branch == 5).all()
    else:
        # Copies of pages do not use blocks of the pool.
        hf.reset(branch, start)
        assert (branch == 1).all()


def test_a_closed_fork_frees_its_memory(pool):
    a = pool.array(np.ones(4 << 20, "u1"))
    branch = hf.fork(a)
    a[:] = 2
    branch[:] = 3
    region = hf.region_of(branch)
    del branch
    region.close()
    figures = pool.stats()
    assert figures.blocks - figures.blocks_free == 2
    with pytest.raises(hf.ClosedError):
        memoryview(region)


def test_a_reset_to_a_mismatched_snapshot_changes_nothing(pool):
    a, long = pool.array([1.0, 2.0]), pool.zeros(3 << 20, "u1")
    s = hf.snapshot(long)
    for goal, error, said in [
        (s[long], hf.AnotherLengthError, "length|bytes"),
        (s, KeyError, "not in the snapshot"),
        (long, TypeError, "needs a snapshot"),
        (np.zeros(2), ValueError, "lies in no pool"),
        (7, TypeError, "int is not a numpy array"),
    ]:
        with pytest.raises(error, match=said):
            hf.reset(a, goal)
    other = hf.Pool("8 MiB").zeros(2)
    with pytest.raises(hf.AnotherPoolError):
        hf.reset(a, hf.snapshot(other)[other])
    with pytest.raises(ValueError, match="nobody can write to"):
        hf.reset(s[long], s)
    s.close()
    with pytest.raises(hf.ClosedError):
        hf.reset(long, s)
    assert a.tolist() == [1, 2]


def test_a_reset_to_a_snapshot_that_has_lost_blocks_is_an_error(pool):
    a = pool.array(np.ones(40 << 20, "u1"), copy_grain="block")
    s = hf.snapshot(a)
    a[:] = 2
    with pytest.raises(hf.RevokedError, match="taken away") as error:
        hf.reset(a, s)
    assert error.value.done == 0 and (a == 2).all()


@pytest.mark.parametrize("call", [hf.populate, hf.discard])
def test_long_calls_let_other_threads_run(pool, call):
    """During a long call of one thread, another thread runs that the interpreter never switches to by itself."""
    big = pool.zeros(32 << 20, "u1")
    may_run, has_run = threading.Lock(), []
    may_run.acquire()
    thread = threading.Thread(target=lambda: (may_run.acquire(), has_run.append(True)))
    thread.start()
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        may_run.release()
        # On a busy machine the thread may wake up too late for one call.
        tried = 0
        while not has_run and tried < 100_000:
            tried += 1
            call(big)
        let_run = bool(has_run)
    finally:
        sys.setswitchinterval(usual)
        thread.join()
    del big
    gc.collect()
    assert let_run

def test_arrays_have_names(pool):
    a, b = pool.zeros((3, 4)), pool.ones(1000, "i4")
    with hf.snapshot({"a": a, "b": b[10:20]}) as s:
        a += 1
        b += 1
        assert (s["a"] == 0).all() and s["a"].shape == (3, 4) and (s["b"] == np.ones(10, "i4")).all()
        assert "a" in s and "c" not in s and b in s and len(s) == 2
        assert [each.tolist() for each in s] == [s["a"].tolist(), s["b"].tolist()] and (s[b] == 1).all()
        with pytest.raises(KeyError, match="no array of the snapshot has the name 'c': give names"):
            s["c"]
    for arrays in ({}, []):
        with pytest.raises(TypeError, match="snapshot\\(\\) needs at least one array"):
            hf.snapshot(*[arrays] if arrays == {} else arrays)


def test_a_snapshot_resets_its_arrays(pool):
    a, b, c = pool.zeros((3, 4)), pool.ones(1000, "i4"), pool.ones(3)
    s = hf.snapshot(a, b[10:20], b)
    for value in (5, 6):
        a[:], b[:], c[:] = value, value, value
        s.reset()
        assert (a == 0).all() and (b == 1).all() and (c == value).all()
    with s:
        pass
    with pytest.raises(hf.ClosedError):
        s.reset()
