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
            ]
            for call in calls:
                with pytest.raises(hf.ForkedChildError):
                    call()
            del snapshot, array
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array[0] == 1


def test_a_forked_child_that_touches_an_array_dies_with_a_line(run):
    done = run("""
import os
a = hf.Pool("4 MiB").zeros(10)
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

pool = hf.Pool("16 MiB")
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
