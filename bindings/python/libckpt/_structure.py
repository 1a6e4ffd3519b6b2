# SPDX-License-Identifier: Apache-2.0
"""
How a state is built: names, kinds, types and shapes, and no values. Two marks of one state, taken
in one process, are equal if it was built in the same way both times.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._into import is_tensor
from ._modules import walk
from ._specials import is_module, is_optimizer, is_stateful
from ._typed import NESTING_MAX

if TYPE_CHECKING:
    import torch

#: A value of these may become any other one of them. None of them is a tensor in a step.
_PLAIN = {bool, complex, float, int, str, type(None)}


class TooManyError(Exception):
    """There are more tensors than are looked at."""


def mark(state: dict[str, Any], most: int) -> int:
    """
    How the state is built. Raises TooManyError if it has more than `most` tensors. Calls nothing of
    the user's objects.
    """
    found = _Marks(most)
    return hash(tuple((key, found.of(value)) for key, value in state.items()))


class _Marks:
    def __init__(self, most: int) -> None:
        self._left = most

    def of(self, value: Any, depth: int = 0) -> int:
        """0 for what is plain, also in containers."""
        kind = type(value)
        if kind in _PLAIN or depth > NESTING_MAX:
            return 0
        if is_tensor(value):
            return self._tensor(value)
        if isinstance(value, dict):
            return self._items(kind, value.items(), depth)
        if isinstance(value, (list, tuple)):
            return self._list(value, depth)
        if is_module(value):
            return self._module(value)
        if is_optimizer(value):
            return self._optimizer(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            self._take()
            return hash((kind, str(value.dtype), value.shape))
        return hash((kind, is_stateful(value)))

    def _take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyError

    def _tensor(self, value: Any) -> int:
        self._take()
        local = getattr(value, "_local_tensor", None)
        here = None if local is None else (tuple(local.shape), str(value.placements))
        return hash((type(value), value.dtype, tuple(value.shape), value.device, here))

    def _items(self, kind: type, items: Any, depth: int) -> int:
        # Plain values may come and go.
        marks = [(key, self.of(value, depth + 1)) for key, value in items]
        found = frozenset(pair for pair in marks if pair[1])
        return hash((kind, found)) if found else 0

    def _list(self, value: Any, depth: int) -> int:
        if set(map(type, value)) <= _PLAIN:
            return 0
        marks = tuple(self.of(item, depth + 1) for item in value)
        return hash((type(value), marks)) if any(marks) else 0

    def _module(self, module: torch.nn.Module) -> int:
        # Which of the names are one tensor is part of it.
        seen: dict[int, int] = {}
        marks = [
            (name, self._tensor(tensor), seen.setdefault(id(tensor), len(seen)))
            for name, tensor in walk(module)
        ]
        return hash((type(module), tuple(marks)))

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        groups = []
        # That of a wrapper may be anything.
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
