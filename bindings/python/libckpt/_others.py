# SPDX-License-Identifier: Apache-2.0
"""
What the ranks of a step had that was not what its first rank had.

On another number of ranks each rank gets the values of the first one. The rank that has the number
of a rank of the step says what of that is lost with it; ranks beyond the number that there are now
are shared out among them. So each value is looked at once, and most restores look at none: on the
same number of ranks every rank gets back its own.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._engine import Engine
from ._errors import CheckpointWarning
from ._into import is_tensor, same_bits
from ._json_nodes import Json, Path, path_text, tag_of
from ._log import logger
from ._origin import LISTED, Origin
from ._per_rank import PerRank
from ._ranks import is_own
from ._reader import Memory, Reader, Stored
from ._slices import reading
from .adapters._buffers import said_of

#: Bytes of tensors that are read to be compared. What is beyond that is not.
_MOST = 64 << 20
#: Ranks that one rank compares, and bytes of their Python state: a step may be of thousands.
_RANKS, _META_MOST = 16, 256 << 20
#: A reader keeps what it has read of each rank.
_AT_A_TIME = 4
_PLAIN = {bool, float, int, str, type(None)}


class Found(NamedTuple):
    """What the comparison has come to."""

    #: where ranks had another value than the first one
    names: list[str]
    #: buffers that ranks had other values of than the lowest one that held them
    buffers: list[str]
    #: what is too large to be compared
    large: list[str]
    #: how many ranks were not compared
    ranks_left: int


def warn_of_ranks(
    reader: Reader,
    origin: Origin,
    stored: dict[str, Stored],
    *,
    kept: list[str],
    borrowed: list[str],
    bound: set[str],
) -> None:
    """
    Says what another number of ranks, or other nodes, have made of the state of this rank. `kept`:
    values that stay as they are; `borrowed`: objects that got another rank's state; `bound`: names
    of tensors that went to memory of the state.
    """
    engine, said = reader.engine, []
    if origin.own is None:
        said.append("its random number generators are seeded anew")
    if kept:
        why = "" if origin.node is not None else f" (no rank {engine.rank} saved)"
        said.append(f"{', '.join(kept)} stay as they are{why}")
    found = differing(reader, origin, stored)
    names = [name for name in found.names if not name.startswith(tuple(borrowed))]
    if names:
        said.append(
            f"ranks had different values of {_some(names)}: what is there now is what rank "
            f"{origin.rank} had"
        )
    if found.buffers:
        said.append(
            f"ranks had different values of {_some(found.buffers)}: what is there now is what "
            "the lowest rank that held it had"
        )
    if replaced := _replaced_buffers(origin, bound):
        said.append(
            f"{_some(replaced)} may differ by rank: what is there now is what the lowest rank "
            "that held it had"
        )
    if found.large:
        said.append(f"{_some(found.large)} are large, and were not compared with other ranks'")
    if found.ranks_left:
        said.append(f"the values of {found.ranks_left} other ranks were not compared")
    if borrowed:
        said.append(
            f"{', '.join(borrowed)} got the state of rank {origin.rank}: where it "
            "is a position in the data of one rank, samples may be seen twice or not at all"
        )
    if said:
        where = ""
        if origin.whole:
            where = " on other meshes, or with other modules on meshes"
        if origin.node is not None:
            where = f", and what rank {engine.rank} saved is on node {origin.node}"
        message = (
            f"step {reader.step} was saved by {reader.world} ranks, and this is "
            f"rank {engine.rank} of {engine.world}{where}: {'; '.join(said)}"
        )
        logger.warning("%s", message)
        warnings.warn(message, CheckpointWarning, stacklevel=6)


def _replaced_buffers(origin: Origin, bound: set[str]) -> list[str]:
    """Buffers whose copy of this rank is on another node, so that it cannot be compared."""
    if origin.node is None:
        return []
    return sorted(said_of(origin.meta).names & bound)


def _some(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    return ", ".join(names[:LISTED]) + more


def differing(reader: Reader, origin: Origin, stored: dict[str, Stored]) -> Found:
    """
    Where ranks that this one answers for had another value than the first one, whose values this
    rank has got. Raises nothing: the restore is done.
    """
    values = _Values()
    left: list[int] = []
    try:
        if origin.whole:
            values.add_buffers(origin.own)
        if origin.meta is not None and origin.node is None:
            engine = reader.engine
            left += (
                rank
                for rank in range(engine.rank, reader.world, engine.world)
                if rank != origin.rank and reader.away(rank) is None
            )
            _compare(values, left, reader, origin, stored)
    except Exception as error:
        logger.info("step %d: not all that ranks had is compared: %s", reader.step, error)
    names = [name for name in values.names if name not in values.buffers]
    buffers = [name for name in values.names if name in values.buffers]
    return Found(names, buffers, list(values.large), len(left))


def _compare(
    values: _Values, left: list[int], reader: Reader, origin: Origin, stored: dict[str, Stored]
) -> None:
    """Takes the ranks that it has compared off the list `left`."""
    if origin.own is not None and left[:1] == [reader.engine.rank]:
        values.compare(_state_of(origin), origin.own["state"], None)
        values.add_buffers(origin.own)
        del left[0]
    if not left and not values.pairs:
        return
    # With an engine and readers of its own: no restore is to fail of it, and what they keep goes.
    place = reader.engine.path, reader.engine.rank, reader.engine.world
    with reading(*place) as engine:
        used, chosen = 0, left[:_RANKS]
        for first in range(0, len(chosen), _AT_A_TIME):
            with Reader(engine, reader.step) as again:
                if again.generation != reader.generation:
                    return
                for rank in chosen[first : first + _AT_A_TIME]:
                    if used + again.meta_bytes >= _META_MOST:
                        break
                    meta = again.meta(rank)
                    if meta is not None:
                        values.compare(_state_of(origin), meta["state"], None)
                        values.add_buffers(meta)
                    left.remove(rank)
                used += again.meta_bytes
        values.compare_tensors(engine, reader, stored)


def _state_of(origin: Origin) -> Json:
    assert origin.meta is not None
    return origin.meta["state"]


class _Values:
    """Two Python states, side by side."""

    def __init__(self) -> None:
        #: what differs, each once
        self.names: dict[str, None] = {}
        #: what is too large to be compared, each once
        self.large: dict[str, None] = {}
        #: tensors that each rank had of its own: where, the first rank's, the other's
        self.pairs: list[tuple[str, str, str]] = []
        #: those of the tensors that are buffers
        self.buffers: set[str] = set()

    def compare(self, a: Json, b: Json, path: Path) -> None:
        """Notes what differs in what stands at `path`."""
        if a is b or a == b:
            return
        if type(a) is dict and type(b) is dict:
            self._compare_dicts(a, b, path)
        elif type(a) is list and type(b) is list and len(a) == len(b) and not _is_plain(a):
            for number, (one, other) in enumerate(zip(a, b, strict=True)):
                self.compare(one, other, (path, number))
        else:
            self._add(path)

    def add_buffers(self, meta: dict[str, Json] | None) -> None:
        """The buffers that a rank had its own copies of, beside those of all."""
        for name in sorted(said_of(meta).names):
            self.pairs.append((name, name, (meta or {})["per_rank"][name]))
            self.buffers.add(name)

    def _add(self, path: Path) -> None:
        self.names[path_text(path)] = None

    def _compare_dicts(self, a: dict[str, Json], b: dict[str, Json], path: Path) -> None:
        tag = tag_of(a)
        if tag != tag_of(b):
            self._add(path)
        elif tag is None:
            self._compare_keys(a, b, path)
        elif tag == "$tensor":
            self._compare_names(a[tag], b[tag], path)
        elif tag == "$json":
            self.compare(json.loads(a[tag]), json.loads(b[tag]), path)
        elif tag == "$module":
            # Of tensors the engine has compared what all ranks must have alike. Stages have others.
            one, other = a[tag]["extra"], b[tag]["extra"]
            for key in sorted(one.keys() & other.keys()):
                self.compare(one[key], other[key], (path, key))
        elif tag == "$optimizer":
            self._compare_optimizers(a[tag], b[tag], path)
        elif tag == "$object":
            if a[tag]["class"] != PerRank.__qualname__:
                for part in ("state", "generator"):
                    self.compare(a[tag].get(part), b[tag].get(part), path)
        else:
            self._compare_tagged(a[tag], b[tag], path)

    def _compare_tagged(self, a: Json, b: Json, path: Path) -> None:
        """What is not in the state under a name of its own has the name of what it is in."""
        inside = _Values()
        inside.compare(a, b, path)
        self.pairs += ((path_text(path), one, other) for _, one, other in inside.pairs)
        if inside.names:
            self._add(path)

    def _compare_keys(self, a: dict[str, Json], b: dict[str, Json], path: Path) -> None:
        for key in {**a, **b}:
            if key in a and key in b:
                self.compare(a[key], b[key], (path, key))
            else:
                self._add((path, key))

    def _compare_names(self, a: Json, b: Json, path: Path) -> None:
        if is_own(a) and is_own(b):
            self.pairs.append((path_text(path), a, b))
        elif a != b:
            self._add(path)

    def _compare_optimizers(self, a: dict[str, Json], b: dict[str, Json], path: Path) -> None:
        # A group of another stage gets its own.
        theirs = dict(zip(b["params"], _groups_of(b), strict=True))
        both = zip(a["params"], _groups_of(a), strict=True)
        pairs = dict.fromkeys((mine, theirs[name]) for name, mine in both if name in theirs)
        for mine, other in pairs:
            one, two = a["groups"][mine]["options"], b["groups"][other]["options"]
            self.compare(one, two, ((path, "param_groups"), mine))
        if a["params"] == b["params"]:
            self.compare(a["values"], b["values"], (path, "state"))
        for part in ("other", "extra"):
            self.compare(a[part], b[part], path)

    def compare_tensors(self, engine: Engine, reader: Reader, stored: dict[str, Stored]) -> None:
        """Reads what ranks had of their own, with another engine."""
        pairs, left = [], _MOST
        for name, a, b in self.pairs:
            one, other = stored.get(a), stored.get(b)
            if name in self.names or one is None or other is None:
                continue
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                self.names[name] = None
                continue
            left -= one.nbytes + other.nbytes
            if left < 0:
                self.large[name] = None
            else:
                pairs.append((name, a, b))
        if not pairs:
            return
        kind = "torch" if "torch" in sys.modules else "numpy"
        with Reader(engine, reader.step) as again:
            if again.generation != reader.generation:
                return
            memory = Memory(again, again.tensors())
            read = [(name, memory.want(a, kind), memory.want(b, kind)) for name, a, b in pairs]
            again.read()
        self.names.update({name: None for name, a, b in read if not _same(a, b)})


def _groups_of(node: dict[str, Json]) -> list[int]:
    """Of each parameter of an optimizer the number of its group."""
    groups = enumerate(node["groups"])
    return [number for number, group in groups for _ in range(group["count"])]


def _is_plain(values: list[Json]) -> bool:
    return set(map(type, values)) <= _PLAIN


def _same(a: Any, b: Any) -> bool:
    if is_tensor(a):
        return same_bits(a, b)
    return bool(a.tobytes() == b.tobytes())
