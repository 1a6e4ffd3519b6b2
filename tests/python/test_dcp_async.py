# SPDX-License-Identifier: Apache-2.0
"""torch's own ways through libckpt.dcp: saving behind the loop, planners."""

from __future__ import annotations

import gc
import io
import logging
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import Net, assert_same
from dcp_steps import load, save, steps
from libckpt.dcp import Stager, StorageReader, StorageWriter, close
from libckpt.dcp._stager import _Copies
from torch.distributed.checkpoint.planner import WriteItemType
from waiting import result_of, until

import libckpt

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]


# async_save().


class Thing:
    """An object that no checkpoint holds unless it is pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("staged", [False, True])
def test_dicts_with_objects_are_saved_again_and_again(store: Path, staged: bool) -> None:
    stager = Stager() if staged else None
    state = {"a": torch.zeros(1000), "thing": Thing(0), "inner": {"x": [1, Thing(7)]}}
    for step in (1, 2, 3):
        state["a"].fill_(step)
        state["thing"] = Thing(step)
        future: Any = dcp.async_save(
            state,
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, allow_pickle=True),
            async_stager=stager,
        )
        state["a"].fill_(-1)
        state["thing"].number = -1
        result_of(future)
    for step in (1, 2, 3):
        found = {"a": torch.zeros(1000), "thing": None, "inner": {"x": None}}
        with pytest.raises(dcp.CheckpointException, match="allow_pickle=True only if you trust"):
            load(store, found, step=step)
        load(store, found, step=step, allow_pickle=True)
        assert found["a"].eq(step).all()
        assert found["thing"] == Thing(step)
        assert found["inner"]["x"] == [1, Thing(7)]


def test_an_object_is_refused_by_its_name(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(store, 1, {"a": torch.ones(2)})
    state = {"a": torch.ones(2), "inner": {"x": [1, Thing(7)]}}
    with pytest.raises(dcp.CheckpointException, match=r"state\['inner'\]\['x'\]\[1\] is a .*Thing"):
        save(store, 2, state)
    assert steps(store) == [(1, 1)]
    with caplog.at_level(logging.WARNING, "libckpt"):
        save(store, 3, state, allow_pickle=True)
    assert "state['inner']['x'][1]" in caplog.text
    assert steps(store) == [(3, 1), (1, 1)]


def test_saves_may_overlap(store: Path) -> None:
    stager = Stager()
    futures: list[Any] = []
    state = {"a": torch.zeros(1 << 20)}
    for step in range(1, 6):
        state["a"].fill_(step)
        writer = StorageWriter(store)
        futures.append(
            dcp.async_save(
                state, checkpoint_id=str(step), storage_writer=writer, async_stager=stager
            )
        )
    until(lambda: all(future.done() for future in futures))
    failed = [future.exception() for future in futures]
    # Which one starts first is for the threads to say: what a later one has overtaken is refused.
    good = [step for step, error in zip(range(1, 6), failed, strict=True) if error is None]
    assert good[-1] == 5
    assert [step for step, _ in steps(store)] == good[::-1]
    for error in failed:
        assert error is None or "is not after step" in str(error), error
    for step in good:
        load(store, state, step=step, resume=False)
        assert state["a"].eq(step).all()


def test_a_store_may_be_closed_beside_a_save(store: Path) -> None:
    """Either it is committed and so says its future, or it is given up and raises; all go on."""
    draw, stager, saved = random.Random(5), Stager(), [0]
    longest = 0.03
    for step in range(1, 41):
        future: Any = dcp.async_save(
            {"a": torch.full((100_000,), float(step))},
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, pool_bytes=1 << 20),
            async_stager=stager,
        )
        # Anywhere in it, however long it takes here.
        threading.Event().wait(draw.uniform(0, longest))
        close(store)
        try:
            result_of(future)
            saved.append(step)
            longest *= 0.8
        except dcp.CheckpointException as error:
            (why, _) = error.failures[0]
            assert isinstance(why, libckpt.CheckpointError), why
            assert not isinstance(why, libckpt.NotResumedError), why
            longest *= 1.25
        close(store)
        newest = libckpt.list_steps(store)[0].step if len(saved) > 1 else 0
        assert newest == saved[-1], step
    assert len(saved) > 1
    save(store, 100, {"a": torch.ones(3)})
    assert [step for step, _ in steps(store)] == [100, *reversed(saved[1:])]


def test_staged_memory_is_used_again_and_never_while_it_is_in_use() -> None:
    stager = Stager()
    net = Net()
    state = {"model": net.state_dict(), "n": torch.arange(3)[1:], "v": [1, {"x": torch.ones(1)}]}
    truth = {name: tensor.clone() for name, tensor in state["model"].items()}
    first = stager.stage(state)
    second = stager.stage(state)
    places = [staged["model"]["down.weight"].data_ptr() for staged in (first, second)]
    assert places[0] != places[1]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7)
    assert_same(dict(first["model"]), truth)
    assert_same(first["n"], state["n"])
    assert first["v"] is not state["v"]
    tied = first["model"]["embed.weight"], first["model"]["head.weight"]
    assert tied[0].data_ptr() == tied[1].data_ptr()

    # One tensor of it is enough to keep it.
    kept = first["model"]["down.bias"]
    del first
    gc.collect()
    third = stager.stage(state)
    assert third["model"]["down.weight"].data_ptr() not in places
    del kept, second, tied
    gc.collect()
    fourth = stager.stage(state)
    assert fourth["model"]["down.weight"].data_ptr() in places
    stager.close()
    assert fourth["model"]["down.weight"].eq(7).all()
    with pytest.raises(libckpt.UnsupportedStateError, match="cannot be staged"):
        stager.stage({"a": torch.eye(3).to_sparse()})


def test_what_is_seen_otherwise_has_a_copy_of_its_own() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    staged = Stager().stage({"z": z, "conj": z.conj(), "neg": z.conj().imag, "imag": z.imag})
    assert torch.equal(staged["z"], z)
    assert torch.equal(staged["conj"], z.conj())
    assert torch.equal(staged["neg"], z.conj().imag)
    assert torch.equal(staged["imag"], z.imag)


def test_every_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    copies = _Copies()
    copies.devices = {torch.device("cuda:0"), torch.device("cuda:1")}
    copies.fill(torch.empty(0, dtype=torch.uint8))
    assert set(waited) == copies.devices


# Planners.


class Caching(dcp.DefaultSavePlanner):
    """What torch keeps of its plans it keeps by the name of the class."""


@pytest.mark.parametrize("caching", [False, True])
def test_plans_may_be_kept(store: Path, caching: bool) -> None:
    for step in range(1, 5):
        state = {"a": torch.full((5,), float(step)), "n": step, "t": (step,)}
        if step == 4:
            state["new"] = torch.ones(2)
        save(store, step, state, Caching(enable_plan_caching=caching))
    for step in range(1, 5):
        found: dict[str, Any] = {"a": torch.zeros(5), "n": 0, "t": None}
        load(store, found, step=step)
        assert found["a"].eq(step).all()
        assert (found["n"], found["t"]) == (step, (step,))
    assert libckpt.load(store, names=["new"])["new"].eq(1).all()


def test_a_state_need_not_be_flattened(store: Path) -> None:
    state = {"a": torch.arange(3), "b": {"c": (1, 2)}}
    save(store, 1, state, dcp.DefaultSavePlanner(flatten_state_dict=False))
    found: dict[str, Any] = {"a": torch.zeros(3, dtype=torch.int64), "b": None}
    reader = StorageReader(store)
    assert reader.read_metadata().planner_data is None
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(found, storage_reader=reader, planner=planner)
    assert found["b"] == {"c": (1, 2)}
    assert torch.equal(found["a"], state["a"])


class Doubling(dcp.DefaultSavePlanner):
    """Saves something else than it has found."""

    def transform_object(self, write_item: Any, value: Any) -> Any:
        tensor = write_item.type != WriteItemType.BYTE_IO
        return super().transform_object(write_item, (value.double() if tensor else value) * 2)

    def create_local_plan(self) -> Any:
        self.state_dict = {
            name: value.double() if isinstance(value, torch.Tensor) else value
            for name, value in self.state_dict.items()
        }
        return super().create_local_plan()


def test_a_planner_may_give_something_else(store: Path) -> None:
    save(store, 1, {"a": torch.arange(4.0), "b": {"n": 21}}, Doubling())
    found: dict[str, Any] = {"a": torch.zeros(4, dtype=torch.float64), "b": {"n": 0}}
    load(store, found)
    assert torch.equal(found["a"], torch.arange(4, dtype=torch.float64) * 2)
    assert found["b"]["n"] == 42


class Own(dcp.DefaultSavePlanner):
    def transform_object(self, write_item: Any, value: Any) -> Any:
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(b"own " + str(value).encode())
        return value


class OwnLoad(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.original_state_dict[read_item.dest_index.fqn] = value.getvalue()


def test_bytes_of_a_planner_need_to_be_allowed(store: Path) -> None:
    with pytest.raises(dcp.CheckpointException, match="n: Own gives bytes of its own"):
        save(store, 1, {"n": 5}, Own())
    save(store, 2, {"n": 5}, Own(), allow_pickle=True)
    found = {"n": None}
    with pytest.raises(dcp.CheckpointException, match="only if you trust"):
        load(store, found, OwnLoad())
    load(store, found, OwnLoad(), allow_pickle=True)
    assert found["n"] == b"own 5"
