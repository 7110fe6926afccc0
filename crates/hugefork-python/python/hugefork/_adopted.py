"""Torch models whose memory lies in a pool: `hugefork.dcp.adopt` moves it there."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterable
from typing import Any

from ._arrays import Array, bytes_of
from ._errors import HugeforkError
from ._pool import Pool, in_words

__all__ = ["Adopted", "adopt"]

# Alignment of a tensor's start, as in torch.
_ALIGNMENT = 64
# Optimizers like Adam have two arrays for each parameter.
_USUAL_STATE = 2


class Adopted:
    """A model and an optimizer whose tensors lie in a pool. Made by `adopt`."""

    def __init__(self, pool: Pool, model: Any, optimizer: Any | None) -> None:
        self.pool = pool
        """The pool of the tensors."""
        self.left_out = 0
        """Bytes of tensors that were not moved: tensors of other devices, sparse ones, parts of a `DTensor`, and
        those that did not fit into the pool."""
        self._optimizer = optimizer
        self._model = self._move([*model.parameters(), *model.buffers()])
        self._make_ready(self._model)
        # Gradients have a region of their own: otherwise, after a snapshot of the state, the next step would copy
        # them.
        self._move([each.grad for each in model.parameters() if each.grad is not None])
        self._state: Array | None = None
        self._held = -1
        self._hooks = []
        if optimizer is not None:
            self._move_state()
            self._hooks = [
                optimizer.register_step_post_hook(self._stepped),
                optimizer.register_load_state_dict_post_hook(self._loaded),
            ]

    @property
    def arrays(self) -> list[Array]:
        """The arrays for a checkpoint: the bytes of the model's parameters and buffers, and of the optimizer's state
        once it exists. Gradients are not included."""
        return [array for array in (self._model, self._state) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of these arrays."""
        return sum(array.nbytes for array in self.arrays)

    def close(self) -> None:
        """Stops moving new state of the optimizer. The tensors are not moved back."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        # The first step makes the state; the first gradient of a parameter makes that parameter's state.
        if len(optimizer.state) != self._held:
            self._move_state()

    def _loaded(self, _: Any) -> None:
        self._move_state()

    def _move_state(self) -> None:
        assert self._optimizer is not None
        states = self._optimizer.state.values()
        found = [value for state in states if isinstance(state, dict) for value in state.values()]
        self._held = len(self._optimizer.state)
        moved = self._move(found)
        if moved is not None:
            self._state = moved
            self._make_ready(moved)

    def _move(self, values: Iterable[Any]) -> Array | None:
        """Moves tensors into a new region one after the other, so that each frees its old memory before the next."""
        torch = importlib.import_module("torch")
        storages: dict[int, list[Any]] = {}
        for tensor in {id(value): value for value in values if isinstance(value, torch.Tensor)}.values():
            if _is_plain(torch, tensor):
                storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
            else:
                self.left_out += tensor.nbytes
        if not storages:
            return None
        starts, length = {}, 0
        for address, tensors in storages.items():
            starts[address] = length
            length += -(-tensors[0].untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
        size = -(-length // self.pool.block_size) * self.pool.block_size
        try:
            # Copies by block, because a step writes to all of it. Without populating first, a write to a full pool
            # would be a SIGBUS.
            whole = bytes_of(self.pool.region(size, reserve=True, copy_grain="block"))
        except HugeforkError as error:
            self.left_out += length
            warnings.warn(f"{in_words(length)} of tensors stay where they were: {error}", stacklevel=4)
            return None
        into = torch.from_numpy(whole)
        with torch.no_grad():
            for address, tensors in storages.items():
                storage = tensors[0].untyped_storage()
                part = into[starts[address] : starts[address] + storage.nbytes()]
                part.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
                for tensor in tensors:
                    size = tensor.element_size()
                    begin = starts[address] // size + tensor.storage_offset()
                    flat = into[: len(into) // size * size].view(tensor.dtype)
                    tensor.data = flat.as_strided(tensor.shape, tensor.stride(), begin)
        return whole

    def _make_ready(self, array: Array | None) -> None:
        """Gets memory for copies of an array, as far as the pool has room for them."""
        if array is not None:
            with contextlib.suppress(HugeforkError), self.pool.region(array.nbytes) as copies:
                copies.populate(len(os.sched_getaffinity(0)), None)


def _is_plain(torch: Any, tensor: Any) -> bool:
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return is_known and tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.nbytes > 0


def adopt(model: Any, optimizer: Any | None = None, *, pool: Pool | None = None) -> Adopted:
    """Moves the parameters, buffers and gradients of a model, and the state of its optimizer, into a pool, side by
    side. They remain the same tensors, but other objects that shared their memory no longer do. So call this before
    `torch.compile`, and before making views of them.

    The state is moved when it exists: now, after the first step, or when `optimizer.load_state_dict` (or `dcp`'s
    `set_state_dict`) loads it. A gradient is in the pool until ``zero_grad(set_to_none=True)`` releases it.

    Parameters
    ----------
    model, optimizer
        A `torch.nn.Module`, and a `torch.optim.Optimizer` of its parameters.
    pool
        The target. By default a new pool with room for everything and a copy of everything. It gets the memory for
        both at once, so that no step waits for memory; a stager that copies and is reused takes as much.

    Raises
    ------
    Those of `Pool`.

    Examples
    --------
    ::

        adopted = hf.dcp.adopt(model, optimizer)
        stager = hf.dcp.SnapshotStager(adopted, copy_ahead=True)
    """
    torch = importlib.import_module("torch")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{type(model).__name__} is not a model: give a torch.nn.Module, and its optimizer")
    return Adopted(pool if pool is not None else _pool_for(model, optimizer), model, optimizer)


def _pool_for(model: Any, optimizer: Any | None) -> Pool:
    parameters = sum(each.nbytes for each in model.parameters())
    buffers = sum(each.nbytes for each in model.buffers())
    state = 0
    if optimizer is not None:
        values = (value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values())
        state = max(_USUAL_STATE * parameters, sum(getattr(value, "nbytes", 0) for value in values))
    block = 2 << 20
    # Room for gradients, for a copy of everything, and for alignment.
    nbytes = 2 * (2 * parameters + buffers + state)
    return Pool(-(-nbytes * 9 // 8 // block) * block + 16 * block, name="model")
