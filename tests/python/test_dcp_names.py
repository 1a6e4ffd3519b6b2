# SPDX-License-Identifier: Apache-2.0
"""What loads through libckpt.dcp that it did not save, and what is no checkpoint."""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import Training, assert_same, bits
from dcp_steps import app, blank, load, save, steps, trained
from libckpt.dcp import StorageReader, _contents, convert
from libckpt.dcp.__main__ import main as convert_program
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.state_dict import (
    set_state_dict,
)

import libckpt

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]


# Steps of a Checkpointer, and of others.


def native(store: Path, training: Training) -> None:
    extra = {"list": [1, {"t": torch.arange(3)}], "pairs": {1: "one", "two": (2, np.arange(3))}}
    with libckpt.Checkpointer(store, {**training.state, **extra}, pool_bytes=1 << 20) as ckpt:
        ckpt.save(5).wait()


def test_a_native_step_is_loaded(store: Path) -> None:
    training, other = trained(), trained(seed=9, steps=0)
    native(store, training)
    found: dict[str, Any] = {
        **app(other),
        "scheduler": other.scheduler,
        "list": [0, {"t": torch.zeros(3, dtype=torch.int64)}],
        "pairs": {1: None, "two": None},
    }
    reader = load(store, found)
    assert reader.bytes_read
    set_state_dict(
        other.model,
        other.optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    now, then = other.snapshot(), training.snapshot()
    for what in ("model", "optimizer", "scheduler"):
        assert_same(now[what], then[what])
    assert found["list"][0] == 1
    assert torch.equal(found["list"][1]["t"], torch.arange(3))
    assert found["pairs"]["two"][0] == 2
    # What is saved next continues from there.
    save(store, 6, {"a": torch.ones(1)})
    assert steps(store) == [(6, 2), (5, 1)]


def test_a_native_step_answers_to_other_names(store: Path) -> None:
    training, other = trained(), trained(seed=9, steps=0)
    native(store, training)
    # The model alone, by the names that it has there.
    model = other.model.state_dict()
    load(store, model)
    assert_same(dict(model), dict(training.model.state_dict()))
    # An optimizer that is flat.
    flat = app(other, flatten_optimizer_state_dict=True)
    load(store, flat)
    want = app(training, flatten_optimizer_state_dict=True)
    assert_same(flat["optimizer"], want["optimizer"])
    # The optimizer by the names of the format.
    name = "optimizer/state/down.weight/exp_avg"
    one = {name: torch.zeros(8, 16)}
    load(store, one, dcp.DefaultLoadPlanner(flatten_state_dict=False))
    assert bits(one[name]) == bits(training.optimizer.state[training.model.down.weight]["exp_avg"])


def test_a_step_of_another_program_is_loaded(store: Path, tmp_path: Path) -> None:

    native(store, trained())
    place = tmp_path / "golden"
    shutil.copytree(Path(__file__).resolve().parents[1] / "golden" / "v1", place)
    next(place.glob("g*/*/quarantine.json")).unlink()
    names = set(StorageReader(place).read_metadata().state_dict_metadata)
    names -= {"layers.0.weight", "tied.weight"}  # a few rows of some petabytes
    whole = state_dict_loader._load_state_dict_from_keys(
        names, storage_reader=StorageReader(place, "latest")
    )
    assert_same(whole, libckpt.load(place, names=names))
    whole = state_dict_loader._load_state_dict_from_keys(
        {"model"}, storage_reader=StorageReader(store)
    )
    assert list(whole) == ["model"]
    assert whole["model"]["down.weight"].shape == (8, 16)


# Checkpoints that are strange.


@pytest.mark.filterwarnings("ignore:step 1 of")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "of version 2.* install a newer one"),
        ({"version": None}, "install a newer one"),
        ({"paths": {"n": ["n", 1 << 40]}}, "malformed.*lists that no state has"),
        ({"paths": {"n": [-1]}}, "malformed.*the index -1"),
        ({"paths": {"n": []}}, "malformed.*the path"),
        ({"paths": {"n": [None]}}, "malformed.*the path"),
        ({"paths": [1]}, "malformed"),
        ({"values": 7}, "malformed"),
        ({"values": {"n": {"$nonsense": 1}}}, "nonsense"),
        ({"values": {"n": {"$tensor": "gone"}}}, "names the tensor 'gone'"),
        ({"values": {"n": {"$tuple": 5}}}, "malformed"),
        ({"values": {"n": {"$pickle": "gAROLg=="}}}, "only if you trust"),
        ({"values": {"n": {"$bytes": "YQ=="}}, "raw": ["n"]}, "only if you trust"),
        ({"raw": 5}, "malformed"),
        ({"planner": {"$nonsense": 1}}, "nonsense"),
    ],
)
def test_a_strange_state_is_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    real = _contents.dump
    with monkeypatch.context() as patched:
        patched.setattr(_contents, "dump", lambda node: real({"dcp": {**node["dcp"], **change}}))
        save(store, 1, {"a": torch.ones(2), "n": 5})
    with pytest.raises(dcp.CheckpointException) as caught:
        load(store, {"a": torch.zeros(2), "n": 0})
    assert re.search(said, str(caught.value)), str(caught.value)[-500:]


# Checkpoints of torch's own writer.


def test_a_checkpoint_of_torch_is_converted(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = trained()
    state = {**app(training), "values": {"n": (1, 2), "list": [{"x": torch.ones(2)}, 3]}}
    place = tmp_path / "torch" / "step-40"
    dcp.save(state, checkpoint_id=place)
    assert convert(place, store) == 40
    by_torch, by_us = blank(state), blank(state)
    by_torch["values"]["list"][1] = by_us["values"]["list"][1] = 0
    dcp.load(by_torch, checkpoint_id=place)
    load(store, by_us)
    assert_same(by_us, by_torch)
    assert_same(by_us["values"], state["values"])
    mine = StorageReader(store).read_metadata()
    torchs = dcp.FileSystemReader(place).read_metadata()
    assert set(mine.state_dict_metadata) == set(torchs.state_dict_metadata)
    assert mine.planner_data == torchs.planner_data

    arguments = ["libckpt.dcp", str(place), str(tmp_path / "other")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--step", "41"])
    assert convert_program() == 0
    assert capsys.readouterr().out == f"step 41 of {tmp_path / 'other'}\n"
    monkeypatch.setattr(sys, "argv", [*arguments, "--step", "40"])
    assert convert_program() == 1
    assert capsys.readouterr().err.startswith("libckpt.dcp: step 40 is not after step 41")
    monkeypatch.setattr(sys, "argv", [*arguments, "--step", "3", "--new-start"])
    assert convert_program() == 0
    assert steps(tmp_path / "other") == [(3, 2)]


def test_a_checkpoint_of_ours_is_converted_back(store: Path, tmp_path: Path) -> None:

    state = {"a": torch.randn(3), "b": {"c": 5}}
    save(store, 1, state)
    whole = state_dict_loader._load_state_dict_from_keys(storage_reader=StorageReader(store))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(whole, checkpoint_id=tmp_path / "torch")
    found = blank(state)
    dcp.load(found, checkpoint_id=tmp_path / "torch")
    assert_same(found, state)
