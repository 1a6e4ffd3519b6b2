# SPDX-License-Identifier: Apache-2.0
"""Membership: one of the ranks that open a store together."""

from __future__ import annotations

from typing import NamedTuple

from ._barrier import Opening
from ._name_check import Names
from ._service import Service
from ._takers import Takers


class Membership(NamedTuple):
    """Arguments of an engine that is one of several. No service: the ranks use files."""

    rank: int
    world: int
    session: str
    service: Service | None
    opening: Opening | None = None
    #: number of ranks on this node; 0: unknown
    node_ranks: int = 0
    #: the ranks that share this store, if every node has one; empty: all
    peers: tuple[int, ...] = ()
    #: with a store on every node: some node has a store already
    made: bool = True

    def names(self) -> Names | None:
        """For the comparison of names, if every node has a store."""
        if self.opening is None or len(self.peers) in (0, self.world):
            return None
        return Names(self.opening.table, self.opening.prefix, self.rank)

    def takers(self) -> Takers | None:
        """For a restore on other stages; None: no rank can read what another node has."""
        if self.opening is None or self.peers:
            return None
        return Takers(self.opening.table, self.opening.prefix, self.rank, self.world)
