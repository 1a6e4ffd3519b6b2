# SPDX-License-Identifier: Apache-2.0
"""Origin: the rank of the step whose Python state a rank gets back."""

from __future__ import annotations

from typing import NamedTuple

from ._errors import MismatchError
from ._json_nodes import Json
from ._reader import Reader
from .adapters._buffers import said_of

#: Names that a message lists. The others are counted.
LISTED = 10


class Origin(NamedTuple):
    """
    The Python state that a rank gets back. On the same number of ranks it is its own. Otherwise, or
    if its own is on another node, it is that of the first rank in this store, and of its own only
    what is each rank's own.
    """

    meta: dict[str, Json] | None
    #: the state that this rank saved; None: there was no such rank, or it is on another node
    own: dict[str, Json] | None
    #: the rank that saved `meta`
    rank: int
    #: this rank gets back everything that it saved
    whole: bool
    #: the node that has what this rank saved, if it is not this node
    node: str | None
    #: it gets its own copies of buffers; otherwise those of the lowest rank
    own_buffers: bool = False

    @staticmethod
    def of(reader: Reader) -> Origin:
        """The origin for this rank."""
        rank, world = reader.engine.rank, reader.engine.world
        was = rank < reader.world
        node = reader.away(rank) if was else None
        own = reader.meta(rank) if was and node is None else None
        if node is None and reader.world == world:
            return Origin(own, own, rank, True, None, own_buffers=True)
        first = reader.first_rank()
        return Origin(reader.meta(first), own, first, False, node)


def check_world(reader: Reader, origin: Origin) -> None:
    """Raises if tensors of each rank's own cannot be restored on this number of ranks."""
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
