"""Fixtures for all tests."""

import contextlib
import fcntl
import gc
import json
import subprocess
import sys
import time
import zlib

import pytest

import hugefork as hf


def until(is_true):
    """Waits for a condition, but not for ever."""
    end = time.monotonic() + 60
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)


@contextlib.contextmanager
def saving(path):
    """Makes saves to a directory wait, as a save of another process does."""
    path.mkdir(exist_ok=True)
    with open(path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sealed(manifest):
    """The text of a manifest with a correct checksum."""
    if not isinstance(manifest, dict):
        return json.dumps(manifest)
    text = json.dumps({key: value for key, value in manifest.items() if key != "crc32"}, indent=2)[:-2]
    return f'{text},\n  "crc32": {zlib.crc32(text.encode())}\n}}\n'


@pytest.fixture
def pool(request):
    """A small pool that must be unused after the test. The test module chooses its block size."""
    made = hf.Pool("64 MiB", name="test", block_size=getattr(request.module, "BLOCK_SIZE", "2 MiB"))
    yield made
    if not made.closed:
        gc.collect()
        # A thread frees the memory of children that have ended.
        until(lambda: made.stats().blocks_free == made.stats().blocks)
        figures = made.stats()
        assert (figures.regions, figures.blocks_free) == (0, figures.blocks), "the test has leaked memory"


@pytest.fixture
def run():
    """Runs a program and returns its result. Ctrl-C interrupts it even if a shell started the tests in the background
    and so made them ignore it."""

    def run(program, *options, **settings):
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nimport hugefork as hf, numpy as np\n"
        command = [sys.executable, *options, "-c", start + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, **settings)

    return run
