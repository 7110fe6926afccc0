"""What the tests share."""

import gc
import subprocess
import sys

import pytest

import hugefork as hf


@pytest.fixture
def pool(request):
    """A small pool of which nothing is in use when the test is over. Its blocks are as large as the module says."""
    made = hf.Pool("64 MiB", name="test", block_size=getattr(request.module, "BLOCK_SIZE", "2 MiB"))
    yield made
    if not made.closed:
        gc.collect()
        figures = made.stats()
        assert (figures.regions, figures.blocks_free) == (0, figures.blocks), "the test has leaked memory"


@pytest.fixture
def run():
    """Runs a program of its own and returns what came of it. Ctrl-C interrupts it, even where the tests were started in
    the background of a shell, which has them ignore that."""

    def run(program, *options, **settings):
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nimport hugefork as hf, numpy as np\n"
        command = [sys.executable, *options, "-c", start + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, **settings)

    return run
