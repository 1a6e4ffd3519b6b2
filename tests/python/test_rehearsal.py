# SPDX-License-Identifier: Apache-2.0
"""What resume() would fail with is found before it is needed, and nothing is harmed by that."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Training, assert_same
from libckpt._slices import boxes
from libckpt._turn import turn_file
from ranks import Job, together
from waiting import until

import libckpt
from libckpt import _rehearsal, _rehearse


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


# By itself, behind the loop.


@contextmanager
def turn_taken(store: Path) -> Iterator[None]:
    """Somebody else on this node has the turn."""
    with open(turn_file(str(store)), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    os.unlink(file.name)


def rehearsing() -> bool:
    return any(thread.name == "libckpt-rehearsal" for thread in threading.enumerate())


def go_on(ckpt: libckpt.Checkpointer, steps: int = 5) -> list[str]:
    """Calls step() until the rehearsal is over; the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        numbers = iter(range(steps, 1 << 40))

        def over() -> bool:
            ckpt.step(next(numbers))
            return ckpt._core.rehearsal is not None and ckpt._core.rehearsal._over

        until(over, "the rehearsal to be over")
    assert all(issubclass(one.category, libckpt.CheckpointWarning) for one in seen)
    assert all(one.filename == __file__ for one in seen), [one.filename for one in seen]
    return [str(one.message) for one in seen]


def test_it_is_tried_after_the_first_step(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rehearsal, "_SLICE", 1 << 10)
    training, state = everything()
    with (
        caplog.at_level(logging.INFO, "libckpt"),
        libckpt.Checkpointer(store, state, every=4) as ckpt,
    ):
        assert ckpt.resume() == 0
        assert not rehearsing()
        ckpt.step(4).wait()
        before, drawn = training.snapshot(), generators()
        assert go_on(ckpt, 5) == []
        assert_same(before, training.snapshot())
        assert_same(generators(), drawn)
        said = [one.message for one in caplog.records if one.message.startswith("rehearsal:")]
        assert len(said) == 1, said
        assert "load_state_dict() was called of 3 objects" in said[0]
        assert "not tried" not in said[0]
        until(lambda: not rehearsing(), "its thread to end")
        assert not os.path.exists(turn_file(ckpt._core.engine.path))


def test_an_object_that_refuses_is_found(opened: Any) -> None:
    ckpt = opened({"odd": Refuses(), "kept": torch.ones(3)}, rehearse=True)
    ckpt.save(1).wait()
    (said,) = go_on(ckpt)
    assert "resume() would fail: ValueError: version 2 is not known" in said
    assert "state['odd']" in said
    ckpt.save(9_999_999_999).wait()  # no harm is done


def test_damage_is_found(opened: Any, store: Path) -> None:
    ckpt = opened({"weights": torch.arange(50_000)}, rehearse=True)
    with turn_taken(store):
        ckpt.save(1).wait()
        until(lambda: ckpt.step(2) is None and ckpt._core.rehearsal._go.is_set(), "the comparison")
        (shard,) = store.rglob("*.safetensors")
        data = bytearray(shard.read_bytes())
        data[-1000] ^= 1
        shard.chmod(0o600)
        shard.write_bytes(data)
    (said,) = go_on(ckpt)
    assert "IntegrityError" in said
    assert shard.name in said


def test_it_ends_with_the_checkpointer(opened: Any, store: Path) -> None:
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    with turn_taken(store):
        ckpt.save(1).wait()
        until(lambda: ckpt.step(2) is None and ckpt._core.rehearsal._go.is_set(), "the comparison")
        assert rehearsing()
        ckpt.close()
        assert not rehearsing()


def test_it_can_be_turned_off_and_follows_no_resume(opened: Any, store: Path) -> None:
    with opened({"odd": Refuses()}, rehearse=False) as ckpt:
        ckpt.save(1).wait()
        ckpt.step(2)
        assert not rehearsing()
    with opened({"odd": Forgets()}, path=f"{store}-2", rehearse=False) as ckpt:
        ckpt.save(1).wait()
    with opened({"odd": Forgets()}, path=f"{store}-2", rehearse=True) as ckpt:
        assert ckpt.resume() == 1  # which has tried it
        ckpt.save(2).wait()
        ckpt.step(3)
        assert not rehearsing()
    with pytest.raises(TypeError, match="rehearse must be True or False"):
        opened({}, path=f"{store}-3", rehearse=1)


class Talks:
    """Would wait for another rank."""

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.distributed.all_reduce(torch.tensor(state["version"]))


def all_rehearse(place: Path, layout: str) -> tuple[str, str, list[str]]:
    """On each rank: how a healthy job goes, one in which rank 1 refuses, and that by itself."""
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
    with libckpt.Checkpointer(place / "store", odd, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
        return str(report), told, go_on(ckpt)


@pytest.mark.parametrize("layout", ["fsdp"])
def test_ranks_rehearse(tmp_path: Path, layout: str) -> None:
    answers = together(2, tmp_path, all_rehearse, tmp_path, layout)
    assert [told.partition(":")[0] for _, told, _ in answers] == ["CheckpointError", "ValueError"]
    assert "rank 1" in answers[0][1]
    assert answers[0][2] == []
    (said,) = answers[1][2]
    assert "version 2 is not known" in said
    assert not list(tmp_path.glob("libckpt-rehearsal-*"))
