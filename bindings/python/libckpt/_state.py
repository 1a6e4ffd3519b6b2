# SPDX-License-Identifier: Apache-2.0
"""
From a user's state to what one save needs: descriptions of tensors, and JSON.

Modules and optimizers are walked once; later saves only check that nothing has changed and update
pointers. Everything else (plain values, schedulers, loaders) is encoded at every save.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _rng
from ._alike import Alike, Groups, Slow
from ._asking import asking
from ._balance import Held, Holdings, balance_of
from ._behind import Behind
from ._buffers import Buffer, Own, OwnBuffers, buffers_that_may_differ
from ._dtypes import name_of
from ._engine import VERSION, logger
from ._errors import CheckpointWarning, UnsupportedStateError
from ._holders import Holders, Meshes, ModuleHolders
from ._into import same_bits
from ._json_values import Encoder, Json, Path, dump, path_text
from ._layout import Copies, is_spread, memory_of
from ._loaders import epochs_of, generator_of
from ._modules import (
    Shape,
    buffers_of_first,
    has_own_say,
    module_text,
    own_memory,
    parameter_names,
    places_of_first,
    plain_keys,
    reshard,
    unwrap,
    walk,
)
from ._optimizer import OptimizerSource, owned_by
from ._ranks import Near, Ranks, Shares, settle
from ._sharded import refuse_sharded
from ._sink import (
    Key,
    Shared,
    Sink,
    copies_of,
    empty_of,
    flags_of,
    key_of,
    name_clash,
    shared_of,
)
from ._snapshot import Snapshot
from ._stages import Stages, Told, told_by
from ._state_kinds import (
    Special,
    check_state,
    find_specials,
    is_module,
    is_optimizer,
    is_stateful,
    misplaced,
    misplaced_object,
    plain_path,
    prefix_in,
    refuse_loader,
    same_specials,
    there_twice,
)
from ._subclasses import encode as encode_wrapped
from ._subclasses import owns_in, wraps
from ._tensors import (
    Block,
    Described,
    Part,
    check_place,
    check_tensor,
    describe,
    encode_name,
    part_of,
    spread_last,
)
from ._walked import Settled, Walked

if TYPE_CHECKING:
    import torch

#: Version of the Python state in an index.
PYTHON_VERSION = 1
META_MAX = 64 << 20


#: Up to so many bytes are sooner copied than watched while they are copied behind the loop.
SMALL_BYTES = 32 << 20


class _Wrapping(NamedTuple):
    """What is kept of a module with tensors that wrap others."""

    prefix: str
    #: of the rest
    names: list[str]
    others: dict[str, torch.Tensor]
    holders: ModuleHolders


class Modules:
    """The modules of a state that have no say of their own: walked once, then compared."""

    def __init__(
        self,
        specials: list[Special],
        plain: Path,
        owned: dict[int, torch.Tensor],
        ranks: Ranks,
        groups: Groups,
        *,
        meshes: Meshes,
    ) -> None:
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        self.tensors: list[torch.Tensor] = []
        self._copies: list[Copies | None] = []
        #: who holds plain parameters, by their ids, where they are not all ranks
        self._plain: dict[int, Holders | None] = {}
        #: the same of each tensor
        self.holders: list[Holders | None] = []
        #: ids of buffers of which rank 0 has the ones of all
        self._first: set[int] = set()
        #: ids of what optimizers have
        self._owned: set[int] = set()
        #: ids of buffers that may differ by rank, and if they are of statistics
        self._may_differ: dict[int, bool] = {}
        #: those of them that are walked
        self.buffers: list[Buffer] = []
        #: second names, and the first ones
        self.tied: list[tuple[bytes, str]] = []
        self._ranks = ranks
        self.meshes = meshes
        self.meshes.forget()
        #: name of every tensor, aliases included, and where it is from
        self.used: dict[str, Path] = {}
        #: what the user has said to be this rank's own: the names that it is stored under
        self.owns: dict[str, str] = {}
        self.keys: dict[Key, str] = {}
        self.ids: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        #: of modules with tensors that wrap others
        self.wrapping: dict[int, _Wrapping] = {}
        #: prefixes of the names of the modules that have a say of their own
        self.own_say: dict[int, str] = {}
        self._shapes: list[Shape] = []
        self._doubles: list[torch.Tensor] = []
        self._others: list[torch.nn.Module] = []
        for special in specials:
            self._take(special, prefix_in(special, plain), owned)
        self._in_order()
        self._part = part_of(self.names, self.tensors)
        doubles = spread_last(self._doubles)
        self._doubled = part_of([], [self._doubles[number] for number in doubles])
        #: of each tensor, whether this rank writes it
        self.mine = settle(Shares(), self.names, self.tensors, self._copies, ranks)
        #: of each tensor, who compares it
        self.groups = [groups.of(found) for found in self._copies]
        #: what other ranks have as well, whoever saves it
        self.held = Holdings(ranks, groups).all_of(
            self.names, self.described, self._copies, self.mine
        )
        #: of each tensor, what the library is to know of it
        self.flags = list(map(flags_of, self._copies))
        self.empty = empty_of(self.names, self.described, self._copies)
        late = [n for n, eager in enumerate(self.eager) if not eager and self.mine[n]]
        self.behind = self._part.only(late)
        mine = {name for name, wanted in zip(self.names, self.mine, strict=True) if wanted}
        self.mine_names = {name.decode() for name in mine}
        self.aliases = [
            (alias, name.encode()) for alias, name in self.tied if name in self.mine_names
        ]

    def _take(self, special: Special, prefix: str, owned: dict[int, torch.Tensor]) -> None:
        module = special.value
        if id(module) in self.texts:
            raise there_twice(special.path)
        self._first |= buffers_of_first(module, self._ranks.world)
        reshard(module)
        holders = self._holders_in(module, prefix)
        self._owned |= owned.keys()
        self._may_differ = self._buffers_of(module, prefix, holders)
        if has_own_say(module):
            self._add_other(module, prefix)
        else:
            self._add_module(special, prefix, owned, holders)

    def _holders_in(self, module: torch.nn.Module, prefix: str) -> ModuleHolders:
        """Who holds its plain tensors. That of its parameters is noted for the optimizers."""
        holders = ModuleHolders(module, self.meshes, prefix)
        for name, tensor in parameter_names(module):
            # The first name counts: other ranks may have no second ones.
            found = None if is_spread(tensor) else holders.of(name)
            self._plain.setdefault(id(tensor), found)
        return holders

    def holders_of(self, parameter: torch.Tensor) -> Holders | None:
        """Of what belongs to a parameter; None: all ranks."""
        return self._plain.get(id(parameter)) or self.meshes.of(parameter)

    def _buffers_of(
        self, module: torch.nn.Module, prefix: str, holders: ModuleHolders
    ) -> dict[int, bool]:
        """Ids of buffers that may differ by rank, and if they are of statistics."""
        if self._ranks.world == 1:
            return {}
        first = buffers_of_first(module, self._ranks.world)
        # This is done at each save, and optimizers have many.
        excluded = self._owned | first if first else self._owned
        return buffers_that_may_differ(module, prefix, self._ranks, holders, excluded)

    def may_differ_in(
        self, module: torch.nn.Module, prefix: str, holders: ModuleHolders
    ) -> dict[int, bool]:
        """The same of a module with a say of its own, by where the elements are at this save."""
        ids = self._buffers_of(module, prefix, holders)
        return {
            memory_of(buffer).data_ptr(): ids[id(buffer)]
            for buffer in (module.buffers() if ids else ())
            if id(buffer) in ids
        }

    def _add_other(self, module: torch.nn.Module, prefix: str) -> None:
        """One with a say of its own, which is asked at every save."""
        self.own_say[id(module)] = prefix
        self._others.append(module)
        self.texts[id(module)] = ""
        for name, tensor in parameter_names(unwrap(module), prefix):
            self.ids.setdefault(id(tensor), name)

    def _in_order(self) -> None:
        order = spread_last(self.tensors)
        self.names = [self.names[number] for number in order]
        self.described = [self.described[number] for number in order]
        self.eager = [self.eager[number] for number in order]
        self.tensors = [self.tensors[number] for number in order]
        self._copies = [self._copies[number] for number in order]
        self.holders = [self.holders[number] for number in order]

    def _add_module(
        self,
        special: Special,
        prefix: str,
        owned: dict[int, torch.Tensor],
        holders: ModuleHolders,
    ) -> None:
        self._shapes.append(Shape(special.value))
        names = []
        others: dict[str, torch.Tensor] = {}
        for name, tensor in walk(special.value, prefix):
            if name in self.used:
                raise name_clash(name, special.path)
            self.used[name] = special.path
            if wraps(tensor):
                others[name] = tensor
                continue
            check_tensor(tensor, name)
            names.append(name)
            held = holders.of(name[len(prefix) :])
            self._add(name, tensor, id(tensor) in owned, held)
        for name, tensor in parameter_names(special.value, prefix):
            self.ids.setdefault(id(tensor), name)
        self.texts[id(special.value)] = module_text(special.value, prefix, names, {})
        if others:
            self.wrapping[id(special.value)] = _Wrapping(prefix, names, others, holders)

    def _add(self, name: str, tensor: torch.Tensor, owned: bool, holders: Holders | None) -> None:
        what = describe(tensor)
        check_place(what, name)
        key = key_of(what)
        # Of those that are one tensor the first says it for all.
        if key is not None and key in self.keys:
            own = self.keys[key] in self.owns.values()
        else:
            own = self._ranks.is_own(name, tensor)
        if own:
            self.owns[name] = self._ranks.own_name(name)
            name = self.owns[name]
        data = encode_name(name, name)
        if key is not None and key in self.keys:
            self.tied.append((data, self.keys[key]))
            self._doubles.append(tensor)
            return
        if key is not None:
            self.keys[key] = name
        self.names.append(data)
        self.described.append(what)
        self.tensors.append(tensor)
        is_statistic = None if own else self._may_differ.get(id(tensor))
        if is_statistic is not None:
            self.buffers.append(Buffer(name, tensor, what, holders, is_statistic))
        first = is_statistic is not None or id(tensor) in self._first
        alike = is_statistic is False or not first
        self.holders.append(holders)
        self._copies.append(
            copies_of(tensor, name, self._ranks, first=first, own=own, holders=holders, alike=alike)
        )
        # The optimizer changes it, and nothing else does: the fence is in time.
        self.eager.append(not owned)

    def same(self) -> bool:
        """True if every module still has the same tensors, in the same memory, lying the same."""
        return (
            all(shape.same() or shape.same_again() for shape in self._shapes)
            and self._part.same()
            and self._doubled.same()
            and all(map(has_own_say, self._others))
        )


class Planner:
    """Turns a state into snapshots; remembers the last one. One thread at a time."""

    def __init__(
        self,
        *,
        eager: bool = False,
        small_bytes: int = 0,
        allow_pickle: bool = False,
        rank: int = 0,
        world: int = 1,
        peers: Sequence[int] = (),
        per_rank: tuple[str, ...] = (),
        known: Callable[[int], int] | None = None,
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages
        #: it has been said that the names are not those that the ranks have told
        self._said_changed = False
        self._ranks = Ranks(rank, world, Near(rank, peers) if peers else None, per_rank)
        self._common: tuple[Walked, list[Shared], list[Shared], bytes, dict[str, str]] | None = None
        self._eager = eager
        self._small_bytes = small_bytes
        self._allow_pickle = allow_pickle
        self._walked: Walked | None = None
        self._slow: Block | None = None
        #: modules that were walked before the first save, and what the optimizers own of them
        self._early: tuple[list[Special], Modules, dict[int, torch.Tensor]] | None = None
        #: paths of optimizers of which it has been said that what they change is copied at once
        self._said: set[Path] = set()
        self._groups = Groups(world)
        self._own_buffers = OwnBuffers(self._ranks, self._groups, known)
        self._meshes = Meshes(rank, world)
        self._alike = Slow()
        #: what was described anew at the last save, and what it adds to the balance
        self._held: tuple[list[Held], int] = [], 0

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """Describes the state as it is now."""
        walked, writer, meta, common = self._describe(state, None)
        self._walked = walked
        return self._assemble(walked, writer, meta, common)

    def check_stages(self, state: dict[str, Any]) -> None:
        """Raises MismatchError on all ranks if they do not have the same and are no stages."""
        if self._stages is not None and self._stages.is_wrong:
            now = told_by(state, self._ranks)
            if now is not None:
                self._stages.check(now)

    def check(self, state: dict[str, Any], is_ready: Callable[[Any], bool] | None = None) -> None:
        """
        Raises what snapshot() would raise. `is_ready` says of an object whether it may be asked for
        its state_dict() before a save; one that raises an exception then is passed over, too.
        """
        is_first = self._walked is None
        walked, writer, _, _ = self._describe(state, is_ready)
        if not writer.passed_over:
            self._walked = walked
        if is_first:  # the modules need not be walked again when the optimizers have state
            self._early = walked.specials, walked.modules, walked.owned

    def _describe(
        self, state: dict[str, Any], is_ready: Callable[[Any], bool] | None
    ) -> tuple[Walked, _Writer, bytes, tuple[bytes, dict[str, str]]]:
        check_state(state)
        specials = find_specials(state)
        walked = self._walked
        self._walked = None  # should anything below fail
        if walked is not None and not self._still(walked, specials):
            walked = None
        if walked is None:
            if self._ranks.world > 1:
                refuse_sharded(state)
            modules, owned = self._walk_modules(specials, self._early)
            self._early = None
        else:
            modules, owned = walked.modules, walked.owned
        ids = {id(special.value) for special in specials}
        sink = Sink(modules, owned, self._ranks, self._groups)
        writer = _Writer(modules, ids, sink, self._allow_pickle, self._ranks, is_ready=is_ready)
        state_text = writer.write(state)
        if walked is not None and not _lends_the_same(walked, writer.sink):
            walked = None
        if walked is None:
            walked = self._walk_optimizers(specials, modules, owned, writer.sink)
        own = self._own_of(specials, modules, writer.sink)
        meta = writer.finish(state_text, walked, state, own)
        common = self._common_of(walked, writer.sink.shared, writer.sink.apart)
        return walked, writer, meta, common

    def _own_of(self, specials: list[Special], modules: Modules, sink: Sink) -> Own:
        """The buffers of this rank's own."""
        used = {*sink.owns.values(), *modules.owns.values()}
        own = self._own_buffers.plan(
            modules.buffers + sink.buffers,
            chain(((alias.decode(), target) for alias, target in modules.tied), sink.tied),
            lambda name: name in used or name in sink.used or name in modules.used,
            (one.value for one in specials if is_module(one.value)),
        )
        sink.own_buffers = own
        sink.keep += own.keep
        return own

    def _common_of(
        self, walked: Walked, others: list[Shared], apart: list[Shared]
    ) -> tuple[bytes, dict[str, str]]:
        """
        Stands for the tensors that all ranks must have: what one of them takes to be another's turn
        is in no shard if that one does not have it. And what is meant by the names of the rest.
        """
        if self._ranks.world == 1:
            return b"", {}
        last = self._common
        if last is None or last[0] is not walked or last[1:3] != (others, apart):
            described, names = list(walked.modules.described), list(walked.modules.names)
            holders = list(walked.modules.holders)
            tensors: list[torch.Tensor] = list(walked.modules.tensors)
            for source in walked.sources:
                names += source.part.names
                described += source.described
                tensors += source.shapes()
                holders += source.holders
            shared, rest = list(others), list(apart)
            own = {name.encode() for name in walked.owns.values()}
            for name, what, tensor, held in zip(names, described, tensors, holders, strict=True):
                if name in own:
                    continue
                found = shared_of(name.decode(), what, tensor, self._ranks, held)
                if found is not None:
                    shared.append(found)
                else:
                    rest.append((name.decode(), what.dtype, what.full_shape))
            lines = [f"{name} {dtype} {list(shape)}" for name, dtype, shape in shared]
            text = "\n".join(sorted(lines))
            digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
            meant = {name: f"{name_of(dtype)} {list(shape)}" for name, dtype, shape in rest}
            for alias, target in walked.modules.tied:
                if target in meant:
                    meant[alias.decode()] = f"another name of {target!r}"
            last = self._common = walked, others, apart, digest, meant
        return last[3], last[4]

    def _still(self, walked: Walked, specials: list[Special]) -> bool:
        """True if what was walked is as it was; replaced tensors are brought up to date."""
        if not same_specials(specials, walked.specials) or not walked.modules.same():
            return False
        first = len(walked.modules.names)
        for source in walked.sources:
            replaced = source.refresh()
            if replaced is None:
                return False
            for number in replaced:
                place = walked.places[first + number]
                if place >= 0:
                    walked.block.move(place, source.part.pointers[number])
                walked.alike.move(first + number, source.part.pointers[number])
            first += len(source.described)
        return True

    def _walk_modules(
        self,
        specials: list[Special],
        early: tuple[list[Special], Modules, dict[int, torch.Tensor]] | None,
    ) -> tuple[Modules, dict[int, torch.Tensor]]:
        if early is not None and same_specials(early[0], specials) and early[1].same():
            return early[1:]
        owned = {}
        if not self._eager:
            owned = owned_by([one.value for one in specials if is_optimizer(one.value)])
        stages = self._stages
        if stages is not None:
            fits = stages.fits(Told.of_specials(specials, self._ranks))
            self._meshes.named = stages.holders if fits else None
            if stages and not fits and not self._said_changed:
                self._said_changed = True
                warnings.warn(
                    "the modules in the state have other names than they had when the Checkpointer "
                    "was made, so that all ranks must have the same, and no stages of a pipeline "
                    "are saved any more: make another Checkpointer of the new modules",
                    CheckpointWarning,
                    stacklevel=7,
                )
        found = [special for special in specials if is_module(special.value)]
        plain = plain_path(found)
        return Modules(found, plain, owned, self._ranks, self._groups, meshes=self._meshes), owned

    def _walk_optimizers(
        self,
        specials: list[Special],
        modules: Modules,
        owned: dict[int, torch.Tensor],
        sink: Sink,
    ) -> Walked:
        known = {**sink.ids, **modules.ids}
        sources = [
            OptimizerSource(special.value, special.path, known, self._ranks, modules.holders_of)
            for special in specials
            if is_optimizer(special.value)
        ]
        for parameter in chain.from_iterable(source.params for source in sources):
            if id(parameter) in sink.ids:  # the optimizer holds it, so that it cannot be replaced
                check_place(describe(parameter), sink.ids[id(parameter)])
        names, described = list(modules.names), list(modules.described)
        eager = list(modules.eager)
        settled = Settled.of(modules)
        used = set(modules.used) | sink.used
        shares = Shares()  # of its own: modules are not always walked again with the optimizers
        for source in sources:
            if clash := source.names & used:
                raise name_clash(min(clash), source.path)
            used |= source.names
            names += source.part.names
            described += source.described
            eager += [self._eager or source.fences is None] * len(source.described)
            self._say_eager(source)
            self._settle_source(source, shares, settled)
        small = self._is_small(modules, sources, sink)
        if small:
            eager = [True] * len(eager)
        chosen = [number for number, wanted in enumerate(settled.mine) if wanted]
        places = [-1] * len(settled.mine)
        for place, number in enumerate(chosen):
            places[number] = place
        return Walked(
            specials=specials,
            modules=modules,
            sources=sources,
            owned=owned,
            borrowed={key: name for key, name in sink.ids.items() if key in owned},
            block=Block(
                [names[number] for number in chosen],
                [described[number] for number in chosen],
                [eager[number] for number in chosen],
                [settled.flags[number] for number in chosen],
            ),
            places=places,
            alike=Alike.of(names, described, settled.groups, settled.flags),
            owns=dict(
                chain(
                    modules.owns.items(),
                    chain.from_iterable(source.owns.items() for source in sources),
                )
            ),
            small=small,
            empty=settled.empty,
            balance=balance_of(settled.held),
        )

    def _settle_source(self, source: OptimizerSource, shares: Shares, settled: Settled) -> None:
        """Decides who writes each tensor of an optimizer."""
        part = source.part
        own = {name.encode() for name in source.owns.values()}
        copies = [
            copies_of(tensor, name.decode(), self._ranks, own=name in own, holders=holders)
            for name, tensor, holders in zip(
                part.names, source.shapes(), source.holders, strict=True
            )
        ]
        mine = settle(shares, part.names, part.tensors, copies, self._ranks)
        settled.mine.extend(mine)
        settled.empty.update(empty_of(part.names, source.described, copies))
        settled.groups.extend(map(self._groups.of, copies))
        settled.flags.extend(map(flags_of, copies))
        settled.held.extend(
            Holdings(self._ranks, self._groups).all_of(part.names, source.described, copies, mine)
        )
        source.mine = None
        if not all(mine):
            source.mine = [number for number, wanted in enumerate(mine) if wanted]

    def _ties_of(self, modules: Modules, sink: Sink) -> list[tuple[bytes, bytes]]:
        """Second names that only other ranks have, of tensors that this rank writes for them."""
        if self._stages is None or self._meshes.named is None:
            return []
        return [
            (encode_name(second, second), name.encode())
            for second, name in self._stages.ties
            if name in modules.mine_names or sink.is_mine(name)
        ]

    def _why_eager(self, walked: Walked) -> str:
        if self._eager:
            return "eager=True"
        if not walked.sources:
            return "there is no optimizer in the state"
        return "it is small"

    def _say_eager(self, source: OptimizerSource) -> None:
        if source.fences is None and not self._eager and source.path not in self._said:
            self._said.add(source.path)
            logger.info(
                "%s is a %s, whose step() runs no hooks of torch: what it changes is copied before "
                "save() returns",
                path_text(source.path),
                type(source.optimizer).__qualname__,
            )

    def _is_small(self, modules: Modules, sources: list[OptimizerSource], sink: Sink) -> bool:
        if self._eager:
            return False
        late = [*modules.behind.tensors, *(owner for _, owner in sink.behind)]
        for source in sources:
            late += [] if source.fences is None else source.own_part().tensors
        return sum(memory_of(tensor).nbytes for tensor in late) <= self._small_bytes

    def _assemble(
        self, walked: Walked, writer: _Writer, meta: bytes, common: tuple[bytes, dict[str, str]]
    ) -> Snapshot:
        sink = writer.sink
        parts: list[Part] = []
        if walked.small:
            sink.eager = [True] * len(sink.eager)
        elif not self._eager:
            fenced = [source for source in walked.sources if source.fences is not None]
            parts = [walked.modules.behind, *(source.own_part() for source in fenced)]
            if sink.behind:
                order = spread_last([owner for _, owner in sink.behind])
                found = [sink.behind[number] for number in order]
                names = [sink.names[number] for number, _ in found]
                parts.append(part_of(names, [owner for _, owner in found]))
        parts = [part for part in parts if part.names]
        slow = sink.names, sink.described, sink.eager, sink.flags
        if self._slow is None or not self._slow.fits(*slow):
            self._slow = Block(*slow)
        if self._held[0] != sink.held:
            self._held = sink.held, balance_of(sink.held)
        return Snapshot(
            blocks=[
                block
                for block in (walked.block, self._slow, *sink.own_buffers.blocks)
                if block.count
            ],
            aliases=[*walked.modules.aliases, *sink.aliases, *self._ties_of(walked.modules, sink)],
            meta=meta,
            common=common[0],
            balance=(walked.balance + self._held[1]) % (1 << 64),
            apart=common[1],
            alike=self._alike.join(
                walked.alike.blocks,
                self._alike.update(sink.alike),
                sink.own_buffers.alike,
                sink.own_buffers.groups,
            ),
            behind=Behind(parts, [part.versions() for part in parts]),
            keep=sink.keep,
            optimizers=list(chain.from_iterable(source.fences or () for source in walked.sources)),
            why_eager=self._why_eager(walked),
            pickled=writer.encoder.pickled,
            own=sink.own_buffers.groups,
        )


def _lends_the_same(walked: Walked, sink: Sink) -> bool:
    """True if the optimizers' parameters that are no module's have the names they had."""
    if any(sink.ids.get(key) != name for key, name in walked.borrowed.items()):
        return False
    return all(sink.used.isdisjoint(source.names) for source in walked.sources)


_TOKEN = re.compile(r'"\\u0000(\d+)"')


class _Writer:
    """Writes the Python state of one save."""

    def __init__(
        self,
        modules: Modules,
        specials: set[int],
        sink: Sink,
        allow_pickle: bool,
        ranks: Ranks,
        *,
        is_ready: Callable[[Any], bool] | None,
    ) -> None:
        self._is_ready = is_ready
        #: an object was not asked
        self.passed_over = False
        self._specials = specials
        self._ranks = ranks
        self.sink = sink
        self.encoder = Encoder(self.sink, allow_pickle=allow_pickle, other=self._other)
        self._modules = modules
        # Long texts stand in the JSON as strings that no value can give, until the end.
        self._texts: list[str] = []
        self._optimizers: dict[int, int] = {}
        self._inside = False

    def write(self, state: dict[str, Any]) -> str:
        """The JSON of the state and of the generators, with tokens in it."""
        node = {"state": self.encoder.encode(state, None, 1), "rng": _rng.capture(self.encoder)}
        return dump(node)

    def finish(
        self,
        text: str,
        walked: Walked,
        state: dict[str, Any],
        own: Own,
    ) -> bytes:
        """Puts the optimizers in, and what describes the whole."""
        for source in walked.sources:
            node = source.node(self.encoder, self.sink)
            self._texts[self._optimizers[id(source.optimizer)]] = node
        head = {
            "version": PYTHON_VERSION,
            "library": VERSION,
            "pickled": self.encoder.pickled,
        }
        parts = _TOKEN.split(text)
        parts[1::2] = [self._texts[int(number)] for number in parts[1::2]]
        # A store that all share holds every tensor somewhere, and says there what it is.
        empty = {**walked.empty, **self.sink.empty} if self._ranks.near else {}
        more = f'"empty":{dump(empty)},' if empty else ""
        owns = {**walked.owns, **self.sink.owns}
        for source in walked.sources:  # what wraps tensors is met only now
            owns.update(source.owns)
        owns.update(own.names)
        more += f'"per_rank":{dump(owns)},' if owns else ""
        if own.names:
            said: Json = {"layout": own.layout, "names": sorted(own.names)}
            more += f'"own_buffers":{dump(said)},'
        local = sorted(chain.from_iterable(source.local for source in walked.sources))
        more += f'"local":{dump(local)},' if local else ""
        meta = f'{{"python":{dump(head)},{more}{"".join(parts)[1:]}'.encode()
        if len(meta) > META_MAX:
            raise UnsupportedStateError(
                f"the values in the state that are no tensors take {len(meta) >> 20} MiB; "
                f"{META_MAX >> 20} MiB are the most: keep large data in tensors or NumPy arrays "
                f"(the state's keys are {', '.join(state)})"
            )
        return meta

    def _token(self, text: str) -> str:
        self._texts.append(text)
        return f"\0{len(self._texts) - 1}"

    def _other(self, value: Any, path: Path, depth: int) -> Json:
        if is_module(value) or is_optimizer(value):
            if (
                self._inside
                or self.encoder.wrapped
                or id(value) in self._optimizers
                or id(value) not in self._specials
            ):
                raise misplaced(value, path)
            if is_optimizer(value):
                self._optimizers[id(value)] = len(self._texts)
                return self._token("")
            return self._token(self._module(value, path))
        refuse_loader(value, path)
        if is_stateful(value):
            return self._object(value, path, depth)
        return None

    def _module(self, module: torch.nn.Module, path: Path) -> str:
        prefix = self._modules.own_say.get(id(module))
        if prefix is None:
            return self._wrapping(module) or self._modules.texts[id(module)]
        import torch

        names: list[str] = []
        extra: dict[str, Json] = {}
        inner = unwrap(module, hooked=True)
        reshard(module)
        own = own_memory(inner)
        first_names, first_memory = places_of_first(module, inner, self._ranks.world)
        holders = ModuleHolders(module, self._modules.meshes, prefix)
        may_differ = self._modules.may_differ_in(module, prefix, holders)
        with asking(path, "state_dict"):
            state = inner.state_dict()
        keys = plain_keys(inner, state, path_text(path))
        for key, value in state.items():
            name = prefix + keys[key]
            held = holders.of(keys[key])
            if isinstance(value, torch.Tensor) and not wraps(value):
                check_tensor(value, f"{path_text(path)}, tensor {name}")  # before it is asked more
                memory = memory_of(value).data_ptr()
                alone = self._ranks.is_own(name, value)
                # A copy of the buffer. What is called as it may be another value, of this rank.
                copied = first_names.get(keys[key])
                first = memory in first_memory or (copied is not None and same_bits(value, copied))
                is_statistic = None if first else may_differ.get(memory)
                self.sink.put_named(
                    name,
                    value,
                    path,
                    first=first or is_statistic is not None,
                    own=alone,
                    holders=held,
                    is_statistic=is_statistic,
                )
                # What it made for the occasion, it can take back.
                if memory in own:
                    check_place(describe(value), name)
                names.append(name)
            elif isinstance(value, torch.Tensor):
                extra[keys[key]] = self._wrapped(name, value, held)
            else:
                with self.sink.held_by(held):
                    extra[keys[key]] = self.encoder.encode(value, (path, key), 8)
        return module_text(module, prefix, names, extra)

    def _wrapping(self, module: torch.nn.Module) -> str | None:
        if id(module) not in self._modules.wrapping:
            return None
        prefix, names, others, holders = self._modules.wrapping[id(module)]
        extra: dict[str, Json] = {}
        for name, tensor in others.items():
            key = name[len(prefix) :]
            extra[key] = self._wrapped(name, tensor, holders.of(key))
        return module_text(module, prefix, names, extra)

    def _wrapped(self, name: str, tensor: torch.Tensor, holders: Holders | None) -> Json:
        own = self._ranks.is_own(name, tensor)
        with self.sink.held_by(holders):
            node = encode_wrapped(self.encoder, tensor, (None, name), own=own)
        if own:
            self.sink.owns.update(owns_in(node))
        return node

    def _object(self, value: Any, path: Path, depth: int) -> Json:
        if self._inside or self.encoder.wrapped:
            raise misplaced_object(value, path)
        # What only the object knows may be another thing on every rank.
        self._inside = self.sink.own = True
        try:
            said = self._ask(value, path)
            if said is None:
                self.passed_over = True
                return {"$object": {}}
            node = self.encoder.encode_object(value, said[0], path, depth + 2)
            generator = generator_of(value)
            if generator is not None:  # later: it may have begun to draw just now
                where = (path, "generator")
                node["generator"] = self.encoder.put_tensor(generator.get_state(), where, own=True)
            if epochs := epochs_of(value, path):
                node["epoch"] = epochs
        finally:
            self._inside = self.sink.own = False
        return {"$object": node}

    def _ask(self, value: Any, path: Path) -> tuple[Any] | None:
        """What its state_dict() says; None: it is too early to ask."""
        if self._is_ready is not None and not self._is_ready(value):
            return None
        try:
            with asking(path, "state_dict"):
                return (value.state_dict(),)
        except Exception:
            if self._is_ready is not None:
                return None
            raise
