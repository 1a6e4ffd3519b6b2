# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint through libckpt.dcp, in one process."""

from __future__ import annotations

import collections
import copy
import inspect
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from conftest import assert_same, bits, flip, shards, step_directory
from dcp_steps import app, blank, load, save, steps, trained
from libckpt.dcp import Stager, StorageReader, StorageWriter, close
from ranks import together
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict import (
    set_state_dict,
)

import libckpt

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).resolve().parents[2] / "build/tools"))


# The interface.


@pytest.mark.parametrize(
    ("mine", "base"), [(StorageWriter, dcp.StorageWriter), (StorageReader, dcp.StorageReader)]
)
def test_the_interface_is_that_of_the_installed_torch(mine: Any, base: Any) -> None:
    assert issubclass(mine, base)
    assert not inspect.isabstract(mine)
    for name, method in inspect.getmembers(base, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours = inspect.signature(getattr(mine, name)).parameters
        free = {kind.kind for kind in ours.values()}
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                assert parameter.VAR_POSITIONAL in free, (name, parameter)
            elif parameter.kind is parameter.VAR_KEYWORD:
                assert parameter.VAR_KEYWORD in free, (name, parameter)
            else:
                assert parameter.name in ours, (name, parameter)
                assert ours[parameter.name].kind is parameter.kind
                assert ours[parameter.name].default == parameter.default


def test_torch_gives_what_the_writer_asks_for() -> None:
    # By this name torch sees whether it may say which rank this is.
    assert "kwargs" in inspect.signature(StorageWriter.set_up_storage_writer).parameters
    # And by this, whether to ask for the metadata of one rank when that of all is broken.
    assert "kwargs" not in inspect.signature(StorageReader.read_metadata).parameters
    source = inspect.getsource(sys.modules[dcp.save.__module__])
    assert '"kwargs"' in source
    assert "rank=" in source
    assert "use_collectives=" in source
    assert hasattr(dcp.DefaultSavePlanner, "lookup_object")
    assert hasattr(dcp.DefaultSavePlanner, "transform_object")
    assert {item.name for item in WriteItemType} >= {"TENSOR", "SHARD", "BYTE_IO"}
    assert {item.name for item in LoadItemType} >= {"TENSOR", "BYTE_IO"}
    assert isinstance(Stager(), AsyncStager)
    # Or it would be taken for one when no stager is given.
    assert not isinstance(StorageWriter("x"), AsyncStager)


# What comes back.


def everything() -> dict[str, Any]:
    torch.manual_seed(3)
    shared = torch.randn(5, 3)
    return {
        "f32": torch.randn(7, 5),
        "bf16": torch.randn(3, 3).to(torch.bfloat16),
        "complex": torch.randn(4, dtype=torch.complex64),
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5),
        "int": torch.arange(11, dtype=torch.int8),
        "empty": torch.zeros(0, 4),
        "transposed": torch.randn(6, 4).t(),
        "expanded": torch.randn(1, 4).expand(3, 4),
        "tied": {"a": shared, "b": shared, "part": shared[1:3]},
        "list": [torch.ones(2), {"x": torch.zeros(3)}, 5],
        "values": {
            "int": 1 << 70,
            "float": float("-inf"),
            "text": "ünï\0code",
            "none": None,
            "tuple": (1, "a", torch.arange(4), np.arange(5)),
            "set": {1, 2},
            "bytes": b"\0" * 9000,
            "list": [1, 2, 3],
            "array": np.arange(6.0).reshape(2, 3),
            "counter": collections.Counter("abca"),
            "dtype": torch.float16,
            "empty": [],
        },
        "deep": {"er": {"and": {"deeper": [[{"x": torch.tensor([9])}]]}}},
    }


def test_everything_comes_back(store: Path) -> None:
    state = everything()
    save(store, 1, state)
    found = blank(state)
    load(store, found)
    for name in ("f32", "bf16", "complex", "conj", "bool", "scalar", "int", "empty", "transposed"):
        assert bits(found[name]) == bits(state[name]), name
        assert found[name].stride() == blank(state[name]).stride()
    assert bits(found["expanded"]) == bits(state["expanded"])
    assert_same(found["tied"], state["tied"])
    assert_same(found["list"][:2], state["list"][:2])
    assert found["list"][2] == 5
    assert_same(found["deep"], state["deep"])
    one, other = found["values"], state["values"]
    assert_same(one["tuple"][:3], other["tuple"][:3])
    for now, then in ((one["tuple"][3], other["tuple"][3]), (one["array"], other["array"])):
        assert now.dtype == then.dtype
        assert (now == then).all()
    for name in ("int", "float", "text", "none", "set", "bytes", "list", "dtype", "empty"):
        assert type(one[name]) is type(other[name])
        assert one[name] == other[name]
    assert one["counter"] == dict(other["counter"])


def test_what_is_written_is_a_step_like_any_other(store: Path) -> None:
    state = everything()
    save(store, 1, state)
    close()
    tensors = {
        name: tensor
        for name, tensor in safetensors.torch.load_file(shards(store)[-1]).items()
        if "/" not in name  # not a part of a value
    }
    assert bits(tensors["f32"]) == bits(state["f32"])
    assert bits(tensors["tied.a"]) == bits(state["tied"]["a"])
    assert "tied.b" not in tensors  # once
    loaded = libckpt.load(store)
    assert bits(loaded["tied.b"]) == bits(state["tied"]["b"])
    index = next(step_directory(store, 1).glob("*.index")).read_bytes()
    assert b'"values.tuple":{"$tuple":[1,"a",' in index
    assert b"$pickle" not in index
    done = subprocess.run([TOOLS / "ckpt-verify", store], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_state_of_another_type_and_layout_is_filled(store: Path) -> None:
    state = {"a": torch.randn(6, 4), "b": torch.randn(3), "c": torch.randn(2, 2)}
    save(store, 1, state)
    memory = torch.zeros(4, 12)
    found = {
        "a": memory[:, ::2].t(),
        "b": torch.zeros(3, dtype=torch.float64),
        "c": torch.zeros(2, 2, dtype=torch.complex64).conj(),
    }
    load(store, found)
    assert torch.equal(found["a"], state["a"])
    assert not memory[:, 1::2].any()
    assert torch.equal(found["b"], state["b"].double())
    assert torch.equal(found["c"].real, state["c"])
    with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
        load(store, {"a": torch.zeros(5, 4)})


def test_a_training_comes_back(store: Path) -> None:
    training = trained()
    state = copy.deepcopy({**app(training), "scheduler": training.scheduler.state_dict()})
    save(store, 2, {**app(training), "scheduler": training.scheduler.state_dict()})

    other = trained(seed=9, steps=0)
    found = {**app(other), "scheduler": other.scheduler.state_dict()}
    reader = load(store, found)
    set_state_dict(
        other.model,
        other.optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    other.scheduler.load_state_dict(found["scheduler"])
    assert reader.bytes_read > 0
    assert_same(app(other), app(training))
    assert_same(app(other), {name: state[name] for name in ("model", "optimizer")})
    assert_same(other.scheduler.state_dict(), training.scheduler.state_dict())
    other.loader.load_state_dict(training.loader.state_dict())
    losses = []
    for one in (training, other):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        losses.append([one.step() for _ in range(2)])
    assert losses[0] == losses[1]


def test_stateful_objects_are_asked_and_told(store: Path) -> None:
    training, other = trained(), trained(seed=5, steps=0)
    save(store, 1, {"model": training.model, "scheduler": training.scheduler})
    state = {"model": other.model, "scheduler": other.scheduler}
    load(store, state)
    assert_same(dict(other.model.state_dict()), dict(training.model.state_dict()))
    assert state["scheduler"].last_epoch == training.scheduler.last_epoch


def test_a_part_is_loaded(store: Path) -> None:
    state = {"a": torch.randn(1 << 20), "b": {"c": torch.randn(4), "d": 3}, "e": "text"}
    save(store, 1, state)
    found: dict[str, Any] = {"b": {"c": torch.zeros(4)}}
    reader = load(store, found)
    assert bits(found["b"]["c"]) == bits(state["b"]["c"])
    assert reader.bytes_read < 1 << 20

    found = {"b": {"d": 0}, "new": torch.ones(2)}
    with pytest.raises(dcp.CheckpointException, match="Missing key in checkpoint state_dict: new"):
        load(store, found)
    load(store, found, dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert found["b"]["d"] == 3
    assert found["new"].eq(1).all()


def test_only_the_rows_that_are_wanted_are_read(store: Path) -> None:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    class Rows(torch.Tensor):
        """Rows of a larger tensor, told in the way of torch.distributed.checkpoint."""

        first: int

        def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
            return [ChunkStorageMetadata(torch.Size([self.first, 0]), torch.Size([100, 1024]))]

        def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
            return self.as_subclass(torch.Tensor)

        def size(self, *dim: int) -> Any:
            return torch.Size([8192, 1024])

    state = {"a": torch.randn(8192, 1024)}
    save(store, 1, state)
    rows = torch.zeros(100, 1024).as_subclass(Rows)
    rows.first = 3000
    reader = load(store, {"a": rows})
    assert bits(rows.as_subclass(torch.Tensor)) == bits(state["a"][3000:3100])
    # Two chunks of 1 MiB hold what is wanted; the manifest and the index are small.
    assert reader.bytes_read <= (2 << 20) + 8192


# Steps and the lineage.


def test_the_name_of_a_checkpoint_ends_with_the_step(store: Path) -> None:
    state = {"a": torch.ones(2)}
    for name in ("step-3", "/runs/step_4", Path("/runs/5"), "6/"):
        dcp.save(state, checkpoint_id=name, storage_writer=StorageWriter(store))
    dcp.save(state, storage_writer=StorageWriter(store, 7))
    assert [step for step, _ in steps(store)] == [7, 6, 5, 4, 3]
    for name, step in (("x/step-4", 4), ("latest", 7), ("latest~2", 5)):
        reader = StorageReader(store, resume=False)
        dcp.load(state, checkpoint_id=name, storage_reader=reader)
        assert reader._step in (name, step)
        assert StorageReader.validate_checkpoint_id(name)

    for name in ("last", "step-", "9" * 30):
        with pytest.raises(ValueError, match=r"end with (a|the) number"):
            dcp.save(state, checkpoint_id=name, storage_writer=StorageWriter(store))
        with pytest.raises(ValueError, match=r"end with (a|the) number"):
            dcp.load(state, checkpoint_id=name, storage_reader=StorageReader(store))
        assert not StorageWriter.validate_checkpoint_id(name)
        assert not StorageReader.validate_checkpoint_id(name)
    with pytest.raises(ValueError, match="leave one of them out"):
        dcp.save(state, checkpoint_id="step-9", storage_writer=StorageWriter(store, 8))
    with pytest.raises(dcp.CheckpointException, match="the step is not known"):
        dcp.save(state, storage_writer=StorageWriter(store))
    with pytest.raises(dcp.CheckpointException, match="7"):
        dcp.save(state, checkpoint_id="step-7", storage_writer=StorageWriter(store))
    dcp.save(state, checkpoint_id="step-8", storage_writer=StorageWriter(store))
    assert steps(store)[0] == (8, 1)


def test_saving_continues_from_what_was_loaded(store: Path) -> None:
    state = {"a": torch.ones(2)}
    for step in (1, 2, 3):
        save(store, step, state)
    load(store, state)  # the newest, which this process has saved itself
    save(store, 4, state)
    assert steps(store) == [(4, 1), (3, 1), (2, 1), (1, 1)]
    load(store, state, step=2, resume=False)
    save(store, 5, state)
    assert steps(store)[0] == (5, 1)
    load(store, state, step=2)
    save(store, 3, state)
    assert steps(store) == [(3, 2), (2, 1), (1, 1)]
    # Closed and opened again, it goes on from there.
    close(store)
    save(store, 6, state)
    assert steps(store) == [(6, 3), (3, 2), (2, 1), (1, 1)]


def another(store: Path, step: int, first: bool = False, **options: Any) -> str:
    """What another process hears that saves to the store, and has loaded from it first, or not."""
    state = {"a": torch.ones(2)}
    if first:
        load(store, state)
    try:
        save(store, step, state, **options)
    except dcp.CheckpointException as error:
        return str(error)
    finally:
        close()
    return ""


def test_a_store_with_commits_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    assert together(1, tmp_path, another, store, 1) == [""]
    (said,) = together(1, tmp_path, another, store, 2)
    assert "dcp.load() and libckpt.dcp.StorageReader first" in said
    assert steps(store) == [(1, 1)]
    assert together(1, tmp_path, another, store, 2, True) == [""]
    assert steps(store) == [(2, 2), (1, 1)]
    save(store, 9, {"a": torch.ones(2)}, new_start=True)
    assert steps(store) == [(9, 3)]


def test_two_jobs_do_not_save_to_one_store(store: Path) -> None:
    save(store, 1, {"a": torch.ones(2)})
    with pytest.raises(libckpt.InUseError):
        libckpt.Checkpointer(store, {"a": torch.ones(2)}).save(2)
    with pytest.raises(dcp.CheckpointException, match="is open with keep_last=0"):
        save(store, 2, {"a": torch.ones(2)}, keep_last=2)
    close(store)
    save(store, 2, {"a": torch.ones(2)}, keep_last=1)
    assert steps(store) == [(2, 2)]


def test_nothing_to_load_is_said(store: Path) -> None:
    with pytest.raises(dcp.CheckpointException, match=str(store)):
        load(store, {"a": torch.ones(2)})
    save(store, 5, {"a": torch.ones(2)})
    with pytest.raises(dcp.CheckpointException, match="step 4"):
        load(store, {"a": torch.ones(2)}, step=4)


def test_damage_is_never_loaded(store: Path) -> None:
    for step in (1, 2, 3):
        save(store, step, {"a": torch.full((2000,), float(step))})
    close()
    shard = next(step_directory(store, 3).glob("*.safetensors"))
    flip(shard, shard.stat().st_size - 100)
    found = {"a": torch.zeros(2000)}
    with pytest.raises(dcp.CheckpointException, match="step-0000000003"):
        load(store, found)
    index = next(step_directory(store, 3).glob("*.index"))
    flip(index, 50)
    with pytest.warns(libckpt.CheckpointWarning, match="step 3 .* is passed over"):
        load(store, found)
    assert found["a"].eq(2).all()


# What is given from outside.


@pytest.mark.parametrize("kind", [StorageWriter, StorageReader])
@pytest.mark.parametrize(
    ("store", "error"),
    [
        ("", ValueError),
        ("a\0b", ValueError),
        ("s3://bucket/run", libckpt.UnsupportedError),
        ("S3+x://bucket/run", libckpt.UnsupportedError),
        (b"bytes", TypeError),
        (3, TypeError),
        (None, TypeError),
    ],
)
def test_what_is_no_path_is_refused_at_once(kind: Any, store: Any, error: Any) -> None:
    with pytest.raises(error):
        kind(store)


@pytest.mark.parametrize(
    "options",
    [
        *({"step": step} for step in (-1, 1 << 63, 1 << 70, 1.5, True, "x", "3", [1])),
        *({"keep_last": count} for count in (0, -1, 1 << 63, 1.0)),
        *({"pool_bytes": count} for count in (-1, 1 << 63, "1G")),
        *({"save_timeout": seconds} for seconds in (0, -1.0, float("nan"), float("inf"), "1")),
        {"io": "magic"},
        {"new_start": 1},
        {"allow_pickle": "no"},
        {"distributed": "no"},
    ],
    ids=str,
)
def test_options_of_a_writer_are_checked_at_once(store: Path, options: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        StorageWriter(store, **options)
    assert not store.exists()


@pytest.mark.parametrize(
    "options",
    [
        *({"step": step} for step in (-1, 1 << 70, 1.5, True, "newest", "latest~-1", "latest~x")),
        {"allow_pickle": None},
        {"resume": 0},
    ],
    ids=str,
)
def test_options_of_a_reader_are_checked_at_once(store: Path, options: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        StorageReader(store, **options)


@pytest.mark.parametrize("name", ["step--5", "-5", "/runs/-5", "step-1.5", "1.5", "step-\u0663"])
def test_a_number_that_is_no_step_is_taken_for_none(store: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"end with (a|the) number"):
        dcp.save({}, checkpoint_id=name, storage_writer=StorageWriter(store))


def test_a_store_is_one_directory_by_whatever_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.parent
    monkeypatch.chdir(place)
    (place / "link").symlink_to(store)
    (place / "sub").mkdir()
    state = {"a": torch.ones(3)}
    for step, name in enumerate([store, "store", "sub/../store", place / "link", "./store/"], 1):
        save(Path(name), step, state)
        if step == 2:
            monkeypatch.chdir(place / "sub")  # it stays where it was
            close("../store")
            monkeypatch.chdir(place)
    close()
    assert [step for step, _ in steps(store)] == [5, 4, 3, 2, 1]
    reader = StorageReader("store")
    monkeypatch.chdir(place / "sub")
    dcp.load(state, storage_reader=reader)

    (place / "file").write_text("")
    (place / "nowhere").symlink_to(place / "gone" / "store")
    for bad in ("file", "file/store", "gone/store", "nowhere"):
        with pytest.raises(dcp.CheckpointException, match=bad):
            save(place / bad, 1, state)
        with pytest.raises(dcp.CheckpointException, match=bad):
            load(place / bad, state)
    assert not (place / "gone").exists()


NAMES = [
    *("a/b", "/etc/passwd", "../../up", "a/../b", ".", "..", "a//b", "rank-00000/a", "a.0.b"),
    *("", " ", "\n", "a\0b", "__metadata__", "\ud800", "\u00e4" * 200, "x" * 5000, "$tensor"),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_are_names_and_no_paths(store: Path, name: str) -> None:
    state = {name: torch.arange(5), "deep": {name: [torch.ones(2), {"value": b"bytes"}]}}
    before = sorted(path.name for path in store.parent.iterdir())
    try:
        save(store, 1, state)
    except dcp.CheckpointException as error:
        found = error.failures[0][0]
        assert isinstance(found, libckpt.UnsupportedStateError), repr(found)
    else:
        again = blank(state)
        load(store, again)
        assert_same(again, state)
        assert name in "".join(libckpt.load(store))
    after = {path.name for path in store.parent.iterdir()} - {"store"}
    assert sorted(after) == before


class Elsewhere(dcp.DefaultSavePlanner):
    """Plans a box that is no part of its tensor."""

    offsets: Any = ()
    sizes: Any = ()

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        chunk = plan.items[0].tensor_data.chunk
        chunk.offsets, chunk.sizes = torch.Size(self.offsets), torch.Size(self.sizes)
        return plan

    def create_global_plan(self, all_plans: Any) -> Any:
        return all_plans, dcp.Metadata({})


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [((), ()), ((0,), (3,)), ((0, 0, 0), (4, 3, 1)), ((1, 0), (4, 3)), ((0, 1 << 62), (4, 3))],
)
def test_a_box_outside_of_its_tensor_is_not_saved(store: Path, offsets: Any, sizes: Any) -> None:
    planner = Elsewhere()
    planner.offsets, planner.sizes = offsets, sizes
    with pytest.raises(dcp.CheckpointException, match="is no part of a tensor of shape"):
        save(store, 1, {"a": torch.ones(4, 3)}, planner=planner)


class Lost(dcp.DefaultLoadPlanner):
    """Wants a box that is no part of its tensor."""

    offsets: Any = ()

    def create_local_plan(self) -> Any:
        import dataclasses

        plan = super().create_local_plan()
        offsets = torch.Size(self.offsets)
        items = [dataclasses.replace(item, storage_offsets=offsets) for item in plan.items]
        return dataclasses.replace(plan, items=items)

    def resolve_tensor(self, read_item: Any) -> Any:
        return torch.zeros(read_item.lengths)


@pytest.mark.parametrize("offsets", [(), (0,), (0, 0, 0), (1, 0), (0, 1 << 62)])
def test_a_box_outside_of_its_tensor_is_not_read(store: Path, offsets: Any) -> None:
    save(store, 1, {"a": torch.ones(4, 3)})
    planner = Lost()
    planner.offsets = offsets
    with pytest.raises(dcp.CheckpointException, match="is not within the tensor's shape"):
        load(store, {"a": torch.zeros(4, 3)}, planner=planner)
