"""Checkpoints that are written while the program goes on.

>>> import hugefork as hf, tempfile
>>> pool = hf.Pool("64 MiB")
>>> w = pool.array([1.0, 2.0, 3.0])
>>> path = tempfile.mkdtemp()
>>> save = hf.checkpoint.save(path, {"w": w})   # returns after some microseconds
>>> w += 1                                       # the file gets what was there before
>>> _ = save.result()                            # waits, and raises what went wrong
>>> hf.checkpoint.load(path)["w"]
array([1., 2., 3.])

A checkpoint is a directory::

    manifest.json              which files it is made of; replaced as the last step of a save, at once
    data/w.3.npy               an array as save 3 found it
    data/w.4.ranges.npy        what save 4 found changed: bytes start..stop of the array in memory, int64, shape (n, 2)
    data/w.4.bytes.npy         these bytes, one range after another, uint8

Each is an ordinary file of numpy. ``manifest.json`` is::

    {"format": "hugefork-checkpoint", "version": 1, "save": 4, "meta": {…},
     "arrays": {"w": [{"file": "w.3.npy", "nbytes": 80000128, "crc32": 123},
                      {"ranges": {"file": "w.4.ranges.npy", …}, "bytes": {"file": "w.4.bytes.npy", …}}]},
     "crc32": 456}

``nbytes`` and ``crc32`` (`zlib.crc32`) are those of a whole file; the last ``crc32`` is that of the rest of the manifest, as
``json.dumps(rest, sort_keys=True)``. Without hugefork, with numpy alone, an array is::

    first, *changes = manifest["arrays"]["w"]
    w = numpy.load(f"{path}/data/{first['file']}")
    flat = w.ravel("K").view("u1")                     # its bytes as they lie in memory
    for change in changes:
        new, at = numpy.load(f"{path}/data/{change['bytes']['file']}"), 0
        for start, stop in numpy.load(f"{path}/data/{change['ranges']['file']}"):
            flat[start:stop] = new[at : at + stop - start]
            at += stop - start

A save that fails or is killed leaves the checkpoint before as it was. One process at a time writes to a directory; the
others wait.

To keep several checkpoints, give each its own directory, and the save before as `since`::

    save = hf.checkpoint.save("run/1", {"w": w})
    save = hf.checkpoint.save("run/2", {"w": w}, since=save)    # what has changed, and hard links to what has not

``run/2`` does not need ``run/1`` any more: its files have two names. (Programs that copy directories may copy such a file
twice: ``rsync -H`` and ``tar`` do not.) Its file ``w.1.first.npy`` is the array that ``run/1`` has, and ``w.1.bytes-2.npy``
the second change of that. A file is never written to once it is made.
"""

from ._reader import load, meta, verify
from ._writer import Save, save

__all__ = ["Save", "load", "meta", "save", "verify"]
