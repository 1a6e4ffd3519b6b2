# SPDX-License-Identifier: Apache-2.0
"""
Finds values of a step that differed between its ranks, to warn of what a restore loses.

On another number of ranks, each rank gets the values of the first rank of the step. Each rank then
compares these with what the rank of its own number had. If the step had more ranks than there are
now, they are distributed among the present ones. So each value is compared once. On the same number
of ranks nothing is compared, because every rank gets back its own.
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

#: Most bytes of tensors that are compared.
_MOST = 64 << 20
#: Most ranks that one rank compares, and bytes of their Python state. A step may have thousands.
_RANKS, _META_MOST = 16, 256 << 20
#: Ranks that one Reader reads, because it keeps what it has read of each.
_AT_A_TIME = 4
_PLAIN = {bool, float, int, str, type(None)}


class Found(NamedTuple):
    """The result of the comparison."""

    #: paths of values that differed from those of the first rank
    names: list[str]
    #: buffers that differed from those of the lowest rank that held them
    buffers: list[str]
    #: values that were too large to be compared
    large: list[str]
    #: number of ranks that were not compared
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
    Warns of what is not as it was, because the number of ranks or the nodes have changed. `kept`:
    values that keep their present value; `borrowed`: objects that got the state of another rank;
    `bound`: names of tensors that were read to memory of the state.
    """
    engine, said = reader.engine, []
    if origin.own is None:
        said.append("its random number generators are seeded anew")
    if kept:
        why = "" if origin.node is not None else f" (no rank {engine.rank} saved)"
        said.append(f"{', '.join(kept)} keep their present values{why}")
    found = differing(reader, origin, stored)
    names = [name for name in found.names if not name.startswith(tuple(borrowed))]
    if names:
        said.append(
            f"ranks had different values of {_some(names)}: those of rank "
            f"{origin.rank} are restored"
        )
    if found.buffers:
        said.append(
            f"ranks had different values of {_some(found.buffers)}: those of the "
            "lowest rank that held them are restored"
        )
    if replaced := _replaced_buffers(origin, bound):
        said.append(
            f"{_some(replaced)} may differ by rank: those of the lowest rank that held them "
            "are restored"
        )
    if found.large:
        said.append(f"{_some(found.large)} are too large to be compared between ranks")
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
    """Buffers that cannot be compared, because this rank's copy is on another node."""
    if origin.node is None:
        return []
    return sorted(said_of(origin.meta).names & bound)


def _some(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    return ", ".join(names[:LISTED]) + more


def differing(reader: Reader, origin: Origin, stored: dict[str, Stored]) -> Found:
    """
    Compares the ranks that this rank is responsible for with the first rank, whose values this rank
    has got. Raises nothing, because the restore is complete.
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
        logger.info("step %d: not all values of its ranks are compared: %s", reader.step, error)
    names = [name for name in values.names if name not in values.buffers]
    buffers = [name for name in values.names if name in values.buffers]
    return Found(names, buffers, list(values.large), len(left))


def _compare(
    values: _Values, left: list[int], reader: Reader, origin: Origin, stored: dict[str, Stored]
) -> None:
    """Compares ranks, and removes them from the list `left`."""
    if origin.own is not None and left[:1] == [reader.engine.rank]:
        values.compare(_state_of(origin), origin.own["state"], None)
        values.add_buffers(origin.own)
        del left[0]
    if not left and not values.pairs:
        return
    # With a separate engine, so that no restore fails by it, and its memory is freed.
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
    """Compares two Python states."""

    def __init__(self) -> None:
        #: paths that differ, each once
        self.names: dict[str, None] = {}
        #: names that are too large to be compared, each once
        self.large: dict[str, None] = {}
        #: tensors that were each rank's own: path, name of the first rank's, name of the other's
        self.pairs: list[tuple[str, str, str]] = []
        #: the paths in `pairs` that are buffers
        self.buffers: set[str] = set()

    def compare(self, a: Json, b: Json, path: Path) -> None:
        """Notes the differences of two nodes at `path`."""
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
        """Adds the buffers of which a rank saved its own copies."""
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
            # The engine has compared the tensors that must be equal. Stages have different ones.
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
        """Values without a path of their own are noted by the path of their container."""
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
        # Groups of another stage are restored from a rank of that stage.
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
        """Reads and compares the tensors that were each rank's own, with a separate engine."""
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
    """The group number of each parameter of an optimizer."""
    groups = enumerate(node["groups"])
    return [number for number, group in groups for _ in range(group["count"])]


def _is_plain(values: list[Json]) -> bool:
    return set(map(type, values)) <= _PLAIN


def _same(a: Any, b: Any) -> bool:
    if is_tensor(a):
        return same_bits(a, b)
    return bool(a.tobytes() == b.tobytes())
