# SPDX-License-Identifier: Apache-2.0
"""Every node of a job has a store of its own. The nodes are directories of this machine."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import assert_same, bits, step_directory
from forked import torchrun
from libckpt._nodes import Place, peers_by_node, place_of, refusal
from libckpt._ranks import Near, Ranks
from libckpt.adapters._layout import Copies
from node_rig import (
    TOOLS,
    TWO,
    check_resumed,
    die_of_all,
    die_one_after_the_other,
    held,
    on_node,
    rank_of,
    state_on,
    steps_of,
    stores,
    train_and_die,
)
from ranks import Job, full, together
from safetensors.torch import load_file
from test_ranks import own_state
from torch.distributed.device_mesh import init_device_mesh
from waiting import ended

import libckpt


def train(place: Path, nodes: str, layout: str, steps: int, how: str) -> Any:
    """Trains and saves each step; then dies, or gives the truth at the last save and the losses."""
    job = Job(layout, seed=1)
    with job.open(on_node(place, nodes), every=1, keep_last=2, node_store=True) as ckpt:
        assert ckpt.resume() == 0
        for step in range(steps):
            job.step()
            save = ckpt.step(step + 1)
        assert save is not None
        save.wait()
        truth = job.truth()
        if how == "killed":
            die_of_all(place, truth, [job.step() for _ in range(2)])
    return truth, [job.step() for _ in range(2)]


def resume(place: Path, nodes: str, layout: str, lost_nodes: bool = False) -> Any:
    """Resumes, trains a step and saves it: which, what was there, the losses, and what was said."""
    job = Job(layout, seed=2)
    with (
        warnings.catch_warnings(record=True) as caught,
        job.open(
            on_node(place, nodes), keep_last=2, node_store=True, lost_nodes=lost_nodes
        ) as ckpt,
    ):
        warnings.simplefilter("always")
        try:
            step = ckpt.resume()
        except libckpt.CheckpointError as error:
            return type(error).__name__, str(error)
        truth = job.truth()
        losses = [job.step()]
        ckpt.save(step + 1).wait()
        losses.append(job.step())
    said = [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]
    return step, truth, losses, said


# Saving and getting it back.


@pytest.mark.slices(7)
@pytest.mark.parametrize(
    ("layout", "nodes"),
    [
        ("ddp", "aabb"),
        ("ddp", "aaab"),
        ("fsdp", "aabb"),
        ("fsdp", "abab"),
        ("hsdp", "aabb"),
        ("hsdp", "abab"),
        ("tp", "aabb"),
    ],
)
def test_all_are_killed_and_resume_to_the_bit(tmp_path: Path, layout: str, nodes: str) -> None:
    truth, losses = train_and_die(train, tmp_path, nodes, layout, 3)
    check_resumed(together(4, tmp_path, resume, tmp_path, nodes, layout), 3, truth, losses)
    # And from what those have saved.
    again = together(4, tmp_path, resume, tmp_path, nodes, layout)
    assert [found[0] for found in again] == [4] * 4
    assert {tuple(found[2]) for found in again} == {tuple(again[0][2])}
    assert again[0][2][0] == losses[1]
    for found in again:
        assert found[3] == []


@pytest.mark.parametrize("nodes", ["aabb", "aaab"])
def test_each_store_has_once_what_all_ranks_have(tmp_path: Path, nodes: str) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, nodes, "ddp", 2, "closed")[0]
    for node, store in zip("ab", stores(tmp_path), strict=True):
        found = held(store, 2)
        for name, tensor in truth.items():
            assert len(found[name]) == 1, name
            assert bits(found[name][0]) == bits(tensor), name
        shards = sorted(step_directory(store, 2).glob("rank-*.safetensors"))
        assert len(shards) == nodes.count(node)
        sizes = [
            sum(t.numel() for name, t in load_file(shard).items() if name in truth)
            for shard in shards
        ]
        # Shared out among the ranks of the node.
        assert min(sizes) > sum(sizes) / len(sizes) / 2, sizes


def test_each_store_has_its_part_of_what_is_cut(tmp_path: Path) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, TWO, "fsdp", 2, "closed")[0]
    a, b = (held(store, 2) for store in stores(tmp_path))
    for name, tensor in truth.items():
        count = [sum(part.numel() for part in found.get(name, [])) for found in (a, b)]
        if name == "count" or name.endswith("/step"):
            assert count == [tensor.numel()] * 2, name
        else:
            assert sum(count) == tensor.numel(), name
    # Two rows over four ranks: the second node has none.
    assert "few.weight" in a
    assert "few.weight" not in b


def test_replicas_of_a_part_are_on_each_node(tmp_path: Path) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, TWO, "hsdp", 2, "closed")[0]
    for store in stores(tmp_path):
        found = held(store, 2)
        for name, tensor in truth.items():
            assert sum(part.numel() for part in found[name]) == tensor.numel(), name
        # Each node can be read by itself.
        state = libckpt.load(store)
        for name, tensor in state["model"].items():
            assert bits(tensor) == bits(truth[name]), name


def test_retention_is_that_of_every_store(tmp_path: Path) -> None:
    together(4, tmp_path, train, tmp_path, TWO, "ddp", 6, "closed")
    for store in stores(tmp_path):
        assert steps_of(store) == [(5, "committed"), (6, "committed")]


def test_the_manifests_of_a_step_are_one(tmp_path: Path) -> None:
    together(4, tmp_path, train, tmp_path, TWO, "fsdp", 2, "closed")
    a, b = ((step_directory(store, 2) / "manifest.json") for store in stores(tmp_path))
    assert a.read_bytes() == b.read_bytes()


def test_a_manifest_that_a_crash_has_left_out_is_brought_back(tmp_path: Path) -> None:
    truth, losses = train_and_die(train, tmp_path, TWO, "fsdp", 3)
    a, b = ((step_directory(store, 3) / "manifest.json") for store in stores(tmp_path))
    kept = a.read_bytes()
    b.unlink()
    check_resumed(together(4, tmp_path, resume, tmp_path, TWO, "fsdp"), 3, truth, losses)
    assert a.read_bytes() == b.read_bytes() == kept


def save_until_killed(place: Path, nodes: str, seconds: list[float]) -> None:
    """Saves step after step, and notes what it was told is durable, until the kernel ends it."""
    rank = rank_of()
    store = on_node(place, nodes)
    weight, own = torch.zeros(1 << 12), libckpt.PerRank(torch.zeros(1 << 10))
    log = os.open(place / f"told-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with libckpt.Checkpointer(
        store, {"w": weight, "own": own}, pool_bytes=1 << 20, keep_last=2, node_store=True
    ) as ckpt:
        first = ckpt.resume()
        dist.barrier()
        signal.setitimer(signal.ITIMER_REAL, seconds[rank])  # whose signal is not handled
        for step in range(first + 1, first + 10_000):
            weight.fill_(step)
            own.value.fill_(step + rank)
            ckpt.save(step).wait()
            os.write(log, f"{step}\n".encode())


def what_is_left(place: Path, nodes: str) -> tuple[int, float, float]:
    weight, own = torch.zeros(1 << 12), libckpt.PerRank(torch.zeros(1 << 10))
    with libckpt.Checkpointer(
        on_node(place, nodes), {"w": weight, "own": own}, pool_bytes=1 << 20, node_store=True
    ) as ckpt:
        step = ckpt.resume()
    assert len(weight.unique()) == len(own.value.unique()) == 1
    return step, weight[0].item(), own.value[0].item()


@pytest.mark.slices(3)
@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_when_what_was_durable_is_there(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    told = 0
    for _ in range(3):
        told = max(told, die_one_after_the_other(tmp_path, draw, 0.05, save_until_killed))
        left = together(4, tmp_path, what_is_left, tmp_path, TWO)
        steps = {step for step, _, _ in left}
        assert len(steps) == 1
        assert steps.pop() >= told
        for rank, (step, weight, own) in enumerate(left):
            assert (weight, own) == ((step, step + rank) if step else (0, 0))


# What is elsewhere.


def test_a_node_is_verified_by_itself(tmp_path: Path) -> None:
    together(4, tmp_path, train, tmp_path, TWO, "fsdp", 2, "closed")
    for store, other in zip(stores(tmp_path), "ba", strict=True):
        done = subprocess.run(
            [TOOLS / "ckpt-verify", store], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "other node" in done.stdout
        assert f"node-{other}" in done.stdout


def test_ranks_of_ddp_may_change_nodes(tmp_path: Path) -> None:
    truth, _ = train_and_die(train, tmp_path, TWO, "ddp", 3)
    found = together(4, tmp_path, resume, tmp_path, "bbaa", "ddp")
    for rank, now in enumerate(found):
        assert now[0] == 3, now
        for name, tensor in truth.items():
            assert bits(now[1][name]) == bits(tensor), name
        (said,) = now[3]
        assert f"what rank {rank} saved is on node node-{TWO[rank]}" in said
        assert "seeded anew" in said
    # What these have saved is theirs.
    assert [now[3] for now in together(4, tmp_path, resume, tmp_path, "bbaa", "ddp")] == [[]] * 4


def test_parts_on_another_node_are_an_error_and_no_damage(tmp_path: Path) -> None:
    truth, losses = train_and_die(train, tmp_path, TWO, "fsdp", 3)
    before = [steps_of(store) for store in stores(tmp_path)]
    # Nothing was lost, so nothing is passed over, whatever the user says.
    for lost_nodes in (False, True):
        said = together(4, tmp_path, resume, tmp_path, "bbaa", "fsdp", lost_nodes)
        for kind, text in said:
            assert kind == "OtherNodeError", text
            assert "node-" in text
        assert any("as many nodes as have saved it" in text for _, text in said) == lost_nodes
    assert [steps_of(store) for store in stores(tmp_path)] == before
    assert not list(tmp_path.glob("*/store/g*/step-*/quarantine.json"))
    check_resumed(together(4, tmp_path, resume, tmp_path, TWO, "fsdp"), 3, truth, losses)


def test_a_node_that_has_lost_its_disk_takes_a_copy_of_anothers(tmp_path: Path) -> None:
    truth, _ = train_and_die(train, tmp_path, TWO, "ddp", 3)
    a, b = stores(tmp_path)
    shutil.rmtree(b)
    for kind, text in together(4, tmp_path, resume, tmp_path, TWO, "ddp"):
        assert kind == "OtherNodeError", text
        assert "on node node-a; " in text or "node-a (" in text, text
    assert not list(tmp_path.glob("*/store/g*/step-*/quarantine.json"))
    shutil.copytree(a, b, dirs_exist_ok=True)
    for rank, now in enumerate(together(4, tmp_path, resume, tmp_path, TWO, "ddp")):
        assert now[0] == 3, now
        for name, tensor in truth.items():
            assert bits(now[1][name]) == bits(tensor), name
        assert len(now[3]) == (rank > 1), now[3]
    assert [steps_of(store) for store in (a, b)] == [[(3, "committed"), (4, "committed")]] * 2


def test_what_a_store_has_can_be_loaded(tmp_path: Path) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, TWO, "fsdp", 2, "closed")[0]
    a, b = stores(tmp_path)
    for store in (a, b):
        assert bits(libckpt.load(store, names=["count"])["count"]) == bits(truth["count"])
        for names in (["up.weight"], None):
            with pytest.raises(libckpt.OtherNodeError):
                libckpt.load(store, names=names)
    assert "few.weight" in libckpt.load(a, names="few.*")
    for name in ("few.weight", "rank-00000/rng/torch"):
        with pytest.raises(libckpt.OtherNodeError, match=re.escape(name)):
            libckpt.load(b, names=name)
    # With the files of both in one place all is there.
    for path in step_directory(a, 2).iterdir():
        copy = step_directory(b, 2) / path.name
        if not copy.exists():
            copy.write_bytes(path.read_bytes())
    for name, tensor in libckpt.load(b)["model"].items():
        assert bits(tensor) == bits(truth[name]), name


# What each rank has of its own.


def save_own(place: Path, nodes: str) -> list[float]:
    rank = rank_of()
    torch.manual_seed(100 + rank)
    store = on_node(place, nodes)
    with libckpt.Checkpointer(store, own_state(rank), pool_bytes=1 << 20, node_store=True) as ckpt:
        ckpt.save(1).wait()
    return torch.rand(3).tolist()


def resume_own(place: Path, nodes: str) -> dict[str, Any]:
    rank = rank_of()
    state, store = own_state(rank + 50), on_node(place, nodes)
    with (
        warnings.catch_warnings(record=True) as caught,
        libckpt.Checkpointer(store, state, pool_bytes=1 << 20, node_store=True) as ckpt,
    ):
        warnings.simplefilter("always")
        assert ckpt.resume() == 1
    return {
        "shared": state["shared"],
        "name": state["deep"][0]["own"].value["name"],
        "position": state["loader"].position,
        "noise": state["loader"].noise,
        "drawn": torch.rand(3).tolist(),
        "said": [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning],
    }


def test_what_is_a_ranks_own_comes_back_to_it(tmp_path: Path) -> None:
    drawn = together(3, tmp_path, save_own, tmp_path, "aab")
    for rank, found in enumerate(together(3, tmp_path, resume_own, tmp_path, "aab")):
        assert_same(found["shared"], torch.arange(5.0))
        assert found["name"] == f"rank {rank}"
        assert found["position"] == rank
        assert_same(found["noise"], torch.full((3,), float(rank)))
        assert found["drawn"] == drawn[rank]
        assert not found["said"]


def test_a_rank_whose_own_is_elsewhere_is_told(tmp_path: Path) -> None:
    drawn = together(3, tmp_path, save_own, tmp_path, "aab")
    found = together(3, tmp_path, resume_own, tmp_path, "baa")
    assert found[1]["name"] == "rank 1"
    assert found[1]["drawn"] == drawn[1]
    assert not found[1]["said"]
    for rank, lender in ((0, 2), (2, 0)):
        assert found[rank]["name"] == f"rank {rank + 50}"
        assert found[rank]["position"] == lender
        assert found[rank]["drawn"] not in drawn
        (said,) = found[rank]["said"]
        assert f"what rank {rank} saved is on node node-{'aab'[rank]}" in said
        assert f"state['loader'] got the state of rank {lender}" in said
        assert "keep their present values;" in said
        assert "seeded anew" in said


# Tensors that ranks hold in part, and in part alike.


def save_spread(place: Path, nodes: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    store = on_node(place, nodes)
    with libckpt.Checkpointer(store, state_on(mesh, 5), pool_bytes=1 << 20, node_store=True) as c:
        c.save(1).wait()


def resume_spread(place: Path, nodes: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2))
    state, store = state_on(mesh, 0), on_node(place, nodes)
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, node_store=True) as ckpt:
        assert ckpt.resume() == 1
    return {name: value.full_tensor() for name, value in state.items()}


@pytest.mark.slices(5)
@pytest.mark.parametrize("nodes", ["aabb", "abab", "abba", "abcc", "aaab"])
def test_every_way_in_which_ranks_hold_the_same(tmp_path: Path, nodes: str) -> None:
    together(4, tmp_path, save_spread, tmp_path, nodes)
    whole = torch.arange(24.0).reshape(6, 4) + 5
    for found in together(4, tmp_path, resume_spread, tmp_path, nodes):
        assert torch.equal(found.pop("half"), torch.full((3,), 5.0))
        for name, tensor in found.items():
            assert torch.equal(tensor, whole), name
    for store in stores(tmp_path, nodes):
        parts = held(store, 1)
        assert len(parts["same"]) == 1
        # Nothing is there twice: a box that ranks of the node hold is held by one of its shards.
        for name in ("rows", "columns", "cut"):
            seen = [bits(part) for part in parts[name]]
            assert len(seen) == len(set(seen)), name


# Beside other stores.


def train_twice(place: Path, nodes: str) -> dict[str, torch.Tensor]:
    """Saves to the node at every step, and to a store that all share at every other one."""
    job, shared = Job("fsdp", seed=1), place / "shared"
    with (
        job.open(on_node(place, nodes), every=1, keep_last=1, node_store=True) as near,
        job.open(shared, every=2) as far,
    ):
        assert [near.resume(), far.resume()] == [0, 0]
        for step in range(1, 4):
            job.step()
            near.step(step)
            far.step(step)
            if step == 2:
                truth = job.truth()
    return truth


def resume_far(place: Path) -> tuple[int, dict[str, torch.Tensor]]:
    job = Job("fsdp", seed=2)
    with job.open(place / "shared") as ckpt:
        return ckpt.resume(), job.truth()


def test_a_job_saves_near_and_far(tmp_path: Path) -> None:
    truth = together(4, tmp_path, train_twice, tmp_path, TWO)[0]
    assert [steps_of(store) for store in stores(tmp_path)] == [[(3, "committed")]] * 2
    for step, found in together(2, tmp_path, resume_far, tmp_path):
        assert step == 2
        for name, tensor in truth.items():
            assert bits(found[name]) == bits(tensor), name


def save_by_dcp(place: Path, nodes: str) -> str:
    import libckpt.dcp
    import torch.distributed.checkpoint as dcp

    store = on_node(place, nodes)
    with libckpt.Checkpointer(
        store, {"w": torch.ones(3)}, pool_bytes=1 << 20, node_store=True
    ) as ckpt:
        ckpt.save(1).wait()
    try:
        dcp.save(
            {"w": torch.ones(3)},
            checkpoint_id="step-2",
            storage_writer=libckpt.dcp.StorageWriter(store, pool_bytes=1 << 20, save_timeout=3600),
        )
    except dcp.CheckpointException as error:
        return str(error)
    return ""


def test_dcp_says_that_a_store_is_of_one_node(tmp_path: Path) -> None:
    for said in together(2, tmp_path, save_by_dcp, tmp_path, "aa"):
        assert "that of one node" in said, said


def load_by_dcp(place: Path, nodes: str) -> dict[str, torch.Tensor]:
    import libckpt.dcp
    import torch.distributed.checkpoint as dcp

    store, job = on_node(place, nodes), Job("fsdp", seed=2)
    state = {"model": job.model.state_dict()}
    dcp.load(state, storage_reader=libckpt.dcp.StorageReader(store, resume=False))
    return {name: full(tensor) for name, tensor in state["model"].items()}


def test_dcp_loads_what_is_on_the_node(tmp_path: Path) -> None:
    truth, _ = together(4, tmp_path, train, tmp_path, TWO, "fsdp", 2, "closed")[0]
    for found in together(4, tmp_path, load_by_dcp, tmp_path, TWO):
        for name, tensor in found.items():
            assert bits(tensor) == bits(truth[name]), name


# Who is on which node.


def open_together(paths: list[str], names: list[str], options: list[dict[str, Any]]) -> str:
    rank = rank_of()
    os.environ["LIBCKPT_NODE"] = names[rank]
    path = Path(paths[rank])
    try:
        with libckpt.Checkpointer(
            path, {"w": torch.ones(3)}, pool_bytes=1 << 20, **options[rank]
        ) as ckpt:
            ckpt.save(1).wait()
    except (ValueError, libckpt.CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


NODES = {"node_store": True}


@pytest.mark.parametrize(
    ("paths", "names", "match"),
    [
        (["a", "b", "c"], ["x", "y", "x"], "ranks 0 and 2 are both on node 'x'"),
        (["a", "b", "b"], ["x", "y", "z"], "ranks 1 and 2 have the same directory"),
        (["a", "b", "c"], ["x", "y", "z" * 65], "rank 2: LIBCKPT_NODE is 'zzz"),
        (["a", "b", "c"], ["x", "y\n", "z"], "rank 1: LIBCKPT_NODE is"),
        (["a", "b", "none/such"], ["x", "y", "z"], "No such file or directory"),
        (["a", "b", "/dev/null"], ["x", "y", "z"], "Not a directory"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(
    tmp_path: Path, paths: list[str], names: list[str], match: str
) -> None:
    given = [str(tmp_path / path) for path in paths]
    for said in together(3, tmp_path, open_together, given, names, [NODES] * 3):
        assert match in said


def test_links_and_other_ways_to_a_directory_are_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    given = [str(tmp_path / "real" / "s"), str(tmp_path / "link" / "s"), str(tmp_path / "other")]
    names = ["x", "x", "y"]
    assert together(3, tmp_path, open_together, given, names, [NODES] * 3) == [""] * 3
    assert [info.step for info in libckpt.list_steps(tmp_path / "real" / "s")] == [1]


def test_a_store_is_of_one_kind(tmp_path: Path) -> None:
    given = [str(tmp_path / "s")] * 2
    assert together(2, tmp_path, open_together, given, ["x", "x"], [{}] * 2) == ["", ""]
    for said in together(2, tmp_path, open_together, given, ["x", "x"], [NODES] * 2):
        assert "StorageError" in said
        assert "one for all nodes" in said
    nodes = [str(tmp_path / "t")] * 2
    assert together(2, tmp_path, open_together, nodes, ["x", "x"], [NODES] * 2) == ["", ""]
    for said in together(2, tmp_path, open_together, nodes, ["x", "x"], [{}] * 2):
        assert "StorageError" in said
        assert "of one node" in said


def test_alone_a_node_is_all_there_is(opened: Any, store: Path) -> None:
    state = {"w": torch.arange(4.0)}
    opened(state, node_store=True).save(3).wait()
    opened(state, path=store.parent / "again", node_store=True)
    with pytest.raises(TypeError, match="node_store must be True or False"):
        opened(state, node_store=1)
    with pytest.raises(ValueError, match="give node_store=True, too"):
        opened(state, lost_nodes=True)
    assert [info.step for info in libckpt.list_steps(store)] == [3]
    assert_same(libckpt.load(store)["w"], torch.arange(4.0))


PROGRAM = """
import os, sys
sys.path.insert(0, {tests!r})
import torch.distributed as dist
from pathlib import Path
from ranks import Job
dist.init_process_group("gloo")
job = Job("fsdp", seed=1)
node = "ab"[int(os.environ["GROUP_RANK"])]
os.environ["LIBCKPT_NODE"] = f"node-{{node}}"
with job.open(Path(sys.argv[1]) / node / "store", every=2, node_store=True) as ckpt:
    start = ckpt.resume()
    for step in range(start, start + 4):
        loss = job.step()
        ckpt.step(step + 1)
sys.stdout.write(f"rank {{dist.get_rank()}} from {{start}}: {{loss!r}}\\n")
dist.destroy_process_group()
"""


def run_nodes(place: Path) -> list[str]:
    """Two nodes, each with an agent and two ranks."""
    # Their store of keys is here: no port is looked for that another program may take.
    keys = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    script = place / "train.py"
    script.write_text(PROGRAM.format(tests=str(Path(__file__).parent)))
    agents = [
        torchrun(
            *("--nnodes=2", "--max-restarts=0", "--nproc-per-node=2", "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint=localhost:{keys.port}", "--rdzv-conf=is_host=false,timeout=3600"),
            *("--rdzv-id=1", script, place),
        )
        for _ in range(2)
    ]
    said = [ended(agent) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    lines = "".join(out for out, _ in said).splitlines()
    return sorted(line for line in lines if line.startswith("rank "))


@pytest.mark.full
def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    for node in "ab":
        (tmp_path / node).mkdir()
    for start in (0, 4):
        lines = run_nodes(tmp_path)
        assert [line.partition(":")[0] for line in lines] == [
            f"rank {rank} from {start}" for rank in range(4)
        ]
    assert [steps_of(store) for store in stores(tmp_path)] == [
        [(step, "committed") for step in (2, 4, 6, 8)]
    ] * 2


def test_places() -> None:
    def place(node: str, directory: str) -> Place:
        return Place(node, "/p", directory)

    here = [place("a", "k/1/1"), place("b", "k/1/2"), place("a", "k/1/1")]
    assert refusal(here) is None
    assert peers_by_node(here) == {"a": [0, 2], "b": [1]}

    def why(*places: Place) -> str:
        found = refusal(list(places))
        return "" if found is None else found.why

    # Machines that are made alike have the same numbers, under kernels of their own.
    assert why(place("a", "k/1/1"), place("b", "l/1/1")) == ""
    assert "both on node 'a'" in why(place("a", "k/1/1"), place("a", "l/1/1"))
    assert "the same directory" in why(place("a", "k/1/1"), place("b", "k/1/1"))
    assert why(place("a", ""), place("a", "k/1/1"), place("b", "")) == ""
    lost = here[2]._replace(lost_nodes=True)
    assert "rank 0 has lost_nodes=False, and rank 2 lost_nodes=True" in why(*here[:2], lost)
    bad = here[0]._replace(trouble="no room", errno=28)
    assert refusal([here[0], bad]) == (1, "rank 1: no room", 28)
    assert Place.decode(bad.encode()) == bad
    # What is mounted may be mounted elsewhere, too: it is known by itself, and not by where it is.
    root = os.stat("/proc")
    assert place_of("/proc").directory.endswith(f"/{root.st_dev}/{root.st_ino}/")
    assert Place.decode(here[0].encode()) == here[0]


def test_turns_of_a_node() -> None:
    peers = [1, 4, 6]
    for index, rank in enumerate(peers):
        ranks = Ranks(rank, 8, Near(rank, peers))
        assert ranks.here(ranks.everywhere()) == Copies("world", 3, index)
        alone = Copies("x", 1, 0)
        assert ranks.here(alone) is alone
        assert Ranks(rank, 8).everywhere() == Copies("world", 8, rank)
