# SPDX-License-Identifier: Apache-2.0
"""
What can be said against a state before anything is saved.

A run that saves every thousand steps should not learn at its thousandth that it cannot. So the
state is described as a save would describe it, and what that gives is thrown away: in resume(), in
the first step(), and in the first one behind that by which an optimizer has made its state.

Tensors that have no data yet may get it before the first save. Objects are asked for their
state_dict() only where that changes nothing else: see _is_ready().
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


#: Steps after the first one in which a state is looked at again that has parameters without data.
_UNBORN = 3


def check_values(state: dict[str, Any], *, allow_pickle: bool) -> None:
    """
    Raises for values that no save takes, whatever else the state is given later. Loaders may be
    replaced until resume(), as Accelerate's prepare() does it.
    """
    check_state(state)
    check = _Check(find_specials(state), _Nowhere(), allow_pickle, loaders=False)
    check.encoder.encode(state, None, 1)


class Looks:
    """When a state is to be looked at again, until it has been saved."""

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None
        #: optimizers that had no state when it was looked at
        self._empty: list[torch.optim.Optimizer] = []
        #: so often more, as some parameters had no data
        self._unborn = 0
        self._over = False

    def are_due(self, state: dict[str, Any]) -> bool:
        """
        In a step(): True for a state that was not looked at in one, or of which there is more now.
        Gradients may be summed up over several steps before an optimizer makes its state.
        """
        if self._over:
            return False
        if self._state is not state:
            self._state, self._unborn = state, _UNBORN
            return True
        return self._unborn > 0 or any(map(_has_state, self._empty))

    def note(self, state: dict[str, Any], *, whole: bool) -> None:
        """It was looked at. `whole`: all of its parameters have data."""
        self._unborn = 0 if whole else max(self._unborn - 1, 0)
        found = (one.value for one in find_specials(state) if is_optimizer(one.value))
        self._empty = [one for one in found if not _has_state(one)]

    def end(self) -> None:
        """It is saved, which looks at all of it."""
        self._over, self._state, self._empty = True, None, []


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    return bool(getattr(optimizer, "state", None))


def check_early(state: dict[str, Any], planner: Planner, *, allow_pickle: bool) -> bool:
    """
    Raises what save() would raise, as far as it can be known without asking objects. False: some
    parameters have no data yet, and were not looked at.
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
    """Where some parameters have no data yet, checks those that have, and all values."""
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
    """The names of their parameters by their ids."""
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
    True if an object may be asked for its state_dict() though nothing is saved: nothing but the
    answer comes of it for torch's schedulers and what each rank has of its own. Others may start
    workers, make an optimizer's state by a step, talk to other ranks, or not be ready.
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
    """Encodes what is plain, and looks at the place of what is not."""

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
