"""Trains a model of torch on CPUs and saves it with `torch.distributed.checkpoint`, with hugefork beside other ways.

    python examples/torch_checkpoints.py [--state "700 MiB"] [--saves 4] [--ways hugefork,default-stager,torch-save]

Each way runs in a process of its own: 6 steps, then repeatedly a save and 6 more steps. The output has, as medians of
all saves except the first: how long the save stopped training (stall), how much longer the steps after it took than 6
steps without a save, both together, and the maximum memory of the process beyond that of training (measured as a fall
of MemAvailable, so run nothing else).

* hugefork: `hf.dcp.adopt` and a kept `SnapshotStager`.
* default-stager: torch's `DefaultStager`, reused, so that it copies into the same memory each time.
* torch-save: `torch.save`, while training waits.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import torch

import hugefork as hf

STEPS = 6
WIDTH = 2048


def model_of(nbytes):
    """A model whose parameters and two Adam arrays take `nbytes` bytes."""
    layers = max(1, nbytes // (3 * 4 * WIDTH * (WIDTH + 1)))
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


def available():
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) << 10


class Least:
    """Records the minimum of available memory."""

    def __init__(self):
        self.least, self._is_over = available(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self):
        while not self._is_over.wait(0.01):
            self.least = min(self.least, available())

    def stop(self):
        self._is_over.set()
        self._thread.join()
        return self.least


def run(way, nbytes, saves):
    warnings.simplefilter("ignore")
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(1)
    model = model_of(nbytes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(16, WIDTH)

    def steps():
        begun = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        return time.perf_counter() - begun

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    steps()
    trained = available()
    least = Least()
    if way == "hugefork":
        adopted = hf.dcp.adopt(model, optimizer)
        stager = hf.dcp.SnapshotStager(adopted, copy_ahead=True)
    elif way == "default-stager":
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        options = StagingOptions(use_pinned_memory=False, use_async_staging=False, use_non_blocking_copy=False)
        stager = DefaultStager(options)
    directory = tempfile.mkdtemp(prefix="torch-checkpoints-")
    steps()
    stalls, after, base = [], [], []
    try:
        for nth in range(saves + 1):
            base.append(steps())
            path = os.path.join(directory, str(nth))
            begun = time.perf_counter()
            if way == "torch-save":
                torch.save(state(), path)
                saving = None
            else:
                saving = dcp.async_save(state(), checkpoint_id=path, async_stager=stager, no_dist=True)
            stalls.append(time.perf_counter() - begun)
            after.append(steps())
            if saving is not None:
                saving.result()
            del saving
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    finally:
        shutil.rmtree(directory)
    memory = trained - least.stop()
    usual = statistics.median(base[1:])
    ms = [1e3 * statistics.median(of[1:]) for of in (stalls, after)]
    of_state = sum(p.nbytes for p in model.parameters()) + sum(
        v.nbytes for s in optimizer.state.values() for v in s.values()
    )
    return {"stall": ms[0], "longer": ms[1] - 1e3 * usual, "steps": 1e3 * usual, "memory": memory, "state": of_state}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", default="700 MiB")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--ways", default="hugefork,default-stager,torch-save")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.way, hf.parse_size(options.state), options.saves)))
        return
    print(f"{'':16}{'stall':>10}{'longer':>10}{'together':>10}{'memory':>12}")
    for way in options.ways.split(","):
        command = [sys.executable, __file__, "--way", way, "--state", options.state, "--saves", str(options.saves)]
        came = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        stall, longer, memory = came["stall"], came["longer"], came["memory"] / (1 << 20)
        print(f"{way:16}{stall:7.1f} ms{longer:7.1f} ms{stall + longer:7.1f} ms{memory:8.0f} MiB", flush=True)
    print(f"{STEPS} steps without a save take {came['steps']:.0f} ms; the state is {came['state'] / (1 << 20):.0f} MiB")


if __name__ == "__main__":
    main()
