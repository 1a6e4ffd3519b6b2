# SPDX-License-Identifier: Apache-2.0
"""
The state of an optimizer by parameter and role: "optimizer/state/layers.0.weight/exp_avg".

In the checkpoint's Python state an optimizer is

    {"$optimizer": {"class": name, "prefix": its path,
                    "params": [names of the parameters, group after group],
                    "groups": [{"count": n, "options": {...}}, ...],
                    "state": [{"roles": [...], "params": null (all) | [indices]}, ...],
                    "values": {index: {role: value that is no tensor}},
                    "other": state under keys that are no parameters,
                    "extra": what else its state_dict() holds}}
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._asking import asking
from ._errors import UnsupportedStateError
from ._fence import fences_of
from ._glance import same_items
from ._json_nodes import Json, Path, dump, path_name, path_text
from ._json_values import Encoder
from ._ranks import Ranks
from ._tensor_state import places_of
from ._tensors import (
    Described,
    Part,
    check_tensor,
    describe,
    encode_name,
    memories,
    part_of,
    spread_last,
)
from .adapters._holders import Holders
from .adapters._layout import is_part_like, is_spread
from .adapters._optimizers import (
    _is_hooked,
    has_own_say,
    local_roles,
    name_parameters,
    parameters,
    state_tensor_name,
    tensor_name,
)
from .adapters._subclasses import encode as encode_wrapped
from .adapters._subclasses import owns_in, wraps

if TYPE_CHECKING:
    import torch

    from ._sink import Sink

#: From this number of groups on, comparing their options is cheaper than writing them again.
_MANY_GROUPS = 8


def owned_by(optimizers: list[torch.optim.Optimizer]) -> dict[int, torch.Tensor]:
    """Ids of the parameters that only these optimizers change, after their fences."""
    fenced = [one for one in optimizers if fences_of(one) is not None]
    free = {id(p) for one in optimizers if fences_of(one) is None for p in parameters(one)}
    return {
        id(parameter): parameter
        for parameter in chain.from_iterable(map(parameters, fenced))
        if not parameter.is_inference() and id(parameter) not in free
    }


class OptimizerSource:
    """
    An optimizer in the state. Its tensors are in `part` and `described`, and are copied in the
    background. Those of a custom optimizer go through the encoder.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        path: Path,
        known: dict[int, str],
        ranks: Ranks,
        holders_of: Callable[[torch.Tensor], Holders | None],
    ) -> None:
        self.optimizer = optimizer
        self._ranks = ranks
        #: tensors that the user has named as each rank's own: the names of this rank's copies
        self.owns: dict[str, str] = {}
        self.path = path
        self.own_say = has_own_say(optimizer)
        self.params = parameters(optimizer)
        #: state of every parameter, as long as the optimizer's state has the same entries
        self._states: list[dict[str, Any]] = []
        self.param_names = name_parameters(optimizer, path, known)
        #: optimizers whose steps are fenced; None: it is not known what changes its parameters
        self.fences = fences_of(optimizer)
        self.names: set[str] = set()
        self.described: list[Described] = []
        self.part = part_of([], [])
        #: for each tensor, the parameter whose layout it has as a local part; None: its own layout
        self._likes: list[torch.Tensor | None] = []
        #: holders of each plain tensor; None: all ranks, or the tensor shows them itself
        self.holders: list[Holders | None] = []
        #: holders of plain tensors in the state of each parameter
        self._holders_of = holders_of
        #: names of tensors that are local parts with the layout of a parameter
        self.local: set[str] = set()
        #: numbers of the tensors that this rank writes; None: all
        self.mine: list[int] | None = None
        self._own_part: tuple[Part, Part] | None = None
        self._params_text = dump(self.param_names)
        self._options: list[dict[str, Any]] = []
        self._options_text = ""
        if not self.own_say:
            self._study()

    def _study(self) -> None:
        """Finds the tensors of the state, and remembers its structure."""

        self._prefix = path_name(self.path)
        self._state_keys: list[Any] = []
        self._state_dicts: list[Any] = []
        self._keys, self._values = self._read()
        self._entries = len(self.optimizer.state)
        self._other_keys = self._find_other_keys()
        names: list[bytes] = []
        tensors: list[torch.Tensor] = []
        described: list[Described] = []
        likes: list[torch.Tensor | None] = []
        holders: list[Holders | None] = []
        roles: dict[tuple[str, ...], list[int]] = {}
        places: list[int] = []
        local = local_roles(self.optimizer, self.params)
        place = 0
        plain = list(map(_is_plain_tensor, self._values))
        for index, parameter in enumerate(self.params):
            found = []
            for role, value in (self.optimizer.state.get(parameter) or {}).items():
                if plain[place]:
                    names.append(self._add(self.param_names[index], role, value))
                    own = tensor_name(self.path, self.param_names[index], role) in self.owns
                    like = parameter if role in local and not own else None
                    like = like if is_part_like(value, parameter) else None
                    tensors.append(value)
                    described.append(describe(value, like))
                    likes.append(like)
                    holders.append(self._holders_of(parameter))
                    if like is not None:
                        self.local.add(names[-1].decode())
                    places.append(place)
                    found.append(role)
                place += 1
            if found:
                roles.setdefault(tuple(found), []).append(index)
        self._others = [index for index, wanted in enumerate(plain) if not wanted]
        self._state_text = dump(_state_node(roles, len(self.params)))
        order = spread_last(tensors)
        self.described = [described[number] for number in order]
        self._likes = [likes[number] for number in order]
        self.holders = [holders[number] for number in order]
        #: holders of the tensors in self._values
        self._places = [places[number] for number in order]
        self.part = part_of(
            [names[number] for number in order], [tensors[number] for number in order]
        )

    def _find_other_keys(self) -> list[Any]:
        import torch

        owned = set(map(id, self.params))
        other = [key for key in self.optimizer.state if id(key) not in owned]
        if any(isinstance(key, torch.Tensor) for key in other):
            raise UnsupportedStateError(
                f"{path_text(self.path)} has state for a parameter that is in none of its groups: "
                "delete that state, or add the parameter to a group"
            )
        return other

    def _add(self, parameter: str, role: str, value: torch.Tensor) -> bytes:
        name = state_tensor_name(self._prefix, parameter, role)
        check_tensor(value, name)
        if self._is_own(parameter, name, value):
            self.owns[name] = self._ranks.own_name(name)
            name = self.owns[name]
        self.names.add(name)
        return encode_name(name, name)

    def _is_own(self, parameter: str, name: str, value: torch.Tensor) -> bool:
        """True if the tensor is each rank's own: the user has named it, or its parameter."""
        return self._ranks.is_own(parameter, value) or self._ranks.is_own(name, value)

    def shapes(self) -> list[torch.Tensor]:
        """For each tensor, the tensor that shows its layout over ranks."""
        pairs = zip(self.part.tensors, self._likes, strict=True)
        return [tensor if like is None else like for tensor, like in pairs]

    def own_part(self) -> Part:
        """The tensors of `part` that this rank writes."""
        if self.mine is None:
            return self.part
        if self._own_part is None or self._own_part[0] is not self.part:
            self._own_part = self.part, self.part.only(self.mine)
        return self._own_part[1]

    def _read(self) -> tuple[list[str], list[Any]]:
        if not self._has_the_same_entries():
            state = self.optimizer.state
            self._state_keys, self._state_dicts = list(state), list(state.values())
            # Before the first step a parameter has no entry.
            entries = map(state.get, self.params)
            self._states = [{} if entry is None else entry for entry in entries]
        states = self._states
        return (
            list(chain.from_iterable(states)),
            list(chain.from_iterable(map(dict.values, states))),
        )

    def _has_the_same_entries(self) -> bool:
        state = self.optimizer.state
        return isinstance(state, dict) and same_items([state], self._state_keys, self._state_dicts)

    def _take(self) -> bool:
        """Takes other tensors and values in; False if any came or went."""
        if self._has_the_same_entries() and same_items(self._states, self._keys, self._values):
            return True
        keys, values = self._read()
        if keys != self._keys or len(self.optimizer.state) != self._entries:
            return False
        return _same_objects(values, self._values) or self._replace(values)

    def refresh(self) -> list[int] | None:
        """
        Checks the optimizer again. Returns the numbers of the tensors whose memory has moved. None:
        its structure has changed, and a new source must be made.
        """
        if not _same_objects(parameters(self.optimizer), self.params):
            return None
        if self.own_say:
            return []
        if _is_hooked(self.optimizer) or not self._take():
            return None
        return self._look_again()

    def _replace(self, values: list[Any]) -> bool:
        """Takes other tensors and values in; False if a tensor came or went."""
        if any(_is_plain_tensor(values[place]) for place in self._others):
            return False
        tensors = [values[place] for place in self._places]
        for name, old, new in zip(self.part.names, self.part.tensors, tensors, strict=True):
            if new is not old:
                if not _is_plain_tensor(new) or new.is_inference():
                    return False
                if is_spread(new) != is_spread(old):
                    return False
                check_tensor(new, name.decode())
        split = self.part.split
        self.part = self.part._replace(tensors=tensors, held=memories(tensors, split))
        self._values = values
        return True

    def _look_again(self) -> list[int] | None:
        """The numbers of the tensors whose memory has moved; None if a layout has changed."""
        if self.part.same():
            return []
        moved, views, pointers = [], list(self.part.views), list(self.part.pointers)
        held = self.part.memories()
        for number, (tensor, memory) in enumerate(zip(self.part.tensors, held, strict=True)):
            view, what, like = views[number], self.described[number], self._likes[number]
            if memory.dtype != view.dtype or memory.shape != view.shape:
                return None
            if describe(tensor, like)._replace(pointer=0) != what._replace(pointer=0):
                return None
            if memory.data_ptr() != pointers[number]:
                views[number] = memory.detach()
                pointers[number] = memory.data_ptr()
                moved.append(number)
        self.part = self.part._replace(
            held=held, views=views, pointers=pointers, places=places_of(held)
        )
        return moved

    def node(self, encoder: Encoder, sink: Sink) -> str:
        """The JSON text. Tensors that are not in `part` are put into `sink`, or encoded."""
        if self.own_say:
            return self._node_of_own(encoder, sink)
        groups = [
            {key: value for key, value in group.items() if key not in NO_OPTIONS}
            for group in self.optimizer.param_groups
        ]
        counts = [len(group["params"]) for group in self.optimizer.param_groups]
        other = {key: self.optimizer.state[key] for key in self._other_keys}
        return self._text(
            self._encode_groups(encoder, groups, counts),
            self._state_text,
            dump(self._encode_values(encoder, sink)),
            dump(encoder.encode_handed(other, (self.path, "other"), 4)),
            "{}",
        )

    def _text(self, groups: str, state: str, values: str, other: str, extra: str) -> str:
        kind = dump(type(self.optimizer).__qualname__)
        prefix = dump(path_name(self.path))
        return (
            f'{{"$optimizer":{{"class":{kind},"prefix":{prefix},"params":{self._params_text},"groups":{groups},'
            f'"state":{state},"values":{values},"other":{other},"extra":{extra}}}}}'
        )

    def _encode_groups(
        self, encoder: Encoder, groups: list[dict[str, Any]], counts: list[int]
    ) -> str:
        if len(groups) > _MANY_GROUPS and _equal(groups, self._options):
            return self._options_text
        text = dump(
            [
                {
                    "count": count,
                    "options": encoder.encode(group, ((self.path, "param_groups"), number), 6),
                }
                for number, (group, count) in enumerate(zip(groups, counts, strict=True))
            ]
        )
        plain = all(_is_plain(value) for group in groups for value in group.values())
        self._options, self._options_text = (groups, text) if plain else ([], "")
        return text

    def _encode_values(self, encoder: Encoder, sink: Sink) -> Json:
        if not self._others:
            return {}

        found: dict[str, Json] = {}
        for index, parameter in enumerate(self.params):
            for role, value in (self.optimizer.state.get(parameter) or {}).items():
                if not _is_plain_tensor(value):
                    node = self._encode_value(encoder, sink, index, role, value)
                    found.setdefault(str(index), {})[role] = node
        return found

    def _encode_value(
        self, encoder: Encoder, sink: Sink, index: int, role: str, value: Any
    ) -> Json:
        parameter = self.param_names[index]
        path = (((self.path, "state"), parameter), role)
        with sink.held_by(self._holders_of(self.params[index])):
            if not wraps(value):
                return encoder.encode(value, path, 6)
            own = self._is_own(parameter, tensor_name(self.path, parameter, role), value)
            node = encode_wrapped(encoder, value, path, own=own)
        if own:
            self.owns.update(owns_in(node))
        return node

    def _node_of_own(self, encoder: Encoder, sink: Sink) -> str:

        with asking(self.path, "state_dict"):
            state = self.optimizer.state_dict()
        if not _is_usual(state):
            return dump({"$object": encoder.encode_object(self.optimizer, state, self.path, 4)})
        roles: dict[tuple[str, ...], list[int]] = {}
        values: dict[str, Json] = {}
        other: dict[Any, Any] = {}
        for key, entry in state.get("state", {}).items():
            if type(key) is not int or not 0 <= key < len(self.params) or type(entry) is not dict:
                other[key] = entry
                continue
            tensors = []
            for role, value in entry.items():
                path = (((self.path, "state"), self.param_names[key]), role)
                if _is_plain_tensor(value) and type(role) is str:
                    name = tensor_name(self.path, self.param_names[key], role)
                    own = self._is_own(self.param_names[key], name, value)
                    holders = self._holders_of(self.params[key])
                    sink.put_named(name, value, self.path, own=own, holders=holders)
                    tensors.append(role)
                elif type(role) is str:
                    node = self._encode_value(encoder, sink, key, role, value)
                    values.setdefault(str(key), {})[role] = node
                else:
                    raise UnsupportedStateError(f"{path_text(path)}: the role is no string")
            if tensors:
                roles.setdefault(tuple(tensors), []).append(key)
        groups = [
            {key: value for key, value in group.items() if key not in NO_OPTIONS}
            for group in state["param_groups"]
        ]
        counts = [len(group["params"]) for group in state["param_groups"]]
        extra = {key: value for key, value in state.items() if key not in ("state", "param_groups")}
        return self._text(
            self._encode_groups(encoder, groups, counts),
            dump(_state_node(roles, len(self.params))),
            dump(values),
            dump(encoder.encode_handed(other, (self.path, "other"), 4)),
            dump(encoder.encode_handed(extra, (self.path, "extra"), 4)),
        )


def _is_plain_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and not wraps(value)


def _is_usual(state: Any) -> bool:
    """True for a state_dict() with the structure of torch's, and not one by names, for example."""
    return (
        isinstance(state, Mapping)
        and isinstance(state.get("state", {}), Mapping)
        and isinstance(state.get("param_groups"), list)
        and all(isinstance(group, dict) and "params" in group for group in state["param_groups"])
    )


def _state_node(roles: dict[tuple[str, ...], list[int]], count: int) -> list[Json]:
    return [
        {"roles": list(names), "params": None if len(indices) == count else indices}
        for names, indices in roles.items()
    ]


#: Keys of a group that are not options.
NO_OPTIONS = {"params", "param_names"}


def _same_objects(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in (int, float, bool, str, type(None))


def _equal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    # Types are compared, because 1 == True == 1.0. repr() differs for 0.0 and -0.0, not for nan.
    return len(a) == len(b) and all(
        x is y or (x == y and repr(x) == repr(y)) for x, y in zip(a, b, strict=True)
    )
