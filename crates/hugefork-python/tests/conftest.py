"""Fixtures for all tests."""

import contextlib
import gc
import json
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

import hugefork as hf


def until(is_true):
    """Waits for a condition, but not for ever."""
    end = time.monotonic() + 60
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)


SAVING = """
import fcntl, sys
with open(sys.argv[1] + "/.lock", "a") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def saving(path):
    """Makes saves to a directory wait, as a save of another process does."""
    path.mkdir(exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", SAVING, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
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
        start += f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
        command = [sys.executable, *options, "-c", start + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, **settings)

    return run
