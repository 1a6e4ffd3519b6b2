# SPDX-License-Identifier: Apache-2.0
"""
Restores an optimizer, by the names of its parameters. Its tensors are read in place, or to memory
like the optimizer's own. A custom optimizer gets the stored state by its load_state_dict(), and its
state_dict() is then compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _dtypes
from ._asking import asking
from ._errors import FormatError, MismatchError, UnsupportedStateError
from ._into import into, is_tensor, kind_of, same_bits
from ._json_nodes import Json, Path, path_name, path_text
from ._optimizer import NO_OPTIONS
from ._reader import Stored, optimizer_tensors
from ._tensors import describe, overlaps
from ._views import Found, Source, own_tensors, unite_optimizer
from .adapters._layout import is_dtensor, is_part_like, is_spread, memory_of
from .adapters._optimizers import has_own_say, match_groups, name_parameters, parameters
from .adapters._subclasses import is_wrapped, wraps
from .adapters._wrappers import strip_wrappers

if TYPE_CHECKING:
    import torch

    from ._live import Live


class OptimizerLoad:
    """The restore of one optimizer."""

    def __init__(
        self, live: Live, node: dict[str, Json], optimizer: torch.optim.Optimizer, path: Path
    ) -> None:
        self._live = live
        self._node = node
        self._optimizer = optimizer
        self._path = path
        self._where = path_text(path)
        #: new tensors in the state of every parameter of the checkpoint
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}
        self._params: dict[int, torch.Tensor] = {}
        #: parameters that are not in the checkpoint
        self._new: list[torch.Tensor] = []
        #: for each live group, its number in the checkpoint; None: it is new
        self._groups: list[int | None] = []
        #: ids of parameters whose step counter is on the GPU
        self._counted: set[int] | None = None

    def match(self, names: dict[int, str]) -> None:
        """Compares the parameters by name, and assigns memory for the state."""
        if self._node["class"] != kind_of(self._optimizer):
            self._live.problem(
                "changed",
                f"{self._where} is a {kind_of(self._optimizer)}, and was a {self._node['class']}",
            )
            return
        try:
            here = name_parameters(self._optimizer, self._path, names)
        except UnsupportedStateError as error:
            self._live.problem("changed", str(error))
            return
        united = self._unite(here)
        if united is False or (united is None and not self._match_groups(here)):
            return
        by_name = dict(zip(here, parameters(self._optimizer), strict=True))
        for parameter in by_name.values():
            self._live.check_kept(parameter)
        saved = self._names_now(here)
        self._params = {index: by_name[name] for index, name in enumerate(saved) if name in by_name}
        known = set(saved)
        self._new = [parameter for name, parameter in by_name.items() if name not in known]
        own_say = has_own_say(self._optimizer)
        for index, role, name in optimizer_tensors(self._node):
            if index not in self._params:
                continue
            stored = self._live.stored(name)
            self._tensors.setdefault(index, {})[role] = (
                self._fresh(stored, self._params[index])
                if own_say
                else self._place(stored, self._params[index], role)
            )
        for index_text, entry in self._node["values"].items():
            if int(index_text) in self._params:
                self._live.leftovers.taken.add(
                    self._values_name(self._node["params"][int(index_text)])
                )
                self._match_values(int(index_text), entry)
        for part in ("other", "extra", "groups"):
            self._live.want(self._node[part], self._path)

    def _match_values(self, index: int, entry: dict[str, Json]) -> None:
        parameter = self._params[index]
        for role, node in entry.items():
            path = (((self._path, "state"), self._node["params"][index]), role)
            if is_wrapped(node):
                old = (self._optimizer.state.get(parameter) or {}).get(role)
                placed = self._live.places.place(node, old, parameter, path, anew=True)
                self._tensors.setdefault(index, {})[role] = placed
            else:
                self._live.want(node, path)

    def _names_now(self, here: Iterable[str]) -> list[str]:
        """The names of the checkpoint's parameters. Older steps have names of wrappers in them."""
        known, taken = set(here), set(self._node["params"])
        names = []
        for name in self._node["params"]:
            plain = strip_wrappers(name)
            # A module may have had a child with the name of a wrapper's child.
            real = name in known or plain in taken or self._live.holds(name, plain)
            names.append(name if real else plain)
            taken.add(plain)
        return names

    def _values_name(self, parameter: str) -> str:
        """The values in the state of a parameter that are not tensors."""
        return f"{self._node['prefix']}/state/{parameter}"

    def _unite(self, here: list[str]) -> bool | None:
        """
        Joins the state of this rank's parameters from several ranks. None: this rank had all of it;
        False: it is not possible, and a problem was noted.
        """
        live, node = self._live, self._node
        saved = {name: number for number, name in enumerate(self._names_now(here))}
        lacking = sorted(set(here) - saved.keys())
        found = live.views.optimizer(self._path, node, lacking)
        gone = sorted(saved.keys() - set(here))
        to_others = any(not live.differences.tolerates(name) for name in gone)
        if not found.sources and not (to_others and live.leftovers.may_leave()):
            return None
        live.leftovers.restaged |= bool(found.sources)
        wrong = False
        for name in sorted(set(lacking) - found.names()):
            wrong |= not live.problem("missing", f"{self._where}: parameter {name}", name)
        for name in gone:
            if not live.leftovers.may_leave():
                text = f"{self._where}: parameter {name}"
                wrong |= not live.problem("unexpected", text, name)
                continue
            live.leftovers.leave(name)
            if str(saved[name]) in node["values"]:
                live.leftovers.left.add(self._values_name(node["params"][saved[name]]))
        wrong |= self._refuse(found)
        if wrong:
            return False
        mine = {name: number for name, number in saved.items() if name not in gone}
        counts = [len(group["params"]) for group in self._optimizer.param_groups]
        base = Source(live.origin_rank, node, mine)
        united = unite_optimizer([base, *found.sources], _split(here, counts))
        if isinstance(united, str):
            live.problem("changed", f"{self._where} {united}", path_name(self._path))
            return False
        self._node, self._groups = united.node, united.groups
        live.note_united(self._where, united)
        return True

    def _refuse(self, found: Found) -> bool:
        """Notes what cannot be taken from other ranks. True: there is something."""
        live, node = self._live, self._node
        for name, rank, other in found.differing:
            text = (
                f"{self._where}: rank {rank} and rank {other} of the step had other options or "
                f"state of parameter {name}"
            )
            live.problem("changed", text, name)
        live.refuse_parts(f"{node['prefix']}/state/", found)
        own = [name for source in found.sources for name in own_tensors(source, live.holds)]
        for name in own:
            live.problem("missing", name)
        return bool(found.differing or found.parts or own)

    def _match_groups(self, here: list[str]) -> bool:
        saved = self._names_now(here)
        both = set(saved) & set(here)
        wrong = False
        for kind, names in (("missing", here), ("unexpected", saved)):
            for name in sorted(set(names) - both):
                text = f"{self._where}: parameter {name}"
                wrong |= not self._live.problem(kind, text, name)
        counts = [group["count"] for group in self._node["groups"]]
        if sum(counts) != len(saved):
            raise FormatError(f"{self._where}: the groups do not add up")
        if wrong:
            return False
        found = match_groups(
            _split(saved, counts),
            _split(here, [len(group["params"]) for group in self._optimizer.param_groups]),
        )
        if found is None:
            text = (
                f"{self._where} has its parameters in other groups, or the groups in another order"
            )
            self._live.problem("changed", text, path_name(self._path))
            return False
        self._groups = found
        if any(number not in (None, place) for place, number in enumerate(found)):
            self._live.differences.say(
                f"{self._where}: its groups have other numbers than in the step, and schedulers "
                "know them by their numbers"
            )
        return True

    def _fresh(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        if is_spread(parameter) and stored.shape == tuple(parameter.shape):
            return self._live.want_like(stored.name, parameter)
        return self._live.want_tensor(stored.name)

    def _place(self, stored: Stored, parameter: torch.Tensor, role: str) -> torch.Tensor:
        """The live tensor if there is one, else memory like the optimizer would allocate."""
        import torch

        old = (self._optimizer.state.get(parameter) or {}).get(role)
        if isinstance(old, torch.Tensor) and wraps(old):
            self._live.fits(stored, old, stored.name)
            return old
        local = is_dtensor(parameter) and self._live.is_local(stored.name)
        if old is not None and is_part_like(old, parameter):
            # If this rank holds the whole parameter: as it was saved.
            local = local or tuple(old.shape) != stored.shape
        elif old is not None:
            local = False
        if local:
            return self._place_part(stored, parameter, old)
        if isinstance(old, torch.Tensor) and not overlaps(describe(old)):
            if self._live.fits(stored, old, stored.name):
                self._live.bind(stored.name, old)
            return old
        if role == "step":
            fresh = self._live.empty(stored, self._device_of_step(parameter))
        elif stored.shape == tuple(parameter.shape):
            fresh = self._live.empty_like(stored, parameter)
        else:
            fresh = self._live.empty(stored, parameter.device)
        self._live.bind(stored.name, fresh)
        return fresh

    def _place_part(self, stored: Stored, parameter: Any, old: torch.Tensor | None) -> torch.Tensor:
        """A tensor for this rank's box of the parameter."""
        dtype = _dtypes.torch_type(stored.dtype)
        if old is None:
            old = self._live.empty_like(stored, memory_of(parameter))
        if stored.shape != tuple(parameter.shape) or old.dtype != dtype:
            now = f"{_dtypes.name_of(describe(old).dtype)}, a part of {list(parameter.shape)}"
            self._live.problem("changed", f"{stored.name} is {now}, and was {stored}")
        else:
            self._live.bind(stored.name, old, parameter)
        return old

    def _device_of_step(self, parameter: torch.Tensor) -> Any:
        """The device of a step counter, like in torch's load_state_dict()."""
        if self._counted is None:
            self._counted = {
                id(own)
                for group in self._optimizer.param_groups
                if group.get("capturable") or group.get("fused")
                for own in group["params"]
            }
        return parameter.device if id(parameter) in self._counted else "cpu"

    def _decode(self, node: Json) -> Any:
        return self._live.decode(node, self._path)

    def apply(self) -> None:
        """Restores the optimizer, when the tensors were read."""
        options = [self._decode(group["options"]) for group in self._node["groups"]]
        values = {
            int(index): {
                role: self._decode(value) for role, value in entry.items() if not is_wrapped(value)
            }
            for index, entry in self._node["values"].items()
            if int(index) in self._params
        }
        state = {
            index: {**self._tensors.get(index, {}), **values.get(index, {})}
            for index in sorted({*self._tensors, *values})
        }
        other = self._decode(self._node["other"])
        if has_own_say(self._optimizer):
            self._load_by_itself(state, options, other)
        else:
            self._load_in_place(state, options, other)
        self._check(state)

    def _load_in_place(
        self, state: dict[int, dict[str, Any]], options: list[dict[str, Any]], other: dict[Any, Any]
    ) -> None:
        optimizer = self._optimizer
        kept = {new: optimizer.state[new] for new in self._new if new in optimizer.state}
        optimizer.state.clear()
        for index, entry in state.items():
            optimizer.state[self._params[index]] = entry
        optimizer.state.update(kept)
        optimizer.state.update(other)
        for number, group, new in self._grouped(optimizer.param_groups, options):
            self._settle_new(number, group, new)
            for key, value in new.items():
                group[key] = into(group.get(key), value)
        # Like in load_state_dict(): a newer class may add options here.
        with asking(self._path, "__setstate__"):
            optimizer.__setstate__(
                {"state": optimizer.state, "param_groups": optimizer.param_groups}
            )

    def _grouped(
        self, groups: list[dict[str, Any]], options: list[dict[str, Any]]
    ) -> Iterable[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(number, live group, saved options) of the live groups, without new ones."""
        for live, number in enumerate(self._groups):
            if number is not None:
                yield live, groups[live], options[number]

    def options(self) -> Iterable[tuple[Json, dict[str, Any], Path]]:
        """
        For each group, the saved options, the present ones, and the path. Nothing for an optimizer
        that loads its options itself.
        """
        if has_own_say(self._optimizer):
            return
        nodes = [group["options"] for group in self._node["groups"]]
        for number, group, node in self._grouped(self._optimizer.param_groups, nodes):
            now = {key: value for key, value in group.items() if key not in NO_OPTIONS}
            yield node, now, ((self._path, "param_groups"), number)

    def _settle_new(self, number: int, group: dict[str, Any], new: dict[str, Any]) -> None:
        """Notes options that are not in the step."""
        for key in group.keys() - new.keys() - NO_OPTIONS:
            where = f"{self._where}.param_groups[{number}][{key!r}] (now {group[key]!r:.40})"
            if not self._live.stays(where, (((self._path, "param_groups"), number), key)):
                del group[key]

    def _load_by_itself(
        self, state: dict[int, dict[str, Any]], options: list[dict[str, Any]], other: dict[Any, Any]
    ) -> None:
        here = {id(parameter): n for n, parameter in enumerate(parameters(self._optimizer))}
        numbered = {here[id(self._params[index])]: entry for index, entry in state.items()}
        with asking(self._path, "state_dict"):
            now = self._optimizer.state_dict()
        for own in (here[id(parameter)] for parameter in self._new):
            if own in now["state"]:
                numbered[own] = now["state"][own]
        groups = now["param_groups"]
        for number, group, new in self._grouped(groups, options):
            self._settle_new(number, group, new)
            group.update(new)
        extra = self._decode(self._node["extra"])
        with asking(self._path, "load_state_dict"):
            self._optimizer.load_state_dict(
                {"state": {**numbered, **other}, "param_groups": groups, **extra}
            )

    def _state_now(self) -> dict[int, Any]:
        """The state by the numbers of the checkpoint; of a wrapper, from its state_dict()."""
        state = self._optimizer.state
        if not has_own_say(self._optimizer):
            return {index: state.get(one) for index, one in self._params.items()}
        here = {id(parameter): n for n, parameter in enumerate(parameters(self._optimizer))}
        with asking(self._path, "state_dict"):
            after = self._optimizer.state_dict().get("state", {})
        return {index: after.get(here[id(one)]) for index, one in self._params.items()}

    def _check(self, state: dict[int, dict[str, Any]]) -> None:
        """Compares what a custom optimizer has loaded: some frameworks cast moments."""
        import torch

        after = self._state_now()
        for index, entry in state.items():
            now = after.get(index) or {}
            for role, value in entry.items():
                got = now.get(role)
                if (
                    isinstance(value, torch.Tensor)
                    and got is not value
                    and not wraps(value)
                    and not same_bits(got, value)
                ):
                    name = self._node["params"][index]
                    what = _describe(got)
                    where = self._live.differences.where
                    raise MismatchError(
                        f"{where}: {self._where}: after its load_state_dict(), {role} of {name} is "
                        f"{what}, and the checkpoint holds {value.dtype} {list(value.shape)}",
                        step=where.step,
                        rank=where.rank,
                        tensor=name,
                    )


def _split(values: list[str], counts: list[int]) -> list[list[str]]:
    parts, first = [], 0
    for count in counts:
        parts.append(values[first : first + count])
        first += count
    return parts


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if is_tensor(value) else kind_of(value)
