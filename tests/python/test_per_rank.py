# SPDX-License-Identifier: Apache-2.0
"""What each rank has of its own: what `per_rank` names, and local state of what is sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import together
from small_models import Momentum, State, data, linear, local_state, trained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import libckpt


class Mixture(torch.nn.Module):
    """A router that is alike, experts of each rank's own, of which one is tied, and a buffer."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.router = linear(1)
        self.experts = torch.nn.ModuleList([linear(100 + rank), linear(200 + rank)])
        self.same = self.experts[1]
        self.experts[0].register_buffer("load", torch.full((3,), float(rank)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.router(x) + self.experts[0](x) + self.experts[1](x)


class Speaking(Mixture):
    """The same, asked for its state_dict()."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return super().state_dict(*args, **more)


OWN = ["experts.*", "same.*", "noise"]


def mixture(kind: type[Mixture], seed: int) -> State:
    state = trained(kind(dist.get_rank() + seed), data(5))
    for p in state["model"].router.parameters():
        for value in state["optimizer"].state[p].values():
            dist.broadcast(value, 0)
        dist.broadcast(p.data, 0)
    state["noise"] = torch.full((3,), float(dist.get_rank() + seed))
    return state


def flat(state: State) -> dict[str, torch.Tensor]:
    found = {n: t.detach().clone() for n, t in torch.nn.Module.state_dict(state["model"]).items()}
    found["noise"] = state["noise"].clone()
    names = {p: n for n, p in state["model"].named_parameters()}
    for p, entry in state["optimizer"].state.items():
        found.update({f"{names[p]}/{role}": t.clone() for role, t in entry.items()})
    return found


def save_mixture(store: Path, kind: type[Mixture], options: State) -> dict[str, torch.Tensor]:
    state = mixture(kind, 0)
    with libckpt.Checkpointer(store, state, per_rank=OWN, **options) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait()
        return flat(state)


def resume_mixture(
    store: Path, kind: type[Mixture], options: State
) -> tuple[dict[str, torch.Tensor], str]:
    state = mixture(kind, 1000)
    before = flat(state)
    with libckpt.Checkpointer(store, state, **options) as ckpt:
        try:
            assert ckpt.resume() == 2
        except libckpt.CheckpointError as error:
            assert all(torch.equal(t, before[n]) for n, t in flat(state).items())
            return {}, f"{type(error).__name__}: {error}"
    return flat(state), ""


@pytest.mark.parametrize("kind", [Mixture, Speaking])
def test_what_is_said_to_be_each_ranks_own_comes_back_to_it(
    store: Path, tmp_path: Path, kind: type[Mixture]
) -> None:
    options = {"eager": False, "pool_bytes": 1 << 20}
    were = together(3, tmp_path, save_mixture, store, kind, options)
    assert not torch.equal(were[0]["experts.0.weight"], were[2]["experts.0.weight"])
    found = together(3, tmp_path, resume_mixture, store, kind, {"per_rank": OWN, **options})
    for (now, why), then in zip(found, were, strict=True):
        assert why == ""
        assert now.keys() == then.keys()
        assert all(torch.equal(now[name], then[name]) for name in then)
    # What each of three had of its own is nothing for two, and nothing is changed.
    refused = together(2, tmp_path, resume_mixture, store, kind, options)
    # Whoever finds out first cancels it for the other.
    assert any(why.startswith("MismatchError: ") for _, why in refused)
    for now, why in refused:
        assert not now
        if why.startswith("MismatchError: "):
            assert "was saved by 3 ranks" in why
            assert "'experts.0.bias'" in why
    tensors = libckpt.load(store, names=["router.weight", "rank-*"])
    assert torch.equal(tensors["router.weight"], were[0]["router.weight"])
    for rank in range(3):
        name = f"rank-{rank:05d}/experts.0.weight"
        assert torch.equal(tensors[name], were[rank]["experts.0.weight"])


def test_per_rank_is_a_list_of_patterns(store: Path) -> None:
    for wrong in ("experts.*", [1]):
        with pytest.raises(TypeError, match="per_rank"):
            libckpt.Checkpointer(store, {}, per_rank=wrong)  # type: ignore[arg-type]


#: Where libraries have what shares out tensors by itself, and one class there.
OTHERS = [
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("megatron.core.optimizer.distrib_optimizer", "DistributedOptimizer"),
    ("fairscale.optim.oss", "OSS"),
    ("apex.contrib.optimizers.distributed_fused_adam", "DistributedFusedAdam"),
]


class Parts:
    """An object with a state, as such libraries have for optimizers."""

    def state_dict(self) -> dict[str, Any]:
        return {"part": torch.zeros(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def refused(place: Path) -> dict[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Sequential(linear(1))
    fsdp = FullyShardedDataParallel(linear(1), device_id=torch.device("cpu"))
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    bad = {"fsdp": {"model": torch.nn.Sequential(fsdp)}, "zero": {"model": model, "o": zero}}
    for library, kind in OTHERS:
        bad[library] = {"deep": [{"er": type(kind, (Parts,), {"__module__": library})()}]}
    hollow = linear(1)
    hollow.weight.ds_tensor = torch.zeros(1)
    bad["zero3"] = {"o": torch.optim.SGD(hollow.parameters())}
    said = {}
    for name, state in bad.items():
        for how in ("constructor", "save"):
            given = state if how == "constructor" else None
            try:
                with libckpt.Checkpointer(place / name, given) as ckpt:
                    ckpt.save(1, state)
            except libckpt.UnsupportedStateError as error:
                said[f"{name} {how}"] = str(error)
    return said


def test_what_hides_its_shards_is_refused_by_its_class(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    for said in together(2, tmp_path, refused, store):
        for how in ("constructor", "save"):
            assert "FullyShardedDataParallel (FSDP1)" in said[f"fsdp {how}"]
            assert "fully_shard()" in said[f"fsdp {how}"]
            assert "state['o'] is, or has in it, a ZeroRedundancyOptimizer" in said[f"zero {how}"]
            for library, kind in OTHERS:
                assert (
                    f"state['deep'][0]['er'] is, or has in it, a {kind}" in said[f"{library} {how}"]
                )
            assert "a parameter of DeepSpeed's ZeRO-3" in said[f"zero3 {how}"]


def test_per_rank_holds_tensors_and_no_modules() -> None:
    model = linear(1)
    for value in (model, torch.optim.SGD(model.parameters())):
        with pytest.raises(libckpt.UnsupportedStateError, match="per_rank="):
            libckpt.PerRank(value)
    own = libckpt.PerRank(model.weight)
    own.load_state_dict({"value": torch.ones(40, 40)})
    assert own.value is model.weight
    assert bool((model.weight == 1).all())


def parts(state: State) -> list[torch.Tensor]:
    """All of every parameter and of its momentum."""
    found = []
    for p, entry in state["optimizer"].state.items():
        found += [p, entry["m"]]
        if isinstance(p, DTensor):
            assert type(entry["m"]) is torch.Tensor
            local = DTensor.from_local(
                entry["m"], p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
            )
            found[-2:] = [p.full_tensor(), local.full_tensor()]
        assert float(entry["norm"]) == 7
    return [tensor.detach().clone() for tensor in found]


def save_local(store: Path) -> list[torch.Tensor]:
    state = local_state(dist.get_rank())
    with libckpt.Checkpointer(store, state, eager=False) as ckpt:
        for step in (1, 2):
            for entry in state["optimizer"].state.values():
                entry["m"] = entry["m"] + step
            ckpt.save(step).wait()
        return parts(state)


def resume_local(store: Path, fresh: bool) -> list[torch.Tensor]:
    state = local_state(50)
    if fresh:
        state["optimizer"] = Momentum(state["model"].parameters())
    with libckpt.Checkpointer(store, state) as ckpt:
        assert ckpt.resume() == 2
    return parts(state)


class Scaled(torch.optim.Optimizer):
    """Its state has one element, as a parameter has that one rank holds all of."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["scale"] = torch.full((1,), 3.0)


def save_odd_ones(place: Path) -> dict[str, str]:
    said = {}
    rank = dist.get_rank()
    one = torch.nn.Linear(6, 1)
    fully_shard(one)
    scaled = Scaled(one.parameters())
    scaled.step()
    both = local_state(rank)
    with libckpt.Checkpointer(place / "one", {"model": one, "optimizer": scaled}) as ckpt:
        ckpt.save(1).wait()
        said["one"] = "saved"
    # Of each rank's own by the user's word, though it has the local shape, and replicas besides.
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts"))
    hybrid = fully_shard(linear(1, size=43), mesh=mesh)
    momentum = Momentum(hybrid.parameters())
    hybrid(torch.ones(2, 43)).sum().backward()
    momentum.step()
    for entry in momentum.state.values():
        entry["m"] += rank
    state = {"model": hybrid, "optimizer": momentum, "both": both["model"]}
    with libckpt.Checkpointer(place / "own", state, per_rank=["optimizer/*/m"]) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait()
        said["own"] = "saved"
    return said


def test_what_has_the_local_shape_by_chance_or_is_ones_own(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    for said in together(2, tmp_path, save_odd_ones, store):
        assert said == {"one": "saved", "own": "saved"}


def test_local_state_of_a_sharded_parameter_is_sharded_like_it(store: Path, tmp_path: Path) -> None:
    were = together(2, tmp_path, save_local, store)[0]
    for world, fresh in ((2, True), (3, False), (1, True)):
        for now in together(world, tmp_path, resume_local, store, fresh):
            assert all(map(torch.equal, now, were))
    assert libckpt.load(store)["optimizer"]["state"]["0.weight"]["m"].shape == (43, 43)
