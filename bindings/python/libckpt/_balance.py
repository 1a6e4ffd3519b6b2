# SPDX-License-Identifier: Apache-2.0
"""
Whether each tensor that several ranks hold is saved by exactly one of them.

Who saves it follows from its name and size and from the mesh, and the ranks do not talk about it. A
rank that lacks a tensor may be the one that the others leave it to, and then it is in no shard. So
each rank gives the library a number, and no step is committed unless the numbers of all ranks add
up to zero. Each holder of a tensor subtracts a hash of it, and the rank that saves it adds the hash
as often as there are holders: these cancel out only if all of them have it and one saves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ._alike import Groups
from ._ranks import Ranks
from ._tensors import Described
from .adapters._layout import Copies

_MODULUS = 1 << 64


class Held(NamedTuple):
    """What one rank adds for a tensor: the hash of the other fields, so many `times`."""

    times: int
    name: bytes
    dtype: int
    shape: tuple[int, ...]
    #: where the box begins in the whole tensor, and the shape of that; None: this is all of it
    start: tuple[int, ...] | None
    whole: tuple[int, ...] | None
    #: the ranks that hold it
    group: int
    #: the first rank of those that write into the same store
    store: int


class Holdings:
    """What this rank adds for tensors."""

    def __init__(self, ranks: Ranks, groups: Groups) -> None:
        self._ranks = ranks
        self._groups = groups
        self._store = 0 if ranks.near is None else ranks.near.first

    def of(self, name: bytes, what: Described, copies: Copies | None, mine: bool) -> Held | None:
        """
        Of a tensor that the ranks of `copies` hold; None: no other rank holds it, or this one does
        not. What all ranks hold is compared in full, see Snapshot.common. `mine`: this rank saves
        it.
        """
        if copies is None or copies.among == 1 or copies.along is None:
            return None
        return Held(
            self._ranks.here(copies).among * mine - 1,
            name,
            what.dtype,
            what.shape,
            what.start,
            what.whole,
            self._groups.number(copies),
            self._store,
        )

    def all_of(
        self,
        names: Sequence[bytes],
        described: Sequence[Described],
        copies: Sequence[Copies | None],
        mine: Sequence[bool],
    ) -> list[Held]:
        """Of those among some tensors that other ranks hold as well."""
        found = (self.of(*each) for each in zip(names, described, copies, mine, strict=True))
        return [held for held in found if held is not None]


def balance_of(tensors: Iterable[Held]) -> int:
    """The number of this rank."""
    total = 0
    for held in tensors:
        if held.times:
            digest = hashlib.blake2b(repr(held[1:]).encode(), digest_size=8).digest()
            total += held.times * int.from_bytes(digest, "little")
    return total % _MODULUS
