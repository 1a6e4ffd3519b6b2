#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A training that is sharded over all ranks (FSDP2) and saves through torch.distributed.checkpoint,
behind the loop. It goes on after it was killed, on as many ranks as there are then:

    torchrun --standalone --nproc-per-node 4 dcp.py /shared/run42
    torchrun --standalone --nproc-per-node 2 dcp.py /shared/run42 --steps 400

What is libckpt's are the arguments storage_writer, storage_reader and async_stager.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from libckpt.dcp import Stager, StorageReader, StorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import libckpt


class App:
    """Model, optimizer and position, as torch.distributed.checkpoint asks for them."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(3)),
            torch.nn.Linear(width, 1),
        )
        for block in self.model:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]

    def train(self, width: int) -> float:
        rank, world = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(self.step)
        x = torch.randn(24, width, generator=generator)
        y = x.sin().sum(1, keepdim=True)
        loss = functional.mse_loss(self.model(x[rank::world]), y[rank::world])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--width", type=int, default=65)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    # torch saves in a thread, whose collectives must not get between those of the training.
    group = dist.new_group(backend="gloo")
    app, stager = App(args.width), Stager()
    saving: Any = None
    if has_steps(args.store):
        dcp.load({"app": app}, storage_reader=StorageReader(args.store))
    while app.step < args.steps:
        loss = app.train(args.width)
        if dist.get_rank() == 0:
            print(f"step {app.step} loss {loss:.6f}", flush=True)
        if app.step % args.every == 0:
            if saving is not None:
                saving.result()
            saving = dcp.async_save(
                {"app": app},
                checkpoint_id=f"step-{app.step}",
                storage_writer=StorageWriter(args.store, keep_last=3),
                async_stager=stager,
                process_group=group,
            )
    if saving is not None:
        saving.result()
    dist.destroy_process_group()


def has_steps(store: str) -> bool:
    """Whether there is something to go on from: rank 0 looks, and tells all."""
    found = [False]
    if dist.get_rank() == 0:
        with contextlib.suppress(libckpt.StoreNotFoundError):
            found = [bool(libckpt.list_steps(store))]
    dist.broadcast_object_list(found)
    return found[0]


if __name__ == "__main__":
    main()
