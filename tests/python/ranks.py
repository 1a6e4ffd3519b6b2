# SPDX-License-Identifier: Apache-2.0
"""
Several ranks in one test: forked from a process that has imported torch and does nothing else. What
runs the tests has threads by then, whose locks nobody in a fork of it would ever open again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import os
import pickle
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from forked import Forked
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from waiting import LIMIT, HangLimit, until

import libckpt

torch.set_num_threads(1)


def together(world: int, place: Path, body: Callable[..., Any], *args: Any) -> list[Any]:
    """
    Runs `body(*args)` as `world` ranks of one job; what each returned. The body is a function of a
    module, with arguments that can be pickled.
    """
    meeting = place / f"meeting-{random.SystemRandom().randrange(1 << 60):x}"
    meeting.mkdir(parents=True)
    (meeting / "work").write_bytes(pickle.dumps((body, args)))
    words = str(world), str(meeting), str(Path(inspect.getfile(body)).parent)
    program = "import ranks; ranks.be_one()"
    ranks = [Forked(program, f"{rank}", *words, streams=(None, 1, 2)) for rank in range(world)]
    hang = None
    try:
        until(lambda: all(rank.poll() is not None for rank in ranks), "the ranks to end")
    except HangLimit as error:
        hang = error
    hanging = [rank.poll() is None for rank in ranks]
    for rank, hangs in zip(ranks, hanging, strict=True):
        if hangs:  # it writes where it is, and dies
            rank.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(LIMIT / 10)
            rank.kill()
        rank.wait()
    answers = [_answer(meeting, n, hangs) for n, hangs in enumerate(hanging)]
    failed = [f"rank {n}: {why}" for n, (well, why) in enumerate(answers) if not well]
    if hang is not None:
        raise AssertionError("\n".join([str(hang), *failed]))
    assert not failed, "\n".join(failed)
    return [value for _, value in answers]


def _answer(meeting: Path, rank: int, hangs: bool) -> tuple[bool, Any]:
    try:
        answer: tuple[bool, Any] = pickle.loads((meeting / f"answer-{rank}").read_bytes())
    except (FileNotFoundError, EOFError):
        where = meeting / f"where-{rank}"
        told = where.read_text() if where.exists() else ""
        return False, f"hangs\n{told}" if hangs else "died"
    return answer


def be_one() -> None:
    """A rank: its number, how many there are, and where they and the module of the body are."""
    rank, world, meeting = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    where = (meeting / f"where-{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, where, chain=True)
    try:
        sys.path.append(sys.argv[4])
        body, args = pickle.loads((meeting / "work").read_bytes())
        if world > 1:
            method = f"file://{meeting}/store"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        answer: tuple[bool, Any] = True, body(*args)
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        answer = False, traceback.format_exc()
    (meeting / f"answer-{rank}").write_bytes(pickle.dumps(answer))
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
        # All tensors in one call: DTensor spends a millisecond on each that it sees the first time.
        self.optimizer = optimizer(self.model.parameters(), lr=0.05, foreach=True)
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
