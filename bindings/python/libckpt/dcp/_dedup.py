# SPDX-License-Identifier: Apache-2.0
"""
Decides which rank writes what, if every node has a store.

The planner of torch assigns what several ranks hold to one rank of the job, so it would be in the
store of one node only. So the ranks of a node distribute what they hold among themselves, whatever
the plan says. Each publishes which boxes and values it holds, and all compute the same result.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from .. import _dtypes
from .._errors import UnsupportedStateError
from .._json_nodes import Json
from ..adapters._layout import is_dtensor

_KEY_BYTES = 16
_ITEM = struct.Struct(f"<{_KEY_BYTES}sQ")


def is_usable(plan: SavePlan) -> bool:
    """False: the plan is empty, because torch means the one in its cache."""
    return bool(getattr(plan, "usable", True))


def pack(items: Iterable[WriteItem]) -> bytes:
    """What a rank holds, as bytes for the others of its node."""
    return b"".join(_ITEM.pack(key_of(item), _bytes_of(item)) for item in items if _is_held(item))


def key_of(item: WriteItem) -> bytes:
    """Equal on all ranks that hold the same box or value."""
    what: list[Any] = [item.index.fqn]
    if item.tensor_data is not None:
        chunk = item.tensor_data.chunk
        what += [tuple(chunk.offsets), tuple(chunk.sizes)]
    text = repr(what).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_KEY_BYTES).digest()


def _bytes_of(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def _is_held(item: WriteItem) -> bool:
    data = item.tensor_data
    return data is None or 0 not in data.chunk.sizes or 0 in data.size


def share(held: dict[int, bytes], rank: int) -> set[bytes]:
    """
    What rank `rank` writes of everything that the ranks of its node hold. The largest first, each
    by the holder that has the fewest bytes so far.
    """
    holders: dict[tuple[int, bytes], list[int]] = {}
    for number in sorted(held):
        for key, nbytes in _ITEM.iter_unpack(held[number]):
            holders.setdefault((-nbytes, key), []).append(number)
    #: by holders: heaps of (bytes so far, rank), the least first
    loads: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    mine: set[bytes] = set()
    for (size, key), ranks in sorted(holders.items()):
        heap = loads.setdefault(tuple(ranks), [(0, number) for number in ranks])
        load, chosen = heap[0]
        heapq.heapreplace(heap, (load + max(-size, 1), chosen))
        if chosen == rank:
            mine.add(key)
    return mine


def meanings(plan: SavePlan | None) -> dict[str, str]:
    """The meanings of the names of a rank's tensors."""
    found: dict[str, str] = {}
    for item in plan.items if plan is not None else ():
        what = _described(item)
        if what is not None:
            found[item.index.fqn] = f"{what[0]} {what[1]}"
    return found


def local_plan(planner: SavePlanner, plan: SavePlan | None, packed: bytes) -> SavePlan:
    """
    The plan of this rank before the plans were joined: `plan`, or the one in the cache of torch. It
    must be what was published to the others.
    """
    if plan is not None:
        return plan
    kept: dict[str, SavePlan] = getattr(SavePlanner, "_cached_save_plan", {})
    plan = kept.get(getattr(planner, "_cached_plans_key", ""))
    if plan is None or pack(plan.items) != packed:
        raise UnsupportedStateError(
            f"torch has kept plans of several planners, and which of them {type(planner).__name__} "
            "was going to take could not be said to the other ranks of this node in time: with "
            "node_store use planners of one class, or enable_plan_caching=False"
        )
    return plan


def last_plan() -> SavePlan | None:
    """The plan in the cache of torch, if there is exactly one."""
    kept = list(getattr(SavePlanner, "_cached_save_plan", {}).values())
    return kept[0] if len(kept) == 1 else None


def chosen(local: SavePlan, planned: SavePlan, mine: set[bytes]) -> list[WriteItem]:
    """What this rank writes: its share, and items that only the joined plan has."""
    keys = {key_of(item): item for item in local.items}
    more = [item for item in planned.items if key_of(item) not in keys]
    return [item for key, item in keys.items() if key in mine] + more


# Items that are not in a store.

Absent = dict[str, Json]


def absent(local: SavePlan, planner: SavePlanner, elsewhere: Absent | None) -> Absent:
    """
    Descriptions of tensors of which this rank holds nothing, because a reader here may ask for an
    empty part. And of everything in the plans of other ranks that this one does not hold.
    """
    found: Absent = dict(elsewhere or {})
    for item in local.items:
        if _is_held(item):
            found.pop(item.index.fqn, None)
        elif item.tensor_data is not None:
            found[item.index.fqn] = _described(item)
    for name, value in (getattr(planner, "state_dict", None) or {}).items():
        # On a mesh without this rank.
        if is_dtensor(value) and value.device_mesh.get_coordinate() is None:
            number = _dtypes.torch_numbers().get(value.dtype)
            if type(name) is str and number is not None:
                found[name] = [_dtypes.name_of(number), list(value.shape)]
    return found


def _described(item: WriteItem) -> Json:
    """Null: a value."""
    if item.tensor_data is None:
        return None
    number = _dtypes.torch_numbers().get(item.tensor_data.properties.dtype)
    return None if number is None else [_dtypes.name_of(number), list(item.tensor_data.size)]


def listed(plans: Sequence[SavePlan]) -> Absent:
    """Descriptions of everything in the plans."""
    return {item.index.fqn: _described(item) for plan in plans for item in plan.items}


def whole(plans: Sequence[SavePlan], planner: SavePlanner) -> list[SavePlan] | None:
    """
    The plans of all ranks; None: unknown. torch passes only those that have changed since the last
    save with such a planner, which may have been to another store. The planner of rank 0 has all.
    """
    if all(map(is_usable, plans)):
        return list(plans)
    kept: Sequence[SavePlan] = getattr(planner, "global_plan", None) or []
    if len(kept) != len(plans) or not all(map(is_usable, kept)):
        return None
    return [new if is_usable(new) else old for new, old in zip(plans, kept, strict=True)]


def keepers(nodes: Sequence[str]) -> list[int]:
    """The lowest rank of each node."""
    first: dict[str, int] = {}
    for rank, node in enumerate(nodes):
        first.setdefault(node, rank)
    return list(first.values())
