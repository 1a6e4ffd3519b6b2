# SPDX-License-Identifier: Apache-2.0
"""Restores an object by its load_state_dict()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._asking import asking
from ._into import kind_of
from ._json_nodes import Json, Path, path_name, path_text, tag_of
from ._live import Live
from ._log import logger
from ._per_rank import PerRank
from ._reader import references
from ._state_kinds import is_optimizer
from ._views import dict_items, is_list_of, list_items, node_at, same
from .adapters._live_parts import must_be_asked
from .adapters._loaders import generator_of, is_loader

if TYPE_CHECKING:
    import torch


class ObjectLoad:
    """The restore of one object."""

    def __init__(self, live: Live, node: dict[str, Json], value: Any, path: Path) -> None:
        self._live = live
        self._node = node
        self._value = value
        self._path = path
        self._generator: torch.Generator | None = None

    def match(self) -> bool:
        """Allocates memory for its state. False: the object keeps its state."""
        live, value, path = self._live, self._value, self._path
        if self._node["class"] != kind_of(value):
            text = f"{path_text(path)} is a {kind_of(value)}, and was a {self._node['class']}"
            if type(value).__module__.startswith("torch."):
                live.problem("changed", text)
                return False
            logger.warning("%s: its load_state_dict() is called with it anyway", text)
        if not live.origin.whole and not self._of_this_rank():
            return False
        node = self._node
        if not is_loader(value) and not isinstance(value, PerRank):
            live.unknown.append((node, value, path))
        if not is_loader(value) and must_be_asked(node):
            with asking(path, "state_dict"):
                state = value.state_dict()
            self._want_like(node["state"], state, path)
        else:
            live.want(node["state"], path)
        self._match_generator()
        return True

    def _match_generator(self) -> None:
        """Assigns memory for the generator of a loader."""
        live, generator = self._live, generator_of(self._value)
        if generator is not None and "generator" not in self._node:
            live.differences.stays(f"the generator of {path_text(self._path)}")
            live.generator_stayed = True
        elif generator is not None:
            self._generator = generator
            live.want(self._node["generator"], self._path)
        elif "generator" in self._node:
            text = f"{path_text(self._path)} was given a generator, and now has none"
            live.differences.say(text)

    def _want_like(self, node: Json, value: Any, path: Path) -> None:
        """Allocates memory for its state, with the layout of DTensors that it has now."""
        if self._live.want_part(node, value):
            return
        children, items = dict_items(node), list_items(node)
        if children is not None and isinstance(value, Mapping):
            for key, item in children:
                self._want_like(item, value.get(key), (path, key))
        elif items is not None and is_list_of(value, len(items)):
            for index, (item, old) in enumerate(zip(items, value, strict=True)):
                self._want_like(item, old, (path, index))
        else:
            self._live.want(node, path)

    def _of_this_rank(self) -> bool:
        """Takes the node that this rank saved. False: there is none; the object keeps its state."""
        live, value, path = self._live, self._value, self._path
        if not isinstance(value, PerRank):
            # torch's schedulers go by the step, and optimizers by parameters, as all ranks do.
            if not (type(value).__module__.startswith("torch.optim.") or is_optimizer(value)):
                live.borrowed.append(path_text(path))
            return True
        own = live.origin.own
        found = None if own is None else node_at(own["state"], path)
        if found is None or tag_of(found) != "$object":
            live.kept.append(path_text(path))
            return False
        self._node = found["$object"]
        return True

    def apply(self) -> None:
        """Calls load_state_dict() with what was read."""
        live, value, path = self._live, self._value, self._path
        state = live.decode(self._node["state"], path)
        with asking(path, "load_state_dict"):
            value.load_state_dict(state)
        if is_loader(value):
            live.begun.append((value, path, _epochs_in(self._node)))
        else:
            live.objects.append(value)
        generator = self._generator
        if generator is not None:
            then = live.decode(self._node["generator"], path)
            live.late.append(lambda: generator.set_state(then))


def check_objects(live: Live, match: Callable[[Json, Any, Path], None]) -> None:
    """
    Checks objects whose contents are opaque, if this rank is another stage than the one that saved
    them. Schedulers may be matched again, with the node of another rank.
    """
    unknown, live.unknown = live.unknown, []
    for node, value, path in unknown:
        where, rank = path_text(path), live.origin_rank
        if live.leftovers.restaged and node.get("spread"):
            text = f"{where} has DTensors of the stage of rank {rank}, and is restored there only"
            live.problem("changed", text, path_name(path))
        elif live.leftovers.restaged and any(references(node["state"])):
            text = f"{where} has tensors, and gets those of rank {rank}, which was another stage"
            live.differences.say(text)
        elif live.owners:
            _check_owners(live, node, value, path, match)
    if not any(_is_scheduler(value) for _, value, _ in unknown):
        for where in live.renumbered:
            live.differences.say(f"{where}: its groups have other numbers than in the step")


def _check_owners(
    live: Live, node: Json, value: Any, path: Path, match: Callable[[Json, Any, Path], None]
) -> None:
    """Checks a scheduler whose optimizer takes groups of another rank."""
    where = path_text(path)
    nodes = [live.views.at(rank, path) for rank in live.owners]
    first, mine = live.owners[0], {"$object": node}
    other = next((n for n, one in enumerate(nodes) if not same(one, nodes[0])), None)
    if _is_scheduler(value) and live.renumbered:
        text = (
            f"{where} refers to the groups of its optimizer by their numbers, and in "
            f"{live.renumbered[0]} the numbers differ from those in the step"
        )
        live.problem("changed", text, path_name(path))
    elif _is_scheduler(value) and other is not None:
        text = f"{where} differed between rank {live.owners[other]} and rank {first}"
        live.problem("changed", f"{text} of the step", path_name(path))
    elif _is_scheduler(value) and not same(nodes[0], mine):
        found = nodes[0]
        if type(found) is dict and tag_of(found) == "$object":
            match(found["$object"], value, path)
        else:
            text = f"{where} is not in what rank {first} saved"
            live.problem("missing", text, path_name(path))
    elif any(not same(one, mine) for one in nodes):
        text = f"{where} gets the state of rank {live.origin_rank}, and its own stage had another"
        live.differences.say(text)


def _is_scheduler(value: Any) -> bool:
    """True for torch's learning rate schedulers and their subclasses."""
    import torch

    return isinstance(value, torch.optim.lr_scheduler.LRScheduler)


def _epochs_in(node: dict[str, Json]) -> dict[str, int]:
    """The epochs that were set in parts of a loader, by their names."""
    said = node.get("epoch")
    if type(said) is not dict:
        return {}
    return {name: epoch for name, epoch in said.items() if type(epoch) is int}
