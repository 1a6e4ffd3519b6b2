# SPDX-License-Identifier: Apache-2.0
"""What several ranks of a node restore alike is read from the disk once, and not by each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import libckpt

ROWS, COLUMNS = 4099, 1024  # 16 MiB of float32
COUNT = 3
WANTED = COUNT * ROWS * COLUMNS * 4


def whole(number: int) -> torch.Tensor:
    made: torch.Tensor = torch.arange(ROWS * COLUMNS, dtype=torch.float32)
    return (made * (number + 1)).reshape(ROWS, COLUMNS)


def read_bytes() -> int:
    """What this process has had the kernel read from disks, threads that have ended included."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def state_of(world: int, placement: Any, fill: bool) -> dict[str, Any]:
    """Tensors in a state: plain ones, the same on all ranks, or cut."""
    made = {str(n): whole(n) if fill else torch.zeros(ROWS, COLUMNS) for n in range(COUNT)}
    if placement is None or world == 1:
        return made
    mesh = init_device_mesh("cpu", (world,))
    return {name: distribute_tensor(value, mesh, [placement]) for name, value in made.items()}


def save(store: Path, world: int, placement: Any) -> None:
    state = state_of(world, placement, True)
    with libckpt.Checkpointer(store, {"t": state}, pool_bytes=32 << 20) as ckpt:
        ckpt.resume()
        ckpt.save(1).wait()


def load(store: Path, world: int, placement: Any, here: int) -> int:
    """The bytes that this rank has read, and whether all is there; `here` ranks are on its node."""
    os.environ["LOCAL_WORLD_SIZE"] = str(here)
    state = state_of(world, placement, False)
    with libckpt.Checkpointer(store, {"t": state}, pool_bytes=32 << 20) as ckpt:
        before = read_bytes()
        assert ckpt.resume() == 1
        found = read_bytes() - before
    for number in range(COUNT):
        value = state[str(number)]
        full = value.full_tensor() if isinstance(value, DTensor) else value
        assert torch.equal(full, whole(number))
    return found


@pytest.mark.slices(4)
@pytest.mark.parametrize(
    ("saved", "loaded", "world"),
    [
        pytest.param(None, None, 4, id="replicas"),
        pytest.param(Shard(0), Replicate(), 4, id="replicated mesh"),
        pytest.param(Shard(0), Shard(1), 3, id="rows to columns"),
        pytest.param(Shard(0), Shard(0), 4, id="rows"),
    ],
)
def test_a_node_reads_each_byte_once(tmp_path: Path, saved: Any, loaded: Any, world: int) -> None:
    store = tmp_path / "store"
    together(2, tmp_path / "saving", save, store, 2, saved)
    read = sum(together(world, tmp_path / "loading", load, store, world, loaded, world))
    if read == 0:
        pytest.skip("reads of this file system are not counted")
    assert WANTED <= read <= 1.05 * WANTED


def test_without_others_on_the_node_the_page_cache_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    together(2, tmp_path / "saving", save, store, 2, None)
    for _ in range(2):
        read = sum(together(2, tmp_path / "loading", load, store, 2, None, 1))
        if read == 0:
            pytest.skip("reads of this file system are not counted")
        # Each has read all of it, and has left nothing for the next.
        assert read >= 2 * WANTED
