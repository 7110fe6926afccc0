"""Type annotations, and examples in docstrings."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import hugefork as hf

MODULES = ["hugefork", *(module.name for module in pkgutil.walk_packages(hf.__path__, "hugefork."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_types_are_those_of_the_sources(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "-p", "hugefork"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


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


def test_everything_public_is_documented():
    for name in hf.__all__:
        assert getattr(hf, name).__doc__, name
    assert sorted(hf.__all__) == sorted(set(hf.__all__))
