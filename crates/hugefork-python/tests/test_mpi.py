"""Checkpoints of several ranks of MPI."""

import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import pytest

import hugefork as hf

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpirun or mpi4py is missing: apt install openmpi-bin, pip install mpi4py",
)


class Alone:
    """The communicator of a program that is the only rank."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Barrier(self):
        pass

    def allgather(self, value):
        return [value]


class WithOneThatFails(Alone):
    """Simulates a second rank that has failed."""

    def Get_size(self):
        return 2

    def allgather(self, value):
        return [value, (None, "OSError: no space")]


def test_one_rank_saves_and_loads(pool, tmp_path):
    w = pool.array(np.arange(1000.0))
    for turn in range(3):
        w[0] = turn
        save = hf.mpi.save(Alone(), tmp_path / "run", {"w": w}, meta={"turn": turn}, copy_ahead=True)
        w[0] = -1
        assert save.result() == tmp_path / "run" and save.done() and save.number == turn + 1
        assert hf.mpi.load(Alone(), save.path)["w"][:2].tolist() == [turn, 1]
        assert hf.mpi.meta(save.path) == {"turn": turn}
        assert sorted(path.name for path in save.path.iterdir()) == [".lock", f"{turn + 1}.rank-0", "data", "manifest.json"]
    assert hf.checkpoint.load(save.path / "3.rank-0", pool=pool)["w"][0] == 2


def test_a_save_since_another_writes_what_has_changed(pool, tmp_path):
    w = pool.array(np.arange(1 << 18))
    save, written = None, []
    for turn in range(3):
        w[turn * 1000] = -turn
        save = hf.mpi.save(Alone(), tmp_path / "run", {"w": w}, since=save)
        save.result()
        written.append(save.mine.written)
        assert np.array_equal(hf.mpi.load(Alone(), save.path, pool=pool)["w"], w)
        assert sorted(path.name for path in save.path.iterdir()) == [".lock", f"{turn + 1}.rank-0", "data", "manifest.json"]
    assert written[0] >= w.nbytes and max(written[1:]) < 100_000
    # To another directory, and since a save that was released or removed.
    for turn, prepare in enumerate((lambda: None, lambda: save.release(), lambda: shutil.rmtree(save.path))):
        prepare()
        w[0] = turn
        save = hf.mpi.save(Alone(), tmp_path / f"other {turn}", {"w": w}, since=save)
        save.result()
        assert (save.mine.written < 100_000) == (turn < 2)
        assert np.array_equal(hf.mpi.load(Alone(), save.path, pool=pool)["w"], w)
    for other in (save.mine, 3):
        with pytest.raises(TypeError, match="hf.mpi.save returned"):
            hf.mpi.save(Alone(), tmp_path, {"w": w}, since=other)


def test_a_save_since_a_directory_compares_with_its_parts(pool, tmp_path):
    w = pool.array(np.arange(1 << 18))
    hf.mpi.save(Alone(), tmp_path / "run", {"w": w}).result()
    reports = []
    for turn, path in enumerate(("run", "run", "other")):
        # As after a restart, the arrays are others.
        w = hf.mpi.load(Alone(), tmp_path / "run", pool=pool)["w"].copy()
        w = pool.array(w)
        w[turn * 1000] = -turn
        save = hf.mpi.save(
            Alone(), tmp_path / path, {"w": w}, since=tmp_path / "run", progress=lambda *done: reports.append(done)
        )
        save.result()
        assert save.mine.written < 100_000 and reports[-1] == (save.mine.written, save.mine.written)
        assert np.array_equal(hf.mpi.load(Alone(), save.path, pool=pool)["w"], w)
    # A rank that was not there writes everything.
    assert hf.mpi._part_before(tmp_path / "run", 1) is None
    with pytest.raises(FileNotFoundError):
        hf.mpi.save(Alone(), tmp_path / "third", {"w": w}, since=tmp_path / "nothing")
    with pytest.raises(hf.CheckpointError, match="is not a checkpoint of MPI"):
        hf.mpi.save(Alone(), tmp_path / "third", {"w": w}, since=next((tmp_path / "run").glob("*.rank-0")))


def test_a_failed_rank_preserves_the_previous_checkpoint(pool, tmp_path):
    w = pool.array([1.0])
    hf.mpi.save(Alone(), tmp_path, {"w": w}).result()
    w[0] = 2
    failing = hf.mpi.save(Alone(), tmp_path, {"w": w})
    failing._comm = WithOneThatFails()
    with pytest.raises(hf.CheckpointError, match="rank 1 failed: OSError: no space; no rank's part counts"):
        failing.result()
    (tmp_path / "3.rank-0").mkdir()
    (tmp_path / "3.rank-0" / "data").touch()
    with pytest.raises(OSError):
        own = hf.mpi.save(Alone(), tmp_path, {"w": w})
        own.mine._error = OSError("gone")
        own.result()
    with pytest.raises(TypeError):
        hf.mpi.save(Alone(), tmp_path, {"w": [1, 2]})
    assert hf.mpi.load(Alone(), tmp_path)["w"] == 1
    w[0] = 3
    hf.mpi.save(Alone(), tmp_path, {"w": w}).result()
    assert hf.mpi.load(Alone(), tmp_path)["w"] == 3 and len(list(tmp_path.glob("*.rank-0"))) == 1


def test_an_altered_checkpoint_of_ranks_is_refused(pool, tmp_path):
    hf.mpi.save(Alone(), tmp_path, {"w": pool.zeros(3)}).result()
    with pytest.raises(hf.CheckpointError, match="start as many"):
        hf.mpi.load(WithOneThatFails(), tmp_path)
    with pytest.raises(FileNotFoundError):
        hf.mpi.load(Alone(), tmp_path / "nothing")
    for file in (tmp_path / "manifest.json", tmp_path / "1.rank-0" / "manifest.json"):
        whole = file.read_text()
        for broken in (whole[:-3], whole.replace('"save": 1', '"save": 2'), ""):
            file.write_text(broken)
            with pytest.raises(hf.CheckpointError, match="load another checkpoint"):
                hf.mpi.load(Alone(), tmp_path)
        file.unlink()
        with pytest.raises((hf.CheckpointError, FileNotFoundError)):
            hf.mpi.load(Alone(), tmp_path)
        file.write_text(whole)
    # A part of another save, and manifests of which no rank is the author.
    hf.checkpoint.save(tmp_path / "1.rank-0", {"w": pool.ones(3)}).result()
    with pytest.raises(hf.CheckpointError, match="1.rank-0 is not what was saved"):
        hf.mpi.load(Alone(), tmp_path)
    for meta in (None, [], {"save": "../1", "parts": [1], "meta": None}, {"save": 1, "parts": {}, "meta": None}):
        hf.checkpoint.save(tmp_path, {}, meta=meta).result()
        with pytest.raises(hf.CheckpointError, match="is not a checkpoint of MPI"):
            hf.mpi.load(Alone(), tmp_path)


def test_a_directory_of_another_program_is_not_changed(pool, tmp_path):
    (tmp_path / "manifest.json").write_text("of another program")
    with pytest.raises(FileExistsError, match="save to another directory"):
        hf.mpi.save(Alone(), tmp_path, {"w": pool.zeros(3)})
    assert (tmp_path / "manifest.json").read_text() == "of another program" and len(list(tmp_path.iterdir())) == 1


RANKS = """
import os, signal, sys
import numpy as np, hugefork as hf
from mpi4py import MPI

comm, path, how = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
rank, size = comm.Get_rank(), comm.Get_size()
pool = hf.Pool("64 MiB", name=f"rank {rank}")
w = pool.zeros(1 << 20)
if how == "save":
    # A number is passed around: each holder adds one and notes it. At each cut exactly one rank has it.
    for turn in range(6):
        token = comm.sendrecv(turn * size + rank, (rank + 1) % size, source=(rank - 1) % size)
        w[:] = turn
        w[0] = token
        if turn in (2, 4):
            save = hf.mpi.save(comm, path, {"w": w, f"of {rank}": w[: rank + 1]}, meta=turn)
            w[:] = -1
            if turn == 4:
                w[1] = -2
            save.result()
    found = hf.mpi.load(comm, path)
    assert (found["w"][1:] == 4).all() and found["w"][0] == 4 * size + (rank - 1) % size, found["w"]
    assert found[f"of {rank}"].shape == (rank + 1,)
elif how == "fail":
    kind = {"w": [1]} if rank == 2 else {"w": w}
    try:
        hf.mpi.save(comm, path, kind)
    except TypeError:
        assert rank == 2
    except hf.CheckpointError as error:
        assert rank != 2 and "rank 2 failed: TypeError" in str(error)
elif how == "kill":
    w[:] = 7
    save = hf.mpi.save(comm, path, {"w": w})
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    save.result()
    raise SystemExit("a save without one of its ranks has ended well")
elif how == "load":
    found = hf.mpi.load(comm, path)["w"]
    assert (found[1:] == 4).all()
print(f"rank {rank} of {size} is done", flush=True)
"""


@needs_mpi
def test_four_ranks_save_and_a_killed_rank_preserves_the_previous_checkpoint(tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "4", sys.executable, "-c", RANKS]

    def run(how):
        return subprocess.run([*command, tmp_path / "run", how], capture_output=True, text=True, timeout=120)

    for how in ("save", "fail", "load"):
        done = run(how)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("of 4 is done") == 4
    killed = run("kill")
    assert killed.returncode != 0 and "has ended well" not in killed.stderr
    done = run("load")
    assert done.returncode == 0, done.stdout + done.stderr
    assert hf.mpi.meta(tmp_path / "run") == 4
