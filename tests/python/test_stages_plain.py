# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline whose tensors are plain: which ranks hold which name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import writers
from libckpt._plan import Plan
from libckpt._ranks import Ranks
from libckpt._slices import reading
from libckpt._trial import TrialReader
from libckpt.adapters._stages import Stages, Told, sum_up
from node_rig import on_node
from ranks import together
from torch import nn

import libckpt
from libckpt import _checkpointer, _exchange

State = dict[str, Any]


def told(**kinds: str) -> Told:
    return Told({name.replace("__", "."): kind for name, kind in kinds.items()}, {})


def answers(ranks: list[Told]) -> list[Stages]:
    """What each rank hears."""
    numbers: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        numbers.setdefault(one.digest, []).append(rank)
    found = sum_up({one.digest: one for one in ranks}, numbers)
    return [Stages.decode(one, found[one.digest]) for one in ranks]


def wrong(ranks: list[Told]) -> str:
    """What all of them are refused with."""
    (said,) = {stages._wrong for stages in answers(ranks)}
    return said


def test_each_name_is_held_by_the_ranks_that_have_it() -> None:
    first = told(embed="f [2]", layers__0__w="f [3]")
    second = told(layers__1__w="f [3]", layers__1__b="f [1]", layers__2__w="", embed="f [2]")
    third = told(layers__2__w="", layers__3__w="f [3]")
    ranks = [first, first, second, third]
    found = answers(ranks)
    assert found[0].holders("layers.0.w") == (0, 1)
    assert found[0].holders("embed") == found[2].holders("embed") == (0, 1, 2)
    assert found[2].holders("layers.2.w") == (2, 3)
    # What is not known is held as its neighbours, if these are held alike.
    assert found[2].holders("layers.1._extra_state") == (2,)
    assert found[0].holders("layers.9.more._extra_state") == (0, 1)
    assert found[2].holders("layers.9._extra_state") is None
    assert found[2].holders("layers.1.x") is None
    assert found[2].holders("_extra_state") is None
    for stages, one in zip(found, ranks, strict=True):
        stages.check(one)
    # What all have is held by all, and a rank in which nothing differs has no stage.
    both = answers([told(a="f [1]", b="f [1]"), told(a="f [1]", c="f [1]")])
    assert both[0].holders("a") is None
    assert both[0].holders("b") == (0,)


def test_who_only_lacks_a_tensor_is_no_stage() -> None:
    part = "rank 0 has 'b', and rank 1 lacks it without having anything that rank 0 lacks"
    assert part in wrong([told(a="f [1]", b="f [1]"), told(a="f [1]")])
    assert part in wrong([told(b="f [1]"), told(), told(c="f [1]")])
    # Other names say nothing of each other: they are on meshes, or their modules are asked.
    assert wrong([told(a="", b=""), told(a="")]) == ""
    said = wrong([told(a="f [1]", b="f [1]"), told(a="f [2]", c="f [1]")])
    assert said == "'a' is f [1] on rank 0, and f [2] on rank 1"


def test_a_second_name_is_no_tensor_of_its_own() -> None:
    tied = "another name of a"
    embed, last = told(a="f [1]", b="f [1]"), told(a="f [1]", c="f [1]", head=tied)
    first, second = answers([embed, last])
    assert (first.ties, second.ties) == ([("head", "a")], [])
    assert not first.is_wrong
    # Only one rank has second names, and lacks nothing.
    assert wrong([told(a="f [1]", b="f [1]", eval=tied), told(a="f [1]", b="f [1]")]) == ""
    # A second name makes no stage.
    said = wrong([told(a="f [1]", b="f [1]"), told(a="f [1]", head=tied)])
    assert "rank 0 has 'b', and rank 1 lacks it" in said
    # The head stands before the embedding; or is tied on one rank only.
    said = wrong([embed, told(a="another name of head", head="f [1]", c="f [1]")])
    assert said == "'a' is f [1] on rank 0, and another name of head on rank 1"
    assert "'head' is another name of a on" in wrong([last, told(a="f [1]", head="f [1]", d="")])


class Counted(list[int]):
    """Fails where a rank's digest is looked up too often."""

    left = 100_000

    def __iter__(self) -> Any:
        Counted.left -= 1
        assert Counted.left > 0
        return super().__iter__()


def test_many_ranks_with_many_names_are_summed_up_in_time() -> None:
    most = {f"n{number}": "f [1]" for number in range(998)}
    classes = {f"{rank}": Told({**most, f"own{rank}": "f [1]"}, {}) for rank in range(1023)}
    # Two have nothing that nobody else has.
    classes["1023"] = Told({"own7": "f [1]", "own8": "f [1]"}, {})
    ranks = {one: Counted([int(one)]) for one in classes}
    found = Stages.decode(classes["5"], sum_up(classes, ranks)["5"])
    assert not found.is_wrong
    assert found.holders("n3") == tuple(range(1023))


def test_what_a_rank_tells_leaves_out_what_is_its_own_or_not_known() -> None:
    class Asked(nn.Linear):
        def state_dict(self, *args: Any, **more: Any) -> Any:
            return super().state_dict(*args, **more)

    class Replay(list[Any]):
        def state_dict(self) -> State:
            return {"items": list(self)}

        def load_state_dict(self, state: State) -> None:
            self[:] = state["items"]

    state = {"model": nn.Linear(2, 1), "ema": Asked(1, 1), "lazy": nn.LazyLinear(1), "x": 1}
    # Objects say themselves what they hold, and each rank has its own.
    state["replay"] = Replay([torch.ones(1)])
    # Whoever wraps the model again only gives it second names.
    state["eval"] = nn.ModuleDict({"model": state["model"]})
    state["more"] = [torch.ones(2), {"own": torch.ones(1), "tied": state["model"].bias}]
    found = Told.of(state, Ranks(0, 2, None, ("weight", "*own")))
    assert found.others == {"more/0": "float32 [2]"}
    assert Told.decode(found.encode()) == found
    assert found.kinds == {
        "bias": "float32 [1]",
        "eval/model.bias": "another name of bias",
        "ema/weight": "",
        "ema/bias": "",
        "lazy/weight": "",
        "lazy/bias": "",
    }


# Several ranks.


def model_of(layers: list[int], width: int = 3) -> nn.ModuleDict:
    made = {}
    for number in layers:
        torch.manual_seed(number)
        made[f"layer{number}"] = nn.Linear(width, 2)
    return nn.ModuleDict(made)


def state_of(layers: list[int], width: int = 3) -> State:
    model = model_of(layers, width)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}


def said_by(call: Any) -> str:
    try:
        call()
    except libckpt.CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def opened(store: Path, state: State, **options: Any) -> libckpt.Checkpointer:
    return libckpt.Checkpointer(store, state, pool_bytes=1 << 20, rehearse=False, **options)


def train(state: State) -> None:
    for name, layer in state["model"].items():
        if name.startswith("layer"):
            layer(torch.ones(1, layer.in_features)).sum().backward()
    state["optimizer"].step()


def be_refused(place: Path) -> dict[str, str]:
    rank = dist.get_rank()
    said = {}
    kinds: dict[str, tuple[list[int], int]] = {
        "lacks": ([[0, 1], [0, 1], [0]][rank], 3),
        "shapes": ([[0, 1], [0, 2], [0, 3]][rank], 3 + (rank == 2)),
    }
    for kind, (layers, width) in kinds.items():
        state = state_of(layers, width)
        with opened(place / kind, state) as ckpt:
            said[kind] = said_by(ckpt.resume)
            # A loop without resume() hears of it in its first step.
            said[f"{kind}, step"] = said_by(lambda ckpt=ckpt: ckpt.step(1))
            said[f"{kind}, save"] = said_by(lambda ckpt=ckpt: ckpt.save(2).wait())
    # All ranks hear of it, also one whose parameters have no data yet, or have got it meanwhile.
    state = state_of([[0, 1], [0, 1], [0]][rank])
    late = nn.UninitializedParameter()
    state["model"].register_parameter("late", late)
    with opened(place / "lazy", state) as ckpt:
        if rank == 1:
            late.materialize((1,))
        said["lazy"] = said_by(ckpt.resume)
    # A tensor in the state itself; what is tied to a parameter is stored with that.
    for kind in ("odd", "tied"):
        state = state_of([0])
        if rank == 0:
            state["seen"] = torch.ones(2) if kind == "odd" else state["model"]["layer0"].weight
        with opened(place / kind, state) as ckpt:
            said[kind] = said_by(ckpt.resume)
            said[f"{kind}, save"] = said_by(lambda ckpt=ckpt: ckpt.save(2).wait())
    assert said["tied"] == said["tied, save"] == ""
    # The shared layer is not the same.
    state = state_of([[0, 1], [0, 2], [0, 3]][rank])
    with opened(place / "values", state) as ckpt, torch.no_grad():
        assert ckpt.resume() == 0
        state["model"]["layer0"].weight += rank == 1
        said["values"] = said_by(lambda: ckpt.save(1).wait())
    # The modules are changed behind the back of the others.
    state = state_of([rank])
    with opened(place / "changed", state) as ckpt:
        state.update(state_of([rank, 9] if rank == 1 else [rank]))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for step in (1, 2):
                said["changed"] = said_by(lambda step=step: ckpt.save(step).wait())
        named = [one for one in warned if "make another Checkpointer" in str(one.message)]
        assert len(named) == (rank == 1)
    # Who has told nothing may have all.
    with opened(place / "later", {} if rank == 0 else state) as ckpt:
        ckpt.state = state
        said["later"] = said_by(lambda: ckpt.save(1).wait())
    return said


def test_what_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    for said in together(3, tmp_path, be_refused, tmp_path):
        text = (
            "MismatchError: the ranks do not have the same tensors: rank 0 has "
            "'layer1.bias', and rank 2 lacks it without having anything that rank 0 lacks"
        )
        assert said["lacks"].startswith(text)
        assert "distributed=False" in said["lacks"]
        assert said["lazy"] == said["lacks"]
        assert "'layer0.weight' is float32 [2, 3] on rank 0" in said["shapes"]
        assert "'seen' in the state is float32 [2] on rank 0, and is not there on" in said["odd"]
        for kind in ("lacks", "shapes"):
            assert said[f"{kind}, step"] == said[kind]
        for kind in ("lacks", "shapes", "odd"):
            assert said[f"{kind}, save"].startswith("MismatchError: ")
        assert said["values"].startswith("ReplicaMismatchError: ")
        assert "'layer0.weight'" in said["values"]
        assert said["changed"].startswith("MismatchError: ")
        assert said["later"].startswith("MismatchError: ")


def save_and_come_back(place: Path, nodes: str) -> list[torch.Tensor]:
    """Stages of one rank each, of which two share a layer; each with a scheduler."""
    rank, held = dist.get_rank(), []
    store = on_node(place, nodes) if nodes else place / "store"
    for step in (0, 1):
        state = state_of([[0, 1], [2], [0, 3]][rank])
        state["scheduler"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with opened(store, state, every=1, node_store=bool(nodes)) as ckpt:
                assert ckpt.resume() == step
                if step == 0:
                    train(state)
                    save = ckpt.step(1)
                    assert save is not None
                    save.wait()
        moments = [one for entry in state["optimizer"].state.values() for one in entry.values()]
        held.append([one.detach().clone() for one in (*state["model"].parameters(), *moments)])
    assert all(map(torch.equal, *held))
    return held[0]


@pytest.mark.parametrize("nodes", ["", "aab"])
def test_a_layer_of_two_stages_is_saved_once_and_comes_back(tmp_path: Path, nodes: str) -> None:
    held = together(3, tmp_path, save_and_come_back, tmp_path, nodes)
    assert [len(one) for one in held] == [2 * 2 * 4, 2 * 4, 2 * 2 * 4]
    if nodes:
        return
    by = writers(tmp_path / "store", 1)
    assert {name: len(ranks) for name, ranks in by.items() if name.startswith("layer")} == {
        f"layer{n}.{what}": 1 for n in range(4) for what in ("weight", "bias")
    }
    # A rehearsal of another stage asks for nothing that other ranks have saved.
    with reading(str(tmp_path / "store"), 0, 3) as engine:
        with TrialReader(engine, 1) as reader:
            plan = Plan(reader, allow_pickle=False)
        with pytest.raises(libckpt.MismatchError, match=r"layer2\.weight"):
            plan.compare({**state_of([0, 1, 2]), "scheduler": None})
    assert by["layer2.weight"] == by["optimizer/state/layer2.weight/step"] == [1]


def tie(state: State, head: str, to: str) -> None:
    """A head that is one parameter with a layer."""
    model = state["model"]
    model[head] = nn.Linear(3, 2, bias=False)
    model[head].weight = model[to].weight


def save_tied(place: Path) -> list[list[torch.Tensor]]:
    """The last stage has the weights of layers of the first stage once more, as heads."""
    rank, held = dist.get_rank(), []
    for step in (0, 1, 2):
        state = state_of([[0, 2, 3], [0, 2, 1]][rank])
        if rank == 1:
            tie(state, "head", "layer0")
            tie(state, "other", "layer2")
        with opened(place / "store", state) as ckpt:
            assert ckpt.resume() == step
            if step < 2:
                train(state)
                ckpt.save(step + 1).wait()
        moments = [one for entry in state["optimizer"].state.values() for one in entry.values()]
        held.append([one.detach().clone() for one in (*state["model"].parameters(), *moments)])
    assert all(map(torch.equal, held[1], held[2]))
    return held


def test_a_head_that_is_tied_to_the_embedding_is_saved_and_comes_back(tmp_path: Path) -> None:
    first, last = together(2, tmp_path, save_tied, tmp_path)
    assert len(first[1]) == len(last[1]) == 3 * 2 * 4
    by = writers(tmp_path / "store", 2)
    # Each of the tied layers is written by another rank.
    assert (by["layer0.weight"], by["layer2.weight"]) == ([0], [1])
    assert [len(by[f"optimizer/state/layer{n}.weight/exp_avg"]) for n in range(4)] == [1] * 4
    for names in (["layer0.weight", "head.weight"], ["layer2.weight", "other.weight"]):
        assert torch.equal(*libckpt.load(tmp_path / "store", names=names).values())


def fail_in_between(place: Path) -> tuple[str, str]:
    """Rank 1 is interrupted while it looks at its names, and fails when they have been told."""
    early = ""
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:

            def stop(*_: object) -> Any:
                raise KeyboardInterrupt

            patch.setattr(_checkpointer, "told_by", stop)
        try:
            early = said_by(lambda: opened(place / "early", state_of([0])).close())
        except KeyboardInterrupt:
            early = "interrupted"
    if dist.get_rank() == 1:

        def fail(*_: object) -> Any:
            raise libckpt.NetworkError("no route")

        _exchange.tell_apart = fail  # type: ignore[assignment]
    later = said_by(lambda: opened(place / "store", state_of([dist.get_rank()])).close())
    return early, later


def test_a_rank_that_fails_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    said = together(2, tmp_path, fail_in_between, tmp_path)
    (first, then), (second, now) = said
    assert second == "interrupted"
    assert "Error: rank 1 could not open " in first
    assert first.endswith("KeyboardInterrupt")
    assert now == "NetworkError: no route"
    assert "Error: rank 1 could not open " in then
    assert then.endswith("no route")
