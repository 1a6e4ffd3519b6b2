# SPDX-License-Identifier: Apache-2.0
"""
Planner: turns a state into a Snapshot, with descriptions of tensors, and JSON.

Modules and optimizers are walked once. Later saves only check that nothing has changed, and update
pointers. Everything else (plain values, schedulers, loaders) is encoded at every save.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._alike import Alike, Groups, Slow
from ._balance import Held, Holdings, balance_of
from ._behind import Behind
from ._copies import Shared, copies_of, empty_of, flags_of, shared_of
from ._dtypes import name_of
from ._errors import CheckpointWarning
from ._json_nodes import Path, path_text
from ._log import logger
from ._module_source import Modules
from ._optimizer import OptimizerSource, owned_by
from ._ranks import Near, Ranks, Shares, settle
from ._sink import Sink
from ._snapshot import Snapshot
from ._state_kinds import (
    Special,
    check_state,
    find_specials,
    is_module,
    is_optimizer,
    name_clash,
    plain_path,
    same_specials,
)
from ._state_writer import StateWriter
from ._tensors import (
    Block,
    Part,
    check_place,
    describe,
    encode_name,
    part_of,
    spread_last,
)
from ._walked import Settled, Walked
from .adapters._buffers import Own, OwnBuffers
from .adapters._holders import Meshes
from .adapters._layout import memory_of
from .adapters._sharded import refuse_sharded
from .adapters._stages import Stages, Told, told_by

if TYPE_CHECKING:
    import torch


#: States up to this size are copied at once: that is faster than the checks of a background copy.
SMALL_BYTES = 32 << 20


class Planner:
    """Turns a state into snapshots, and remembers the last one. One thread at a time."""

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
        #: it was warned that the names have changed
        self._said_changed = False
        self._ranks = Ranks(rank, world, Near(rank, peers) if peers else None, per_rank)
        self._common: tuple[Walked, list[Shared], list[Shared], bytes, dict[str, str]] | None = None
        self._eager = eager
        self._small_bytes = small_bytes
        self._allow_pickle = allow_pickle
        self._walked: Walked | None = None
        self._slow: Block | None = None
        #: modules that were walked before the first save, and parameters that optimizers own
        self._early: tuple[list[Special], Modules, dict[int, torch.Tensor]] | None = None
        #: paths of optimizers for which it was logged that their parameters are copied at once
        self._said: set[Path] = set()
        self._groups = Groups(world)
        self._own_buffers = OwnBuffers(self._ranks, self._groups, known)
        self._meshes = Meshes(rank, world)
        self._alike = Slow()
        #: contributions of tensors that were described anew at the last save, and their sum
        self._held: tuple[list[Held], int] = [], 0

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """Describes the state as it is now."""
        walked, writer, meta, common = self._describe(state, None)
        self._walked = walked
        return self._assemble(walked, writer, meta, common)

    def check_stages(self, state: dict[str, Any]) -> None:
        """Raises MismatchError on all ranks if they have different tensors and are not stages."""
        if self._stages is not None and self._stages.is_wrong:
            now = told_by(state, self._ranks)
            if now is not None:
                self._stages.check(now)

    def check(self, state: dict[str, Any], is_ready: Callable[[Any], bool] | None = None) -> None:
        """
        Raises what snapshot() would raise. `is_ready`: says of an object whether it may be asked
        for its state_dict() before a save. An object that raises is left out, too.
        """
        is_first = self._walked is None
        walked, writer, _, _ = self._describe(state, is_ready)
        if not writer.passed_over:
            self._walked = walked
        if is_first:  # so that modules are not walked again when the optimizers have state
            self._early = walked.specials, walked.modules, walked.owned

    def _describe(
        self, state: dict[str, Any], is_ready: Callable[[Any], bool] | None
    ) -> tuple[Walked, StateWriter, bytes, tuple[bytes, dict[str, str]]]:
        check_state(state)
        specials = find_specials(state)
        walked = self._walked
        self._walked = None  # in case anything below fails
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
        writer = StateWriter(modules, ids, sink, self._allow_pickle, self._ranks, is_ready=is_ready)
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
        """The copies of buffers that this rank saves as its own."""
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
        A digest of the tensors that all ranks must have: if a rank leaves a tensor to another rank
        that does not have it, no rank saves it. And the meanings of all other names.
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
        """True if nothing that was walked has changed. Updates replaced tensors."""
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
                    "the modules in the state have other names than when the Checkpointer was "
                    "made. All ranks must now have the same names, and stages of a pipeline are "
                    "not saved: make another Checkpointer with the new modules",
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
            if id(parameter) in sink.ids:  # the optimizer holds it, so it must be restored in place
                check_place(describe(parameter), sink.ids[id(parameter)])
        names, described = list(modules.names), list(modules.described)
        eager = list(modules.eager)
        settled = Settled.of(modules)
        used = set(modules.used) | sink.used
        shares = (
            Shares()
        )  # not shared with the modules, which are not always walked again with the optimizers
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
        """Decides which rank writes each tensor of an optimizer."""
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
        """Second names that only other ranks have, for tensors that this rank writes."""
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
        self, walked: Walked, writer: StateWriter, meta: bytes, common: tuple[bytes, dict[str, str]]
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
            unclear=sorted(self._meshes.unclear),
        )


def _lends_the_same(walked: Walked, sink: Sink) -> bool:
    """True if parameters of optimizers that are in no module still have their names."""
    if any(sink.ids.get(key) != name for key, name in walked.borrowed.items()):
        return False
    return all(sink.used.isdisjoint(source.names) for source in walked.sources)
