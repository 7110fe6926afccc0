"""Pools and arrays: their properties, refused requests, and lifetimes."""

import copy
import dataclasses
import errno
import gc
import math
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import hugefork as hf


@pytest.mark.parametrize("make", ["empty", "zeros"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(7, "int8"), ((3, 0), "float64"), ((), "float32"), ((1000, 64), "complex128"), (5, [("x", "i4"), ("y", "f8")])]
    # numpy gives text without a length one letter.
    + [(3, dtype) for dtype in (str, bytes, ">U", "U5", "V", ">i2", "M8[s]", [("π", "U2")], ("f4", (2,)), [])],
)
def test_an_array_is_an_ordinary_one_of_zeros(pool, make, shape, dtype):
    array = getattr(pool, make)(shape, dtype)
    expected = np.zeros(shape, dtype)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.strides == expected.strides or not array.size
    assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned
    assert np.array_equal(array, expected)
    assert array.__array_interface__["data"][0] % pool.block_size == 0


def test_order_is_that_of_numpy(pool):
    assert pool.empty((3, 4), order="F").flags.f_contiguous
    with pytest.raises((ValueError, TypeError)):
        pool.empty(3, order="X")


def test_an_array_is_made_of_values(pool):
    values = np.arange(12, dtype="i2").reshape(3, 4)
    array = pool.array(values)
    assert np.array_equal(array, values) and array.dtype == values.dtype
    assert np.array_equal(pool.array([1, 2], "f4"), [1, 2])
    full = pool.empty(62 << 20, "u1", reserve=True)
    with pytest.raises(hf.PoolFullError):
        pool.array(np.ones(10))
    del full


SOURCES = {
    "list": [[1, 2], [3, 4]],
    "scalar": np.float32(3),
    "C": np.arange(24, dtype="i2").reshape(2, 3, 4),
    "F": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
    "permuted": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "gaps": np.arange(48.0).reshape(4, 12)[::2, 1::3],
    "backward": np.arange(48.0).reshape(4, 12)[::-1, ::-2],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "empty": np.empty((2, 0, 3), order="F"),
    "fields": np.zeros(3, [("x", "i4"), ("y", "f8")]),
}


@pytest.mark.parametrize("where", ["pool", "default"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_numpy_makes_is_made_alike(pool, where, source):
    of = pool if where == "pool" else hf
    one = 7 if np.asarray(source).dtype.names else 1.5
    for name, *arguments in [
        ("array", source),
        ("array", source, "f4"),
        ("empty_like", source),
        ("zeros_like", source),
        ("ones_like", source),
        ("full_like", source, one),
        ("zeros", np.shape(source)),
        ("ones", np.shape(source), "c8", "F"),
        ("full", np.shape(source), 7),
        ("full", np.shape(source), 2.5, "u1", "F"),
    ]:
        orders = "CFAK" if "_like" in name else "CFK" if name == "array" else "" if len(arguments) > 2 else "CF"
        for options in [{}, *({"order": order} for order in orders)]:
            if arguments[1:] == ["f4"] and one == 7:
                continue  # numpy converts no fields to a number.
            made, expected = getattr(of, name)(*arguments, **options), getattr(np, name)(*arguments, **options)
            assert (made.shape, made.dtype, type(made)) == (expected.shape, expected.dtype, np.ndarray), name
            assert made.strides == expected.strides or not made.size, (name, options)
            assert name == "empty_like" or np.array_equal(made, expected), name
            assert hf.region_of(made).pool_name() == ("test" if where == "pool" else "default")


def test_another_shape_and_type_than_the_prototype(pool):
    source = np.asfortranarray(np.ones((3, 4)))
    for shape in (5, (2, 6), (2, 2, 2)):
        for order in "CFAK":
            made = pool.full_like(source, 3, "i2", order, shape=shape, copy_grain="page")
            expected = np.full_like(source, 3, "i2", order, shape=shape)
            assert made.strides == expected.strides and np.array_equal(made, expected) and made.dtype == "i2"


def test_a_full_pool_is_an_error_of_each_call_that_writes(pool):
    with pytest.raises(OverflowError):
        pool.full(3, 300, "u1")
    full = pool.empty(64 << 20, "u1", reserve=True)
    for call in (lambda: pool.ones(9), lambda: pool.full(9, 1), lambda: pool.ones_like([1]), lambda: pool.full_like([1], 2)):
        with pytest.raises(hf.PoolFullError):
            call()
    del full


def test_a_pool_has_the_memory_of_the_machine_by_default(run):
    with open("/proc/meminfo", encoding="ascii") as file:
        machine = 1024 * sum(int(line.split()[1]) for line in file if line.startswith(("MemTotal", "SwapTotal")))
    for block_size in ("2 MiB", "64 KiB"):
        pool = hf.Pool(block_size=block_size)
        assert 0 < pool.capacity <= machine and pool.capacity % pool.block_size == 0
        assert pool.stats().metadata_bytes < pool.capacity // 2000
    with pytest.raises(hf.BeyondTheMachineError):
        hf.Pool(2 * machine // (2 << 20) * (2 << 20))


def test_the_default_pool_is_made_at_its_first_use_by_any_thread(run):
    done = run("""
import threading
assert "_native" not in vars(hf.default_pool)
begin = threading.Barrier(8)
arrays = []
def work():
    begin.wait()
    arrays.append(hf.ones(1000))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(arrays) == 8 and all(array.sum() == 1000 for array in arrays)
with hf.snapshot(*arrays) as s:
    arrays[3][:] = 5
    hf.reset(*arrays, s)
assert hf.default_pool.stats().regions == 8 and hf.default_pool.name == "default", hf.default_pool
""")
    assert done.returncode == 0, done.stderr


def test_a_child_has_arrays_of_the_default_pool_and_makes_none(run):
    done = run("""
import os
a = hf.full(3, 7)
if (child := os.fork()) == 0:
    a += 1
    try:
        hf.zeros(3)
    except hf.ForkedChildError:
        os._exit(int(a.sum()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 24 and a.sum() == 21
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shape", [-1, (3, -2), (1 << 62, 4), 1 << 70, 64 << 20])
def test_shapes_that_cannot_be_are_refused(pool, shape):
    with pytest.raises(ValueError, match="negative length|memory can have|larger than pool"):
        pool.empty(shape)


@pytest.mark.parametrize("shape", ["3", None, 1.5, (2, 1.5)])
def test_bad_shapes_are_refused(pool, shape):
    with pytest.raises(TypeError, match="is not a shape: give a length"):
        pool.empty(shape)


def test_wrong_arguments_name_the_right_ones(pool, tmp_path):
    a = pool.zeros(3)
    s = hf.snapshot(a)
    for call, error, words in [
        (lambda: hf.changed_since(a, None), TypeError, "NoneType is not a snapshot: give one"),
        (lambda: hf.changed_since(a, s, 5), TypeError, "int is not a snapshot"),
        (lambda: hf.reset(a, to=5), TypeError, "int is not a snapshot"),
        (lambda: hf.share(a), TypeError, "ndarray is not a snapshot"),
        (lambda: hf.numpy_allocator(5), TypeError, "int is not a pool: give"),
        (lambda: hf.read_into(a, "file"), TypeError, "'file' is not a file: give"),
        (lambda: hf.read_into(a, 0, offset=-5), ValueError, "offset=-5: give"),
        (lambda: hf.Pool(1 << 80), ValueError, "bytes: give"),
        (lambda: pickle.dumps(s), TypeError, "send hugefork.share"),
        (lambda: copy.deepcopy(s), TypeError, "send hugefork.share"),
        (lambda: hf.checkpoint.save(tmp_path, None), TypeError, "is not a mapping: give arrays by name"),
    ]:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize(("shape", "dtype"), [(3, object), (3, "no type"), (3, [("x", object)])])
def test_types_that_cannot_be_are_refused(pool, shape, dtype):
    with pytest.raises(TypeError):
        pool.empty(shape, dtype)


@pytest.mark.parametrize("size", [0, 1, "3 MiB", "", "ten", "1.5 GiB", -5, "1 EiB"])
def test_impossible_sizes_are_refused_with_a_remedy(size):
    with pytest.raises(ValueError, match="take|write|give|next multiple"):
        hf.Pool(size)


def test_sizes_and_words_of_other_types_are_refused():
    with pytest.raises(TypeError):
        hf.Pool(1.5)
    with pytest.raises(ValueError, match="on_demand"):
        hf.Pool("8 MiB", commit="never")
    with pytest.raises(hf.UnknownBackingError):
        hf.Pool("8 MiB", backing="tape")
    with pytest.raises(hf.BeyondTheMachineError):
        hf.Pool("100 TiB")
    with pytest.raises(hf.NotABlockSizeError):
        hf.Pool("8 MiB", block_size=3000)
    with pytest.raises(ValueError, match="auto, page, block"):
        hf.Pool("8 MiB").empty(1, copy_grain="byte")


def test_every_error_of_the_engine_has_its_class():
    from hugefork import _errors, _native

    codes = _native.error_codes()
    assert set(_errors._CLASSES) == {name for name, _, _ in codes}
    for name, number, errno in codes:
        error = _errors._make(name, number, errno, "text", 5)
        assert type(error).__name__.lower() in (name.replace("_", "") + "error", "systemcallerror")
        assert (error.code, error.number, error.errno, error.done, str(error)) == (name, number, errno, 5, "text")
        assert isinstance(error, hf.HugeforkError) and type(error).__doc__


def test_a_region_with_live_arrays_cannot_be_closed(pool):
    array = pool.zeros(10)
    region = hf.region_of(array)
    view = array[3:]
    for _ in range(2):
        with pytest.raises(BufferError, match="1 live view"):
            region.close()
    del array
    view[0] = 5
    assert not region.closed and view[0] == 5
    del view
    assert repr(region) == "<hugefork.Region of pool 'test': 2097152 bytes, 0 live view(s)>"
    region.close()
    region.close()
    assert region.closed and repr(region) == "<hugefork.Region, closed>"
    for use in (lambda: memoryview(region), region.stats, lambda: region.prepare_write(0, 1)):
        with pytest.raises(hf.ClosedError, match="closed"):
            use()


def test_many_threads_may_find_a_region_closed(run):
    done = run("""
import sys, threading
sys.setswitchinterval(1e-6)
region = hf.Pool("8 MiB").region("2 MiB")
region.close()
told = []

def ask():
    for _ in range(2000):
        try:
            region.is_revoked()
        except hf.ClosedError:
            told.append(1)

threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(told))
""")
    assert done.stdout == "8000\n", done.stderr


def test_memory_is_freed_with_the_last_view(pool):
    array = pool.zeros(1 << 20, "u1")
    array[:] = 1
    region, part = weakref.ref(hf.region_of(array)), array[5:10].reshape(5, 1)
    assert pool.stats().regions == 1
    del array
    gc.collect()
    assert region() is not None and part.sum() == 5
    del part
    gc.collect()
    assert region() is None and pool.stats().regions == 0


def test_a_closed_pool_keeps_the_memory_of_its_arrays():
    with hf.Pool("8 MiB") as pool:
        array = pool.zeros(10)
    array[:] = 3
    assert array.sum() == 30
    for use in (lambda: pool.zeros(1), pool.stats, lambda: pool.name, pool.trim):
        with pytest.raises(hf.ClosedError):
            use()
    assert repr(pool) == "<hugefork.Pool, closed>"


def test_a_pool_reports_its_properties(pool):
    assert (pool.name, pool.capacity, pool.block_size) == ("test", 64 << 20, 2 << 20)
    assert pool.backing
    array = pool.array(np.ones(1 << 20))
    assert repr(pool).startswith("<hugefork.Pool 'test': 8 MiB of 64 MiB in use by 1 region(s); blocks of 2 MiB on ")
    figures = pool.stats()
    assert dataclasses.is_dataclass(figures) and figures.blocks - figures.blocks_free == 4
    assert dataclasses.asdict(figures)["name"] == "test"
    del array


def test_figures_of_an_array(pool):
    array = pool.zeros((3 << 20) // 8)
    assert (hf.stats(array).blocks, hf.stats(array).blocks_present) == (2, 0)
    array[0] = 1
    hf.populate(array)
    assert hf.stats(array).blocks_present == 2
    seen = []
    other = pool.zeros(16 << 20, "u1")
    hf.populate(other, threads=2, progress=seen.append)
    assert max(seen) == 16 << 20
    with pytest.raises(ValueError):
        hf.populate(other, threads=0)

    def fails(done):
        raise KeyError(done)

    with pytest.raises(KeyError):
        hf.populate(other, progress=fails)


def test_an_exception_of_progress_ends_the_work():
    a = hf.Pool("640 MiB").zeros(640 << 20, "u1")
    for threads in (1, 2, 1 << 80):
        with pytest.raises(ZeroDivisionError):
            hf.populate(a, threads=threads, progress=lambda done: 1 // 0)
        present = hf.stats(a).blocks_present
        assert present >= 32
        # Other threads may be done before the one that calls progress has raised.
        assert present < 320 or threads > 1
        hf.discard(a)


def test_ctrl_c_ends_a_long_call(run):
    done = run("""
import signal
a = hf.Pool("640 MiB").zeros(640 << 20, "u1")

def interrupt(done):
    signal.raise_signal(signal.SIGINT)

try:
    hf.populate(a, progress=interrupt)
except KeyboardInterrupt:
    print(hf.stats(a).blocks_present)
""")
    assert done.stdout == "32\n", done.stderr


COPIES = """
import ctypes, functools, operator
from hugefork import _native

a = hf.Pool("512 MiB").empty(192 << 20, "u1")
a[:] = 1
snapshot = hf.snapshot(a)
(region, part), = snapshot._parts.values()

def after_ctrl_c(call):
    # Ctrl-C arrives right before the call, with no Python line in between that would raise it.
    calls, came = [ctypes.pythonapi.PyErr_SetInterrupt, call], []
    try:
        came.extend(map(operator.call, calls))
    except KeyboardInterrupt:
        return len(came)
"""


def test_ctrl_c_ends_a_copy_out_of_a_snapshot(run):
    done = run(COPIES + """
to = np.zeros(192 << 20, "u1")
print(after_ctrl_c(functools.partial(part.read_at, 0, to)), to[0], to[-1])
print(int(snapshot.copy(a).sum()) == a.size)
""")
    assert done.stdout == "1 1 0\nTrue\n", done.stderr


def test_ctrl_c_ends_a_copy_for_other_processes(run):
    done = run(COPIES + """
print(after_ctrl_c(functools.partial(_native.Export, part, True)))
with hf.share(snapshot, copy=True) as shared:
    print(int(next(iter(shared)).sum()) == a.size)
""")
    assert done.stdout == "1\nTrue\n", done.stderr


def test_other_arrays_are_refused(pool):
    for call in (hf.snapshot, hf.fork, hf.stats, hf.pin, hf.lazy_free, hf.region_of):
        with pytest.raises(ValueError, match="lies in no pool"):
            call(np.zeros(3))
        with pytest.raises(TypeError):
            call([1, 2])
    for call in (hf.snapshot, hf.fork):
        with pytest.raises(TypeError):
            call()
    array = pool.zeros((10, 10))
    for call in (hf.pin, hf.lazy_free, hf.discard, hf.prepare_write):
        with pytest.raises(ValueError, match="gaps"):
            call(array[:, 2])


def test_lazily_freed_memory_is_dropped_and_discarded_memory_is_zero(pool):
    array = pool.array(np.full(1 << 20, 7.0))
    assert hf.lazy_free(array).freed == array.nbytes
    assert hf.cancel_lazy_free(array[: 1 << 18]) == 2 << 20
    assert pool.reclaim("64 MiB") == 6 << 20
    assert (array[: 1 << 18] == 7).all() and not array[1 << 18 :].any()
    hf.discard(array[:10])
    assert not array[:10].any() and array[10] == 7
    hf.advise(array, "whole")
    with pytest.raises(ValueError, match="near"):
        hf.advise(array, "never")


def test_files_and_sockets_fill_arrays(pool, tmp_path):
    path, values = tmp_path / "values", np.arange(1 << 18, dtype="f8")
    values.tofile(path)
    array = pool.empty(values.shape)
    with open(path, "rb", buffering=0) as file:
        assert hf.read_into(array, file) == values.nbytes
        assert np.array_equal(array, values)
        assert hf.read_into(array[:2], file, offset=16) == 16
        assert array[:3].tolist() == [2, 3, 2]
        assert hf.read_into(array, file) == 0
        other = pool.empty(values.shape)
        file.seek(0)
        with hf.pin(other) as pin:
            assert not pin.released and math.prod(other.shape) * 8 == file.readinto(other)
        assert pin.released and np.array_equal(other, values)
        file.seek(0)
        third = pool.empty(values.shape)
        hf.prepare_write(third)
        assert file.readinto(third) == values.nbytes
    here, there = socket.socketpair()
    with here, there:
        there.sendall(bytes(range(100)))
        got = pool.empty(100, "u1")
        assert hf.read_into(got, here) > 0 and got[99] == 99
    with pytest.raises(hf.SystemCallError) as error:
        hf.read_into(array, 999)
    assert error.value.errno == 9
    with pytest.raises(ValueError):
        hf.read_into(array, -1)


def test_a_read_continues_over_pieces_and_reports_its_progress(pool):
    here, there = os.pipe()
    sent = np.arange(1 << 20, dtype="u1")
    got = pool.empty(sent.shape, "u1")

    def send():
        for start in range(0, len(sent), 100_001):
            os.write(there, sent[start : start + 100_001].data)

    sender = threading.Thread(target=send)
    sender.start()
    assert hf.read_into(got, here) == len(sent) and np.array_equal(got, sent)
    sender.join()
    os.write(there, b"abc")
    os.close(there)
    assert hf.read_into(got[:10], here) == 3 and got[:3].tobytes() == b"abc"
    os.close(here)
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.sendall(b"abcd")
        with pytest.raises(hf.SystemCallError) as error:
            hf.read_into(got, one)
        assert (error.value.errno, error.value.done) == (errno.EAGAIN, 4) and got[:4].tobytes() == b"abcd"


def test_ctrl_c_ends_the_wait_for_a_pipe(run):
    done = run("""
import os, signal, threading, time
here, there = os.pipe()
os.write(there, b"abc")
a = hf.Pool("4 MiB").zeros(100, "u1")

def interrupt():
    while not a[2]:
        time.sleep(0)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

try:
    threading.Thread(target=interrupt).start()
    hf.read_into(a, here)
except KeyboardInterrupt:
    print(a[:4].tobytes())
""")
    assert done.stdout == "b'abc\\x00'\n", done.stderr


def test_regions_have_the_buffer_protocol(pool):
    with pool.region("4 MiB") as region:
        with memoryview(region) as view:
            view[5] = 9
            assert (view.nbytes, view.readonly, region.exports) == (4 << 20, False, 1)
        side_by_side = np.frombuffer(region, "f4", 100, 4096)
        assert hf.region_of(side_by_side) is region
        del side_by_side
    assert region.closed


def test_a_thread_that_blocks_all_signals_writes_to_an_array_that_it_makes_or_once_it_takes_the_one_of_faults() -> None:
    program = """
import signal, threading
import hugefork as hf

pool = hf.Pool("16 MiB")
other = pool.zeros(1 << 18)

def serve(lines):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    lines()

def makes_one():
    own = pool.zeros(1 << 18)
    own[:] = 1
    with hf.snapshot(own) as s:
        own[:] = 2
        assert s[own][0] == 1

def takes_it():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGSEGV})
    other[:] = 3

for lines in (makes_one, takes_it):
    thread = threading.Thread(target=serve, args=(lines,))
    thread.start()
    thread.join()
assert other[5] == 3
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_views_with_gaps_and_read_only_ones_are_not_changed(pool):
    a = pool.array(np.arange(24, dtype="i4").reshape(2, 3, 4))
    for view in (np.broadcast_to(a.reshape(-1)[0:4:3], (2, 2)), a[:, :, ::2], a[:, 1], np.broadcast_to(a[0, 0], (2, 4))):
        with pytest.raises(ValueError, match="gaps"):
            hf.discard(view)
    fixed = a[1]
    fixed.flags.writeable = False
    with open("/dev/zero", "rb", buffering=0) as zeros:
        for change in (hf.discard, hf.lazy_free, lambda array: hf.read_into(array, zeros)):
            with pytest.raises(ValueError, match="read-only"):
                change(fixed)
    assert (a == np.arange(24).reshape(2, 3, 4)).all()
    for whole in (a.transpose(1, 0, 2), a[::-1, :, ::-1], a[0:1], a[:0]):
        hf.discard(whole)
    assert not a.any()
