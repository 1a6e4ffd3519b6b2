# SPDX-License-Identifier: Apache-2.0
"""
Reads the views of other ranks, if this rank's view of a step lacks a name.

The view of a rank is its Python state in the step. It has the names that the rank had: a stage of a
pipeline has those of its layers. A rank that resumes another stage needs the views of several. The
step records which rank wrote each tensor, and the view of that rank has its name. So a view is read
only if a name is missing, and then one for each stage, however many ranks it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ._decoder import Decoder
from ._json_nodes import Json, Path, mentions, tag_of
from ._ranks import is_own
from .adapters._optimizers import expand_state, state_tensor_name

if TYPE_CHECKING:
    from ._reader import Reader, Stored

Node = dict[str, Json]

_PLAIN = {bool, bytes, complex, float, int, str, type(None)}
_DICT_TAGS = {"$dict": 0, "$odict": 0, "$counter": 0, "$defaultdict": 1}


def dict_items(node: Json) -> list[tuple[Any, Json]] | None:
    """Keys and nodes of the node of a dict of any type; None for other nodes."""
    if type(node) is not dict:
        return None
    tag = tag_of(node)
    if tag is None:
        return list(node.items())
    if tag not in _DICT_TAGS:
        return None
    flat = node[tag][_DICT_TAGS[tag] :]
    return [(Decoder.plain(key), item) for key, item in zip(flat[::2], flat[1::2], strict=True)]


def list_items(node: Json) -> list[Json] | None:
    """Nodes of a list or tuple that has not only plain values; None for other nodes."""
    if type(node) is dict and tag_of(node) == "$tuple":
        node = node["$tuple"]
    if type(node) is not list or set(map(type, node)) <= _PLAIN:
        return None
    return node


def is_list_of(live: Any, length: int) -> bool:
    """True for a list or tuple of that length."""
    return type(live) in (list, tuple) and len(live) == length


def node_at(node: Json, path: Path) -> Json | None:
    """The node at a path of another rank's state; None: there is none."""
    if path is None:
        return node
    parent, key = path
    outer = node_at(node, parent)
    children = dict_items(outer) if outer is not None else None
    if children is not None:
        return dict(children).get(key)
    items = list_items(outer)
    inside = items is not None and type(key) is int and key < len(items)
    return items[key] if items is not None and inside else None


class Source(NamedTuple):
    """The node of a module or an optimizer of one rank, and what is taken from it."""

    rank: int
    node: Node
    #: names of tensors or parameters; for an optimizer, with their numbers in the node
    names: dict[str, int]


class Found(NamedTuple):
    """What was found in other views."""

    sources: list[Source]
    #: names that two ranks have described differently: the name, and the ranks
    differing: list[tuple[str, int, int]]
    #: tensors of which a rank had its own part, which fits only that rank: the name, and the rank
    parts: list[tuple[str, int]]

    def names(self) -> set[str]:
        """All names that were found."""
        return {name for source in self.sources for name in source.names}


#: By the name of a parameter: its number in the node, and its description without tensors.
_Said = dict[str, tuple[int, Json]]


class Views:
    """
    The views of other ranks. Each is read when it is needed. `base`: the rank whose view this rank
    has. `state`: that view. `closed`: no other view may be read.
    """

    def __init__(
        self,
        reader: Reader,
        stored: dict[str, Stored],
        base: int,
        state: Json,
        *,
        closed: bool,
    ) -> None:
        self._state = state
        self._reader = reader
        self._stored = stored
        self._base = base
        self._closed = closed
        #: by rank, in the order in which they were read
        self._metas: dict[int, Node] = {}
        #: names of optimizer state that was saved as local parts of the parameters' layout
        self.local: set[str] = set()
        #: names in the modules of the views that were read; None: none was read
        self._known: set[str] | None = None

    def module(self, path: Path, node: Node, lacking: Iterable[str]) -> Found:
        """Finds tensors of a module. They have the same prefix in each view."""
        prefix: str = node["prefix"]

        def said(other: Node) -> _Said:
            if other["prefix"] != prefix:
                return {}
            # Tensors that are each rank's own have other names in the step.
            names = (name for name in other["tensors"] if name in self._stored)
            found: _Said = {name[len(prefix) :]: (0, None) for name in names}
            found.update((key, (0, value)) for key, value in other["extra"].items())
            return found

        return self._find("$module", path, lacking, said, prefix)

    def optimizer(self, path: Path, node: Node, lacking: Iterable[str]) -> Found:
        """Finds parameters of an optimizer of the same class."""

        def said(other: Node) -> _Said:
            return {} if other["class"] != node["class"] else _said_of_parameters(other)

        return self._find("$optimizer", path, lacking, said, "")

    def _find(
        self,
        tag: str,
        path: Path,
        lacking: Iterable[str],
        said: Callable[[Node], _Said],
        prefix: str,
    ) -> Found:
        writers = {name: self._writer(prefix + name) for name in lacking}
        views = {rank: self._look(rank, tag, path, said) for rank in self._metas}
        found: dict[int, dict[str, int]] = {}
        # Parameters without tensors can only be found in views that were read for others.
        for name in sorted(writers, key=lambda name: (writers[name] is None, name)):
            rank = next((one for one, (_, names) in views.items() if name in names), None)
            writer = writers[name]
            if rank is None and self._is_news(prefix + name, writer, views):
                assert writer is not None
                views[writer] = self._look(writer, tag, path, said)
                rank = writer if name in views[writer][1] else None
            if rank is not None:
                found.setdefault(rank, {})[name] = views[rank][1][name][0]
        sources = [Source(rank, views[rank][0], names) for rank, names in found.items()]
        differing, parts = [], []
        for source in sources:
            for name in source.names:
                mine = views[source.rank][1][name][1]
                others = (
                    other
                    for other, (_, names) in views.items()
                    if name in names and not same(names[name][1], mine)
                )
                differing += [(name, source.rank, other) for other in others][:1]
                parts += [(name, source.rank)] * mentions(mine, "$spread")
        return Found(sources, differing, parts)

    def at(self, rank: int, path: Path) -> Json:
        """The node at a path in the view of a rank."""
        return node_at(self._state if rank == self._base else self._read(rank)["state"], path)

    def _is_news(self, name: str, writer: int | None, views: Collection[int]) -> bool:
        """
        True if the view of the rank that wrote a tensor may have more than those that were read. A
        parameter in one of their modules is in an optimizer of that view, or in none.
        """
        if writer is None or writer in views:
            return False
        if self._known is None:
            self._known = set(_tensors_of_modules(self._state))
        return name not in self._known

    def _writer(self, name: str) -> int | None:
        """The rank whose view must have a name; None: it was read already."""
        what = None if self._closed else self._stored.get(name)
        if what is None or not what.here or is_own(what.home) or what.rank == self._base:
            return None
        return what.rank if self._reader.away(what.rank) is None else None

    def _read(self, rank: int) -> Node:
        meta = self._metas.get(rank)
        if meta is None:
            meta = self._metas[rank] = self._reader.meta(rank) or {"state": {}}
            self.local.update(meta.get("local") or ())
            if self._known is not None:
                self._known.update(_tensors_of_modules(meta["state"]))
        return meta

    def _look(
        self, rank: int, tag: str, path: Path, said: Callable[[Node], _Said]
    ) -> tuple[Node, _Said]:
        node = self.at(rank, path)
        if type(node) is not dict or tag_of(node) != tag:
            return {}, {}
        return node[tag], said(node[tag])


def _tensors_of_modules(node: Json) -> Iterator[str]:
    if type(node) is list:
        for item in node:
            yield from _tensors_of_modules(item)
    elif type(node) is dict and tag_of(node) == "$module":
        yield from node["$module"]["tensors"]
    elif type(node) is dict:
        for item in node.values():
            yield from _tensors_of_modules(item)


def _said_of_parameters(node: Node) -> _Said:
    """For each parameter of an optimizer: number, roles, values, and options of its group."""
    names: list[str] = node["params"]
    roles: dict[int, list[str]] = {}
    for number, role in expand_state(node["state"], len(names)):
        roles.setdefault(number, []).append(role)
    values, first = node["values"], 0
    said: _Said = {}
    for group in node["groups"]:
        for number in range(first, first + group["count"]):
            more = [roles.get(number), values.get(str(number)), group["options"]]
            said[names[number]] = number, more
        first += group["count"]
    return said


def same(a: Json, b: Json) -> bool:
    """
    True if two nodes are equal. Values that are stored as each rank's own tensors have different
    names, and count as different.
    """
    # Compared as text, because True == 1 == 1.0 in Python.
    return a is b or json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


# Joining the nodes of several ranks.


def unite_module(node: Node, sources: list[Source]) -> Node:
    """The node of a module, with the tensors of other ranks."""
    tensors, extra = list(node["tensors"]), dict(node["extra"])
    for source in sources:
        for name in source.names:
            if name in source.node["extra"]:
                extra[name] = source.node["extra"][name]
            else:
                tensors.append(node["prefix"] + name)
    return {**node, "tensors": tensors, "extra": extra}


class United(NamedTuple):
    """An optimizer that is joined from several ranks."""

    node: Node
    #: of each live group, its number in the node; None: it is new
    groups: list[int | None]
    #: the ranks from which parameters are taken
    ranks: list[int]
    #: the groups have other numbers than on one of these ranks
    renumbered: bool


def unite_optimizer(sources: list[Source], groups: list[list[str]]) -> United | str:
    """
    Joins the sources to one optimizer with the parameters of the live groups. Returns text if that
    is not possible: two groups were one, the parameters of one were in two, or options or values of
    groups or optimizers differ.
    """
    sources = [source for source in sources if source.names] or sources[:1]
    if text := _other_values(sources):
        return text
    owners = {name: source for source in sources for name in source.names}
    bounds = {source.rank: _bounds(source.node) for source in sources}
    renumbered = False
    united: list[Node] = []
    params: list[tuple[str, Source]] = []
    numbers: list[int | None] = []
    seen: dict[int, int] = {}  # by rank: its last group that was met
    for number, names in enumerate(groups):
        known = [name for name in names if name in owners]
        whence: dict[tuple[int, int], str] = {}
        for name in known:
            source = owners[name]
            whence.setdefault((source.rank, bounds[source.rank][source.names[name]]), name)
        ranks = [rank for rank, _ in whence]
        for rank, group in whence:
            if ranks.count(rank) > 1 or group <= seen.get(rank, -1):
                return (
                    "has its parameters in other groups, or the groups in another order, than on "
                    f"rank {rank} of the step"
                )
            seen[rank] = group
            renumbered |= group != number
        # A group without parameters can only be identified by its number.
        kept = not names and all(len(one.node["groups"]) == len(groups) for one in sources)
        if kept:
            whence = {(source.rank, number): "it has no parameters now" for source in sources}
        if not whence:
            numbers.append(None)
            continue
        options = [_options(sources, *one) for one in whence]
        for (rank, _), name, one in zip(whence, whence.values(), options, strict=True):
            if not same(one, options[0]):
                first, of = next(iter(whence.items()))
                return (
                    f"group {number} had other options on rank {rank} of the step ({name}) than on "
                    f"rank {first[0]} ({of}): {_differing(one, options[0])}"
                )
        numbers.append(len(united))
        united.append({"count": len(known), "options": options[0]})
        params += ((name, owners[name]) for name in known)
    renumbered |= any(len(source.node["groups"]) != len(groups) for source in sources)
    ranks = [source.rank for source in sources]
    return United(_with_state(sources[0].node, united, params), numbers, ranks, renumbered)


def _other_values(sources: list[Source]) -> str | None:
    """The difference between optimizers of ranks, apart from parameters; None: none."""
    first = sources[0]
    for source in sources:
        for part in ("other", "extra"):
            if not same(source.node[part], first.node[part]):
                return (
                    f"had other values beside the state of parameters on rank {source.rank} of the "
                    f"step than on rank {first.rank}"
                )
    return None


def _bounds(node: Node) -> list[int]:
    """For each parameter, the number of its group."""
    return [number for number, group in enumerate(node["groups"]) for _ in range(group["count"])]


def _options(sources: list[Source], rank: int, group: int) -> Json:
    node = next(source.node for source in sources if source.rank == rank)
    return node["groups"][group]["options"]


def _differing(a: Json, b: Json) -> str:
    """Keys of options that differ."""
    one, other = dict(dict_items(a) or ()), dict(dict_items(b) or ())
    names = [str(key) for key in {**one, **other} if not same(one.get(key), other.get(key))]
    return ", ".join(sorted(names))


def _with_state(node: Node, groups: list[Node], params: list[tuple[str, Source]]) -> Node:
    """The node with these parameters, and the state of them from their sources."""
    roles: dict[tuple[int, int], list[str]] = {}
    for source in {id(one): one for _, one in params}.values():
        for number, role in expand_state(source.node["state"], len(source.node["params"])):
            roles.setdefault((source.rank, number), []).append(role)
    state: dict[tuple[str, ...], list[int]] = {}
    values: dict[str, Json] = {}
    for number, (name, source) in enumerate(params):
        then = source.names[name]
        if found := roles.get((source.rank, then)):
            state.setdefault(tuple(found), []).append(number)
        if (entry := source.node["values"].get(str(then))) is not None:
            values[str(number)] = entry
    return {
        **node,
        # Older steps have names of wrappers in the names.
        "params": [source.node["params"][source.names[name]] for name, source in params],
        "groups": groups,
        "state": [{"roles": list(some), "params": which} for some, which in state.items()],
        "values": values,
    }


def own_tensors(source: Source, holds: Callable[[str], bool]) -> list[str]:
    """Tensors of a source that are missing in the step, because they were each rank's own."""
    wanted = set(source.names.values())
    node = source.node
    names = (
        state_tensor_name(node["prefix"], node["params"][number], role)
        for number, role in expand_state(node["state"], len(node["params"]))
        if number in wanted
    )
    return [name for name in names if not holds(name)]
