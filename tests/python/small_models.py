# SPDX-License-Identifier: Apache-2.0
"""Small models and their optimizers, for ranks that hold some alike and some for themselves."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

State = dict[str, Any]


def linear(seed: int, *, size: int = 40) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(size, size)


def trained(model: torch.nn.Module, *inputs: torch.Tensor) -> State:
    optimizer = torch.optim.AdamW(model.parameters())
    for x in inputs:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def data(seed: int) -> torch.Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(seed))


class Momentum(torch.optim.Optimizer):
    """Its state are local tensors, of which every rank has its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                self.state[p]["m"] = grad.clone()
                self.state[p]["norm"] = grad.new_tensor(7.0)


def local_state(rank: int) -> State:
    """Rows that the ranks do not divide, and one that most have nothing of."""
    model = torch.nn.Sequential(linear(1, size=43), torch.nn.Linear(43, 1, bias=False))
    if dist.is_initialized():
        fully_shard(model)
    optimizer = Momentum(model.parameters())
    model(torch.randn(8, 43, generator=torch.Generator().manual_seed(rank))).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}
