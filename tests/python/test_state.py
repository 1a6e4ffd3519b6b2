# SPDX-License-Identifier: Apache-2.0
"""Walking a state: nesting, names, objects with a say of their own, and the cached plan."""

import collections
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Training, assert_same
from libckpt._state import Planner
from torch import nn

import libckpt


def save(opened: Any, state: dict[str, Any], **options: Any) -> None:
    ckpt = opened(state, **options)
    ckpt.save(1).wait()
    ckpt.close()


def stepped(model: nn.Module, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    """An optimizer of the model that has taken a step."""
    optimizer = kind(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return optimizer


def test_a_state_is_a_dict_with_string_keys(opened: Any, store: Path) -> None:
    ckpt = opened({})
    for wrong in ([1], {1: 2}, nn.Linear(1, 1)):
        with pytest.raises(libckpt.UnsupportedStateError, match="a dict with strings") as caught:
            ckpt.save(1, wrong)
        with pytest.raises(libckpt.UnsupportedStateError) as early:
            libckpt.Checkpointer(store.parent / "other", wrong)
        assert str(early.value) == str(caught.value)
        ckpt.state = wrong
        with pytest.raises(libckpt.UnsupportedStateError, match="a dict with strings"):
            ckpt.resume()
    assert not (store.parent / "other").exists()
    ckpt.save(1, {}).wait()


class Silent:
    """Must not be asked before it is to be saved."""

    def state_dict(self) -> dict[str, int]:
        raise AssertionError("asked")

    load_state_dict = state_dict


def hopeless() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    deep: Any = torch.optim.SGD(model.parameters())
    for _ in range(40):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    shared = nn.Module()
    shared.register_buffer("mask", torch.ones(1, 3).expand(4, 3))
    return {
        "loader": torch.utils.data.DataLoader(list(range(4))),  # type: ignore[arg-type]
        "object": {"a": [object()]},
        "function": (len, 1),
        "tensor": [torch.eye(3).to_sparse()],
        "module": nn.ModuleDict({"a": nn.ParameterDict({"b": torch.eye(2).cfloat().conj()})}),
        "place": shared,
        "optimizer": stepped(nn.Linear(1, 1)),
        "deep": deep,
        "cycle": cycle,
        "twice": [model, [model]],
    }


@pytest.mark.parametrize("kind", hopeless())
@pytest.mark.parametrize("anew", [False, True])
def test_what_cannot_be_saved_is_refused_before_the_loop(
    opened: Any, store: Path, kind: str, anew: bool
) -> None:
    """With the words that save() would have. The constructor refuses what no module has said."""
    bad = hopeless()[kind]
    ckpt = opened({}, new_start=anew)
    ckpt.state = {kind: bad}
    with pytest.raises(libckpt.UnsupportedStateError) as early:
        ckpt.resume()
    with pytest.raises(libckpt.UnsupportedStateError) as late:
        ckpt.save(1)
    assert str(early.value) == str(late.value)
    if kind not in ("module", "place", "optimizer", "loader"):
        with pytest.raises(libckpt.UnsupportedStateError) as first:
            libckpt.Checkpointer(store.parent / "other", {kind: bad})
        assert str(first.value) == str(late.value)


def test_what_may_still_become_good_is_not_refused(opened: Any) -> None:
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(2, 2), nn.LazyLinear(3)])
    state = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "objects": [Silent(), {"a": Silent()}],
        "arrays": np.zeros(3),
        "bytes": b"x" * 9000,
        "pickled": Own(),
        "generator": torch.Generator(),
        "expanded": torch.ones(1).expand(3),
        "extra": Extra(),
    }
    ckpt = opened(state, allow_pickle=True)
    assert ckpt.resume() == 0
    # Nor is what a step replaces.
    ckpt.save(1, {"a": 1, "cfg": [1]}).wait()
    ckpt.state = {"a": object(), "cfg": object()}
    assert ckpt.resume() == 1
    assert ckpt.state == {"a": 1, "cfg": [1]}


def test_nesting_of_everything(opened: Any, store: Path) -> None:
    def make() -> dict[str, Any]:
        return {
            "plain": {"a": [1, (2.5, None)], 3: {"x", "y"}, "$odd": b"\0"},
            "tensors": [{"a": torch.rand(3)}, (torch.rand(2), torch.rand(1))],
            "ordered": collections.OrderedDict(z=torch.rand(1), a=1),
            "deep": {"model": [nn.Linear(2, 2)]},
            "counter": collections.Counter("abca"),
        }

    state = make()
    save(opened, state)
    held = libckpt.load(store)
    assert held["plain"] == state["plain"]
    assert_same(held["tensors"], state["tensors"])
    assert_same(held["ordered"], state["ordered"])
    assert list(held["deep"]["model"][0]) == ["weight", "bias"]

    live = make()
    kept = [live["tensors"][0]["a"], live["tensors"], live["deep"]["model"][0], live["ordered"]]
    live["plain"] = {}
    live["counter"].clear()
    opened(live).resume()
    assert_same(live["tensors"], state["tensors"])
    assert live["plain"] == state["plain"]
    assert live["counter"] == state["counter"]
    assert torch.equal(live["deep"]["model"][0].weight, state["deep"]["model"][0].weight)
    now = [live["tensors"][0]["a"], live["tensors"], live["deep"]["model"][0], live["ordered"]]
    assert all(a is b for a, b in zip(kept, now, strict=True))


def test_generators_in_the_state_go_on_in_place(opened: Any) -> None:
    state = {
        "np": np.random.default_rng(1),
        "legacy": np.random.RandomState(2),
        "py": random.Random(3),
        "torch": torch.Generator().manual_seed(4),
    }
    held = dict(state)
    ckpt = opened(state)
    ckpt.save(1).wait()

    def draw() -> list[float]:
        return [
            held["np"].random(),
            held["legacy"].normal(),
            held["py"].random(),
            torch.rand(1, generator=held["torch"]).item(),
        ]

    first = draw()
    draw()
    ckpt.resume()
    assert draw() == first
    assert all(state[key] is held[key] for key in held)


def names_of(store: Path, step: int = 1) -> list[str]:
    from libckpt._engine import Engine
    from libckpt._options import Options
    from libckpt._reader import Reader

    engine = Engine(str(store), Options(read_only=True), log_thread=False)
    with Reader(engine, step) as reader:
        found = list(reader.tensors())
    engine.close()
    return found


def test_names_of_one_model(opened: Any, store: Path) -> None:
    training = Training()
    training.step()
    save(opened, training.state)
    names = set(names_of(store))
    assert {"embed.weight", "head.weight", "mix.1.running_mean", "down.bias"} <= names
    assert "optimizer/state/down.bias/exp_avg_sq" in names
    assert "optimizer/state/embed.weight/step" in names
    assert "optimizer/state/head.weight/step" not in names  # it is the embedding's


def test_names_of_several_models(opened: Any, store: Path) -> None:
    def gan(**more: Any) -> dict[str, Any]:
        generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
        return {
            "generator": generator,
            "critic": critic,
            "opts": [stepped(generator), stepped(critic, torch.optim.SGD, momentum=0.9)],
            **more,
        }

    state = gan()
    save(opened, state)
    names = set(names_of(store))
    assert {"weight", "bias", "critic/weight", "critic/bias"} <= names  # the first has no prefix
    assert "opts/0/state/weight/exp_avg" in names
    assert "opts/1/state/critic/weight/momentum_buffer" in names
    live = gan()
    opened(live).resume()
    assert_same(live["critic"].state_dict(), state["critic"].state_dict())
    for a, b in zip(live["opts"], state["opts"], strict=True):
        assert_same(a.state_dict(), b.state_dict())

    path = store.parent / "second"
    save(opened, {"ema": nn.Linear(2, 2), "model": nn.Linear(2, 2)}, path=path)
    assert {"weight", "ema/weight"} <= set(names_of(path))  # unless one is called "model"


def test_names_that_meet_get_numbers_or_are_refused(opened: Any, store: Path) -> None:
    model = nn.Module()
    model.register_parameter("a/b", nn.Parameter(torch.zeros(1)))
    state = {"model": model, "a": {"b": torch.ones(1)}, "a/b": torch.full((1,), 2.0)}
    save(opened, state)
    held = libckpt.load(store)
    assert held["model"]["a/b"] == 0
    assert held["a"]["b"] == 1
    assert held["a/b"] == 2
    assert {"a/b", "a/b~2", "a/b~3"} <= set(names_of(store))

    clash = nn.Module()
    clash.register_parameter("o/state/w/momentum_buffer", nn.Parameter(torch.zeros(1)))
    clash.register_parameter("w", nn.Parameter(torch.zeros(1)))
    bad = {"model": clash, "o": stepped(clash, torch.optim.SGD, momentum=0.9)}
    with pytest.raises(libckpt.UnsupportedStateError, match="another key"):
        opened(bad, path=store.parent / "bad").save(1)


def test_wrappers_leave_no_trace_in_names(opened: Any, store: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    compiled = torch.compile(nn.Sequential(model[0], torch.compile(model[1])))
    parallel = nn.DataParallel(compiled)
    optimizer = stepped(parallel)
    save(opened, {"model": parallel, "optimizer": optimizer})
    names = set(names_of(store))
    assert {"0.weight", "0.bias", "1.running_var", "optimizer/state/1.bias/exp_avg"} <= names
    assert not any("module" in name or "_orig_mod" in name for name in names)
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    fresh = torch.optim.AdamW(plain.parameters())
    opened({"model": plain, "optimizer": fresh}).resume()
    assert_same(plain.state_dict(), model.state_dict())
    assert_same(fresh.state_dict()["state"], optimizer.state_dict()["state"])


def test_a_child_that_is_called_module_is_no_wrapper(opened: Any, store: Path) -> None:
    model = nn.Module()
    model.module = nn.Linear(1, 1)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    save(opened, {"model": model, "ema": averaged})
    names = set(names_of(store))
    assert {"module.weight", "ema/module.module.weight", "ema/n_averaged"} <= names


class Extra(nn.Module):
    """Has state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.seen: Any = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "t": torch.full((2,), float(self.seen))}

    def set_extra_state(self, state: Any) -> None:
        assert torch.equal(state["t"], torch.full((2,), float(state["seen"])))
        self.seen = state["seen"]


class Renaming(nn.Linear):
    """Stores its weight transposed, under another name."""

    def __init__(self) -> None:
        super().__init__(2, 3)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "kernel"] = self.weight.detach().t().contiguous()
        destination[prefix + "bias"] = self.bias.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_args: Any) -> None:
        with torch.no_grad():
            self.weight.copy_(state_dict[prefix + "kernel"].t())
            self.bias.copy_(state_dict[prefix + "bias"])


def hooked() -> nn.Module:
    model = nn.Linear(2, 2)

    def add(module: Any, state: Any, prefix: str, _meta: Any) -> None:
        state[prefix + "version"] = 7

    def take(module: Any, state: Any, prefix: str, *_args: Any) -> None:
        assert state.pop(prefix + "version") == 7

    model._register_state_dict_hook(add)
    model._register_load_state_dict_pre_hook(take, with_module=True)
    return model


@pytest.mark.parametrize("make", [Extra, Renaming, hooked])
def test_a_module_with_a_say_of_its_own_is_asked(opened: Any, store: Path, make: Any) -> None:
    def build() -> dict[str, Any]:
        model = nn.ModuleDict({"inner": make(), "plain": nn.Linear(2, 2)})
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    state = build()
    if make is Extra:
        state["model"]["inner"].seen = 5
    for parameter in state["model"].parameters():
        parameter.grad = torch.rand_like(parameter)
    state["optimizer"].step()
    ckpt = opened(state)
    ckpt.save(1).wait()
    held = libckpt.load(store)["model"]
    assert set(held) == set(state["model"].state_dict())
    ckpt.close()
    live = build()
    ckpt = opened(live)
    ckpt.resume()
    assert_same(live["model"].state_dict(), state["model"].state_dict())
    assert_same(live["optimizer"].state_dict(), state["optimizer"].state_dict())
    live["optimizer"].step()  # nothing torn: the fence knows these parameters, too
    ckpt.save(2)
    live["optimizer"].step()
    ckpt.close()


def test_a_script_module(opened: Any, store: Path) -> None:
    def build() -> dict[str, Any]:
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), momentum=0.9)}

    state = build()
    for parameter in state["model"].parameters():
        parameter.grad = torch.rand_like(parameter)
    state["optimizer"].step()
    ckpt = opened(state)
    ckpt.save(1)
    state["optimizer"].step()
    ckpt.close()
    assert {"0.weight", "optimizer/state/0.weight/momentum_buffer"} <= set(names_of(store))
    live = build()
    opened(live).resume()
    assert_same(dict(live["model"].state_dict()), libckpt.load(store)["model"])


def test_a_module_that_loads_something_else_is_found_out(opened: Any) -> None:
    class Lossy(nn.Linear):
        def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
            state[prefix + "weight"] = state[prefix + "weight"].bfloat16().float()
            super()._load_from_state_dict(state, prefix, *args)

    model = Lossy(7, 7)
    save(opened, {"model": model})
    with pytest.raises(libckpt.MismatchError, match=r"after its load_state_dict\(\), weight"):
        opened({"model": model}).resume()


class Odd(torch.optim.SGD):
    """Keeps state for the whole, lists of tensors, and plain values."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)

    def step(self, closure: Any = None) -> None:
        self.state["all"] = {"count": self.state.get("all", {}).get("count", 0) + 1}
        for group in self.param_groups:
            for p in group["params"]:
                entry = self.state[p]
                entry["history"] = [*entry.get("history", []), p.detach().clone()]
                entry["n"] = entry.get("n", 0) + 1
                entry["mean"] = p.detach() * 0.5  # a new tensor every time
                p.data.mul_(0.9)


class OddOfItsOwn(Odd):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "more": [1, {"t": torch.ones(2)}]}

    def load_state_dict(self, state: Any) -> None:
        more = state.pop("more")
        assert more[0] == 1
        assert torch.equal(more[1]["t"], torch.ones(2))
        super().load_state_dict(state)


@pytest.mark.parametrize("kind", [Odd, OddOfItsOwn])
def test_optimizers_with_unusual_state(opened: Any, store: Path, kind: Any) -> None:
    def build() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": kind(model.parameters())}

    state = build()
    ckpt = opened(state, eager=True)  # it changes parameters behind PyTorch's back
    for step in (1, 2, 3):
        state["optimizer"].step()
        ckpt.save(step).wait()
    ckpt.close()
    live = build()
    opened(live).resume()
    assert_same(live["model"].state_dict(), state["model"].state_dict())
    for a, b in zip(live["model"].parameters(), state["model"].parameters(), strict=True):
        assert_same(live["optimizer"].state[a], state["optimizer"].state[b])
    assert live["optimizer"].state["all"] == {"count": 3}
    held = libckpt.load(store)["optimizer"]
    assert held["state"]["weight"]["n"] == 3
    assert len(held["state"]["weight"]["history"]) == 3
    assert held["state"]["all"] == {"count": 3}


def test_an_entry_that_was_empty_is_seen_when_it_fills(opened: Any, store: Path) -> None:
    """Whoever asks an optimizer for the state of a parameter without one makes an empty entry."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    assert all(optimizer.state[parameter] == {} for parameter in model.parameters())
    ckpt = opened({"model": model, "optimizer": optimizer})
    ckpt.save(1).wait()
    model(torch.rand(3)).sum().backward()
    optimizer.step()
    ckpt.save(2).wait()
    held = libckpt.load(store, 2)["optimizer"]["state"]
    assert sorted(held["weight"]) == ["exp_avg", "exp_avg_sq", "step"]


def test_an_optimizer_needs_names_for_its_parameters(opened: Any, store: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(libckpt.UnsupportedStateError, match="put its module into the state"):
        opened({"optimizer": stepped(model)}).save(1)

    named = torch.optim.AdamW(model.named_parameters())
    named.step()
    save(opened, {"optimizer": named})
    assert "optimizer/state/weight/exp_avg" in names_of(store)
    other = nn.Linear(2, 2)
    fresh = torch.optim.AdamW(other.named_parameters())
    opened({"optimizer": fresh}).resume()
    assert_same(fresh.state[other.weight], named.state[model.weight])


def test_parameters_may_be_plain_tensors_of_the_state(opened: Any, store: Path) -> None:
    def build() -> dict[str, Any]:
        weights = [torch.rand(3, requires_grad=True), torch.rand(2, requires_grad=True)]
        return {"w": weights, "optimizer": torch.optim.AdamW(weights)}

    state = build()
    for weight in state["w"]:
        weight.grad = torch.ones_like(weight)
    state["optimizer"].step()
    ckpt = opened(state)
    ckpt.save(1)
    then = [weight.detach().clone() for weight in state["w"]]
    state["optimizer"].step()
    ckpt.close()
    assert "optimizer/state/w/0/exp_avg" in names_of(store)
    live = build()
    opened(live).resume()
    for a, b in zip(live["w"], then, strict=True):
        assert torch.equal(a, b)
        assert a.requires_grad


def test_a_plain_data_loader_is_refused_with_advice(opened: Any) -> None:
    loader = torch.utils.data.DataLoader(list(range(4)))  # type: ignore[arg-type]
    with pytest.raises(libckpt.UnsupportedStateError, match="StatefulDataLoader"):
        opened({"loader": loader}).save(1)

    class Stateful(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def state_dict(self) -> dict[str, int]:
            return {"at": 2}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    class Adapter(Stateful):
        """As Accelerate's: it has the methods, and nothing to ask."""

        use_stateful_dataloader = False

    with pytest.raises(libckpt.UnsupportedStateError, match="does not know its position"):
        opened({"loader": Adapter(list(range(4)))}).resume()  # type: ignore[arg-type]
    mine = Stateful(list(range(4)))  # type: ignore[arg-type]
    ckpt = opened({"loader": mine})
    ckpt.save(1).wait()
    ckpt.resume()
    assert mine.at == 2


def test_the_gradient_scaler(opened: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    scaler.update(32.0)
    save(opened, {"scaler": scaler})
    fresh = torch.amp.GradScaler("cpu")
    opened({"scaler": fresh}).resume()
    assert fresh.get_scale() == 32.0


def test_unsupported_objects_are_named_and_may_be_pickled(opened: Any, store: Path) -> None:
    state = {"cfg": {"path": complex}, "own": Own()}
    with pytest.raises(libckpt.UnsupportedStateError, match=r"state\['own'\] is a .*Own") as caught:
        opened(state).save(1)
    assert "allow_pickle=True" in str(caught.value)
    save(opened, state, allow_pickle=True)
    with pytest.raises(libckpt.UnsupportedError, match="allow_pickle=True"):
        libckpt.load(store)
    assert libckpt.load(store, allow_pickle=True)["own"] == Own()
    with pytest.raises(libckpt.UnsupportedError):
        opened({"cfg": 0, "own": 0}).resume()


class Own:
    def __eq__(self, other: object) -> bool:
        return type(other) is Own

    def __hash__(self) -> int:
        return 1


def test_only_one_way_of_being_stateful_is_not_enough(opened: Any) -> None:
    class Half:
        def state_dict(self) -> dict[str, int]:
            return {}

    with pytest.raises(libckpt.UnsupportedStateError, match="load_state_dict"):
        opened({"half": Half()}).save(1)

    class Holder:
        def state_dict(self) -> dict[str, Any]:
            return {"model": nn.Linear(1, 1)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    with pytest.raises(libckpt.UnsupportedStateError, match="inside of the state of another"):
        opened({"holder": Holder()}).save(1)


# The cached plan must never lie.


def planned(planner: Planner, state: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """What a snapshot says of every tensor."""
    snapshot = planner.snapshot(state)
    return {
        name.decode(): what
        for block in snapshot.blocks
        for name, what in zip(block.names, block.described, strict=True)
        if not name.startswith(b"rng/")
    } | {alias.decode(): (name,) for alias, name in snapshot.aliases}


def reshape(model: Any, _: Any) -> None:
    model[0].weight.data = model[0].weight.data.view(3, 4)


def retype(model: Any, _: Any) -> None:
    model[0].weight.data = model[0].weight.data.double()


def move(model: Any, _: Any) -> None:
    model[0].weight.data = model[0].weight.data.clone()


def replace(model: Any, optimizer: Any) -> None:
    optimizer.state.clear()
    model[0].weight = nn.Parameter(torch.zeros(4, 3))
    optimizer.param_groups[0]["params"][0] = model[0].weight


def add_module(model: Any, _: Any) -> None:
    model.append(nn.BatchNorm1d(2))


def drop_buffer(model: Any, _: Any) -> None:
    model[1].running_mean = None


def rename(model: Any, _: Any) -> None:
    model[0]._parameters["other"] = model[0]._parameters.pop("bias")


def tie(model: Any, _: Any) -> None:
    model[0].bias.data = model[1].bias.data


def hide(model: Any, _: Any) -> None:
    model[1]._non_persistent_buffers_set.add("running_var")


def add_group(model: Any, optimizer: Any) -> None:
    model.extra = nn.Linear(1, 1)
    optimizer.add_param_group({"params": list(model.extra.parameters())})


def new_state(model: Any, optimizer: Any) -> None:
    optimizer.state[model[0].weight]["extra"] = torch.zeros(2)


def other_state(model: Any, optimizer: Any) -> None:
    optimizer.state[model[0].weight]["exp_avg"] = torch.zeros(4, 3)


def wider_state(model: Any, optimizer: Any) -> None:
    optimizer.state[model[0].weight]["exp_avg"] = torch.zeros(4, 5)


def forget(model: Any, optimizer: Any) -> None:
    optimizer.state.clear()


def add_hook(model: Any, _: Any) -> None:
    model[0]._register_state_dict_hook(lambda *a: None)


def transpose(model: Any, _: Any) -> None:
    model[2].weight.data = model[2].weight.data.t()


@pytest.mark.parametrize(
    "change",
    [
        *(reshape, retype, move, replace, add_module, drop_buffer, rename, tie, hide),
        *(add_group, new_state, other_state, wider_state, forget, add_hook, transpose),
    ],
)
def test_a_changed_structure_is_seen(change: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(2, 2))
    optimizer = stepped(model)
    state = {"model": model, "optimizer": optimizer}
    planner = Planner()
    before = planned(planner, state)
    assert planned(planner, state) == before
    change(model, optimizer)
    after = planned(planner, state)
    assert after == planned(Planner(), state)
    if change is not add_hook:
        assert after != before
    assert planned(planner, state) == after


def test_nothing_is_walked_again_when_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.step()
    planner = Planner()
    planner.snapshot(training.state)

    def refuse(*_: Any) -> Any:
        raise AssertionError("walked again")

    monkeypatch.setattr("libckpt._module_source.walk", refuse)
    monkeypatch.setattr("libckpt._state.OptimizerSource", refuse)
    training.step()
    planner.snapshot(training.state)


def test_a_failed_snapshot_leaves_no_trace() -> None:
    training = Training()
    training.step()
    planner = Planner()
    want = planned(planner, training.state)
    training.optimizer.param_groups[0]["bad"] = object()
    with pytest.raises(libckpt.UnsupportedStateError, match=r"\['param_groups'\]\[0\]\['bad'\]"):
        planner.snapshot(training.state)
    del training.optimizer.param_groups[0]["bad"]
    assert planned(planner, training.state) == want


def test_a_shape_that_changes_between_steps(opened: Any, store: Path) -> None:
    state = {"cache": torch.arange(4.0), "model": nn.Linear(2, 2)}
    ckpt = opened(state)
    ckpt.save(1).wait()
    state["cache"] = torch.arange(6.0).reshape(2, 3)
    state["model"].weight.data = torch.ones(5, 2)
    ckpt.save(2).wait()
    state["cache"].resize_(1)
    ckpt.save(3).wait()
    assert libckpt.load(store, 1)["cache"].shape == (4,)
    assert libckpt.load(store, 2)["cache"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert libckpt.load(store, 2)["model"]["weight"].tolist() == [[1, 1]] * 5
    assert libckpt.load(store, 3)["cache"].tolist() == [0]
    with pytest.raises(libckpt.MismatchError, match=r"state\['cache'\] is F32 \[1\], and was"):
        ckpt.resume(2)


def test_many_values_have_a_limit_that_is_said(opened: Any) -> None:
    with pytest.raises(libckpt.UnsupportedStateError, match="64 MiB are the most"):
        opened({"text": "x" * (65 << 20)}).save(1)
