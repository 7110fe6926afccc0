"""Fixtures for all tests."""

import gc
import subprocess
import sys
import time

import pytest

import hugefork as hf


def until(is_true):
    """Waits for a condition, but not for ever."""
    end = time.monotonic() + 60
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)


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
