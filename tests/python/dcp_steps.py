# SPDX-License-Identifier: Apache-2.0
"""What the tests of libckpt.dcp in one process share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from conftest import Training
from libckpt.dcp import StorageReader, StorageWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
)

import libckpt


def save(store: Path, step: int, state: dict[str, Any], planner: Any = None, **options: Any) -> Any:
    writer = StorageWriter(store, pool_bytes=1 << 20, **options)
    return dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, planner=planner)


def load(store: Path, state: dict[str, Any], planner: Any = None, **options: Any) -> StorageReader:
    reader = StorageReader(store, **options)
    dcp.load(state, storage_reader=reader, planner=planner)
    return reader


def steps(store: Path) -> list[tuple[int, int]]:
    return [(info.step, info.generation) for info in libckpt.list_steps(store)]


def blank(value: Any) -> Any:
    """The same places, with nothing in them."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if type(value) is list and any(isinstance(item, (dict, list, torch.Tensor)) for item in value):
        return [blank(item) for item in value]
    return None


def trained(seed: int = 1, steps: int = 2) -> Training:
    training = Training(scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 3))
    torch.manual_seed(seed)
    for parameter in training.model.parameters():
        torch.nn.init.normal_(parameter)
    for _ in range(steps):
        training.step()
    return training


def app(training: Training, **options: Any) -> dict[str, Any]:
    model, optimizer = get_state_dict(
        training.model, training.optimizer, options=StateDictOptions(**options)
    )
    return {"model": model, "optimizer": optimizer}
