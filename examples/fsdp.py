#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A training that is sharded over all ranks (FSDP2), and goes on after it was killed, on as many ranks
as there are then:

    torchrun --standalone --nproc-per-node 4 fsdp.py /shared/run42
    torchrun --standalone --nproc-per-node 2 fsdp.py /shared/run42 --steps 400

On GPUs the device follows from the rank; without any it runs on the CPU. When the launcher is told
to go (SIGTERM), all ranks save the step they have come to, and leave.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from libckpt import Checkpointer


class Model(torch.nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.GELU()
            )
            for _ in range(depth)
        )
        self.head = torch.nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        y: torch.Tensor = self.head(x)
        return y


def batch(step: int, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, the same however many ranks share it."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, width, generator=generator)
    return x, x.sin().sum(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--width", type=int, default=65)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model(args.width, depth=3)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    state = {"model": model, "optimizer": optimizer}
    with Checkpointer(args.store, state, every=args.every, keep_last=3, preempt=True) as ckpt:
        for step in range(ckpt.resume(), args.steps):
            x, y = batch(step, 24, args.width)
            loss = functional.mse_loss(model(x[rank::world]), y[rank::world])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step + 1} loss {total.item() / world:.6f}", flush=True)
            ckpt.step(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
