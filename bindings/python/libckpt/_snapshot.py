# SPDX-License-Identifier: Apache-2.0
"""What a state comes to when it is described for a save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ._behind import Behind
from ._tensors import Block

if TYPE_CHECKING:
    import torch


class Snapshot(NamedTuple):
    """What one save hands to the C library."""

    blocks: list[Block]
    aliases: list[tuple[bytes, bytes]]
    meta: bytes
    #: what all ranks must give alike; empty: there is one
    common: bytes
    #: adds up to zero with those of the other ranks, if each tensor is saved by one of its holders
    balance: int
    #: what this rank means by the names that not all ranks need to have
    apart: dict[str, str]
    #: what other ranks hold as well, by the numbers of their groups
    alike: list[tuple[int, Block]]
    behind: Behind
    #: what must live until the eager tensors have been copied
    keep: list[Any]
    optimizers: list[torch.optim.Optimizer]
    #: why nothing is copied behind the loop
    why_eager: str
    pickled: list[str]
    #: of groups with copies of each rank's own what this rank does (CKPT_OWN_*)
    own: dict[int, int]
    #: names of plain tensors of which the ranks may not agree who holds them
    unclear: list[str]

    @property
    def gpus(self) -> frozenset[int]:
        """Those that any of the tensors is on."""
        shared = [block for _, block in self.alike]
        return frozenset().union(*(block.gpus for block in self.blocks + shared))
