# SPDX-License-Identifier: Apache-2.0
"""States of several ranks as people have them: cases of one kind in one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import bits
from ranks import full, together
from test_states_parts import Coded, coded
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import libckpt

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class App:
    """As torch's recipe has it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parts = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            *self.parts, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )


class Average:
    """An average of the weights. It begins as the weights themselves."""

    def __init__(self, model: nn.Module, lent: bool) -> None:
        self.kept = {
            name: one.detach() if lent else one.detach().clone()
            for name, one in model.state_dict().items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "decay": 0.9}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = dict(state["kept"])


class Container(torch.optim.Optimizer):
    """As torchtitan's: flat, by names."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.inner = model, torch.optim.AdamW(model.parameters(), lr=0.1)
        super().__init__(model.parameters(), {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> Any:
        return get_optimizer_state_dict(self.model, self.inner, options=FLAT)

    def load_state_dict(self, state: Any) -> None:
        set_optimizer_state_dict(self.model, self.inner, optim_state_dict=state, options=FLAT)


class Other(torch.optim.SGD):
    """Has more in its state_dict() than torch's have."""

    def __init__(self, params: Any, more: Any) -> None:
        super().__init__(params, lr=0.1)
        self.more = more

    def state_dict(self) -> Any:
        return {**super().state_dict(), "more": self.more}


class Unasked:
    """Has no DTensors, and no answer before it was loaded."""

    def __init__(self, ready: bool) -> None:
        self.ready = ready

    def state_dict(self) -> dict[str, Any]:
        assert self.ready
        return {"t": torch.ones(2)}

    def load_state_dict(self, _state: Any) -> None:
        self.ready = True


def hook(_module: Any, state: Any, prefix: str, _meta: Any) -> None:
    """A hook that changes nothing."""


KINDS = ("app", "average", "lent", "lent, app", "container", "hooks", "wrapped")


def build(kind: str, seed: int) -> tuple[dict[str, Any], nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    # Of three rows one rank has one only, like a scale.
    model: Any = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3 if kind == "coded" else 5))
    if kind == "wrapped":
        model[0] = checkpoint_wrapper(torch.compile(model[0], backend="eager"))
    if kind == "hooks":
        model[1]._register_state_dict_hook(hook)
    if dist.is_initialized():
        fully_shard(model[0])
        fully_shard(model)
    optimizer = Container(model) if kind == "container" else torch.optim.AdamW(model.parameters())
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if kind == "app":
        state = {"app": App(model, optimizer)}
    elif kind == "lent, app":
        state = {"average": Average(model, True), "app": App(model, optimizer)}
    elif kind in ("average", "lent"):
        state["average"] = Average(model, kind == "lent")
    return state, model, optimizer


def step(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if "average" in state:
        now = model.state_dict()
        state["average"].kept = {
            name: one.detach().lerp(now[name], 0.1) for name, one in state["average"].kept.items()
        }
    # Whole parameters stand in the place of the sharded ones afterwards.
    with torch.no_grad():
        model(torch.ones(2, 5))


def truth(
    state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, bytes]:
    found = {f"model.{name}": full(one) for name, one in model.state_dict().items()}
    inner = getattr(optimizer, "inner", optimizer)
    for number, parameter in enumerate(inner.param_groups[0]["params"]):
        for role, value in inner.state[parameter].items():
            found[f"optimizer.{number}.{role}"] = full(value)
    if "average" in state:
        found.update((f"average.{name}", full(one)) for name, one in state["average"].kept.items())
    return {name: bits(value) for name, value in found.items()}


def coded_state(optimizer: torch.optim.Optimizer) -> list[bytes]:
    """Quantized moments in DTensors: what this rank has of them."""
    entries = [optimizer.state[one]["exp_avg"] for one in optimizer.param_groups[0]["params"]]
    assert all(type(one._local_tensor) is Coded for one in entries)
    parts = [one._local_tensor for one in entries]
    return [bits(part) for one in parts for part in (one.codes, one.scale)]


def train_coded(place: Path) -> list[bytes]:
    state, model, optimizer = build("coded", 1)
    state["plain"] = Unasked(ready=True)
    torch.manual_seed(dist.get_rank())
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        local = coded(*parameter._local_tensor.shape)
        how = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
        spread = DTensor.from_local(local, parameter.device_mesh, parameter.placements, **how)
        optimizer.state[parameter] = {"exp_avg": spread, "step": torch.tensor(1.0)}
    with libckpt.Checkpointer(place / "coded", state, pool_bytes=1 << 20) as ckpt:
        ckpt.resume()
        ckpt.save(1).wait()
        # An object is handed what it had, and nobody could make this.
        held = {"held": Average(nn.Linear(2, 2), False)}
        held["held"].kept = {"x": spread}
        other = {**state, "optimizer": Other(model.parameters(), spread)}
        for wrong in (held, other):
            with pytest.raises(libckpt.UnsupportedStateError, match="not be handed"):
                ckpt.save(2, wrong)
    return coded_state(optimizer)


def resume_coded(place: Path) -> tuple[list[bytes], str]:
    """On the same mesh, and what is said on another."""
    state, _, optimizer = build("coded", 2)
    state["plain"] = Unasked(ready=False)
    with libckpt.Checkpointer(place / "coded", state, pool_bytes=1 << 20) as ckpt:
        if not dist.is_initialized():
            with pytest.raises(libckpt.MismatchError) as caught:
                ckpt.resume()
            return [], str(caught.value)
        assert ckpt.resume() == 1
        found = coded_state(optimizer)
        # Once more, in place.
        kept = [entry["exp_avg"] for entry in optimizer.state.values()]
        for one in kept:
            one._local_tensor.codes.zero_()
            one._local_tensor.scale.zero_()
        ckpt.resume()
        now = [entry["exp_avg"] for entry in optimizer.state.values()]
        assert all(a is b for a, b in zip(kept, now, strict=True))
        assert coded_state(optimizer) == found
    return found, ""


class Told(nn.Module):
    """Its extra state is a DTensor whose size changes."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.rows = distribute_tensor(torch.arange(float(rows)), mesh, [Shard(0)])

    def get_extra_state(self) -> Any:
        return self.rows

    def set_extra_state(self, state: Any) -> None:
        self.rows = state


class Frozen(nn.Module):
    """A weight in a DTensor that wraps tensors, with a momentum that does not."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        weight = DTensor.from_local(coded(2, 4), mesh, [Shard(0)], run_check=False)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def moment(self) -> Any:
        whole = torch.arange(4.0 * 2 * dist.get_world_size()).view(-1, 4)
        return distribute_tensor(whole, self.weight.device_mesh, [Shard(0)])


def expert(seed: int) -> tuple[dict[str, Any], tuple[Any, Coded]]:
    """Each rank has an expert of its own: its weight, and the moment of that, are quantized."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"out": nn.Linear(2, 2), "experts": nn.Module()})
    torch.manual_seed(seed)
    weight, moment = nn.Parameter(coded(2, 4), requires_grad=False), coded(2, 4)
    model["experts"].weight = weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[weight] = {"exp_avg": moment}
    return {"model": model, "o": optimizer}, (weight, moment)


def store_of(place: Path, state: dict[str, Any]) -> libckpt.Checkpointer:
    return libckpt.Checkpointer(place, state, pool_bytes=1 << 20, per_rank=["experts.weight"])


def train_special(place: Path) -> list[bytes]:
    frozen = Frozen()
    frozen.optimizer.state[frozen.weight] = {"buf": frozen.moment()}
    state, parts = expert(dist.get_rank())
    told = {"model": Told(4)}
    whole = {"model": frozen, "o": frozen.optimizer}
    for name, one in (("expert", state), ("told", told), ("frozen", whole)):
        with store_of(place / name, one) as ckpt:
            ckpt.save(1).wait()
    return [bits(one) for part in parts for one in (part.codes, part.scale)]


def resume_special(place: Path) -> list[bytes]:
    state, parts = expert(10 + dist.get_rank() if dist.is_initialized() else 10)
    with store_of(place / "expert", state) as ckpt:
        if not dist.is_initialized():
            with pytest.raises(
                libckpt.MismatchError, match=r"'experts\.weight/codes'.*exp_avg/scale.*per_rank"
            ):
                ckpt.resume()
            return []
        ckpt.resume()
    told, frozen = Told(6), Frozen()
    whole = {"model": frozen, "o": frozen.optimizer}
    for name, one in (("told", {"model": told}), ("frozen", whole)):
        with store_of(place / name, one) as ckpt:
            ckpt.resume()
    assert torch.equal(full(told.rows), torch.arange(4.0))
    found = frozen.optimizer.state[frozen.weight]["buf"]
    assert torch.equal(full(found), full(frozen.moment()))
    return [bits(one) for part in parts for one in (part.codes, part.scale)]


def train_all(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"coded": train_coded(place), "special": train_special(place)}
    for kind in KINDS:
        parts = build(kind, 1)
        # Nothing has looked at the modules before the first save.
        with libckpt.Checkpointer(place / kind, parts[0], pool_bytes=1 << 20) as ckpt:
            for _ in range(2):
                step(*parts)
            ckpt.save(2).wait()
            then = truth(*parts)
        step(*parts)
        found[kind] = then, truth(*parts)
    return found


def resume_all(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"coded": resume_coded(place), "special": resume_special(place)}
    for kind in KINDS:
        parts = build(kind, 2)
        with libckpt.Checkpointer(place / kind, parts[0], pool_bytes=1 << 20) as ckpt:
            assert ckpt.resume() == 2
        then = truth(*parts)
        step(*parts)
        kinds = {type(one).__name__ for one in parts[1].parameters()}
        if "average" in parts[0]:
            kinds |= {type(one).__name__ for one in parts[0]["average"].kept.values()}
        found[kind] = then, truth(*parts), kinds
    return found


def test_what_is_spread_over_ranks_comes_back_spread(tmp_path: Path) -> None:
    saved = together(2, tmp_path, train_all, tmp_path)
    for world in (2, 1):
        for rank, found in enumerate(together(world, tmp_path, resume_all, tmp_path)):
            moments, said = found["coded"]
            assert moments == (saved[rank]["coded"] if world == 2 else [])
            assert ("comes back there only" in said) == (world == 1)
            assert found["special"] == (saved[rank]["special"] if world == 2 else [])
            for kind in KINDS:
                then, after, kinds = found[kind]
                assert then == saved[0][kind][0], (world, kind)
                if world == 2:
                    assert after == saved[0][kind][1], kind
                    assert kinds <= {DTensor.__name__, "Parameter"}, kind
    for shard in tmp_path.glob("*/g*/step-*/rank-*.safetensors"):
        assert shard.stat().st_size < 40_000
