# SPDX-License-Identifier: Apache-2.0
"""The rehearsal behind the loop, of many ranks: each reads what it has written."""

from __future__ import annotations

import fcntl
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import flip, step_directory
from libckpt._turn import turn_file
from node_rig import on_node
from ranks import Job, together
from test_ranks import header
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from waiting import until

import libckpt
from libckpt import _rehearsal, _slices

#: name, and bytes of the boxes of it
Bytes = dict[str, int]


def stages() -> dict[str, Any]:
    """A stage of a pipeline, of two ranks, whose names the other two do not have."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    stage = dist.get_rank() // 2
    model = torch.nn.ModuleDict({f"stage{stage}": torch.nn.Linear(6, 5, bias=False)})
    fully_shard(model[f"stage{stage}"], mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[f"stage{stage}"](torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "seen": torch.arange(40.0)}


def trained(layout: str) -> dict[str, Any]:
    if layout == "stages":
        return stages()
    job = Job(layout, seed=1)
    job.step()
    return {**job.state, "own": libckpt.PerRank(torch.ones(3))}


@contextmanager
def turn_taken(store: Path) -> Iterator[None]:
    """By rank 0: nobody reads until all have come here again."""
    taken = open(turn_file(str(store)), "w") if dist.get_rank() == 0 else None  # noqa: SIM115
    if taken is not None:
        fcntl.flock(taken, fcntl.LOCK_EX)
    dist.barrier()
    yield
    dist.barrier()
    if taken is not None:
        os.unlink(taken.name)
        taken.close()


def be_tried(ckpt: libckpt.Checkpointer) -> list[str]:
    """The warnings of it."""
    rehearsal = ckpt._core.rehearsal
    assert rehearsal is not None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        until(lambda: ckpt.step(2) is None and rehearsal.over, "the rehearsal to be over")
    return [str(one.message) for one in seen]


def shard_of(store: Path, rank: int) -> Path:
    (found,) = step_directory(store, 1).glob(f"rank-{rank:05d}.*.safetensors")
    return found


def wrote(store: Path) -> Bytes:
    """What is in the shard of this rank."""
    shard = shard_of(store, dist.get_rank())
    found = {name: entry["data_offsets"] for name, entry in header(shard).items()}
    return {name: end - begin for name, (begin, end) in found.items() if end > begin}


class Heard(logging.Handler):
    """What the log has of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("rehearsal:"):
            self.lines.append(record.getMessage())


def try_all(place: Path, layout: str, nodes: str) -> tuple[Bytes, Bytes, list[str], list[str]]:
    """What this rank has read, what it had written, the warnings, and what was logged."""
    heard = Heard()
    logging.getLogger("libckpt").addHandler(heard)
    logging.getLogger("libckpt").setLevel(logging.INFO)
    store = on_node(place, nodes) if nodes else place / "store"
    read = Bytes()
    read_round = _slices.Slices._read_round

    def note(slices: Any, pieces: list[_slices.Piece], base: int) -> None:
        for piece in pieces:
            read[piece.bound.name] = read.get(piece.bound.name, 0) + piece.nbytes
        read_round(slices, pieces, base)

    options: dict[str, Any] = {"pool_bytes": 1 << 20, "node_store": bool(nodes), "rehearse": True}
    with (
        pytest.MonkeyPatch.context() as patch,
        libckpt.Checkpointer(store, trained(layout), **options) as ckpt,
    ):
        patch.setattr(_slices.Slices, "_read_round", note)
        patch.setattr(_rehearsal, "_MEMORY", 0)
        patch.setattr(_rehearsal, "_TOGETHER", 0.0)
        ckpt.save(1).wait()
        said = be_tried(ckpt)
    return read, wrote(store), said, heard.lines


@pytest.mark.slices(5)
@pytest.mark.parametrize(
    ("layout", "nodes"),
    [("ddp", ""), ("hsdp", ""), ("stages", ""), ("hsdp", "aabb"), ("ddp", "aabb")],
)
def test_every_byte_is_read_by_who_wrote_it(tmp_path: Path, layout: str, nodes: str) -> None:
    for read, written, said, logged in together(4, tmp_path, try_all, tmp_path, layout, nodes):
        assert written
        assert read == written
        assert said == []
        (line,) = logged
        assert "the step fits the state" in line


def take_turns(place: Path) -> dict[str, Any]:
    """The step is opened by one rank of the node after the other, and compared by all at once."""
    store, calls = place / "store", {"wait": 0, "open": 0}
    wait, find = _rehearsal.Rehearsal._wait, _rehearsal.Rehearsal._open

    def waiting(rehearsal: Any) -> None:
        calls["wait"] += 1
        wait(rehearsal)

    def opening(rehearsal: Any, *args: Any) -> None:
        calls["open"] += 1
        find(rehearsal, *args)

    with (
        pytest.MonkeyPatch.context() as patch,
        libckpt.Checkpointer(store, trained("ddp"), pool_bytes=1 << 20, rehearse=True) as ckpt,
    ):
        patch.setattr(_rehearsal.Rehearsal, "_wait", waiting)
        patch.setattr(_rehearsal.Rehearsal, "_open", opening)
        patch.setattr(_rehearsal, "_MEMORY", 0)
        patch.setattr(_rehearsal, "_TOGETHER", 1e6)
        rehearsal = ckpt._core.rehearsal
        assert rehearsal is not None
        with turn_taken(Path(_rehearsal.opening_of(str(store)))):
            ckpt.save(1).wait()
            ckpt.step(2)
            until(lambda: calls["wait"] > 0, "it to wait for its turn")
            found: dict[str, Any] = {"opened early": calls["open"]}
            attempt = rehearsal._attempt
            assert attempt is not None
        until(attempt.read.is_set, "the step to be read")
        ckpt.step(3)
        found["kept"] = attempt.plan is not None
        attempt.due = 0.0
        found["warned"] = be_tried(ckpt)
        found["uncompared"] = attempt.uncompared
    return found


def test_ranks_of_a_node_take_turns_to_open_the_step_and_compare_together(tmp_path: Path) -> None:
    for found in together(2, tmp_path, take_turns, tmp_path):
        assert found == {"opened early": 0, "kept": True, "warned": [], "uncompared": ""}


def damaged(place: Path) -> list[str]:
    store = place / "store"
    with (
        pytest.MonkeyPatch.context() as patch,
        libckpt.Checkpointer(store, trained("hsdp"), pool_bytes=1 << 20, rehearse=True) as ckpt,
    ):
        patch.setattr(_rehearsal, "_MEMORY", 0)
        patch.setattr(_rehearsal, "_TOGETHER", 0.0)
        with turn_taken(store):
            ckpt.save(1).wait()
            ckpt.step(2)
            dist.barrier()
            if dist.get_rank() == 0:
                shard = shard_of(store, 2)
                flip(shard, shard.stat().st_size - 5)
        return be_tried(ckpt)


def test_who_wrote_what_is_damaged_says_so(tmp_path: Path) -> None:
    found = together(4, tmp_path, damaged, tmp_path)
    assert [len(said) for said in found] == [0, 0, 1, 0], found
    assert "rank 2 of 4 cannot be restored from here: IntegrityError" in found[2][0]
