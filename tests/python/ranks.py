# SPDX-License-Identifier: Apache-2.0
"""
Several ranks in one test: forked from a process that has imported torch and does nothing else. What
runs the tests has threads by then, whose locks nobody in a fork of it would ever open again.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import libckpt

torch.set_num_threads(1)
_server = multiprocessing.get_context("forkserver")
#: What is slow to import, and starts no thread.
_PRELOAD = ("ranks", "pytest", "safetensors.torch", "torch.distributed.checkpoint.state_dict")
#: A rank that has not ended by then hangs.
_PATIENCE = 120


def together(world: int, place: Path, body: Callable[..., Any], *args: Any) -> list[Any]:
    """
    Runs `body(*args)` as `world` ranks of one job; what each returned. The body is a function of a
    module, with arguments that can be pickled.
    """
    place.mkdir(parents=True, exist_ok=True)
    meeting = place / f"meeting-{random.SystemRandom().randrange(1 << 60):x}"
    work = pickle.dumps((body, args))
    _start_server()
    pipes = [_server.Pipe(duplex=False) for _ in range(world)]
    ranks = [
        _server.Process(target=_one, args=(rank, world, meeting, pipes[rank][1], work))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for _, sender in pipes:
        sender.close()
    try:
        answers = [
            _receive(receiver, process) for (receiver, _), process in zip(pipes, ranks, strict=True)
        ]
    finally:
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    failed = [f"rank {n}: {why}" for n, (well, why) in enumerate(answers) if not well]
    assert not failed, "\n".join(failed)
    return [value for _, value in answers]


def _start_server() -> None:
    """It finds the modules by PYTHONPATH: what sys.path is here, no such server is told."""
    from multiprocessing import forkserver

    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = here if before is None else f"{here}{os.pathsep}{before}"
    try:
        _server.set_forkserver_preload(list(_PRELOAD))
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _receive(receiver: Any, process: Any) -> tuple[bool, Any]:
    multiprocessing.connection.wait([receiver, process.sentinel], _PATIENCE)
    if not receiver.poll():
        return False, "hangs" if process.is_alive() else "died"
    try:
        answer: tuple[bool, Any] = pickle.loads(receiver.recv_bytes())
    except EOFError:  # its end of the pipe went before itself
        return False, "died"
    return answer


def _one(rank: int, world: int, meeting: Path, sender: Any, work: bytes) -> None:
    try:
        # By name, from where the tests are.
        body, args = pickle.loads(work)
        if world > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
            )
        answer: tuple[bool, Any] = True, body(*args)
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        answer = False, traceback.format_exc()
    sender.send_bytes(pickle.dumps(answer))
    sender.close()
    os._exit(0)


class Uneven(torch.nn.Module):
    """Dimensions that two, three and four do not divide, and one that leaves ranks with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.up = torch.nn.Linear(6, 10)
        self.norm = torch.nn.LayerNorm(10)
        self.down = torch.nn.Linear(10, 5)
        self.few = torch.nn.Linear(5, 2)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.up(self.embed(tokens)).relu())
        return self.few(self.down(hidden))


def _mesh(*shape: int) -> Any:
    names = {1: ("dp",), 2: ("dp", "tp")}[len(shape)]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def spread(model: torch.nn.Module, layout: str) -> torch.nn.Module:
    """Spreads a model over the ranks there are."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if world == 1:
        return model
    if layout == "ddp":
        return DistributedDataParallel(model)
    if layout == "tp" and world % 2 == 0:
        mesh = _mesh(world // 2, 2)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model.norm = torch.nn.Identity()  # between the two every rank has its part only
        parallelize_module(model, mesh["tp"], plan)
        mesh = mesh["dp"]
    elif layout == "hsdp" and world % 2 == 0:
        mesh = _mesh(2, world // 2)
    else:
        mesh = _mesh(world)
    for part in (model.embed, model.up, model.down):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Job:
    """One run on one rank: `step()` trains and gives the loss."""

    def __init__(self, layout: str, seed: int, optimizer: Any = torch.optim.AdamW) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        made = Uneven()
        if layout == "tp":
            made.norm = torch.nn.Identity()
        self.model = spread(made, layout)
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.steps = 0
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }

    def step(self) -> float:
        number = self.scheduler.last_epoch
        tokens = torch.arange(8) * (number + 1) % 11
        loss = torch.nn.functional.cross_entropy(self.model(tokens), tokens % 2)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        for name, buffer in self.model.named_buffers():
            if name.endswith("count"):
                buffer.add_(1)
        return loss.item()

    def truth(self) -> dict[str, torch.Tensor]:
        """All of every parameter, buffer and moment."""
        names, found = {}, {}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            names[tensor] = name.removeprefix("module.")
            found[names[tensor]] = full(tensor)
        for parameter, state in self.optimizer.state.items():
            for role, value in state.items():
                found[f"optimizer/state/{names[parameter]}/{role}"] = full(value)
        return found

    def open(self, store: Path, **options: Any) -> libckpt.Checkpointer:
        options.setdefault("pool_bytes", 1 << 20)
        options.setdefault("eager", False)
        return libckpt.Checkpointer(store, self.state, **options)


def full(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()
