# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline that are resumed as other stages: more of them, fewer, or none."""

from __future__ import annotations

import functools
import shutil
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import bits
from libckpt._reader import Reader
from libckpt._takers import Takers
from libckpt._views import Source, United, unite_optimizer
from ranks import full, together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import libckpt

State = dict[str, Any]

LAYERS = 4


class Layer(nn.Module):
    """With a plain buffer, and a value that is no tensor."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        # Not all have biases, so that in some stages a group has no parameters.
        self.up = nn.Linear(5, 3 + number, bias=number % 2 == 1)
        self.down = nn.Linear(3 + number, 5, bias=number % 2 == 1)
        self.register_buffer("count", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += self.number
        return self.down(self.up(x))  # type: ignore[no-any-return]


class Noted(Layer):
    """Has extra state."""

    seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Asked(torch.optim.AdamW):
    """Has a say of its own."""

    def state_dict(self) -> Any:
        return super().state_dict()


#: What the optimizers and layers are.
KINDS: dict[str, tuple[type[Layer], type[torch.optim.Optimizer]]] = {
    "walked": (Layer, torch.optim.AdamW),
    "asked": (Noted, Asked),
    "plain": (Layer, torch.optim.AdamW),
    "plainasked": (Noted, Asked),
}


def rank_of() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_of() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def mine_of(stages: int) -> list[int]:
    """The layers of this rank's stage."""
    size = LAYERS // stages
    stage = rank_of() * stages // world_of()
    return list(range(stage * size, (stage + 1) * size))


@functools.lru_cache
def mesh_of(stages: int, world: int) -> Any:
    """The ranks of this rank's stage."""
    if stages == 1:
        return init_device_mesh("cpu", (world,))
    return init_device_mesh("cpu", (stages, world // stages), mesh_dim_names=("pp", "dp"))["dp"]


def build(kind: str, stages: int, seed: int, layers: Sequence[int] | None = None) -> State:
    """This rank's stage: FSDP2 on a mesh of the stage's ranks, and an optimizer of two groups."""
    made, optimizer = KINDS[kind]
    torch.manual_seed(seed)
    every = {f"layer{n}": made(n + 1) for n in range(LAYERS)}
    chosen = mine_of(stages) if layers is None else layers
    model = nn.ModuleDict({f"layer{n}": every[f"layer{n}"] for n in chosen})
    world = world_of()
    if world > 1 and not kind.startswith("plain"):
        mesh = mesh_of(stages, world)
        for layer in model.values():
            fully_shard(layer, mesh=mesh)
    decay = [one for name, one in model.named_parameters() if name.endswith("weight")]
    rest = [one for name, one in model.named_parameters() if name.endswith("bias")]
    groups: list[Any] = [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
    return {"model": model, "optimizer": optimizer(groups, lr=0.1 / seed), "done": seed}


def train(state: State) -> None:
    """Each layer by itself, so that no stage needs another one."""
    for name, layer in state["model"].items():
        for _ in range(1 + int(name[-1])):  # so that the counts of steps differ, too
            layer(torch.arange(30.0).reshape(6, 5).sin()).square().mean().backward()
            state["optimizer"].step()
            state["optimizer"].zero_grad()
        if isinstance(layer, Noted):
            layer.seen += 10 + layer.number


def truth(state: State) -> dict[str, bytes]:
    """All that there is of this rank's stage, as wholes."""
    model, optimizer = state["model"], state["optimizer"]
    for layer in model.values():
        if hasattr(layer, "reshard"):
            layer.reshard()
    found = {name: bits(full(one)) for name, one in model.named_buffers()}
    names = {one: name for name, one in model.named_parameters()}
    for one, name in names.items():
        found[name] = bits(full(one))
        found.update(
            (f"{name}/{role}", bits(full(value))) for role, value in optimizer.state[one].items()
        )
    for number, group in enumerate(optimizer.param_groups):
        said = repr({key: value for key, value in group.items() if key != "params"}).encode()
        found[f"group {number}"] = said
        found.update((f"{names[one]}/group", said) for one in group["params"])
    for name, layer in model.items():
        found[f"{name}/seen"] = repr(getattr(layer, "seen", 0)).encode()
    return found


def opened(store: Path, state: State, **options: Any) -> libckpt.Checkpointer:
    return libckpt.Checkpointer(store, state, pool_bytes=1 << 20, **options)


def save(place: Path) -> dict[str, dict[str, bytes]]:
    saved = {}
    for kind, stages in STORES:
        state = build(kind, stages, 1)
        train(state)
        with opened(place / f"{kind}-{stages}", state) as ckpt:
            ckpt.save(7).wait()
        saved[f"{kind}-{stages}"] = truth(state)
    return saved


STORES = [("walked", 1), ("walked", 2), ("walked", 4), ("asked", 2)]
STORES += [("plain", 1), ("plain", 2), ("plainasked", 4)]
#: as how many stages each of them is resumed
MOVES = {
    "walked-1": [2],
    "walked-2": [4, 1],
    "walked-4": [2],
    "asked-2": [4],
    "plain-1": [4],
    "plain-2": [2, 4, 1],
    "plainasked-4": [2],
}


def note_views() -> list[Any]:
    """The ranks whose records are read from now on."""
    read: list[Any] = []
    meta = Reader.meta

    def noted(self: Reader, rank: int | None = None) -> Any:
        read.append(rank)
        return meta(self, rank)

    Reader.meta = noted  # type: ignore[method-assign]
    return read


def resume(store: Path, now: int, step: int = 7) -> dict[str, bytes]:
    """What came back. It is saved again, as step 8."""
    kind, _, then = store.name.partition("-")
    state = build(kind, now, 5)
    read = note_views()
    with opened(store, state) as ckpt:
        assert ckpt.resume() == step
        if world_of() == 4 and step == 7:
            # Its own, and one of each other stage at most.
            assert len(read) <= int(then[0])
            ckpt.save(7).wait()  # which exists, for all ranks
        if step == 7:
            ckpt.save(8).wait()
    assert state["done"] == 1
    return truth(state)


def save_and_resume(place: Path) -> dict[Any, dict[str, bytes]]:
    found: dict[Any, dict[str, bytes]] = {"saved": save(place)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for store, stages in MOVES.items():
            for now in stages:
                copy = place / f"{store}-{now}"
                if rank_of() == 0:
                    shutil.copytree(place / store, copy)
                dist.barrier()
                found[store, now] = resume(copy, now)
    return found


def merged(said: list[dict[Any, Any]]) -> dict[Any, Any]:
    """What ranks have said, together. Of one name all say the same."""
    found: dict[Any, Any] = {}
    for key, value in ((key, value) for one in said for key, value in one.items()):
        if isinstance(value, dict):
            found[key] = merged([found.get(key, {}), value])
        else:
            assert found.setdefault(key, value) == value
    return found


def resume_on_two(place: Path) -> dict[str, dict[str, bytes]]:
    return {store: resume(place / store, 2) for store in ("walked-4", "plainasked-4")}


def resume_on_four(place: Path) -> dict[str, dict[str, bytes]]:
    return {store: resume(place / store, 4, 8) for store in ("walked-4", "plainasked-4")}


def resume_here(store: Path) -> dict[str, bytes]:
    """By one process that has all layers."""
    state = build(store.name.partition("-")[0], 1, 5)
    with opened(store, state) as ckpt:
        assert ckpt.resume() == 8
    return truth(state)


def test_stages_resume_as_more_as_fewer_and_as_none(tmp_path: Path) -> None:
    found = merged(together(4, tmp_path, save_and_resume, tmp_path))
    saved = found.pop("saved")
    assert len(saved["asked-2"]) == LAYERS * (2 + 3 * 5) + 2
    for (store, now), values in found.items():
        assert values == saved[store]
        # What was saved then has all that it should have, too.
        assert resume_here(tmp_path / f"{store}-{now}") == saved[store]
    with pytest.warns(libckpt.CheckpointWarning, match="like stages of a pipeline"):
        libckpt.load(tmp_path / "walked-2")
    # Two stages of one rank each.
    two = merged(together(2, tmp_path, resume_on_two, tmp_path))
    assert two == {store: saved[store] for store in two}
    # And more ranks than have saved that.
    assert merged(together(4, tmp_path, resume_on_four, tmp_path)) == two


# What cannot be, and what would be lost.


def said_of(store: Path, state: State, **options: Any) -> str:
    """What resume() says."""
    with opened(store, state) as ckpt, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            ckpt.resume(**options)
        except libckpt.CheckpointError as error:
            return f"{type(error).__name__}: {error}"
    return "\n".join(str(one.message) for one in warned)


def plain(place: Path) -> bool:
    """Whether stages of plain tensors come back to the same ranks, by the word of the user."""
    held = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        layer = nn.Linear(2 + rank_of(), 2)
        model = nn.ModuleDict({f"layer{rank_of()}": layer})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 / seed)
        state: State = {"model": model, "optimizer": optimizer}
        with opened(place / "plain", state, per_rank=["*"]) as ckpt:
            if ckpt.resume() == 0:
                layer(torch.ones(1, 2 + rank_of())).sum().backward()
                optimizer.step()
                ckpt.save(7).wait()
        moments = chain.from_iterable(map(dict.values, optimizer.state.values()))
        held.append([bits(one) for one in (*model.parameters(), *moments)])
    return held[0] == held[1] and len(held[0]) == 2 * 4


class Holder:
    """Has tensors of which nobody else knows."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = dict(state)


def with_object(kind: str, stages: int) -> State:
    state = build("walked", stages, 1)
    held = dict(state["model"].named_parameters()) if kind == "average" else {"t": torch.ones(2)}
    return {**state, "object": Holder({name: one.detach() for name, one in held.items()})}


def hold(place: Path) -> dict[str, str]:
    said = {}
    for kind in ("average", "notes"):
        with opened(place / kind, with_object(kind, 2)) as ckpt:
            ckpt.save(7).wait()
        said[kind] = said_of(place / kind, with_object(kind, 4))
    return said


def with_scheduler(layers: list[int], rate: float) -> State:
    state = build("walked", 2, 1, layers)
    for group in state["optimizer"].param_groups:
        group["lr"] = rate
    scheduler = torch.optim.lr_scheduler.ExponentialLR(state["optimizer"], 0.5)
    return {**state, "scheduler": scheduler}


def schedule(place: Path) -> dict[str, str]:
    """Each stage has a rate of its own, and they change places."""
    stage = rank_of() // 2
    state = with_scheduler(mine_of(2), [0.1, 0.2][stage])
    train(state)
    state["scheduler"].step()
    with opened(place / "rates", state) as ckpt:
        ckpt.save(7).wait()
    moved = with_scheduler([[2, 3], [0, 1]][stage], 0.7)
    said = said_of(place / "rates", moved)
    assert moved["scheduler"].base_lrs == [[0.2, 0.1][stage]] * 2
    moved["scheduler"].step()
    assert moved["optimizer"].param_groups[0]["lr"] == [0.2, 0.1][stage] / 4
    # As many parameters in other groups.
    one = with_scheduler([[2, 3], [0, 1]][stage], 0.7)
    one["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    one["optimizer"].param_groups[-1]["params"].clear()
    return {"moved": said, "numbers": said_of(place / "rates", one)}


def look(place: Path) -> dict[str, str]:
    """What has nothing to do with stages; and rank 0 cannot look what the others take."""
    said = {}
    # An optimizer has more parameters than it had. No record says more of them.
    for count in (1, 4):
        torch.manual_seed(1)
        model = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        optimizer = torch.optim.SGD(model[:count].parameters(), lr=0.1)
        with opened(place / "frozen", {"model": model, "optimizer": optimizer}) as ckpt:
            read = note_views()
            if count == 1:
                ckpt.save(7).wait()
            else:
                ckpt.resume(tolerate=["*"])
                assert read == [rank_of()]
    # Equal names on meshes of some ranks are no stages.
    for layers, patterns in (([0, 1], []), ([0], ["layer1.*"])):
        state = build("walked", 2, 1, layers)
        parts = [{"params": list(layer.parameters())} for layer in state["model"].values()]
        state["optimizer"] = torch.optim.AdamW(parts)
        state["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(state["optimizer"], 0.5)
        held = {"w": state["model"]["layer0"].up.weight.detach().clone()}
        state["object"] = Holder(held)
        if patterns:
            said["alike"] = said_of(place / "alike", state, tolerate=patterns)
        else:
            with opened(place / "alike", state) as ckpt:
                ckpt.save(7).wait()
    if rank_of() == 0:
        Takers._told = unreached  # type: ignore[method-assign]
    said["blind"] = said_of(place / "asked-2", build("asked", 2, 1))
    return said


def unreached(*_: object) -> Any:
    raise RuntimeError("no route")


def refuse(place: Path) -> dict[str, str]:
    assert plain(place)
    rank = rank_of()
    lrs = build("asked", 2, 1 + rank // 2)  # each stage has a rate of its own
    train(lrs)
    with opened(place / "asked-lr", lrs) as ckpt:
        ckpt.save(7).wait()
    store, said = place / "asked-2", {}
    state = build("asked", 2, 1)
    train(state)
    with opened(store, state) as ckpt:
        ckpt.save(7).wait()
    # Nobody has layer 3.
    tensors = ["layer3.[cdu]*", "optimizer/state/layer3.*"]
    tolerated = {"lost": [], "gone": ["layer3.*"], "extra": tensors}
    for name, patterns in tolerated.items():
        less = build("asked", 4, 1, [[0], [1], [2], [2]][rank])
        said[name] = said_of(store, less, tolerate=patterns)
    # The stages have it, and one of them has a layer that is new.
    more = build("asked", 4, 1)
    if rank == 3:
        more["model"].add_module("layer4", nn.Linear(2, 2))
        more["optimizer"].add_param_group({"params": more["model"]["layer4"].parameters()})
    said["new"] = said_of(store, more)
    said["rates"] = said_of(place / "asked-lr", build("asked", 1, 1))
    other = build("asked", 4, 1)
    other["optimizer"].param_groups.reverse()
    said["order"] = said_of(store, other)
    # Two stages have layer 3, and tell different things of it.
    twice = build("asked", 4, 1, [[0], [1, 3], [2, 3], [3]][rank])
    for group in twice["optimizer"].param_groups:
        group["lr"] = 0.1 * (1 + rank)
    with opened(place / "asked-twice", twice) as ckpt:
        ckpt.save(7).wait()
    kept = build("asked", 4, 7)
    said["split"] = said_of(place / "asked-lr", kept)
    assert kept["optimizer"].param_groups[0]["lr"] == 0.1 / (1 + rank // 2)
    return {**said, **hold(place), **schedule(place), **look(place)}


REFUSED = {
    "rates": ("group 0 had other options on rank ", "layer2.up.weight", ": lr"),
    "order": ("has its parameters in other groups, or the groups in another order, than on rank ",),
    "average": ("state['object'] has DTensors of the stage of rank ", "is restored there only"),
    "numbers": ("state['scheduler'] refers to the groups of its optimizer by their numbers",),
}


def test_what_no_rank_takes_or_has_is_told(tmp_path: Path) -> None:
    said = together(4, tmp_path, refuse, tmp_path)
    for rank, one in enumerate(said):
        assert one["lost"].startswith(f"MismatchError: step 7, rank {rank} of 4: no rank takes ")
        assert "layer3.count (written by rank " in one["lost"]
        assert "optimizer/state/layer3.down.weight/exp_avg (written by rank" in one["lost"]
        assert one["lost"].partition(". The tensors of")[0].endswith("; layer3._extra_state")
        assert "saved: layer3._extra_state. The tensors of" in one["extra"]
        assert "layer2" not in one["lost"]
        assert "layer3.count (written by rank " in one["gone"]
        assert "with these differences" in one["gone"]
        assert one["split"] == ""
        assert one["moved"] == ""
        assert "layer1.up.weight" in one["alike"]
        assert "is restored, with these differences" in one["alike"]
        assert "it is not known whether the ranks together take everything: " in one["blind"]
        assert one["blind"].endswith("of the step: no route")
    assert said[3]["new"].startswith("MismatchError: step 7, rank 3 of 4 does not fit the state:")
    assert "missing (in the state, and not in the checkpoint): layer4.bias" in said[3]["new"]
    assert all("rank 3 could not restore" in one["new"] for one in said[:3])
    # Whoever finds out first cancels it for the others.
    for name, texts in REFUSED.items():
        words = [one[name] for one in said]
        assert any(all(text in one for text in texts) for one in words), words
        assert all("MismatchError: " in one or "could not restore" in one for one in words), words
    assert "state['object'] has tensors, and gets those of rank 3, which was" in said[3]["notes"]
    text = said_of(tmp_path / "asked-twice", build("asked", 1, 1))
    assert "rank 1 and rank 2 of the step had other options or state of parameter layer3" in text
    # One process that leaves a layer has changed nothing.
    state = build("asked", 1, 5, [0, 1, 2])
    before = truth(state)
    text = said_of(tmp_path / "asked-2", state)
    assert "unexpected (in the checkpoint, and not in the state): layer3.count" in text
    assert "Nothing was changed" in text
    assert truth(state) == before


def test_what_an_optimizer_has_beside_parameters_must_be_the_same() -> None:
    group = {"count": 1, "options": {"lr": 0.1}}

    def source(rank: int, name: str, mode: int | bool) -> Source:
        node = {
            "params": [name],
            "groups": [group],
            "state": [],
            "values": {},
            "other": {},
            "extra": {"mode": mode},
        }
        return Source(rank, node, {name: 0})

    groups = [["a", "b"]]
    united = unite_optimizer([source(0, "a", 1), source(2, "b", 1)], groups)
    assert isinstance(united, United)
    assert united.node["params"] == ["a", "b"]
    said = unite_optimizer([source(0, "a", 1), source(2, "b", True)], groups)
    assert isinstance(said, str)
    assert "had other values beside the state of parameters on rank 2 of the step than on" in said
