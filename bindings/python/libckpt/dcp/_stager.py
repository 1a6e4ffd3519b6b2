# SPDX-License-Identifier: Apache-2.0
"""The stager for dcp.async_save(), which reuses its memory."""

from __future__ import annotations

import copy
import ctypes
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from .._errors import UnsupportedStateError

#: Alignment of tensors, in bytes.
_ALIGN = 64
#: Most slabs that are kept for the next save.
_KEPT = 2


class Stager:
    """
    The stager for dcp.async_save().

        stager = Stager()
        future = dcp.async_save(state, checkpoint_id="step-100", async_stager=stager,
                                storage_writer=StorageWriter("/shared/run42"))

    Copies all tensors to host memory before async_save() returns, into one slab that is kept for
    the next save. It is page-locked if there are tensors on a GPU. While a save uses a slab, the
    next save gets another one. The engine copies from the slab to its own staging memory in the
    background. A Stager cannot be pickled.
    """

    def __init__(self) -> None:
        # Part of torch's protocol. The copies are complete when stage() returns.
        self._synchronize_after_execute = False
        self._lock = threading.RLock()  # a finalizer may run at any time in any thread
        self._free: list[torch.Tensor] = []
        self._closed = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: the copies are complete when stage() returns."""
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the state."""
        copies = _Copies()
        with torch.no_grad():
            copies.measure(state_dict)
            memory = self._take(copies.nbytes, pinned=bool(copies.devices))
            copies.fill(memory)
            staged: dict[str, Any] = copies.build(state_dict)
        return staged

    def synchronize_staging(self) -> None:
        """Does nothing: the copies are complete when stage() returns."""

    def close(self) -> None:
        """Frees the memory, as soon as no save uses it."""
        with self._lock:
            self._closed = True
            self._free.clear()

    def _take(self, nbytes: int, *, pinned: bool) -> torch.Tensor:
        """Memory of this size. It is returned to the stager when no tensor uses it any more."""
        pinned = pinned and torch.cuda.is_available()
        with self._lock:
            fitting = [
                slab
                for slab in self._free
                if slab.nbytes >= nbytes and (slab.is_pinned() if pinned else True)
            ]
            slab = min(fitting, key=lambda found: found.nbytes) if fitting else None
            # By identity, because == compares elements.
            self._free = [found for found in self._free if found is not slab]
            if slab is None:
                self._free.clear()  # too small for this state
        if slab is None:
            slab = torch.empty(max(nbytes, _ALIGN), dtype=torch.uint8, pin_memory=pinned)
        # Every tensor in this memory keeps `lease` alive.
        lease = (ctypes.c_char * slab.nbytes).from_address(slab.data_ptr())
        weakref.finalize(lease, self._give_back, slab).atexit = False
        return torch.frombuffer(lease, dtype=torch.uint8)

    def _give_back(self, slab: torch.Tensor) -> None:
        with self._lock:
            if not self._closed and len(self._free) < _KEPT:
                self._free.append(slab)

    def __getstate__(self) -> Any:
        raise TypeError("a libckpt.dcp.Stager has memory and cannot be pickled")


_Key = tuple[Any, ...]


def _key_of(value: torch.Tensor) -> _Key:
    """Equal for tensors with the same memory, dtype, shape and strides."""
    if value.numel() == 0:
        return (id(value),)
    seen = value.dtype, tuple(value.shape), value.stride(), value.is_conj(), value.is_neg()
    return value.device, value.data_ptr(), *seen


class _Copies:
    """The tensors of a state, and where their copies are."""

    def __init__(self) -> None:
        self.nbytes = 0
        #: devices of tensors that are not in host memory
        self.devices: set[torch.device] = set()
        self._found: dict[_Key, tuple[torch.Tensor, int]] = {}
        self._made: dict[_Key, torch.Tensor] = {}

    def measure(self, value: Any) -> None:
        """Adds the tensors in a value."""
        if isinstance(value, torch.Tensor):
            for tensor in _plain_of(value):
                self._add(tensor)
        elif isinstance(value, Mapping):
            for item in value.values():
                self.measure(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.measure(item)

    def _add(self, tensor: torch.Tensor) -> None:
        key = _key_of(tensor)
        if key not in self._found:
            self._found[key] = tensor, self.nbytes
            self.nbytes += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
            if tensor.device.type != "cpu":
                self.devices.add(tensor.device)

    def fill(self, memory: torch.Tensor) -> None:
        """Copies all tensors to this memory."""
        bases: dict[torch.dtype, torch.Tensor] = {}
        tensors, copies = [], []
        for key, (tensor, start) in self._found.items():
            if tensor.numel() == 0:
                self._made[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
                continue
            base = bases.get(tensor.dtype)
            if base is None:
                base = bases[tensor.dtype] = memory.view(tensor.dtype)
            strides = tensor.stride() if tensor.is_contiguous() else _strides(tensor.shape)
            made = base.as_strided(tensor.shape, strides, start // tensor.element_size())
            tensors.append(tensor)
            copies.append(made)
            self._made[key] = made
        if tensors:  # one call for all: there may be ten thousand
            torch._foreach_copy_(copies, tensors, non_blocking=True)
        for device in self.devices:
            getattr(torch, device.type).synchronize(device)

    def build(self, value: Any) -> Any:
        """The value with copies instead of the tensors."""
        if isinstance(value, torch.Tensor):
            return self._build_tensor(value)
        if type(value) is dict:
            return {key: self.build(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.build, value))
        memo: dict[int, Any] = {}
        self._note(value, memo)
        return copy.deepcopy(value, memo)

    def _build_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if not _is_wrapper(value):
            return self._made[_key_of(value)]
        names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
        inner = {name: getattr(value, name) for name in names}
        for name, part in inner.items():
            if isinstance(part, torch.Tensor):
                inner[name] = self._build_tensor(part)
        made: torch.Tensor = type(value).__tensor_unflatten__(  # type: ignore[attr-defined]
            inner, context, value.size(), value.stride()
        )
        return made.detach() if made.requires_grad else made

    def _note(self, value: Any, memo: dict[int, Any]) -> None:
        """Adds the copies of tensors to the memo of a deep copy."""
        if isinstance(value, torch.Tensor):
            memo[id(value)] = self._build_tensor(value)
        elif isinstance(value, Mapping):
            for item in value.values():
                self._note(item, memo)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._note(item, memo)


def _strides(shape: torch.Size) -> list[int]:
    """The strides of a contiguous tensor."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return strides


def _is_wrapper(value: torch.Tensor) -> bool:
    return hasattr(type(value), "__tensor_flatten__")


def _plain_of(value: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors inside a tensor."""
    if _is_wrapper(value):
        names, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = [getattr(value, name) for name in names]
        return [
            tensor
            for part in parts
            if isinstance(part, torch.Tensor)  # a DTensor also has its mesh there
            for tensor in _plain_of(part)
        ]
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        raise UnsupportedStateError(
            f"the state has a {type(value).__qualname__} of layout {value.layout}, which cannot "
            "be staged: make it a plain tensor, or give dcp.async_save() another stager"
        )
    return [value]
