# SPDX-License-Identifier: Apache-2.0
"""
Groups of ranks that hold the same tensors, of which one rank saves each. The library compares
digests of the tensors of each group before a step is committed. A group has a number, which is the
same on all of its ranks.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from ._errors import CheckpointWarning
from ._tensors import Block, Described
from .adapters._layout import Copies, ranks_along

#: Most groups of one rank that the library compares.
_GROUPS_MAX = 16

#: The number of a tensor's group; None: it is not compared.
Group = int | None


class Groups:
    """The numbers of groups."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._known: dict[Hashable, int] = {}

    def of(self, copies: Copies | None) -> Group:
        """
        The group of the ranks of `copies`; None: they are not compared. This rank must be one of
        them. If the first rank saves the tensor for the others, bytes are not compared. Names are:
        those of all ranks by Snapshot.common. For buffers that may differ by rank see OwnBuffers.
        """
        if copies is None or copies.among == 1:
            return None
        if copies.first and (copies.along is None or copies.more):
            return None
        return self.number(copies)

    def number(self, copies: Copies) -> int:
        """The number of the ranks of `copies`."""
        found = self._known.get(copies.along)
        if found is None:
            ranks = range(self._world) if copies.along is None else ranks_along(copies.along)
            text = ",".join(map(str, sorted(ranks))).encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            found = self._known[copies.along] = int.from_bytes(digest, "little")
        return found


class Alike(NamedTuple):
    """The tensors of each group, and the place of each tensor."""

    blocks: dict[int, Block]
    #: group and place in its block, by the number of the tensor
    places: dict[int, tuple[int, int]]

    @staticmethod
    def of(
        names: Sequence[bytes],
        described: Sequence[Described],
        groups: Sequence[Group],
        flags: Sequence[int],
    ) -> Alike:
        """Selects the tensors that are compared."""
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
    """Tensors that are described anew at every save."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._said = False

    def update(self, found: Iterable[tuple[int, bytes, Described, int]]) -> dict[int, Block]:
        """Blocks of the tensors by group. Reuses those of the last save if only pointers differ."""
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
        Joins all blocks, up to the number of groups that are compared. `first`: groups that have
        priority. If a rank left out one of these, the other ranks of the group would take their
        copies for equal on all ranks.
        """
        groups = sorted({*walked, *slow, *(group for group, _ in own)})
        groups.sort(key=lambda group: group not in first)
        if len(groups) > _GROUPS_MAX and not self._said:
            self._said = True
            warnings.warn(
                f"this rank shares tensors with {len(groups)} groups of ranks, but only those "
                f"of {_GROUPS_MAX} groups are compared",
                CheckpointWarning,
                stacklevel=6,
            )
        kept = set(groups[:_GROUPS_MAX])
        pairs = [*walked.items(), *slow.items(), *own]
        return [(group, block) for group, block in pairs if group in kept]
