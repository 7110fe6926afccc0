"""Checkpoints."""

import errno
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import saving, sealed

import hugefork as hf
from hugefork import checkpoint


def by_numpy_alone(path):
    """Reads an array as the documentation describes."""
    manifest = json.loads((path / "manifest.json").read_text())
    arrays = {}
    for name, (first, *changes) in manifest["arrays"].items():
        arrays[name] = np.load(path / "data" / first["file"])
        flat = arrays[name].ravel("K").view("u1")
        for change in changes:
            new, at = np.load(path / "data" / change["bytes"]["file"]), 0
            for start, stop in np.load(path / "data" / change["ranges"]["file"]):
                flat[start:stop] = new[at : at + stop - start]
                at += stop - start
    return arrays


def check(path, expected):
    for arrays in (checkpoint.load(path, check=False), checkpoint.load(path), by_numpy_alone(path)):
        assert set(arrays) == set(expected)
        for name, array in arrays.items():
            assert type(array) is np.ndarray and array.dtype == expected[name].dtype
            assert array.shape == expected[name].shape and np.array_equal(array, expected[name])
    checkpoint.verify(path)


@pytest.fixture
def arrays(pool):
    random = np.random.default_rng(1)
    made = {
        "w": pool.array(random.random((1000, 300))),
        "order F": pool.array(random.random((500, 70), "f4"), order="F"),
        "layer/1.bias": pool.array(np.arange(5, dtype="i2")),
        "scalar": pool.array(np.float32(7)),
        "nothing": pool.zeros((0, 3)),
        "step": np.array(17),
        "ordinary": random.random((30, 40)).T,
        "records": pool.array(np.ones(3, [("x", "i4"), ("y", "f8", 2)])),
    }
    yield made
    made.clear()


def test_a_checkpoint_is_the_state_at_the_cut(pool, arrays, tmp_path):
    expected = {name: array.copy() for name, array in arrays.items()}
    save = checkpoint.save(tmp_path / "a" / "b", arrays, meta={"epoch": 3})
    for array in arrays.values():
        array[...] = np.zeros((), array.dtype)
    assert save.result() == tmp_path / "a" / "b"
    assert save.done() and 0 < save.pause < 5 and save.written == save.total
    assert repr(save).endswith(": written>")
    check(save.path, expected)
    assert checkpoint.meta(save.path) == {"epoch": 3}
    loaded = checkpoint.load(save.path)
    assert loaded["order F"].flags.f_contiguous
    loaded["w"][0] = 5
    check(save.path, expected)
    in_pool = checkpoint.load(save.path, pool=pool)
    assert hf.stats(in_pool["w"]).blocks_present == 2 and np.array_equal(in_pool["w"], expected["w"])
    assert in_pool["order F"].flags.f_contiguous


def test_a_save_since_another_writes_what_has_changed(pool, tmp_path):
    w, other = pool.array(np.arange(1 << 20, dtype="f4")), pool.array(np.ones(1000))
    save = checkpoint.save(tmp_path, {"w": w, "other": other})
    assert save.result() and save.written == save.total
    for turn in range(1, 24):
        w[turn * 20000 : turn * 20000 + 10] = -turn
        later = checkpoint.save(tmp_path, {"w": w, "other": other}, since=save)
        w[0] = turn
        later.result()
        assert not save._parts
        expected = {"w": w.copy(), "other": other}
        expected["w"][0] = turn - 1
        check(tmp_path, expected)
        save = later
        files = sorted(os.listdir(tmp_path / "data"))
        if turn < 17:
            assert later.written < 30_000 and len(files) == 2 + 2 * turn
    assert len(files) == 2 + 2 * (23 - 17)
    w[: 1 << 19] = 0
    later = checkpoint.save(tmp_path, {"w": w, "other": other}, since=save)
    later.result()
    assert later.written == w.nbytes
    check(tmp_path, {"w": w, "other": other})


def test_a_save_since_one_elsewhere_is_a_checkpoint_of_its_own(pool, tmp_path):
    w, other = pool.array(np.arange(1 << 20, dtype="f4")), pool.array(np.ones(100_000))
    saves, expected = [], []
    for turn in range(1, 22):
        w[turn * 20000 : turn * 20000 + 10] = -turn
        before = saves[-1] if saves else None
        saves.append(checkpoint.save(tmp_path / str(turn), {"w": w, "other": other, "turn": np.array(turn)}, since=before))
        saves[-1].result()
        expected.append({"w": w.copy(), "other": other, "turn": np.array(turn)})
        # An array with many changes is written again completely.
        whole = {1: w.nbytes + other.nbytes + 8, 18: w.nbytes + 8}
        assert saves[-1].written == whole[turn] if turn in whole else saves[-1].written < 10_000, turn
    for each, arrays in zip(saves, expected):
        check(each.path, arrays)
    # Removing or replacing one checkpoint does not affect the others.
    shutil.rmtree(tmp_path / "1")
    checkpoint.save(tmp_path / "2", {"w": other}).result()
    for each, arrays in zip(saves[2:], expected[2:]):
        check(each.path, arrays)


def test_files_of_two_checkpoints_with_one_name_are_two(pool, tmp_path):
    """Both directories have saves with the same numbers."""
    w = pool.array(np.arange(100_000.0))
    checkpoint.save(tmp_path / "b", {"w": np.zeros(3), "v": np.ones(3)}).result()
    save = checkpoint.save(tmp_path / "a", {"w": w})
    save.result()
    for turn in range(1, 9):
        w[turn * 3000] = -1
        save = checkpoint.save(tmp_path / "ba"[turn % 2], {"w": w}, since=save)
        save.result()
        assert save.written < 10_000
        check(save.path, {"w": w})
        assert len(os.listdir(save.path / "data")) == 1 + 2 * turn


def test_names_with_points_and_numbers_do_not_collide(pool, tmp_path):
    arrays = {name: pool.array(np.arange(100_000.0) + nth) for nth, name in enumerate(["w", "w.1", "w.1.1", "w.1.ranges", "w.1.first"])}
    save = None
    for turn in range(1, 4):
        for nth, array in enumerate(arrays.values()):
            array[turn * 3000] = -nth
        # Each is the first save of its directory.
        save = checkpoint.save(tmp_path / str(turn), arrays, since=save)
        save.result()
        check(save.path, arrays)


def test_one_directory_by_two_paths_can_be_saved_since(pool, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path / "real", {"w": w})
    w[5] = 9
    save = checkpoint.save(tmp_path / "link", {"w": w}, since=save)
    save.result()
    assert save.written < 10_000
    check(tmp_path / "real", {"w": w})


def test_files_of_a_killed_save_are_not_written_to(pool, tmp_path):
    """The file may also be one of another checkpoint."""
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path / "a", {"w": w})
    save.result()
    before = w.copy()
    (tmp_path / "b" / "data").mkdir(parents=True)
    (tmp_path / "b" / ".lock").touch()
    for left in ("w.1.npy", "w.1.first.npy", "w.1.ranges.npy", "w.1.bytes.npy"):
        os.link(tmp_path / "a" / "data" / "w.1.npy", tmp_path / "b" / "data" / left)
    w[7] = -1
    checkpoint.save(tmp_path / "b", {"w": w}, since=save).result()
    check(tmp_path / "b", {"w": w})
    check(tmp_path / "a", {"w": before})
    os.link(tmp_path / "a" / "data" / "w.1.npy", tmp_path / "b" / "data" / "w.2.npy")
    checkpoint.save(tmp_path / "b", {"w": w}).result()
    check(tmp_path / "a", {"w": before})


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_save_since_files_that_are_gone_writes_all(pool, tmp_path, how):
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path / "a", {"w": w})
    save.result()
    w[7] = -1
    match how:
        case "removed":
            shutil.rmtree(tmp_path / "a")
        case "replaced":
            checkpoint.save(tmp_path / "a", {"w": np.zeros(3)}).result()
    later = checkpoint.save(tmp_path / "b", {"w": w}, since=save)
    later.result()
    assert later.written == w.nbytes and len(os.listdir(tmp_path / "b" / "data")) == 1
    check(tmp_path / "b", {"w": w})


def test_a_save_since_a_released_one_compares_its_files(pool, tmp_path):
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path / "a", {"w": w})
    save.release()
    w[7] = -1
    later = checkpoint.save(tmp_path / "b", {"w": w}, since=save)
    later.result()
    assert later.written < 10_000
    check(tmp_path / "b", {"w": w})
    retyped = checkpoint.save(tmp_path / "c", {"w": w.view("i8")}, since=later)
    retyped.result()
    assert retyped.written == w.nbytes, "it has another type"
    check(tmp_path / "c", {"w": w.view("i8")})


def test_two_saves_since_one_do_not_disturb_each_other(pool, tmp_path):
    w = pool.array(np.arange(1 << 18, dtype="f8"))
    first = checkpoint.save(tmp_path / "first", {"w": w})
    w[5] = -1
    # Both saves have begun before the first one ends.
    with saving(tmp_path / "b"):
        late = checkpoint.save(tmp_path / "b", {"w": w}, since=first)
        checkpoint.save(tmp_path / "a", {"w": w}, since=first).result()
    late.result()
    check(tmp_path / "a", {"w": w})
    check(tmp_path / "b", {"w": w})


def test_arrays_of_snapshots_are_saved_as_they_were(pool, tmp_path):
    w, b = pool.array(np.arange(100_000.0)), pool.array(np.ones((3, 4)), order="F")
    early = hf.snapshot(w, b)
    w[7], b[1] = -1, 5
    late = hf.snapshot(w)
    old, old_b, new = w.copy(), early.copy(b), w.copy()
    old[7] = 7
    w[9] = -9
    save = checkpoint.save(tmp_path / "1", {"w": early[w], "b": early[b]})
    save.result()
    check(tmp_path / "1", {"w": old, "b": old_b})
    save = checkpoint.save(tmp_path / "2", {"w": late[w], "b": b}, since=save)
    save.result()
    assert save.written < 10_000
    check(tmp_path / "2", {"w": new, "b": b})
    # A fork can be saved since the snapshot that it was forked from.
    branch = hf.fork(late[w])
    branch[50_000] = 3
    save = checkpoint.save(tmp_path / "3", {"w": branch}, since=save)
    save.result()
    assert save.written < 10_000
    check(tmp_path / "3", {"w": branch})
    elsewhere = hf.Pool("16 MiB").array(w)
    save = checkpoint.save(tmp_path / "4", {"w": elsewhere}, since=save)
    save.result()
    assert save.written == w.nbytes
    check(tmp_path / "4", {"w": w})
    with pytest.raises(ValueError, match="gaps"):
        checkpoint.save(tmp_path / "5", {"w": early[w][::2]})


def test_a_snapshot_that_is_being_saved_cannot_be_closed(pool, tmp_path):
    w = pool.array(np.arange(100_000.0))
    s = hf.snapshot(w)
    with saving(tmp_path / "1"):
        save = checkpoint.save(tmp_path / "1", {"w": s[w]})
        with pytest.raises(BufferError, match="1 array"):
            s.close()
    save.result()
    s.close()
    check(tmp_path / "1", {"w": w})
    save = checkpoint.save(tmp_path / "2", {"w": w}, since=save)
    save.result()
    assert save.written == 0, "its files were compared"
    check(tmp_path / "2", {"w": w})


def test_an_error_names_the_file_and_says_what_to_do(pool, tmp_path):
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path / "1", {"w": w})
    w[7] = -1
    checkpoint.save(tmp_path / "2", {"w": w}, since=save).result()
    first = tmp_path / "2" / "data" / "w.1.first.npy"
    whole = first.read_bytes()
    first.unlink()
    with pytest.raises(hf.CheckpointError, match=r"2/data/w.1.first.npy is missing: .*put it back, or load another"):
        checkpoint.load(tmp_path / "2")
    first.write_bytes(whole[:-1])
    with pytest.raises(hf.CheckpointError, match=r"w.1.first.npy has 800127 bytes instead of 800128: it was truncated"):
        checkpoint.load(tmp_path / "2")
    first.write_bytes(whole + b"x")
    with pytest.raises(hf.CheckpointError, match=r"w.1.first.npy has 800129 bytes instead of 800128: it was altered"):
        checkpoint.load(tmp_path / "2")
    # A file of another checkpoint with the same length.
    other = checkpoint.save(tmp_path / "3", {"w": w * 2}).result() / "data" / "w.1.npy"
    first.write_bytes(other.read_bytes())
    with pytest.raises(hf.CheckpointError, match=r"w.1.first.npy has another checksum"):
        checkpoint.load(tmp_path / "2")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint: give the directory.*nowhere/manifest.json"):
        checkpoint.load(tmp_path / "nowhere")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text("{}")
    with pytest.raises(hf.CheckpointError, match="text/manifest.json is not a manifest of a checkpoint"):
        checkpoint.load(tmp_path / "text")


def test_a_fifo_in_place_of_a_file_is_refused_at_once(run, pool, tmp_path):
    checkpoint.save(tmp_path, {"w": pool.zeros(3)}).result()
    for file in (tmp_path / "data" / "w.1.npy", tmp_path / "manifest.json"):
        whole = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        for call in ("load(path)", "load(path, check=False)", "verify(path)", "meta(path)"):
            done = run(f"path = {str(tmp_path)!r}\nhf.checkpoint.{call}")
            if (file.name, call) != ("w.1.npy", "meta(path)"):
                assert f"{file} is " in done.stderr and "put the file back, or take another directory" in done.stderr
        file.unlink()
        file.write_bytes(whole)
    check(tmp_path, {"w": np.zeros(3)})


def test_a_save_since_a_missing_save_writes_everything(pool, tmp_path):
    w = pool.array(np.ones(100_000))
    first = checkpoint.save(tmp_path, {"w": w})
    first.result()
    checkpoint.save(tmp_path, {"w": w}).result()
    w[0] = 2
    save = checkpoint.save(tmp_path, {"w": w}, since=first)
    save.result()
    assert save.written == w.nbytes
    save.release()
    save = checkpoint.save(tmp_path, {"w": w[1:]}, since=save)
    save.result()
    check(tmp_path, {"w": w[1:]})
    checkpoint.save(tmp_path / "other", {"w": w}, since=save).result()
    check(tmp_path / "other", {"w": w})


TYPES = [
    [("π", "f8")],
    [("é", "f8"), ("b", [("中", "i4"), ("c", [("d", "f4", (2, 3))])])],
    [(("Titel π", "n"), "i4"), ("m", "f8")],
    [("it's \\ \"one\"\n", "f8"), ("\ud800", "i2")],
    [(f"π{nth}", "f4") for nth in range(6000)],
    [("a", "i4"), ("b", ">i4")],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    [("a", "S0")],
    [],
    ">f8",
    "M8[25s]",
    "m8[us]",
    "U5",
    ">U5",
    "S3",
    "V5",
    "V0",
    "?",
]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: ascii(dtype)[:20])
def test_arrays_of_each_type_are_saved_and_loaded(pool, tmp_path, dtype):
    dtype, save = np.dtype(dtype), None
    for turn, shape in enumerate(((5, 2), (), (0, 3))):
        ordinary = np.ndarray(shape, dtype, bytearray(b"" * (math.prod(shape) * dtype.itemsize)))
        arrays = {"in pool": pool.array(ordinary), "ordinary": ordinary}
        path = tmp_path / str(turn)
        save = checkpoint.save(path, arrays)
        save.result()
        again = checkpoint.save(path, arrays, since=save)
        again.result()
        assert again.written == ordinary.nbytes, "what lies in the pool is unchanged"
        for found in (checkpoint.load(path), checkpoint.load(path, pool=pool), checkpoint.load(path, check=False)):
            found["by numpy"] = np.load(path / "data" / "ordinary.2.npy", max_header_size=1 << 20)
            for array in found.values():
                assert (array.dtype, array.dtype.fields, array.shape) == (dtype, dtype.fields, shape)
                assert np.array_equal(array, ordinary)
        del arrays, found


@pytest.mark.parametrize("offsets", [[8, 0], [0, 2]])
def test_types_that_no_numpy_file_can_describe_are_refused_by_name(pool, tmp_path, offsets):
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": offsets})
    for array in (pool.zeros(3, dtype), np.zeros(3, dtype)):
        with pytest.raises(ValueError, match=r"'w' is of .*offsets.*: give fields in order, without overlap"):
            checkpoint.save(tmp_path, {"w": array})
    assert not any(tmp_path.iterdir())


def test_unsupported_arrays_are_refused(pool, tmp_path):
    a = pool.zeros((10, 10))
    (tmp_path / "file").touch()
    for arrays, error in [
        ({"": a}, ValueError),
        ({"x" * 201: a}, ValueError),
        ({1: a}, ValueError),
        ({"a": [1, 2]}, TypeError),
        ({"a": np.array([object()])}, TypeError),
        ({"a": a[:, 1]}, ValueError),
    ]:
        with pytest.raises(error):
            checkpoint.save(tmp_path / "x", arrays)
    with pytest.raises(NotADirectoryError):
        checkpoint.save(tmp_path / "file", {"a": a})
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "x", {"a": a}, meta=object())
    assert not (tmp_path / "x").exists()
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "x")


def test_a_truncated_or_altered_checkpoint_is_refused(pool, tmp_path):
    w = pool.array(np.arange(100_000.0))
    save = checkpoint.save(tmp_path, {"w": w})
    save.result()
    w[5] = 9
    checkpoint.save(tmp_path, {"w": w}, since=save).result()
    for file in [tmp_path / "manifest.json", *sorted((tmp_path / "data").iterdir())]:
        whole = file.read_bytes()
        middle = len(whole) // 2
        altered = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for broken in (whole[:-1], whole[:10], b"", altered):
            file.write_bytes(broken)
            with pytest.raises(hf.CheckpointError, match="load another checkpoint"):
                checkpoint.load(tmp_path)
            if len(broken) != len(whole) or file.name == "manifest.json":
                with pytest.raises(hf.CheckpointError):
                    checkpoint.load(tmp_path, check=False)
        file.unlink()
        with pytest.raises((hf.CheckpointError, FileNotFoundError)):
            checkpoint.load(tmp_path)
        file.write_bytes(whole)
    check(tmp_path, {"w": w})
    # A name that leads out of the directory is invalid.
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["arrays"]["w"][0]["file"] = "../../etc/passwd"
    (tmp_path / "manifest.json").write_text(sealed(manifest))
    with pytest.raises(hf.CheckpointError, match="not the name of a file"):
        checkpoint.load(tmp_path)


def test_a_full_disk_preserves_the_previous_checkpoint(pool, tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        small, big = pool.array(np.ones(1000)), pool.array(np.ones(10 << 20, "u1"))
        checkpoint.save(tmp_path, {"small": small}).result()
        files = sorted(os.listdir(tmp_path / "data"))
        failing = checkpoint.save(tmp_path, {"small": small * 2, "big": big})
        with pytest.raises(OSError) as error:
            failing.result()
        assert error.value.errno == errno.ENOSPC and "failed" in repr(failing)
        assert f"No space left on device (os error 28): '{tmp_path}/data/big.2.npy'" in str(error.value)
        assert sorted(os.listdir(tmp_path / "data")) == files
        check(tmp_path, {"small": small})
        again = checkpoint.save(tmp_path, {"small": big[:100]}, since=failing)
        again.result()
        check(tmp_path, {"small": big[:100]})
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_an_unread_failure_is_a_warning(pool, tmp_path):
    path = tmp_path / "dir"
    path.mkdir()
    (path / "data").touch()
    save = checkpoint.save(path, {"a": pool.zeros(1)})
    save._over.wait()
    with pytest.warns(RuntimeWarning, match="was not written"):
        del save
        gc.collect()


def test_blocks_are_copied_before_they_are_written_to(pool, tmp_path):
    w = pool.array(np.ones(20 << 20, "u1"), copy_grain="block")
    checkpoint.save(tmp_path, {"w": w}, copy_ahead=True).result()
    copied = hf.stats(w).blocks_copied
    assert copied == 10
    w[:] = 2
    assert hf.stats(w).blocks_copied == copied
    assert (checkpoint.load(tmp_path)["w"] == 1).all()


def test_a_save_writes_no_faster_than_it_may(pool, tmp_path):
    w = pool.array(np.arange(100_000.0))
    begun = time.perf_counter()
    checkpoint.save(tmp_path, {"w": w}, at_most=w.nbytes * 5).result()
    assert time.perf_counter() - begun >= 0.2
    check(tmp_path, {"w": w})
    with pytest.raises(ValueError, match="at_most"):
        checkpoint.save(tmp_path, {"w": w}, at_most=0)


def test_copies_ahead_take_nothing_from_the_checkpoint(pool, tmp_path):
    w = pool.array(np.ones(40 << 20, "u1"), copy_grain="block")
    save = checkpoint.save(tmp_path, {"w": w}, copy_ahead=True)
    save.result()
    assert not save._parts["w"][0].is_revoked() and pool.stats().blocks_free > 0
    assert (checkpoint.load(tmp_path)["w"] == 1).all()


def test_a_full_pool_is_an_error_and_no_crash(pool, tmp_path):
    w = pool.array(np.ones(40 << 20, "u1"), copy_grain="block")
    with hf.snapshot(w) as s:
        save = checkpoint.Save(tmp_path / "x", {"w": w}, None, "null", False, None, None)
        w[:] = 2
        if not s.is_revoked:
            pytest.fail("the pool was to be full")
    try:
        save.result()
    except hf.RevokedError:
        assert not list((tmp_path / "x" / "data").iterdir())
        with pytest.raises(FileNotFoundError):
            checkpoint.load(tmp_path / "x")
    else:
        assert (checkpoint.load(tmp_path / "x")["w"] == 1).all()


def test_a_killed_save_preserves_the_previous_checkpoint(pool, tmp_path):
    program = """
import sys, numpy as np, hugefork as hf
pool = hf.Pool("128 MiB")
w = pool.zeros(4 << 20)
for turn in range(4):
    w[:] = turn
    # The last save takes minutes.
    at_most = 100_000 if turn == 3 else None
    hf.checkpoint.save(sys.argv[1], {"w": w, "turn": np.array(turn)}, at_most=at_most).result()
"""
    with subprocess.Popen([sys.executable, "-c", program, tmp_path]) as child:
        last = tmp_path / "data" / "w.4.npy"
        while not (last.exists() and last.stat().st_size > 100_000):
            assert child.poll() is None
            time.sleep(0.001)
        child.kill()
    found = checkpoint.load(tmp_path)
    assert found["turn"] == 2 and (found["w"] == 2).all()
    checkpoint.save(tmp_path, {"w": pool.zeros(3)}).result()
    assert len(list((tmp_path / "data").iterdir())) == 1, "what the killed save has left is gone"


def test_a_save_goes_on_since_a_checkpoint_of_an_earlier_process(pool, tmp_path):
    program = """
import sys, numpy as np, hugefork as hf
a = hf.array(np.arange(1 << 20, dtype="i8").reshape(64, -1))
f, small, gone = hf.ones((1000, 1000), order="F"), hf.zeros(3), hf.zeros(9)
hf.checkpoint.save(sys.argv[1], {"a": a, "f": f, "small": small, "gone": gone, "type": gone}).result()
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "1"], check=True)
    arrays = checkpoint.load(tmp_path / "1", pool=pool)
    a, f = arrays["a"], arrays["f"]
    before = sum(file.stat().st_size for file in (tmp_path / "1/data").iterdir())
    del arrays["gone"]
    arrays["type"] = pool.ones(9, "f4")
    a[3, 5:700] = -1
    a[-1, -1] = 7
    f[999, 999] = -0.0
    arrays["small"][1] = 4
    told = []
    for since, to, changed in [("1", "2", 4), ("2", "2", 0), ("2", "3", 0)]:
        expected = {name: array.copy(order="K") for name, array in arrays.items()}
        save = checkpoint.save(tmp_path / to, arrays, since=str(tmp_path / since), progress=lambda *done: told.append(done))
        a[0] += 1
        save.result()
        check(tmp_path / to, expected)
        assert save.written == save.total < 100_000 < before and told[-1] == (save.written, save.total)
        a[0] -= 1
    for name, array in checkpoint.load(tmp_path / "2").items():
        assert array.flags.f_contiguous == arrays[name].flags.f_contiguous
    shutil.rmtree(tmp_path / "1")
    check(tmp_path / "2", expected)


def test_a_save_since_a_damaged_file_writes_all(pool, tmp_path):
    a = pool.ones(1 << 20)
    checkpoint.save(tmp_path / "1", {"a": a}).result()
    os.truncate(tmp_path / "1/data/a.1.npy", 1000)
    save = checkpoint.save(tmp_path / "2", {"a": a}, since=tmp_path / "1")
    save.result()
    assert save.written == a.nbytes
    check(tmp_path / "2", {"a": a})
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        checkpoint.save(tmp_path / "2", {"a": a}, since=tmp_path / "none")
    with pytest.raises(TypeError, match="or the directory of a checkpoint"):
        checkpoint.save(tmp_path / "2", {"a": a}, since=5)


def test_progress_counts_to_the_end_and_may_end_the_save(pool, tmp_path):
    arrays = {"a": pool.ones(4 << 20, "u1"), "b": np.ones(1000)}
    told = []
    save = checkpoint.save(tmp_path, arrays, at_most="100 MiB", progress=lambda done, total: told.append((done, total)))
    save.result()
    whole = (4 << 20) + 8000
    assert len(told) > 3 and told == sorted(told) and told[-1] == (whole, whole) and {total for _, total in told} == {whole}

    def stop(done, total):
        raise ZeroDivisionError

    arrays["a"][:] = 2
    with pytest.raises(ZeroDivisionError):
        checkpoint.save(tmp_path, arrays, progress=stop).result()
    check(tmp_path, {"a": np.ones(4 << 20, "u1"), "b": np.ones(1000)})


def all_files(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "theirs",
    [
        {"data/train.csv": "1,2"},
        {"data/train.1.npy": "of no save"},
        {"manifest.json": '{"name": "an extension"}', "data/w.1.npy": "of nobody"},
        {"manifest.json": "no JSON"},
    ],
)
def test_a_directory_of_another_program_is_not_changed(pool, tmp_path, theirs):
    for name, text in theirs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = all_files(tmp_path)
    with pytest.raises(FileExistsError, match="save to another directory"):
        checkpoint.save(tmp_path, {"w": pool.zeros(3)})
    assert all_files(tmp_path) == before


def test_the_checkpoint_of_a_newer_hugefork_is_not_changed(pool, tmp_path):
    checkpoint.save(tmp_path, {"w": pool.zeros(3)}).result()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    before = all_files(tmp_path)
    with pytest.raises(FileExistsError, match="a newer hugefork has written it"):
        checkpoint.save(tmp_path, {"w": pool.zeros(3)})
    assert all_files(tmp_path) == before


def test_other_files_beside_a_checkpoint_are_not_changed(pool, tmp_path):
    (tmp_path / ".lock").write_text("of another program")
    checkpoint.save(tmp_path, {"w": pool.zeros(3)}).result()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    (tmp_path / "data" / "a.1.npy").mkdir()
    checkpoint.save(tmp_path, {"w": pool.zeros(4)}).result()
    assert checkpoint.load(tmp_path)["w"].shape == (4,)
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == ["a.1.npy", "notes.txt", "w.2.npy"]
    assert (tmp_path / ".lock").read_text() == "of another program"
    other = tmp_path / "other"
    other.mkdir()
    (other / ".lock").symlink_to(tmp_path / "data" / "notes.txt")
    with pytest.raises(OSError):
        checkpoint.save(other, {"w": pool.zeros(3)}).result()


def test_saves_to_one_directory_come_one_after_the_other(pool, tmp_path):
    w = pool.zeros(1 << 18)
    saves = []
    for turn in range(6):
        w[:] = turn
        saves.append(checkpoint.save(tmp_path, {"w": w}))
        found = checkpoint.load(tmp_path)["w"] if (tmp_path / "manifest.json").exists() else w
        assert (found == found[0]).all()
    for save in saves:
        save.result()
    assert json.loads((tmp_path / "manifest.json").read_text())["save"] == 6
    found = checkpoint.load(tmp_path)["w"]
    assert (found == found[0]).all()


@pytest.mark.parametrize("read", [checkpoint.load, checkpoint.verify, lambda path: checkpoint.load(path, check=False)])
def test_a_load_finds_its_files_however_often_saves_replace_them(pool, tmp_path, monkeypatch, read):
    def save(turn):
        checkpoint.save(tmp_path, {name: pool.full(20_000, turn) for name in "abc"}).result()

    save(1)
    path_of = checkpoint._reader._path_of

    def slow(*of):
        for turn in range(2, 14):
            save(turn)
        return path_of(*of)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint._reader, "_path_of", slow)
        found = read(tmp_path) or {}
    assert all((array == 1).all() for array in found.values())
    save(20)
    assert len(os.listdir(tmp_path / "data")) == 3
    check(tmp_path, {name: np.full(20_000, 20) for name in "abc"})


def test_only_a_save_is_taken_for_the_one_before(pool, tmp_path):
    for since in (b"last", 7, {"a": 1}):
        with pytest.raises(TypeError, match="give what an earlier save returned"):
            checkpoint.save(tmp_path, {"a": pool.zeros(1)}, since=since)


def test_a_save_since_a_snapshot_that_has_lost_blocks_writes_all(pool, tmp_path):
    w = pool.array(np.ones(24 << 20, "u1"), copy_grain="block")
    first = checkpoint.save(tmp_path, {"w": w})
    first.result()
    full = pool.array(np.ones(30 << 20, "u1"))
    w[:] = 2
    assert first._parts["w"][0].is_revoked()
    del full
    gc.collect()
    save = checkpoint.save(tmp_path, {"w": w}, since=first)
    save.result()
    assert save.written == w.nbytes
    check(tmp_path, {"w": w})


INTERRUPTED = """
import pathlib, signal, sys, threading, time
from conftest import saving
path, main = pathlib.Path(sys.argv[1]), threading.main_thread().ident
w = hf.Pool("64 MiB").array(np.arange(1 << 20))

def waits():
    frame = sys._current_frames()[main]
    while frame is not None and frame.f_code is not hf.checkpoint.Save.result.__code__:
        frame = frame.f_back
    return frame is not None

def interrupt():
    while not waits():
        time.sleep(0)
    signal.pthread_kill(main, signal.SIGINT)

path.mkdir()
# As long as another process writes there, the save is not done.
with saving(path):
    save = hf.checkpoint.save(path, {"w": w})
    try:
        threading.Thread(target=interrupt).start()
        save.result()
    except KeyboardInterrupt:
        print("interrupted", save.done())
"""


@pytest.mark.parametrize(("program", "said"), [("save.result(); print(save.done())", "interrupted False\nTrue\n"), ("", "interrupted False\n")])
def test_ctrl_c_ends_the_wait_and_not_the_save(run, tmp_path, program, said):
    done = run(INTERRUPTED.replace("sys.argv[1]", repr(str(tmp_path / "run"))) + program)
    assert done.stdout == said, done.stderr
    assert np.array_equal(checkpoint.load(tmp_path / "run")["w"], np.arange(1 << 20))


def test_a_signal_at_any_moment_of_the_wait_does_not_block_the_save(run, tmp_path):
    """The signal comes before each instruction of Python in turn. If it kept the save from ending, the program would
    not end either."""
    done = run(f"""
import faulthandler, pathlib, signal, sys
from conftest import saving
path = pathlib.Path({str(tmp_path / "run")!r})
path.mkdir()
faulthandler.dump_traceback_later(80, exit=True)
count = last = 0

def trace(frame, event, argument):
    global count
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    if event == "opcode":
        count += 1
        if count == last:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace

with saving(path):
    save = hf.checkpoint.save(path, {{"w": hf.Pool("4 MiB").zeros(3)}})
    interrupted = 0
    while True:
        count, last = 0, last + 1
        try:
            sys.settrace(trace)
            save.result(0)
        except KeyboardInterrupt:
            interrupted += 1
        except TimeoutError:
            break
        finally:
            sys.settrace(None)
print(interrupted > 20, save.result() == path)
""")
    assert done.stdout == "True True\n", done.stderr


def test_a_forked_child_does_not_block_saves(run, tmp_path):
    """One that is forked while a save writes lives on. It neither keeps others from writing, nor waits for the parent's."""
    done = run(f"""
import os, signal
path = {str(tmp_path)!r}
w = hf.Pool("64 MiB").array(np.arange(1 << 20))
save = hf.checkpoint.save(path, {{"w": w}}, at_most="16 MiB")
while not save.written:
    pass
read, write = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(300)
    try:
        save.result()
    except hf.ForkedChildError:
        os.write(write, b"told")
    signal.pause()
print(os.read(read, 4), save.result() and save.done())
print(hf.checkpoint.save(path, {{"w": w}}).result(300) is not None)
os.kill(child, signal.SIGKILL)
child = os.fork()
if child == 0:
    signal.alarm(300)
    # It may save its own arrays.
    hf.checkpoint.save(path, {{"own": np.ones(3)}}).result()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), list(hf.checkpoint.load(path)))
""")
    assert done.stdout == "b'told' True\nTrue\n0 ['own']\n", done.stderr


def test_a_child_of_a_killed_save_does_not_block_the_next(run, pool, tmp_path):
    done = run(f"""
import os, signal
w = hf.Pool("64 MiB").array(np.arange(1 << 20))
save = hf.checkpoint.save({str(tmp_path)!r}, {{"w": w}}, at_most="16 MiB")
while not save.written:
    pass
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    signal.alarm(300)
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    try:
        assert done.returncode == -9, done.stderr
        checkpoint.save(tmp_path, {"own": pool.zeros(3)}).result(60)
    finally:
        os.kill(int(done.stdout), 9)
    assert len(os.listdir(tmp_path / "data")) == 1


def test_one_directory_by_two_paths_is_one(pool, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    a = pool.zeros(3)
    saves = [checkpoint.save(tmp_path / name, {"a": a}) for name in ("real", "link") * 3]
    for save in saves:
        save.result()
    assert json.loads((tmp_path / "real/manifest.json").read_text())["save"] == 6
    assert len(os.listdir(tmp_path / "real" / "data")) == 1


@pytest.mark.parametrize("meta", [{2: "two", 10: "ten"}, {1: 0, "1": 1}, {None: 0, "x": float("inf"), True: (1, "ü\ud800")}])
def test_meta_is_read_back_as_json_reads_it(pool, tmp_path, meta):
    checkpoint.save(tmp_path, {"a": pool.zeros(3)}, meta=meta).result()
    assert checkpoint.meta(tmp_path) == json.loads(json.dumps(meta))
    checkpoint.verify(tmp_path)


def test_meta_is_that_of_the_cut(pool, tmp_path):
    meta = {"losses": [1, 2]}
    save = checkpoint.save(tmp_path, {"a": pool.zeros(1 << 17)}, meta=meta, at_most="8 MiB")
    meta["losses"].append(3)
    save.result()
    assert checkpoint.meta(tmp_path) == {"losses": [1, 2]}


def test_numpys_errors_of_altered_files_become_one_error(pool, tmp_path):
    checkpoint.save(tmp_path, {"a": pool.zeros(100_000), "b": pool.zeros(3)}).result()
    for file in (tmp_path / "data").iterdir():
        whole = file.read_bytes()
        for at in range(128):
            for letter in b"(9'}\0":
                file.write_bytes(whole[:at] + bytes([letter]) + whole[at + 1 :])
                try:
                    checkpoint.load(tmp_path)
                except hf.CheckpointError as error:
                    assert "load another checkpoint" in str(error)
        file.write_bytes(whole)
    checkpoint.verify(tmp_path)


def test_of_saves_to_one_directory_the_last_one_remains(pool, tmp_path):
    a = pool.zeros(1 << 16)
    for number in range(20):
        directory = tmp_path / str(number)
        for value in range(5):
            a[:] = value
            save = checkpoint.save(directory, {"a": a}, meta=value)
        save.result()
        assert checkpoint.meta(directory) == 4
        assert (checkpoint.load(directory)["a"] == 4).all()
