# SPDX-License-Identifier: Apache-2.0
"""
What several ranks hold alike, and only one of them saves: the library compares digests of it before
a step is committed. Here is said which ranks hold the same, under numbers that all of them give.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from ._errors import CheckpointWarning
from ._tensors import Block, Described
from .adapters._layout import Copies, ranks_along

#: Of one rank, that the library compares.
_GROUPS_MAX = 16

#: The number of a tensor's group; None: it is not compared.
Group = int | None


class Groups:
    """Numbers for the ranks that hold the same."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._known: dict[Hashable, int] = {}

    def of(self, copies: Copies | None) -> Group:
        """
        Of the ranks of `copies`, of which this one is one, if they are compared. Of what the first
        of them saves the names are; those of all ranks are compared anyway, see Snapshot.common,
        and buffers of which each may have its own are in groups of these, see OwnBuffers.
        """
        if copies is None or copies.among == 1:
            return None
        if copies.first and (copies.along is None or copies.more):
            return None
        return self.number(copies)

    def number(self, copies: Copies) -> int:
        """Of the ranks of `copies`, of which this one is one."""
        found = self._known.get(copies.along)
        if found is None:
            ranks = range(self._world) if copies.along is None else ranks_along(copies.along)
            text = ",".join(map(str, sorted(ranks))).encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            found = self._known[copies.along] = int.from_bytes(digest, "little")
        return found


class Alike(NamedTuple):
    """Tensors of each group, and where each tensor is among them."""

    blocks: dict[int, Block]
    #: by its number: group and place
    places: dict[int, tuple[int, int]]

    @staticmethod
    def of(
        names: Sequence[bytes],
        described: Sequence[Described],
        groups: Sequence[Group],
        flags: Sequence[int],
    ) -> Alike:
        """Of some tensors those that are compared."""
        numbers: dict[int, list[int]] = {}
        places: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(groups):
            if group is not None:
                found = numbers.setdefault(group, [])
                places[number] = group, len(found)
                found.append(number)
        blocks = {
            group: Block(
                [names[number] for number in found],
                [described[number] for number in found],
                [False] * len(found),
                [flags[number] for number in found],
            )
            for group, found in numbers.items()
        }
        return Alike(blocks, places)

    def move(self, number: int, pointer: int) -> None:
        """The tensor has new memory."""
        if number in self.places:
            group, place = self.places[number]
            self.blocks[group].move(place, pointer)


class Slow:
    """Those that are described anew at every save."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._said = False

    def update(self, found: Iterable[tuple[int, bytes, Described, int]]) -> dict[int, Block]:
        """Blocks of tensors with their groups: those of before, if only pointers differ."""
        names: dict[int, list[bytes]] = {}
        described: dict[int, list[Described]] = {}
        flags: dict[int, list[int]] = {}
        for group, name, what, marks in found:
            names.setdefault(group, []).append(name)
            described.setdefault(group, []).append(what)
            flags.setdefault(group, []).append(marks)
        blocks: dict[int, Block] = {}
        for group, some in names.items():
            eager = [False] * len(some)
            old = self._blocks.get(group)
            if old is None or not old.fits(some, described[group], eager, flags[group]):
                old = Block(some, described[group], eager, flags[group])
            blocks[group] = old
        self._blocks = blocks
        return blocks

    def join(
        self,
        walked: dict[int, Block],
        slow: dict[int, Block],
        own: Sequence[tuple[int, Block]] = (),
        first: Collection[int] = (),
    ) -> list[tuple[int, Block]]:
        """
        All of them and of `own`, of no more groups than are compared. `first`: groups that are
        kept before others. A rank that drops one of them would leave others to take what they
        hold for all ranks'.
        """
        groups = sorted({*walked, *slow, *(group for group, _ in own)})
        groups.sort(key=lambda group: group not in first)
        if len(groups) > _GROUPS_MAX and not self._said:
            self._said = True
            warnings.warn(
                f"this rank shares tensors with {len(groups)} groups of ranks, and whether they "
                f"hold the same is found out for {_GROUPS_MAX} of them only",
                CheckpointWarning,
                stacklevel=6,
            )
        kept = set(groups[:_GROUPS_MAX])
        pairs = [*walked.items(), *slow.items(), *own]
        return [(group, block) for group, block in pairs if group in kept]
