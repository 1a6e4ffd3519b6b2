# SPDX-License-Identifier: Apache-2.0
"""
Stages of a pipeline with plain tensors: finds which ranks hold which name.

A plain tensor does not show which ranks have it. So the ranks compare the names in their modules
when they make a Checkpointer. If all have the same names, that is all. Otherwise each rank gets the
ranks that have each of its names, and so these ranks save what only they have.

This is done only for stages: a rank that lacks a tensor must have one that the holders lack. A rank
that has only a part of what another one has may have lost a tensor, and is refused.

No tensor is lost if the modules change later. Then all ranks must have all names, and a save in
which they do not is committed for no rank.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from .._errors import MismatchError
from .._into import is_tensor
from .._json_nodes import NESTING_MAX, Path, path_name
from .._log import logger
from .._modules import is_extra_state, walk
from .._state_kinds import (
    Special,
    children,
    find_specials,
    is_module,
    plain_path,
    prefix_in,
)
from .._structure import is_open
from ._holders import Meshes, ModuleHolders
from ._layout import is_spread, memory_of
from ._subclasses import wraps
from ._wrappers import has_own_say, reshard

if TYPE_CHECKING:
    from .._barrier import Opening
    from .._ranks import Ranks

#: Longest pause between two reads of a key, in seconds. There may be many ranks.
_PAUSE = 0.5
_MIXED = "mixed"
#: Prefix of the kind of a second name of a tensor. The first name follows.
_TIED = "another name of "


class Told(NamedTuple):
    """
    The tensors of a rank, without those that are each rank's own. Their kinds by name: dtype and
    shape of a plain tensor that all ranks must have, unless they are stages; for a second name of a
    plain tensor, see _TIED; empty: another tensor.
    """

    #: tensors of its modules
    kinds: dict[str, str]
    #: plain tensors in the state itself, which all ranks must have
    others: dict[str, str]

    @staticmethod
    def of(state: dict[str, Any], ranks: Ranks) -> Told:
        """Those of a state as it is now."""
        kinds = Told.of_specials(find_specials(state), ranks).kinds
        return Told(kinds, _others_of(state, ranks))

    @staticmethod
    def of_specials(specials: list[Special], ranks: Ranks) -> Told:
        """Those of the modules of a state as they are now."""
        modules = [special for special in specials if is_module(special.value)]
        plain, meshes = plain_path(modules), Meshes(ranks.rank, ranks.world)
        kinds: dict[str, str] = {}
        #: first name of a tensor by its place; empty: it is this rank's own
        firsts: dict[Any, str] = {}
        # A save walks plain modules before it asks custom ones, so plain ones have the first names.
        # The contents of custom modules are not known before they are asked.
        for asked, special in sorted(
            ((has_own_say(one.value), one) for one in modules), key=lambda pair: pair[0]
        ):
            reshard(special.value)
            prefix = prefix_in(special, plain)
            holders = ModuleHolders(special.value, meshes)
            for name, tensor in walk(special.value, prefix):
                known = holders.of(name[len(prefix) :]) is not None
                place = None if known else _place_of(tensor)
                own = ranks.is_own(name, tensor)
                first = name if place is None else firsts.setdefault(place, "" if own else name)
                if not first or (own and (asked or first == name)):
                    continue
                if first != name:
                    kinds[name] = _TIED + first
                else:
                    kinds[name] = "" if asked or known else _kind_of(tensor)
        return Told(kinds, {})

    def encode(self) -> bytes:
        """As bytes, for a key."""
        return zlib.compress(json.dumps(self, sort_keys=True).encode())

    @staticmethod
    def decode(said: bytes) -> Told:
        """Reads the result of encode()."""
        return Told(*json.loads(zlib.decompress(said)))

    @property
    def digest(self) -> str:
        """Equal for ranks that have the same tensors."""
        text = json.dumps(self, sort_keys=True).encode()
        return hashlib.sha256(text).hexdigest()[:32]


def told_by(state: dict[str, Any] | None, ranks: Ranks) -> Told | None:
    """The tensors of this rank's state; None: unknown so far."""
    if state is None or ranks.world == 1:
        return None
    try:
        return Told.of(state, ranks)
    except Exception as error:  # a later check reports what is wrong with the state
        logger.debug("the names in the state's modules are not known: %r", error)
        return None


def _others_of(state: dict[str, Any], ranks: Ranks) -> dict[str, str]:
    """
    The plain tensors in a state outside its modules, by the names that they are stored under.
    Tensors that share memory with another one are left out, because it is stored once.
    """
    found: dict[str, Any] = {}
    _find_tensors(state, None, 0, found)
    plain = {name: one for name, one in found.items() if not (is_spread(one) or wraps(one))}
    if not plain:
        return {}
    modules = (special.value for special in find_specials(state) if is_module(special.value))
    known = {one.data_ptr() for module in modules for one in _tensors_of(module)}
    uses = Counter(one.data_ptr() for one in plain.values())
    return {
        name: _kind_of(one)
        for name, one in plain.items()
        if uses[one.data_ptr()] == 1 and one.data_ptr() not in known and not ranks.is_own(name, one)
    }


def _find_tensors(value: Any, path: Path, depth: int, found: dict[str, Any]) -> None:
    if is_tensor(value):
        found[path_name(path)] = value
    elif depth <= NESTING_MAX and is_open(value):  # the encoder treats others as objects
        for key, item in children(value):
            _find_tensors(item, (path, key), depth + 1, found)


def _tensors_of(module: Any) -> list[Any]:
    tensors = chain(module.parameters(), module.buffers())
    return [memory_of(one) for one in tensors if not is_lazy(one)]


def is_lazy(tensor: Any) -> bool:
    """True for a parameter that has no shape yet."""
    import torch

    return bool(torch.nn.parameter.is_lazy(tensor))


def _kind_of(tensor: Any) -> str:
    if is_spread(tensor) or wraps(tensor) or is_lazy(tensor):
        return ""
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")


def _place_of(tensor: Any) -> Any:
    """Equal for plain tensors with the same memory, dtype, shape and strides; None: unknown."""
    import torch

    if is_spread(tensor) or wraps(tensor) or is_lazy(tensor) or tensor.is_meta:
        return None
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class Stages:
    """The result of the comparison of all names, for one rank."""

    def __init__(
        self,
        told: Told,
        sets: list[tuple[int, ...]],
        numbers: dict[str, int],
        wrong: str,
        ties: list[tuple[str, str]],
    ) -> None:
        self._told = told
        self._sets = sets
        #: number of the set of ranks that have a name, for names that not all ranks have
        self._numbers = numbers
        #: not empty: why the ranks are not stages
        self._wrong = wrong
        #: (second name, first name) of tensors of this rank that only other ranks have tied
        self.ties = ties
        #: number of the set of ranks that have all of a module, by its path; None: all ranks
        self._paths: dict[str, int | str | None] = {}
        for name in told.kinds:
            number, path = numbers.get(name), name.rpartition(".")[0]
            while path:
                if self._paths.setdefault(path, number) != number:
                    self._paths[path] = _MIXED
                path = path.rpartition(".")[0]

    @staticmethod
    def decode(told: Told, answer: bytes) -> Stages:
        """Reads the answer of rank 0 for ranks with these tensors."""
        sets, numbers, wrong, ties = json.loads(zlib.decompress(answer))
        return Stages(told, list(map(tuple, sets)), numbers, wrong, list(map(tuple, ties)))

    def __bool__(self) -> bool:
        """True if there are names that not all ranks have."""
        return bool(self._numbers)

    def holders(self, name: str) -> tuple[int, ...] | None:
        """
        The ranks that hold a tensor; None: all. Extra state is held by the ranks that hold all
        tensors of the nearest enclosing module.
        """
        if name in self._told.kinds or not is_extra_state(name):
            return self._ranks(self._numbers.get(name))
        path = name.rpartition(".")[0]
        while path and path not in self._paths:
            path = path.rpartition(".")[0]
        return self._ranks(self._paths.get(path))

    def _ranks(self, number: int | str | None) -> tuple[int, ...] | None:
        return self._sets[number] if isinstance(number, int) else None

    def fits(self, now: Told) -> bool:
        """True if the modules still have the same names."""
        return now.kinds.keys() == self._told.kinds.keys()

    @property
    def is_wrong(self) -> bool:
        """True: the ranks are not stages."""
        return bool(self._wrong)

    def check(self, now: Told) -> None:
        """
        Raises MismatchError if the ranks are not stages, and the names have not changed. Only names
        are compared, so that the result is the same on all ranks: a tensor may have got its shape
        since on some of them.
        """
        same = self.fits(now) and now.others.keys() == self._told.others.keys()
        if self._wrong and same:
            raise MismatchError(
                f"the ranks do not have the same tensors: {self._wrong}. No step would be "
                "committed. Give all ranks the same tensors, or give each stage the names of the "
                "whole model; name tensors that are each rank's own in per_rank=; or save each "
                "rank to its own store, with distributed=False"
            )


def sum_up(classes: dict[str, Told], ranks: dict[str, list[int]]) -> dict[str, bytes]:
    """
    Rank 0: the answers for the ranks of each digest. `classes`: the tensors by digest. `ranks`: the
    ranks by digest.
    """
    having: dict[str, list[str]] = {}
    ties: dict[str, set[str]] = {}
    for digest, told in classes.items():
        for name, kind in told.kinds.items():
            having.setdefault(name, []).append(digest)
            if kind.startswith(_TIED):
                ties.setdefault(kind.removeprefix(_TIED), set()).add(name)
    wrong = _find_odd(classes, ranks) or _find_wrong(classes, ranks, having)
    # Many names are held by the same ranks. Such sets are built once.
    by_digests: dict[tuple[str, ...], int] = {}
    held: list[tuple[int, ...]] = []
    places: dict[str, int] = {}
    for name, digests in () if wrong else having.items():
        if len(digests) < len(classes):
            places[name] = by_digests.setdefault(tuple(digests), len(held))
            if places[name] == len(held):
                held.append(tuple(sorted(rank for one in digests for rank in ranks[one])))
    answers = {}
    for digest, told in classes.items():
        sets: dict[int, int] = {}
        numbers = {
            name: sets.setdefault(places[name], len(sets)) for name in told.kinds if name in places
        }
        lacking = [
            (second, name)
            for name in sorted(ties.keys() & told.kinds.keys())
            for second in sorted(ties[name] - told.kinds.keys())
        ]
        answer = [[held[place] for place in sets], numbers, wrong, lacking]
        answers[digest] = zlib.compress(json.dumps(answer).encode())
    return answers


def _find_odd(classes: dict[str, Told], ranks: dict[str, list[int]]) -> str:
    """A difference of the tensors in the state itself; empty: there is none."""
    for name in sorted({name for told in classes.values() for name in told.others}):
        said = {one: told.others.get(name) for one, told in classes.items()}
        first = next(one for one, kind in said.items() if kind is not None)
        for one, kind in said.items():
            if kind != said[first]:
                then = f"{said[first]} on rank {ranks[first][0]}"
                now = f"{kind or 'is not there'} on rank {ranks[one][0]}"
                return f"{name!r} in the state is {then}, and {now}"
    return ""


def _find_wrong(
    classes: dict[str, Told], ranks: dict[str, list[int]], having: dict[str, list[str]]
) -> str:
    """Why the ranks are not stages; empty: they are."""
    made: dict[tuple[str, ...], set[str]] = {}
    holders = {name: made.setdefault(tuple(by), set(by)) for name, by in having.items()}
    within = _find_parts(classes, holders)
    for name in sorted(having):
        kinds: dict[str, int] = {}
        for one in having[name]:
            kinds.setdefault(classes[one].kinds[name], ranks[one][0])
        kinds.pop("", None)
        if len(kinds) > 1:
            said = [f"{kind} on rank {rank}" for kind, rank in kinds.items()]
            return f"{name!r} is {said[0]}, and {said[1]}"
        if not kinds or next(iter(kinds)).startswith(_TIED) or len(having[name]) == len(classes):
            continue
        for lacking in (one for one in within if one not in holders[name]):
            for holder in having[name]:
                if holder in within[lacking]:
                    first, second = ranks[holder][0], ranks[lacking][0]
                    return (
                        f"rank {first} has {name!r}, and rank {second} lacks it without having "
                        f"anything that rank {first} lacks, as a stage of a pipeline would"
                    )
    return ""


def _find_parts(classes: dict[str, Told], holders: dict[str, set[str]]) -> dict[str, set[str]]:
    """For ranks that have only a part of what other ranks have: those others. By digest."""
    within = {}
    for digest, told in classes.items():
        # A second name does not count as a tensor that others lack.
        names = (name for name, kind in told.kinds.items() if not kind.startswith(_TIED))
        sets = {id(holders[name]): holders[name] for name in names}
        others = classes.keys() - {digest}
        # The rarest names first: a stage has some that no other rank has.
        for one in sorted(sets.values(), key=len):
            if not others:
                break
            others &= one
        if others:
            within[digest] = others
    return within


def tell_apart(opening: Opening, told: Told) -> Stages:
    """Compares the names of all ranks. All ranks must call this if their digests differ."""
    try:
        return _tell_apart(opening, told)
    except RuntimeError as error:
        raise opening.lost(error) from error


def _tell_apart(opening: Opening, told: Told) -> Stages:
    table, mine = opening.table, f"{opening.prefix}/stages/{told.digest}"
    if table.put(f"{mine}/by", str(opening.group.rank).encode()):
        table.write(f"{mine}/told", told.encode())
        table.read(f"{mine}/told")
    if opening.group.rank == 0:
        ranks: dict[str, list[int]] = {}
        for rank, digest in enumerate(opening.digests):
            ranks.setdefault(digest, []).append(rank)
        classes = {
            digest: Told.decode(_await(opening, f"{opening.prefix}/stages/{digest}/told"))
            for digest in ranks
        }
        for digest in ranks:
            table.drop(f"{opening.prefix}/stages/{digest}/told")
        for digest, answer in sum_up(classes, ranks).items():
            table.write(f"{opening.prefix}/stages/{digest}/answer", answer)
    return Stages.decode(told, _await(opening, f"{mine}/answer"))


def _await(opening: Opening, key: str) -> bytes:
    pause = opening.pause(_PAUSE)
    while (said := opening.table.read(key)) is None:
        if (failed := opening.heed()) is not None:
            raise failed
        if not pause():
            raise opening.late("the ranks have not told all of the names in their modules")
    return said
