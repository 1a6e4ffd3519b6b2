# SPDX-License-Identifier: Apache-2.0
"""
Decides which of the ranks that hold the same tensor writes it, and which tensors are each rank's
own.

All ranks must get the same result without communication, so it depends only on what all of them
know: names and sizes of tensors, and the mesh. If every node has a store, the ranks of a node
distribute what they hold among themselves, so that each store has everything that its ranks need.
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
    """The ranks that write to the same store as this one, if every node has a store."""

    def __init__(self, rank: int, peers: Sequence[int]) -> None:
        self._rank = rank
        self._peers = peers
        #: the lowest of them
        self.first = min(peers)
        #: for ranks along some dimensions of a mesh: how many are near, and the place of this one
        self._known: dict[Hashable, tuple[int, int]] = {}

    def of(self, copies: Copies) -> Copies:
        """The copies whose ranks write to this store."""
        if copies.among == 1:
            return copies
        found = self._known.get(copies.along)
        if found is None:
            held = None if copies.along is None else set(ranks_along(copies.along))
            near = [rank for rank in self._peers if held is None or rank in held]
            found = self._known[copies.along] = len(near), near.index(self._rank)
        return copies._replace(among=found[0], place=found[1])


class Ranks(NamedTuple):
    """This process as one of the ranks that save together."""

    rank: int = 0
    world: int = 1
    #: the ranks that write to the same store; None: all
    near: Near | None = None
    #: patterns for names of plain tensors that are each rank's own
    per_rank: tuple[str, ...] = ()

    def is_own(self, name: str, value: Any) -> bool:
        """True for a plain tensor that is each rank's own, because the user has named it."""
        return (
            self.world > 1
            and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.per_rank)
            and not is_spread(value)
        )

    def own_name(self, name: str) -> str:
        """The name under which this rank saves a tensor of its own."""
        return name if self.world == 1 else f"{own_prefix(self.rank)}{name}"

    def everywhere(self) -> Copies:
        """Copies for a tensor that is the same on all ranks."""
        return _everywhere(self)

    def of_first(self) -> Copies:
        """Copies for a tensor that rank 0 saves for all ranks."""
        return Copies(None, self.world, self.rank, first=True)

    def here(self, copies: Copies) -> Copies:
        """The copies among the ranks that write to the store of this rank."""
        return copies if self.near is None else self.near.of(copies)


@functools.lru_cache(maxsize=64)
def _everywhere(ranks: Ranks) -> Copies:
    return Copies("world", ranks.world, ranks.rank)


def own_prefix(rank: int) -> str:
    """The prefix of names of a rank's own tensors."""
    return f"rank-{rank:05d}/"


def is_own(name: object) -> bool:
    """True for the name of a tensor that is a rank's own."""
    return isinstance(name, str) and re.match(r"rank-[0-9]{5}/", name) is not None


def is_turn(name: str, copies: Copies) -> bool:
    """True if this rank writes a single tensor."""
    if copies.among == 1:
        return True
    if copies.first:
        return copies.place == 0
    return zlib.crc32(name.encode("utf-8", "replace")) % copies.among == copies.place


class Shares:
    """Balances the bytes of tensors among the ranks that hold them."""

    def __init__(self) -> None:
        #: heaps of (bytes so far, place), the least first
        self._loads: dict[Hashable, list[tuple[int, int]]] = {}

    def settle(self, wanted: list[tuple[bytes, int, Copies]]) -> list[bool]:
        """
        Which of some tensors (name, bytes, holders) this rank writes. The largest first, each by
        the rank that has the fewest bytes so far.
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
    """For each tensor, whether this rank writes it."""
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
