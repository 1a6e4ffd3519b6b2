# SPDX-License-Identifier: Apache-2.0
"""What ranks hold alike is saved once, and never when it is not alike."""

from __future__ import annotations

import functools
import json
import struct
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import step_directory
from node_rig import TOOLS
from ranks import together
from small_models import State, data, linear, local_state, trained
from stock_digest import digest
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import libckpt


class Talker(torch.nn.Linear):
    """Only it knows its state_dict()."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return super().state_dict(*args, **more)


class Own:
    """An object of one's own is each rank's own."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def state_dict(self) -> State:
        return {"value": self.value}

    def load_state_dict(self, state: State) -> None:
        self.value.copy_(state["value"])


def equal(rank: int) -> State:
    return {**trained(linear(1), data(1)), "scale": torch.ones(3), "none": torch.ones(0)}


def ddp(rank: int) -> State:
    model = DistributedDataParallel(torch.nn.Sequential(linear(1), torch.nn.BatchNorm1d(40)))
    return trained(model, data(rank), data(10 + rank))


def statistics(rank: int) -> State:
    return {"model": trained(DistributedDataParallel(ddp(rank)["model"].module))["model"].module}


def experts(rank: int) -> State:
    return trained(linear(rank), data(1))


def moments(rank: int) -> State:
    state = trained(linear(1), data(1))
    for entry in state["optimizer"].state.values():
        entry["exp_avg_sq"] += rank
    return state


def one_element(rank: int) -> State:
    model = linear(1, size=300)
    with torch.no_grad():
        model.weight[123, 45] += rank == 1
    return {"model": model}


def in_the_state(rank: int) -> State:
    return {"model": linear(1), "mean": torch.tensor([1.0, rank])}


def own_say(rank: int) -> State:
    torch.manual_seed(rank)
    return {"model": Talker(8, 8)}


def replicas(rank: int) -> State:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    local = torch.full((6,), float(rank > 0))
    return {"w": DTensor.from_local(local, mesh, [Replicate()], run_check=False)}


def shards(rank: int) -> State:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    local = torch.full((6,), float(rank))
    return {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)}


def per_rank(rank: int) -> State:
    value = torch.full((4,), float(rank))
    return {"model": linear(1), "own": libckpt.PerRank(value), "object": Own(value.clone())}


#: what is alike, or meant to differ; what is not
GOOD = [equal, ddp, statistics, shards, per_rank, local_state]
BAD = [experts, moments, one_element, in_the_state, own_say, replicas]


def save_one(store: Path, build: Callable[[int], State], **options: Any) -> str:
    """What a save comes to, as text."""
    state = build(dist.get_rank())
    with libckpt.Checkpointer(store, state, **options) as ckpt:
        try:
            ckpt.save(1).wait()
        except libckpt.CheckpointError as error:
            return f"{type(error).__name__}: {error}"
    return "saved"


def save_all(place: Path) -> dict[str, str]:
    return {case.__name__: save_one(place / case.__name__, case) for case in GOOD + BAD}


def test_what_is_not_alike_is_saved_for_nobody(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    said = together(3, tmp_path, save_all, store)
    for case in GOOD:
        assert [found[case.__name__] for found in said] == ["saved"] * 3
    named = {
        "experts": "weight",
        "moments": "exp_avg_sq'",
        "one_element": "rank 1 of the 3 ranks that hold it holds other bytes of 'weight' than",
        "in_the_state": "'mean'",
        "own_say": "hold different bytes of '",
        "replicas": "rank 0 of the 3 ranks that hold it holds other bytes of 'w' than",
    }
    for case in BAD:
        for found in said:
            text = found[case.__name__]
            assert text.startswith("ReplicaMismatchError: "), (case.__name__, text)
            assert named[case.__name__] in text
            assert "replicas=" in text
        with pytest.raises(libckpt.StepNotFoundError):
            libckpt.load(store / case.__name__)


def get_back(store: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rank = dist.get_rank()
    state = ddp(rank + 50)
    with libckpt.Checkpointer(store, state) as ckpt:
        assert ckpt.resume() == 1
    norm = state["model"].module[1]
    return norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()


def statistics_of(rank: int) -> tuple[torch.Tensor, ...]:
    norm = ddp(rank)["model"].module[1]
    return norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()


def save_and_look(store: Path) -> tuple[torch.Tensor, ...]:
    state = ddp(dist.get_rank())
    with libckpt.Checkpointer(store, state) as ckpt:
        ckpt.save(1).wait()
    norm = state["model"].module[1]
    return norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()


def test_statistics_of_batches_are_all_of_rank_0(store: Path, tmp_path: Path) -> None:
    """Mean and variance of one rank, and not the mean of one with the variance of another."""
    were = together(3, tmp_path, save_and_look, store)
    assert not torch.equal(were[0][0], were[1][0])
    for found in together(3, tmp_path, get_back, store):
        assert all(map(torch.equal, found, were[0]))


class Moving(torch.nn.Module):
    """Has buffers that are other tensors after each step, and a say of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(1)
        self.linear.register_buffer("seen", torch.zeros(3))
        self.register_buffer("copied", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.seen = self.linear.seen + x.mean()
        self.copied = self.copied + x.mean()
        return self.linear(x)  # type: ignore[no-any-return]

    def state_dict(self, *args: Any, **more: Any) -> Any:
        state = super().state_dict(*args, **more)
        state["copied"] = state["copied"].clone()
        state["renamed"] = state.pop("linear.seen")
        return state


class Local(Moving):
    """Gives something of this rank under the name of a buffer. Rank 0's may be as the buffer is."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def state_dict(self, *args: Any, **more: Any) -> Any:
        state = super().state_dict(*args, **more)
        state["copied"] = torch.full((3,), 1.0 * self.last)
        return state


def said_of_local(store: Path) -> dict[int, str]:
    said = {}
    for more in (0, 1):
        model = DistributedDataParallel(Local(dist.get_rank() + more))
        with libckpt.Checkpointer(store / f"{more}", {"model": model}, pool_bytes=1 << 20) as ckpt:
            try:
                ckpt.save(1).wait()
            except libckpt.CheckpointError as error:
                said[more] = f"{type(error).__name__}: {error}"
    return said


def test_what_is_called_like_a_buffer_of_rank_0_is_not_lost(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    for said in together(2, tmp_path, said_of_local, store):
        for more in (0, 1):
            assert "MismatchError: " in said[more]
        assert "'copied'" in said[1]


def save_moving(store: Path) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = DistributedDataParallel(Moving())
    with libckpt.Checkpointer(store, {"model": model}, pool_bytes=1 << 20) as ckpt:
        for step in (1, 2, 3):
            model(data(dist.get_rank() + step))
            ckpt.save(step).wait()
    return [model.module.linear.seen.clone(), model.module.copied.clone()]


def test_a_buffer_that_is_replaced_is_still_that_of_rank_0(store: Path, tmp_path: Path) -> None:
    were = together(2, tmp_path, save_moving, store)
    assert not torch.equal(were[0][0], were[1][0])
    found = libckpt.load(store)["model"]
    assert torch.equal(found["renamed"], were[0][0])
    assert torch.equal(found["copied"], were[0][1])


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]


def save_twice(store: Path) -> tuple[Any, list[str]]:
    return warned(lambda: save_one(store, experts, replicas="warn"))


def resume_it(store: Path) -> tuple[Any, list[str]]:
    with libckpt.Checkpointer(store, experts(5), replicas="warn") as ckpt:
        return warned(ckpt.resume)


def test_who_wants_only_a_warning_gets_it_and_again_at_the_resume(
    store: Path, tmp_path: Path
) -> None:
    for found, said in together(2, tmp_path, save_twice, store):
        assert found == "saved"
        assert len(said) == 1
        assert "rank 1 and rank 0 hold different bytes of" in said[0]
    for found, said in together(2, tmp_path, resume_it, store):
        assert found == 1
        assert len(said) == 1
        assert "rank 1 and rank 0 hold different bytes of" in said[0]
    for names in (None, ["*"]):
        _, said = warned(lambda names=names: libckpt.load(store, names=names))
        assert len(said) == 1
        assert "rank 1 and rank 0 hold different bytes of" in said[0]
    checked = subprocess.run(
        [TOOLS / "ckpt-verify", store], capture_output=True, text=True, check=True
    )
    assert "committed although rank 1 and rank 0 hold different bytes of" in checked.stdout


def stages(mesh: Any, step: int) -> State:
    """Two stages of a pipeline with equal names, each sharded over two ranks; alike at first."""
    rank = dist.get_rank()
    local = torch.arange(6.0) + 10 * (rank % 2) + (rank // 2) * (step - 1)
    return {
        "large": DTensor.from_local(local.repeat(1 << 16), mesh, [Shard(0)], run_check=False),
        "b": DTensor.from_local(local, mesh, [Shard(0)], run_check=False),
        "a": DTensor.from_local(torch.ones(6), mesh, [Shard(0)], run_check=False),
    }


def save_three(store: Path, mesh: Any, how: str) -> dict[int, str]:
    """What each save comes to."""
    said = {}
    options: State = {"replicas": how, "keep_last": 9}
    with libckpt.Checkpointer(store, **options) as ckpt:
        for step in (1, 2, 3):
            state = stages(mesh, step)
            try:
                ckpt.save(step, state).wait()
                said[step] = "saved"
            except libckpt.ReplicaMismatchError as error:
                said[step] = str(error)
    return said


def save_beside(store: Path, mesh: Any) -> None:
    """Small tensors, each beside one of its rank's own. They have digests of their own."""
    state = {"b": stages(mesh, 1)["b"], "own": libckpt.PerRank(torch.ones(3))}
    with libckpt.Checkpointer(store, state) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait()


def save_overlapping(store: Path, mesh: Any) -> None:
    """One stage has halves of it, the other one all: no digest is of what both hold."""
    mine = torch.arange(6.0) + 10 * (dist.get_rank() % 2)
    whole = torch.cat([torch.arange(6.0), torch.arange(6.0) + 10])
    halves = dist.get_rank() < 2
    local, placement = (mine, Shard(0)) if halves else (whole, Replicate())
    state = {"b": DTensor.from_local(local, mesh, [placement], run_check=False)}
    with libckpt.Checkpointer(store, state) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait()


def save_statistics(store: Path, mesh: Any) -> None:
    """Those of batches are of each group's own, in a chunk without a name of its rank."""
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = [torch.nn.Linear(256, 256) for _ in range(10)]
    model = torch.nn.Sequential(*layers[:5], torch.nn.BatchNorm1d(256), *layers[5:])
    fully_shard(model, mesh=mesh)
    model[5].running_mean += dist.get_rank()
    with libckpt.Checkpointer(store, {"model": model}) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait()


def save_stages(place: Path) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))["shard"]
    checked = warned(functools.partial(save_three, place / "check", mesh, "check"))
    tolerated = warned(functools.partial(save_three, place / "warn", mesh, "warn"))
    beside = warned(functools.partial(save_beside, place / "beside", mesh))
    overlapping = warned(functools.partial(save_overlapping, place / "overlapping", mesh))
    batches = warned(functools.partial(save_statistics, place / "batches", mesh))
    with libckpt.Checkpointer(place / "warn", stages(mesh, 7), replicas="warn") as ckpt:
        return [checked, tolerated, beside, overlapping, batches, warned(ckpt.resume)]


def test_equal_names_on_disjoint_meshes_are_one_tensor_or_refused(
    store: Path, tmp_path: Path
) -> None:
    """Whoever resumes would get one stage's on both."""
    store.mkdir()
    text = "rank 2 and rank 0 hold different bytes of 'b', and ranks differ in 'large'"
    found_by_all = together(4, tmp_path, save_stages, store)
    for rank, (checked, tolerated, beside, *others, again) in enumerate(found_by_all):
        said, warnings_of_check = checked
        assert said[1] == "saved"
        for step in (2, 3):
            assert text in said[step]
            assert "alike at step 1" in said[step]
        assert warnings_of_check == []
        said, found = tolerated
        assert said == dict.fromkeys((1, 2, 3), "saved")
        assert [words.partition(",")[0] for words in found] == [
            "step 2 is saved",
            "step 3 is saved",
        ]
        assert all(text in words for words in found)
        assert beside[1] == []
        # What cannot be compared is said once, to a program that reads no log.
        (_, found), (_, found_of_statistics) = others
        assert len(found) == (rank == 0)
        assert all("several ranks save the same part" in words for words in found)
        assert all("'b' of ranks 0 and " in words for words in found)
        # What is meant to differ is not told.
        assert found_of_statistics == []
        resumed, found = again
        assert resumed == 3
        assert len(found) == 1
        assert text in found[0]
    assert [info.step for info in libckpt.list_steps(store / "check")] == [1]
    verified = subprocess.run(
        [TOOLS / "ckpt-verify", store / "warn"], capture_output=True, text=True, check=True
    )
    assert "step 1: committed although" not in verified.stdout
    for step in (2, 3):
        assert f"step {step}: committed although {text}" in verified.stdout


class Parallel(torch.nn.Module):
    """Two layers that tensor parallelism cuts, and a norm that it leaves plain."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
        self.down = torch.nn.Linear(8, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(self.up(x).relu()))


def tensor_parallel(mesh: Any, seed: int) -> State:
    """Nothing says that the ranks along "dp" hold the same."""
    torch.manual_seed(seed)
    model = Parallel()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), foreach=False)}


def train_parallel(state: State, mesh: Any, step: int) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank() // 2))
    state["model"](x).square().mul(torch.arange(4.0)).mean().backward()
    for p in state["model"].parameters():
        grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(grad, group=mesh["dp"].get_group())
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def local_bits(state: State) -> dict[str, bytes]:
    """What this rank has of everything."""
    found: dict[str, Any] = dict(state["model"].named_parameters())
    names = {p: name for name, p in state["model"].named_parameters()}
    for p, entry in state["optimizer"].state.items():
        found.update({f"{names[p]}/{role}": value for role, value in entry.items()})
    return {
        name: (t.to_local() if isinstance(t, DTensor) else t).detach().numpy().tobytes()
        for name, t in found.items()
    }


def save_parallel(store: Path) -> tuple[dict[int, str], bool]:
    """What each save comes to, and whether the last one comes back."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state = tensor_parallel(mesh, 1)
    said = {}
    with libckpt.Checkpointer(store, state, keep_last=9) as ckpt:
        for step in range(1, 6):
            train_parallel(state, mesh, step)
            entries = state["optimizer"].state
            moment = entries[state["model"].down.weight]["exp_avg"].to_local()
            count = entries[state["model"].up.weight]["step"]
            kept = moment.clone(), count.clone()
            moment[1, 2] += step == 3 and rank == 3
            count += step == 4 and rank >= 2
            try:
                ckpt.save(step).wait()
                said[step] = "saved"
            except libckpt.CheckpointError as error:
                said[step] = f"{type(error).__name__}: {error}"
            moment.copy_(kept[0])
            count.copy_(kept[1])
    saved = local_bits(state)
    state = tensor_parallel(mesh, 2)
    with libckpt.Checkpointer(store, state) as ckpt:
        assert ckpt.resume() == 5
    return said, local_bits(state) == saved


def save_parallel_warned(store: Path) -> Any:
    return warned(functools.partial(save_parallel, store))


def own_digests(index: Path) -> dict[str, bool]:
    """Of each tensor whether it has a digest of its own, which is that of its bytes."""
    data = index.read_bytes()
    (size,) = struct.unpack_from("<Q", data, 48)
    shard = index.with_suffix(".safetensors").read_bytes()
    tensors = json.loads(data[72 : 72 + size])["tensors"]
    ends = [tensor["offset"] for tensor in tensors[1:]] + [len(shard)]
    for tensor, end in zip(tensors, ends, strict=True):
        if "digest" in tensor:
            assert tensor["digest"] == digest(shard[tensor["offset"] : end]).hex()
    return {tensor["name"]: "digest" in tensor for tensor in tensors}


def test_small_tensors_of_several_ranks_are_compared(store: Path, tmp_path: Path) -> None:
    """Tensor parallelism under data parallelism, with AdamW, and nothing as long as a chunk."""
    for (said, back), warnings_of_rank in together(4, tmp_path, save_parallel_warned, store):
        assert warnings_of_rank == []
        assert back
        assert [said[step] for step in (1, 2, 5)] == ["saved"] * 3
        for step, name in ((3, "down.weight/exp_avg"), (4, "up.weight/step")):
            assert said[step].startswith("ReplicaMismatchError: ")
            assert f"hold different bytes of 'optimizer/state/{name}'" in said[step]
        assert "rank 3 and rank 1 hold" in said[3]
    assert [info.step for info in libckpt.list_steps(store)] == [5, 2, 1]
    own: dict[str, bool] = {}
    for index in step_directory(store, 5).glob("*.index"):
        own.update(own_digests(index))
    # Whatever is on the mesh of some ranks has one. Of the rest one rank of all is the writer.
    for name, has in own.items():
        assert has == ("up." in name or "down." in name), name
    assert {"norm.bias", "up.weight", "optimizer/state/down.bias/step"} <= own.keys()


def save_on_nodes(place: Path) -> list[Any]:
    """Each rank is a node, and has statistics of its own data."""
    rank = dist.get_rank()
    store = place / f"node-{rank}"
    store.mkdir()
    module = torch.nn.BatchNorm1d(1 << 18)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBCKPT_NODE", store.name)
        module(torch.randn(2, 1 << 18, generator=torch.Generator().manual_seed(rank)))
        kept = module.running_mean.clone()
        with libckpt.Checkpointer(store, {"model": module}, node_store=True) as ckpt:
            for step in (1, 2):
                ckpt.save(step).wait()
            module.running_mean.zero_()
            return [ckpt.resume(), torch.equal(module.running_mean, kept)]


def save_nodes(place: Path) -> Any:
    return warned(functools.partial(save_on_nodes, place))


def test_statistics_of_each_node_are_its_own(store: Path, tmp_path: Path) -> None:
    """Two nodes write the same box, and may write different bytes of it."""
    store.mkdir()
    assert together(2, tmp_path, save_nodes, store) == [([2, True], [])] * 2


def test_more_groups_than_are_compared_are_told_once() -> None:
    from libckpt._alike import Slow
    from libckpt._tensors import Block

    slow = Slow()
    blocks = {group: Block([], [], []) for group in range(17)}
    for times in (1, 0):
        found, said = warned(lambda: slow.join(blocks, {}))
        assert len(found) == 16
        assert len(said) == times
        assert all("17 groups of ranks" in words for words in said)


def drift(store: Path) -> list[str]:
    """The optimizer's state moves to other memory meanwhile, as after load_state_dict()."""
    rank = dist.get_rank()
    state = trained(linear(1), data(1))
    said = []
    with libckpt.Checkpointer(store, state) as ckpt:
        for step in range(1, 6):
            for entry in state["optimizer"].state.values():
                entry["exp_avg"] = entry["exp_avg"] + (rank if step == 4 else 0)
            if step == 5:
                for entry in state["optimizer"].state.values():
                    entry["exp_avg"] = torch.ones_like(entry["exp_avg"])
            try:
                ckpt.save(step).wait()
                said.append("saved")
            except libckpt.ReplicaMismatchError as error:
                said.append(str(error))
    return said


def test_what_becomes_different_later_is_noticed(store: Path, tmp_path: Path) -> None:
    for said in together(2, tmp_path, drift, store):
        assert said[:3] == ["saved"] * 3
        assert "exp_avg'" in said[3]
        assert "alike at step 3" in said[3]
        assert said[4] == "saved"


def test_replicas_is_one_of_two(store: Path) -> None:
    with pytest.raises(ValueError, match="replicas"):
        libckpt.Checkpointer(store, {}, replicas="no")  # type: ignore[arg-type]
