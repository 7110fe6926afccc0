"""Snapshots for `torch.distributed.checkpoint` (DCP), in place of copies of the state.

::

    adopted = hf.dcp.adopt(model, optimizer)                 # into a pool
    stager = hf.dcp.SnapshotStager(adopted, copy_ahead=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saving = dcp.async_save(state, checkpoint_id=path, async_stager=stager)
    train(model, optimizer)                                  # continues; the files get the earlier contents
    saving.result()

`async_save` copies the whole state before it returns. With this stager it takes a snapshot of the tensors in a pool,
and copies the others. This is for state in CPU memory: state on a GPU must be copied to the CPU anyway, and gains
nothing. It needs torch 2.9, since earlier versions lack `async_stager`.
"""

from __future__ import annotations

import copy
import importlib
import threading
import time
import warnings
from typing import Any

from . import _native
from ._adopted import Adopted, adopt
from ._arrays import Array, bytes_of, region_place
from ._errors import HugeforkError
from ._pool import Size, in_words, parse_size
from ._snapshot import Snapshot, snapshot

__all__ = ["Adopted", "SnapshotStager", "adopt"]

# Below this size, no warning is worth it."""
_WORTH_A_WARNING = 1 << 20


class SnapshotStager:
    """An ``AsyncStager`` of `torch.distributed.checkpoint`. Tensors that lie in known arrays are staged from one
    snapshot, other tensors as copies on the CPU. If most bytes are copied, it warns once.

    Parameters
    ----------
    arrays
        Results of `adopt`, and arrays of pools, or views of them: all memory of each array is known.
    copy_ahead
        A thread copies memory shared between the snapshot and the arrays before steps write to it. For arrays that
        are soon overwritten completely: those that `adopt` has moved, and those with ``copy_grain="block"``.
    at_most
        Maximum number of bytes that the thread copies per second. Copying uses memory bandwidth, which steps need
        too.

    Do not write to a tensor of a snapshot: the memory is read-only, and a write ends the process.
    """

    should_synchronize_after_execute = False
    _synchronize_after_execute = False  # The protocol names it, too.

    def __init__(self, *arrays: Array | Adopted, copy_ahead: bool = False, at_most: Size | None = None) -> None:
        for array in arrays:
            if not isinstance(array, Adopted):
                region_place(array)
        self._at_most = None if at_most is None else parse_size(at_most)
        if self._at_most == 0:
            raise ValueError("at_most=0: give the bytes to copy in a second, or None")
        self._sources = arrays
        self._copies_ahead = copy_ahead
        self._copying: _CopyAhead | None = None
        self._has_warned = False
        self.copied = 0
        """Bytes of the last state that were copied, because their tensors do not lie in known arrays."""
        self.staged = 0
        """Bytes of the last state that are in the snapshot."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Captures the state as it is now, for DCP to write while the program continues.

        Raises
        ------
        Those of `hugefork.snapshot`.
        """
        self._stop_copying()
        self.copied = self.staged = 0
        arrays = self._arrays()
        taken = snapshot(*arrays) if arrays else None
        regions = list({id(region): region for array in arrays for region, _ in [region_place(array)]}.values())
        staged: dict[str, Any] = self._staged(state_dict, _Taken(taken, regions))
        if self.copied > max(self.staged, _WORTH_A_WARNING) and not self._has_warned:
            self._has_warned = True
            total = in_words(self.copied + self.staged)
            warnings.warn(
                f"{in_words(self.copied)} of {total} were copied, because they lie in no array that this stager knows: "
                "hugefork.dcp.adopt(model, optimizer) moves tensors into a pool",
                stacklevel=2,
            )
        if self._copies_ahead:
            self._copying = _CopyAhead(regions, self._at_most)
        return staged

    def synchronize_staging(self) -> None:
        """Does nothing: `stage` returns when all is staged."""

    def close(self) -> None:
        """Releases the arrays. Staged tensors remain valid."""
        self._stop_copying()
        self._sources = ()

    def _arrays(self) -> list[Array]:
        each = (source.arrays if isinstance(source, Adopted) else [source] for source in self._sources)
        return [array for arrays in each for array in arrays]

    def _stop_copying(self) -> None:
        if self._copying is not None:
            self._copying.stop()
            self._copying = None

    def _staged(self, value: Any, taken: _Taken) -> Any:
        torch = importlib.import_module("torch")
        if isinstance(value, dict):
            return {key: self._staged(each, taken) for key, each in value.items()}
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._staged(each, taken) for each in value)
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        if hasattr(value, "to_local") and hasattr(value, "placements"):
            # A tensor of several ranks, each of which has a part of it.
            local = self._staged(value.detach().to_local(), taken)
            how = {"run_check": False, "shape": value.shape, "stride": value.stride()}
            return type(value).from_local(local, value.device_mesh, value.placements, **how)
        if hasattr(value, "local_shards"):
            return self._staged_shards(value, taken)
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        found = taken.find(torch, value) if is_plain else None
        if found is None:
            self.copied += value.nbytes
            return value.detach().to("cpu", copy=True)
        self.staged += value.nbytes
        return found

    def _staged_shards(self, value: Any, taken: _Taken) -> Any:
        """Stages a `ShardedTensor`, the predecessor of `DTensor`: a rank may have several parts of it."""
        shards = [copy.copy(shard) for shard in value.local_shards()]
        if any(shard.tensor.device.type != "cpu" for shard in shards):
            self.copied += sum(shard.tensor.nbytes for shard in shards)
            return value.to(device="cpu")
        for shard in shards:
            shard.tensor = self._staged(shard.tensor.detach(), taken)
        how = {"process_group": value._process_group, "sharding_spec": value.sharding_spec()}
        return type(value)._init_from_local_shards_and_global_metadata(shards, value.metadata(), **how)


class _Taken:
    """A snapshot, and its regions."""

    def __init__(self, taken: Snapshot | None, regions: list[_native.Region]) -> None:
        self._taken = taken
        self._regions = regions

    def find(self, torch: Any, tensor: Any) -> Any:
        """The tensor in the snapshot, if it lies in an array of the snapshot."""
        taken = self._taken
        if taken is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
            return None
        steps = ((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
        low = tensor.data_ptr()
        high = low + (sum(steps) + 1) * tensor.element_size()
        for region in self._regions:
            if region.address <= low and high <= region.address + region.nbytes:
                part: _native.RegionSnapshot = taken._part(region)
                contents = bytes_of(part)[low - region.address : high - region.address]
                with warnings.catch_warnings():
                    # Suppresses the warning that the array is read-only.
                    warnings.simplefilter("ignore")
                    flat = torch.from_numpy(contents)
                return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return None


class _CopyAhead:
    """A thread that copies memory shared with a snapshot before the writers do, as long as there is room."""

    def __init__(self, regions: list[_native.Region], at_most: int | None) -> None:
        self._regions = regions
        self._at_most = at_most
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hugefork-copy-ahead", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread after its current copy."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        at_once = 16 << 20 if self._at_most is None else min(16 << 20, max(2 << 20, self._at_most // 100))
        for region in self._regions:
            for at in range(0, region.nbytes, at_once):
                begun = time.perf_counter()
                end = min(at + at_once, region.nbytes)
                try:
                    if self._is_over.is_set() or not region.copy_ahead(at, end):
                        return
                except HugeforkError:
                    # The region was closed, for example. The writers copy the rest.
                    return
                if self._at_most is not None:
                    self._is_over.wait(max(0, begun + (end - at) / self._at_most - time.perf_counter()))
