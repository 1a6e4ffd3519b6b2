# SPDX-License-Identifier: Apache-2.0
"""What resume() would fail with is found before it is needed, and nothing is harmed by that."""

from __future__ import annotations

import collections
import math
import os
import random
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Training, assert_same
from libckpt._equality import differences
from libckpt._gathering import Rendezvous
from libckpt._slices import boxes
from ranks import Job, together
from waiting import until

import libckpt
from libckpt import _reader, _rehearse, _rng, _throwaway


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
    report = libckpt.rehearse(state, tmp_path, try_load=["loader", "*/drawing"])
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
        libckpt.rehearse(state, tmp_path, try_load=["loader"])
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
        libckpt.rehearse({"odd": Refuses()}, tmp_path, try_load=["odd"])
    with pytest.raises(libckpt.MismatchError, match=r"\['odd'\].state_dict\(\)\['seen'\]"):
        libckpt.rehearse({"odd": Forgets()}, tmp_path, try_load=["odd"])
    module = Halved(2, 2)
    weight = module.weight.detach().clone()
    with pytest.raises(libckpt.MismatchError, match="weight is not what the checkpoint holds"):
        libckpt.rehearse({"model": module}, tmp_path, try_load=["model"])
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


class Own(torch.nn.Linear):
    """A module with a load_state_dict() of its own."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.asked = 0

    def load_state_dict(self, state: Any, **options: Any) -> Any:
        return super().load_state_dict(state, **options)


class Sums(Own):
    """A module that looks at its elements to say what it is."""

    def state_dict(self, **options: Any) -> Any:
        assert self.weight.sum().item() == self.weight.sum().item()
        return super().state_dict(**options)


class Holds:
    """Has a tensor, and whatever it is given."""

    def __init__(self, size: int = 4, more: Any = None) -> None:
        self.weights = torch.ones(size)
        self.more = more

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


class Scales(Holds):
    """Needs a number out of its tensor."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"] * self.weights[0].item()


class Equals(Holds):
    """Compares its tensor, which has to have elements for that."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(self.weights, self.weights)


def names(untried: tuple[str, ...]) -> list[str]:
    return [said.partition(":")[0] for said in untried]


def test_code_of_the_user_is_called_only_if_listed(tmp_path: Path) -> None:
    one, weights = OneOnly(), torch.ones(3)
    held = one.held
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    state = {
        "refuses": Refuses(),
        "module": Halved(2, 2),
        "hooked": torch.nn.Linear(2, 2),
        "curve": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        "pickled": Odd(),
        "one": one,
        "lends": Holds(more=lambda: weights),
    }
    state["hooked"].register_load_state_dict_post_hook(lambda *_: pytest.fail("it is called"))
    report = libckpt.rehearse(state, tmp_path, allow_pickle=True, try_load=["one", "lends"])
    assert report.loaded == ()
    assert set(names(report.untried)) == {f"state[{key!r}]" for key in state}
    assert one.held is held
    report = libckpt.rehearse(state, tmp_path, allow_pickle=True, try_load=["curve", "pickled"])
    assert report.loaded == ("state['curve']",)
    assert "state['pickled']" not in names(report.untried)
    with pytest.raises(TypeError, match="try_load must be a list"):
        libckpt.rehearse(state, tmp_path, try_load="one")


class Odd:
    """A value that can only be pickled."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Odd

    __hash__ = None  # type: ignore[assignment]


def test_copies_without_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, here with what is on the CPU."""
    monkeypatch.setattr(
        _throwaway._Graph, "_add_tensor", lambda graph, value, _: graph.hollow.append(value)
    )
    objects = (Own(2, 3), Holds(), Sums(2, 3), Scales(), Equals())
    state = {type(one).__name__.lower(): one for one in objects}
    report = libckpt.rehearse(state, tmp_path, try_load=["*"])
    assert report.loaded == ("state['own']", "state['holds']")
    assert names(report.untried) == ["state['sums']", "state['scales']", "state['equals']"]
    (uncompared,) = report.uncompared
    assert uncompared.startswith("state['own'].state_dict()['weight'], ")
    assert f"(but not {uncompared})" in str(report)
    assert "does not have their elements" in uncompared


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    allocate = _reader._allocate

    def note(what: Any, *rest: Any) -> Any:
        made.append(what.name)
        return allocate(what, *rest)

    monkeypatch.setattr(_reader, "_allocate", note)
    monkeypatch.setattr(_rehearse, "_OBJECTS", 200_000)  # half of it is for what is given
    monkeypatch.setattr(_throwaway, "_OBJECTS", 2000)
    array = np.arange(3000.0)
    array.flags.writeable = False
    state = {
        "expanded": torch.ones(1).expand(9000),
        "fixed": array,
        "broad": np.broadcast_to(np.ones(1), 3000),
        "left": Holds(15_000),
        "holds": Holds(15_000),
        "many": Holds(more=[0] * 3000),
        "large": Holds(more=[set() for _ in range(600)]),
    }
    report = libckpt.rehearse(state, tmp_path, try_load=["holds", "many", "large"])
    # What was refused has given its memory back.
    assert report.loaded == ("state['holds']",)
    assert names(report.untried) == ["state['left']", "state['many']", "state['large']"]
    assert "more than 2000 objects" in report.untried[1]
    assert "a copy of it takes" in report.untried[2]
    assert not {"expanded", "fixed", "broad"} & set(made)


def test_what_is_replaced_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and arrays that cannot take bytes."""
    one, numbers = torch.ones(1), np.ones(1)
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["seen"] = torch.full((1,), 7.0).expand(4)
    state = {
        "model": torch.nn.ParameterList([parameter]),
        "optimizer": optimizer,
        "expanded": one.expand(5),
        "broad": np.broadcast_to(numbers, 5),
    }
    assert libckpt.rehearse(state, tmp_path).untried == ()
    compared = _rehearse._try

    def differ(*args: Any, **options: Any) -> Any:
        one[0] = numbers[0] = 2
        return compared(*args, **options)

    monkeypatch.setattr(_rehearse, "_try", differ)
    with pytest.raises(libckpt.MismatchError, match=r"a restore changes these: expanded; broad$"):
        libckpt.rehearse(state, tmp_path)


def test_values_are_compared_to_the_bit() -> None:
    nan = float("nan")

    def values(number: float) -> list[Any]:
        return [
            np.float32(number),
            np.datetime64("NaT" if math.isnan(number) else "2020-01-01"),
            Decimal(number),
            collections.deque([torch.tensor([number, 1.0]), number]),
            {number, 1.0},
        ]

    assert list(differences(values(nan), values(nan), "x")) == []
    assert len(list(differences(values(nan), values(2.0), "x"))) == 6


def test_room_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = SimpleNamespace(f_bavail=1, f_frsize=4096, f_blocks=2)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    state = {"some": torch.ones(1024), "left": Own(99, 99)}  # which may save less than it has
    assert len(libckpt.rehearse(state, tmp_path).untried) == 1
    with pytest.raises(libckpt.StorageError, match="give a directory with more room"):
        libckpt.rehearse({"model": torch.nn.Linear(32, 32)}, tmp_path)
    # Some file systems do not say.
    room.f_bavail = room.f_blocks = 0
    assert libckpt.rehearse({"model": torch.nn.Linear(32, 32)}, tmp_path).untried == ()
    assert not list(tmp_path.rglob("libckpt-rehearsal-*"))


def test_generators_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of GPUs as well; those that have not moved are left alone."""
    gpu = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))
    before = (*generators(), gpu.get_state())
    put_back = _rng.keep()
    random.random(), np.random.rand(), torch.rand(1), gpu.manual_seed(5)
    put_back()
    assert_same((*generators(), gpu.get_state()), before)
    for module, name in ((random, "setstate"), (np.random, "set_state"), (torch, "set_rng_state")):
        monkeypatch.setattr(module, name, lambda _: pytest.fail("it has not moved"))
    _rng.keep()()


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
    talking = libckpt.rehearse({"odd": Talks()}, place, try_load=["odd"])
    assert talking.untried == ("state['odd']: it talks to other ranks",), talking
    # Of buffers that DDP broadcasts rank 0's are saved for all, and those of others not compared.
    torch.manual_seed(7)
    normed = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 4))
    inner = torch.nn.Sequential(normed, torch.nn.BatchNorm1d(4))
    model = torch.nn.parallel.DistributedDataParallel(inner)
    model(torch.ones(5, 4) + rank)
    report = libckpt.rehearse({"model": model}, place)
    assert report.loaded == ("state['model']",), report
    passed = ["rank 0 saves these buffers for all ranks"] * (rank > 0)
    assert [why.rpartition(": ")[2] for why in report.uncompared] == passed, report
    assert all("state['model'].state_dict()['1.running_mean']" in why for why in report.uncompared)
    # Others are each rank's own.
    inner[0].weight_u.copy_(torch.ones(4))
    for one in (inner, inner[1]):
        report = libckpt.rehearse({"model": one}, place)
        assert report.uncompared == (), report
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            room = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1)
            patch.setattr(os, "statvfs", lambda _: room)
        with pytest.raises(libckpt.CheckpointError, match="more room"):
            libckpt.rehearse(job.state, place)
    odd = {**job.state, "odd": Talks() if rank == 0 else Refuses()}
    try:
        libckpt.rehearse(odd, place, try_load=["odd"])
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


def end_interrupted(place: Path) -> tuple[str, int | None, bool]:
    """Rank 0 is interrupted: what the others hear, and who may remove what they share."""
    meeting = Rendezvous(str(place), None, 20.0)
    rank, error, last = torch.distributed.get_rank(), None, False
    for turn in range(3):
        if turn == rank:
            error = meeting.end(KeyboardInterrupt() if rank == 0 else None)
            last = meeting.is_over or meeting.is_last()
        torch.distributed.barrier()
    return type(error).__name__, getattr(error, "rank", None), last


def test_others_hear_that_rank_0_is_interrupted(tmp_path: Path) -> None:
    assert together(3, tmp_path, end_interrupted, tmp_path) == [
        ("NoneType", None, False),
        ("CheckpointError", 0, False),
        ("CheckpointError", 0, True),
    ]


class Interrupted:
    """Ctrl-C on one rank. The other one goes on when that rank has left."""

    def __init__(self, place: Path, store: Path, whom: int) -> None:
        self.place, self.store, self.whom = str(place), str(store), whom

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1}

    def load_state_dict(self, _: Any) -> None:
        if torch.distributed.get_rank() == self.whom:
            raise KeyboardInterrupt
        until((Path(self.place) / f"left-{self.whom}").exists)
        (store,) = Path(self.store).glob("libckpt-rehearsal-*")
        assert (store / "ckpt.json").exists()


def rehearse_interrupted(place: Path) -> list[str]:
    rank = torch.distributed.get_rank()
    told = []
    os.environ["LIBCKPT_NODE"] = f"n{rank}"
    nodes = place / f"node{rank}"
    nodes.mkdir()
    for whom, store in ((0, place), (1, place), (0, nodes)):
        try:
            state = {"odd": Interrupted(place, store, whom), "plain": torch.ones(3)}
            by_node = store is nodes
            told.append(str(libckpt.rehearse(state, store, try_load=["odd"], node_store=by_node)))
        except BaseException as error:
            told.append(type(error).__name__)
        (place / f"left-{rank}").touch()
        torch.distributed.barrier()
        assert not list(place.rglob("libckpt-rehearsal-*"))
        (place / f"left-{rank}").unlink()
        torch.distributed.barrier()
    return told


def test_who_is_interrupted_leaves_the_store_to_the_others(tmp_path: Path) -> None:
    """And the last of them removes it."""
    assert together(2, tmp_path, rehearse_interrupted, tmp_path) == [
        ["KeyboardInterrupt", "CheckpointError", "KeyboardInterrupt"],
        ["CheckpointError", "KeyboardInterrupt", "CheckpointError"],
    ]
