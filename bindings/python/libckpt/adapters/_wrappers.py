# SPDX-License-Identifier: Apache-2.0
"""
What PyTorch wraps a module in, or makes of it: DDP, fully_shard(), torch.compile, activation
checkpointing; and whether a module has a say of its own in its state_dict().
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

#: fully_shard() is not a say of its own: what its hooks do is done here, see reshard().
_FSDP = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")

#: Nor is activation checkpointing, whose hooks take the wrapper's name out of the keys.
_ACTIVATIONS = "torch.distributed.algorithms._checkpoint"

#: Children whose names are in no tensor's name, and the wrappers that have them.
_WRAPPERS = {"_orig_mod": "OptimizedModule", "_checkpoint_wrapped_module": "ActivationWrapper"}

_WRAPPED = re.compile(rf"(?<![^./])(?:{'|'.join(_WRAPPERS)})\.")


def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(one.__name__ for one in kind.__mro__)


_class_names: Callable[[Any], tuple[str, ...]] = functools.lru_cache(maxsize=1024)(_names_of)


def wrapped_child(module: nn.Module) -> str | None:
    """The child that a wrapper wraps and whose name is no part of a tensor's name."""
    for name, kind in _WRAPPERS.items():
        # The class itself may be one that fully_shard() has made of it.
        if name in module._modules and kind in _class_names(type(module)):
            return name
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is not None and isinstance(
        module, (parallel.DistributedDataParallel, parallel.DataParallel)
    ):
        return "module"
    return None


def unwrap(module: nn.Module, *, hooked: bool = False) -> nn.Module:
    """The module inside of wrappers. `hooked`: or a wrapper that changes what that one says."""
    while (name := wrapped_child(module)) is not None:
        if hooked and _overrides(module):
            break
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

    of_torch = "torch.nn.modules."
    methods: tuple[str, ...] = _OVERRIDES
    if wrapped_child(module) is not None:
        # What torch's wrappers do is done here. What a class only says of itself nobody can load.
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
    """True if it has no hooks but those that torch gives it."""
    return all(map(_is_of_torch, _hooks_of(module)))


def loads_itself(module: nn.Module) -> bool:
    """True if the module itself decides what becomes of what it is given."""
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
    Puts the sharded parameters of fully_shard() back, where the whole ones of the last forward pass
    stand in their place. True if there is such a module.
    """
    found = [inner for inner in module.modules() if is_fsdp(inner)]
    for inner in found:
        inner.reshard()  # type: ignore[operator]
    return bool(found)


def is_fsdp(module: nn.Module) -> bool:
    """True for a module of fully_shard()."""
    return _fsdp_class(module) > 0


def _fsdp_class(module: nn.Module) -> int:
    """Where FSDPModule stands among the classes of a module; 0: nowhere."""
    names = _class_names(type(module))
    # What fully_shard() makes of an nn.Module has that name as well, and is the first one.
    return names.index("FSDPModule", 1) if "FSDPModule" in names[1:] else 0


def class_name(module: nn.Module) -> str:
    """The name of a module's class, and not of the one that fully_shard() makes of it."""
    inner = unwrap(module)
    number = _fsdp_class(inner)
    return type(inner).__mro__[number + 1 if number else 0].__qualname__


def strip_wrappers(name: str) -> str:
    """A name without those that torch.compile and activation checkpointing put into it."""
    return _WRAPPED.sub("", name)


def plain_keys(module: nn.Module, keys: Iterable[str], where: str) -> dict[str, str]:
    """Of the keys of a state_dict() the names without those of the wrappers that the module has."""
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
    Its name without those of wrappers that are there, and the same without what is only called as
    they call theirs where the key leads to no module: it may be another module's key, passed on.
    """
    if not _WRAPPED.search(key) and wrapped_child(module) is None:
        return key, key
    at: nn.Module | None = module
    names: list[str] = []
    rest = key.split(".")
    while at is not None and rest:
        wrapped = wrapped_child(at)
        if wrapped in _WRAPPERS or (wrapped is not None and not names):
            # Its hooks may have taken its name out already.
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
