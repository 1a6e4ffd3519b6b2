# SPDX-License-Identifier: Apache-2.0
"""Whose Python state a rank gets back, when the step was saved by as many ranks or by others."""

from __future__ import annotations

from typing import NamedTuple

from ._errors import MismatchError
from ._json_nodes import Json
from ._reader import Reader
from .adapters._buffers import said_of

#: Problems of one kind that a message lists; the rest is counted.
LISTED = 10


class Origin(NamedTuple):
    """
    Whose Python state a rank gets back: its own, or, where the step was saved by another number of
    ranks or what this one saved is on another node, that of the first rank that is here, and of its
    own what only it had.
    """

    meta: dict[str, Json] | None
    #: what this rank saved; None: there was no such rank, or it is not here
    own: dict[str, Json] | None
    #: whose state `meta` is
    rank: int
    #: this rank gets back all that it had
    whole: bool
    #: the node that has what this rank saved, if it is another one
    node: str | None
    #: it gets its own copies of buffers; else those of all
    own_buffers: bool = False

    @staticmethod
    def of(reader: Reader) -> Origin:
        """For this rank."""
        rank, world = reader.engine.rank, reader.engine.world
        was = rank < reader.world
        node = reader.away(rank) if was else None
        own = reader.meta(rank) if was and node is None else None
        if node is None and reader.world == world:
            return Origin(own, own, rank, True, None, own_buffers=True)
        first = reader.first_rank()
        return Origin(reader.meta(first), own, first, False, node)


def check_world(reader: Reader, origin: Origin) -> None:
    """What every rank had of its own has no meaning on another number of ranks."""
    meta = origin.meta or {}
    names = sorted(set(meta.get("per_rank") or ()) - said_of(meta).names)
    if origin.whole or not names:
        return
    some = ", ".join(map(repr, names[:LISTED])) + (", ..." if len(names) > LISTED else "")
    where = "" if origin.node is None else f", and its files are on node {origin.node}"
    raise MismatchError(
        f"step {reader.step} was saved by {reader.world} ranks, each of which had {some} of its "
        f"own (per_rank), and this is rank {reader.engine.rank} of {reader.engine.world}{where}: "
        f"resume on {reader.world} ranks, or take what you need with libckpt.load()",
        step=reader.step,
        tensor=names[0],
    )
