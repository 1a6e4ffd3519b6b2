# SPDX-License-Identifier: Apache-2.0
"""
Which of the ranks that hold the same writes it, and what each rank has of its own.

All ranks must come to the same answer without talking, so it follows from what they all know: the
names and sizes of the tensors, and the mesh. Where every node has a store of its own, those of a
node share out among them what they hold, so that each store has all that its ranks need.
"""

from __future__ import annotations

import fnmatch
import functools
import heapq
import re
import zlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .adapters._layout import Copies, is_spread, memory_of, ranks_along

if TYPE_CHECKING:
    import torch


class Near:
    """The ranks that write into the same store as this one, where every node has one."""

    def __init__(self, rank: int, peers: Sequence[int]) -> None:
        self._rank = rank
        self._peers = peers
        #: the lowest of them
        self.first = min(peers)
        #: of the ranks along some dimensions of a mesh: how many are near, this one's place
        self._known: dict[Hashable, tuple[int, int]] = {}

    def of(self, copies: Copies) -> Copies:
        """Those copies that go into this store."""
        if copies.among == 1:
            return copies
        found = self._known.get(copies.along)
        if found is None:
            held = None if copies.along is None else set(ranks_along(copies.along))
            near = [rank for rank in self._peers if held is None or rank in held]
            found = self._known[copies.along] = len(near), near.index(self._rank)
        return copies._replace(among=found[0], place=found[1])


class Ranks(NamedTuple):
    """This process among those that save together."""

    rank: int = 0
    world: int = 1
    #: those of them that write into the same store; None: all
    near: Near | None = None
    #: patterns of the names of plain tensors of which every rank has its own
    per_rank: tuple[str, ...] = ()

    def is_own(self, name: str, value: Any) -> bool:
        """True for a plain tensor of which every rank has its own, by what the user has said."""
        return (
            self.world > 1
            and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.per_rank)
            and not is_spread(value)
        )

    def own_name(self, name: str) -> str:
        """The name of a tensor that every rank has one of. The name of each is its own."""
        return name if self.world == 1 else f"{own_prefix(self.rank)}{name}"

    def everywhere(self) -> Copies:
        """Of a tensor that is the same on all ranks."""
        return _everywhere(self)

    def of_first(self) -> Copies:
        """Of a tensor of which that of rank 0 is the one of all."""
        return Copies(None, self.world, self.rank, first=True)

    def here(self, copies: Copies) -> Copies:
        """Of the ranks that hold the same, those that write into this rank's store."""
        return copies if self.near is None else self.near.of(copies)


@functools.lru_cache(maxsize=64)
def _everywhere(ranks: Ranks) -> Copies:
    return Copies("world", ranks.world, ranks.rank)


def own_prefix(rank: int) -> str:
    """What the names of a rank's own tensors begin with."""
    return f"rank-{rank:05d}/"


def is_own(name: object) -> bool:
    """True for the name of a tensor that some rank has of its own."""
    return isinstance(name, str) and re.match(r"rank-[0-9]{5}/", name) is not None


def is_turn(name: str, copies: Copies) -> bool:
    """True if this rank writes a tensor that is asked about alone."""
    if copies.among == 1:
        return True
    if copies.first:
        return copies.place == 0
    return zlib.crc32(name.encode("utf-8", "replace")) % copies.among == copies.place


class Shares:
    """Balances tensors by bytes among those that hold them."""

    def __init__(self) -> None:
        #: (bytes so far, index) of each, the least first
        self._loads: dict[Hashable, list[tuple[int, int]]] = {}

    def settle(self, wanted: list[tuple[bytes, int, Copies]]) -> list[bool]:
        """
        Which of some tensors (name, bytes, who holds them) this rank writes. Large ones first, each
        by the one that has least so far.
        """
        mine = [copies.among == 1 for _, _, copies in wanted]
        for number in sorted(range(len(wanted)), key=lambda n: (-wanted[n][1], wanted[n][0])):
            _, nbytes, copies = wanted[number]
            if copies.among > 1 and copies.group is None:
                mine[number] = is_turn(wanted[number][0].decode("utf-8", "replace"), copies)
            elif copies.among > 1:
                loads = self._loads.get(copies.group)
                if loads is None:
                    loads = [(0, index) for index in range(copies.among)]
                    self._loads[copies.group] = loads
                load, chosen = loads[0]
                heapq.heapreplace(loads, (load + max(nbytes, 1), chosen))
                mine[number] = chosen == copies.place
        return mine


def settle(
    shares: Shares,
    names: list[bytes],
    tensors: list[torch.Tensor],
    copies: list[Copies | None],
    ranks: Ranks,
) -> list[bool]:
    """Of each tensor, whether this rank writes it."""
    if all(found is not None and found.among == 1 for found in copies):
        return [True] * len(names)
    held = [number for number, found in enumerate(copies) if found is not None]
    mine = [False] * len(names)
    wanted = [
        (names[number], memory_of(tensors[number]).nbytes, ranks.here(found))
        for number, found in enumerate(copies)
        if found is not None
    ]
    for number, wants in zip(held, shares.settle(wanted), strict=True):
        mine[number] = wants
    return mine
