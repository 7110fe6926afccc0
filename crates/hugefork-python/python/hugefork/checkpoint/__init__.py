"""Checkpoints that are written while the program continues.

>>> import hugefork as hf, tempfile
>>> pool = hf.Pool("64 MiB")
>>> w = pool.array([1.0, 2.0, 3.0])
>>> path = tempfile.mkdtemp()
>>> save = hf.checkpoint.save(path, {"w": w})   # returns after some microseconds
>>> w += 1                                       # the file gets the earlier contents
>>> _ = save.result()                            # waits, and raises the error of a failed save
>>> hf.checkpoint.load(path)["w"]
array([1., 2., 3.])

A checkpoint is a directory::

    manifest.json              the list of its files; replaced atomically as the last step of a save
    data/w.3.npy               an array at save 3
    data/w.4.ranges.npy        the changes at save 4: bytes start..stop of the array in memory, int64, shape (n, 2)
    data/w.4.bytes.npy         these bytes, one range after another, uint8

Each file in ``data`` is an ordinary numpy file. ``manifest.json`` is::

    {"format": "hugefork-checkpoint", "version": 1, "save": 4, "meta": "…",
     "arrays": {"w": [{"file": "w.3.npy", "nbytes": 80000128, "crc32": 123},
                      {"ranges": {"file": "w.4.ranges.npy", …}, "bytes": {"file": "w.4.bytes.npy", …}}]},
     "crc32": 456}

``nbytes`` and ``crc32`` (`zlib.crc32`) describe a whole file; the last ``crc32`` is the checksum of the manifest's text
before it, up to the comma. ``meta`` is JSON in a string. Memory that was never written is a hole in its file. The crate
``hugefork-checkpoint`` writes and reads the same files in Rust. With numpy alone, an array is read by::

    first, *changes = manifest["arrays"]["w"]
    w = numpy.load(f"{path}/data/{first['file']}")
    flat = w.ravel("K").view("u1")                     # its bytes as they lie in memory
    for change in changes:
        new, at = numpy.load(f"{path}/data/{change['bytes']['file']}"), 0
        for start, stop in numpy.load(f"{path}/data/{change['ranges']['file']}"):
            flat[start:stop] = new[at : at + stop - start]
            at += stop - start

A save that fails or is killed leaves the previous checkpoint unchanged. One process at a time writes to a directory;
other processes wait. A save that replaces a checkpoint which is being loaded leaves its files to the next save to
remove.

To keep several checkpoints, give each its own directory, and the previous save as `since`::

    save = hf.checkpoint.save("run/1", {"w": w})
    save = hf.checkpoint.save("run/2", {"w": w}, since=save)    # the changes, and hard links to unchanged files

``run/2`` does not need ``run/1`` any more: the shared files have two names. (Programs that copy directories may copy
such a file twice: ``rsync -H`` and ``tar`` do not.) Its file ``w.1.first.npy`` is the array of ``run/1``, and
``w.1.bytes-2.npy`` the second change of that array. A file is never written to after it was made.
"""

from ._reader import load, meta, verify
from ._writer import Save, save

__all__ = ["Save", "load", "meta", "save", "verify"]
