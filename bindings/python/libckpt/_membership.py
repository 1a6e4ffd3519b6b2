# SPDX-License-Identifier: Apache-2.0
"""A process as one of the ranks that open a store together."""

from __future__ import annotations

from typing import NamedTuple

from ._barrier import Opening
from ._name_check import Names
from ._service import Service
from ._takers import Takers


class Membership(NamedTuple):
    """How an engine is opened as one of several. No service: they talk by files."""

    rank: int
    world: int
    session: str
    service: Service | None
    opening: Opening | None = None
    #: of them, those on this node; 0: not known
    node_ranks: int = 0
    #: those whose store this one is, where every node has one; empty: all
    peers: tuple[int, ...] = ()
    #: there, a node has one already
    made: bool = True

    def names(self) -> Names | None:
        """What they mean by their names, where no rank can read what all have described."""
        if self.opening is None or len(self.peers) in (0, self.world):
            return None
        return Names(self.opening.table, self.opening.prefix, self.rank)

    def takers(self) -> Takers | None:
        """Those that resume; None: what one of them has, none of another node can."""
        if self.opening is None or self.peers:
            return None
        return Takers(self.opening.table, self.opening.prefix, self.rank, self.world)
