# SPDX-License-Identifier: Apache-2.0
"""
Several ranks on nodes that have a store each, for the tests of both ways to save to them. The nodes
are directories of this machine.
"""

from __future__ import annotations

import collections
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from conftest import assert_same, bits, step_directory
from ranks import together
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import libckpt

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).resolve().parents[2] / "build/tools"))
#: on which node each of four ranks is
TWO = "aabb"


def rank_of() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def on_node(place: Path, nodes: str) -> Path:
    """This rank is on its node from here on; the store of that."""
    node = nodes[rank_of()]
    os.environ["LIBCKPT_NODE"] = f"node-{node}"
    (place / node).mkdir(exist_ok=True)
    return place / node / "store"


def stores(place: Path, nodes: str = TWO) -> list[Path]:
    return [place / node / "store" for node in sorted(set(nodes))]


def steps_of(store: Path) -> list[tuple[int, str]]:
    everything = libckpt.list_steps(store, everything=True)
    return sorted((info.step, info.state) for info in everything)


def state_on(mesh: Any, fill: float) -> dict[str, Any]:
    whole = torch.arange(24.0).reshape(6, 4) + fill
    placements = {
        "rows": [Replicate(), Shard(0)],
        "columns": [Shard(1), Replicate()],
        "same": [Replicate(), Replicate()],
        "cut": [Shard(0), Shard(1)],
    }
    made: dict[str, Any] = {
        name: distribute_tensor(whole.clone(), mesh, how) for name, how in placements.items()
    }
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))["y"]
    made["half"] = DTensor.from_local(torch.ones(3) * fill, half, [Replicate()], run_check=False)
    return made


def held(store: Path, step: int) -> dict[str, list[torch.Tensor]]:
    """All tensors that the shards of a step hold, by their names."""
    found: dict[str, list[torch.Tensor]] = collections.defaultdict(list)
    for shard in sorted(step_directory(store, step).glob("rank-*.safetensors")):
        for name, tensor in load_file(shard).items():
            found[name].append(tensor)
    return dict(found)


# Jobs that die.


def die_of_all(place: Path, truth: Any, losses: list[float]) -> NoReturn:
    """Leaves what this rank has had at its last save, and the losses of the steps after it."""
    torch.save((truth, losses), place / f"truth-{rank_of()}.pt")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def train_and_die(
    train: Callable[..., Any], place: Path, nodes: str, layout: str, steps: int
) -> tuple[Any, Any]:
    """What the ranks have left that `train` has brought to their end."""
    with pytest.raises(AssertionError, match="died"):
        together(len(nodes), place, train, place, nodes, layout, steps, "killed")
    found = [torch.load(place / f"truth-{rank}.pt") for rank in range(len(nodes))]
    for truth, _ in found[1:]:
        assert_same(truth, found[0][0])
    return found[0]


def check_resumed(found: list[Any], step: int, truth: dict[str, Any], losses: Any) -> None:
    for now in found:
        assert now[0] == step, now
        assert set(now[1]) == set(truth)
        for name, tensor in truth.items():
            assert bits(now[1][name]) == bits(tensor), name
        assert now[2] == losses


def die_one_after_the_other(
    place: Path, draw: random.Random, first: float, save: Callable[..., Any]
) -> int:
    """
    Four ranks `save` until the kernel ends them: one node first, or all at about one time; who
    waits for the dead ones dies soon after. The newest step that one was told is durable.
    """
    base = {node: draw.uniform(first, first + 0.4) for node in "ab"}
    seconds = [base[node] + draw.choice((0, draw.uniform(0, 0.01))) for node in TWO]
    with pytest.raises(AssertionError, match="died"):
        together(4, place, save, place, TWO, seconds)
    lines = [path.read_text().split() for path in place.glob("told-*")]
    return max([0, *(int(line) for some in lines for line in some)])
