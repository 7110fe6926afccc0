"""A search that tries moves on branches of a large state and undoes the bad ones.

    python examples/branch_and_rewind.py [--state "256 MiB"] [--turns 20] [--tries 6]

The state is a landscape. A move digs a pit or heaps up a hill at some place, and the landscape around it slides. The
goal is an even landscape. Each turn tries some moves and continues with the best. There are two ways:

* Each move on a branch of its own, ``hugefork.fork(state)`` or ``np.copy(state)``.
* All moves on the state itself, which is reset after each: ``hugefork.reset(state, snapshot)`` or ``np.copyto(state,
  kept)``. The best move is then made again.

All four searches make the same moves, and end in the same state.
"""

import argparse
import time

import numpy as np

import hugefork as hf

SIDE = 128
"""A move changes a square with this many places per side."""


def move(land, random):
    """Changes a square of the landscape. Returns the increase in unevenness."""
    y, x = (int(random.integers(0, length - SIDE)) for length in land.shape)
    square = land[y : y + SIDE, x : x + SIDE]
    before = unevenness(square)
    square[SIDE // 2, SIDE // 2] += random.normal() * 20
    for _ in range(4):
        square[1:-1, 1:-1] = (square[:-2, 1:-1] + square[2:, 1:-1] + square[1:-1, :-2] + square[1:-1, 2:]) / 4
    return unevenness(square) - before


def unevenness(square):
    return float(np.abs(np.diff(square, axis=0)).sum() + np.abs(np.diff(square, axis=1)).sum())


def search_by_branches(land, branch, turns, tries):
    """Returns the landscape after some turns, and the seconds spent on branches."""
    random, took = np.random.default_rng(7), 0.0
    for _ in range(turns):
        best, best_gain = land, 0.0
        for _ in range(tries):
            begun = time.perf_counter()
            tried = branch(land)
            took += time.perf_counter() - begun
            gain = -move(tried, random)
            if gain > best_gain:
                best, best_gain = tried, gain
            del tried
        land = best
    return land, took


def search_by_going_back(land, keep, go_back, turns, tries):
    """Returns the same, with the seconds spent on resets."""
    random, again, took = np.random.default_rng(7), np.random.default_rng(), 0.0
    for _ in range(turns):
        kept, best, best_gain = keep(land), None, 0.0
        for _ in range(tries):
            begin = random.bit_generator.state
            gain = -move(land, random)
            if gain > best_gain:
                best, best_gain = begin, gain
            begun = time.perf_counter()
            go_back(land, kept)
            took += time.perf_counter() - begun
        if best is not None:
            again.bit_generator.state = best
            move(land, again)
    return land, took


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state", default="256 MiB", help="bytes of the landscape")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tries", type=int, default=6)
    options = parser.parse_args()
    side = int((hf.parse_size(options.state) / 4) ** 0.5)
    ordinary = np.random.default_rng(1).standard_normal((side, side), "f4")
    pool = hf.Pool(max(4 * (ordinary.nbytes // (2 << 20) + 1), 32) * (2 << 20), name="search")
    turns, tries = options.turns, options.tries
    ways = {
        "fork": lambda: search_by_branches(pool.array(ordinary), hf.fork, turns, tries),
        "copy": lambda: search_by_branches(ordinary, np.copy, turns, tries),
        "reset": lambda: search_by_going_back(pool.array(ordinary), hf.snapshot, hf.reset, turns, tries),
        "copyto": lambda: search_by_going_back(ordinary.copy(), np.copy, np.copyto, turns, tries),
    }
    first, seconds = None, {}
    for name, way in ways.items():
        begun = time.perf_counter()
        end, taken = way()
        seconds[name] = time.perf_counter() - begun
        print(f"{name}: {taken / (turns * tries) * 1e3:8.3f} ms a try; {seconds[name]:.2f} s in all")
        first = np.array(end) if first is None else first
        assert np.array_equal(end, first)
        del end
    fork, reset = seconds["copy"] / seconds["fork"], seconds["copyto"] / seconds["reset"]
    print(f"all came to the same end: fork {fork:.1f} times as fast as copy, reset {reset:.1f} times as fast as copyto")


if __name__ == "__main__":
    main()
