# SPDX-License-Identifier: Apache-2.0
"""Placements to boxes: for every coordinate of a mesh, against what torch puts there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor.debug
from libckpt._ranks import Shares, is_turn
from libckpt.adapters._layout import (
    Copies,
    Spread,
    cuts_of,
    is_spread,
    memory_of,
    spread_of,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """This process as one rank of many that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        # What an operator gives is kept with the mesh of the first rank.
        for name in dir(torch.distributed.tensor.debug):
            if name.startswith("_clear_") and name.endswith("_cache"):
                getattr(torch.distributed.tensor.debug, name)()


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def seen_by_all(world: int, make: Callable[[], Any]) -> list[tuple[Spread, torch.Tensor]]:
    """What each rank has of the tensor that `make` gives."""
    found = []
    for rank in range(world):
        with rank_of(rank, world):
            value = make()
            assert is_spread(value)
            found.append((spread_of(value), memory_of(value).detach().clone()))
    return found


def check(whole: torch.Tensor, found: list[tuple[Spread, torch.Tensor]], where: object) -> None:
    """Every rank has the box it is said to have, and each element is written once."""
    written = torch.zeros(whole.shape, dtype=torch.int32)
    for spread, local in found:
        assert spread.whole == tuple(whole.shape), where
        assert not spread.refusal, where
        if spread.box is None:
            assert local.numel() == 0, where
            continue
        part = tuple(slice(a, a + n) for a, n in zip(*spread.box, strict=True))
        assert torch.equal(whole[part], local.reshape(spread.box[1])), where
        if spread.copies.place == 0:
            written[part] += 1
    assert bool((written == 1).all()), where


PLACEMENTS: list[Any] = [Replicate(), Shard(0), Shard(1), Shard(2)]


@pytest.mark.parametrize("mesh_shape", [(1,), (3,), (4,), (2, 2), (2, 3), (1, 4), (2, 2, 2)])
def test_shard_and_replicate(mesh_shape: tuple[int, ...]) -> None:
    world = math.prod(mesh_shape)
    for rank in range(world):
        assert rank < world
    shapes = [(8, 4, 2), (7, 5, 3), (1, 3, 2), (2, 9, 1)]
    cases = list(itertools.product(shapes, itertools.product(PLACEMENTS, repeat=len(mesh_shape))))
    found: dict[Any, list[Any]] = {case: [] for case in cases}
    for rank in range(world):
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            for shape, placements in cases:
                value = distribute_tensor(numbered(*shape), mesh, placements, src_data_rank=None)
                seen = spread_of(value), memory_of(value).detach().clone()
                found[shape, placements].append(seen)
    for (shape, placements), seen_by in found.items():
        check(numbered(*shape), seen_by, (shape, placements))


def model(rows: int) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(6, rows), torch.nn.Linear(rows, 5))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(numbered(*parameter.shape))
    return made


@pytest.mark.parametrize(
    ("mesh_shape", "rows"),
    [
        ((2, 2), (8, 7, 5, 3, 2, 1)),
        ((4, 2), (8, 9, 10, 13, 5)),
        ((2, 4), (16, 9, 11, 6)),
        ((3, 2), (7, 12)),
    ],
)
def test_fsdp_over_tensor_parallelism(mesh_shape: tuple[int, int], rows: tuple[int, ...]) -> None:
    """One dimension is cut by both, tensor parallelism first: rows go where no one else says."""
    for count in rows:
        found: dict[str, list[Any]] = {}
        world = math.prod(mesh_shape)
        for rank in range(world):
            with rank_of(rank, world):
                mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("dp", "tp"))
                made = model(count)
                plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
                parallelize_module(made, mesh["tp"], plan, src_data_rank=None)
                fully_shard(made, mesh=mesh["dp"])
                for name, parameter in made.named_parameters():
                    seen = spread_of(parameter), memory_of(parameter).detach().clone()
                    found.setdefault(name, []).append(seen)
        for name, parameter in model(count).named_parameters():
            assert len(found[name]) == world
            check(parameter.detach(), found[name], (mesh_shape, count, name))


def test_hsdp() -> None:
    found: dict[str, list[Any]] = {}
    for rank in range(6):
        with rank_of(rank, 6):
            made = model(7)
            fully_shard(made, mesh=init_device_mesh("cpu", (2, 3), mesh_dim_names=("r", "s")))
            for name, parameter in made.named_parameters():
                seen = spread_of(parameter), memory_of(parameter).detach().clone()
                found.setdefault(name, []).append(seen)
    for name, parameter in model(7).named_parameters():
        check(parameter.detach(), found[name], name)
        assert {spread.copies.among for spread, _ in found[name]} == {2}


def test_a_rank_outside_of_the_mesh_has_nothing() -> None:
    for rank in range(4):
        with rank_of(rank, 4):
            mesh = dist.device_mesh.DeviceMesh("cpu", [1, 3])
            value = distribute_tensor(numbered(5, 2), mesh, [Shard(0)], src_data_rank=None)
            spread = spread_of(value)
            assert (spread.box is None) == (rank in (0, 2))
            assert spread.whole == (5, 2) or rank in (0, 2)


def test_a_tensor_without_elements_is_written_once() -> None:
    def make() -> Any:
        mesh = init_device_mesh("cpu", (2, 2))
        return distribute_tensor(torch.zeros(3, 0), mesh, [Shard(0), Shard(1)], src_data_rank=None)

    found = [spread for spread, _ in seen_by_all(4, make)]
    assert [spread.box for spread in found] == [((0, 0), (3, 0))] * 4
    assert sorted(spread.copies.place for spread in found) == [0, 1, 2, 3]


def test_what_is_no_box_is_refused() -> None:
    with rank_of(1, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        partial = DTensor.from_local(torch.ones(2, 2), mesh, [Partial(), Replicate()])
        assert "summand" in spread_of(partial).refusal
        scattered = DTensor.from_local(
            torch.ones(4, 2),
            mesh,
            [_StridedShard(0, split_factor=2), Replicate()],
            shape=torch.Size((8, 2)),
            stride=(2, 1),
            run_check=False,
        )
        assert "do not follow one another" in spread_of(scattered).refusal
        odd = DTensor.from_local(
            torch.ones(3, 2),
            mesh,
            [Shard(0), Replicate()],
            shape=torch.Size((8, 2)),
            stride=(2, 1),
            run_check=False,
        )
        assert "local tensor has the shape [3, 2]" in spread_of(odd).refusal


def test_an_order_that_is_told_is_followed() -> None:
    class Entry:
        tensor_dim, mesh_dims = 0, (1, 0)

    class Spec:
        shard_order = (Entry(),)

    cuts = cuts_of([Shard(0), Shard(0)], (2, 3), (1, 2), Spec())
    assert cuts == {0: [(3, 2, 1), (2, 1, 1)]}


class Chunks(torch.Tensor):
    """A tensor that tells its boxes as torch.distributed.checkpoint asks for them."""

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self.chunks

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.held[tuple(index.offset)]


def chunks(whole: tuple[int, ...], boxes: dict[tuple[int, ...], torch.Tensor]) -> Chunks:
    made = torch.empty(whole, device="meta").as_subclass(Chunks)
    made.held = boxes
    made.chunks = [
        ChunkStorageMetadata(torch.Size(start), local.shape) for start, local in boxes.items()
    ]
    return made


def test_the_protocol_of_dcp() -> None:
    local = numbered(2, 3)
    value = chunks((8, 3), {(4, 0): local})
    assert spread_of(value).box == ((4, 0), (2, 3))
    assert memory_of(value) is local
    assert spread_of(chunks((8, 3), {})).box is None
    two = chunks((8, 3), {(0, 0): local, (4, 0): local})
    assert "holds 2 boxes" in spread_of(two).refusal


def test_shares_are_fair_and_agreed() -> None:
    sizes = [(b"%d" % n, (n * 7919) % 1000, 4) for n in range(300)]
    answers = [
        Shares().settle([(name, size, Copies("x", 4, rank)) for name, size, _ in sizes])
        for rank in range(4)
    ]
    loads = [0] * 4
    for number, (_, size, _) in enumerate(sizes):
        writers = [rank for rank in range(4) if answers[rank][number]]
        assert len(writers) == 1
        loads[writers[0]] += size
    assert max(loads) - min(loads) <= 1000
    assert [sum(is_turn(f"n{n}", Copies("x", 4, rank)) for rank in range(4)) for n in range(9)] == (
        [1] * 9
    )
