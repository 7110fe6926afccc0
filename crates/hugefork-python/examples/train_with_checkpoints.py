"""Trains a recommender in numpy and writes checkpoints meanwhile: with hugefork, ``.copy()`` and ``os.fork()``.

    python examples/train_with_checkpoints.py [--state "2 GiB"] [--rate "400 MiB"] [--to DIRECTORY] [--plot FILE.svg]

The model predicts ratings from one vector for each user and each item. Adam has two more arrays of the same size. All
three are the state: one consistent cut of them is a checkpoint. Three ways to take it:

* hugefork: a snapshot; a thread writes it.
* copy: a copy of all arrays; a thread writes that.
* fork: a child of ``os.fork()`` writes the inherited state.

For each way: how long training stopped, how long the steps took while the checkpoint was written, how long both took
together for as many steps, and the memory used meanwhile. Then the file is compared with the state at the cut.

Each step writes to users and items all over the state, so after some steps each page has been written to. Such a
state is better copied by block (``copy_grain="block"``), and by the thread that writes the checkpoint
(``copy_ahead=True``), before the steps write to it. No way writes faster than ``--rate``, because a writer uses
memory bandwidth that the steps need.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np

import hugefork as hf

WIDTH = 64
BATCH = 4096
NAMES = ("vectors", "mean", "spread")


class Training:
    """A model, its optimiser, and ratings to learn from."""

    def __init__(self, make, rows, seed=1):
        self.random = np.random.default_rng(seed)
        self.rows = rows
        self.vectors, self.mean, self.spread = (make((rows, WIDTH), "f4") for _ in NAMES)
        # In parts, so that no temporary is as large as the state.
        for start in range(0, rows, 1 << 16):
            part = self.vectors[start : start + (1 << 16)]
            part[:] = self.random.standard_normal(part.shape, "f4") * 0.1
        self.mean[:], self.spread[:] = 0, 0
        self.steps = 0

    @property
    def state(self):
        return {name: getattr(self, name) for name in NAMES}

    def step(self):
        """Adam on the vectors of a batch of users and things. Returns the loss."""
        users = self.random.integers(0, self.rows // 2, BATCH)
        things = self.random.integers(self.rows // 2, self.rows, BATCH)
        ratings = ((users * 31 + things * 17) % 5 - 2).astype("f4")
        u, v = self.vectors[users], self.vectors[things]
        error = (u * v).sum(axis=1) - ratings
        self.steps += 1
        self.descend(users, error[:, None] * v)
        self.descend(things, error[:, None] * u)
        return float((error**2).mean())

    def descend(self, rows, gradient, rate=0.01):
        mean = 0.9 * self.mean[rows] + 0.1 * gradient
        spread = 0.999 * self.spread[rows] + 0.001 * gradient**2
        self.mean[rows], self.spread[rows] = mean, spread
        mean, spread = mean / (1 - 0.9**self.steps), spread / (1 - 0.999**self.steps)
        self.vectors[rows] -= rate * mean / (np.sqrt(spread) + 1e-8)


class ByHugefork:
    def __init__(self, size, rate):
        self.rate = rate
        # Gets all memory at the beginning, so that no step waits for the kernel: for the state, and as much again for
        # the copies during a checkpoint.
        self.pool = hf.Pool(2 * size + (64 << 20), name="training", commit="upfront")

    def make(self, shape, dtype):
        return self.pool.zeros(shape, dtype, copy_grain="block")

    def in_use(self):
        figures = self.pool.stats()
        return (figures.blocks - figures.blocks_free) * figures.block_size

    def begin(self, training, path):
        self.save = hf.checkpoint.save(path, training.state, copy_ahead=True, at_most=self.rate)

    def is_done(self):
        return self.save.done()

    def end(self):
        self.save.result()
        self.save.release()


class ByCopy:
    make = staticmethod(np.zeros)

    def __init__(self, size, rate):
        self.rate = rate

    def in_use(self):
        return 0

    def begin(self, training, path):
        copies = {name: array.copy() for name, array in training.state.items()}
        self.thread = threading.Thread(target=write, args=(copies, path, self.rate))
        self.thread.start()

    def is_done(self):
        return not self.thread.is_alive()

    def end(self):
        self.thread.join()


class ByFork:
    make = staticmethod(np.zeros)

    def __init__(self, size, rate):
        self.rate, self.status = rate, None

    def in_use(self):
        return 0

    def begin(self, training, path):
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                write(training.state, path, self.rate)
                status = 0
            finally:
                os._exit(status)

    def is_done(self):
        if self.status is None:
            child, status = os.waitpid(self.child, os.WNOHANG)
            self.status = status if child else None
        return self.status is not None

    def end(self):
        assert self.status == 0, "the child could not write"


def write(arrays, path, rate):
    """Does the same work as a checkpoint of hugefork: numpy files with checksums, safe on the disk."""
    (path / "data").mkdir(parents=True)
    for name, array in arrays.items():
        with open(path / "data" / f"{name}.1.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            crc, flat = 0, array.reshape(-1).view("u1")
            for start in range(0, flat.size, 1 << 22):
                begun, part = time.perf_counter(), flat[start : start + (1 << 22)]
                crc = zlib.crc32(part, crc)
                file.write(part)
                time.sleep(max(0, begun + part.size / rate - time.perf_counter()))
            file.flush()
            os.fsync(file.fileno())


def available():
    """Bytes of available memory."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def sums(arrays):
    return {name: zlib.crc32(array.reshape(-1).view("u1")) for name, array in arrays.items()}


def measure(way, size, rate, directory, warm_up, at_least):
    rows = size // (3 * WIDTH * 4)
    saving = way(size, rate)
    training = Training(saving.make, rows)
    quiet, during, memory, losses = [], [], [], []

    def timed(times):
        begun = time.perf_counter()
        losses.append(training.step())
        times.append(time.perf_counter() - begun)

    for _ in range(warm_up):
        timed(quiet)
    expected = sums(training.state)
    path, before = Path(directory) / way.__name__, available() - saving.in_use()
    begun = time.perf_counter()
    saving.begin(training, path)
    pause = time.perf_counter() - begun
    while not saving.is_done() or len(during) < at_least:
        timed(during)
        memory.append(before - (available() - saving.in_use()))
    saving.end()
    took = time.perf_counter() - begun
    found = {name: np.load(path / "data" / f"{name}.1.npy", mmap_mode="r") for name in NAMES}
    assert sums(found) == expected, "the file is not the state at the cut"
    assert np.isfinite(losses).all()
    return {
        "way": way.__name__[2:].lower(),
        "pause_ms": pause * 1e3,
        "quiet_step_ms": statistics.median(quiet[len(quiet) // 2 :]) * 1e3,
        "step_ms": statistics.mean(during) * 1e3,
        "median_step_ms": statistics.median(during) * 1e3,
        "slowest_step_ms": max(during) * 1e3,
        "pause_and_steps_s": pause + sum(during[:at_least]),
        "memory_mib": max(0, *memory) / (1 << 20),
        "seconds": took,
        "steps": [step * 1e3 for step in during],
    }


def plot(results, file):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: install matplotlib")
        return
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for result in results:
        axes.plot(result["steps"], label=f"{result['way']}: pause {result['pause_ms']:.3g} ms", linewidth=0.8)
    axes.set(xlabel="step after the cut", ylabel="ms", yscale="log", title="Steps while a checkpoint is written")
    axes.legend()
    figure.savefig(file)
    print(f"picture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state", default="2 GiB", help="bytes of all arrays together")
    parser.add_argument("--rate", default="400 MiB", help="bytes that are written in a second, at most")
    parser.add_argument("--to", help="where checkpoints are written; by default a temporary directory")
    parser.add_argument("--steps", type=int, default=200, help="steps before the cut, and at least after it")
    parser.add_argument("--plot", metavar="FILE", help="draws the steps")
    parser.add_argument("--json", metavar="FILE", help="writes all figures")
    options = parser.parse_args()
    block = 2 << 20
    size = hf.parse_size(options.state) // (3 * block) * 3 * block
    results = []
    with tempfile.TemporaryDirectory(dir=options.to) as directory:
        for way in (ByHugefork, ByCopy, ByFork):
            result = measure(way, size, hf.parse_size(options.rate), directory, options.steps, options.steps)
            results.append(result)
            print(
                f"{result['way']:8}  pause {result['pause_ms']:9.3f} ms   step {result['step_ms']:6.2f} ms "
                f"(before {result['quiet_step_ms']:.2f}, median {result['median_step_ms']:.2f}, "
                f"slowest {result['slowest_step_ms']:.1f})   pause and {options.steps} steps "
                f"{result['pause_and_steps_s']:.2f} s   memory {result['memory_mib']:6.0f} MiB   "
                f"written in {result['seconds']:.1f} s",
                flush=True,
            )
    print("each file is the state at the cut")
    if options.plot:
        plot(results, options.plot)
    if options.json:
        Path(options.json).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
