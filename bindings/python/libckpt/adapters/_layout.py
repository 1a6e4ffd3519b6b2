# SPDX-License-Identifier: Apache-2.0
"""
Finds which box of a tensor this rank holds, and which other ranks hold the same box.

A tensor that is distributed over ranks is a DTensor, or another subclass that reports its boxes to
torch.distributed.checkpoint (`__create_chunk_list__`). The offsets that torch computes for a
DTensor are not used: they are wrong for uneven dimensions that are sharded twice (FSDP over tensor
parallelism).
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
#: Ranges of indices, in ascending order.
Runs = list[tuple[int, int]]

#: The local tensor of a DTensor. to_local() would go through autograd.
dtensor_memory = operator.attrgetter("_local_tensor")


class Cut(NamedTuple):
    """A dimension is cut into `parts`. This rank has number `part`."""

    parts: int
    part: int
    #: more than 1: the dimension is first cut into this many, and each of them into `parts`
    factor: int = 1


class Members:
    """Some ranks of the job, in order. Compared by identity, which is fast."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks


class Copies(NamedTuple):
    """The ranks that hold the same box: `among` ranks, of which this one is number `place`."""

    #: the bytes that ranks write are balanced among tensors of the same group
    group: Hashable
    among: int
    place: int
    #: the mesh and the dimensions along which they are; or the ranks; None: all ranks
    along: tuple[Any, Dims] | Members | None = None
    #: the first of them writes it, and the tensors of the others may differ
    first: bool = False
    #: ranks of other meshes may write the same box
    more: bool = False


#: No other rank holds it.
ALONE = Copies(None, 1, 0)


class Spread(NamedTuple):
    """The part of this rank of a distributed tensor."""

    whole: Dims
    #: None: nothing
    box: tuple[Dims, Dims] | None
    copies: Copies
    #: number of ranks that the tensor is distributed over
    ranks: int
    #: why it cannot be saved or restored; empty: it can
    refusal: str = ""


def is_spread(value: Any) -> bool:
    """True for a tensor that is distributed over ranks."""
    return _is_spread_class(type(value))


def _has_boxes(kind: Any) -> bool:
    return hasattr(kind, "__create_chunk_list__")


_is_spread_class: Callable[[Any], bool] = functools.lru_cache(maxsize=1024)(_has_boxes)


def is_dtensor(value: Any) -> bool:
    """True for a DTensor."""
    return is_spread(value) and type(value).__name__ == "DTensor"


def is_part_like(value: Any, whole: Any) -> bool:
    """
    True for a plain tensor that may be a local part with the layout of a DTensor, such as momentum
    that an optimizer keeps for its part of a parameter. A rank that holds the whole parameter
    cannot see the difference to a tensor that is whole on all ranks: see local_roles() of
    _optimizers.py.
    """
    return (
        is_dtensor(whole)
        and getattr(value, "ndim", 0) > 0
        and not is_spread(value)
        and value.shape == dtensor_memory(whole).shape
        and not all(placement.is_replicate() for placement in whole.placements)
    )


def memory_of(value: Any) -> torch.Tensor:
    """The plain tensor with the elements of this process."""
    if not is_spread(value):
        return value  # type: ignore[no-any-return]
    if is_dtensor(value):
        return dtensor_memory(value)  # type: ignore[no-any-return]
    return _shard_of(value)


def spread_of(value: Any) -> Spread:
    """The part of this rank of a distributed tensor."""
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
    if 0 in whole:  # an empty tensor is whole on all ranks
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
    """The ranks of a mesh that have the coordinates of this one in all other dimensions."""
    if isinstance(along, Members):
        return along.ranks
    mesh, dims = along
    at = tuple(slice(None) if n in dims else place for n, place in enumerate(mesh.get_coordinate()))
    return [int(rank) for rank in mesh.mesh[at].flatten().tolist()]


def cuts_of(
    placements: Sequence[Any], sizes: Dims, coordinate: Dims, spec: Any = None
) -> dict[int, list[Cut]]:
    """The cuts of each dimension, in order."""
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
    The mesh dimensions in the order in which they cut a dimension of the tensor. `split_factor`:
    into how many parts the mesh dimensions further right had cut it before. None: unknown.
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
    """Start and shape of the part after the cuts; None if it is not a box."""
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
    """The part as torch.chunk() cuts it; empty if it returns fewer chunks."""
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
    copies = Copies(None, 1, 0)  # other holders are unknown: equal boxes are stored twice
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
