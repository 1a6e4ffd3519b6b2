# SPDX-License-Identifier: Apache-2.0
"""What no save takes is refused before the loop, or in its first step."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Says
from libckpt._state import Planner
from ranks import together
from test_state import stepped
from test_states_parts import Begins, of_a_function
from torch import nn

import libckpt
from libckpt import _state_writer


class Momentless(torch.optim.SGD):
    """Makes a state that no checkpoint holds, and not before its first step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["odd"] = torch.eye(2).to_sparse()


def long_named() -> nn.Module:
    model = nn.Module()
    model.register_parameter("x" * 1100, nn.Parameter(torch.ones(1)))
    return model


def clashing() -> dict[str, Any]:
    model = nn.Module()
    model.register_parameter("o/state/w/momentum_buffer", nn.Parameter(torch.zeros(1)))
    model.register_parameter("w", nn.Parameter(torch.zeros(1)))
    return {"model": model, "o": stepped(model, torch.optim.SGD, momentum=0.9)}


def sparse_extra() -> nn.Module:
    model = nn.Linear(2, 2)
    model._register_state_dict_hook(
        lambda _m, state, *_: state.update(odd=torch.eye(2).to_sparse())
    )
    return model


def with_option(value: Any) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    return {"m": model, "o": torch.optim.SGD([{"params": model.parameters(), "odd": value}])}


def holding(value: torch.Tensor) -> nn.Module:
    """A module that torch saves, with a tensor that wraps others."""
    model = nn.Module()
    model.register_buffer("coded", value)
    return model


def named_twice() -> dict[str, Any]:
    """A module with a say of its own, and a name in it that another one has."""
    plain, own = nn.Module(), sparse_extra()
    own._state_dict_hooks.clear()
    own._register_state_dict_hook(lambda *_: None)
    plain.register_parameter("own/weight", nn.Parameter(torch.zeros(1)))
    return {"model": plain, "own": own}


def overlapping() -> dict[str, Any]:
    """A parameter beside the modules, whose elements share memory: it could not be replaced."""
    parameter = nn.Parameter(torch.ones(1).expand(3))
    return {"p": parameter, "o": torch.optim.SGD([parameter], lr=0.1)}


def scheduler_with(value: Any) -> Any:
    """One of torch's, whose optimizer has no state yet."""
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    made = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    made.odd = value  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    "state",
    [
        {"m": long_named()},
        clashing(),
        {"m": sparse_extra()},
        with_option(lambda: 0),
        with_option(torch.eye(2).to_sparse()),
        {"m": holding(of_a_function())},
        named_twice(),
        overlapping(),
        {"s": scheduler_with(lambda: 0)},
    ],
    ids=[
        *("name", "clash", "module's own", "option", "tensor in an option", "wrapper"),
        *("clash of a module's own", "place", "scheduler"),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_resume_refuses_what_a_save_refuses(
    opened: Any, state: dict[str, Any], restored: bool
) -> None:
    if restored:
        with opened({"n": 1}) as ckpt:
            ckpt.save(1).wait()
    live = {**state, "n": 2}
    ckpt = opened(live)
    with pytest.raises(libckpt.UnsupportedStateError) as early:
        ckpt.resume(strict=False)
    assert live["n"] == 2
    with pytest.raises(libckpt.UnsupportedStateError) as late:
        ckpt.save(2)
    assert str(early.value) == str(late.value)


def test_the_first_step_looks_at_what_the_optimizer_has_made(opened: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = Momentless(model.parameters(), lr=0.1)
    ckpt = opened({"model": model, "optimizer": optimizer}, every=1000)
    assert ckpt.resume() == 0
    optimizer.step()
    with pytest.raises(libckpt.UnsupportedStateError, match="optimizer/state/weight/odd"):
        ckpt.step(1)
    # An older step than any save, and one that may be saved.
    del optimizer.state[model.weight]["odd"], optimizer.state[model.bias]["odd"]
    assert ckpt.step(2) is None


def test_an_optimizer_that_makes_its_state_later_is_looked_at_then(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    check = Planner.check
    monkeypatch.setattr(Planner, "check", lambda *args: (looks.append(args), check(*args)))
    model, other = nn.Linear(2, 2), nn.Linear(1, 1)
    late = Momentless(model.parameters(), lr=0.1)
    state = {"models": [model, other], "late": late, "o": torch.optim.SGD(other.parameters())}
    ckpt = opened(state, every=1000)
    assert ckpt.resume() == 0
    for n in (1, 2, 3):  # gradients are summed up
        assert ckpt.step(n) is None
    assert len(looks) == 2
    late.step()
    for n in (4, 5):
        with pytest.raises(libckpt.UnsupportedStateError, match="state/weight/odd"):
            ckpt.step(n)
    late.state.clear()
    late.state[model.weight]["even"] = torch.ones(1)
    for n in (6, 7):
        ckpt.step(n)
    assert len(looks) == 5
    # Another dict may be another state.
    ckpt.state = {**state, "odd": torch.eye(2).to_sparse()}
    with pytest.raises(libckpt.UnsupportedStateError, match=r"state\['odd'\]"):
        ckpt.step(8)
    # A save has looked at all.
    del ckpt.state["odd"]
    ckpt.save(9).wait()
    ckpt.step(10)
    assert len(looks) == 6


def test_parameters_that_get_their_data_later_are_looked_at_then(opened: Any) -> None:
    model = nn.Module()
    lazy = nn.UninitializedParameter()
    model.register_parameter("x" * 1100, lazy)
    ckpt = opened({"model": model}, every=1000)
    assert ckpt.resume() == 0
    ckpt.step(1)
    lazy.materialize((1,))
    with pytest.raises(libckpt.UnsupportedStateError, match="xxx"):
        ckpt.step(2)


def test_values_that_are_too_long(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state_writer, "META_MAX", 4000)
    ckpt = opened({"long": ["x" * 5000]})
    with pytest.raises(libckpt.UnsupportedStateError, match="0 MiB are the most"):
        ckpt.resume()


def test_objects_are_not_asked_before_a_save(opened: Any) -> None:
    """Whatever comes of asking: workers, an optimizer's state, a collective, an exception."""
    asked: list[str] = []

    class Counts(Says):
        def state_dict(self) -> dict[str, Any]:
            asked.append("object")
            return super().state_dict()

    class Loads(Begins):
        def state_dict(self) -> dict[str, Any]:
            asked.append("loader")
            return super().state_dict()

    class Steps(torch.optim.lr_scheduler.StepLR):
        def state_dict(self) -> dict[str, Any]:
            asked.append("scheduler")
            return super().state_dict()

    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    ckpt = opened({"x": [Loads(None), Steps(optimizer, 3), Counts(lambda: 0)]}, every=1000)
    assert ckpt.resume() == 0
    assert ckpt.step(1) is None
    assert asked == []
    with pytest.raises(libckpt.UnsupportedStateError, match=r"state\['x'\]\[2\]\['value'\]"):
        ckpt.save(2)
    assert asked == ["loader", "scheduler", "object"]


def test_the_constructor_refuses_values(store: Path, opened: Any) -> None:
    for value in (lambda: 0, iter([]), enum.Enum, torch.eye(2).to_sparse()):
        with pytest.raises(libckpt.UnsupportedStateError, match=r"state\['x'\]\[0\]"):
            libckpt.Checkpointer(store, {"x": [value]})
    assert not store.exists()
    # A plain loader may be replaced, and what it lacks may come.
    loader = torch.utils.data.DataLoader([0])  # type: ignore[arg-type,var-annotated]
    with (
        opened({"loader": loader}) as ckpt,
        pytest.raises(libckpt.UnsupportedStateError, match="does not know its position"),
    ):
        ckpt.resume()
    ckpt = opened({"o": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)})
    with pytest.raises(libckpt.UnsupportedStateError, match="belongs to no module"):
        ckpt.resume()


def be_refused(store: Path) -> str:
    value: Any = (lambda: 0) if dist.get_rank() == 1 else 0
    with pytest.raises((TypeError, libckpt.CheckpointError)) as caught:
        libckpt.Checkpointer(store, {"x": value})
    return str(caught.value)


def test_other_ranks_hear_what_a_constructor_refuses(tmp_path: Path, store: Path) -> None:
    for said in together(2, tmp_path, be_refused, store):
        assert "state['x'] is a builtins.function" in said
