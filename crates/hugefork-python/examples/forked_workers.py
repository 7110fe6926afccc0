"""Forked workers that have their parent's arrays, as in prefork servers (gunicorn ``--preload``) and `multiprocessing` with
``fork``, while the parent goes on writing.

    python forked_workers.py --workers 8 --table "256 MiB"

The parent forks workers one after the other, and adds 1 to a hundredth of the table after each fork. Each worker checks
that it has the table as it was at its fork, and writes to another hundredth, which nobody else sees. With arrays of a pool,
and with numpy's own. If earlier workers live, a fork of a pool copies the pages that were written since the last fork;
with numpy, the writes copy them. All workers run at once, so the times are CPU times of the parent.
"""

import argparse
import os
import statistics
import sys
import time

import numpy as np

import hugefork as hf


def proportional(pids):
    """MiB of some processes, each shared page counted once."""
    kib = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib >> 10


def work(table, expected):
    """A worker. Returns whether it has the right table."""
    part = len(table) // 100
    is_right = bool((table[:part] == expected).all() and not table[part:].any())
    table[-part:] = -1
    return is_right


def run(table, workers):
    """Forks workers, and returns the milliseconds of CPU time of a fork and of the parent's writes, MiB, and the number of
    bad workers."""
    has_worked, says_so = os.pipe()
    goes_on, lets_go = os.pipe()
    pids, forks, writes = [], [], []
    for nth in range(workers):
        began = time.thread_time()
        pid = os.fork()
        if pid == 0:
            is_right = False
            try:
                is_right = work(table, nth)
            finally:
                os.write(says_so, b".")
                os.read(goes_on, 1)
                os._exit(not is_right)
        forked = time.thread_time()
        pids.append(pid)
        table[: len(table) // 100] += 1
        forks.append(1e3 * (forked - began))
        writes.append(1e3 * (time.thread_time() - forked))
    for _ in pids:
        os.read(has_worked, 1)
    mib = proportional([os.getpid(), *pids])
    os.write(lets_go, b"." * workers)
    bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    bad += not work(table, workers)
    return statistics.median(forks), statistics.median(writes), mib, bad


def main():
    parser = argparse.ArgumentParser(description="Compares forked workers on arrays of a pool with workers on numpy's own.")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--table", default="256 MiB", help="its size")
    options = parser.parse_args()
    count = hf.parse_size(options.table) // 8
    failed = 0
    for name in ("hugefork", "numpy"):
        if name == "hugefork":
            # The parent and each worker may have pages of their own.
            pool = hf.Pool(-(-count * 8 // (2 << 20)) * (options.workers + 2) * (2 << 20))
            table = pool.zeros(count)
        else:
            table = np.zeros(count)
        table += 0
        fork, write, mib, bad = run(table, options.workers)
        print(
            f"{name:8}: CPU time of the parent: a fork {fork:.2f} ms, adding 1 to a hundredth of the table after it {write:.1f} ms; "
            f"the parent and {options.workers} workers take {mib} MiB"
        )
        failed += bad
        del table
    print(f"{failed} processes read something that they should not")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
