"""Has torch's own tests of distributed checkpoints stage with hugefork: `tests.sh` puts this folder into PYTHONPATH.

What `torch.distributed.checkpoint` saves is moved into a pool, as far as `hugefork.dcp.adopt` moves it, and staged by a
`SnapshotStager`, in `async_save` and before each save that is not asynchronous. While such a save writes its files, the
tensors that it was given are full of other bytes: one that read them in place of the snapshot would save those.
"""

import contextlib
import functools
import os

import torch
from torch.distributed.checkpoint import state_dict_saver

import hugefork as hf


def tensors_of(value):
    """All tensors in a state, the local parts of those that are spread over ranks, each once."""
    found = {}

    def look(value):
        if isinstance(value, dict):
            for each in value.values():
                look(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                look(each)
        elif hasattr(value, "local_shards"):
            look([shard.tensor for shard in value.local_shards()])
        elif hasattr(value, "to_local"):
            look(value.to_local())
        elif isinstance(value, torch.Tensor):
            found[id(value)] = value

    look(value)
    return list(found.values())


class Stager(hf.dcp.SnapshotStager):
    """Takes the place of torch's `DefaultStager`. Adopts what it is to stage."""

    def __init__(self, _options=None):
        super().__init__()

    def stage(self, state_dict):
        holder = torch.nn.Module()
        for place, tensor in enumerate(tensors_of(state_dict)):
            holder.register_buffer(f"tensor_{place}", tensor)
        self._sources = (hf.dcp.adopt(holder),)
        staged = super().stage(state_dict)
        with open(os.environ["HUGEFORK_STAGED"], "a") as file:
            print(self.staged, self.copied, file=file)
        for tensor in tensors_of(staged):
            tensor.is_staged_by_hugefork = True
        return staged


@contextlib.contextmanager
def other_bytes_in(tensors):
    """Overwrites the memory of tensors, and puts back what was there."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors if each.device.type == "cpu"}
    kept = [(storage, storage.clone()) for storage in storages.values() if storage.nbytes()]
    for storage, _ in kept:
        storage.fill_(0x5A)
    try:
        yield
    finally:
        for storage, was in kept:
            storage.copy_(was)


def from_snapshots(save):
    """A save that stages what nobody has staged before."""

    @functools.wraps(save)
    def wrapped(state_dict, *args, **kwargs):
        tensors = tensors_of(state_dict)
        if any(hasattr(each, "is_staged_by_hugefork") for each in tensors):
            return save(state_dict, *args, **kwargs)
        staged = Stager().stage(state_dict)
        with other_bytes_in(tensors):
            return save(staged, *args, **kwargs)

    return wrapped


if "HUGEFORK_STAGED" in os.environ:
    state_dict_saver.DefaultStager = Stager
    state_dict_saver._save_state_dict = from_snapshots(state_dict_saver._save_state_dict)
