# SPDX-License-Identifier: Apache-2.0
"""Plain tensors that belong to DTensors on meshes of some ranks, in all kinds of layouts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import bits, writers
from ranks import together
from test_states_parts import Coded
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import libckpt

State = dict[str, Any]


class Unit(nn.Module):
    """Has a parameter and a buffer, whose names end with `end`."""

    def __init__(self, end: object = "") -> None:
        super().__init__()
        self.register_parameter(f"weight{end}", nn.Parameter(torch.randn(4, 3)))
        self.register_buffer(f"count{end}", torch.randn(5))


class Extra(Unit):
    """Says a tensor that is in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.said = torch.randn(2)

    def get_extra_state(self) -> State:
        return {"said": [self.said]}

    def set_extra_state(self, state: State) -> None:
        (self.said,) = state["said"]


class Deep(torch.optim.SGD):
    """Keeps plain tensors in lists and dicts, and one that wraps others."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                number = len(self.state[parameter].get("seen", ())) + 1.0
                self.state[parameter]["seen"] = [torch.full((3,), number)] * int(number)
                self.state[parameter]["by"] = {"q": torch.full((2,), number)}
                self.state[parameter]["code"] = coded_of(number)
        return super().step(closure)


class DeepAsked(Deep):
    """The same, with a say of its own."""

    def state_dict(self) -> Any:
        return super().state_dict()


def coded_of(number: float) -> Coded:
    return Coded(torch.tensor([1, 2, 3], dtype=torch.uint8), torch.full((2,), number), 2)


def mine(*ranks: list[Any], names: tuple[str, ...] | None = None) -> DeviceMesh:
    """Of meshes the one that this rank is in."""
    meshes = [DeviceMesh("cpu", some, mesh_dim_names=names) for some in ranks]
    return next(mesh for mesh in meshes if mesh.get_coordinate() is not None)


def square() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def tensor_parallel() -> State:
    """No parameter that is cut by tensor parallelism is in the unit or the optimizer of another."""
    mesh = square()
    model = nn.ModuleDict({"norm": Unit(), "up": nn.Linear(4, 4)})
    parallelize_module(model["up"], mesh["tp"], ColwiseParallel())
    for unit in model.values():
        fully_shard(unit, mesh=mesh["dp"])
    one, two = (torch.optim.AdamW(unit.parameters()) for unit in model.values())
    return {"model": model, "one": one, "two": two}


def experts() -> State:
    """Those of the job have names of their own, and each has two ranks."""
    number = dist.get_rank() % 2
    model = Unit()
    torch.manual_seed(torch.initial_seed() + number)
    model.expert = nn.ModuleDict({f"{number}": Unit()})
    fully_shard(model.expert[f"{number}"], mesh=mine([0, 2], [1, 3]))
    fully_shard(model, mesh=mine([0, 1, 2, 3]))
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def embedding() -> State:
    """Stages that share a module, which is sharded over all of them."""
    stage = dist.get_rank() // 2
    shared = Unit()
    torch.manual_seed(torch.initial_seed() + stage)
    model = Unit(stage)
    model.shared = shared
    fully_shard(shared, mesh=mine([0, 1, 2, 3]))
    fully_shard(model, mesh=mine([0, 1], [2, 3]))
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def stage_of_slices() -> State:
    """Tensor parallelism within a stage. Its slices have one rank each."""
    stage = dist.get_rank() // 2
    mesh = mine([[0, 1]], [[2, 3]], names=("dp", "tp"))
    torch.manual_seed(torch.initial_seed() + stage)
    model = Unit(stage)
    model.add_module(f"up{stage}", nn.Linear(4, 4))
    parallelize_module(model, mesh["tp"], {f"up{stage}": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def across() -> State:
    """A unit with parameters on two meshes, none of which has all ranks of the other."""
    mesh, model = square(), Unit()
    cut = distribute_tensor(torch.randn(4, 2), mesh["tp"], [Replicate()])
    model.register_parameter("cut", nn.Parameter(cut))
    fully_shard(model, mesh=mesh["dp"], ignored_params={model.cut})
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def backwards() -> State:
    """The ranks of a mesh are not in their order, nor next to each other."""
    mesh, number = mine([[2], [0]], [[3], [1]], names=("copy", "dp")), dist.get_rank() % 2
    model = nn.ModuleDict({f"norm{number}": nn.BatchNorm1d(3)})
    fully_shard(model[f"norm{number}"], mesh=mesh)
    model[f"norm{number}"].running_mean += dist.get_rank()
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def groups() -> State:
    """Replicas of a model that no mesh describes. Each group of ranks has its own statistics."""
    unit, mesh = Unit(), mine([0, 1], [2, 3])
    unit.norm = nn.BatchNorm1d(3)
    # Some chunks of the shard have nothing but statistics, and some of these have own chunks.
    sizes = *[1 << 16] * 6, 1 << 18
    unit.wide = nn.ModuleList(nn.BatchNorm1d(size, affine=False) for size in sizes)
    for norm in (unit.norm, *unit.wide):
        norm.running_mean += dist.get_rank()
    model = nn.Sequential(fully_shard(unit, mesh=mesh))
    model.register_buffer("around", torch.randn(2))  # beside no parameters
    fully_shard(model, mesh=mesh)
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def deep() -> State:
    """Stages with plain tensors in lists and dicts, and in tensors."""
    stage = dist.get_rank() // 2
    torch.manual_seed(torch.initial_seed() + stage)
    model = nn.ModuleDict({f"a{stage}": Unit()})
    model[f"a{stage}"].register_buffer("code", coded_of(torch.randn(()).item()))
    other = nn.ModuleDict({f"b{stage}": Extra()})
    mesh = mine([0, 1], [2, 3])
    fully_shard(model[f"a{stage}"], mesh=mesh)
    fully_shard(other[f"b{stage}"], mesh=mesh)
    one, two = Deep(model.parameters(), lr=0.1), DeepAsked(other.parameters(), lr=0.1)
    return {"model": model, "other": other, "one": one, "two": two}


def strangers() -> State:
    """All ranks have a parameter on a mesh that ranks 2 and 3 are not in."""
    mesh = DeviceMesh("cpu", [0, 1])
    model = Unit()
    fully_shard(model, mesh=mine([0, 1, 2, 3]))
    far = distribute_tensor(torch.randn(4, 2), mesh, [Replicate()])
    model.register_parameter("far", nn.Parameter(far))
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def tied() -> State:
    """
    The first stage has layers and a part of an embedding, and the second one only that. The third
    one has layers alone. The module around them has a buffer, and no parameters of its own.
    """
    rank, model = dist.get_rank(), nn.Module()
    model.register_buffer("around", torch.randn(2))
    if rank != 3:
        model.shared = fully_shard(Unit(), mesh=mine([0, 1, 2], [3]))
    else:
        mine([0, 1, 2], [3])
    stages = mine([0, 1], [2], [3])
    if rank != 2:
        torch.manual_seed(torch.initial_seed() + stages.mesh[0].item())
        model.add_module(f"layer{rank // 2}", fully_shard(Unit(), mesh=stages))
    fully_shard(model, mesh=stages)
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


CASES = {
    build.__name__: build
    for build in (
        tensor_parallel,
        experts,
        embedding,
        stage_of_slices,
        across,
        backwards,
        groups,
        deep,
        strangers,
        tied,
    )
}


def train(state: State) -> None:
    for optimizer in state.values():
        if isinstance(optimizer, torch.optim.Optimizer):
            for number in range(2):
                for parameter in optimizer.param_groups[0]["params"]:
                    parameter.grad = torch.full_like(parameter, number + 0.5)
                optimizer.step()


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in pairs:
            yield from leaves(f"{name}/{key}", below)
    elif isinstance(value, Coded):
        for part in value.__tensor_flatten__()[0]:
            yield from leaves(f"{name}/{part}", getattr(value, part))
    elif isinstance(value, torch.Tensor):
        yield name, bits(value.to_local() if isinstance(value, DTensor) else value)


def held(state: State) -> dict[str, bytes]:
    """The tensors of this rank."""
    found, names = {}, {}
    for module in state.values():
        if isinstance(module, nn.Module):
            names.update({parameter: name for name, parameter in module.named_parameters()})
            found.update(leaves("", module.state_dict()))
    for key, optimizer in state.items():
        if isinstance(optimizer, torch.optim.Optimizer):
            for parameter, entry in optimizer.state.items():
                found.update(leaves(f"{key}/{names[parameter]}", entry))
    return found


def build(case: str, seed: int) -> State:
    torch.manual_seed(seed)
    return CASES[case]()


def save_and_resume(place: Path) -> dict[str, tuple[dict[str, bytes], dict[str, bytes]]]:
    """What each rank had, and what it has then."""
    found = {}
    for case in CASES:
        state = build(case, 1)
        train(state)
        # No difference is told, nor that there is something that cannot be compared.
        with (
            warnings.catch_warnings(),
            libckpt.Checkpointer(place / case, state, pool_bytes=1 << 20) as ckpt,
        ):
            warnings.simplefilter("error", libckpt.CheckpointWarning)
            ckpt.save(7).wait()
        other = build(case, 5)
        with libckpt.Checkpointer(place / case, other, pool_bytes=1 << 20) as ckpt:
            assert ckpt.resume() == 7
        found[case] = held(state), held(other)
    return found


def split(store: Path, *names: str) -> list[list[int]]:
    """Who has written each of these."""
    wrote = writers(store, 7)
    return [wrote[name] for name in names]


def test_plain_tensors_are_held_where_what_they_belong_to_is(tmp_path: Path) -> None:
    found = together(4, tmp_path, save_and_resume, tmp_path)
    for rank, cases in enumerate(found):
        for case, (then, now) in cases.items():
            # Statistics are each rank's own.
            if case == "backwards" and rank > 1:
                name = f"/norm{rank % 2}.running_mean"
                assert then[name] != found[rank % 2][case][0][name]
            assert now == then, (case, rank)
    where = tmp_path / "tensor_parallel"
    # As what they belong to: by each slice of the mesh. And what is on all of it once.
    for ranks in split(where, "one/state/norm.weight/step", "norm.count"):
        assert sorted(rank % 2 for rank in ranks) == [0, 1]
    assert [len(ranks) for ranks in split(where, "two/state/up.weight/step")] == [1]
    for ranks in split(tmp_path / "groups", "one/state/0.weight/step", "0.count", "around"):
        assert [rank // 2 for rank in ranks] == [0, 1]
    assert split(tmp_path / "groups", "0.norm.running_mean") == [[0, 2]]
    where = tmp_path / "experts"
    for number in range(2):
        names = f"one/state/expert.{number}.weight/step", f"expert.{number}.count"
        for (rank,) in split(where, *names):
            assert rank % 2 == number
    assert [len(ranks) for ranks in split(where, "one/state/weight/step", "count")] == [1, 1]
    where = tmp_path / "embedding"
    for stage in range(2):
        for (rank,) in split(where, f"one/state/weight{stage}/step", f"count{stage}"):
            assert rank // 2 == stage
    names = "one/state/shared.weight/step", "shared.count"
    assert [len(ranks) for ranks in split(where, *names)] == [1, 1]
    (few,) = split(tmp_path / "stage_of_slices", "count1")
    (step,) = split(tmp_path / "stage_of_slices", "one/state/up1.weight/step")
    assert few == [2, 3]
    assert step in ([2], [3])
    # By all that have the embedding, and by the stage that has none.
    (around,) = split(tmp_path / "tied", "around")
    assert around in ([0, 3], [1, 3], [2, 3])
    assert split(tmp_path / "across", "count") == [[0, 1, 2, 3]]
    assert split(tmp_path / "strangers", "one/state/far/step") in ([[0]], [[1]])


def alone(what: str) -> State:
    """Of a stage's two ranks the second one has more: buffers, empty ones, statistics."""
    rank = dist.get_rank()
    model = nn.ModuleDict({f"part{rank // 2}": Unit()})
    (unit,) = model.values()
    fully_shard(unit, mesh=mine([0, 1], [2, 3]))
    if rank == 3 and what == "statistics":
        unit.more = nn.BatchNorm1d(2, affine=False)
        unit.more.running_var = unit.more.num_batches_tracked = None
    elif rank == 3:
        for number in range(4):
            unit.register_buffer(f"more{number}", torch.ones(0 if what == "empty" else 2))
    return {"model": model, "one": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def unlike(what: str) -> State:
    """Slices of a mesh that have something else by the same name."""
    mesh, model = square()["dp"], Unit()
    values = torch.full((2, 1 << 18), dist.get_rank() % 2.0)
    if what == "expert":
        model.weight = nn.Parameter(values)
    else:
        model.count = values
    fully_shard(model, mesh=mesh)
    return {"model": model, "one": torch.optim.AdamW(model.parameters())}


def torn(_what: str) -> State:
    """Rank 1 sees two meshes in a module without parameters, and neither has all ranks of both."""
    rank, model = dist.get_rank(), nn.Module()
    model.register_buffer("around", torch.randn(2))
    for number, ranks in enumerate(([0, 1], [1, 2], [3])):
        mesh = DeviceMesh("cpu", ranks)
        if rank in ranks:
            model.add_module(f"part{number}", fully_shard(Unit(), mesh=mesh))
    fully_shard(model, mesh=mine([0, 1, 2, 3]))
    return {"model": model}


#: What is refused, and by what.
REFUSED = {
    "torn": (torn, "check", "MismatchError"),
    "buffers": (alone, "check", "MismatchError"),
    "buffers/warn": (alone, "warn", "MismatchError"),
    "empty": (alone, "check", "MismatchError"),
    "empty/warn": (alone, "warn", "MismatchError"),
    "statistics": (alone, "check", "MismatchError"),
    "statistics/warn": (alone, "warn", "MismatchError"),
    "expert": (unlike, "check", "ReplicaMismatchError"),
    "count": (unlike, "check", "ReplicaMismatchError"),
}


def save_refused(place: Path) -> dict[str, str]:
    said = {}
    for case, (make, replicas, _) in REFUSED.items():
        torch.manual_seed(1)
        state = make(case.partition("/")[0])
        train(state)
        with libckpt.Checkpointer(
            place / case, state, pool_bytes=4 << 20, replicas=replicas
        ) as ckpt:
            try:
                ckpt.save(7).wait()
                said[case] = "saved"
            except libckpt.CheckpointError as error:
                said[case] = f"{type(error).__name__}: {error}"
    return said


def test_what_only_some_of_them_have_or_have_otherwise_is_refused(tmp_path: Path) -> None:
    for rank, said in enumerate(together(4, tmp_path, save_refused, tmp_path)):
        for case, (make, _, error) in REFUSED.items():
            assert said[case].startswith(f"{error}: "), (case, said[case])
            if make is torn:
                assert "rank 1 and rank 0 differ in 'around'" in said[case]
                assert ("hold 'around' is not known on this rank" in said[case]) == (rank == 1)
            elif make is unlike:
                assert {"expert": "'weight'", "count": "'count'"}[case] in said[case]
            else:  # the rank that has more names it, and the one that lacks it cannot
                names = re.findall(r"by the names of rank (\d): (.*)", said[case])
                assert [number for number, _ in names] == (["3"] if rank == 3 else [])
                assert all("'part1.more" in text for _, text in names)
                if case.startswith("statistics"):  # once, and nothing beside it
                    assert [text for _, text in names] in ([], ["'part1.more.running_mean'"])
                assert "rank 3 and rank 2 differ in" in said[case] or rank == 3
    for case in REFUSED:
        with pytest.raises(libckpt.StepNotFoundError):
            libckpt.load(tmp_path / case)
