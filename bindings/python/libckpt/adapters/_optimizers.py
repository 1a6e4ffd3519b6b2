# SPDX-License-Identifier: Apache-2.0
"""Optimizers: names of parameters and state, groups, and whether they are custom."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from .._errors import UnsupportedStateError
from .._json_nodes import Json, Path, path_name, path_text
from ._layout import is_dtensor, is_part_like
from ._wrappers import strip_wrappers

if TYPE_CHECKING:
    import torch


_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def has_own_say(optimizer: torch.optim.Optimizer) -> bool:
    """True for a custom optimizer: only its own state_dict() is right."""
    import torch

    kind, base = type(optimizer), torch.optim.Optimizer
    return (
        kind.state_dict is not base.state_dict
        or kind.load_state_dict is not base.load_state_dict
        or _is_hooked(optimizer)
        or not all(type(state) is dict for state in optimizer.state.values())
        or any(
            isinstance(value, torch.Tensor) and value.is_inference()
            for state in optimizer.state.values()
            for value in state.values()
        )
        or not all(type(role) is str for state in optimizer.state.values() for role in state)
    )


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    return any(getattr(optimizer, name, None) for name in _HOOKS)


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters, group after group."""
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def name_parameters(
    optimizer: torch.optim.Optimizer, path: Path, known: dict[int, str]
) -> list[str]:
    """The names of all parameters, group after group; `known` maps the ids of tensors to names."""
    names: list[str] = []
    for number, group in enumerate(optimizer.param_groups):
        own = group.get("param_names") or [None] * len(group["params"])
        for index, (parameter, spare) in enumerate(zip(group["params"], own, strict=True)):
            name = known.get(id(parameter)) or (spare and strip_wrappers(spare))
            if name is None:
                raise UnsupportedStateError(
                    f"parameter {index} of group {number} of {path_text(path)} (shape "
                    f"{tuple(parameter.shape)}) belongs to no module in the state, so that its "
                    "state has no name: put its module into the state as well, or build the "
                    "optimizer from model.named_parameters()"
                )
            names.append(name)
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UnsupportedStateError(f"{path_text(path)} has several parameters named {twice[:5]}")
    return names


def tensor_name(path: Path, parameter: str, role: str) -> str:
    """The name of a tensor of an optimizer's state."""
    return state_tensor_name(path_name(path), parameter, role)


def state_tensor_name(prefix: str, parameter: str, role: str) -> str:
    """The same, from the optimizer's path as text."""
    return f"{prefix}/state/{parameter}/{role}"


def local_roles(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> set[str]:
    """
    Roles of which every tensor has the shape of its parameter's local tensor, and at least one does
    not have the whole shape. One parameter is not enough: a rank may hold all of it.
    """
    import torch

    roles: dict[str, bool] = {}
    for parameter in params:
        for role, value in (optimizer.state.get(parameter) or {}).items():
            if isinstance(value, torch.Tensor) and is_dtensor(parameter):
                cut = value.shape != parameter.shape
                if not is_part_like(value, parameter):
                    roles[role] = False
                elif cut:
                    roles.setdefault(role, True)  # a False remains
    return {role for role, local in roles.items() if local}


def expand_state(node: Iterable[Json], count: int) -> Iterable[tuple[int, str]]:
    """(index of the parameter, role) of every tensor in the "state" of a node."""
    for entry in node:
        indices = range(count) if entry["params"] is None else entry["params"]
        for index in indices:
            for role in entry["roles"]:
                yield index, role


def match_groups(saved: list[list[str]], here: list[list[str]]) -> list[int | None] | None:
    """
    The saved group of each live group, by common parameters; None for a group without any. Returns
    None if parameters are in other groups, or the groups are in another order.
    """
    both = set(chain.from_iterable(saved)) & set(chain.from_iterable(here))
    then = [both.intersection(names) for names in saved]
    now = [both.intersection(names) for names in here]
    numbers = {frozenset(names): number for number, names in enumerate(then) if names}
    found = [numbers.get(frozenset(names)) for names in now]
    if any(number is None and names for number, names in zip(found, now, strict=True)):
        return None
    # All saved parameters exist, in as many groups.
    if len(set(found) - {None}) != len(numbers):
        return None
    # Groups without parameters differ only by their order.
    empty = [number for number, names in enumerate(saved) if not names]
    unfilled = [number for number, names in enumerate(here) if not names]
    if len(empty) != len(unfilled):
        return None
    for number, old in zip(unfilled, empty, strict=True):
        found[number] = old
    # Schedulers refer to groups by their order, too.
    known = [number for number in found if number is not None]
    return found if known == sorted(known) else None
