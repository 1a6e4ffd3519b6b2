# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint where every node has a store of its own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import assert_same, bits, step_directory
from libckpt.dcp import (
    Stager,
    StorageReader,
    StorageWriter,
    _dedup,
    _engine_cache,
    close,
)
from node_rig import (
    TOOLS,
    TWO,
    check_resumed,
    die_of_all,
    die_one_after_the_other,
    held,
    on_node,
    state_on,
    steps_of,
    stores,
    train_and_die,
)
from ranks import Job, full, together
from safetensors.torch import load_file
from test_dcp_ranks import Failing, Thing, state_of
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.state_dict import set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from waiting import result_of

import libckpt


def write(store: Path, step: int, state: dict[str, Any], **options: Any) -> None:
    given = {k: options.pop(k) for k in ("planner", "use_collectives") if k in options}
    options.setdefault("save_timeout", 3600)
    writer = StorageWriter(store, pool_bytes=1 << 20, node_store=True, **options)
    dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, **given)


def read(store: Path, state: dict[str, Any], step: Any = "latest", **options: Any) -> None:
    options.setdefault("node_store", True)
    dcp.load(state, storage_reader=StorageReader(store, step, **options))


def fill(job: Job, store: Path) -> int:
    """Loads the job's state; of which step."""
    state = state_of(job)
    read(store, state)
    set_state_dict(
        job.model,
        job.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    assert_same(state["tuple"], (1, torch.arange(3)))
    job.scheduler = state["scheduler"]
    step: int = state["steps"]
    return step


def train(place: Path, nodes: str, layout: str, steps: int, how: str) -> Any:
    """Trains and saves each step; then dies, or gives the truth at the last save and the losses."""
    job = Job(layout, seed=1)
    store = on_node(place, nodes)
    for step in range(1, steps + 1):
        job.step()
        job.steps = step
        write(store, step, state_of(job), keep_last=2)
        # It is there when dcp.save() returns, on all nodes.
        assert (step, "committed") in steps_of(store)
    truth = job.truth()
    losses = [job.step() for _ in range(2)]
    if how == "killed":
        die_of_all(place, truth, losses)
    return truth, losses


def resume(place: Path, nodes: str, layout: str) -> Any:
    """Loads, trains a step and saves it, loads that and trains another."""
    job, store = Job(layout, seed=2), on_node(place, nodes)
    try:
        step = fill(job, store)
    except dcp.CheckpointException as error:
        return sorted({type(why).__name__ for why, _ in error.failures.values()}), str(error)
    truth = job.truth()
    losses = [job.step()]
    job.steps = step + 1
    write(store, step + 1, state_of(job), keep_last=2)
    again = Job(layout, seed=3)
    assert fill(again, store) == step + 1
    assert_same(again.truth(), job.truth())
    return step, truth, [*losses, again.step()]


@pytest.mark.slices(5)
@pytest.mark.parametrize(
    ("layout", "nodes"),
    [("ddp", "aabb"), ("ddp", "aaab"), ("fsdp", "abab"), ("hsdp", "aabb"), ("tp", "aabb")],
)
def test_all_are_killed_and_load_to_the_bit(tmp_path: Path, layout: str, nodes: str) -> None:
    truth, losses = train_and_die(train, tmp_path, nodes, layout, 3)
    check_resumed(together(4, tmp_path, resume, tmp_path, nodes, layout), 3, truth, losses)
    for store in stores(tmp_path):
        assert steps_of(store) == [(3, "committed"), (4, "committed")]


@pytest.mark.parametrize("nodes", ["aabb", "aaab"])
def test_each_store_has_once_what_all_ranks_have(tmp_path: Path, nodes: str) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, nodes, "ddp", 2, "closed")[0]
    weights = {f"model.{name}": t for name, t in truth.items() if "optimizer" not in name}
    for node, store in zip("ab", stores(tmp_path), strict=True):
        found = held(store, 2)
        for name, tensor in weights.items():
            assert len(found[name]) == 1, name
            assert bits(found[name][0]) == bits(tensor), name
        # Each node can be read by itself, and its ranks have shared it out.
        assert_same(libckpt.load(store, names=list(weights)), weights)
        files = sorted(step_directory(store, 2).glob("rank-*.safetensors"))
        assert len(files) == nodes.count(node)
        sizes = [sum(t.nbytes for t in load_file(file).values()) for file in files]
        assert min(sizes) > sum(sizes) / len(sizes) / 2, sizes


def save_spread(place: Path, nodes: str) -> None:
    write(on_node(place, nodes), 1, state_on(init_device_mesh("cpu", (2, 2)), 5))


def load_spread(place: Path, nodes: str) -> dict[str, Any]:
    state = state_on(init_device_mesh("cpu", (2, 2)), 0)
    read(on_node(place, nodes), state)
    return {name: value.full_tensor() for name, value in state.items()}


@pytest.mark.slices(5)
@pytest.mark.parametrize("nodes", ["aabb", "abab", "abba", "abcc", "aaab"])
def test_every_way_in_which_ranks_hold_the_same(tmp_path: Path, nodes: str) -> None:
    together(4, tmp_path, save_spread, tmp_path, nodes)
    whole = torch.arange(24.0).reshape(6, 4) + 5
    for found in together(4, tmp_path, load_spread, tmp_path, nodes):
        assert torch.equal(found.pop("half"), torch.full((3,), 5.0))
        for name, tensor in found.items():
            assert torch.equal(tensor, whole), name
    for store in stores(tmp_path, nodes):
        for name, parts in held(store, 1).items():
            seen = [bits(part) for part in parts]
            assert len(seen) == len(set(seen)), name


# What is elsewhere.


@pytest.mark.full
def test_parts_on_another_node_are_an_error_and_no_damage(tmp_path: Path) -> None:
    truth, losses = train_and_die(train, tmp_path, TWO, "fsdp", 3)
    before = [steps_of(store) for store in stores(tmp_path)]
    for kinds, text in together(4, tmp_path, resume, tmp_path, "bbaa", "fsdp"):
        assert kinds == ["OtherNodeError"], text
        assert "node-" in text
    assert [steps_of(store) for store in stores(tmp_path)] == before
    assert not list(tmp_path.glob("*/store/g*/step-*/quarantine.json"))
    check_resumed(together(4, tmp_path, resume, tmp_path, TWO, "fsdp"), 3, truth, losses)


def staged_state(nodes: str, fill: float) -> dict[str, Any]:
    """Of a pipeline: each node's ranks have tensors and values that the others do not have."""
    node = nodes[dist.get_rank()]
    meshes = {
        name: DeviceMesh("cpu", [r for r in range(len(nodes)) if nodes[r] == name])
        for name in sorted(set(nodes))
    }
    mine = torch.full((8,), fill + ord(node))
    return {
        f"stage-{node}": distribute_tensor(mine, meshes[node], [Shard(0)]),
        f"plain-{node}": mine.clone(),
        f"note-{node}": f"{fill} {node}",
        "all": torch.full((3,), fill),
        # A part of the ranks has no place in the mesh, and the name all the same.
        "first": DTensor.from_local(torch.full((2,), fill), meshes["a"], [Replicate()]),
    }


def save_stages(place: Path, nodes: str) -> None:
    write(on_node(place, nodes), 1, staged_state(nodes, 3))


def load_stages(place: Path, start: str, layout: str) -> Any:
    """Loads, on the nodes of `start`, what a rank of its place in `layout` wants."""
    state, store = staged_state(layout, 0), on_node(place, start)
    try:
        read(store, state, resume=False)
    except dcp.CheckpointException as error:
        return sorted({type(why).__name__ for why, _ in error.failures.values()}), str(error)
    want = staged_state(layout, 3)
    for name, value in want.items():
        if isinstance(value, DTensor):
            assert_same(state[name].to_local(), value.to_local())
        else:
            assert_same(state[name], value)
    fresh = {"all": torch.zeros(3), "new": torch.ones(1)}
    dcp.load(
        fresh,
        storage_reader=StorageReader(store, resume=False),
        planner=dcp.DefaultLoadPlanner(allow_partial_load=True),
    )
    assert_same(fresh, {"all": torch.full((3,), 3.0), "new": torch.ones(1)})
    return None


def test_what_only_some_nodes_have_is_listed_by_all(tmp_path: Path) -> None:
    together(4, tmp_path, save_stages, tmp_path, TWO)
    assert together(4, tmp_path, load_stages, tmp_path, TWO, TWO) == [None] * 4
    for kinds, text in together(4, tmp_path, load_stages, tmp_path, "bbaa", TWO):
        assert kinds == ["OtherNodeError"], text


def load_one(place: Path, nodes: str, name: str, value: Any) -> str:
    with pytest.raises(dcp.CheckpointException) as caught:
        read(on_node(place, nodes), {name: value}, resume=False)
    return str(caught.value)


@pytest.mark.slices(3)
@pytest.mark.parametrize(
    ("name", "value"), [("plain-a", torch.zeros(8)), ("note-a", ""), ("plain-b", torch.zeros(8))]
)
def test_a_name_of_another_node_is_elsewhere(tmp_path: Path, name: str, value: Any) -> None:
    together(4, tmp_path, save_stages, tmp_path, TWO)
    for said in together(4, tmp_path, load_one, tmp_path, TWO, name, value):
        assert "OtherNodeError" in said
        assert name in said
        assert "Missing key" not in said


# After a crash.


def load_apart(place: Path, nodes: str) -> str:
    """Without node_store each rank takes the newest of its own store."""
    store, state = on_node(place, nodes), {"steps": 0}
    try:
        read(store, state, resume=False, node_store=False)
    except dcp.CheckpointException as error:
        return str(error)
    return ""


@pytest.mark.full
@pytest.mark.parametrize("lacks", ["a", "b"])
def test_a_manifest_that_a_crash_has_left_out_is_brought_back(tmp_path: Path, lacks: str) -> None:
    truth, losses = train_and_die(train, tmp_path, TWO, "fsdp", 3)
    manifests = {node: step_directory(tmp_path / node / "store", 3) for node in "ab"}
    kept = (manifests[lacks] / "manifest.json").read_bytes()
    (manifests[lacks] / "manifest.json").unlink()
    for said in together(4, tmp_path, load_apart, tmp_path, TWO):
        assert "MismatchError" in said
    check_resumed(together(4, tmp_path, resume, tmp_path, TWO, "fsdp"), 3, truth, losses)
    assert (manifests[lacks] / "manifest.json").read_bytes() == kept


def rows_of(step: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.full((8, 256), float(step)) + torch.arange(8.0)[:, None]
    return {
        "rows": distribute_tensor(rows, mesh, [Shard(0)]),
        "same": torch.full((1000,), float(step)),
        "step": step,
    }


def load_if_any(store: Path, state: dict[str, Any]) -> bool:
    """False: nothing has been committed."""
    none = False
    try:
        read(store, state)
    except dcp.CheckpointException as error:
        none = "nothing has been committed yet" in str(error)
        if not none:
            raise
    return not none


def misnamed(place: Path, nodes: str) -> str:
    """One rank alone says no step's number; nobody waits for it."""
    store, state = on_node(place, nodes), {"a": torch.ones(3)}
    write(store, 1, state)
    close()
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load(
            state,
            checkpoint_id="last" if dist.get_rank() == 3 else "latest",
            storage_reader=StorageReader(store, node_store=True),
        )
    read(store, state)
    write(store, 2, state)
    return str(caught.value)


def test_what_one_rank_has_named_wrongly_is_told_to_all(tmp_path: Path) -> None:
    for said in together(4, tmp_path, misnamed, tmp_path, TWO):
        assert "it must end with the number of a step" in said


def load_where_nothing_is(place: Path, nodes: str) -> tuple[str, str]:
    """What a load raises, and what is there then."""
    store = on_node(place, nodes)
    with pytest.raises(dcp.CheckpointException) as caught:
        read(store, {"a": torch.ones(3)})
    dist.barrier()
    there = sorted(str(path.relative_to(place)) for path in place.rglob("ckpt.json"))
    dist.barrier()
    write(store, 1, {"a": torch.ones(3)})
    close()
    read(store, {"a": torch.ones(3)})
    return str(caught.value), ", ".join(there)


@pytest.mark.parametrize("nodes", ["ab", "aa"])
def test_a_load_makes_no_stores(tmp_path: Path, nodes: str) -> None:
    for said, there in together(2, tmp_path, load_where_nothing_is, tmp_path, nodes):
        assert "no store there" in said
        assert there == ""


def load_what_one_node_has(place: Path, nodes: str) -> bool:
    """The other one's store has been lost, and is made anew."""
    store = on_node(place, nodes)
    write(store, 1, {"a": torch.ones(3)})
    close()
    dist.barrier()
    if dist.get_rank() == 1:
        shutil.rmtree(store)
    dist.barrier()
    with contextlib.suppress(dcp.CheckpointException):
        read(store, {"a": torch.zeros(3)})
    return (store / "ckpt.json").exists()


def test_a_load_makes_the_store_that_one_node_lacks(tmp_path: Path) -> None:
    assert together(2, tmp_path, load_what_one_node_has, tmp_path, "ab") == [True, True]


def save_until_killed(place: Path, nodes: str, seconds: list[float]) -> None:
    """Saves step after step, and notes what it was told is durable, until the kernel ends it."""
    rank, store, first = dist.get_rank(), on_node(place, nodes), 0
    state = rows_of(0)
    if store.exists() and load_if_any(store, state):
        first = state["step"]
    log = os.open(place / f"told-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(first + 1, first + 10_000):
        write(store, step, rows_of(step), keep_last=1)
        os.write(log, f"{step}\n".encode())
        if step == first + 1:
            dist.barrier()
            signal.setitimer(signal.ITIMER_REAL, seconds[rank])  # whose signal is not handled


def what_is_left(place: Path, nodes: str) -> int:
    state = rows_of(0)
    if not load_if_any(on_node(place, nodes), state):
        return 0
    want = rows_of(state["step"])
    assert_same(state["rows"].to_local(), want["rows"].to_local())
    assert_same(state["same"], want["same"])
    step: int = state["step"]
    return step


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_when_what_was_durable_is_there(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    told = 0
    for _ in range(3):
        told = max(told, die_one_after_the_other(tmp_path, draw, 0.01, save_until_killed))
        left = together(4, tmp_path, what_is_left, tmp_path, TWO)
        assert left == [left[0]] * 4
        assert left[0] >= told > 0


# dcp.save() returns when it is on all nodes.


def save_late(place: Path, nodes: str) -> bool:
    """The lowest rank of node b says late that it has it; whether dcp.save() waited for that."""
    store, rank = on_node(place, nodes), dist.get_rank()
    write(store, 1, {"a": torch.ones(3)})
    (found,) = _engine_cache._holds.values()
    meeting = found.sharing
    assert meeting is not None
    tell = meeting.tell_end

    def late(nonce: str, error: Any) -> None:
        # Whoever does not wait for this has come back from dcp.save() by then.
        threading.Event().wait(1)
        (place / f"told-{rank}").touch()
        tell(nonce, error)

    def bad(nonce: str, error: Any) -> None:
        tell(nonce, libckpt.StorageError("no room here", code=-28, errno=28))

    meeting.tell_end = late  # type: ignore[method-assign]
    write(store, 2, {"a": torch.ones(3)})
    waited = (place / "told-2").exists()
    meeting.tell_end = bad  # type: ignore[method-assign]
    with pytest.raises(dcp.CheckpointException, match="not durable on node node-b: rank 2") as got:
        write(store, 3, {"a": torch.ones(3)})
    assert got.value.failures[0][0].errno == 28
    meeting.tell_end = tell  # type: ignore[method-assign]
    write(store, 4, {"a": torch.ones(3)})
    return waited


def test_a_save_is_over_when_all_nodes_have_it(tmp_path: Path) -> None:
    assert together(4, tmp_path, save_late, tmp_path, TWO) == [True] * 4
    for store in stores(tmp_path):
        assert [step for step, _ in steps_of(store)] == [1, 2, 3, 4]


# Ways to save.


def save_behind(place: Path, nodes: str) -> None:
    store, stager = on_node(place, nodes), Stager()
    for step in (1, 2, 3):
        job = Job("fsdp", seed=step)
        job.step()
        job.steps = step
        state = {**state_of(job), "scheduler": job.scheduler.state_dict()}
        truth = job.truth()
        future: Any = dcp.async_save(
            state,
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, pool_bytes=1 << 20, node_store=True),
            async_stager=stager,
            process_group=dist.group.WORLD,
        )
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.fill_(float("nan"))
        result_of(future)
        other = Job("fsdp", seed=9)
        found = {"model": other.model.state_dict()}
        read(store, found, resume=False)
        for name, value in found["model"].items():
            assert bits(full(value)) == bits(truth[name]), name


@pytest.mark.full
def test_ranks_save_behind_the_loop(tmp_path: Path) -> None:
    together(4, tmp_path, save_behind, tmp_path, TWO)
    for store in stores(tmp_path):
        assert [step for step, _ in steps_of(store)] == [1, 2, 3]


def mixed_state(step: int, extra: bool) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.arange(12.0).reshape(6, 2) * step
    state = {
        "rows": distribute_tensor(rows, mesh, [Shard(0)]),
        "same": torch.full((5,), float(step)),
        "value": {"step": step},
    }
    if extra:
        state["more"] = torch.full((2,), float(-step))
    return state


def save_ways(place: Path, nodes: str, caching: bool, collectives: bool) -> None:
    store = on_node(place, nodes)
    for step in range(1, 6):
        # The plan is the same, another one, the same, and the first one again.
        planner = dcp.DefaultSavePlanner(enable_plan_caching=caching)
        state = mixed_state(step, step in (3, 4))
        if not collectives:  # each rank has all that is whole, and no other rank has it
            state = {f"{name}-{dist.get_rank()}": value for name, value in state.items()}
            state = {name: value for name, value in state.items() if "rows" not in name}
        write(store, step, state, planner=planner, use_collectives=collectives)
        found = {name: value for name, value in state.items() if name != "value"}
        blank = {
            name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else {"step": 0}
            for name, value in found.items()
        }
        read(store, blank, step, resume=False, node_store=False)
        for name, value in found.items():
            if isinstance(value, DTensor):
                assert_same(blank[name].to_local(), value.to_local())
            else:
                assert_same(blank[name], value)


@pytest.mark.parametrize(("caching", "collectives"), [(True, True), (False, False)])
def test_plans_that_are_kept_and_plans_of_one(
    tmp_path: Path, caching: bool, collectives: bool
) -> None:
    together(4, tmp_path, save_ways, tmp_path, TWO, caching, collectives)
    for store in stores(tmp_path):
        assert [step for step, _ in steps_of(store)] == [1, 2, 3, 4, 5]
        if caching:
            for name, parts in held(store, 5).items():
                seen = [bits(part) for part in parts]
                assert len(seen) == len(set(seen)), name


def save_kept_elsewhere(place: Path, nodes: str) -> None:
    """torch keeps a plan of one store, and takes it for one of another."""
    store, state = on_node(place, nodes), mixed_state(1, False)
    other = store.with_name("other")
    for step in (1, 2):
        for where in (store, other):
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            write(where, step, state, planner=planner)
    close()
    for where in (store, other):
        blank = mixed_state(0, False)
        read(where, blank, 2, resume=False)
        assert_same(blank["rows"].to_local(), state["rows"].to_local())
        assert_same(blank["value"], state["value"])


def test_plans_that_are_kept_of_another_store(tmp_path: Path) -> None:
    together(4, tmp_path, save_kept_elsewhere, tmp_path, TWO)


def in_a_process(place: Path, nodes: str) -> None:
    """torch's own process has the stores open: what is there is read without opening them again."""
    store, stager = on_node(place, nodes), Stager()
    for step in (1, 2):
        state = {"a": torch.full((1000,), float(step)), "n": step}
        future: Any = dcp.async_save(
            state,
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(store, pool_bytes=1 << 20, node_store=True),
            async_stager=stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        result_of(future)
        dist.barrier()
        found = {"a": torch.zeros(1000), "n": 0}
        read(store, found, step, node_store=False)
        assert_same(found, {"a": torch.full((1000,), float(step)), "n": step})
    _async_process_executor._CHECKPOINT_PROCESS = None  # ends it


@pytest.mark.full
def test_torch_saves_from_a_process_of_its_own(tmp_path: Path) -> None:
    together(2, tmp_path, in_a_process, tmp_path, "ab")
    for store in stores(tmp_path, "ab"):
        assert [step for step, _ in steps_of(store)] == [1, 2]


def by_groups(place: Path, nodes: str) -> None:
    """Two groups, of a rank on each node, at the same time."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    store = on_node(place, nodes).with_name(f"pair-{rank % 2}")
    for step in (1, 2):
        dcp.save(
            {"a": torch.full((3,), float(rank % 2 * 10 + step))},
            checkpoint_id=f"step-{step}",
            storage_writer=StorageWriter(
                store, pool_bytes=1 << 20, process_group=mine, node_store=True
            ),
            process_group=mine,
        )
        assert (step, "committed") in steps_of(store)
    assert_same(libckpt.load(store)["a"], torch.full((3,), float(rank % 2 * 10 + 2)))


def test_groups_have_stores_of_their_own(tmp_path: Path) -> None:
    together(4, tmp_path, by_groups, tmp_path, TWO)


# Tied tensors, on nodes with different numbers of ranks.


def tied_state(fill: float, *, whole: bool) -> dict[str, Any]:
    """The same memory under two names, and a part of it, among others; `whole`: with a module."""
    shared = torch.arange(60.0).reshape(6, 10) + fill
    state: dict[str, Any] = {
        "first": shared,
        "second": shared,
        "deep": {"third": shared, "part": shared[2:4]},
        **{f"other-{n}": torch.full((7 + n,), fill + n) for n in range(5)},
    }
    if whole:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model[1].weight = model[0].weight
        with torch.no_grad():
            model[0].weight.fill_(fill)
        state["model"], state["beside"] = model, {"weight": model[1].weight.data}
    return state


def plain_of(state: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in state.items() if name != "model"}
    if "model" in state:
        found["weights"] = [state["model"][n].weight.detach() for n in (0, 1)]
    return found


def save_tied(place: Path, nodes: str, how: str) -> None:
    store, state = on_node(place, nodes), tied_state(5, whole=how == "checkpointer")
    if how == "checkpointer":
        with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, node_store=True) as ckpt:
            for step in (1, 2):
                ckpt.save(step).wait()
        return
    planner = dcp.DefaultSavePlanner(enable_plan_caching=how == "kept")
    for step in (1, 2):
        write(store, step, state, planner=planner)


def load_tied(place: Path, nodes: str, how: str) -> None:
    store, state = on_node(place, nodes), tied_state(0, whole=how == "checkpointer")
    want = plain_of(tied_state(5, whole=how == "checkpointer"))
    if how == "checkpointer":
        with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, node_store=True) as ckpt:
            assert ckpt.resume() == 2
    else:
        read(store, state, resume=False)
        untied = {name: value.clone() for name, value in state.items() if name != "deep"}
        read(store, untied, resume=False)
        assert_same(untied, {name: value for name, value in want.items() if name != "deep"})
        alone = {"second": torch.zeros(6, 10)}
        read(store, alone, resume=False)
        assert_same(alone["second"], want["second"])
    assert_same(plain_of(state), want)


@pytest.mark.slices(6)
@pytest.mark.parametrize("how", ["dcp", "kept", "checkpointer"])
@pytest.mark.parametrize(("nodes", "other"), [("aab", "baa"), ("abbb", "bbab")])
def test_tied_tensors_on_nodes_that_differ(
    tmp_path: Path, nodes: str, other: str, how: str
) -> None:
    together(len(nodes), tmp_path, save_tied, tmp_path, nodes, how)
    together(len(nodes), tmp_path, load_tied, tmp_path, nodes, how)
    # Every node has all of it, whoever is there.
    together(len(nodes), tmp_path, load_tied, tmp_path, other, how)
    for store in stores(tmp_path, nodes):
        found = libckpt.load(store)
        if how == "checkpointer":
            assert_same(found["second"], torch.arange(60.0).reshape(6, 10) + 5)
        else:
            for name in ("first", "second", "deep.third"):
                assert_same(found[name], torch.arange(60.0).reshape(6, 10) + 5)
        done = subprocess.run([TOOLS / "ckpt-verify", store], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


# When something fails.


def failing(place: Path, nodes: str, how: str) -> None:
    """Rank 3 cannot save step 2; nobody has it, and all save step 3."""
    store, rank = on_node(place, nodes), dist.get_rank()
    state: dict[str, Any] = {"a": torch.ones(5000), "b": 1}
    write(store, 1, state)
    options: dict[str, Any] = {}
    bad = dict(state)
    if how == "object" and rank == 3:
        bad["thing-of-rank-3"] = Thing(1)
    elif how == "plan":
        options["planner"] = Failing(rank == 3)
    with pytest.raises(dcp.CheckpointException) as caught:
        write(store, 2, bad, **options)
    assert 3 in caught.value.failures
    write(store, 3, {"a": torch.full((5000,), 3.0), "b": 3})
    found: dict[str, Any] = {"a": torch.zeros(5000), "b": 0}
    read(store, found)
    assert found["b"] == 3
    assert found["a"].eq(3).all()


@pytest.mark.parametrize("how", ["object", "plan"])
def test_a_rank_that_fails_fails_the_step_for_all(tmp_path: Path, how: str) -> None:
    together(4, tmp_path, failing, tmp_path, TWO, how)
    for store in stores(tmp_path):
        committed = [step for step, state in steps_of(store) if state == "committed"]
        assert committed == [1, 3]


def after_a_checkpointer(place: Path, nodes: str) -> None:
    """What it has saved is loaded, and gone on from."""
    store = on_node(place, nodes)
    own = torch.full((3,), 2.0)
    with libckpt.Checkpointer(store, {"w": own}, pool_bytes=1 << 20, node_store=True) as ckpt:
        ckpt.save(1).wait()
    with pytest.raises(dcp.CheckpointException, match="NotResumedError"):
        write(store, 2, {"w": own})
    found = {"w": torch.zeros(3)}
    read(store, found)
    assert_same(found["w"], own)
    write(store, 2, {"w": own + 1})
    read(store, found)
    assert_same(found["w"], own + 1)


def test_what_a_checkpointer_has_saved_goes_on(tmp_path: Path) -> None:
    together(4, tmp_path, after_a_checkpointer, tmp_path, TWO)


def test_one_process_is_a_node(store: Path) -> None:
    state = {"a": torch.arange(3.0), "b": 7}
    found = {"a": torch.zeros(3), "b": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process is told that it is one
        write(store, 1, state)
        read(store, found)
    assert_same(found, state)
    for kind in (StorageReader, StorageWriter):
        with pytest.raises(TypeError, match="node_store must be True or False"):
            kind(store, node_store=1)


# Who writes what.


def test_shares_of_a_node() -> None:
    def packed(*items: tuple[str, int]) -> bytes:
        return b"".join(_dedup._ITEM.pack(name.ljust(16).encode(), n) for name, n in items)

    all_of_it = [(f"w{n}", n * 100) for n in range(20)]
    held_by = {
        4: packed(*all_of_it, ("own4", 5)),
        6: packed(*reversed(all_of_it)),
        9: packed(*all_of_it, ("own9", 5), ("v", 0)),
    }
    found = {rank: _dedup.share(held_by, rank) for rank in held_by}
    names = [key.decode().strip() for keys in found.values() for key in keys]
    assert sorted(names) == sorted([name for name, _ in all_of_it] + ["own4", "own9", "v"])
    assert b"own4".ljust(16) in found[4]
    assert b"own9".ljust(16) in found[9]
    sizes = dict(all_of_it)
    loads = [sum(sizes.get(key.decode().strip(), 0) for key in keys) for keys in found.values()]
    assert max(loads) - min(loads) < 200
    assert _dedup.keepers(["a", "b", "a", "c", "b"]) == [0, 1, 3]
