# SPDX-License-Identifier: Apache-2.0
"""Snapshot: the description of a state for a save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ._behind import Behind
from ._tensors import Block

if TYPE_CHECKING:
    import torch


class Snapshot(NamedTuple):
    """What a save gives to the C library."""

    blocks: list[Block]
    aliases: list[tuple[bytes, bytes]]
    meta: bytes
    #: must be the same on all ranks; empty: there is one rank
    common: bytes
    #: the sum over all ranks is zero if each tensor is saved by one of its holders
    balance: int
    #: the meanings of names that not all ranks must have
    apart: dict[str, str]
    #: tensors that other ranks hold, too, with the numbers of their groups
    alike: list[tuple[int, Block]]
    behind: Behind
    #: objects that must live until the eager tensors are copied
    keep: list[Any]
    optimizers: list[torch.optim.Optimizer]
    #: why nothing is copied in the background
    why_eager: str
    pickled: list[str]
    #: for groups with buffers that may differ: what this rank saves (CKPT_OWN_*)
    own: dict[int, int]
    #: names of plain tensors of which ranks may disagree who holds them
    unclear: list[str]

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs that any of the tensors is on."""
        shared = [block for _, block in self.alike]
        return frozenset().union(*(block.gpus for block in self.blocks + shared))
