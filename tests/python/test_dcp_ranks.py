# SPDX-License-Identifier: Apache-2.0
"""Many ranks save and load through torch.distributed.checkpoint and libckpt.dcp."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import assert_same, bits, shards
from libckpt.dcp import (
    Stager,
    StorageReader,
    StorageWriter,
    _engine_cache,
    _rendezvous,
    close,
)
from ranks import Job, together
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from waiting import result_of, until

import libckpt
from libckpt import _exchange

#: seconds that a save may take: what waits for its deadline hangs
PATIENT = 3600.0
TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).resolve().parents[2] / "build/tools"))


def state_of(job: Job) -> dict[str, Any]:
    model, optimizer = get_state_dict(job.model, job.optimizer)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": job.scheduler,
        "steps": job.steps,
        "tuple": (1, torch.arange(3)),
    }


def write(store: Path, step: int | str, state: dict[str, Any], **options: Any) -> None:
    ours = ("planner", "use_collectives")
    given = {name: options.pop(name) for name in ours if name in options}
    kind = options.pop("kind", StorageWriter)
    options.setdefault("save_timeout", PATIENT)
    writer = kind(store, pool_bytes=1 << 20, **options)
    dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, **given)


def fill(job: Job, store: Path, **options: Any) -> int:
    """Loads the job's state; how many bytes were read."""
    state = state_of(job)
    reader = StorageReader(store, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process is told that it is one
        dcp.load(state, storage_reader=reader)
    set_state_dict(
        job.model,
        job.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    job.steps = state["steps"]
    return reader.bytes_read


def train(store: Path, layout: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Trains and saves; the truth then, and the losses of two more steps."""
    job = Job(layout, seed=1)
    for _ in range(3):
        job.step()
    job.steps = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(store, 3, state_of(job))
    return job.truth(), [job.step() for _ in range(2)]


def resume(store: Path, layout: str) -> tuple[dict[str, torch.Tensor], list[float], int]:
    job = Job(layout, seed=2)
    read = fill(job, store)
    return job.truth(), [job.step() for _ in range(2)], read


def check_resumed(found: list[Any], truth: dict[str, torch.Tensor], losses: list[float]) -> None:
    for now, after, _ in found:
        assert set(now) == set(truth)
        for name, tensor in truth.items():
            assert bits(now[name]) == bits(tensor), name
        assert after == pytest.approx(losses, rel=1e-4)


@pytest.mark.slices(4)
@pytest.mark.parametrize(
    ("layout", "readers"), [("ddp", (3, 1)), ("fsdp", (2, 3, 1)), ("hsdp", (3,)), ("tp", (4, 1))]
)
def test_any_number_of_ranks_loads_what_others_saved(
    store: Path, tmp_path: Path, layout: str, readers: tuple[int, ...]
) -> None:
    world = 4 if layout in ("hsdp", "tp") else 2
    found = together(world, tmp_path, train, store, layout)
    truth, losses = found[0]
    for other, _ in found[1:]:
        assert_same(other, truth)
    for count in readers:
        check_resumed(together(count, tmp_path, resume, store, layout), truth, losses)
    done = subprocess.run([TOOLS / "ckpt-verify", store], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [name for shard in shards(store) for name in safetensors.torch.load_file(shard)]
    if layout == "ddp":  # each by one rank
        assert len(names) == len(set(names))
        assert len({shard.parent for shard in shards(store)}) == 1


def test_one_rank_saves_and_two_load(store: Path, tmp_path: Path) -> None:
    truth, losses = together(1, tmp_path, train, store, "fsdp")[0]
    check_resumed(together(2, tmp_path, resume, store, "fsdp"), truth, losses)


def native(store: Path, layout: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    job = Job(layout, seed=1)
    job.state["steps"] = 3
    job.state["tuple"] = (1, torch.arange(3))
    with job.open(store) as ckpt:
        for _ in range(3):
            job.step()
        ckpt.save(3).wait()
        truth = job.truth()
    return truth, [job.step() for _ in range(2)]


@pytest.mark.parametrize(("layout", "readers"), [("fsdp", (3, 1)), ("tp", (4,))])
def test_a_native_step_is_resharded(
    store: Path, tmp_path: Path, layout: str, readers: tuple[int, ...]
) -> None:
    world = 4 if layout == "tp" else 2
    truth, losses = together(world, tmp_path, native, store, layout)[0]
    for count in readers:
        check_resumed(together(count, tmp_path, resume, store, layout), truth, losses)


def sharded(whole: torch.Tensor) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(whole, mesh, [Shard(0)])


def save_rows(store: Path, count: int) -> None:
    write(store, 1, {"a": sharded(torch.arange(count).float()[:, None].repeat(1, 1024))})


def load_rows(store: Path, count: int) -> int:
    """Each rank loads its rows of a large tensor; how many bytes that took."""
    state = {"a": sharded(torch.zeros(count, 1024))}
    reader = StorageReader(store)
    dcp.load(state, storage_reader=reader)
    each = count // dist.get_world_size()
    want = torch.arange(count).float()[dist.get_rank() * each :][:each]
    assert torch.equal(state["a"].to_local(), want[:, None].repeat(1, 1024))
    return reader.bytes_read


def test_a_rank_reads_what_it_needs(store: Path, tmp_path: Path) -> None:
    count = 12288  # 48 MiB
    together(2, tmp_path, save_rows, store, count)
    for readers in (2, 3, 4):
        for read in together(readers, tmp_path, load_rows, store, count):
            needed = count // readers * 4096
            assert needed <= read <= needed * 1.05


# async_save().


class Thing:
    def __init__(self, number: int) -> None:
        self.number = number


def save_behind(store: Path) -> None:
    stager = Stager()
    job = Job("fsdp", seed=1)
    for step in (1, 2, 3):
        job.step()
        job.steps = step
        state = {**state_of(job), "thing": [Thing(step)]}
        state["scheduler"] = job.scheduler.state_dict()
        truth = job.truth()
        future: Any = dcp.async_save(
            state,
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, allow_pickle=True),
            async_stager=stager,
            process_group=dist.group.WORLD,
        )
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.fill_(float("nan"))
        result_of(future)
        other = Job("fsdp", seed=2)
        fill(other, store, resume=False)
        assert_same(other.truth(), truth)
        job = Job("fsdp", seed=step)


def test_ranks_save_behind_the_loop(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, save_behind, store)
    assert [info.step for info in libckpt.list_steps(store)] == [3, 2, 1]


# When something fails.


def failing(store: Path, how: str) -> None:
    """Rank 1 cannot save step 2; nobody has it, and all save step 3."""
    rank = dist.get_rank()
    state: dict[str, Any] = {"a": torch.full((50_000,), 1.0), f"own-{rank}": torch.ones(300_000)}
    write(store, 1, state)
    state["a"].fill_(2)
    bad: dict[str, Any] = dict(state)
    options: dict[str, Any] = {}
    if how == "object" and rank == 1:
        bad["thing-of-rank-1"] = Thing(1)
    elif how == "plan":
        options["planner"] = Failing(rank == 1)
    elif how == "late" and rank == 1:
        options["kind"] = Late
    elif how == "disk" and rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    with pytest.raises(dcp.CheckpointException) as caught:
        write(store, 2, bad, **options)
    # Told, and not waited for until the deadline.
    assert 1 in caught.value.failures or how == "disk"
    said = str(caught.value)
    if how == "object":
        assert "state['thing-of-rank-1'] is a test_dcp_ranks.Thing" in said
    elif how == "disk":
        # By rank 0 when all was staged by then; else by rank 1 itself.
        assert "rank 1" in said or 1 in caught.value.failures
        assert "File too large" in said
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    dist.barrier()
    found = {"a": torch.zeros(50_000)}
    dcp.load(found, storage_reader=StorageReader(store, resume=False))
    assert found["a"].eq(1).all()
    dist.barrier()
    state["a"].fill_(3)
    write(store, 3, state)
    dcp.load(found, storage_reader=StorageReader(store))
    assert found["a"].eq(3).all()
    close()


class Late(StorageWriter):
    """Fails when its rank has written everything, before torch has heard of it."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        super().write_data(plan, planner)
        attempt = self._attempt
        until(lambda: attempt.info.durable_time)
        raise RuntimeError("this writer fails")


class Failing(dcp.DefaultSavePlanner):
    """Fails where libckpt does not see it."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails

    def finish_plan(self, new_plan: Any) -> Any:
        if self._fails:
            raise RuntimeError("this planner fails")
        return super().finish_plan(new_plan)


@pytest.mark.slices(4)
@pytest.mark.parametrize("how", ["object", "plan", "late", "disk"])
def test_a_rank_that_fails_fails_the_step_for_all(store: Path, tmp_path: Path, how: str) -> None:
    together(2, tmp_path, failing, store, how)
    assert [info.step for info in libckpt.list_steps(store)] == [3, 1]
    done = subprocess.run([TOOLS / "ckpt-verify", store], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def opened_by_one(store: Path) -> None:
    """The store is not free for rank 0 at first; then all save to it."""
    rank = dist.get_rank()
    other = (
        libckpt.Checkpointer(store, {"a": torch.ones(2)}, distributed=False) if not rank else None
    )
    state = {"a": torch.ones(1000)}
    if other is not None:
        other.save(1).wait()
    dist.barrier()
    for _ in range(2):
        with pytest.raises(dcp.CheckpointException) as caught:
            write(store, 2, state, new_start=True)
        assert isinstance(caught.value.failures[0][0], libckpt.InUseError)
    if other is not None:
        other.close()
    dist.barrier()
    write(store, 2, state, new_start=True)


def test_a_store_that_one_rank_cannot_open(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, opened_by_one, store)
    found = [(info.step, info.generation) for info in libckpt.list_steps(store)]
    assert found == [(2, 2)]


def mirrored(store: Path) -> None:
    """What torch takes for offsets is not where the rows are, but covers the tensor."""
    from torch.distributed.checkpoint import planner_helpers

    right = planner_helpers.compute_local_shape_and_global_offset

    def wrong(shape: Any, *args: Any, **options: Any) -> Any:
        sizes, offsets = right(shape, *args, **options)
        turned = [a - b - c for a, b, c in zip(shape, sizes, offsets, strict=True)]
        return sizes, (turned[0], *offsets[1:])

    job = Job("tp", seed=1)
    job.step()
    write(store, 1, state_of(job))
    planner_helpers.compute_local_shape_and_global_offset = wrong
    said = "model.up.weight: the plan of torch has the box at"
    with pytest.raises(dcp.CheckpointException, match=said):
        write(store, 2, state_of(job))
    with pytest.raises(dcp.CheckpointException, match=said):
        dcp.load(state_of(job), storage_reader=StorageReader(store))
    planner_helpers.compute_local_shape_and_global_offset = right
    fill(job, store)


def test_boxes_that_are_elsewhere_are_refused(store: Path, tmp_path: Path) -> None:
    together(4, tmp_path, mirrored, store)
    assert [info.step for info in libckpt.list_steps(store)] == [1]


def refused_at_first(store: Path) -> None:
    """torch gives what all have to one of them, which alone finds that it cannot be stored."""
    state = {"a": torch.ones(4), "b": object(), "c": object()}
    with pytest.raises(dcp.CheckpointException, match="UnsupportedStateError"):
        write(store, 1, state)
    write(store, 2, {"a": torch.ones(4)})


def test_a_refusal_of_the_first_save_is_of_that_save_only(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, refused_at_first, store)
    assert [info.step for info in libckpt.list_steps(store) if info.state == "committed"] == [2]


#: seconds: enough for a save of a few bytes, and a wait when one cannot come about
EXPIRES = 12.0


def hanging(store: Path) -> None:
    """Rank 1 plans step 2 and does not write it."""
    state = {"a": torch.ones(1000)}
    rank = dist.get_rank()
    write(store, 1, state, save_timeout=EXPIRES)
    writer = StorageWriter(store, 2, pool_bytes=1 << 20, save_timeout=EXPIRES)
    writer.set_up_storage_writer(rank == 0, rank=rank)
    dist.barrier()
    if rank == 0:
        planner = dcp.DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=True)
        # torch alone would wait for it now, as long as the process group is patient.
        writer.write_data(planner.create_local_plan(), planner)
        with pytest.raises(libckpt.CheckpointError, match="rank 1"):
            writer.finish(dcp.Metadata({}), [])
    dist.barrier()
    assert [info.step for info in libckpt.list_steps(store)] == [1]
    dist.barrier()
    write(store, 3, state, save_timeout=EXPIRES)


@pytest.mark.waits
def test_a_rank_that_does_not_come_costs_the_deadline(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, hanging, store)
    assert [info.step for info in libckpt.list_steps(store)] == [3, 1]


# Who saves together.


def by_groups(store: Path) -> None:
    """Ranks 0 and 1 save to one store, 2 and 3 to another; and each to one of its own."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    place = store / f"pair-{rank // 2}"
    for step in (1, 2):
        dcp.save(
            {"a": torch.full((3,), float(rank // 2 * 10 + step)), f"b{rank}": rank},
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(place, process_group=mine),
            process_group=mine,
        )
    found: dict[str, Any] = {"a": torch.zeros(3), f"b{rank ^ 1}": None}
    dcp.load(found, storage_reader=StorageReader(place), process_group=mine)
    assert found["a"].eq(rank // 2 * 10 + 2).all()
    assert found[f"b{rank ^ 1}"] == rank ^ 1

    alone = StorageWriter(store / f"rank-{rank}", 1, distributed=False)
    dcp.save({"r": rank}, storage_writer=alone, no_dist=True)
    found = {"r": None}
    dcp.load(found, storage_reader=StorageReader(store / f"rank-{rank}"), no_dist=True)
    assert found["r"] == rank
    if rank == 1:
        with pytest.raises(dcp.CheckpointException, match="distributed=False with no_dist=True"):
            dcp.save(
                {"r": 1}, storage_writer=StorageWriter(place, 9, process_group=mine), no_dist=True
            )


def test_groups_save_by_themselves(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    together(4, tmp_path, by_groups, store)
    assert [info.world for info in libckpt.list_steps(store / "pair-1")] == [2, 2]


def by_changing_groups(store: Path) -> None:
    """Ranks 0 and 1 save, and then ranks 0 and 2: rank 0 is the first of two each time."""
    rank = dist.get_rank()
    for step, members in ((1, [0, 1]), (2, [0, 2])):
        group = dist.new_group(members)
        if rank in members:
            found: dict[str, Any] = {"a": torch.zeros(3)}
            if step > 1:
                dcp.load(found, storage_reader=StorageReader(store), process_group=group)
                assert found["a"].eq(step - 1).all()
            dcp.save(
                {"a": torch.full((3,), float(step))},
                checkpoint_id=f"step-{step}",
                storage_writer=StorageWriter(store, process_group=group, save_timeout=PATIENT),
                process_group=group,
            )
        if rank == 1:
            close()
        dist.barrier()


def test_another_group_of_the_same_size_opens_the_store_anew(store: Path, tmp_path: Path) -> None:
    together(3, tmp_path, by_changing_groups, store)
    assert [info.step for info in libckpt.list_steps(store)] == [2, 1]


def without_collectives(store: Path) -> None:
    rank = dist.get_rank()
    writer = StorageWriter(store, 1, pool_bytes=1 << 20)
    dcp.save(
        {"a": torch.arange(9), f"b{rank}": (rank,)}, storage_writer=writer, use_collectives=False
    )
    found: dict[str, Any] = {"a": torch.zeros(9, dtype=torch.int64), f"b{rank ^ 1}": None}
    dcp.load(found, storage_reader=StorageReader(store))
    assert torch.equal(found["a"], torch.arange(9))
    assert found[f"b{rank ^ 1}"] == (rank ^ 1,)


def test_without_collectives_there_is_one_step_all_the_same(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, without_collectives, store)
    assert [info.world for info in libckpt.list_steps(store)] == [2]


def failing_without_collectives(store: Path) -> None:
    state: dict[str, Any] = {"a": torch.arange(9)}
    write(store, 1, state, use_collectives=False)
    if dist.get_rank() == 1:
        state["thing"] = Thing(1)
    # Nobody but libckpt itself can tell rank 0.
    with pytest.raises((libckpt.AbortedError, libckpt.UnsupportedStateError), match="Thing"):
        write(store, 2, state, use_collectives=False)
    dist.barrier()
    state.pop("thing", None)
    write(store, 3, state, use_collectives=False)


def test_a_failure_is_told_without_collectives(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, failing_without_collectives, store)
    assert [info.step for info in libckpt.list_steps(store)] == [3, 1]


def other_steps(store: Path) -> None:
    state = {"a": torch.zeros(2)}
    for step in (1, 2):
        state["a"].fill_(step)
        write(store, step, state)
    step = 1 + dist.get_rank()
    with pytest.raises(dcp.CheckpointException, match=r"rank 0 has opened step 1 .* rank 1 step 2"):
        dcp.load(state, storage_reader=StorageReader(store, step))
    dist.barrier()
    # All go back together, and start another generation.
    dcp.load(state, storage_reader=StorageReader(store, 1))
    write(store, 2, state)
    # The group is made anew; saving continues.
    dist.barrier()
    place = store.parent / "second-meeting"
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    write(store, 3, state)


def test_ranks_go_back_together(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, other_steps, store)
    found = [(info.step, info.generation) for info in libckpt.list_steps(store)]
    assert found == [(3, 3), (2, 2), (1, 1)]


class CachingOfRanks(dcp.DefaultSavePlanner):
    """Torch keeps its plans by the name of the class, which no other test has."""


def kept_plans(store: Path) -> None:
    for step in (1, 2, 3):
        state = {"a": torch.full((4,), float(step)), "n": step}
        write(store, step, state, planner=CachingOfRanks(enable_plan_caching=True))
        found: dict[str, Any] = {"a": torch.zeros(4), "n": 0}
        dcp.load(found, storage_reader=StorageReader(store))
        assert_same(found, state)


def test_ranks_may_keep_their_plans(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, kept_plans, store)


def in_a_process(store: Path) -> None:
    """torch saves from a process of its own, to which it sends the writer anew each time."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    stager = Stager()
    state: dict[str, Any] = {"a": torch.zeros(1000), "n": 0}

    def save(step: int) -> None:
        state["a"].fill_(step)
        state["n"] = step
        future: Any = dcp.async_save(
            state,
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, pool_bytes=1 << 20),
            async_stager=stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        state["a"].fill_(-1)
        result_of(future)

    def load(step: int) -> None:
        dist.barrier()
        dcp.load(state, storage_reader=StorageReader(store, step))
        assert state["a"].eq(step).all()
        assert state["n"] == step

    save(1)
    save(2)
    load(2)
    save(3)
    load(1)
    save(4)
    save(5)
    load(5)
    _async_process_executor._CHECKPOINT_PROCESS = None  # ends it


def test_torch_saves_from_a_process_of_its_own(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, in_a_process, store)
    found = [(info.step, info.generation) for info in libckpt.list_steps(store)]
    assert found == [(5, 2), (4, 2), (1, 1)]


# Ranks that come with different things.


def said_of(found: BaseException) -> str:
    failures = getattr(found, "failures", {0: (found, None)})
    return " | ".join(f"{type(error).__name__}: {error}" for error, _ in failures.values())


def come_apart(store: Path, how: str, collectives: bool) -> str:
    """Three ranks; the last one has another step, or has loaded another one, or none."""
    rank = dist.get_rank()
    odd = rank == 2
    state = {"a": torch.zeros(100)}
    for step in (1, 2, 3):
        state["a"].fill_(step)
        write(store, step, state)
    step = 4
    if how == "step":
        step += odd
    elif how == "loaded":
        dcp.load(state, storage_reader=StorageReader(store, 1 if odd else 2), no_dist=True)
    elif odd == (how == "loaded by one"):
        dcp.load(state, storage_reader=StorageReader(store, 2), no_dist=True)
    dist.barrier()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - torch's is no Exception
        write(store, step, state, use_collectives=collectives)
    assert isinstance(caught.value, (dcp.CheckpointException, libckpt.CheckpointError))
    dist.barrier()
    # They load together, and go on; no number has been used up.
    dcp.load(state, storage_reader=StorageReader(store, 3))
    write(store, 4, state, use_collectives=collectives)
    return said_of(caught.value)


@pytest.mark.slices(4)
@pytest.mark.parametrize("collectives", [True, False])
@pytest.mark.parametrize("how", ["step", "loaded", "loaded by one", "loaded by the others"])
def test_ranks_that_come_with_different_things_are_told_at_once(
    store: Path, tmp_path: Path, how: str, collectives: bool
) -> None:
    for said in together(3, tmp_path, come_apart, store, how, collectives):
        if how == "step":
            assert "rank 0 saves step 4" in said
            assert "rank 2 step 5" in said
        else:
            assert "rank 0 has loaded" in said
            assert "and rank 2" in said
    committed = [info.step for info in libckpt.list_steps(store)]
    assert committed == [4, 3, 2, 1]


def save_three(store: Path) -> None:
    for step in (1, 2, 3):
        write(store, step, {"a": torch.full((100,), float(step))})


def start_apart(store: Path) -> None:
    """A start of the job whose ranks load different steps first, and then the same."""
    rank, state = dist.get_rank(), {"a": torch.zeros(100)}
    dcp.load(state, storage_reader=StorageReader(store, 1 + rank), no_dist=True)
    with pytest.raises((dcp.CheckpointException, libckpt.CheckpointError)):
        write(store, 4, state)
    dist.barrier()
    dcp.load(state, storage_reader=StorageReader(store, 2))
    write(store, 4, state)


def test_a_start_whose_ranks_have_loaded_different_steps_goes_on(
    store: Path, tmp_path: Path
) -> None:
    together(2, tmp_path, save_three, store)
    together(2, tmp_path, start_apart, store)
    newest = libckpt.list_steps(store)[0]
    assert (newest.step, newest.generation) == (4, 2)


def load_alike(store: Path) -> None:
    """What rank 0 knows to be the last save anyway, rank 1 does not: it gave up on that."""
    state = {"a": torch.ones(10)}
    write(store, 1, state)
    write(store, 2, state)
    if dist.get_rank() == 1:
        (held,) = _engine_cache._holds.values()
        held._tip = (1, 1)
    dist.barrier()
    dcp.load(state, storage_reader=StorageReader(store))
    write(store, 3, state)


def test_all_ranks_go_on_from_what_all_have_loaded(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, load_alike, store)
    assert [info.step for info in libckpt.list_steps(store)] == [3, 2, 1]


def misnamed(store: Path, bad: int) -> tuple[str, str]:
    """One rank alone says no step's number, or another than its writer has."""
    odd = dist.get_rank() == bad
    state = {"a": torch.ones(10)}
    # As the first thing that this job asks of the store.
    with pytest.raises(dcp.CheckpointException, match=r"end with (a|the) number"):
        write(store, "x" if odd else 1, state)
    write(store, 1, state)
    said = []
    for step in (None, 3):
        with pytest.raises(dcp.CheckpointException) as caught:
            dcp.save(
                state,
                checkpoint_id="step-x" if odd and step is None else "step-2",
                storage_writer=StorageWriter(
                    store, step if odd else None, pool_bytes=1 << 20, save_timeout=PATIENT
                ),
            )
        said.append(said_of(caught.value))
    with pytest.raises(dcp.CheckpointException, match=r"end with (a|the) number"):
        dcp.load(
            state,
            checkpoint_id="last" if odd else "latest",
            storage_reader=StorageReader(store, resume=False),
        )
    write(store, 2, state)
    return said[0], said[1]


@pytest.mark.parametrize("bad", [0, 1])
def test_what_one_rank_has_named_wrongly_is_told_to_all(
    store: Path, tmp_path: Path, bad: int
) -> None:
    for unnamed, twice in together(2, tmp_path, misnamed, store, bad):
        assert "does not end with a number" in unnamed
        assert "leave one of them out" in twice
    assert [info.step for info in libckpt.list_steps(store)] == [2, 1]


def open_crosswise(store: Path) -> None:
    """Two threads open a store each, which the ranks come to in another order."""
    places = [store / "a", store / "b"]
    if dist.get_rank() == 1:
        places.reverse()
    configs = [StorageWriter(place, save_timeout=PATIENT)._config for place in places]
    opening = [threading.Thread(target=_engine_cache.hold, args=(config,)) for config in configs]
    for place, thread in zip(places, opening, strict=True):
        thread.start()
        if place is places[0]:  # it waits for the other rank
            until(_exchange._opened.total)
    for thread in opening:
        thread.join()
    assert len(_engine_cache._holds) == 2


def test_stores_are_opened_in_any_order(store: Path, tmp_path: Path) -> None:
    store.mkdir()
    together(2, tmp_path, open_crosswise, store)


A, B = (1, 1), (1, 2)


@pytest.mark.parametrize(
    ("ranks", "adopted", "differs"),
    [
        # what each rank has loaded, and what it knows to be the last save
        ([(None, B), (None, B)], None, False),
        ([(None, A), (None, B)], None, False),  # one gave up waiting: the engine knows
        ([(B, B), (B, B)], None, False),
        ([(B, B), (B, A)], B, False),
        ([(A, B), (A, B)], A, False),
        ([(B, B), (None, B)], None, False),
        ([(None, B), (None, B), (B, A)], B, True),  # the others would not read it with that one
        ([(A, B), (B, B)], A, True),
        ([(None, B), (A, B)], A, True),
    ],
)
def test_what_ranks_go_on_from(ranks: Any, adopted: Any, differs: bool) -> None:
    words = [_rendezvous.Word(7, loaded, tip) for loaded, tip in ranks]
    assert _rendezvous.adopted(words) == adopted
    assert (_rendezvous.difference("store", words) is not None) == differs
    words.append(_rendezvous.Word(8, *ranks[0]))
    found = _rendezvous.difference("store", words[:1] + words[-1:])
    assert found is not None
    assert "rank 0 saves step 7 to store, and rank 1 step 8" in str(found)


def close_alone(place: Path, who: int) -> str:
    """One rank closes the store, and all save; then all close it, and save again."""
    store, state = place / "s", {"a": torch.ones(4)}
    options: dict[str, Any] = {"pool_bytes": 1 << 20, "save_timeout": EXPIRES}

    def save(step: int) -> None:
        writer = StorageWriter(store, **options)
        dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer)

    save(1)
    if dist.get_rank() == who:
        close()
    with pytest.raises(dcp.CheckpointException) as caught:
        save(2)
    close()
    save(3)
    return str(caught.value)


@pytest.mark.waits
@pytest.mark.parametrize("who", [0, 1])
def test_a_store_that_one_rank_alone_has_closed(tmp_path: Path, who: int) -> None:
    """Nobody hangs, all are told why, and when all have closed it they go on."""
    for said in together(2, tmp_path, close_alone, tmp_path, who):
        assert "all of them call libckpt.dcp.close(), or none" in said
    assert [info.step for info in libckpt.list_steps(tmp_path / "s")] == [3, 1]


def close_beside(place: Path) -> list[tuple[int, str]]:
    """All close the store while a save of theirs is under way; what became of each save."""
    store, stager, found = place / "s", Stager(), []
    draw = random.Random(dist.get_rank())
    group = dist.new_group(backend="gloo")
    for step in range(1, 9):
        future: Any = dcp.async_save(
            {"a": torch.full((50_000,), float(step))},
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(
                store, pool_bytes=1 << 20, save_timeout=4, process_group=group
            ),
            async_stager=stager,
            process_group=group,
        )
        threading.Event().wait(draw.uniform(0, 0.1))  # anywhere in it
        close()
        try:
            result_of(future)
            found.append((step, ""))
        except dcp.CheckpointException as error:
            found.append((step, str(error)))
        close()  # also what was opened after that
        dist.barrier()
    return found


def test_a_store_may_be_closed_beside_a_save_of_all(tmp_path: Path) -> None:
    """A step is there or not, and nobody's save says that it is when it is not."""
    found = together(2, tmp_path, close_beside, tmp_path)
    there = {info.step for info in libckpt.list_steps(tmp_path / "s")}
    for told in found:
        assert {step for step, why in told if not why} <= there
        for _, why in told:
            assert "NotResumedError" not in why
