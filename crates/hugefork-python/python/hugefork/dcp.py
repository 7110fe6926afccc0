"""Snapshots for `torch.distributed.checkpoint` (DCP), in place of copies of the state.

::

    stager = hf.dcp.SnapshotStager(w, v)                     # arrays of a pool
    state = {"w": torch.from_numpy(w), "v": torch.from_numpy(v), "step": 17}
    saving = dcp.async_save(state, checkpoint_id=path, async_stager=stager)
    w += 1                                                   # goes on; the files get what was there before
    saving.result()

`async_save` copies all of the state before it returns. With this stager it takes a snapshot of what lies in arrays of a
pool, and copies the rest. That is for state in the memory of CPUs: state on a GPU has to be copied to the CPU anyway,
and gains nothing.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any

from . import _native
from ._arrays import Array, bytes_of, region_place
from ._snapshot import Snapshot, snapshot

__all__ = ["SnapshotStager"]


class SnapshotStager:
    """An ``AsyncStager`` of `torch.distributed.checkpoint`: tensors that lie in the arrays it knows are staged as they
    are in one snapshot, other tensors as copies on the CPU.

    Parameters
    ----------
    arrays
        Arrays of pools, or views of them: of each, all memory of the array is known.

    A tensor of a snapshot must not be written to: a write ends the process, as any to read-only memory.
    """

    should_synchronize_after_execute = False
    _synchronize_after_execute = False  # The protocol names it, too.

    def __init__(self, *arrays: Array) -> None:
        self._arrays = {id(region): (region, array) for array in arrays for region, _ in [region_place(array)]}
        self.copied = 0
        """Bytes of tensors of the last state that were copied, because they lie elsewhere."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state as it is now, for DCP to write while the program goes on.

        Raises
        ------
        Those of `hugefork.snapshot`.
        """
        self.copied = 0
        taken = snapshot(*(array for _, array in self._arrays.values())) if self._arrays else None
        staged: dict[str, Any] = self._staged(state_dict, taken)
        return staged

    def synchronize_staging(self) -> None:
        """Does nothing: all is staged when `stage` returns."""

    def close(self) -> None:
        """Lets go of the arrays. What is staged stays good."""
        self._arrays = {}

    def _staged(self, value: Any, taken: Snapshot | None) -> Any:
        torch = importlib.import_module("torch")
        if isinstance(value, dict):
            return {key: self._staged(each, taken) for key, each in value.items()}
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._staged(each, taken) for each in value)
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        if hasattr(value, "to_local") and hasattr(value, "placements"):
            # One of several ranks, each of which has a part of it.
            local = self._staged(value.detach().to_local(), taken)
            how = {"run_check": False, "shape": value.shape, "stride": value.stride()}
            return type(value).from_local(local, value.device_mesh, value.placements, **how)
        found = self._in_snapshot(torch, value, taken) if type(value) in (torch.Tensor, torch.nn.Parameter) else None
        if found is None:
            self.copied += value.nbytes
            return value.detach().to("cpu", copy=True)
        return found

    def _in_snapshot(self, torch: Any, tensor: Any, taken: Snapshot | None) -> Any:
        """The tensor as it is in the snapshot, if it lies in an array that is."""
        if taken is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
            return None
        steps = ((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
        low = tensor.data_ptr()
        high = low + (sum(steps) + 1) * tensor.element_size()
        for region, _ in self._arrays.values():
            if region.address <= low and high <= region.address + region.nbytes:
                part: _native.RegionSnapshot = taken._part(region)
                contents = bytes_of(part)[low - region.address : high - region.address]
                with warnings.catch_warnings():
                    # That it is read-only.
                    warnings.simplefilter("ignore")
                    flat = torch.from_numpy(contents)
                return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return None
