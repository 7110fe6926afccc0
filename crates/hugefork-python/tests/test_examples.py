"""The examples run, on little memory."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("train_with_checkpoints.py", ["--state", "48 MiB", "--steps", "40"], "each file is the state at the cut"),
        ("branch_and_rewind.py", ["--state", "16 MiB", "--turns", "3"], "all came to the same end"),
        ("what_it_costs.py", ["--rounds", "1", "--only", "snapshots"], "us besides"),
        ("what_it_costs.py", ["--rounds", "1", "--only", "chains", "--megabytes", "4"], "glibc that keeps its memory"),
        ("forked_workers.py", ["--workers", "2", "--table", "8 MiB"], "0 processes read something that they should not"),
        ("torch_checkpoints.py", ["--state", "48 MiB", "--saves", "1", "--ways", "hugefork"], "the state is 48 MiB"),
    ],
)
def test_an_example_runs(name, options, said, tmp_path):
    if name.startswith("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch")
    done = subprocess.run([sys.executable, EXAMPLES / name, *options], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


def test_every_example_is_run():
    marks = test_an_example_runs.pytestmark[0].args[1]
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted({name for name, *_ in marks})


README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("code", [code.split("```")[0] for code in README.split("```python\n")[1:]], ids=["first", "more", "child"])
def test_an_example_of_the_readme_runs(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
