# SPDX-License-Identifier: Apache-2.0
"""
What can be said against a state before anything is saved.

A run that saves every thousand steps should not learn at its thousandth that it cannot. No object
but modules is asked for its state_dict() here (a loader may start its workers to answer), and
tensors that have no data yet may get it before the first save. What an optimizer has not made yet
is looked at in the first step().
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._loaders import asking
from ._modules import (
    has_own_say,
    parameter_names,
    plain_keys,
    reshard,
    unwrap,
    walk,
)
from ._optimizer import OptimizerSource, name_parameters
from ._sink import name_clash
from ._specials import (
    Special,
    check_state,
    find_specials,
    is_module,
    is_optimizer,
    is_stateful,
    misplaced,
    misplaced_object,
    prefix_of,
    refuse_loader,
    there_twice,
)
from ._state import Planner
from ._subclasses import wraps
from ._tensors import check_place, check_tensor, describe, encode_name
from ._typed import Encoder, Json, Path, path_name, path_text

if TYPE_CHECKING:
    import torch


def check_early(state: dict[str, Any], planner: Planner, *, allow_pickle: bool) -> None:
    """Raises what save() would raise, as far as it can be known."""
    check_state(state)
    specials = find_specials(state)
    names = _Nowhere()
    modules = [special for special in specials if is_module(special.value)]
    unborn = any(
        map(_is_unborn, chain.from_iterable(_tensors_of(special.value) for special in modules))
    )
    ids = _check_modules(modules, unborn=unborn)
    check = _Check(specials, names, allow_pickle)
    check.encoder.encode(state, None, 1)
    known = {**names.ids, **ids}
    optimizers = [special for special in specials if is_optimizer(special.value)]
    for special in optimizers:
        name_parameters(special.value, special.path, known)
    if unborn:
        return
    # The walk of the first save, which need not be made again.
    used = set(planner.walk_early(specials).used)
    for special in modules:
        if has_own_say(special.value):
            _check_own(special, prefix_of(special, modules), check.encoder)
    for special in optimizers:
        source = OptimizerSource(special.value, special.path, known, planner.ranks)
        if clash := source.names & used:
            raise name_clash(min(clash), source.path)
        used |= source.names
        # Its options, and what of its state is no tensor.
        source.node(check.encoder, _check_put)


def _check_put(name: str, tensor: torch.Tensor, _own: bool) -> None:
    check_tensor(tensor, name)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return chain(module.parameters(), module.buffers())


def _check_own(special: Special, prefix: str, encoder: Encoder) -> None:
    """What only the module knows. It is asked at a restore, too."""
    import torch

    with asking(special.path, "state_dict"):
        inner = unwrap(special.value, hooked=True)
        state = inner.state_dict()
    keys = plain_keys(inner, state, path_text(special.path))
    for key, value in state.items():
        name = prefix + keys[key]
        if isinstance(value, torch.Tensor) and not wraps(value):
            where = f"{path_text(special.path)}, tensor {name}"
            check_tensor(value, where)
            encode_name(name, where)
        else:
            encoder.encode(value, (special.path, key), 8)


def _check_modules(modules: list[Special], *, unborn: bool) -> dict[int, str]:
    """
    The names of their parameters by their ids. Where some have no data yet, checks those that have;
    otherwise the walk of all of them will.
    """
    names: dict[int, str] = {}
    seen: set[int] = set()
    for special in modules:
        if id(special.value) in seen:
            raise there_twice(special.path)
        seen.add(id(special.value))
        prefix = prefix_of(special, modules)
        reshard(special.value)
        if unborn and not has_own_say(special.value):
            for name, tensor in walk(special.value, prefix):
                if not _is_unborn(tensor) and not wraps(tensor):
                    check_tensor(tensor, name)
                    check_place(describe(tensor), name)
        for name, tensor in parameter_names(unwrap(special.value), prefix):
            names.setdefault(id(tensor), name)
    return names


def _is_unborn(tensor: torch.Tensor) -> bool:
    import torch

    return bool(torch.nn.parameter.is_lazy(tensor) or tensor.is_meta)


class _Nowhere:
    """A sink that stores nothing."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}

    def put_tensor(self, value: torch.Tensor, path: Path, *, own: bool = False) -> str:  # noqa: ARG002
        """Checks it."""
        if not _is_unborn(value):
            check_tensor(value, path_text(path))
        return self.ids.setdefault(id(value), path_name(path))

    def put_array(self, value: Any, path: Path) -> str:  # noqa: ARG002 - there is nothing to see
        """Every one can be stored."""
        return ""

    def put_bytes(self, value: bytes, path: Path) -> str:  # noqa: ARG002
        """Every one can be stored."""
        return ""


class _Check:
    """Encodes what is plain, and looks at the place of what is not."""

    def __init__(self, specials: list[Special], sink: _Nowhere, allow_pickle: bool) -> None:
        self.encoder = Encoder(sink, allow_pickle=allow_pickle, other=self._other)
        self._specials = {id(special.value) for special in specials}
        self._seen: set[int] = set()

    def _other(self, value: Any, path: Path, _depth: int) -> Json:
        if is_module(value) or is_optimizer(value):
            if self.encoder.wrapped or id(value) in self._seen or id(value) not in self._specials:
                raise misplaced(value, path)
            self._seen.add(id(value))
            return ""
        refuse_loader(value, path)
        if not is_stateful(value):
            return None
        if self.encoder.wrapped:
            raise misplaced_object(value, path)
        return ""
