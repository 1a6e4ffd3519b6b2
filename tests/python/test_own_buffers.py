# SPDX-License-Identifier: Apache-2.0
"""
Buffers that differ by rank and are no rank's fault: each rank gets its own back, and where all have
the same, one of them saves it.
"""

from __future__ import annotations

import json
import struct
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import step_directory
from libckpt._alike import Groups, Slow
from libckpt._native import lib
from libckpt._ranks import Ranks
from libckpt._tensors import Block, describe
from libckpt.adapters import _buffers
from node_rig import TOOLS, on_node
from ranks import together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import libckpt

State = dict[str, Any]
STEPS = (1, 2, 3)


def rank_of() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    """Has statistics of its batches."""

    def __init__(self, *, talks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.down = nn.Linear(8, 2)
        if talks:
            self.register_state_dict_pre_hook(lambda *_: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)).relu())


class Counting(nn.Module):
    """Counts, and has a table that is the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(6, 8)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.square().sum()
        return self.up(x)


class Synced(nn.Module):
    """Its statistics are those of a group of this rank alone, as those of a node's ranks are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(6, 8)
        self.norm = nn.SyncBatchNorm(8)
        if dist.is_initialized():
            groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
            self.norm.process_group = groups[dist.get_rank()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Without a GPU it refuses to run: what it does is to take them of the batches of the group.
        up = self.up(x)
        with torch.no_grad():
            self.norm.running_mean.lerp_(up.mean(0), 0.1)
            self.norm.running_var.lerp_(up.var(0), 0.1)
            self.norm.num_batches_tracked += 1
        return up


class Tied(nn.Module):
    """Two modules are one, and two others share a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Net()
        self.second = self.first
        self.other = nn.Module()
        self.other.register_buffer("mean", self.first.norm.running_mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


def sharded(*shape: int) -> nn.Module:
    model = Net()
    if dist.is_initialized():
        names = ("replicas", "shards")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names) if shape else None
        fully_shard(model, mesh=mesh)
    return model


def ddp(*, broadcast: bool, ignored: Sequence[str] = ()) -> nn.Module:
    if not dist.is_initialized():
        return Net()
    model = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return DistributedDataParallel(model, broadcast_buffers=broadcast)


IGNORED = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]

#: how the model is made, and whether a save of a later step has copies of each rank's own of what
CASES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "sharded": (sharded, {"norm"}),
    "ddp_without_broadcast": (lambda: ddp(broadcast=False), {"norm"}),
    "ddp_that_ignores": (lambda: ddp(broadcast=True, ignored=IGNORED), {"norm"}),
    "no_wrapper": (Net, {"norm"}),
    "synced_by_group": (Synced, {"norm"}),
    "counting": (Counting, {"seen", "table"}),
    "tied": (Tied, {"first"}),
    "talks": (lambda: Net(talks=True), {"norm"}),
    "equal": (Counting, set()),
    "equal_statistics": (Net, {"norm"}),
    "ddp": (lambda: ddp(broadcast=True), set()),
}


def train(name: str, model: nn.Module, step: int, *, salt: int = 0) -> None:
    """
    What a rank sees is its own; what becomes of parameters is not. Ranks of SyncBatchNorm see the
    same before the first save: they differ later all the same.
    """
    alike = name.startswith("equal") or (name == "synced_by_group" and step == STEPS[0])
    seed = 1000 * salt + 100 * step + (0 if alike else rank_of())
    with torch.no_grad():
        model(torch.randn(16, 6, generator=torch.Generator().manual_seed(seed)))


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = getattr(model, "module", model)
    return {name: value.clone() for name, value in inner.named_buffers(remove_duplicate=False)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(map(torch.equal, a.values(), b.values()))


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]


def resume(
    place: Path, name: str, make: Callable[[], nn.Module]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """What comes back, and what is warned of."""
    model = make()
    for step in range(5, 8):
        train(name, model, step, salt=1)
    with libckpt.Checkpointer(place / name, {"model": model}, rehearse=False) as ckpt:
        found, said = warned(ckpt.resume)
        assert found == STEPS[-1]
    return buffers_of(model), said


def save(place: Path, name: str, **options: Any) -> dict[str, torch.Tensor]:
    model = CASES[name][0]()
    options = {"keep_last": 9, "rehearse": False, **options}
    with libckpt.Checkpointer(place / name, {"model": model}, **options) as ckpt:
        for step in STEPS:
            train(name, model, step)
            ckpt.save(step).wait()
    return buffers_of(model)


def on_two_ranks(place: Path) -> dict[str, Any]:
    saved, back = {}, {}
    for name, (make, _) in CASES.items():
        (place / name).mkdir(exist_ok=True)
        saved[name], said = warned(lambda name=name: save(place, name))
        assert said == [], (name, said)
        back[name] = resume(place, name, make)
    other = resume(place, "sharded", lambda: sharded(1, 2))
    return {"saved": saved, "back": back, "other": other}


def on_nodes(place: Path) -> list[Any]:
    """Each node has a store. The ranks change nodes."""
    model, said = Net(), []
    train("no_wrapper", model, 1)
    with libckpt.Checkpointer(
        on_node(place, "ab"), {"model": model}, rehearse=False, node_store=True
    ) as ckpt:
        ckpt.save(1).wait()
    kept = buffers_of(model)
    for nodes in ("ab", "ba"):
        model = Net()
        with libckpt.Checkpointer(
            on_node(place, nodes), {"model": model}, rehearse=False, node_store=True
        ) as ckpt:
            said.append((warned(ckpt.resume)[1], buffers_of(model)))
    return [kept, *said]


def test_a_rank_is_told_that_its_buffers_are_on_another_node(tmp_path: Path) -> None:
    ranks = together(2, tmp_path, on_nodes, tmp_path)
    for rank, (kept, (none, same_node), (said, other_node)) in enumerate(ranks):
        assert none == []
        assert same(same_node, kept)
        assert same(other_node, ranks[1 - rank][0])
        (text,) = said
        assert f"what rank {rank} saved is on node node-{'ab'[rank]}" in text
        assert "norm.running_mean" in text
        assert "may differ by rank" in text


def names_in(place: Path, step: int) -> set[str]:
    """All tensors of a step."""
    names: set[str] = set()
    for shard in step_directory(place, step).glob("*.safetensors"):
        data = shard.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        names |= json.loads(data[8 : 8 + size]).keys() - {"__metadata__"}
    return names


def test_each_rank_gets_its_own_back(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    ranks = together(2, tmp_path, on_two_ranks, store)
    for name, (_, kept) in CASES.items():
        first, second = (rank["saved"][name] for rank in ranks)
        assert same(first, second) == name.startswith("equal"), name
        for rank in ranks:
            back, said = rank["back"][name]
            # Of buffers that are broadcast all get those of rank 0, and of modules as a whole.
            assert same(back, first if name == "ddp" else rank["saved"][name]), name
            assert said == [], (name, said)
        for step in STEPS:
            names = names_in(store / name, step)
            for at in range(2):
                own = {one for one in names if one.startswith(f"rank-0000{at}/")}
                plain = {one.partition("/")[2] for one in own} & first.keys()
                # Until a commit has found what they are, all are each rank's own.
                if step > STEPS[0]:
                    assert {one.partition(".")[0] for one in plain} == kept, (name, step)
                elif name != "ddp":
                    assert {one.partition(".")[0] for one in plain} >= kept, (name, step)
                    assert plain, (name, step)
            # Whoever reads the files finds each under its own name, once.
            assert first.keys() - names <= {"second.norm.running_mean", "other.mean"} | {
                one for one in first if one.startswith("second.")
            }
    for rank in ranks:
        back, said = rank["other"]
        assert same(back, ranks[0]["saved"]["sharded"])
    # Rank 0 has lost nothing.
    assert ranks[0]["other"][1] == []
    (text,) = ranks[1]["other"][1]
    assert "on other meshes, or with other modules on meshes" in text
    assert "norm.running_mean" in text
    # Rank 0 wrote it, and this is not it.
    assert "of the lowest rank that held them are restored" in text
    check_elsewhere(store, ranks[0]["saved"], tmp_path)


def check_elsewhere(store: Path, saved: dict[str, dict[str, torch.Tensor]], place: Path) -> None:
    """On another number of ranks, and to other programs, there is what rank 0 had."""
    for name, (make, kept) in CASES.items():
        back, said = resume(store, name, make)
        assert same(back, saved[name]), name
        named = [words for words in said if "ranks had different values of" in words]
        differ = bool(kept) and not name.startswith("equal")
        assert len(named) == differ, (name, said)
        if differ:
            # A table that is the same on all ranks is not named.
            assert {"seen" in named[0], "norm.running_var" in named[0]} == {True, False}
            assert "table" not in named[0]
        loaded, said = warned(lambda name=name: libckpt.load(store / name))
        assert said == []
        model = loaded["model"]
        assert all(torch.equal(model[one], value) for one, value in saved[name].items()), name
    ran = [TOOLS / "ckpt-restore", "--consolidate", store / "sharded", place / "whole"]
    subprocess.run(ran, check=True, capture_output=True)
    names = {one for file in place.glob("whole/**/*.safetensors") for one in header_of(file)}
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= names
    subprocess.run([TOOLS / "ckpt-verify", store / "sharded"], check=True, capture_output=True)


def header_of(file: Path) -> set[str]:
    data = file.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return set(json.loads(data[8 : 8 + size]))


def unknowing(store: Path) -> list[Any]:
    """Rank 1 never hears of it. What is equal stays so, and what differs then is an error."""
    said: list[Any] = []
    model = Counting()
    with libckpt.Checkpointer(store, {"model": model}, keep_last=9, rehearse=False) as ckpt:
        if rank_of() == 1:
            ckpt._planner._own_buffers._known = None
        for step in (1, 2, 3, 4):
            train("equal", model, step)
            seen = model.seen.clone()
            if step == 3:
                model.seen[2] += rank_of()
            try:
                ckpt.save(step).wait()
                said.append("saved")
            except libckpt.ReplicaMismatchError as error:
                said.append(str(error))
                model.seen.copy_(seen)
        names = sorted(ckpt._planner._own_buffers._last[1].names)
    kept = buffers_of(model)
    model = Counting()
    with libckpt.Checkpointer(store, {"model": model}, rehearse=False) as ckpt:
        ckpt.resume()
    return [said, names, same(buffers_of(model), kept)]


def large(store: Path) -> str:
    """More than are each rank's own."""
    _buffers.MOST = 64
    model = Net()
    train("no_wrapper", model, 1)
    with libckpt.Checkpointer(store, {"model": model}, rehearse=False) as ckpt:
        try:
            ckpt.save(1).wait()
        except libckpt.ReplicaMismatchError as error:
            return str(error)
    return "saved"


def two_ways(store: Path) -> list[Any]:
    return [unknowing(store / "a"), large(store / "b")]


def test_ranks_may_know_different_things(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    for rank, (found, text) in enumerate(together(2, tmp_path, two_ways, store)):
        said, names, back = found
        assert said[:2] == ["saved", "saved"]
        assert "'seen'" in said[2]
        assert "per_rank=" in said[2]
        assert said[3] == "saved"
        assert bool(names) == (rank == 1)
        assert back
        assert "'norm." in text
        assert "per_rank=" in text


def test_a_gpus_buffers_are_compared_as_copies_that_the_library_reads() -> None:
    """Of memory of a GPU it reads some lines only."""
    value = torch.arange(5.0)
    what = describe(value)
    known = [lib.CKPT_OWN_UNKNOWN]
    own = _buffers.OwnBuffers(Ranks(1, 2), Groups(2), lambda _: known[0])
    buffers = [_buffers.Buffer("b", value, what._replace(gpu=0), None, False)]
    plan = own.plan(buffers, [("c", "b")], lambda name: name == "rank-00001/b")
    assert plan.names == {"b": "rank-00001/b~2", "c": "rank-00001/b~2"}
    ((group, block),) = plan.alike
    assert plan.groups == {group: lib.CKPT_OWN_UNKNOWN}
    assert not block.gpus
    assert torch.equal(plan.keep[0], value)
    assert plan.blocks[0].gpus == {0}
    statistics = [buffers[0]._replace(is_statistic=True)]
    plan = own.plan(statistics, [], lambda _: False)
    assert (plan.names, plan.alike, plan.keep) == ({"b": "rank-00001/b"}, [], [])
    for known[0] in (lib.CKPT_OWN_DIFFERS, lib.CKPT_OWN_NONE):
        plan = own.plan(buffers, [], lambda _: False)
        assert bool(plan.names) == bool(plan.blocks) == (known[0] == lib.CKPT_OWN_DIFFERS)
        assert plan.alike[0][1].gpus == {0}
        assert plan.groups == {group: known[0]}


def test_groups_of_own_buffers_are_compared_before_others() -> None:
    """With more groups than are compared no rank may drop one that others learn from."""
    block = Block([b"b"], [describe(torch.zeros(1))], [False])
    walked = dict.fromkeys(range(16), block)
    with pytest.warns(libckpt.CheckpointWarning, match="17 groups"):
        joined = Slow().join(walked, {}, [(99, block)], {99: lib.CKPT_OWN_UNKNOWN})
    assert {group for group, _ in joined} == {*range(15), 99}


@pytest.mark.parametrize(
    "said",
    [None, 5, [], {"names": None}, {"names": {"b": 1}}, {"layout": "x"}, {"names": [5, [], {}]}],
)
def test_what_a_step_says_of_them_may_be_anything(said: Any) -> None:
    assert _buffers.said_of({"own_buffers": said}).names == frozenset()
    assert _buffers.said_of(None).names == frozenset()
    assert _buffers.said_of({"own_buffers": {"names": ["b", 7], "layout": 5}}) == ("", {"b"})
