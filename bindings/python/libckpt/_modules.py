# SPDX-License-Identifier: Apache-2.0
"""
The tensors of an nn.Module by their qualified names.

An ordinary module is walked here. The next save checks that nothing has changed, without walking
again. A custom module (an overridden state_dict(), hooks, extra state) is asked for its
state_dict() at every save.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._glance import same_items
from ._json_nodes import Json, dump
from .adapters._layout import memory_of
from .adapters._wrappers import class_name, read_hooks, reshard, wrapped_child

if TYPE_CHECKING:
    import torch
    from torch import nn

_read_tables = operator.attrgetter("_parameters", "_buffers", "_modules")
_read_transient = operator.attrgetter("_non_persistent_buffers_set")


def is_extra_state(name: str) -> bool:
    """True for the key of a module's extra state."""
    return name.rpartition(".")[2] == "_extra_state"


def walk(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Names, and parameters and buffers themselves, in the order of state_dict()."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, buffer
    wrapped = wrapped_child(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from walk(child, prefix if name == wrapped else f"{prefix}{name}.")


def parameter_names(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Names of all parameters, without those of wrappers."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    wrapped = wrapped_child(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from parameter_names(child, prefix if name == wrapped else f"{prefix}{name}.")


def buffer_slots(
    module: nn.Module, prefix: str = ""
) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Names of all buffers that are saved, also of those that are None, and their modules."""
    # The tables of a script module only have items().
    for name, _ in module._buffers.items():
        if name not in module._non_persistent_buffers_set:
            yield prefix + name, (module, name)
    wrapped = wrapped_child(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from buffer_slots(child, prefix if name == wrapped else f"{prefix}{name}.")


def own_memory(module: nn.Module) -> set[int]:
    """Addresses of parameters and buffers that have memory."""
    tensors = chain(module.parameters(), module.buffers())
    return {memory_of(tensor).data_ptr() for tensor in tensors} - {0}


def module_text(module: nn.Module, prefix: str, names: list[str], extra: dict[str, Json]) -> str:
    """The JSON of a module: its tensors, and its values that are not tensors."""
    return dump(
        {
            "$module": {
                "class": class_name(module),
                "prefix": prefix,
                "tensors": names,
                "extra": extra,
            }
        }
    )


class Shape:
    """The structure of an ordinary module: all tables of all submodules."""

    def __init__(self, module: nn.Module) -> None:
        self._root = module
        self._modules = list(module.modules())
        self._plain = [inner for inner in self._modules if not any(read_hooks(inner))]
        self._hooked = [inner for inner in self._modules if any(read_hooks(inner))]
        self._hooks = self._count_hooks()
        tables = self._tables()
        self._keys = list(chain.from_iterable(tables))
        self._values = list(chain.from_iterable(map(dict.values, tables)))
        self._transient = self._read_transient()

    def _tables(self) -> list[dict[str, Any]]:
        return list(chain.from_iterable(map(_read_tables, self._modules)))

    def _read_transient(self) -> list[str]:
        return list(chain.from_iterable(map(_read_transient, self._modules)))

    def same(self) -> bool:
        """True if the module still has the same tensors and children under the same names."""
        return (
            same_items(self._tables(), self._keys, self._values)
            and self._read_transient() == self._transient
            and not any(chain.from_iterable(map(read_hooks, self._plain)))
            and self._count_hooks() == self._hooks
        )

    def same_again(self) -> bool:
        """The same, after parameters that were unsharded are resharded."""
        return reshard(self._root) and self.same()

    def _count_hooks(self) -> list[int]:
        return list(map(len, chain.from_iterable(map(read_hooks, self._hooked))))
