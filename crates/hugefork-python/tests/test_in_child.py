"""Children whose arrays are as they were at snapshots: `in_child` and `Process`."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading

import numpy as np
import pytest

import hugefork as hf


def test_contents_beside_a_model(pool):
    random = np.random.default_rng(7)
    arrays = [pool.zeros(400_000), pool.zeros((3, 5), "i4", order="F"), pool.zeros(3 << 20, "u1")[::-1]]
    taken, children = [], []

    def write_to(arrays):
        for array in arrays:
            start = random.integers(array.size)
            array.flat[start : start + random.integers(1, 50_000)] = random.integers(1, 100)

    def right_as_their_own(expected):
        is_right = all((array == values).all() for array, values in zip(arrays, expected))
        for array in arrays:
            array[:] = 0                                                    # the child's own
        return is_right and not any(array.any() for array in arrays)

    for _ in range(40):
        write_to([array for array in arrays if random.random() < 0.7])
        now = [array.copy() for array in arrays]
        chosen = [nth for nth in range(3) if random.random() < 0.6] or [0]
        taken = [*taken[-2:], (chosen, now, hf.snapshot(*[arrays[nth] for nth in chosen]))]
        chosen, then, snapshot = taken[random.integers(len(taken))]
        expected = [then[nth] if nth in chosen else now[nth] for nth in range(3)]
        children = [*children[-2:], hf.in_child(lambda: right_as_their_own(expected), snapshot)]
        write_to(arrays)
        now = [array.copy() for array in arrays]
        assert children[0].result(300) is True
        assert all((array == values).all() for array, values in zip(arrays, now))
    assert all(child.result(300) for child in children)
    del arrays, taken, children, snapshot


@pytest.mark.filterwarnings("ignore:this process forks")
def test_snapshots_of_several_pools(pool):
    with hf.Pool("16 MiB") as other, hf.Pool("16 MiB", children="nothing") as alone:
        a, b, c, d = pool.zeros(9), pool.zeros(9), other.zeros(9), alone.zeros(9)
        first = hf.snapshot(a, c)
        a[:] = c[:] = 1
        second = hf.snapshot(b)
        b[:] = 2
        child = hf.in_child(lambda: [int(array.sum()) for array in (a, b, c)], first, second)
        first.close(), second.close()
        assert child.result(300) == [0, 0, 0] and (a.sum(), b.sum(), c.sum()) == (9, 18, 9)
        for refused in (hf.snapshot(d), hf.snapshot(a, d)):
            with pytest.raises(ValueError, match="children='nothing'"):
                hf.in_child(int, refused)
        assert not multiprocessing.active_children()


def test_impossible_snapshots(pool):
    a = pool.zeros(9)
    s = hf.snapshot(a)
    with pytest.raises(TypeError, match="at least one snapshot"):
        hf.in_child(int)
    with pytest.raises(TypeError, match="ndarray is not a snapshot"):
        hf.in_child(int, a)
    with pytest.raises(ValueError, match="the same array"):
        hf.in_child(int, s, hf.snapshot(a))
    s.close()
    with pytest.raises(hf.ClosedError):
        hf.in_child(int, s)


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Text(Exception):
    def __reduce__(self):
        return str, ("no exception",)


class Noteless(Exception):
    def add_note(self, note):
        raise TypeError("no notes")


def fail(error):
    raise error


def test_a_result_has_the_order_of_bytes_of_the_child(pool):
    a = pool.array(np.arange(3, dtype=">i4"))
    found = hf.in_child(lambda: a, hf.snapshot(a)).result(300)
    assert found.dtype == a.dtype and np.array_equal(found, a) and found.flags.writeable


def test_exceptions_come_back_with_their_traceback(pool):
    a = pool.zeros(9)
    s = hf.snapshot(a)
    child = hf.in_child(lambda: a[10], s)
    for _ in range(2):
        with pytest.raises(IndexError, match="out of bounds") as raised:
            child.result(300)
        (note,) = raised.value.__notes__
        assert "in the child:\nTraceback" in note and "in <lambda>" in note
    with pytest.raises(RuntimeError, match="TwoArguments: 1 and 2"):        # cannot be unpickled
        hf.in_child(lambda: fail(TwoArguments(1, 2)), s).result(300)
    with pytest.raises(RuntimeError, match="Text: 3"):                      # is unpickled as something else
        hf.in_child(lambda: fail(Text(3)), s).result(300)
    with pytest.raises(Noteless, match="4"):
        hf.in_child(lambda: fail(Noteless(4)), s).result(300)
    for unpicklable in (lambda: None, [bytes(1 << 20), lambda: None]):
        with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
            hf.in_child(lambda result=unpicklable: result, s).result(300)
    del child


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (lambda: os._exit(0), "exitcode=0"),
        (lambda: os._exit(3), "exitcode=3"),
        (lambda: sys.exit(4), "exitcode=4"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "exitcode=-SIGKILL"),
        (lambda: signal.raise_signal(signal.SIGTERM), "exitcode=-SIGTERM"),
        (lambda: fail(KeyboardInterrupt), "exitcode=1"),
    ],
)
def test_a_child_that_dies_says_how(pool, function, how):
    child = hf.in_child(function, hf.snapshot(pool.zeros(9)))
    with pytest.raises(hf.ChildDiedError, match=f"stopped {how}> has no result"):
        child.result(300)
    assert child.done()


def test_a_child_may_close_all_descriptors(run, tmp_path):
    done = run(f"""
import os
s = hf.snapshot(hf.Pool("16 MiB").zeros(9))

def close_and_open(count):
    os.closerange(3, 4096)
    for nth in range(count):
        os.open("{tmp_path}/" + str(nth), os.O_RDWR | os.O_CREAT)
    return bytes(1 << 20)

for count in (0, 100):
    try:
        hf.in_child(lambda: close_and_open(count), s).result(60)
    except hf.ChildDiedError as error:
        print(error)
""")
    said = done.stdout.splitlines()
    assert len(said) == 2 and all("exitcode=1> has no result: " in line and "lost the file" in line for line in said), done
    assert done.stderr == 2 * "hugefork: the function has closed the descriptor of the file for its result\n", done
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [0] * 100


def test_a_fork_that_fails_leaves_nothing(run):
    done = run("""
import multiprocessing, os, resource
a = hf.Pool("16 MiB").zeros(9)
s = hf.snapshot(a)
a[:] = 1
if os.getuid() == 0:
    os.setuid(12345)                                                       # root may have any number of processes
def open_files():
    return len(os.listdir("/proc/self/fd"))
def fail(count):
    for _ in range(3):
        try:
            hf.in_child(a.sum, s).result(60)
            count += 1
        except OSError as error:
            pass
    return count
before = open_files()
assert fail(0) == 3
most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
print(fail(0), end=" ")
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
most = resource.getrlimit(resource.RLIMIT_NOFILE)
for more in range(12):
    # The directory had one, too.
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, most[1]))
    fail(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, most)
print(hf.in_child(a.sum, s).result(60), open_files() - before, multiprocessing.active_children())
""", "-X", "dev")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0.0 0 []\n", "")


def test_a_large_result_waits_for_no_reader(pool):
    child = hf.in_child(lambda: np.full(100 << 20, 7, "u1"), hf.snapshot(pool.zeros(9)))
    child.process.join(300)
    assert child.process.exitcode == 0 and child.done()
    result = child.result(0)
    assert result.nbytes == 100 << 20 and (result == 7).all()


def test_time_runs_out_and_the_child_goes_on(pool):
    reads, writes = os.pipe()
    child = hf.in_child(lambda: os.read(reads, 1), hf.snapshot(pool.zeros(9)))
    with pytest.raises(TimeoutError, match="has not ended after 0.01 s"):
        child.result(0.01)
    assert not child.done() and "started" in repr(child)
    os.write(writes, b"x")
    assert child.result(300) == b"x"
    os.close(reads), os.close(writes)


def test_a_result_does_not_wait_for_other_children(pool):
    s = hf.snapshot(pool.zeros(9))
    reads, writes = os.pipe()

    def leave_a_child():
        if os.fork() == 0:
            os.read(reads, 1)
            os._exit(0)
        return 5

    assert hf.in_child(leave_a_child, s).result(300) == 5
    os.write(writes, b"x")
    os.close(reads), os.close(writes)


def test_an_interrupt_ends_the_waiting_only(run):
    done = run("""
import os, pathlib, threading, time
a = hf.Pool("16 MiB").zeros(9)
s = hf.snapshot(a)
a[:] = 1
reads, writes = os.pipe()
main = threading.main_thread()
child = hf.in_child(lambda: (os.read(reads, 1), a.sum()), s)

def interrupt():
    # A signal that comes just before the call does not end its sleep.
    while "poll" not in pathlib.Path(f"/proc/self/task/{main.native_id}/wchan").read_text():
        time.sleep(0)
    signal.pthread_kill(main.ident, signal.SIGINT)

try:
    threading.Thread(target=interrupt).start()
    child.result()
except KeyboardInterrupt:
    os.write(writes, b"x")
print(child.result(300) == (b"x", 0), flush=True)
hf.in_child(lambda: (time.sleep(0.2), print("waited for", int(a.sum()))), s)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nwaited for 0\n", "")


def test_threads_write_and_fork_meanwhile(pool):
    transfers, is_over = hf.Operations(), threading.Event()
    old, accounts = pool.array(np.arange(1 << 19)), pool.zeros(2, "i8", operations=transfers)
    expected = old.copy()
    s = hf.snapshot(old)

    def write():
        while not is_over.is_set():
            old[:] = -1
            with transfers:
                accounts[0] -= 1
                accounts[1] += 1

    def look():
        return all((old == expected).all() for _ in range(3)) and accounts.sum() == 0

    results = []
    writers = [threading.Thread(target=write) for _ in range(2)]
    forking = [
        threading.Thread(target=lambda: results.extend(hf.in_child(look, s).result(300) for _ in range(8))) for _ in range(3)
    ]
    for thread in writers + forking:
        thread.start()
    for thread in forking:
        thread.join()
    is_over.set()
    for thread in writers:
        thread.join()
    assert results == [True] * 24


def test_children_of_the_child_have_the_same(pool):
    a = pool.zeros(9)
    s = hf.snapshot(a)
    a[:] = 1

    def body():
        with pytest.raises(hf.ForkedChildError):
            hf.in_child(int, s)
        a[0] = 5
        child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(int(a.sum())))
        child.start()
        child.join()
        return child.exitcode

    assert hf.in_child(body, s).result(300) == 5


def test_a_history_gives_its_states_to_children(pool):
    a = pool.zeros(9)
    with hf.history(a) as h:
        h.take()
        a[:] = 1
        assert hf.in_child(lambda: a.sum(), h.at(ago=0)).result(300) == 0


class Saver(hf.Process):
    def run(self):
        self.queue.put((self.array.tolist(), multiprocessing.parent_process().pid))


def test_a_process_is_one_of_multiprocessing(pool):
    a = pool.zeros(3)
    reads, writes = os.pipe()
    with hf.snapshot(a) as s:
        slow = hf.Process(snapshots=[s], target=os.read, args=(reads, 1), kwargs={}, name="slow", daemon=True)
        quick = hf.Process(snapshots=[s], target=lambda *, code: sys.exit(code + int(a.sum())), kwargs={"code": 3})
        saver = Saver(snapshots=[s])
    a[:] = 1
    assert (slow.name, slow.daemon, quick.daemon) == ("slow", True, False)
    saver.array, saver.queue = a, multiprocessing.get_context("fork").Queue()
    for process in (slow, quick, saver):
        process.start()
    slow.join(0.01)
    assert slow.is_alive() and slow in multiprocessing.active_children() and slow.exitcode is None
    slow.terminate()
    assert saver.queue.get(timeout=300) == ([0, 0, 0], os.getpid())
    for process in (slow, quick, saver):
        process.join(300)
    assert [process.exitcode for process in (slow, quick, saver)] == [-signal.SIGTERM, 3, 0]
    assert multiprocessing.connection.wait([quick.sentinel], 0)
    with pytest.raises(AssertionError, match="start a process twice"):
        quick.start()
    quick.close()
    os.close(reads), os.close(writes)


def test_hooks_of_forks_run_and_no_descriptor_is_left(run):
    done = run("""
import os
for when in ("before", "after_in_parent", "after_in_child"):
    os.register_at_fork(**{when: lambda when=when: os.write(1, f"{when}\\n".encode())})
a = hf.Pool("16 MiB").zeros(9)
s = hf.snapshot(a)
hf.in_child(int, s).result(300)
before = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    hf.in_child(int, s).result(300)
print(len(os.listdir("/proc/self/fd")) - before)
""")
    said = done.stdout.split()
    assert said[-1] == "0" and sorted(said[:-1]) == sorted(4 * ["before", "after_in_parent", "after_in_child"]), done
