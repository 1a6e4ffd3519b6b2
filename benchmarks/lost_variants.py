# SPDX-License-Identifier: Apache-2.0
"""The training loop that bench_lost_time.py measures, and the ways to save its state.

Every way is a Saver: a function that starts a save into a directory and returns an Ending, which
waits until the save has ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ending = Callable[[], None]
Saver = Callable[[Path, int], Ending]

DURABLE = ["libckpt", "torch.save+fsync", "dcp-thread", "dcp-process"]
PAGE_CACHE = ["torch.save", "dcp-thread-nosync"]
# The same peers with their other staging, to see which is best.
OTHERS = ["dcp-thread-blocking", "dcp-process-blocking"]


class Watcher(threading.Thread):
    """Notes when a save has ended."""

    def __init__(self, ending: Ending, began: float) -> None:
        super().__init__(daemon=True)
        self.ending, self.began = ending, began
        self.seconds: float | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.ending()
        except BaseException as error:
            self.error = error
        self.seconds = time.perf_counter() - self.began


def looked_at(save: Any) -> Ending:
    """Until a save of libckpt is durable. wait() would run the fence earlier than the loop does."""

    def ending() -> None:
        while not (info := save.info).local:
            if info.failed:
                raise RuntimeError(f"the save failed: {save.error}")
            time.sleep(0.002)

    return ending


def build(case: str, quick: bool) -> tuple[Any, Any, Callable[[], None]]:
    """A model, its AdamW, and one step of training."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    if case == "large":  # 2 GB: weights and two moments, 4 bytes each
        width, depth, batch = 2048, 40, 16
    else:  # 10,000 tensors: 2,500 weights of 4 KiB, two moments and a step count each
        width, depth, batch = 32, 2500, 64
    if quick:
        width, depth = min(width, 1024), depth // 10
    model = nn.Sequential()
    for _ in range(depth):
        layer = nn.Linear(width, width, bias=False)
        # Keeps signal and gradients alive through all layers: denormal numbers would slow AdamW.
        nn.init.normal_(layer.weight, std=1.5 / width**0.5)
        model.append(layer)
        model.append(nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(batch, width)

    def step() -> None:
        # Gradients keep their memory: taking 680 MB anew in every step makes its time vary.
        optimizer.zero_grad(set_to_none=False)
        model(data).square().sum().backward()
        optimizer.step()

    return model, optimizer, step


def saver(name: str, model: Any, optimizer: Any, folder: Path) -> Saver:
    if name == "libckpt":
        return _libckpt(model, optimizer, folder)
    if name.startswith("torch.save"):
        return _torch_save(model, optimizer, durable=name.endswith("fsync"))
    if name.startswith("dcp-"):
        return _dcp(
            model,
            optimizer,
            process="process" in name,
            behind="blocking" not in name,
            durable="nosync" not in name,
        )
    raise ValueError(f"no variant is called {name}")


def _libckpt(model: Any, optimizer: Any, folder: Path) -> Saver:
    from libckpt import Checkpointer

    state = {"model": model, "optimizer": optimizer}
    store = folder / "store"
    ckpt = Checkpointer(store, state=state, keep_last=2, on_error="raise")
    ckpt.resume()

    def save(_path: Path, step: int) -> Ending:
        return looked_at(ckpt.save(step))

    return save


def _torch_save(model: Any, optimizer: Any, *, durable: bool) -> Saver:
    import torch

    def save(path: Path, _step: int) -> Ending:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        path.mkdir()
        with (path / "state.tmp").open("wb") as file:
            torch.save(state, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        (path / "state.tmp").rename(path / "state.pt")
        if durable:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)
        return lambda: None

    return save


def _dcp(model: Any, optimizer: Any, *, process: bool, behind: bool, durable: bool) -> Saver:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    if process:
        # By default every tensor in shared memory is a descriptor, and 10,000 are too many.
        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options = StagingOptions(
        use_pinned_memory=False,  # there is no GPU
        use_non_blocking_copy=False,
        use_shared_memory=process,
        use_async_staging=behind,
    )
    stager = DefaultStager(options)
    kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
    staging: list[Any] = []

    def fence(*_: Any) -> None:
        while staging:
            staging.pop().result()

    optimizer.register_step_pre_hook(fence)

    def save(path: Path, _step: int) -> Ending:
        future: Any = dcp.async_save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            storage_writer=dcp.FileSystemWriter(path, thread_count=2, sync_files=durable),
            planner=DefaultSavePlanner(enable_plan_caching=True),
            async_checkpointer_type=kind,
            async_stager=stager,
        )
        if not behind:
            return lambda: future.result()
        staging.append(future.staging_completion)
        return lambda: future.upload_completion.result()

    return save
