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
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _dtypes, _rng
from ._asking import asking, is_of_user, placed
from ._buffers import layout_of, said_of
from ._decoder import Decoder
from ._differences import Differences, Where, keeps_new_keys
from ._errors import (
    CheckpointError,
    CheckpointWarning,
    FormatError,
    MismatchError,
    NetworkError,
)
from ._holders import are_in_stages
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
from ._json_nodes import SPECIAL_TAGS, Json, Path, path_name, path_text, tag_of
from ._live_parts import must_be_asked, want_part
from ._loaders import begin, generator_of, is_loader
from ._log import logger
from ._module_load import ModuleLoad
from ._modules import parameter_names, reshard, unwrap
from ._optimizer_load import OptimizerLoad
from ._origin import LISTED, Origin, check_world
from ._others import differing
from ._per_rank import PerRank
from ._ranks import is_own
from ._reader import Memory, Reader, Stored, references
from ._save import Progress
from ._state_kinds import Special, find_specials, is_optimizer, is_stateful, specials_in
from ._subclass_places import Places
from ._subclasses import empty_like, is_wrapped, wraps
from ._takers import Taken, Takers
from ._tensors import (
    check_place,
    check_tensor,
    describe,
    describe_array,
    is_whole,
    overlaps,
)
from ._views import Found, United, Views, dict_items, list_items, node_at, same

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
    # The ranks, which together must take all of the step; None: this one does, or each what it had.
    takers = reader.engine.takers
    if takers is not None:
        takers.begin(reader.number)
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
    if origin.whole and (said := said_of(meta)).names:
        modules = (one.value for one in find_specials(state) if is_module(one.value))
        origin = origin._replace(own_buffers=said.layout == layout_of(modules))
    live = _Live(reader, allow_pickle, origin, tolerated, exact=exact, kept=kept)
    try:
        live.match(meta, state, shared=takers is not None)
        live.tell(takers)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError) or is_of_user(error):
            raise
        raise FormatError(
            f"step {reader.step}: its state is malformed: {error!r}", step=reader.step
        ) from error
    reader.read(progress)
    if takers is not None:
        live.check_lost(takers)
    live.apply(meta, state)
    live.warn()
    return Restored(live.stayed, origin.whole and not (tolerated or live.has_more))


class _Live:
    """One restore. `match` finds what goes where, `apply` does what is no reading."""

    #: it needs nothing of what other ranks have saved
    _ALONE = False

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
        self._stored = reader.stored(origin.meta, own_buffers=origin.own_buffers)
        self._begin_stages(reader, origin)
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
        #: names of tensors that go to memory of the state
        self._bound: set[str] = set()
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

    def _begin_stages(self, reader: Reader, origin: Origin) -> None:
        """What other ranks may have had, or take."""
        away = any(reader.away(rank) is not None for rank in range(reader.world))
        #: each rank has to do with what it has saved, and no other's
        self._apart = away or reader.engine.options.node_store
        state = (origin.meta or {}).get("state")
        self.views = Views(
            reader, self._stored, origin.rank, state, closed=self._apart or self._ALONE
        )
        self._shared = False
        #: an answer of may_leave()
        self._may_leave: bool | None = None
        #: this rank takes what others had, or leaves what it had
        self.restaged = False
        #: objects of which only they know what is in them: the nodes, and where
        self._unknown: list[tuple[Json, Any, Path]] = []
        #: the ranks that had the parameters of optimizers, where another rank's are taken
        self._owners: list[int] = []
        #: optimizers whose groups have other numbers now
        self._renumbered: list[str] = []
        #: tensors under keys of the state that the user lets go
        self._let_go: set[str] = set()
        #: names of what is left to others, and of what is taken, beside tensors
        self.left: set[str] = set()
        self.taken: set[str] = set()
        self._state: dict[str, Any] = {}

    @property
    def has_more(self) -> bool:
        """True if something stays that the step does not have."""
        return bool(self.stayed or self._kept or self._generator_stayed)

    def match(self, meta: dict[str, Json], state: dict[str, Any], *, shared: bool = False) -> None:
        """
        Compares; raises MismatchError that lists everything that is different. `shared`: with other
        ranks, which may take what this one leaves.
        """
        self._shared, self._state = shared and not self._apart, state
        children = dict_items(meta["state"])
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
        # Schedulers may be matched once more.
        unknown, self._unknown = self._unknown, []
        self._look_at_objects(unknown)
        self.differences.raise_problems()

    # What is left to other ranks.

    def leave(self, name: str) -> None:
        """Another rank may take it. What the user lets go makes no other stage of this rank."""
        self.restaged |= not self.differences.tolerates(name)

    def note_united(self, where: str, united: United) -> None:
        """Of an optimizer that has what several ranks had, or another than this one."""
        self._owners += (rank for rank in united.ranks if rank not in self._owners)
        self._renumbered += [where] * united.renumbered

    def _look_at_objects(self, unknown: list[tuple[Json, Any, Path]]) -> None:
        """What only an object knows is of the stage that it was saved by."""
        for node, live, path in unknown:
            where, rank = path_text(path), self.origin_rank
            if self.restaged and node.get("spread"):
                text = f"{where} has DTensors of rank {rank}'s stage, and comes back there only"
                self.problem("changed", text, path_name(path))
            elif self.restaged and any(references(node["state"])):
                text = f"{where} has tensors, and gets what rank {rank} had as another stage"
                self.differences.say(text)
            elif self._owners:
                self._look_at_values(node, live, path)
        if not any(_is_scheduler(live) for _, live, _ in unknown):
            for where in self._renumbered:
                self.differences.say(f"{where}: its groups have other numbers than in the step")

    def _look_at_values(self, node: Json, live: Any, path: Path) -> None:
        """A scheduler goes by the groups of its optimizer, which another rank had."""
        where = path_text(path)
        nodes = [self.views.at(rank, path) for rank in self._owners]
        first, mine = self._owners[0], {"$object": node}
        other = next((n for n, one in enumerate(nodes) if not same(one, nodes[0])), None)
        if _is_scheduler(live) and self._renumbered:
            text = (
                f"{where} knows the groups of its optimizer by their numbers, and in "
                f"{self._renumbered[0]} they have others than in the step"
            )
            self.problem("changed", text, path_name(path))
        elif _is_scheduler(live) and other is not None:
            text = f"{where} was another one on rank {self._owners[other]} than on rank {first}"
            self.problem("changed", f"{text} of the step", path_name(path))
        elif _is_scheduler(live) and not same(nodes[0], mine):
            found = nodes[0]
            if type(found) is dict and tag_of(found) == "$object":
                self._match_object(found["$object"], live, path)
            else:
                text = f"{where} is not in what rank {first} saved"
                self.problem("missing", text, path_name(path))
        elif any(not same(one, mine) for one in nodes):
            text = f"{where} gets what rank {self.origin_rank} had, and its stage had another"
            self.differences.say(text)

    def may_leave(self) -> bool:
        """True if another rank may take of modules and optimizers what this one leaves."""
        if self._may_leave is None:
            self._may_leave = self._shared and self._is_in_stages()
        return self._may_leave

    def _is_in_stages(self) -> bool:
        """True if ranks have other names than this one, here or in the step, as far as it sees."""
        if self._reader.engine.stages:
            return True
        modules = (one.value for one in find_specials(self._state) if is_module(one.value))
        tensors = chain.from_iterable(module.parameters() for module in modules)
        if are_in_stages(tensors, self._reader.engine.world):
            return True
        return not self._seen().issuperset(self._all())

    def _all(self) -> set[str]:
        """The tensors of the step, but those of which each rank has its own."""
        homes = {what.home for what in self._stored.values() if what.here}
        return {home for home in homes if not is_own(home)}

    def _seen(self, *, parts: bool = True) -> set[str]:
        """Those that this rank's view has; `parts`: with those of modules and optimizers."""
        meta = self._origin.meta
        assert meta is not None
        names = chain(references(meta["state"], parts=parts), references(meta["rng"]))
        return {self.stored(name).home for name, _ in names if name in self._stored}

    def _rest(self) -> set[str]:
        """What of the step this rank neither takes nor refuses to leave."""
        taken = {self._stored[name].home for name in self._reader.taken}
        rest = {what.home for what in self._stored.values() if what.here} - taken
        rest = {home for home in rest if not is_own(home)} - self._let_go
        return rest - self._seen(parts=not self.may_leave()) if rest else rest

    def tell(self, takers: Takers | None) -> None:
        """
        Tells the others what this rank takes. If there are none, what it does not take is lost;
        raises MismatchError.
        """
        if self._apart:
            return
        rest = self._rest()
        if takers is None:
            for name in sorted(rest):
                self._note_lost(name, name)
            self.differences.raise_problems()
        elif rest or self.left or (self.taken and self.may_leave()):
            names = self._all()
            takers.tell(Taken(names - rest, self.taken, self.left), sorted(names))
        else:
            try:
                takers.tell_all()
            except NetworkError as error:  # only a rank that leaves something needs to know of it
                logger.warning(
                    "%s: the others do not hear of it: %s", self.differences.where, error
                )

    def _note_lost(self, name: str, text: str) -> bool:
        """Notes what no rank takes. True: it may be."""
        if self.differences.lets_go(name):
            self.differences.pass_over("unexpected", text)
            return True
        return self.differences.problem("unexpected", text, name)

    def check_lost(self, takers: Takers) -> None:
        """Raises MismatchError for what no rank has taken. All ranks have read."""
        if self._apart:
            return
        try:
            tensors, others = takers.lost(lambda: sorted(self._all()))
        except NetworkError as error:  # the other ranks go on
            self.differences.say(
                f"whether a rank takes all that the others leave is not known: {error}"
            )
            return
        texts = {name: f"{name} (written by rank {self._stored[name].rank})" for name in tensors}
        texts.update((name, name) for name in others)
        lost = [name for name, text in texts.items() if not self._note_lost(name, text)]
        if not lost:
            return
        more = f"; and {len(lost) - LISTED} more" * (len(lost) > LISTED)
        some = "; ".join(texts[name] for name in lost[:LISTED])
        where = self.differences.where
        raise MismatchError(
            f"{where}: no rank takes what {self._reader.world} ranks have saved: {some}{more}. The "
            "ranks have read their tensors, and nothing else was changed. See that the stages "
            "together have all that the step has, or let what is gone be so: "
            'resume(tolerate=["head.*"]), resume(strict=False).',
            step=where.step,
            rank=where.rank,
            tensor=lost[0],
        )

    def _rng(self) -> Json:
        return {} if self._origin.own is None else self._origin.own["rng"]

    def apply(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """The tensors are in place; now everything else. The generators come last."""
        for key, node in dict_items(meta["state"]) or ():
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
        if self._origin.whole and self._origin.own_buffers:
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
            said.append(
                f"ranks had different values of {_some(names)}: what is there now is what rank "
                f"{self._origin.rank} had"
            )
        if found.buffers:
            said.append(
                f"ranks had different values of {_some(found.buffers)}: what is there now is what "
                "the lowest rank that held it had"
            )
        if replaced := self._replaced_buffers():
            said.append(
                f"{_some(replaced)} may differ by rank: what is there now is what the lowest rank "
                "that held it had"
            )
        if found.large:
            said.append(f"{_some(found.large)} are large, and were not compared with other ranks'")
        if found.ranks_left:
            said.append(f"the values of {found.ranks_left} other ranks were not compared")
        if self._borrowed:
            said.append(
                f"{', '.join(self._borrowed)} got the state of rank {self._origin.rank}: where it "
                "is a position in the data of one rank, samples may be seen twice or not at all"
            )
        if said:
            where = ""
            if self._origin.whole:
                where = " on other meshes, or with other modules on meshes"
            if self._origin.node is not None:
                where = f", and what rank {engine.rank} saved is on node {self._origin.node}"
            message = (
                f"step {self._reader.step} was saved by {self._reader.world} ranks, and this is "
                f"rank {engine.rank} of {engine.world}{where}: {'; '.join(said)}"
            )
            logger.warning("%s", message)
            warnings.warn(message, CheckpointWarning, stacklevel=5)

    def _replaced_buffers(self) -> list[str]:
        """Buffers whose copy of this rank is on another node, so that it cannot be compared."""
        if self._origin.node is None:
            return []
        return sorted(said_of(self._origin.meta).names & self._bound)

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
            elif self._problem_at("unexpected", (path, key)):
                self._pass_over(node)
        for key, value in state.items():
            if key not in children:
                self._missing(value, (path, key))

    def _pass_over(self, node: Json) -> None:
        """The user lets it go."""
        names = (name for name, _ in references(node))
        self._let_go.update(self._stored[name].home for name in names if name in self._stored)

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
        elif (children := dict_items(node)) is not None and isinstance(live, dict):
            self._match_dict(dict(children), live, path)
        elif (items := list_items(node)) is not None and _is_list_of(live, len(items)):
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
                self._pass_over(node)
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
                    self._pass_over(node)
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
        if not is_loader(live) and not isinstance(live, PerRank):
            self._unknown.append((node, live, path))
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
        children, items = dict_items(node), list_items(node)
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
        found = None if own is None else node_at(own["state"], path)
        if found is None or tag_of(found) != "$object":
            self._kept.append(path_text(path))
            return None
        return found["$object"]

    # What ModuleLoad and OptimizerLoad need.

    @property
    def origin_rank(self) -> int:
        """The rank whose view of the step this is."""
        return self._origin.rank

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
        return name in self._local or name in self.views.local

    def refuse_parts(self, prefix: str, found: Found) -> None:
        """Notes what other ranks had a part of that suits no other one."""
        for name, rank in found.parts:
            self.problem(
                "changed",
                f"{prefix}{name} was rank {rank}'s part of tensors in a wrapper, which comes back "
                "to that rank of as many ranks only",
                prefix + name,
            )

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """The tensor of that name, or the box of it that `like` is, goes to this memory."""
        what = describe(tensor, like)
        check_place(what, name)
        self._bound.add(name)
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
        children = dict_items(node)
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
        items = list_items(node)
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


def _some(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    return ", ".join(names[:LISTED]) + more


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


def _is_scheduler(value: Any) -> bool:
    """True for torch's schedulers of learning rates, and those that are made from them."""
    import torch

    return isinstance(value, torch.optim.lr_scheduler.LRScheduler)


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


def _is_list_of(live: Any, length: int) -> bool:
    return type(live) in (list, tuple) and len(live) == length
