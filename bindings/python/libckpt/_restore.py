# SPDX-License-Identifier: Apache-2.0
"""
Putting a step back into a live state, in place.

First the checkpoint is compared with the live state, and every tensor is given the memory it goes
to; nothing is changed by that. Then the library reads. Then everything else is put in place.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _dtypes, _rng
from ._asking import asking, is_of_user, placed
from ._decoder import Decoder
from ._differences import Differences, Where, keeps_new_keys
from ._engine import logger
from ._errors import (
    CheckpointError,
    CheckpointWarning,
    FormatError,
)
from ._into import (
    generators_in,
    into,
    is_generator,
    is_module,
    is_tensor,
    keeper,
    kind_of,
    same_bits,
)
from ._live_parts import must_be_asked, want_part
from ._loaders import begin, generator_of, is_loader
from ._module_load import ModuleLoad
from ._modules import parameter_names, reshard, unwrap
from ._optimizer_load import OptimizerLoad
from ._origin import LISTED, Origin, check_world
from ._others import differing
from ._ranks import PerRank
from ._reader import Memory, Reader, Stored, references
from ._save import Progress
from ._specials import Special, is_optimizer, is_stateful, specials_in
from ._subclasses import Places, empty_like, is_wrapped, wraps
from ._tensors import (
    check_place,
    check_tensor,
    describe,
    describe_array,
    is_whole,
    overlaps,
)
from ._typed import SPECIAL_TAGS, Json, Path, path_name, path_text, tag_of

if TYPE_CHECKING:
    import torch

_PLAIN = {bool, bytes, complex, float, int, str, type(None)}


class Restored(NamedTuple):
    """What has come of a restore."""

    #: paths of settings that the step does not have, and that have stayed
    stayed: set[Path]
    #: the step has everything that is in the state of this rank, and the state has nothing else
    complete: bool


def restore(
    reader: Reader,
    state: dict[str, Any],
    *,
    allow_pickle: bool,
    progress: Callable[[Progress], object] | None,
    tolerated: Sequence[str] = (),
    exact: bool = False,
    kept: Collection[Path] = (),
) -> Restored:
    """
    Brings `state` back to what the step holds. `tolerated`: patterns over the names of what may be
    new or gone. `exact`: it was saved or resumed before, so that settings which are new go, but for
    those that are `kept`.
    """
    origin = Origin.of(reader)
    meta = origin.meta
    if meta is None:
        raise FormatError(
            f"step {reader.step} was not written by a Checkpointer, so that there is no state to "
            "resume: libckpt.load() gives its tensors, and libckpt.dcp.StorageReader what "
            "dcp.save() has saved",
            step=reader.step,
        )
    check_world(reader, origin)
    live = _Live(reader, allow_pickle, origin, tolerated, exact=exact, kept=kept)
    try:
        live.match(meta, state)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError) or is_of_user(error):
            raise
        raise FormatError(
            f"step {reader.step}: its state is malformed: {error!r}", step=reader.step
        ) from error
    reader.read(progress)
    live.apply(meta, state)
    live.warn()
    return Restored(live.stayed, origin.whole and not (tolerated or live.has_more))


class _Live:
    """One restore. `match` finds what goes where, `apply` does what is no reading."""

    def __init__(
        self,
        reader: Reader,
        allow_pickle: bool,
        origin: Origin,
        tolerated: Sequence[str],
        *,
        exact: bool,
        kept: Collection[Path],
    ) -> None:
        self._reader = reader
        self._exact = exact
        self._kept_before = kept
        #: settings that the step does not have, and that stay
        self.stayed: set[Path] = set()
        #: the generator of a loader has
        self._generator_stayed = False
        #: of dicts the keys that the step does not have, and that stay
        self._staying: set[tuple[int, str]] = set()
        #: modules that the step does not have, and where they are
        self._new: list[Special] = []
        self._origin = origin
        where = Where(reader.step, reader.engine.rank, reader.engine.world)
        self.differences = Differences(where, tolerated)
        #: nodes that have no place in the live state, and are left out
        self._left: set[int] = set()
        #: objects that get another rank's state though they may have had another on each
        self._borrowed: list[str] = []
        #: values of a rank that was not there
        self._kept: list[str] = []
        self._stored = reader.stored(origin.meta)
        self._memory = Memory(reader, self._stored)
        self.places = Places(
            self.stored,
            self.fits,
            self.bind,
            self.differences.problem,
            whole=origin.whole,
            allow_pickle=allow_pickle,
        )
        self._decoder = Decoder(self._memory.get, allow_pickle=allow_pickle)
        self._local = set((origin.meta or {}).get("local") or ())
        self._names: dict[int, str] = {}
        self._optimizers: list[OptimizerLoad] = []
        self._loads: dict[int, Callable[[], None]] = {}
        #: other objects that have been
        self._objects: list[Any] = []
        #: loaders that have been restored, where they are, and which epochs they were told
        self._begun: list[tuple[Any, Path, dict[str, int]]] = []
        #: puts generators back, again, when nothing draws from them any more
        self._late: list[Callable[[], object]] = []
        #: tensors and arrays in containers that cannot take bytes, and are replaced
        self._replaced: set[int] = set()

    @property
    def has_more(self) -> bool:
        """True if something stays that the step does not have."""
        return bool(self.stayed or self._kept or self._generator_stayed)

    def match(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """Compares; raises MismatchError that lists everything that is different."""
        children = _dict_items(meta["state"])
        if children is None:
            raise FormatError(f"step {self._reader.step}: its state is no dict")
        self._match_keys(dict(children), state, None)
        for path, module in self._new:
            if is_module(module):
                self.name_tensors(parameter_names(unwrap(module), f"{path_name(path)}/"))
        for optimizer in self._optimizers:
            optimizer.match(self._names)
        for name, kind in references(self._rng()):
            self._memory.want(name, kind)
        self.differences.raise_problems()

    def _rng(self) -> Json:
        return {} if self._origin.own is None else self._origin.own["rng"]

    def apply(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """The tensors are in place; now everything else. The generators come last."""
        for key, node in _dict_items(meta["state"]) or ():
            if key in state:
                state[key] = self._apply(node, state[key], (None, key))
        # What draws when it begins may draw from what an object of the state has put back.
        held = {id(one): keeper(one) for value in self._objects for one in generators_in(value)}
        for loader, path, epochs in self._begun:
            begin(loader, path, epochs)
        for put_back in held.values():
            put_back()
        for put_back in self._late:
            put_back()
        if self._origin.own is None:
            self._seed()
        else:
            _rng.restore(self._rng(), self._decoder)

    def _seed(self) -> None:
        """There was no such rank: its generators get what no other rank has, and no other step."""
        reader, rank = self._reader, self._reader.engine.rank
        source = f"{reader.engine.run_id()}/{reader.generation}/{reader.step}/{rank}"
        _rng.seed_all(int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big"))

    def warn(self) -> None:
        """Says what another number of ranks has made of this rank's state."""
        self.differences.warn()
        if self._origin.whole:
            return
        engine, said = self._reader.engine, []
        if self._origin.own is None:
            said.append("its random number generators are seeded anew")
        if self._kept:
            why = "" if self._origin.node is not None else f" (no rank {engine.rank} saved)"
            said.append(f"{', '.join(self._kept)} stay as they are{why}")
        found = differing(self._reader, self._origin, self._stored)
        names = [name for name in found.names if not name.startswith(tuple(self._borrowed))]
        if names:
            more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
            said.append(
                f"ranks had different values of {', '.join(names[:LISTED])}{more}: what is there "
                f"now is what rank {self._origin.rank} had"
            )
        if found.large:
            more = f" and {len(found.large) - LISTED} more" * (len(found.large) > LISTED)
            some = ", ".join(found.large[:LISTED])
            said.append(f"{some}{more} are large, and were not compared with other ranks'")
        if found.ranks_left:
            said.append(f"the values of {found.ranks_left} other ranks were not compared")
        if self._borrowed:
            said.append(
                f"{', '.join(self._borrowed)} got the state of rank {self._origin.rank}: where it "
                "is a position in the data of one rank, samples may be seen twice or not at all"
            )
        if said:
            where = ""
            if self._origin.node is not None:
                where = f", and what rank {engine.rank} saved is on node {self._origin.node}"
            message = (
                f"step {self._reader.step} was saved by {self._reader.world} ranks, and this is "
                f"rank {engine.rank} of {engine.world}{where}: {'; '.join(said)}"
            )
            logger.warning("%s", message)
            warnings.warn(message, CheckpointWarning, stacklevel=5)

    # Comparing.

    def problem(self, kind: str, text: str, name: str | None = None) -> bool:
        """Notes a difference; True: it may be. See Differences."""
        return self.differences.problem(kind, text, name)

    def stays(self, text: str, path: Path) -> bool:
        """True, and a word of it, for a setting that the step does not have, and that stays."""
        may = not self._exact or path in self._kept_before
        if not may and not self.differences.tolerates(path_name(path)):
            return False
        self.stayed.add(path)
        self.differences.stays(text)
        return True

    def _match_keys(self, children: dict[str, Json], state: dict[str, Any], path: Path) -> None:
        for key, node in children.items():
            if key in state:
                self._match(node, state[key], (path, key))
            else:
                self._problem_at("unexpected", (path, key))
        for key, value in state.items():
            if key not in children:
                self._missing(value, (path, key))

    def _missing(self, value: Any, path: Path) -> None:
        """What the step does not have. Optimizers may have parameters of it."""
        if self._problem_at("missing", path):
            self._new += specials_in(value, path)

    def _problem_at(self, kind: str, path: Path, what: str = "{}") -> bool:
        return self.problem(kind, what.format(path_text(path)), path_name(path))

    def _match(self, node: Json, live: Any, path: Path) -> None:
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            self._match_special(tag, node[tag], live, path)
        elif _is_special(live):
            self.problem("changed", f"{path_text(path)} is a {kind_of(live)}, and was plain data")
        elif tag == "$tensor" and is_tensor(live):
            self._match_tensor(self._memory.stored(node[tag]), live, path)
        elif is_wrapped(node) and wraps(live):
            self.places.place(node, live, live, path)
        elif tag == "$ndarray" and _is_array(live):
            if type(node[tag]) is dict:
                self._match_array(self._memory.stored(node[tag].get("$tensor")), live, path)
        elif (children := _dict_items(node)) is not None and isinstance(live, dict):
            self._match_dict(dict(children), live, path)
        elif (items := _list_items(node)) is not None and _is_list_of(live, len(items)):
            for index, (item, value) in enumerate(zip(items, live, strict=True)):
                self._match(item, value, (path, index))
        else:
            if _holds_memory(live):
                self.problem("changed", f"{path_text(path)} holds tensors in another arrangement")
            self._want(node, path)

    def _want(self, node: Json, path: Path) -> None:
        """What has no place in the live state gets memory of its own."""
        if _has_special(node):
            if self._problem_at("unexpected", path, "the objects in {}"):
                self._left.add(id(node))
            return
        self._decoder.check(node)
        for name, kind in references(node):
            self._memory.want(name, kind)

    def _match_dict(self, children: dict[Any, Json], live: dict[Any, Any], path: Path) -> None:
        for key, node in children.items():
            if key in live:
                self._match(node, live[key], (path, key))
            elif live and any(references(node)):
                if self._problem_at("unexpected", (path, key)):
                    self._left.add(id(node))
            else:
                self._want(node, (path, key))
        for key, value in live.items():
            if key in children:
                continue
            if _holds_memory(value):
                self._missing(value, (path, key))
            elif keeps_new_keys(live) and self.stays(path_text((path, key)), (path, key)):
                self._staying.add((id(live), key))

    def _match_tensor(self, stored: Stored, live: torch.Tensor, path: Path) -> None:
        if not self.fits(stored, live, path_text(path)):
            return
        self._names.setdefault(id(live), stored.name)
        if overlaps(describe(live)):
            self._memory.want(stored.name, "torch", live.device)
            self._replaced.add(id(live))
        else:
            self._memory.use(stored.name, live)

    def fits(self, stored: Stored, live: torch.Tensor, where: str) -> bool:
        """True if the live tensor can take the bytes; otherwise a problem is noted."""
        if wraps(live):
            text = f"{where} is a {kind_of(live)}, which wraps tensors, and was {stored}"
            self.problem("changed", text, where)
            return False
        check_tensor(live, where)
        what = describe(live)
        if (what.dtype, what.full_shape) == (stored.dtype, stored.shape):
            return True
        now = f"{_dtypes.name_of(what.dtype)} {list(what.full_shape)}"
        self.problem("changed", f"{where} is {now}, and was {stored}", where)
        return False

    def _match_array(self, stored: Stored, live: Any, path: Path) -> None:
        if not fits_array(stored, live):
            self.problem(
                "changed",
                f"{path_text(path)} is {live.dtype} {list(live.shape)}, and was {stored}",
            )
        elif not live.flags.writeable or not is_whole(live) or overlaps(describe_array(live)):
            self._memory.want(stored.name, "numpy")
            self._replaced.add(id(live))
        else:
            self._reader.bind(stored.name, describe_array(live), live)

    def _match_special(self, tag: str, node: Json, live: Any, path: Path) -> None:
        import torch

        if tag == "$module" and isinstance(live, torch.nn.Module):
            self._loads[id(live)] = ModuleLoad(self, node, live, path).match()
        elif tag == "$optimizer" and isinstance(live, torch.optim.Optimizer):
            optimizer = OptimizerLoad(self, node, live, path)
            self._optimizers.append(optimizer)
            self._loads[id(live)] = optimizer.apply
        elif tag == "$object" and _is_special(live) and is_stateful(live):
            self._match_object(node, live, path)
        else:
            self.problem(
                "changed", f"{path_text(path)} is a {kind_of(live)}, and was {node['class']}"
            )

    def _match_object(self, node: Json, live: Any, path: Path) -> None:
        if node["class"] != kind_of(live):
            text = f"{path_text(path)} is a {kind_of(live)}, and was a {node['class']}"
            if type(live).__module__.startswith("torch."):
                self.problem("changed", text)
                return
            logger.warning("%s: its load_state_dict() is called all the same", text)
        if not self._origin.whole:
            found = self._of_this_rank(node, live, path)
            if found is None:
                return
            node = found
        if not is_loader(live) and must_be_asked(node):
            with asking(path, "state_dict"):
                state = live.state_dict()
            self._want_like(node["state"], state, path)
        else:
            self._want(node["state"], path)
        generator = generator_of(live)
        if generator is not None and "generator" not in node:
            self.differences.stays(f"the generator of {path_text(path)}")
            self._generator_stayed = True
            generator = None
        elif generator is None and "generator" in node:
            self.differences.say(f"{path_text(path)} was given a generator, and now has none")
        if generator is not None:
            self._want(node["generator"], path)

        def load() -> None:
            state = self.decode(node["state"], path)
            with asking(path, "load_state_dict"):
                live.load_state_dict(state)
            if is_loader(live):
                self._begun.append((live, path, _epochs_in(node)))
            else:
                self._objects.append(live)
            if generator is not None:
                then = self._decoder.decode(node["generator"])
                self._late.append(lambda: generator.set_state(then))

        self._loads[id(live)] = load

    def _want_like(self, node: Json, live: Any, path: Path) -> None:
        """Memory for what an object is to be given; what it has spread over ranks is read there."""
        if want_part(self._memory, node, live):
            return
        children, items = _dict_items(node), _list_items(node)
        if children is not None and isinstance(live, Mapping):
            for key, item in children:
                self._want_like(item, live.get(key), (path, key))
        elif items is not None and _is_list_of(live, len(items)):
            for index, (item, old) in enumerate(zip(items, live, strict=True)):
                self._want_like(item, old, (path, index))
        else:
            self._want(node, path)

    def _of_this_rank(self, node: Json, live: Any, path: Path) -> Json | None:
        """The node to restore an object from; None: it stays as it is."""
        if not isinstance(live, PerRank):
            # torch's schedulers go by the step, and optimizers by parameters, as all ranks do.
            if not (type(live).__module__.startswith("torch.optim.") or is_optimizer(live)):
                self._borrowed.append(path_text(path))
            return node
        own = self._origin.own
        found = None if own is None else _node_at(own["state"], path)
        if found is None or tag_of(found) != "$object":
            self._kept.append(path_text(path))
            return None
        return found["$object"]

    # What ModuleLoad and OptimizerLoad need.

    def stored(self, name: object) -> Stored:
        """What the step says of a name."""
        return self._memory.stored(name)

    def holds(self, *names: str) -> bool:
        """True if the step has tensors of all these names."""
        return all(name in self._stored for name in names)

    def reshard(self, module: torch.nn.Module) -> None:
        """Puts sharded parameters back where whole ones stand in their place."""
        reshard(module)

    def name_tensors(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Names under which optimizers know parameters."""
        for name, tensor in pairs:
            self._names.setdefault(id(tensor), name)

    def is_local(self, name: str) -> bool:
        """True for state of an optimizer that was kept as a part, as the parameter's is."""
        return name in self._local

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """The tensor of that name, or the box of it that `like` is, goes to this memory."""
        what = describe(tensor, like)
        check_place(what, name)
        self._reader.bind(name, what, tensor)

    def differs(self, loaded: Any, given: torch.Tensor) -> bool:
        """True if an object has another tensor than its load_state_dict() was given."""
        return not same_bits(loaded, given)

    def check_kept(self, tensor: torch.Tensor) -> None:
        """Raises for a tensor that is to be replaced, and that an optimizer holds."""
        if id(tensor) in self._replaced:
            check_place(describe(tensor), self._names[id(tensor)])

    def want(self, node: Json, path: Path) -> None:
        """Memory for everything that a node without counterpart mentions."""
        self._want(node, path)

    def empty(self, stored: Stored, device: torch.device | str) -> torch.Tensor:
        """Memory that an optimizer has not made yet."""
        import torch

        dtype = _dtypes.torch_type(stored.dtype)
        return torch.empty(stored.shape, dtype=dtype, device=device)

    def empty_like(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        """The same, which lies as the parameter does."""
        found: torch.Tensor = empty_like(parameter, _dtypes.torch_type(stored.dtype))
        return found

    def want_tensor(self, name: str, device: torch.device | None = None) -> torch.Tensor:
        """Fresh memory for a tensor."""
        fresh: torch.Tensor = self._memory.want(name, "torch", device)
        return fresh

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """Fresh memory for a tensor, spread over the ranks as the live one is."""
        return self._memory.want_like(name, live)

    def decode(self, node: Json, path: Path) -> Any:
        """The value of a node for what stands at `path`; only after reading."""
        with placed(path):
            return self._decoder.decode(node)

    # Putting in place.

    def _apply(self, node: Json, live: Any, path: Path) -> Any:
        if id(node) in self._left:
            return live
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            load = self._loads.pop(id(live), None)
            if load is not None:
                load()
            return live
        if is_wrapped(node) and wraps(live):
            return live
        if (tag == "$tensor" and is_tensor(live)) or (
            tag == "$ndarray" and _is_array(live) and type(node[tag]) is dict
        ):
            return self.decode(node, path) if id(live) in self._replaced else live
        children = _dict_items(node)
        if children is not None and isinstance(live, dict):
            new = {
                key: self._apply(item, live[key], (path, key))
                if key in live
                else self.decode(item, (path, key))
                for key, item in children
                if key in live or id(item) not in self._left
            }
            for key, value in live.items():
                if key not in new and ((id(live), key) in self._staying or _holds_memory(value)):
                    new[key] = value
            live.clear()
            live.update(new)
            return live
        items = _list_items(node)
        if items is not None and _is_list_of(live, len(items)):
            values = [
                self._apply(item, old, (path, index))
                for index, (item, old) in enumerate(zip(items, live, strict=True))
            ]
            if type(live) is tuple:
                return tuple(values)
            live[:] = values
            return live
        value = self.decode(node, path)
        self.differences.compare(live, value, path)
        if is_generator(live):
            self._late.append(lambda: into(live, value))
        return into(live, value)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _is_special(value: Any) -> bool:
    """True for what has a node of its own in the Python state."""
    if type(value) in _PLAIN or isinstance(value, (dict, list, tuple)):
        return False
    return is_module(value) or is_stateful(value)


def _holds_memory(value: Any) -> bool:
    """True if there is something in it that is restored in place."""
    if isinstance(value, dict):
        return any(map(_holds_memory, value.values()))
    if isinstance(value, (list, tuple)):
        return not set(map(type, value)) <= _PLAIN and any(map(_holds_memory, value))
    return is_tensor(value) or _is_array(value) or _is_special(value)


def fits_array(stored: Stored, live: Any) -> bool:
    """True if it has the type and the shape of what is stored."""
    number = _dtypes.numpy_numbers().get(live.dtype)
    return bool((number, live.shape) == (stored.dtype, stored.shape))


def _epochs_in(node: dict[str, Json]) -> dict[str, int]:
    """The epochs that parts of a loader were told, by their names."""
    said = node.get("epoch")
    if type(said) is not dict:
        return {}
    return {name: epoch for name, epoch in said.items() if type(epoch) is int}


def _has_special(node: Json) -> bool:
    if type(node) is list:
        return not set(map(type, node)) <= _PLAIN and any(map(_has_special, node))
    if type(node) is dict:
        return tag_of(node) in SPECIAL_TAGS or any(map(_has_special, node.values()))
    return False


_DICT_TAGS = {"$dict": 0, "$odict": 0, "$counter": 0, "$defaultdict": 1}


def _dict_items(node: Json) -> list[tuple[Any, Json]] | None:
    """Keys and nodes of anything that is a dict; None if it is none."""
    if type(node) is not dict:
        return None
    tag = tag_of(node)
    if tag is None:
        return list(node.items())
    if tag not in _DICT_TAGS:
        return None
    flat = node[tag][_DICT_TAGS[tag] :]
    return [(Decoder.plain(key), item) for key, item in zip(flat[::2], flat[1::2], strict=True)]


def _list_items(node: Json) -> list[Json] | None:
    """Nodes of a list or tuple that holds more than plain values; None for anything else."""
    if type(node) is dict and tag_of(node) == "$tuple":
        node = node["$tuple"]
    if type(node) is not list or set(map(type, node)) <= _PLAIN:
        return None
    return node


def _node_at(node: Json, path: Path) -> Json | None:
    """What stands at a path of another rank's state; None: nothing."""
    if path is None:
        return node
    parent, key = path
    outer = _node_at(node, parent)
    children = _dict_items(outer) if outer is not None else None
    if children is not None:
        return dict(children).get(key)
    items = _list_items(outer)
    inside = items is not None and type(key) is int and key < len(items)
    return items[key] if items is not None and inside else None


def _is_list_of(live: Any, length: int) -> bool:
    return type(live) in (list, tuple) and len(live) == length
