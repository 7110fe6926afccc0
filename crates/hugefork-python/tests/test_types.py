"""Type annotations, and examples in docstrings."""

import ast
import doctest
import importlib
import importlib.metadata
import inspect
import itertools
import pkgutil
import subprocess
import sys

import pytest

import hugefork as hf

USES = """
from typing import assert_type
import hugefork as hf
import numpy as np
from numpy.typing import NDArray

pool = hf.Pool()
assert_type(hf.zeros(3), NDArray[np.float64])
assert_type(pool.empty((3, 4), np.int16, "F", reserve=True), NDArray[np.int16])
assert_type(hf.ones([3], np.dtype(np.uint8)), NDArray[np.uint8])
assert_type(hf.full(3, 1, np.float32), NDArray[np.float32])
a = hf.array(np.zeros(3, np.int32))
assert_type(a, NDArray[np.int32])
assert_type(hf.zeros_like(a), NDArray[np.int32])
assert_type(hf.full_like(a, 1, np.float32, shape=3), NDArray[np.float32])
assert_type(hf.fork(a), NDArray[np.int32])
with hf.snapshot(a) as s:
    assert_type(s[a], NDArray[np.int32])
    assert_type(s.copy(a), NDArray[np.int32])
untyped: NDArray[np.str_] = hf.array([1, 2], "U3", operations=hf.Operations())
hf.zeros(3, size=4)  # type: ignore[call-overload]
"""

MODULES = ["hugefork", *(module.name for module in pkgutil.walk_packages(hf.__path__, "hugefork."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_types_are_those_of_the_sources(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "-p", "hugefork"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_types_follow_the_elements(tmp_path):
    (tmp_path / "uses.py").write_text(USES)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "uses.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_dir_lists_what_is_public():
    names = {name for name in dir(hf) if not name.startswith("__")}
    assert names == {name for name in hf.__all__ if not name.startswith("__")}


def test_the_stub_is_that_of_the_module(tmp_path):
    (tmp_path / "allowed").write_text("hugefork._native.__all__\nhugefork._native.*.__buffer__\n")
    command = [sys.executable, "-m", "mypy.stubtest", "hugefork._native", "--allowlist", tmp_path / "allowed"]
    done = subprocess.run(
        [*command, "--ignore-missing-stub", "--ignore-disjoint-bases", "--ignore-unused-allowlist"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout


def test_the_version_is_that_of_the_distribution():
    assert hf.__version__ == importlib.metadata.version("hugefork")


def test_everything_public_is_documented():
    for name in hf.__all__:
        assert getattr(hf, name).__doc__, name
    assert sorted(hf.__all__) == sorted(set(hf.__all__))


def test_every_statistic_is_documented():
    for module in (hf._stats, hf._allocator):
        for made in ast.parse(inspect.getsource(module)).body:
            if isinstance(made, ast.ClassDef) and made.name.endswith(("Stats", "_Faults", "LazyFreed")):
                for field, after in itertools.pairwise([*made.body, None]):
                    is_documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert not isinstance(field, ast.AnnAssign) or is_documented, ast.unparse(field)
