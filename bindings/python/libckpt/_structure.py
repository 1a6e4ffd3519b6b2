# SPDX-License-Identifier: Apache-2.0
"""
The structure of a state: names, kinds, dtypes and shapes, but no values. Two marks of a state,
taken in one process, are equal if its structure has not changed.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from ._into import is_array, is_tensor
from ._json_nodes import NESTING_MAX
from ._modules import walk
from ._state_kinds import is_module, is_optimizer

if TYPE_CHECKING:
    import torch

#: Values of these types may change to any other of these types. None is a tensor in a step.
_PLAIN = {bool, complex, float, int, str, type(None)}
#: Containers. Subclasses are not opened, because their methods may do anything.
_DICTS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_LISTS = {list, tuple}
#: This many plain values of a list count as one, because they are not checked one by one.
_AT_ONCE = 32


class TooManyError(Exception):
    """The state is too large for a mark. The text says of what there is too much."""


def mark(state: dict[str, Any], tensors: int, values: int) -> int:
    """
    The mark of a state. Raises TooManyError if it has more tensors, or more other values. Calls no
    method of the user's objects, and reads no tensor.
    """
    found = _Marks(tensors, values)
    return hash(tuple((key, found.of(value)) for key, value in state.items()))


def is_torchs(value: Any) -> bool:
    """True for a tensor of torch's own classes, whose methods call no user code."""
    return is_tensor(value) and type(value).__module__.partition(".")[0] == "torch"


def is_open(value: Any) -> bool:
    """True for values that can be examined without calling user code."""
    kind = type(value)
    return (
        kind in _DICTS
        or kind in _LISTS
        or kind in _PLAIN
        or kind is bytes
        or is_torchs(value)
        or is_module(value)
        or is_optimizer(value)
        or is_array(value)
    )


class _Marks:
    def __init__(self, tensors: int, values: int) -> None:
        self._most = {"tensors": tensors, "values": values}
        self._left = dict(self._most)
        #: numbers of the addresses of tensors
        self._homes: dict[int, int] = {}

    def of(self, value: Any, depth: int = 0) -> int:
        """The mark of a value; 0 for plain values, also in containers."""
        self._count("values")
        kind = type(value)
        if kind in _PLAIN or depth > NESTING_MAX:
            return 0
        if is_tensor(value):
            return self._tensor(value)
        if kind in _DICTS:
            return self._items(kind, value.items(), depth)
        if kind in _LISTS:
            return self._list(value, depth)
        if is_module(value):
            return self._module(value)
        if is_optimizer(value):
            return self._optimizer(value)
        if is_array(value):
            self._count("tensors")
            return hash((kind, str(value.dtype), value.shape))
        return hash(kind)

    def _count(self, what: str, many: int = 1) -> None:
        self._left[what] -= many
        if self._left[what] < 0:
            raise TooManyError(f"it has more than {self._most[what]} {what}")

    def _tensor(self, value: Any) -> int:
        self._count("tensors")
        if not is_torchs(value):
            return hash(type(value))
        try:
            local = getattr(value, "_local_tensor", None)
            placed = None if local is None else (self._lies(local), str(value.placements))
            lies = self._lies(value) if local is None else tuple(value.shape)
            return hash((type(value), value.dtype, value.device, lies, placed))
        except RuntimeError:  # it has no memory or no shape yet
            return hash(type(value))

    def _lies(self, value: Any) -> Any:
        """Its shape and strides, and which other tensors have its address."""
        if not is_torchs(value):
            return type(value)
        home = self._homes.setdefault(value.data_ptr(), len(self._homes))
        return tuple(value.shape), value.stride(), home

    def _items(self, kind: type, items: Any, depth: int) -> int:
        # Plain values may be added and removed.
        marks = [(key, self.of(value, depth + 1)) for key, value in items]
        found = frozenset(pair for pair in marks if pair[1])
        return hash((kind, found)) if found else 0

    def _list(self, value: Any, depth: int) -> int:
        self._count("values", len(value) // _AT_ONCE)
        if set(map(type, value)) <= _PLAIN:
            return 0
        marks = tuple(self.of(item, depth + 1) for item in value)
        return hash((type(value), marks)) if any(marks) else 0

    def _module(self, module: torch.nn.Module) -> int:
        # Tied names are part of the structure.
        seen: dict[int, int] = {}
        marks = [
            (name, self._tensor(tensor), seen.setdefault(id(tensor), len(seen)))
            for name, tensor in walk(module)
        ]
        return hash((type(module), tuple(marks)))

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        groups = []
        # The state of a wrapper may be anything.
        state = optimizer.state if isinstance(optimizer.state, dict) else {}
        for group in optimizer.param_groups:
            params = group["params"]
            rest = ((key, value) for key, value in group.items() if key != "params")
            groups.append(
                (
                    tuple(map(id, params)),
                    self._items(dict, rest, 1),
                    tuple(self.of(state.get(param), 1) for param in params),
                )
            )
        return hash((type(optimizer), len(state), tuple(groups)))
