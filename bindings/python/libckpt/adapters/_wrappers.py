# SPDX-License-Identifier: Apache-2.0
"""
Wrappers of modules: DDP, fully_shard(), torch.compile, activation checkpointing. Also finds custom
modules: those that override state_dict() or have state dict hooks or extra state.
"""

from __future__ import annotations

import collections
import functools
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from .._errors import UnsupportedStateError

if TYPE_CHECKING:
    from torch import nn


_OVERRIDES = (
    "state_dict",
    "_save_to_state_dict",
    "load_state_dict",
    "_load_from_state_dict",
    "get_extra_state",
    "set_extra_state",
)

_LOADING = ("load_state_dict", "_load_from_state_dict", "set_extra_state")

_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

read_hooks = operator.attrgetter(*_HOOKS)

#: Hooks of fully_shard() do not make a module custom: reshard() does what they do.
_FSDP = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")

#: Nor do hooks of activation checkpointing, which remove the wrapper's name from the keys.
_ACTIVATIONS = "torch.distributed.algorithms._checkpoint"

#: Names of children that are left out of tensor names, and classes of the wrappers that have them.
_WRAPPERS = {"_orig_mod": "OptimizedModule", "_checkpoint_wrapped_module": "ActivationWrapper"}

_WRAPPED = re.compile(rf"(?<![^./])(?:{'|'.join(_WRAPPERS)})\.")


def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(one.__name__ for one in kind.__mro__)


_class_names: Callable[[Any], tuple[str, ...]] = functools.lru_cache(maxsize=1024)(_names_of)


def wrapped_child(module: nn.Module) -> str | None:
    """The name of the child that a wrapper wraps; None: the module is not a wrapper."""
    for name, kind in _WRAPPERS.items():
        # The class may be a subclass that fully_shard() has created.
        if name in module._modules and kind in _class_names(type(module)):
            return name
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is not None and isinstance(
        module, (parallel.DistributedDataParallel, parallel.DataParallel)
    ):
        return "module"
    return None


def unwrap(module: nn.Module, *, hooked: bool = False) -> nn.Module:
    """The module inside all wrappers. `hooked`: stops at a wrapper that is custom itself."""
    while (name := wrapped_child(module)) is not None:
        if hooked and _overrides(module):
            break
        inner = module._modules[name]
        if inner is None:
            break
        module = inner
    return module


def has_own_say(module: nn.Module) -> bool:
    """True for a custom module: only its own state_dict() is right."""
    return any(map(_overrides, module.modules()))


def _overrides(module: nn.Module) -> bool:
    import torch

    of_torch = "torch.nn.modules."
    methods: tuple[str, ...] = _OVERRIDES
    if wrapped_child(module) is not None:
        # This file does what torch's wrappers do. Only overrides of loading make a wrapper custom.
        of_torch, methods = "torch.", _LOADING
    elif type(module._parameters) is not dict:  # a script module keeps them elsewhere
        return True
    for name in methods:
        method = getattr(type(module), name)
        if method is not getattr(torch.nn.Module, name) and not getattr(
            method, "__module__", ""
        ).startswith(of_torch):
            return True
    return not _is_only_torch(module)


def _is_only_torch(module: nn.Module) -> bool:
    """True if it has only hooks of torch itself."""
    return all(map(_is_of_torch, _hooks_of(module)))


def loads_itself(module: nn.Module) -> bool:
    """True if the module has its own _load_from_state_dict() or load hooks."""
    import torch

    method = type(module)._load_from_state_dict
    return (
        method is not torch.nn.Module._load_from_state_dict
        and not method.__module__.startswith("torch.nn.modules.")
    ) or not all(map(_is_of_torch, module._load_state_dict_pre_hooks.values()))


def _hooks_of(module: nn.Module) -> Iterator[Callable[..., Any]]:
    for hooks in read_hooks(module):
        yield from hooks.values()


def _is_of_torch(hook: Any) -> bool:
    where = getattr(getattr(hook, "hook", hook), "__module__", None) or ""
    return where.startswith((*_FSDP, _ACTIVATIONS))


def reshard(module: nn.Module) -> bool:
    """
    Reshards the fully_shard() modules whose parameters the last forward pass has left unsharded.
    True if there is a fully_shard() module.
    """
    found = [inner for inner in module.modules() if is_fsdp(inner)]
    for inner in found:
        inner.reshard()  # type: ignore[operator]
    return bool(found)


def is_fsdp(module: nn.Module) -> bool:
    """True for a fully_shard() module."""
    return _fsdp_class(module) > 0


def _fsdp_class(module: nn.Module) -> int:
    """The position of FSDPModule among the classes of a module; 0: it is not there."""
    names = _class_names(type(module))
    # The class that fully_shard() creates for an nn.Module has that name, too, and comes first.
    return names.index("FSDPModule", 1) if "FSDPModule" in names[1:] else 0


def class_name(module: nn.Module) -> str:
    """The name of a module's class, before fully_shard() has changed it."""
    inner = unwrap(module)
    number = _fsdp_class(inner)
    return type(inner).__mro__[number + 1 if number else 0].__qualname__


def strip_wrappers(name: str) -> str:
    """A name without the names of torch.compile and activation checkpointing wrappers."""
    return _WRAPPED.sub("", name)


def plain_keys(module: nn.Module, keys: Iterable[str], where: str) -> dict[str, str]:
    """The keys of a state_dict(), and the same without names of the module's wrappers."""
    both = {key: plain_key(module, key) for key in keys}
    names = {key: known for key, (known, _) in both.items()}
    guessed = {key: plain for key, (known, plain) in both.items() if plain != known}
    if guessed:
        uses = collections.Counter(chain(names.values(), guessed.values()))
        names.update((key, plain) for key, plain in guessed.items() if uses[plain] == 1)
    if len(set(names.values())) != len(names):
        twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
        raise UnsupportedStateError(
            f"{where}: its state_dict() has several keys that are {twice[0]!r} without the names "
            "of wrappers, so that only one of them could be saved: give the others another name"
        )
    return names


def plain_key(module: nn.Module, key: str) -> tuple[str, str]:
    """
    The key without the names of wrappers that exist. And the same without names that only look like
    those of wrappers, if the key leads to no module: another module may have passed it on.
    """
    if not _WRAPPED.search(key) and wrapped_child(module) is None:
        return key, key
    at: nn.Module | None = module
    names: list[str] = []
    rest = key.split(".")
    while at is not None and rest:
        wrapped = wrapped_child(at)
        if wrapped in _WRAPPERS or (wrapped is not None and not names):
            # Hooks of the wrapper may have removed its name already.
            rest = rest[rest[0] == wrapped :]
            at = at._modules[wrapped]
        else:
            names.append(rest[0])
            at = at._modules.get(rest[0])
            rest = rest[1:]
    known = ".".join(names + rest)
    if at is not None or not names:
        return known, known
    beyond = strip_wrappers(".".join([names[-1], *rest]))
    return known, ".".join([*names[:-1], beyond])
