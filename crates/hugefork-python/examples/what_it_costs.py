"""The costs of the Python binding, and the gain of numpy's memory from a pool.

    python examples/what_it_costs.py [--rounds 15]

* A snapshot from Python, beside the pause that the engine measures: the difference is the cost of the binding.
* A reset after writes to pages all over an array, beside ``np.copyto`` from a copy.
* Access to elements of an array of a pool, beside an ordinary one.
* Chains of element-wise operations on arrays of 16 to 512 MB, with and without `hugefork.numpy_allocator`,
  alternately. To compare another allocator: ``LD_PRELOAD=libjemalloc.so.2 python …``, or ``libmimalloc.so.2``.
* The same with glibc set to keep its memory (`KEEPING`), each in a process of its own, and the memory that the
  processes use afterwards. That is Pss: a pool is mapped twice, so Rss counts its memory twice.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import hugefork as hf


KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_TOP_PAD_": str(256 << 20)}
"""Makes malloc allocate from the heap and never free to the kernel, so that numpy gets no memory that the kernel has
to clear."""


def seconds(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def snapshots(rounds):
    pool = hf.Pool("1 GiB", name="costs", commit="upfront")
    a = pool.zeros(256 << 20, "u1")
    hf.populate(a)
    before, times = hf.stats(a), []
    for _ in range(rounds * 40):
        a[0] += 1
        begun = time.perf_counter()
        s = hf.snapshot(a)
        times.append(time.perf_counter() - begun)
        s.close()
    after = hf.stats(a)
    pause = (after.paused_seconds - before.paused_seconds) / (after.snapshots - before.snapshots)
    whole = statistics.median(times)
    print(f"snapshot of 256 MiB: {whole * 1e6:.1f} us, of which the pause {pause * 1e6:.1f} us: "
          f"{(whole - pause) * 1e6:.1f} us besides")


def resets(rounds, megabytes, pages):
    size = megabytes << 20
    pool = hf.Pool(size + (256 << 20), name="costs", commit="upfront")
    ours = pool.zeros(size, "u1")
    ours[:] = 1
    theirs, kept, snapshot = np.ones(size, "u1"), np.ones(size, "u1"), hf.snapshot(ours)
    places = np.random.default_rng(1).choice(size >> 12, pages, replace=False) << 12
    times = []
    for _ in range(rounds):
        ours[places], theirs[places] = 2, 2
        times.append((seconds(lambda: hf.reset(ours, snapshot)), seconds(lambda: np.copyto(theirs, kept))))
        assert ours.sum(dtype="u8") == size
    one, other = (statistics.median(each) for each in zip(*times))
    print(f"reset of {megabytes} MiB with {pages} pages written: {one * 1e3:.3f} ms, {other * 1e3:.1f} ms with np.copyto: "
          f"{other / one:.0f}x")


def elements(rounds):
    pool = hf.Pool("256 MiB", name="costs", commit="upfront")
    ours, theirs = pool.zeros(1 << 20), np.zeros(1 << 20)
    ours[:], theirs[:] = 1, 1
    for name, work in [
        ("one element", lambda a: [a[at] for at in range(20_000)]),
        ("sum of 8 MiB", lambda a: [a.sum() for _ in range(20)]),
        ("addition to 8 MiB", lambda a: [np.add(a, 1, out=a) for _ in range(20)]),
    ]:
        times = [(seconds(lambda: work(ours)), seconds(lambda: work(theirs))) for _ in range(rounds)]
        one, other = (statistics.median(each) for each in zip(*times))
        print(f"{name}: {other / one:.2f}x the speed of an ordinary array")


def chain(a, b):
    return np.sqrt(a * 2 + b) - a / (b + 1)


def operands(megabytes):
    return (np.full(megabytes * 1_000_000 // 8, value, "f8") for value in (1.0, 2.0))


def chains(rounds, sizes):
    pool = hf.Pool("4 GiB", name="costs")
    allocator = hf.numpy_allocator(pool)
    for megabytes in sizes:
        a, b = operands(megabytes)
        ours, theirs = [], []
        for turn in range(rounds + 1):
            with allocator:
                took = seconds(lambda: chain(a, b))
            other = seconds(lambda: chain(a, b))
            if turn:
                ours.append(took)
                theirs.append(other)
        allocator.trim()
        one, other = statistics.median(ours), statistics.median(theirs)
        print(f"chain on {megabytes} MB: {one * 1e3:.1f} ms, {other * 1e3:.1f} ms by default: {other / one:.2f}x", flush=True)
    del a, b
    for megabytes in sizes:
        alone = [sys.executable, __file__, "--rounds", str(rounds), "--megabytes", str(megabytes), "--only"]
        told = [
            subprocess.run([*alone, way], env=os.environ | settings, check=True, capture_output=True, text=True).stdout
            for way, settings in [("chain-in-pool", {}), ("chain-by-malloc", KEEPING)]
        ]
        print(f"chain on {megabytes} MB, alone: {told[0].strip()}; {told[1].strip()} with glibc that keeps its memory", flush=True)


def chain_alone(rounds, megabytes, allocator):
    a, b = operands(megabytes)
    with allocator:
        times = [seconds(lambda: chain(a, b)) for _ in range(rounds + 1)]
    with open("/proc/self/smaps_rollup") as file:
        pss = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    print(f"{statistics.median(times[1:]) * 1e3:.1f} ms and {pss / (1 << 20):.2f} GiB")


ALONE = {"chain-in-pool": lambda: hf.numpy_allocator(hf.Pool("4 GiB")), "chain-by-malloc": contextlib.nullcontext}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--only", choices=["snapshots", "resets", "elements", "chains", *ALONE])
    options = parser.parse_args()
    if options.only in ALONE:
        for megabytes in options.megabytes:
            chain_alone(options.rounds, megabytes, ALONE[options.only]())
    if options.only in (None, "snapshots"):
        snapshots(options.rounds)
    if options.only in (None, "resets"):
        resets(options.rounds, 1024, 1000)
    if options.only in (None, "elements"):
        elements(options.rounds)
    if options.only in (None, "chains"):
        chains(options.rounds, options.megabytes)


if __name__ == "__main__":
    main()
