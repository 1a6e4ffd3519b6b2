# SPDX-License-Identifier: Apache-2.0
"""
The tensors of an nn.Module by their fully qualified names.

A module that is saved the way torch.nn.Module does it is walked here, and what was found is checked
at the next save without walking again. A module that has its own say (an overridden state_dict(),
hooks, extra state) is asked for its state_dict() every time.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._glance import same_items
from ._layout import memory_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_OVERRIDES = (
    "state_dict",
    "_save_to_state_dict",
    "load_state_dict",
    "_load_from_state_dict",
    "get_extra_state",
    "set_extra_state",
)
_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_read_tables = operator.attrgetter("_parameters", "_buffers", "_modules")
_read_hooks = operator.attrgetter(*_HOOKS)
#: fully_shard() is not a say of its own: what its hooks do is done here, see reshard().
_FSDP = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")
_read_transient = operator.attrgetter("_non_persistent_buffers_set")


def wrapped_child(module: nn.Module) -> str | None:
    """The child that a wrapper wraps and whose name is no part of a tensor's name."""
    kind = type(module)
    if kind.__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
        return "_orig_mod"
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is not None and isinstance(
        module, (parallel.DistributedDataParallel, parallel.DataParallel)
    ):
        return "module"
    return None


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside of wrappers."""
    while (name := wrapped_child(module)) is not None:
        inner = module._modules[name]
        if inner is None:
            break
        module = inner
    return module


def has_own_say(module: nn.Module) -> bool:
    """True if only the module itself knows its state_dict()."""
    return any(map(_overrides, module.modules()))


def _overrides(module: nn.Module) -> bool:
    import torch

    if wrapped_child(module) is not None:
        return False
    if type(module._parameters) is not dict:  # a script module keeps them elsewhere
        return True
    for name in _OVERRIDES:
        method = getattr(type(module), name)
        if method is not getattr(torch.nn.Module, name) and not getattr(
            method, "__module__", ""
        ).startswith("torch.nn.modules."):
            return True
    return not all(map(_is_of_fsdp, _hooks_of(module)))


def _hooks_of(module: nn.Module) -> Iterator[Callable[..., Any]]:
    for hooks in _read_hooks(module):
        yield from hooks.values()


def _is_of_fsdp(hook: Any) -> bool:
    return (getattr(getattr(hook, "hook", hook), "__module__", None) or "").startswith(_FSDP)


def reshard(module: nn.Module) -> bool:
    """
    Puts the sharded parameters of fully_shard() back, where the whole ones of the last forward pass
    stand in their place. True if there is such a module.
    """
    found = [inner for inner in module.modules() if _fsdp_class(inner) > 0]
    for inner in found:
        inner.reshard()  # type: ignore[operator]
    return bool(found)


def _fsdp_class(module: nn.Module) -> int:
    """Where FSDPModule stands among the classes of a module; 0: nowhere."""
    names = [kind.__name__ for kind in type(module).__mro__]
    return names.index("FSDPModule") if "FSDPModule" in names else 0


def class_name(module: nn.Module) -> str:
    """The name of a module's class, and not of the one that fully_shard() makes of it."""
    inner = unwrap(module)
    number = _fsdp_class(inner)
    return type(inner).__mro__[number + 1 if number else 0].__qualname__


def buffers_of_first(module: nn.Module, world: int) -> set[int]:
    """
    Ids of the buffers of which rank 0 has the ones of all: DDP takes them from there before each
    forward pass. Statistics of batches differ in the same way, where DDP is not seen here.
    """
    import torch

    statistics = torch.nn.modules.batchnorm._NormBase
    parallel = sys.modules.get("torch.nn.parallel")
    found: set[int] = set()
    for inner in module.modules():
        if isinstance(inner, statistics):
            found.update(map(id, inner._buffers.values()))
        elif (
            parallel is not None
            and isinstance(inner, parallel.DistributedDataParallel)
            and inner.broadcast_buffers
            and inner.process_group.size() == world
        ):
            found.update(map(id, inner.buffers()))
    return found


def walk(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors in the order of state_dict(), parameters and buffers themselves."""
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
    """Names of all parameters, wrappers left out."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    wrapped = wrapped_child(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from parameter_names(child, prefix if name == wrapped else f"{prefix}{name}.")


def own_memory(module: nn.Module) -> set[int]:
    """Where the parameters and buffers are."""
    return {memory_of(tensor).data_ptr() for tensor in chain(module.parameters(), module.buffers())}


def strip_wrappers(name: str) -> str:
    """A key of a state_dict() without the name that torch.compile puts into it."""
    return name.replace("_orig_mod.", "")


class Shape:
    """What a module without a say of its own looked like: every table of every submodule."""

    def __init__(self, module: nn.Module) -> None:
        self._root = module
        self._modules = list(module.modules())
        plain = [inner for inner in self._modules if wrapped_child(inner) is None]
        self._plain = [inner for inner in plain if not any(_read_hooks(inner))]
        self._hooked = [inner for inner in plain if any(_read_hooks(inner))]
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
        """True if the module has the same tensors and children under the same names as then."""
        return (
            same_items(self._tables(), self._keys, self._values)
            and self._read_transient() == self._transient
            and not any(chain.from_iterable(map(_read_hooks, self._plain)))
            and self._count_hooks() == self._hooks
        )

    def same_again(self) -> bool:
        """The same, once parameters that are whole for a while have been sharded again."""
        return reshard(self._root) and self.same()

    def _count_hooks(self) -> list[int]:
        return list(map(len, chain.from_iterable(map(_read_hooks, self._hooked))))
