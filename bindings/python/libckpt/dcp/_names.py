# SPDX-License-Identifier: Apache-2.0
"""
The contents of a step, by the names of torch.distributed.checkpoint.

A step that libckpt.dcp has saved has these names already. A step of libckpt.Checkpointer is
flattened like the result of torch's get_state_dict(): a module is its parameters and buffers by
their qualified names, an optimizer is
{"state": {parameter: {role: tensor}}, "param_groups": [...]}, and any other object is what its
state_dict() returned. A step of another program has only tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import _dtypes
from .._calls import VERSION
from .._decoder import Decoder
from .._errors import FormatError, VersionError
from .._json_nodes import Json, tag_of
from .._reader import Reader, Stored, optimizer_tensors, references
from ..adapters._wrappers import strip_wrappers
from ._contents import DCP_VERSION

#: Most items of all lists together.
_LISTS_MAX = 1 << 24


class Value(NamedTuple):
    """A value that is not a tensor, as it is stored."""

    node: Json
    #: the node is bytes in a format of the planner
    raw: bool = False
    #: False: it is in the store of another node
    here: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """The contents of a step by name."""

    #: names of tensors, and values
    listed: dict[str, Stored | Value]
    #: other names that are accepted
    others: dict[str, Stored | Value]
    #: the data of the planner
    planner_data: Any

    def describe(self) -> Answers:
        """Metadata for a planner. Every tensor is one box, and any part of it can be read."""
        return Answers(
            {name: _describe(found) for name, found in self.listed.items()},
            {name: _describe(found) for name, found in self.others.items()},
        )

    def find(self, name: str) -> Stored | Value:
        """The tensor or value of a name."""
        known = self._names.known(name)
        found = self.listed.get(known)
        return self.others[known] if found is None else found

    @functools.cached_property
    def _names(self) -> Names:
        return Names(self.listed, self.others)


class Names:
    """
    The names of a step. Names that torch asks for, and names in older steps, may contain names of
    wrappers.
    """

    def __init__(self, *names: Collection[str]) -> None:
        self._names = names
        self._plain = {strip_wrappers(name): name for name in chain(*names)}

    def known(self, name: str) -> str:
        """The name in the step for this one; the name itself if there is none."""
        if any(name in names for names in self._names):
            return name
        return self._plain.get(strip_wrappers(name), name)


class Answers(dict[str, STORAGE_TYPES]):
    """Lists every tensor and value once. Lookups accept other names of them, too."""

    def __init__(self, listed: dict[str, STORAGE_TYPES], others: dict[str, STORAGE_TYPES]) -> None:
        super().__init__(listed)
        self._others = others
        self._names = Names(listed, others)

    def _find(self, name: str) -> STORAGE_TYPES | None:
        known = self._names.known(name)
        found = super().get(known)
        return self._others.get(known) if found is None else found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __missing__(self, name: str) -> STORAGE_TYPES:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        found = self._find(name)
        return default if found is None else found

    def __reduce__(self) -> Any:
        return Answers, (dict(self), self._others)


def _describe(found: Stored | Value) -> STORAGE_TYPES:
    if isinstance(found, Value):
        return BytesStorageMetadata()
    size = torch.Size(found.shape)
    # A dtype that this torch lacks is refused later, if the tensor is wanted.
    dtype = _dtypes.torch_type(found.dtype) or torch.uint8
    start = torch.Size([0] * len(size))
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype), size, [ChunkStorageMetadata(offsets=start, sizes=size)]
    )


def table_of(reader: Reader, rank: int) -> Table:
    """The contents of a step, for the reading rank `rank`."""
    first = reader.first_rank()
    try:
        node = reader.json(first)
        if type(node) is dict and type(node.get("dcp")) is dict:
            return _of_dcp(reader)
        here = rank < reader.world and reader.away(rank) is None
        meta = reader.meta(rank if here else first)
        stored = reader.stored(meta)
        if meta is None:
            return Table(dict(stored), {}, {name: (name,) for name in stored})
        return _of_state(meta["state"], stored)
    except (TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"step {reader.step}: its state is malformed: {error!r}", step=reader.step
        ) from error


# Saved through torch.distributed.checkpoint.


def _of_dcp(reader: Reader) -> Table:
    values: dict[str, Stored | Value] = {}
    paths: dict[str, Any] = {}
    planner: Any = None
    parts: set[str] = set()
    empty: dict[str, Json] = {}
    for rank in range(reader.world):
        if reader.away(rank) is not None:
            continue
        node = reader.json(rank)["dcp"]
        _check_version(reader, node)
        empty.update(node.get("empty", {}))
        raw = set(node["raw"])
        for name, value in node["values"].items():
            values.setdefault(name, Value(value, name in raw))
            parts.update(part for part, _ in references(value))
        paths.update({name: _path_of(keys) for name, keys in node["paths"].items()})
        if "planner" in node:
            planner = Decoder.plain(node["planner"])
    _check_lists(paths.values())
    absent = {name for name, what in empty.items() if what is None}
    stored = reader.stored({"empty": {n: what for n, what in empty.items() if n not in absent}})
    listed = {name: found for name, found in stored.items() if name not in parts}
    others: dict[str, Stored | Value] = {
        name: Value(None, here=False) for name in absent if name not in values
    }
    return Table({**listed, **values}, others, paths or planner)


def _path_of(keys: Json) -> tuple[int | str, ...]:
    if type(keys) is not list or not keys or not all(type(key) in (int, str) for key in keys):
        raise ValueError(f"the path {keys!r:.100}")
    return tuple(keys)


def _check_lists(paths: Iterable[tuple[int | str, ...]]) -> None:
    """Raises for large indices, because lists are made as long as their greatest index."""
    lengths: dict[tuple[int | str, ...], int] = {}
    for path in paths:
        for place, key in enumerate(path):
            if type(key) is int:
                lengths[path[:place]] = max(lengths.get(path[:place], 0), key + 1)
                if key < 0:
                    raise ValueError(f"the index {key}")
    if sum(lengths.values()) > _LISTS_MAX:
        raise ValueError("lists that no state has")


def _check_version(reader: Reader, node: dict[str, Json]) -> None:
    version = node["version"]
    if type(version) is not int or version > DCP_VERSION:
        raise VersionError(
            f"step {reader.step} was written by libckpt {node.get('library')}, whose state for "
            f"torch.distributed.checkpoint is of version {version}; libckpt {VERSION} reads "
            f"version {DCP_VERSION}: install a newer one",
            step=reader.step,
        )


# Saved by a Checkpointer.


def _of_state(node: Json, stored: dict[str, Stored]) -> Table:
    nested = _Nested(stored)
    flat, paths = flatten_state_dict(nested.walk(node))
    listed: dict[str, Stored | Value] = {
        name: found if isinstance(found, Value) else nested.tensors[id(found)]
        for name, found in flat.items()
    }
    others: dict[str, Stored | Value] = {
        name: found for name, found in stored.items() if name not in listed
    }
    for path, groups in nested.groups:
        prefix = ".".join((*path, "param_groups"))
        for group in groups:
            for parameter in group["params"].node:
                for option, value in group.items():
                    if option != "params":
                        others.setdefault(f"{prefix}.{parameter}.{option}", value)
    return Table(listed, others, paths)


class _Nested:
    """The nested state, with tensors without data, and Values."""

    def __init__(self, stored: dict[str, Stored]) -> None:
        self._stored = stored
        self._made: list[torch.Tensor] = []
        #: stored tensors by the ids of the tensors without data
        self.tensors: dict[int, Stored] = {}
        #: optimizers and their paths
        self.groups: list[tuple[tuple[str, ...], list[dict[str, Any]]]] = []

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor without data for a stored tensor."""
        found = self._stored[name]
        made = torch.empty(found.shape, dtype=torch.uint8, device="meta")
        self._made.append(made)
        self.tensors[id(made)] = found
        return made

    def walk(self, node: Json, path: tuple[str, ...] = ()) -> Any:
        """Containers that torch flattens are kept. Everything else becomes a Value."""
        if type(node) is list:
            items = [self.walk(item, (*path, str(n))) for n, item in enumerate(node)]
            return items if any(map(_is_walked, items)) else Value(node)
        if type(node) is not dict:
            return Value(node)
        tag = tag_of(node)
        if tag is None:
            return {key: self.walk(item, (*path, key)) for key, item in node.items()}
        walk = _WALKS.get(tag)
        return Value(node) if walk is None else walk(self, node[tag], path)

    def _json(self, text: str, path: tuple[str, ...]) -> Any:
        return self.walk(json.loads(text), path)

    def _tensor(self, name: str, _path: tuple[str, ...]) -> Any:
        return self.tensor(name)

    def _pairs(self, flat: list[Json], path: tuple[str, ...]) -> Any:
        keys = [str(Decoder.plain(key)) for key in flat[::2]]
        return {
            key: self.walk(item, (*path, key)) for key, item in zip(keys, flat[1::2], strict=True)
        }

    def _default(self, flat: list[Json], path: tuple[str, ...]) -> Any:
        return self._pairs(flat[1:], path)

    def _module(self, node: dict[str, Json], path: tuple[str, ...]) -> Any:
        prefix = len(node["prefix"])
        found = {name[prefix:]: self.tensor(name) for name in node["tensors"]}
        return {**found, **self.walk(node["extra"], path)}

    def _object(self, node: dict[str, Json], path: tuple[str, ...]) -> Any:
        return self.walk(node["state"], path)

    def _optimizer(self, node: dict[str, Json], path: tuple[str, ...]) -> Any:
        names = node["params"]
        state: dict[str, dict[str, Any]] = {}
        for index, role, name in optimizer_tensors(node):
            state.setdefault(names[index], {})[role] = self.tensor(name)
        for index_text, values in node["values"].items():
            inner = (*path, "state", names[int(index_text)])
            state.setdefault(names[int(index_text)], {}).update(self.walk(values, inner))
        state.update(self.walk(node["other"], (*path, "state")))
        groups, first = [], 0
        for number, group in enumerate(node["groups"]):
            count = group["count"]
            inner = (*path, "param_groups", str(number))
            options = self.walk(group["options"], inner)
            groups.append({**options, "params": Value(names[first : first + count])})
            first += count
        self.groups.append((path, groups))
        return {"state": state, "param_groups": groups, **self.walk(node["extra"], path)}


def _is_walked(item: Any) -> bool:
    return isinstance(item, (dict, list, torch.Tensor))


_WALKS: dict[str, Callable[[_Nested, Any, tuple[str, ...]], Any]] = {
    "$counter": _Nested._pairs,
    "$defaultdict": _Nested._default,
    "$dict": _Nested._pairs,
    "$json": _Nested._json,
    "$module": _Nested._module,
    "$object": _Nested._object,
    "$odict": _Nested._pairs,
    "$optimizer": _Nested._optimizer,
    "$tensor": _Nested._tensor,
}
