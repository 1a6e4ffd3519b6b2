# SPDX-License-Identifier: Apache-2.0
"""
Which box of a tensor this rank holds, and who else holds the same.

A tensor that is spread over ranks is a DTensor, or another subclass that tells its boxes the way
torch.distributed.checkpoint asks for them (`__create_chunk_list__`). What torch computes for the
offsets of a DTensor is not used here: for uneven dimensions that are cut twice (FSDP over tensor
parallelism) it differs from where the rows are.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

Dims = tuple[int, ...]
#: Ranges of indices, one behind the other.
Runs = list[tuple[int, int]]

#: The memory of a DTensor. To ask for it in another way (to_local()) goes through autograd.
dtensor_memory = operator.attrgetter("_local_tensor")


class Cut(NamedTuple):
    """A dimension is cut into `parts`, of which this rank has number `part`."""

    parts: int
    part: int
    #: more than 1: first cut into so many, each of which is cut into `parts`
    factor: int = 1


class Members:
    """Some ranks of the job, in their order. It equals only itself, and so is found fast."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks


class Copies(NamedTuple):
    """Ranks that hold the same: so many `among` them, this one is number `place`."""

    #: tensors of equal groups are balanced against each other
    group: Hashable
    among: int
    place: int
    #: the mesh, and its dimensions along which they lie; or who they are; None: all of the job
    along: tuple[Any, Dims] | Members | None = None
    #: the first of them writes it, and what others have may be something else
    first: bool = False
    #: other ranks than these may write the same, as those of another mesh do
    more: bool = False


#: Nobody else holds it.
ALONE = Copies(None, 1, 0)


class Spread(NamedTuple):
    """What this rank holds of a tensor that is spread over ranks."""

    whole: Dims
    #: None: nothing
    box: tuple[Dims, Dims] | None
    copies: Copies
    #: how many ranks the tensor is spread over
    ranks: int
    #: why it cannot be saved or restored; empty: it can
    refusal: str = ""


def is_spread(value: Any) -> bool:
    """True for a tensor that is spread over ranks."""
    return _is_spread_class(type(value))


def _has_boxes(kind: Any) -> bool:
    return hasattr(kind, "__create_chunk_list__")


_is_spread_class: Callable[[Any], bool] = functools.lru_cache(maxsize=1024)(_has_boxes)


def is_dtensor(value: Any) -> bool:
    """True for a DTensor."""
    return is_spread(value) and type(value).__name__ == "DTensor"


def is_part_like(value: Any, whole: Any) -> bool:
    """
    True for a plain tensor that may be to a DTensor what its local tensor is, such as momentum that
    an optimizer keeps of what it has of a parameter. A rank that has all of it cannot tell that
    from a tensor that is whole on all ranks: see local_roles() of _optimizers.py.
    """
    return (
        is_dtensor(whole)
        and getattr(value, "ndim", 0) > 0
        and not is_spread(value)
        and value.shape == dtensor_memory(whole).shape
        and not all(placement.is_replicate() for placement in whole.placements)
    )


def memory_of(value: Any) -> torch.Tensor:
    """Where the elements are that this process holds."""
    if not is_spread(value):
        return value  # type: ignore[no-any-return]
    if is_dtensor(value):
        return dtensor_memory(value)  # type: ignore[no-any-return]
    return _shard_of(value)


def spread_of(value: Any) -> Spread:
    """What this rank holds of such a tensor."""
    return _spread_of_dtensor(value) if is_dtensor(value) else _spread_of_chunks(value)


# DTensors.


def _spread_of_dtensor(value: Any) -> Spread:
    mesh, placements, whole = value.device_mesh, tuple(value.placements), tuple(value.shape)
    coordinate = mesh.get_coordinate()
    copied = tuple(n for n, placement in enumerate(placements) if placement.is_replicate())
    none = Copies(None, 1, 0)
    if coordinate is None:
        return Spread(whole, None, none, mesh.size())
    for placement in placements:
        if placement.is_partial():
            return Spread(whole, None, none, mesh.size(), _PARTIAL.format(placement))
    sizes, coordinate = tuple(mesh.shape), tuple(coordinate)
    box = box_of(whole, cuts_of(placements, sizes, coordinate, getattr(value, "_spec", None)))
    if box is None:
        return Spread(whole, None, none, mesh.size(), _SCATTERED.format(placements))
    local = tuple(dtensor_memory(value).shape)
    if local != box[1] and (math.prod(local) or math.prod(box[1])):
        refusal = _ODD.format(list(local), placements, list(box[1]))
        return Spread(whole, None, none, mesh.size(), refusal)
    if 0 in whole:  # nothing to cut: all hold all of it
        box, copied = ((0,) * len(whole), whole), tuple(range(len(sizes)))
    count = math.prod(sizes[n] for n in copied)
    return Spread(
        whole,
        box if 0 in whole or 0 not in box[1] else None,
        Copies(
            (mesh, copied),
            count,
            _number([coordinate[n] for n in copied], sizes, copied),
            (mesh, copied),
        ),
        mesh.size(),
    )


_PARTIAL = (
    "a DTensor with the placement {}, of which every rank holds a summand: redistribute it to "
    "Replicate() or Shard() first"
)
_SCATTERED = (
    "a DTensor with placements {}, of which this rank holds rows that do not follow one another: "
    "redistribute it to Shard() first"
)
_ODD = (
    "a DTensor whose local tensor has the shape {}, and its placements {} make it {}: "
    "redistribute it first"
)


def _number(coordinate: Sequence[int], sizes: Dims, dims: Dims) -> int:
    number = 0
    for place, dim in zip(coordinate, dims, strict=True):
        number = number * sizes[dim] + place
    return number


def ranks_along(along: tuple[Any, Dims] | Members) -> Sequence[int]:
    """The ranks of a mesh that are where this one is in all dimensions but these."""
    if isinstance(along, Members):
        return along.ranks
    mesh, dims = along
    at = tuple(slice(None) if n in dims else place for n, place in enumerate(mesh.get_coordinate()))
    return [int(rank) for rank in mesh.mesh[at].flatten().tolist()]


def cuts_of(
    placements: Sequence[Any], sizes: Dims, coordinate: Dims, spec: Any = None
) -> dict[int, list[Cut]]:
    """How each dimension is cut, in the order in which that is done."""
    placed: dict[int, list[tuple[int, int]]] = {}
    for mesh_dim, placement in enumerate(placements):
        if not placement.is_replicate():
            factor = int(getattr(placement, "split_factor", 1))
            placed.setdefault(placement.dim, []).append((mesh_dim, factor))
    told = {
        entry.tensor_dim: list(entry.mesh_dims)
        for entry in getattr(spec, "shard_order", None) or ()
    }
    by_order = getattr(spec, "use_strided_shard_as_shard_order", True) is not False
    cuts: dict[int, list[Cut]] = {}
    for dim, dims in placed.items():
        order = told.get(dim) or (_order_of(dims, sizes) if by_order or told else None)
        if order is None:
            cuts[dim] = [Cut(sizes[n], coordinate[n], factor) for n, factor in dims]
        else:
            cuts[dim] = [Cut(sizes[n], coordinate[n]) for n in order]
    return cuts


def _order_of(dims: list[tuple[int, int]], sizes: Dims) -> list[int] | None:
    """
    The dimensions of the mesh in the order in which they cut one of the tensor. A factor says into
    how many parts those further right had cut it before. None: it says nothing of the kind.
    """
    order: list[int] = []
    for mesh_dim, factor in reversed(dims):
        before, position = 1, 0
        while before < factor and position < len(order):
            before *= sizes[order[position]]
            position += 1
        if before != factor:
            return None
        order.insert(position, mesh_dim)
    return order


def box_of(whole: Dims, cuts: dict[int, list[Cut]]) -> tuple[Dims, Dims] | None:
    """Start and shape of what is left after the cuts; None if it is no box."""
    start, shape = [0] * len(whole), list(whole)
    for dim, steps in cuts.items():
        runs = _runs_of(whole[dim], steps)
        if len(runs) > 1:
            return None
        first, end = runs[0] if runs else (0, 0)
        start[dim], shape[dim] = first, end - first
    return tuple(start), tuple(shape)


def _runs_of(size: int, cuts: Sequence[Cut]) -> Runs:
    runs = [(0, size)]
    for parts, part, factor in cuts:
        first_cut = [_chunk(runs, factor, number) for number in range(factor)]
        runs = [run for piece in first_cut for run in _chunk(piece, parts, part)]
    joined: Runs = []
    for first, end in runs:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], end
        elif first < end:
            joined.append((first, end))
    return joined


def _chunk(runs: Runs, count: int, index: int) -> Runs:
    """What torch.chunk() gives, and nothing where that gives fewer chunks."""
    total = sum(end - first for first, end in runs)
    size = -(-total // count)
    skip, left = size * index, size
    found: Runs = []
    for first, end in runs:
        lo = min(first + skip, end)
        skip -= lo - first
        hi = min(lo + left, end)
        left -= hi - lo
        if lo < hi:
            found.append((lo, hi))
    return found


# Other subclasses.


def _spread_of_chunks(value: Any) -> Spread:
    whole, chunks = tuple(value.shape), value.__create_chunk_list__()
    copies = Copies(None, 1, 0)  # who has the same is not said: equal boxes are stored twice
    if len(chunks) > 1:
        refusal = (
            f"a {type(value).__qualname__} of which this rank holds {len(chunks)} boxes: only one "
            "can be saved"
        )
        return Spread(whole, None, copies, 1, refusal)
    if not chunks or 0 in chunks[0].sizes:
        return Spread(whole, None, copies, 1)
    return Spread(whole, (tuple(chunks[0].offsets), tuple(chunks[0].sizes)), copies, 1)


def _shard_of(value: Any) -> torch.Tensor:
    import torch
    from torch.distributed.checkpoint.metadata import MetadataIndex

    chunks = value.__create_chunk_list__()
    if not chunks:
        return torch.empty((0,) * value.dim(), dtype=value.dtype)
    return value.__get_tensor_shard__(  # type: ignore[no-any-return]
        MetadataIndex("", torch.Size(chunks[0].offsets), 0)
    )
