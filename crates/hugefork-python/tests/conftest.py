"""What the tests share."""

import gc
import subprocess
import sys

import pytest

import hugefork as hf


@pytest.fixture
def pool():
    """A small pool of which nothing is in use when the test is over."""
    made = hf.Pool("64 MiB", name="test")
    yield made
    if not made.closed:
        gc.collect()
        figures = made.stats()
        assert (figures.regions, figures.blocks_free) == (0, figures.blocks), "the test has leaked memory"


@pytest.fixture
def run():
    """Runs a program of its own and returns what came of it."""

    def run(program, *options, **settings):
        command = [sys.executable, *options, "-c", "import hugefork as hf, numpy as np\n" + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, **settings)

    return run
