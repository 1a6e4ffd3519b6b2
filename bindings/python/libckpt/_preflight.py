# SPDX-License-Identifier: Apache-2.0
"""
Checks a state before anything is saved.

A run that saves every thousand steps should not learn at its thousandth step that its state cannot
be saved. So the state is described like for a save, and the result is thrown away: in resume(), in
the first step(), and in the first step() after an optimizer has created its state.

Tensors that have no data yet may get it before the first save. Objects are asked for their
state_dict() only if the call has no other effect: see _is_ready().
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._json_nodes import Json, Path, path_name, path_text
from ._json_values import Encoder
from ._modules import parameter_names, walk
from ._per_rank import PerRank
from ._rng import keep
from ._state import Planner
from ._state_kinds import (
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
from ._tensors import check_place, check_tensor, describe
from .adapters._loaders import is_loader
from .adapters._optimizers import name_parameters
from .adapters._subclasses import wraps
from .adapters._wrappers import has_own_say, reshard, unwrap

if TYPE_CHECKING:
    import torch


#: Number of step() calls after the first that check a state again if parameters have no data yet.
_UNBORN = 3


def check_values(state: dict[str, Any], *, allow_pickle: bool) -> None:
    """
    Raises for values that no save accepts. Loaders are not checked, because they may be replaced
    before resume(): Accelerate's prepare() does that.
    """
    check_state(state)
    check = _Check(find_specials(state), _Nowhere(), allow_pickle, loaders=False)
    check.encoder.encode(state, None, 1)


class Looks:
    """Decides when a state is checked again, until it is saved."""

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None
        #: optimizers that had no state at the last check
        self._empty: list[torch.optim.Optimizer] = []
        #: number of further checks because of parameters without data
        self._unborn = 0
        self._over = False

    def are_due(self, state: dict[str, Any]) -> bool:
        """
        To be called in step(). True if the state was not checked in a step(), or has grown since:
        with gradient accumulation, optimizers create their state after several steps.
        """
        if self._over:
            return False
        if self._state is not state:
            self._state, self._unborn = state, _UNBORN
            return True
        return self._unborn > 0 or any(map(_has_state, self._empty))

    def note(self, state: dict[str, Any], *, whole: bool) -> None:
        """The state was checked. `whole`: all of its parameters have data."""
        self._unborn = 0 if whole else max(self._unborn - 1, 0)
        found = (one.value for one in find_specials(state) if is_optimizer(one.value))
        self._empty = [one for one in found if not _has_state(one)]

    def end(self) -> None:
        """The state is saved, which checks all of it."""
        self._over, self._state, self._empty = True, None, []


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    return bool(getattr(optimizer, "state", None))


def check_early(state: dict[str, Any], planner: Planner, *, allow_pickle: bool) -> bool:
    """
    Raises what save() would raise, as far as it can be known without asking objects. False: some
    parameters have no data yet, and were not checked.
    """
    check_state(state)
    planner.check_stages(state)
    specials = find_specials(state)
    modules = [special for special in specials if is_module(special.value)]
    if any(map(_is_unborn, chain.from_iterable(_tensors_of(special.value) for special in modules))):
        _check_unborn(state, specials, modules, allow_pickle=allow_pickle)
        return False
    put_back = keep()
    try:
        planner.check(state, _is_ready)
    finally:
        put_back()
    return True


def _check_unborn(
    state: dict[str, Any], specials: list[Special], modules: list[Special], *, allow_pickle: bool
) -> None:
    """If some parameters have no data yet: checks those that have, and all values."""
    ids = _check_modules(modules)
    names = _Nowhere()
    _Check(specials, names, allow_pickle).encoder.encode(state, None, 1)
    known = {**names.ids, **ids}
    for special in specials:
        if is_optimizer(special.value):
            name_parameters(special.value, special.path, known)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return chain(module.parameters(), module.buffers())


def _check_modules(modules: list[Special]) -> dict[int, str]:
    """Checks modules. Returns the names of their parameters by id."""
    names: dict[int, str] = {}
    seen: set[int] = set()
    for special in modules:
        if id(special.value) in seen:
            raise there_twice(special.path)
        seen.add(id(special.value))
        prefix = prefix_of(special, modules)
        reshard(special.value)
        if not has_own_say(special.value):
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


def _is_ready(value: Any) -> bool:
    """
    True if an object may be asked for its state_dict() before a save, because the call has no other
    effect: torch's schedulers and PerRank. Other objects may start workers, create an optimizer's
    state by a step, communicate with other ranks, or not be ready.
    """
    if type(value) is PerRank:
        return True
    says = getattr(type(value), "state_dict", None)
    return (getattr(says, "__module__", None) or "").startswith("torch.optim.")


# Values.


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
    """Encodes plain values, and checks that all others are where they can be restored."""

    def __init__(
        self,
        specials: list[Special],
        sink: _Nowhere,
        allow_pickle: bool,
        *,
        loaders: bool = True,
    ) -> None:
        self.encoder = Encoder(sink, allow_pickle=allow_pickle, other=self._other)
        self._specials = {id(special.value) for special in specials}
        self._seen: set[int] = set()
        self._loaders = loaders

    def _other(self, value: Any, path: Path, _depth: int) -> Json:
        if is_module(value) or is_optimizer(value):
            if is_module(value) and id(value) in self._seen:
                raise there_twice(path)
            if self.encoder.wrapped or id(value) in self._seen or id(value) not in self._specials:
                raise misplaced(value, path)
            self._seen.add(id(value))
            return ""
        if is_loader(value) and not self._loaders:
            return ""
        refuse_loader(value, path)
        if not is_stateful(value):
            return None
        if self.encoder.wrapped:
            raise misplaced_object(value, path)
        return ""
