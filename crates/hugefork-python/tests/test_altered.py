"""Altered checkpoints: by a disk, which leaves wrong checksums, and by a person, who corrects them. Loading one fails
with an error that says so, or gives exactly the saved arrays; no other error may occur."""

import json
import shutil
import zlib

import numpy as np
import pytest
from conftest import sealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hugefork as hf
from hugefork import checkpoint
from hugefork.checkpoint import _format

ALTERED = "load another checkpoint"

# No test depends on the machine's speed.
in_any_time = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory for copies, the files of a checkpoint, and its arrays. One array gets mapped, the others are
    read."""
    path = tmp_path_factory.mktemp("saved")
    with hf.Pool("64 MiB") as pool:
        arrays = {
            "mapped": pool.array(np.arange(10_000.0)),
            "order F": pool.array(np.arange(9000, dtype="i2").reshape(90, 100), order="F"),
            "records": pool.array(np.ones(3, [("x", "i4"), ("y", "f8", 2)])),
            "step": np.array(17),
        }
        save = checkpoint.save(path, arrays, meta={"epoch": 3})
        save.result()
        arrays["mapped"][[5, 700, 9000]] = -1
        arrays["order F"][2, 3] = -1
        checkpoint.save(path, arrays, since=save, meta={"epoch": 3}).result()
        save.release()
        expected = {name: np.array(array, order="K") for name, array in arrays.items()}
        del arrays, save
    files = {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    del files[".lock"]
    assert len(files) == 9, "the manifest, and four arrays of which two have changed"
    return path.parent, files, expected


def put(saved, altered):
    """Writes the checkpoint with some files altered."""
    path, files, _ = saved
    path = path / "altered"
    shutil.rmtree(path, ignore_errors=True)
    (path / "data").mkdir(parents=True)
    for name, contents in {**files, **altered}.items():
        if contents is not None:
            (path / name).write_bytes(contents)
    return path


def refused(path, work):
    """The result of `work`, if it is not refused."""
    try:
        return work()
    except hf.CheckpointError as error:
        assert ALTERED in str(error) and str(path) in str(error)
    except FileNotFoundError as error:
        assert str(path) in str(error)
    return None


def same(arrays, expected):
    assert set(arrays) == set(expected)
    for name, array in arrays.items():
        assert type(array) is np.ndarray and array.dtype == expected[name].dtype
        assert array.shape == expected[name].shape and np.array_equal(array, expected[name])


CHANGES = st.one_of(
    st.tuples(st.just("replace"), st.floats(0, 1), st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.sampled_from([b"9", b"-", b"0", b"[", b"(", b'"', b"\n", b" "])),
    st.tuples(st.just("remove"), st.floats(0, 1), st.integers(1, 30)),
    st.tuples(st.just("end"), st.floats(0, 1), st.none()),
)


def changed(whole, changes):
    for kind, place, what in changes:
        # Most of the vulnerable bytes are at the beginning.
        at = int(place * place * len(whole))
        match kind:
            case "replace":
                whole = whole[:at] + what + whole[at + len(what) :]
            case "insert":
                whole = whole[:at] + what + whole[at:]
            case "remove":
                whole = whole[:at] + whole[at + what :]
            case "end":
                whole = whole[:at]
    return whole


@in_any_time
@given(data=st.data())
def test_damage_by_a_disk_is_refused_or_harmless(saved, data):
    _, files, expected = saved
    names = st.sampled_from(sorted(files))
    altered = {}
    for name in data.draw(st.sets(names, min_size=1, max_size=2)):
        if data.draw(st.integers(0, 9)) == 0:
            altered[name] = data.draw(st.sampled_from([None, b"", *files.values()]))
        else:
            altered[name] = changed(files[name], data.draw(st.lists(CHANGES, min_size=1, max_size=3)))
    path = put(saved, altered)
    arrays = refused(path, lambda: checkpoint.load(path))
    if arrays is not None:
        same(arrays, expected)
        checkpoint.verify(path)
    # Without the checksums, the contents of arrays may be altered, but nothing else.
    arrays = refused(path, lambda: checkpoint.load(path, check=False))
    if arrays is not None:
        assert set(arrays) == set(expected)
        assert all(array.tobytes() is not None for array in arrays.values())
    refused(path, lambda: checkpoint.meta(path))


def test_each_file_is_refused_wherever_it_ends(saved):
    for name, whole in saved[1].items():
        path = put(saved, {})
        for length in [*range(0, min(len(whole), 400)), *range(400, len(whole), 997)]:
            (path / name).write_bytes(whole[:length])
            with pytest.raises(hf.CheckpointError, match=ALTERED):
                checkpoint.load(path, check=False)


WORDS = ["file", "ranges", "bytes", "nbytes", "crc32", "w", "mapped.1.npy", "mapped.2.bytes.npy", "", "..", ".", "a/b", "\0", "x" * 300]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The paths to all values in a manifest."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def with_another(value, path, new):
    """The manifest with `new` at that path, or without the value if `new` is `...`."""
    if not path:
        return None if new is ... else new
    copy = value.copy()
    if len(path) == 1 and new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = with_another(value[path[0]], path[1:], new)
    return copy


@in_any_time
@given(data=st.data())
def test_a_forged_manifest_does_no_harm(saved, data):
    manifest = json.loads(saved[1]["manifest.json"])
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(manifest))))
        manifest = with_another(manifest, path, data.draw(st.just(...) | ANYTHING))
    path = put(saved, {"manifest.json": sealed(manifest).encode()})
    for work in (
        lambda: checkpoint.load(path, check=False),
        lambda: checkpoint.load(path),
        lambda: checkpoint.verify(path),
        lambda: checkpoint.meta(path),
    ):
        refused(path, work)
    # Such a manifest does not prevent a new save, unless it may belong to another program.
    def save():
        checkpoint.save(path, {"a": np.arange(3)}).result()

    # `True` is no number there.
    mark = json.dumps([manifest.get("format"), manifest.get("version")]) if isinstance(manifest, dict) else None
    if mark != '["hugefork-checkpoint", 1]':
        with pytest.raises(FileExistsError):
            save()
    else:
        save()
        assert np.array_equal(checkpoint.load(path)["a"], np.arange(3))


def test_deeply_nested_lists_are_refused(saved):
    for deep in (b"[" * 200_000, b'{"arrays":' * 200_000, b"9" * 10_000):
        path = put(saved, {"manifest.json": deep})
        with pytest.raises(hf.CheckpointError, match=ALTERED):
            checkpoint.load(path)


HEADS = st.one_of(
    st.sampled_from(["(" * 5000, "-" * 8000 + "1", "{'a':" * 3000, "", "[]", "{}", "\0"]),
    st.fixed_dictionaries(
        {
            "descr": st.sampled_from(["<f8", "|u1", "|O", "|V0", "|S0", "<M8[ns]", [("x", "<i4")], [], None, 3]),
            "fortran_order": st.booleans() | st.none(),
            "shape": st.lists(st.integers(-3, 10) | st.sampled_from([1 << 31, 1 << 40, 1 << 62, 1 << 64]), max_size=4).map(tuple),
        }
    ).map(repr),
)


def numpy_file(head, contents):
    text = head.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + contents


@in_any_time
@given(head=HEADS, contents=st.binary(max_size=100), which=st.integers(0, 7))
def test_a_forged_header_does_no_harm(saved, head, contents, which):
    """The manifest describes the altered file correctly."""
    manifest = json.loads(saved[1]["manifest.json"])
    entry = sorted(_format.files_of(manifest), key=lambda file: file["file"])[which]
    altered = numpy_file(head, contents)
    entry["nbytes"], entry["crc32"] = len(altered), zlib.crc32(altered)
    path = put(saved, {"manifest.json": sealed(manifest).encode(), f"data/{entry['file']}": altered})
    arrays = refused(path, lambda: checkpoint.load(path))
    if arrays is not None:
        assert sum(array.nbytes for array in arrays.values()) < 200_000


@pytest.mark.parametrize(
    ("ranges", "new"),
    [
        ([(0, 80_008)], np.ones(80_008, "u1")),
        ([(-8, 0)], np.ones(8, "u1")),
        ([(8, 0)], np.ones(0, "u1")),
        ([(0, 8)], np.ones(1, "u1")),
        ([(0, 8)], np.ones(9, "u1")),
        ([(0, 8, 8)], np.ones(8, "u1")),
        ([(0.0, 8.0)], np.ones(8, "u1")),
    ],
)
def test_forged_changes_are_refused(saved, ranges, new):
    manifest = json.loads(saved[1]["manifest.json"])
    change, altered = manifest["arrays"]["mapped"][1], {}
    for key, array in (("ranges", np.array(ranges)), ("bytes", new)):
        file = numpy_file(repr(_format.head_of(array)), array.tobytes())
        change[key] = {**change[key], "nbytes": len(file), "crc32": zlib.crc32(file)}
        altered[f"data/{change[key]['file']}"] = file
    path = put(saved, {"manifest.json": sealed(manifest).encode(), **altered})
    with pytest.raises(hf.CheckpointError, match=ALTERED):
        checkpoint.load(path)


@pytest.mark.parametrize(("descr", "shape"), [("|V0", (1 << 31, 2)), ("|V0", (1 << 31, 6)), ("<i8", (1 << 31, 0))])
def test_changes_of_no_bytes_are_not_gone_through(saved, descr, shape):
    """An array whose elements have no bytes has the length in its header, with an empty file."""
    manifest = json.loads(saved[1]["manifest.json"])
    change = manifest["arrays"]["mapped"][1]
    file = numpy_file(repr({"descr": descr, "fortran_order": False, "shape": shape}), b"")
    change["ranges"] = {**change["ranges"], "nbytes": len(file), "crc32": zlib.crc32(file)}
    path = put(saved, {"manifest.json": sealed(manifest).encode(), f"data/{change['ranges']['file']}": file})
    with pytest.raises(hf.CheckpointError, match="no pairs of int64"):
        checkpoint.load(path)


def test_types_of_many_fields_are_loaded(pool, tmp_path):
    many = np.zeros(2, [(f"a field with a long name, number {nth}", "f8") for nth in range(400)])
    many[many.dtype.names[7]] = 7
    checkpoint.save(tmp_path, {"many": pool.array(many)}).result()
    same(checkpoint.load(tmp_path), {"many": many})
