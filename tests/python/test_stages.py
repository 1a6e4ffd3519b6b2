# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline: modules of fully_shard() on meshes of their own, with their own names."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import bits, writers
from libckpt._ranks import Ranks
from libckpt.adapters._stages import Told
from node_rig import on_node
from ranks import Job, together
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import libckpt

State = dict[str, Any]


class Layer(nn.Module):
    """Has plain tensors as well: a parameter that is not sharded, a counter, statistics."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(4, size)
        self.norm = nn.BatchNorm1d(size)
        self.down = nn.Linear(size, 4)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(5))
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return self.down(self.norm(self.up(x))) * self.scale.sum()  # type: ignore[no-any-return]


class Asked(torch.optim.AdamW):
    """Has a say of its own."""

    def state_dict(self) -> Any:
        return super().state_dict()


#: The same with a say of their own; with a store on every node, each of which has all stages.
KINDS = "walked", "asked", "nodes"
ACROSS = "abab"
PLAIN = "step", "count", "scale", "running_mean", "running_var", "scale/exp_avg"


def hook(_module: Any, state: Any, _prefix: str, _meta: Any) -> None:
    """Gives a copy, as one that changes a tensor would."""
    for key in state:
        if key.endswith("count"):
            state[key] = state[key].clone()


def stage_of(rank: int) -> int:
    return rank // 2


def build(kind: str, seed: int) -> State:
    """A rank's stage. `asked`: module and optimizer have a say of their own."""
    stage = stage_of(dist.get_rank())
    torch.manual_seed(seed + stage)
    mesh = next(
        mesh
        for mesh in (DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3]))
        if mesh.get_coordinate() is not None
    )
    layer = Layer(6 + stage)
    fully_shard(layer, mesh=mesh, ignored_params={layer.scale})
    model = nn.ModuleDict({f"layer{stage}": layer})
    if kind == "asked":
        layer._register_state_dict_hook(hook)
    optimizer = (Asked if kind == "asked" else torch.optim.AdamW)(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer}


def train(state: State) -> None:
    """The stages do not take as many steps."""
    rank = dist.get_rank()
    (layer,) = state["model"].values()
    for number in range(2 + stage_of(rank)):
        x = torch.arange(12.0).reshape(3, 4).sin() + number
        layer(x).square().mean().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()
    # Whole parameters stand in the place of the sharded ones afterwards.
    with torch.no_grad():
        layer(x)
    layer.norm.running_mean += rank  # as of data that each rank has of its own


def held(state: State) -> dict[str, bytes]:
    """What this rank holds, by the names that it has in the step."""
    (stage,) = state["model"]
    found, names = {}, {}
    for name, value in state["model"].state_dict().items():
        found[name] = value
    for name, parameter in state["model"].named_parameters():
        names[parameter] = name
    for parameter, entry in state["optimizer"].state.items():
        for role, value in entry.items():
            found[f"optimizer/state/{names[parameter]}/{role}"] = value
    assert all(stage in name for name in found)
    return {
        name: bits(value.to_local() if isinstance(value, DTensor) else value)
        for name, value in found.items()
    }


def open_for(kind: str, place: Path, state: State) -> libckpt.Checkpointer:
    store, nodes = place / kind, kind == "nodes"
    if nodes:
        store = on_node(place, ACROSS)
    return libckpt.Checkpointer(store, state, pool_bytes=1 << 20, eager=False, node_store=nodes)


def save_stages(place: Path) -> dict[str, dict[str, bytes]]:
    saved = {}
    for kind in KINDS:
        state = build(kind, 1)
        with open_for(kind, place, state) as ckpt:
            ckpt.save(6).wait()
            train(state)
            ckpt.save(7).wait()
        saved[kind] = held(state)
        # What is told is of the sharded parameters, also where whole ones stand in their place.
        train(state)
        assert set(Told.of(state, Ranks(dist.get_rank(), 4)).kinds.values()) == {""}
    libckpt.rehearse(state, directory=place)
    return saved


def resume_stages(place: Path) -> dict[str, dict[str, bytes]]:
    found = {}
    for kind in KINDS:
        state = build(kind, 5)
        with open_for(kind, place, state) as ckpt:
            assert ckpt.resume() == 7
        found[kind] = held(state)
        train(state)
    return found


def resume_on_one(store: Path) -> None:
    """All stages on one rank: their names are in the views of several ranks."""
    model = nn.ModuleDict({f"layer{stage}": Layer(6 + stage) for stage in range(2)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    with libckpt.Checkpointer(
        store, {"model": model, "optimizer": optimizer}, pool_bytes=1 << 20
    ) as ckpt:
        ckpt.resume()
    names = {one: name for name, one in model.named_parameters()}
    found = {**model.state_dict()}
    for one, entry in optimizer.state.items():
        found.update((f"optimizer/state/{names[one]}/{role}", v) for role, v in entry.items())
    assert found.keys() == {name for name in writers(store, 7) if not name.startswith("rank-")}
    stored = libckpt.load(store, names=list(found))
    assert {name: bits(v) for name, v in found.items()} == {n: bits(v) for n, v in stored.items()}
    steps = [found[f"optimizer/state/layer{stage}.up.weight/step"].item() for stage in range(2)]
    assert (steps, optimizer.param_groups[0]["lr"]) == ([2, 3], 0.1)


def test_stages_come_back_with_their_plain_tensors(tmp_path: Path) -> None:
    saved = together(4, tmp_path, save_stages, tmp_path)
    found = together(4, tmp_path, resume_stages, tmp_path)
    for kind, rank in itertools.product(KINDS, range(4)):
        first = 2 * stage_of(rank)
        then, now = saved[rank][kind], found[rank][kind]
        # Statistics are each rank's own.
        name = f"layer{stage_of(rank)}.norm.running_mean"
        assert saved[first][kind][name] != saved[first + 1][kind][name]
        assert now == then
    busy = set()
    for store in ("walked", "asked", "a/store"):
        wrote = writers(tmp_path / store, 7)
        for name in wrote.keys() - {f"rank-{rank:05d}/rng/torch" for rank in range(4)}:
            ranks, stage = wrote[name], int(name.split("layer")[1][0])
            assert {stage_of(rank) for rank in ranks} == {stage}
            if name.endswith(PLAIN):
                assert len(ranks) == 1
                busy.update(ranks)
    assert busy == {0, 1, 2, 3}
    resume_on_one(tmp_path / "walked")


def step_of(state: State) -> torch.Tensor:
    (layer,) = state["model"].values()
    layer.reshard()
    return state["optimizer"].state[layer.down.bias]["step"]  # type: ignore[no-any-return]


def save_others(place: Path) -> list[str]:
    """One rank of a stage counts otherwise; one has tensors more."""
    said = []
    for case in ("1", "3", "more"):
        state, rank = build("walked", 1), dist.get_rank()
        train(state)
        (layer,) = state["model"].values()
        if case == f"{rank}":
            step_of(state).add_(1)
        if case == "more" and rank != 0:
            layer.register_buffer("more", torch.ones(2))
        with libckpt.Checkpointer(place / case, state, pool_bytes=1 << 20) as ckpt:
            try:
                ckpt.save(1).wait()
                said.append("saved")
            except libckpt.CheckpointError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def warn_others(place: Path) -> list[str]:
    """One rank of the second stage counts otherwise, which only warns: the warnings."""
    state = build("walked", 1)
    train(state)
    if dist.get_rank() == 3:
        step_of(state).add_(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with libckpt.Checkpointer(place, state, pool_bytes=1 << 20, replicas="warn") as ckpt:
            ckpt.save(1).wait()
    return [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]


def test_ranks_of_a_stage_must_have_the_same(tmp_path: Path) -> None:
    found = together(4, tmp_path, save_others, tmp_path)
    for rank, (one, three, more) in enumerate(found):
        assert one.startswith("ReplicaMismatchError: ")
        assert "bytes of 'optimizer/state/layer0.down.bias/step'" in one
        # Rank 0, which finds it, has no names of another stage; the ranks of that stage have.
        assert three.startswith("ReplicaMismatchError: ")
        assert "rank 3 and rank 2 hold different bytes of about 1 tensor" in three
        names = f"by the names of rank {rank}: 'optimizer/state/layer1.down.bias/step'"
        assert (names in three) == (rank > 1)
        # It is not told as if they had other bytes of it.
        assert more.startswith("MismatchError: ")
        assert "would lack a tensor" in more
        assert "rank 1 and rank 0 differ in" in more
        # Rank 0 lacks it, and rank 1 has it.
        assert ("by the names of rank 1: 'layer0.more'" in more) == (rank == 1)
    for rank, said in enumerate(together(4, tmp_path, warn_others, tmp_path / "warn")):
        (text,) = said
        assert "rank 3 and rank 2 hold different bytes of about 1 tensor" in text
        names = f"by the names of rank {rank}: 'optimizer/state/layer1.down.bias/step'"
        assert (names in text) == (rank > 1)
    for case in ("1", "3", "more"):
        with pytest.raises(libckpt.StepNotFoundError):
            libckpt.load(tmp_path / case)


def lacking(case: str) -> State:
    """The stages, with more on some ranks: on all but rank 0, or only on rank 1."""
    state, rank = build("walked", 1), dist.get_rank()
    (layer,) = state["model"].values()
    if rank in ((1,) if case == "statistics" else (1, 2, 3)):
        if case == "statistics":
            layer.more = nn.BatchNorm1d(2, affine=False)
        else:
            for number in range(4):
                layer.register_buffer(f"more{number}", torch.ones(2))
    return state


#: What some ranks lack, and what compares nothing of it, or only warns.
LACKING: dict[str, State] = {"statistics": {}, "warn": {"replicas": "warn"}, "groups": {}}


def save_lacking(place: Path) -> dict[str, str]:
    """One rank of the first stage lacks tensors that it would save for the other one."""
    said = {}
    for case, options in LACKING.items():
        with pytest.MonkeyPatch.context() as patch:
            if case == "groups":  # as if there were more of them
                patch.setattr("libckpt._alike._GROUPS_MAX", 0)
            with libckpt.Checkpointer(
                place / case, lacking(case), pool_bytes=1 << 20, **options
            ) as ckpt:
                try:
                    ckpt.save(1).wait()
                    said[case] = "saved"
                except libckpt.CheckpointError as error:
                    said[case] = f"{type(error).__name__}: {error}"
    return said


def test_no_step_lacks_a_tensor_that_a_rank_has(tmp_path: Path) -> None:
    for said in together(4, tmp_path, save_lacking, tmp_path):
        for case in LACKING:
            assert said[case].startswith("MismatchError: "), (case, said[case])
            assert "would lack" in said[case]
    for case in LACKING:
        with pytest.raises(libckpt.StepNotFoundError):
            libckpt.load(tmp_path / case)


#: Who wrote the plain tensors, in the order of their names, before there were stages.
BEFORE = {"fsdp": "0012301230", "hsdp": "0012301230"}


def save_all(place: Path) -> None:
    for layout in BEFORE:
        job = Job(layout, 1)
        job.step()
        with job.open(place / layout) as ckpt:
            ckpt.save(7).wait()


def test_what_all_ranks_hold_is_written_as_it_always_was(tmp_path: Path) -> None:
    together(4, tmp_path, save_all, tmp_path)
    for layout, before in BEFORE.items():
        plain = {
            name: ranks
            for name, ranks in sorted(writers(tmp_path / layout, 7).items())
            if name.endswith(("step", "count")) and not name.startswith("rank-")
        }
        assert all(len(ranks) == 1 for ranks in plain.values())
        assert "".join(str(rank) for (rank,) in plain.values()) == before
