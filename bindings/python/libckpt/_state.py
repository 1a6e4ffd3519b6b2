# SPDX-License-Identifier: Apache-2.0
"""
From a user's state to what one save needs: descriptions of tensors, and JSON.

Modules and optimizers are walked once; later saves only check that nothing has changed and update
pointers. Everything else (plain values, schedulers, loaders) is encoded at every save.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _rng
from ._dtypes import name_of
from ._engine import VERSION
from ._errors import UnsupportedStateError
from ._layout import Copies, is_spread, memory_of, spread_of
from ._marks import first_difference
from ._modules import (
    Shape,
    class_name,
    has_own_say,
    own_memory,
    parameter_names,
    reshard,
    strip_wrappers,
    unwrap,
    walk,
)
from ._optimizer import OptimizerSource, parameters
from ._ranks import Near, Ranks, Shares, is_turn
from ._specials import (
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
    there_twice,
)
from ._tensors import (
    Block,
    Described,
    Part,
    check_place,
    check_tensor,
    describe,
    describe_array,
    describe_bytes,
    encode_name,
    is_whole,
    part_of,
    spread_last,
)
from ._typed import Encoder, Json, Path, dump, path_name, path_text

if TYPE_CHECKING:
    import torch

#: Version of the Python state in an index.
PYTHON_VERSION = 1
META_MAX = 64 << 20


class Behind(NamedTuple):
    """Tensors that are copied behind the loop, and what they looked like at save()."""

    parts: list[Part]
    versions: list[bytes]

    def changed(self) -> bytes | None:
        """The name of a tensor that was changed in place; None if none was."""
        for part, versions in zip(self.parts, self.versions, strict=True):
            now = part.versions()
            if now != versions:
                return part.counted_name(first_difference(now, versions))
        return None

    def moved(self) -> bytes | None:
        """The name of a tensor that has other memory; None if none has."""
        return next(filter(None, (part.moved() for part in self.parts)), None)


#: Up to so many bytes are sooner copied than watched while they are copied behind the loop.
SMALL_BYTES = 32 << 20


class Snapshot(NamedTuple):
    """What one save hands to the C library."""

    blocks: list[Block]
    aliases: list[tuple[bytes, bytes]]
    meta: bytes
    #: what all ranks must give alike; empty: there is one
    common: bytes
    #: what this rank means by the names that not all ranks need to have
    apart: dict[str, str]
    behind: Behind
    #: what must live until the eager tensors have been copied
    keep: list[Any]
    optimizers: list[torch.optim.Optimizer]
    #: why nothing is copied behind the loop
    why_eager: str
    pickled: list[str]

    @property
    def gpus(self) -> frozenset[int]:
        """Those that any of the tensors is on."""
        return frozenset().union(*(block.gpus for block in self.blocks))


_Key = Described


def _key_of(what: Described) -> _Key | None:
    """Equal for tensors that are the same memory seen in the same way; None if there is none."""
    if 0 in what.shape or what.pointer == 0:
        return None
    return what


def _copies_of(value: Any, where: str, ranks: Ranks) -> Copies | None:
    """Who else holds what this rank holds of a tensor that was checked; None: it holds nothing."""
    if not is_spread(value):
        return ranks.everywhere()
    spread = spread_of(value)
    if spread.ranks > ranks.world:
        raise UnsupportedStateError(
            f"{where} is a {type(value).__qualname__} spread over {spread.ranks} ranks, and this "
            f"checkpointer is of {ranks.world}: open it with all of them, in a process group of "
            "torch.distributed",
            tensor=where,
        )
    if spread.box is None:
        return None
    copies = ranks.here(spread.copies)
    if spread.ranks < ranks.world:
        # What others of this mesh have is not compared: what one lacks must shift no turns.
        return copies._replace(group=None)
    return copies


def _empty_of(
    names: Sequence[bytes], described: Sequence[Described], copies: Sequence[Copies | None]
) -> dict[str, Json]:
    """What the tensors are of which this rank holds nothing."""
    return {
        name.decode(): describe_empty(what)
        for name, what, found in zip(names, described, copies, strict=True)
        if found is None
    }


def describe_empty(what: Described) -> Json:
    """Type and shape of a tensor, for a rank's meta."""
    return [name_of(what.dtype), list(what.full_shape)]


def _shared_of(name: str, what: Described, value: Any, ranks: Ranks) -> _Shared | None:
    """How a tensor that all ranks must have is told from others; None: they need not."""
    if not is_spread(value):
        return name, what.dtype, what.shape
    spread = spread_of(value)
    if spread.ranks < ranks.world:
        return None
    return f"{name} of {spread.copies.among}", what.dtype, tuple(spread.whole)


#: Name, type and shape of a tensor that all ranks have alike.
_Shared = tuple[str, int, tuple[int, ...]]


class _Sink:
    """
    Collects the tensors that are described anew at every save: those that this rank writes.
    `modules` has what is stored already, `owned` which tensors only the fenced optimizers change.
    """

    def __init__(self, modules: _Modules, owned: dict[int, torch.Tensor], ranks: Ranks) -> None:
        self._taken = modules.used.__contains__
        self._known = modules.keys
        self._known_mine = modules.mine_names
        self._owned = owned
        self._ranks = ranks
        #: what is met now is each rank's own
        self.own = False
        self._owned_keys: dict[_Key | None, torch.Tensor] | None = None
        self._keys: dict[_Key, str] = {}
        self._own_keys: dict[_Key, str] = {}
        self.used: set[str] = set()
        self._mine: set[str] = set()
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        #: (number, tensor that the optimizer changes) of those that are not eager
        self.behind: list[tuple[int, torch.Tensor]] = []
        self.keep: list[Any] = []
        #: names of torch tensors by their id
        self.ids: dict[int, str] = {}
        self.aliases: list[tuple[bytes, bytes]] = []
        #: of all ranks, whoever's turn it is
        self.shared: list[_Shared] = []
        #: of the ranks of a mesh
        self.apart: list[_Shared] = []
        #: of which this rank holds nothing
        self.empty: dict[str, Json] = {}

    def _free_name(self, path: Path, *, own: bool) -> str:
        """A name for what stands at `path`; a name that is taken gets a number."""
        wanted = path_name(path)
        name, number = wanted, 1
        if own:
            name = wanted = self._ranks.own_name(wanted)
        while name in self.used or self._taken(name) or name in ("", "__metadata__"):
            number += 1
            name = f"{wanted}~{number}"
        return name

    def _add(self, name: str, path: Path, what: Described, owner: torch.Tensor | None) -> None:
        self._mine.add(name)
        if owner is not None:
            self.behind.append((len(self.names), owner))
        self.names.append(encode_name(name, path_text(path)))
        self.described.append(what)
        self.eager.append(owner is None)

    def _add_shared(
        self, name: str, where: str, value: torch.Tensor, what: Described, owner: Any
    ) -> None:
        """Adds a tensor that other ranks may have as well, if it is this one's turn."""
        copies = _copies_of(value, where, self._ranks)
        shared = _shared_of(name, what, value, self._ranks)
        if shared is not None:
            self.shared.append(shared)
        else:
            self.apart.append((name, what.dtype, what.full_shape))
        if copies is None:
            self.empty[name] = describe_empty(what)
        elif is_turn(name, copies):
            self._add(name, None, what, owner)

    def _stored(self, key: _Key | None) -> str | None:
        return None if key is None else self._known.get(key) or self._keys.get(key)

    def put_tensor(self, value: torch.Tensor, path: Path, *, own: bool = False) -> str:
        """Stores a tensor under the name of its path, unless its memory is stored already."""
        where = path_text(path)
        check_tensor(value, where)
        what = describe(value)
        key = _key_of(what)
        self.keep.append(value)
        own = (own or self.own) and self._ranks.world > 1 and not is_spread(value)
        keys = self._own_keys if own else self._keys
        name = self._stored(key)
        if name is None and key is not None:
            name = keys.get(key)
        if name is None:
            name = self._free_name(path, own=own)
            self.used.add(name)
            encode_name(name, where)
            if own:
                self._add(name, path, what, None)
            else:
                self._add_shared(name, where, value, what, self._owned.get(id(value)))
            if key is not None:
                keys[key] = name
        if not own:
            self.ids.setdefault(id(value), name)
        return name

    def put_array(self, value: Any, path: Path) -> str:
        """Stores a NumPy array. It is each rank's own, as every value of Python is."""
        name = self._free_name(path, own=True)
        if not is_whole(value):  # one member of a structured array
            value = value.copy()
        self.keep.append(value)
        self.used.add(name)
        self._add(name, path, describe_array(value), None)
        return name

    def put_bytes(self, value: bytes, path: Path) -> str:
        """Stores bytes, each rank its own."""
        name = self._free_name(path, own=True)
        self.keep.append(value)
        self.used.add(name)
        self._add(name, path, describe_bytes(value), None)
        return name

    def put_named(self, name: str, value: torch.Tensor, path: Path) -> None:
        """Stores a tensor under this name; memory that is stored already gets a second name."""
        where = f"{path_text(path)}, tensor {name}"
        check_tensor(value, where)
        if name in self.used or self._taken(name):
            raise name_clash(name, path)
        what = describe(value)
        key = _key_of(what)
        self.keep.append(value)
        self.used.add(name)
        data = encode_name(name, path_text(path))
        stored = self._stored(key)
        if stored is not None:
            if stored in self._mine or stored in self._known_mine:
                self.aliases.append((data, stored.encode()))
            return
        if self._owned_keys is None:
            self._owned_keys = {_key_of(describe(owner)): owner for owner in self._owned.values()}
        owner = None if key is None else self._owned_keys.get(key)
        self._add_shared(name, where, value, what, owner)
        if key is not None:
            self._keys[key] = name


def name_clash(name: str, path: Path) -> UnsupportedStateError:
    """Two things in the state want one name."""
    return UnsupportedStateError(
        f"{path_text(path)} has a tensor {name!r}, and so has something else in the state: give it "
        "another key",
        tensor=name,
    )


class _Modules:
    """The modules of a state that have no say of their own: walked once, then compared."""

    def __init__(
        self,
        specials: list[Special],
        plain: Path,
        owned: dict[int, torch.Tensor],
        ranks: Ranks,
    ) -> None:
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        self.tensors: list[torch.Tensor] = []
        self._copies: list[Copies | None] = []
        #: second names, and the first ones
        self.tied: list[tuple[bytes, str]] = []
        self._ranks = ranks
        #: name of every tensor, aliases included, and where it is from
        self.used: dict[str, Path] = {}
        self.keys: dict[_Key, str] = {}
        self.ids: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        #: prefixes of the names of the modules that have a say of their own
        self.own_say: dict[int, str] = {}
        self._shapes: list[Shape] = []
        self._doubles: list[torch.Tensor] = []
        self._others: list[torch.nn.Module] = []
        for special in specials:
            if id(special.value) in self.texts:
                raise there_twice(special.path)
            prefix = prefix_in(special, plain)
            if has_own_say(special.value):
                self.own_say[id(special.value)] = prefix
                self._others.append(special.value)
                self.texts[id(special.value)] = ""
                for name, tensor in parameter_names(unwrap(special.value), prefix):
                    self.ids.setdefault(id(tensor), name)
            else:
                self._add_module(special, prefix, owned)
        self._in_order()
        self._part = part_of(self.names, self.tensors)
        doubles = spread_last(self._doubles)
        self._doubled = part_of([], [self._doubles[number] for number in doubles])
        #: of each tensor, whether this rank writes it
        self.mine = settle(Shares(), self.names, self.tensors, self._copies)
        self.empty = _empty_of(self.names, self.described, self._copies)
        late = [n for n, eager in enumerate(self.eager) if not eager and self.mine[n]]
        self.behind = self._part.only(late)
        mine = {name for name, wanted in zip(self.names, self.mine, strict=True) if wanted}
        self.mine_names = {name.decode() for name in mine}
        self.aliases = [
            (alias, name.encode()) for alias, name in self.tied if name in self.mine_names
        ]

    def _in_order(self) -> None:
        order = spread_last(self.tensors)
        self.names = [self.names[number] for number in order]
        self.described = [self.described[number] for number in order]
        self.eager = [self.eager[number] for number in order]
        self.tensors = [self.tensors[number] for number in order]
        self._copies = [self._copies[number] for number in order]

    def _add_module(self, special: Special, prefix: str, owned: dict[int, torch.Tensor]) -> None:
        reshard(special.value)
        self._shapes.append(Shape(special.value))
        names = []
        for name, tensor in walk(special.value, prefix):
            if name in self.used:
                raise name_clash(name, special.path)
            check_tensor(tensor, name)
            self.used[name] = special.path
            names.append(name)
            self._add(name, tensor, id(tensor) in owned)
        for name, tensor in parameter_names(special.value, prefix):
            self.ids.setdefault(id(tensor), name)
        self.texts[id(special.value)] = module_text(special.value, prefix, names, {})

    def _add(self, name: str, tensor: torch.Tensor, owned: bool) -> None:
        what = describe(tensor)
        check_place(what, name)
        key = _key_of(what)
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
        self._copies.append(_copies_of(tensor, name, self._ranks))
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


def settle(
    shares: Shares,
    names: list[bytes],
    tensors: list[torch.Tensor],
    copies: list[Copies | None],
) -> list[bool]:
    """Of each tensor, whether this rank writes it."""
    held = [number for number, found in enumerate(copies) if found is not None]
    mine = [False] * len(names)
    wanted = [
        (names[number], memory_of(tensors[number]).nbytes, found)
        for number, found in enumerate(copies)
        if found is not None
    ]
    for number, wants in zip(held, shares.settle(wanted), strict=True):
        mine[number] = wants
    return mine


def module_text(
    module: torch.nn.Module, prefix: str, names: list[str], extra: dict[str, Json]
) -> str:
    """A module in the Python state: which tensors are its own, what it adds that is no tensor."""
    return dump(
        {
            "$module": {
                "class": class_name(module),
                "prefix": prefix,
                "tensors": names,
                "extra": extra,
            }
        }
    )


class _Walked(NamedTuple):
    """What is kept between saves: the description of all modules and optimizers."""

    specials: list[Special]
    modules: _Modules
    sources: list[OptimizerSource]
    #: parameters that the optimizers own, by id
    owned: dict[int, torch.Tensor]
    #: those whose names are from tensors beside the modules
    borrowed: dict[int, str]
    block: Block
    #: of every tensor of the modules and the optimizers its place in the block; -1: another's turn
    places: list[int]
    #: what could be copied behind the loop is little, and copied before it goes on
    small: bool
    #: what the tensors of modules and optimizers are of which this rank holds nothing
    empty: dict[str, Json]


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
    ) -> None:
        self._ranks = Ranks(rank, world, Near(rank, peers) if peers else None)
        self._common: tuple[_Walked, list[_Shared], list[_Shared], bytes, dict[str, str]] | None = (
            None
        )
        self._eager = eager
        self._small_bytes = small_bytes
        self._allow_pickle = allow_pickle
        self._walked: _Walked | None = None
        self._slow: Block | None = None

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """Describes the state as it is now."""
        check_state(state)
        specials = find_specials(state)
        walked = self._walked
        self._walked = None  # should anything below fail
        if walked is not None and not self._still(walked, specials):
            walked = None
        if walked is None:
            modules, owned = self._walk_modules(specials)
        else:
            modules, owned = walked.modules, walked.owned
        ids = {id(special.value) for special in specials}
        writer = _Writer(modules, ids, owned, self._allow_pickle, self._ranks)
        state_text = writer.write(state)
        if walked is not None and not _lends_the_same(walked, writer.sink):
            walked = None
        if walked is None:
            walked = self._walk_optimizers(specials, modules, owned, writer.sink)
        meta = writer.finish(state_text, walked, state)
        common = self._common_of(walked, writer.sink.shared, writer.sink.apart)
        self._walked = walked
        return self._assemble(walked, writer, meta, common)

    def _common_of(
        self, walked: _Walked, others: list[_Shared], apart: list[_Shared]
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
            tensors: list[torch.Tensor] = list(walked.modules.tensors)
            for source in walked.sources:
                names += source.part.names
                described += source.described
                tensors += source.part.tensors
            shared, rest = list(others), list(apart)
            for name, what, tensor in zip(names, described, tensors, strict=True):
                found = _shared_of(name.decode(), what, tensor, self._ranks)
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

    def _still(self, walked: _Walked, specials: list[Special]) -> bool:
        """True if what was walked is as it was; replaced tensors are brought up to date."""
        if len(specials) != len(walked.specials) or not all(
            new.value is old.value and new.path == old.path
            for new, old in zip(specials, walked.specials, strict=True)
        ):
            return False
        if not walked.modules.same():
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
            first += len(source.described)
        return True

    def _walk_modules(self, specials: list[Special]) -> tuple[_Modules, dict[int, torch.Tensor]]:
        owned = {}
        if not self._eager:
            owned = {
                id(parameter): parameter
                for special in specials
                if is_optimizer(special.value)
                for parameter in parameters(special.value)
                if not parameter.is_inference()
            }
        found = [special for special in specials if is_module(special.value)]
        return _Modules(found, plain_path(found), owned, self._ranks), owned

    def _walk_optimizers(
        self,
        specials: list[Special],
        modules: _Modules,
        owned: dict[int, torch.Tensor],
        sink: _Sink,
    ) -> _Walked:
        known = {**sink.ids, **modules.ids}
        sources = [
            OptimizerSource(special.value, special.path, known)
            for special in specials
            if is_optimizer(special.value)
        ]
        for parameter in chain.from_iterable(source.params for source in sources):
            if id(parameter) in sink.ids:  # the optimizer holds it, so that it cannot be replaced
                check_place(describe(parameter), sink.ids[id(parameter)])
        names, described = list(modules.names), list(modules.described)
        eager, mine = list(modules.eager), list(modules.mine)
        used = set(modules.used) | sink.used
        empty = dict(modules.empty)
        shares = Shares()  # of its own: modules are not always walked again with the optimizers
        for source in sources:
            if clash := source.names & used:
                raise name_clash(min(clash), source.path)
            used |= source.names
            names += source.part.names
            described += source.described
            eager += [self._eager] * len(source.described)
            mine += self._settle_source(source, shares, empty)
        small = self._is_small(modules, sources, sink)
        if small:
            eager = [True] * len(eager)
        chosen = [number for number, wanted in enumerate(mine) if wanted]
        places = [-1] * len(mine)
        for place, number in enumerate(chosen):
            places[number] = place
        return _Walked(
            specials=specials,
            modules=modules,
            sources=sources,
            owned=owned,
            borrowed={key: name for key, name in sink.ids.items() if key in owned},
            block=Block(
                [names[number] for number in chosen],
                [described[number] for number in chosen],
                [eager[number] for number in chosen],
            ),
            places=places,
            small=small,
            empty=empty,
        )

    def _settle_source(
        self, source: OptimizerSource, shares: Shares, empty: dict[str, Json]
    ) -> list[bool]:
        """Of each tensor of an optimizer, whether this rank writes it."""
        part = source.part
        copies = [
            _copies_of(tensor, name.decode(), self._ranks)
            for name, tensor in zip(part.names, part.tensors, strict=True)
        ]
        empty.update(_empty_of(part.names, source.described, copies))
        mine = settle(shares, part.names, part.tensors, copies)
        source.mine = None
        if not all(mine):
            source.mine = [number for number, wanted in enumerate(mine) if wanted]
        return mine

    def _why_eager(self, walked: _Walked) -> str:
        if self._eager:
            return "eager=True"
        if not walked.sources:
            return "there is no optimizer in the state"
        return "it is small"

    def _is_small(self, modules: _Modules, sources: list[OptimizerSource], sink: _Sink) -> bool:
        if self._eager:
            return False
        late = [*modules.behind.tensors, *(owner for _, owner in sink.behind)]
        late += [tensor for source in sources for tensor in source.own_part().tensors]
        return sum(memory_of(tensor).nbytes for tensor in late) <= self._small_bytes

    def _assemble(
        self, walked: _Walked, writer: _Writer, meta: bytes, common: tuple[bytes, dict[str, str]]
    ) -> Snapshot:
        sink = writer.sink
        parts: list[Part] = []
        if walked.small:
            sink.eager = [True] * len(sink.eager)
        elif not self._eager:
            parts = [walked.modules.behind, *(source.own_part() for source in walked.sources)]
            if sink.behind:
                order = spread_last([owner for _, owner in sink.behind])
                found = [sink.behind[number] for number in order]
                names = [sink.names[number] for number, _ in found]
                parts.append(part_of(names, [owner for _, owner in found]))
        parts = [part for part in parts if part.names]
        if self._slow is None or not self._slow.fits(sink.names, sink.described, sink.eager):
            self._slow = Block(sink.names, sink.described, sink.eager)
        return Snapshot(
            blocks=[block for block in (walked.block, self._slow) if block.count],
            aliases=walked.modules.aliases + sink.aliases,
            meta=meta,
            common=common[0],
            apart=common[1],
            behind=Behind(parts, [part.versions() for part in parts]),
            keep=sink.keep,
            optimizers=[source.optimizer for source in walked.sources],
            why_eager=self._why_eager(walked),
            pickled=writer.encoder.pickled,
        )


def _lends_the_same(walked: _Walked, sink: _Sink) -> bool:
    """True if the optimizers' parameters that are no module's have the names they had."""
    if any(sink.ids.get(key) != name for key, name in walked.borrowed.items()):
        return False
    return all(sink.used.isdisjoint(source.names) for source in walked.sources)


_TOKEN = re.compile(r'"\\u0000(\d+)"')


class _Writer:
    """Writes the Python state of one save."""

    def __init__(
        self,
        modules: _Modules,
        specials: set[int],
        owned: dict[int, torch.Tensor],
        allow_pickle: bool,
        ranks: Ranks,
    ) -> None:
        self._specials = specials
        self._ranks = ranks
        self.sink = _Sink(modules, owned, ranks)
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

    def finish(self, text: str, walked: _Walked, state: dict[str, Any]) -> bytes:
        """Puts the optimizers in, and what describes the whole."""
        for source in walked.sources:

            def put(name: str, value: torch.Tensor, path: Path = source.path) -> None:
                self.sink.put_named(name, value, path)

            self._texts[self._optimizers[id(source.optimizer)]] = source.node(self.encoder, put)
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
            return self._modules.texts[id(module)]
        import torch

        names: list[str] = []
        extra: dict[str, Json] = {}
        inner = unwrap(module)
        own = own_memory(inner)
        for key, value in inner.state_dict().items():
            name = prefix + strip_wrappers(key)
            if isinstance(value, torch.Tensor):
                self.sink.put_named(name, value, path)
                # What it made for the occasion, it can take back.
                if memory_of(value).data_ptr() in own:
                    check_place(describe(value), name)
                names.append(name)
            else:
                extra[strip_wrappers(key)] = self.encoder.encode(value, (path, key), 8)
        return module_text(module, prefix, names, extra)

    def _object(self, value: Any, path: Path, depth: int) -> Json:
        if self._inside or self.encoder.wrapped:
            raise misplaced_object(value, path)
        # What only the object knows may be another thing on every rank.
        self._inside = self.sink.own = True
        try:
            node = self.encoder.encode(value.state_dict(), path, depth + 2)
        finally:
            self._inside = self.sink.own = False
        return {"$object": {"class": type(value).__qualname__, "state": node}}
