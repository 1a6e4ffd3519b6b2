#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What save() takes from its caller on each of several ranks, for 10,000 tensors of FSDP.

Ranks on one machine, gloo, parameters sharded by fully_shard(), AdamW: parameter, two moments and a
step count for each of 2,500. Measured is the wall time of the call on the slowest rank, from the
second save on, and what the wait before the optimizer's step adds. Beside it the call of
torch.distributed.checkpoint.async_save, and making the state dict that it is given.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure

PARAMETERS, BLOCKS, SHAPE = 2500, 25, (64, 16)
LIMIT_MS = 5.0


def train(count: int) -> tuple[Any, Any]:
    """A model over all ranks, and its optimizer as after a step."""
    import torch
    from torch.distributed.fsdp import fully_shard

    blocks = []
    for _ in range(BLOCKS):
        block = torch.nn.Module()
        for number in range(count // BLOCKS):
            block.register_parameter(f"weight{number}", torch.nn.Parameter(torch.randn(SHAPE)))
        blocks.append(block)
    model = torch.nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    # Steps without gradients: they run hooks, and not ten thousand operations on DTensors.
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return model, optimizer


def save_libckpt(place: Path, count: int, saves: int) -> dict[str, list[float]]:
    import torch.distributed as dist

    import libckpt

    model, optimizer = train(count)
    found: dict[str, list[float]] = {"call_s": [], "cpu_s": [], "fence_s": [], "first_s": []}
    state = {"model": model, "optimizer": optimizer}
    with libckpt.Checkpointer(place / "store", state, keep_last=1, eager=False) as ckpt:
        ckpt.resume()
        for number in range(saves + 1):
            dist.barrier()
            used, began = time.thread_time(), time.perf_counter()
            save = ckpt.save(number + 1)
            called = time.perf_counter() - began
            if number:
                found["cpu_s"].append(time.thread_time() - used)
            found["call_s" if number else "first_s"].append(called)
            began = time.perf_counter()
            ckpt.wait_staged()
            found["fence_s"].append(time.perf_counter() - began)
            optimizer.step()
            save.wait()
    return found


def save_dcp(place: Path, count: int, saves: int) -> dict[str, list[float]]:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = train(count)
    found: dict[str, list[float]] = {"call_s": [], "cpu_s": [], "dict_s": [], "first_s": []}
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    for number in range(saves + 1):
        dist.barrier()
        began = time.perf_counter()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        found["dict_s"].append(time.perf_counter() - began)
        state = {"model": model_state, "optimizer": optimizer_state}
        dist.barrier()
        used, began = time.thread_time(), time.perf_counter()
        future: Any = dcp.async_save(
            state, checkpoint_id=str(place / f"dcp-{number}"), planner=planner
        )
        called = time.perf_counter() - began
        if number:
            found["cpu_s"].append(time.thread_time() - used)
        found["call_s" if number else "first_s"].append(called)
        future.result()
        optimizer.step()
    return found


def be_rank(what: str, place: Path, count: int, saves: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    run = save_libckpt if what == "libckpt" else save_dcp
    found = run(place, count, saves)
    all_found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_found, found)
    if dist.get_rank() == 0:
        slowest = {
            key: [max(values) for values in zip(*(each[key] for each in all_found), strict=True)]
            for key in found
        }
        print(json.dumps(slowest), flush=True)
    dist.destroy_process_group()


def run_ranks(what: str, place: Path, world: int, count: int, saves: int) -> Any:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, __file__, "--rank-of", what, str(place), str(count), str(saves)]
    ranks = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(world)
    ]
    printed = ranks[0].communicate(timeout=900)[0]
    if any(process.wait() for process in ranks):
        raise RuntimeError(f"{what} failed on {world} ranks")
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--rank-of"]:
        be_rank(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
        return
    args = measure.parser("What save() takes on several ranks.").parse_args()
    count, saves = (250, 3) if args.quick else (PARAMETERS, 11)
    figures: dict[str, Any] = {"tensors": 4 * count, "versions": measure.version_of("torch")}
    rows = []
    for world in (2,) if args.quick else (2, 4):
        with measure.scratch(args.dir) as place:
            mine = run_ranks("libckpt", place, world, count, saves)
        with measure.scratch(args.dir) as place:
            peer = run_ranks("dcp", place, world, count, saves)
        for name, found, key in (
            ("libckpt: save()", mine, "call_s"),
            ("libckpt: save(), its processor time", mine, "cpu_s"),
            ("libckpt: the first", mine, "first_s"),
            ("libckpt: wait before the optimizer's step", mine, "fence_s"),
            ("DCP: async_save()", peer, "call_s"),
            ("DCP: async_save(), its processor time", peer, "cpu_s"),
            ("DCP: the first", peer, "first_s"),
            ("DCP: its state dict", peer, "dict_s"),
        ):
            value = measure.spread(found[key])
            figures[f"{world} ranks, {name}"] = value
            low, high = value["low90"] * 1e3, value["high90"] * 1e3
            interval = f"[{low:.1f}, {high:.1f}]"
            rows.append([str(world), name, f"{value['median'] * 1e3:.1f}", interval])
        figures["ranks"] = world
        figures["call_ms"] = figures[f"{world} ranks, libckpt: save()"]["median"] * 1e3
    measure.table(["ranks", f"{4 * count:,} tensors", "median, ms", "90 % interval"], rows)
    measure.finish("ranks", args, figures)
    sys.exit(0 if args.quick or figures["call_ms"] < LIMIT_MS else 1)


if __name__ == "__main__":
    main()
