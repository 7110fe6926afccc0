"""Faults that are not hugefork's, `faulthandler`, and other processes."""

import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import hugefork as hf

WORKS = """
a = hf.Pool("16 MiB").zeros(1 << 20, "u1")
a[:] = 1
s = hf.snapshot(a)
a[:] = 2
print(int(s[a].sum()), int(a.sum()))
"""

SEGFAULT = """
import ctypes
ctypes.string_at(8)
"""

ENABLED = "import faulthandler; faulthandler.enable()\n"
DISABLED = "import faulthandler; faulthandler.disable()\n"


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ("", ENABLED, ()),
        ("", ENABLED + DISABLED, ()),
        (ENABLED, "", ()),
        (ENABLED, DISABLED, ()),
        (ENABLED + DISABLED, ENABLED, ()),
        ("", "", ("-X", "faulthandler")),
        ("", DISABLED + ENABLED, ("-X", "faulthandler")),
    ],
)
def test_memory_works_whenever_faulthandler_is_enabled_or_disabled(run, before, after, options):
    done = run(before + "pool = hf.Pool('16 MiB')\n" + after + WORKS, *options)
    assert (done.returncode, done.stdout) == (0, f"{1 << 20} {2 << 20}\n"), done.stderr


@pytest.mark.parametrize(
    ("program", "is_reported"),
    [
        (WORKS + SEGFAULT, False),
        (ENABLED + WORKS + SEGFAULT, True),
        (WORKS + ENABLED + SEGFAULT, True),
        (ENABLED + WORKS + ENABLED + SEGFAULT, True),
        (ENABLED + WORKS + DISABLED + SEGFAULT, False),
        (WORKS + ENABLED + DISABLED + SEGFAULT, False),
    ],
)
def test_a_segmentation_fault_of_the_program_is_reported_as_usual(run, program, is_reported):
    done = run(program)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert ("Fatal Python error: Segmentation fault" in done.stderr) == is_reported
    assert done.stderr.count("Fatal Python error") == int(is_reported)


UNDER_PYTEST = """
import hugefork as hf

def test_memory_works():
    a = hf.Pool("16 MiB").zeros(1 << 20, "u1")
    s = hf.snapshot(a)
    a[:] = 1
    assert a.sum(dtype="u8") == 1 << 20 and not s[a].any()

def test_that_crashes():
    import ctypes
    ctypes.string_at(16)
"""


@pytest.mark.parametrize(("options", "is_reported"), [((), True), (("-p", "no:faulthandler"), False)])
def test_pytest_works_with_faulthandler_and_without(tmp_path, options, is_reported):
    (tmp_path / "test_it.py").write_text(UNDER_PYTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, tmp_path]
    done = subprocess.run([*command, "-k", "works"], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == -signal.SIGSEGV and ("Fatal Python error: Segmentation fault" in done.stderr) == is_reported
    assert ("test_that_crashes" in done.stderr) == is_reported


def test_a_write_to_a_full_pool_prints_the_reason(run):
    done = run("pool = hf.Pool('4 MiB', name='small')\na, b = pool.zeros(4 << 20, 'u1'), pool.zeros(1)\na[:] = 1\nb[0] = 1")
    assert done.returncode == -signal.SIGBUS
    assert "pool `small`" in done.stderr


def test_calls_in_a_forked_child_raise(pool):
    array = pool.zeros(10)
    array[0] = 1
    snapshot = hf.snapshot(array)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = [
                lambda: pool.zeros(1),
                lambda: hf.snapshot(array),
                lambda: hf.fork(array),
                lambda: snapshot.copy(array),
                lambda: hf.Pool("4 MiB"),
                lambda: hf.populate(array),
                lambda: hf.reset(array, snapshot),
                lambda: hf.share(snapshot),
            ]
            for call in calls:
                with pytest.raises(hf.ForkedChildError):
                    call()
            array += 1
            assert array.tolist() == [2] + 9 * [1]
            del snapshot, array
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array[0] == 1


def test_a_forked_child_that_touches_an_array_dies_with_a_line(run):
    done = run("""
import os
a = hf.Pool("4 MiB", children="nothing").zeros(10)
a[0] = 1
child = os.fork()
if child == 0:
    a[0]
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a[0])
""")
    assert done.stdout == f"{-signal.SIGSEGV} 1.0\n"
    assert "fork" in done.stderr


def add_up(array):
    return float(array.sum())


FORK = """
import multiprocessing, os, subprocess, sys

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

pool = hf.Pool("16 MiB", children="nothing")
inherited = hf.Pool("16 MiB")
"""
FORK_BY_MULTIPROCESSING = """
child = multiprocessing.get_context("fork").Process(target=int)
child.start()
child.join()
"""
EXEC = "subprocess.run([sys.executable, '-c', ''], preexec_fn={}, check=True)\n"


@pytest.mark.parametrize(
    ("program", "is_reported"),
    [
        ("a = pool.zeros(9)\nfork()\nfork()", True),
        ("a = pool.zeros(9)" + FORK_BY_MULTIPROCESSING * 2, True),
        ("s = hf.snapshot(pool.zeros(9))\na = next(iter(s))\ndel s\nfork()", True),
        ("with hf.numpy_allocator(pool) as kept: a = np.ones(1 << 20)\nfork()", True),
        ("s = hf.snapshot(inherited.zeros(9))\na = next(iter(s))\ndel s\nfork()", True),
        ("a = inherited.zeros(9)\nfork()" + FORK_BY_MULTIPROCESSING, False),
        ("with hf.numpy_allocator(inherited) as kept: a = np.ones(1 << 20)\nfork()", False),
        ("a = pool.zeros(9)\n" + EXEC.format(None) + EXEC.format("int"), False),
        ("a = pool.zeros(9)\ndel a\nfork()", False),
        ("a = next(iter(hf.share(hf.snapshot(pool.zeros(9)))))\nfork()", False),
    ],
)
def test_a_fork_of_a_process_with_arrays_warns_once(run, program, is_reported):
    done = run(FORK + program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning: this process forks and has 1 array(s)") == is_reported, done.stderr
    assert done.stderr.count("Warning") == done.stderr.count("RuntimeWarning: this process forks"), done.stderr


INHERITED = """
import concurrent.futures, multiprocessing, os, signal, sys, time, traceback
fork = multiprocessing.get_context("fork")
pool = hf.Pool("256 MiB")
signal.alarm(90)

def until(is_true):
    while not is_true():
        time.sleep(0.001)

def until_free(nbytes):
    until(lambda: pool.stats().blocks_free * pool.block_size == pool.capacity - nbytes)

def in_child(body):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child

def end_of(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def runs(run, program, *options):
    """Runs a program that must print nothing, not even a warning."""
    done = run(INHERITED + program, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_workers_of_multiprocessing_have_the_arrays_as_their_own(run):
    runs(run, """
arrays = [pool.array(np.full(1 << 20, nth, "f8")) for nth in range(8)]     # 64 MiB

def add_up_and_write(nth):
    before = float(arrays[nth].sum())
    arrays[nth] += 1
    return before, float(arrays[nth].sum()), float(arrays[nth - 1][:10].sum()) in (10.0 * ((nth - 1) % 8 + add) for add in (0, 1))

with fork.Pool(8) as workers:
    for array in arrays:
        array[:] = -1                       # after the forks
    taken = 64 << 20
    assert workers.map(add_up_and_write, range(8), 1) == [(float(nth << 20), float(nth + 1 << 20), True) for nth in range(8)]
    assert all(float(array.sum()) == -(1 << 20) for array in arrays)
until_free(taken)
with fork.Pool(8) as workers:
    assert {before for before, *_ in workers.map(add_up_and_write, [0] * 8, 1)} <= {float((add - 1) << 20) for add in range(8)}
workers.join()
child = fork.Process(target=add_up_and_write, args=(3,))
child.start()
child.join()
assert child.exitcode == 0
until_free(taken)
""")


def test_executors_and_preloaded_servers_have_the_arrays(run):
    runs(run, """
model = pool.array(np.arange(1 << 20, dtype="f8"))
scratch = pool.zeros(1 << 20)

def serve(number):
    scratch[:] = number                     # each has its own
    return model[number] + scratch.sum()

with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as executor:
    assert list(executor.map(serve, range(20))) == [number + (number << 20) for number in range(20)]

# As gunicorn --preload: a parent that forks workers, and replaces one that ends.
def worker(requests, answers):
    while request := os.read(requests, 8):
        os.write(answers, int(serve(int.from_bytes(request, "little"))).to_bytes(8, "little"))

def start():
    (requests, to_worker), (from_worker, answers) = os.pipe(), os.pipe()
    def body():
        os.close(to_worker)
        worker(requests, answers)
    child = in_child(body)
    os.close(requests), os.close(answers)
    def ask(number):
        os.write(to_worker, number.to_bytes(8, "little"))
        return int.from_bytes(os.read(from_worker, 8), "little")
    return child, to_worker, ask

first, second = start(), start()
model += 1                                  # not for these two
assert [first[2](5), second[2](6)] == [5 + (5 << 20), 6 + (6 << 20)]
# The later child has the writing ends of the others, too.
os.kill(first[0], signal.SIGKILL), os.waitpid(first[0], 0)
third = start()
assert [third[2](5), second[2](7)] == [6 + (5 << 20), 7 + (7 << 20)]
for child in (second[0], third[0]):
    os.kill(child, signal.SIGKILL), os.waitpid(child, 0)
assert not scratch.any()
until_free(8 << 20)
""")


def test_workers_of_joblib_have_the_arrays(run):
    pytest.importorskip("joblib")
    runs(run, """
import joblib
a = pool.array(np.arange(1 << 20, dtype="f8"))

def work(number):
    a[number] = -1
    return float(a[number] + a[number + 1])

with joblib.parallel_config("multiprocessing", n_jobs=2):
    assert joblib.Parallel()(joblib.delayed(work)(10 * number) for number in range(10)) == [10.0 * number for number in range(10)]
assert a[10] == 10
""")


def test_a_child_exits_as_others_do_and_has_children(run):
    runs(run, """
a, b = pool.array(np.arange(9)), pool.zeros((3, 3), order="F")
region = hf.region_of(a)

def body():
    a[0] = b[1, 1] = 5
    def inner():
        assert a[0] == b[1, 1] == 5
        a[:] = 6
    end_of(in_child(inner))
    assert a.tolist() == [5, 1, 2, 3, 4, 5, 6, 7, 8]
    assert np.frombuffer(region, a.dtype, 1)[0] == 5

end_of(in_child(body))
child = os.fork()
if child == 0:
    a[0] = 1
    del b
    sys.exit(int(a.sum()) - 37)             # with all that the interpreter does at its end
end_of(child)
assert (a[0], b[1, 1]) == (0, 0)
until_free(2 << 20)                         # nobody here has written to b
""")


def test_forks_beside_saves_shares_and_snapshots(run, tmp_path):
    runs(run, f"path = {str(tmp_path / 'run')!r}" + """
a = pool.array(np.arange(1 << 21, dtype="f8"))                              # 16 MiB
expected = a.copy()
for round in range(5):
    save = hf.checkpoint.save(path, {"a": a})
    with hf.snapshot(a) as s:
        shared = hf.share(s)
        def body():
            assert (a == expected).all()
            a[:] = 0
            assert (next(iter(shared)) == expected).all()
        children = [in_child(body) for _ in range(3)]
        a += 1
        assert s.copy(a)[5] == expected[5]
    for child in children:
        end_of(child)
    save.result()
    assert (hf.checkpoint.load(path)["a"] == expected).all()
    expected += 1
    assert (a == expected).all()
    del shared, save
""")


def test_a_fork_waits_for_operations_without_the_lock_of_the_interpreter(run):
    runs(run, """
import threading
sys.setswitchinterval(1e-5)
transfers = hf.Operations(patience=60)
accounts = pool.zeros(1000, "i8", operations=transfers)
is_over = False

def transfer():
    while not is_over:
        with transfers:
            accounts[7] -= 1
            time.sleep(0)                   # another thread gets the lock
            accounts[8] += 1

def body():
    assert accounts[7] + accounts[8] == 0
    with transfers:                         # waits for nobody
        accounts[7] -= 1

threads = [threading.Thread(target=transfer) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(30):
    end_of(in_child(body))
# Forks in several threads at once.
def fork_some():
    for _ in range(10):
        end_of(in_child(body))
forking = [threading.Thread(target=fork_some) for _ in range(2)]
for thread in forking:
    thread.start()
for thread in forking:
    thread.join()
is_over = True
for thread in threads:
    thread.join()
with transfers:                             # a child goes on inside
    accounts[7] += 1
    def inside():
        accounts[8] -= 1
        assert accounts[7] + accounts[8] == 0
    end_of(in_child(inside))
    accounts[8] -= 1
""")


def test_the_choice_of_children():
    with pytest.raises(ValueError, match='children="all": take one of inherit, nothing'):
        hf.Pool("4 MiB", children="all")
    with pytest.raises(ValueError, match="children='nothing'"):
        hf.Pool("4 MiB", exports=False)
    hf.Pool("4 MiB", exports=False, children="nothing").close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_arrays_go_to_other_processes_as_copies(pool, method):
    array = pool.array(np.arange(1000.0))
    with multiprocessing.get_context(method).Pool(1) as workers:
        assert workers.map(add_up, [array, array[:10]]) == [499500.0, 45.0]


def change_and_add_up(shared, queue):
    a, b = shared
    before = float(a.sum()), b.tolist()
    a[0] = 1000
    queue.put((before, float(a.sum())))


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_snapshot_goes_to_another_process_by_descriptor(pool, method, copy):
    a, b = pool.array(np.arange(1000.0)), pool.array(np.arange(6, dtype="u1").reshape(2, 3))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with hf.snapshot(a, b[:, ::2]) as s:
        shared = hf.share(s, copy=copy)
    a[:], b[:] = 0, 0
    child = context.Process(target=change_and_add_up, args=(shared, queue))
    child.start()
    assert queue.get(timeout=60) == ((499500.0, [[0, 2], [3, 5]]), 500500.0)
    child.join()
    assert child.exitcode == 0 and len(shared) == 2 and repr(shared) == "<hugefork.Shared of 2 array(s)>"
    with shared:
        assert [float(array.sum()) for array in shared] == [499500.0, 10.0]
    with pytest.raises(hf.ClosedError):
        shared.__reduce__()


def test_a_snapshot_goes_through_a_pool_of_processes(pool):
    a = pool.array(np.arange(1000.0))
    with multiprocessing.get_context("spawn").Pool(1) as workers, hf.share(hf.snapshot(a)) as shared:
        assert workers.map(add_up_first, [shared]) == [499500.0]


def add_up_first(shared):
    return float(next(iter(shared)).sum())
