# SPDX-License-Identifier: Apache-2.0
"""
Checks that exactly one rank saves each tensor that several ranks hold.

Each rank computes from the name, the size and the mesh which rank saves a tensor. The ranks do not
communicate about it. If a rank lacks a tensor, the others may leave it to that rank, and then no
rank saves it. So each rank gives the library a number, and a step is committed only if the numbers
of all ranks add up to zero. Each holder of a tensor subtracts a hash of it. The rank that saves it
adds the hash as often as there are holders. The sum is zero only if all holders have the tensor and
one of them saves it.
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
    """The contribution of one rank for a tensor: `times` the hash of the other fields."""

    times: int
    name: bytes
    dtype: int
    shape: tuple[int, ...]
    #: where the box begins in the tensor, and the shape of the tensor; None: it is the whole tensor
    start: tuple[int, ...] | None
    whole: tuple[int, ...] | None
    #: number of the ranks that hold it
    group: int
    #: the first of the ranks that write to the same store
    store: int


class Holdings:
    """Computes the contributions of this rank."""

    def __init__(self, ranks: Ranks, groups: Groups) -> None:
        self._ranks = ranks
        self._groups = groups
        self._store = 0 if ranks.near is None else ranks.near.first

    def of(self, name: bytes, what: Described, copies: Copies | None, mine: bool) -> Held | None:
        """
        The contribution for a tensor that the ranks of `copies` hold. None: no other rank holds it,
        or all ranks hold it: then Snapshot.common is compared. `mine`: this rank saves it.
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
        """The contributions for those of the tensors that other ranks hold, too."""
        found = (self.of(*each) for each in zip(names, described, copies, mine, strict=True))
        return [held for held in found if held is not None]


def balance_of(tensors: Iterable[Held]) -> int:
    """The sum of the contributions."""
    total = 0
    for held in tensors:
        if held.times:
            digest = hashlib.blake2b(repr(held[1:]).encode(), digest_size=8).digest()
            total += held.times * int.from_bytes(digest, "little")
    return total % _MODULUS
