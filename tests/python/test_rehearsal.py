# SPDX-License-Identifier: Apache-2.0
"""What resume() would fail with is found before it is needed, and nothing is harmed by that."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Training, assert_same
from libckpt._slices import boxes
from ranks import Job, together

import libckpt
from libckpt import _rehearse


class Refuses:
    """Gives a state that it does not take."""

    def state_dict(self) -> dict[str, Any]:
        return {"version": 2}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["version"] != 1:
            raise ValueError(f"version {state['version']} is not known")


class Draws:
    """Draws from the generators of all."""

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.random(), np.random.rand(), torch.rand(state["version"])


class Forgets:
    """Takes a state, and has another one then."""

    def __init__(self) -> None:
        self.seen = [1, 2]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen), "weights": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"][:1]


class Halved(torch.nn.Linear):
    """A module that does not load what it has saved."""

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] / 2
        super()._load_from_state_dict(state, prefix, *rest)


def everything() -> tuple[Training, dict[str, Any]]:
    """A training with some steps behind it, and all kinds of values."""
    training = Training()
    for _ in range(3):
        training.step()
    more = {
        "array": np.arange(600.0).reshape(20, 30),
        "wide": torch.randn(3, 700).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "values": {"seen": {1, 2}, "lr": float("nan"), "raw": b"x" * 5000},
        "drawing": Draws(),
        "draws": np.random.default_rng(3),
    }
    return training, {**training.state, "more": more}


def generators() -> Any:
    _, words, *rest = np.random.get_state()
    return random.getstate(), words.tobytes(), rest, torch.get_rng_state()


def test_boxes_are_all_of_a_tensor() -> None:
    for shape in ((), (0, 3), (7,), (5, 6, 7), (1, 1, 90)):
        seen = np.zeros(shape, dtype=int)
        for start, size in boxes(shape, 4, 60):
            assert np.prod(size) * 4 <= 60
            seen[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))] += 1
        assert (seen == 1).all()


def test_a_healthy_state_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rehearse, "_SLICE", 1 << 10)  # less than its tensors
    training, state = everything()
    before, drawn = training.snapshot(), generators()
    report = libckpt.rehearse(state, tmp_path)
    assert report.untried == ()
    objects = {"state['scheduler']", "state['loader']", "state['more']['drawing']"}
    assert set(report.loaded) == objects
    assert report.nbytes > 10_000
    assert report.tensors > 20
    assert_same(before, training.snapshot())
    assert_same(generators(), drawn)
    assert list(tmp_path.iterdir()) == []


def test_every_kind_of_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, state = everything()
    compared = _rehearse._try

    def differ(*args: Any, **options: Any) -> Any:
        """The live state is another one than was saved."""
        state["more"]["array"][7, 8] = -0.0
        state["more"]["wide"][3, 1] += 1
        state["more"]["values"]["seen"].add(3)
        training.optimizer.param_groups[0]["lr"] *= 2
        training.loader.position += 1
        with torch.no_grad():
            training.model.down.bias[2] += 1
        return compared(*args, **options)

    state["more"]["array"][7, 8] = 0.0
    monkeypatch.setattr(_rehearse, "_try", differ)
    with pytest.raises(libckpt.MismatchError) as caught:
        libckpt.rehearse(state, tmp_path)
    said = str(caught.value)
    for name in (
        "more/array",
        "more/wide",
        "down.bias",
        "state['more']['values']['seen']",
        "state['optimizer']['param_groups'][0]['lr']",
        "state['loader'].state_dict()['position']",
    ):
        assert name in said, said
    assert said.count(";") == 5, said


def test_what_does_not_come_back_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="version 2 is not known"):
        libckpt.rehearse({"odd": Refuses()}, tmp_path)
    with pytest.raises(libckpt.MismatchError, match=r"\['odd'\].state_dict\(\)\['seen'\]"):
        libckpt.rehearse({"odd": Forgets()}, tmp_path)
    module = Halved(2, 2)
    weight = module.weight.detach().clone()
    with pytest.raises(libckpt.MismatchError, match="weight is not what the checkpoint holds"):
        libckpt.rehearse({"model": module}, tmp_path)
    assert torch.equal(module.weight, weight)
    assert list(tmp_path.iterdir()) == []


class OneOnly:
    """There is one object of it: a copy would be that one."""

    only: Any = None

    def __new__(cls) -> OneOnly:
        if cls.only is None:
            cls.only = super().__new__(cls)
            cls.only.held = []
        return cls.only

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


LIVE = torch.ones(3)


class Reaches:
    """Writes to a tensor of its module."""

    def state_dict(self) -> dict[str, Any]:
        return {"live": LIVE + 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _write(state["live"])


def _write(value: torch.Tensor) -> None:
    LIVE.copy_(value)


def test_what_cannot_be_copied_is_said_and_left_alone(tmp_path: Path) -> None:
    class Lends:
        """Writes to a tensor that only a function of it knows."""

        def __init__(self) -> None:
            weights = torch.ones(3)
            self.weights = lambda: weights

        def state_dict(self) -> dict[str, Any]:
            return {"weights": self.weights() + 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.weights().copy_(state["weights"])

    lends, one = Lends(), OneOnly()
    held = one.held
    state = {"lends": lends, "one": one, "reaches": Reaches()}
    report = libckpt.rehearse(state, tmp_path)
    assert report.loaded == ()
    assert [said.partition(":")[0] for said in report.untried] == [
        f"state[{key!r}]" for key in state
    ]
    assert torch.equal(LIVE, torch.ones(3))
    assert torch.equal(lends.weights(), torch.ones(3))
    assert one.held is held


class Talks:
    """Would wait for another rank."""

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.distributed.all_reduce(torch.tensor(state["version"]))


def all_rehearse(place: Path, layout: str) -> tuple[str, str]:
    """On each rank: how a healthy job goes, and one in which rank 1 refuses."""
    job = Job(layout, 3)
    for _ in range(2):
        job.step()
    report = libckpt.rehearse(job.state, place)
    assert report.untried == (), report
    assert report.tensors > 20
    rank = torch.distributed.get_rank()
    os.environ["LIBCKPT_NODE"] = f"node-{rank}"
    (place / f"node-{rank}").mkdir()
    report = libckpt.rehearse(job.state, place / f"node-{rank}", node_store=True)
    assert report.untried == (), report
    del os.environ["LIBCKPT_NODE"]
    talking = libckpt.rehearse({"odd": Talks()}, place)
    assert talking.untried == ("state['odd']: it talks to other ranks",), talking
    odd = {**job.state, "odd": Talks() if rank == 0 else Refuses()}
    try:
        libckpt.rehearse(odd, place)
        told = ""
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    return str(report), told


@pytest.mark.parametrize("layout", ["fsdp"])
def test_ranks_rehearse(tmp_path: Path, layout: str) -> None:
    answers = together(2, tmp_path, all_rehearse, tmp_path, layout)
    assert [told.partition(":")[0] for _, told in answers] == ["CheckpointError", "ValueError"]
    assert "rank 1" in answers[0][1]
    assert not list(tmp_path.glob("libckpt-rehearsal-*"))
