# SPDX-License-Identifier: Apache-2.0
"""A training loop on a GPU with a state of 10 GB, and the ways to save it; for bench_gpu.py.

Every way is a Saver: a function that starts a save and returns an Ending, which waits until the save
has ended. Whoever has a fence puts it before the optimizer's step.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lost_variants
import measure
import torch
from gpu_parts import Budget, opened, synchronize
from torch import nn

Guard = Callable[[], contextlib.AbstractContextManager[Any]]

VARIANTS = ["libckpt", "dcp-pinned", "torch_checkpointing"]
#: Steps after save() in which its copies are made.
FIRST = 3


class Loop:
    """A chain of linear layers in bf16 with AdamW in fp32. The host is one step ahead of the GPU."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.device: str = args.device
        width, depth, batch = (256, 4, 64) if args.quick else (8192, args.depth, args.batch)
        self.model = nn.Sequential()
        for _ in range(depth):
            layer = nn.Linear(width, width, bias=False, device=self.device)
            nn.init.normal_(layer.weight, std=1.5 / width**0.5)
            self.model.append(layer)
            self.model.append(nn.Tanh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.data = torch.randn(batch, width, device=self.device)
        self.bytes = depth * width * width * 12
        self.guard: Guard = contextlib.nullcontext
        self.marks: list[Any] = []
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(self.data).float().square().mean()
        loss.backward()
        with self.guard():
            self.optimizer.step()
        self._mark()

    def _mark(self) -> None:
        if self.device != "cuda":
            self.marks.append(time.perf_counter())
            return
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        if self.marks:
            self.marks[-1].synchronize()
        self.marks.append(event)

    def block(self, seconds: float, ended: Callable[[], bool]) -> tuple[float, list[float]]:
        """Steps for so long and until `ended`: their time by the host's clock, and each by the GPU's."""
        synchronize(self.device)
        self.marks = []
        began = time.perf_counter()
        self._mark()
        while time.perf_counter() - began < seconds or len(self.marks) <= FIRST or not ended():
            self.step()
        synchronize(self.device)
        wall = time.perf_counter() - began
        between = zip(self.marks[:-1], self.marks[1:], strict=True)
        if self.device != "cuda":
            return wall, [b - a for a, b in between]
        return wall, [a.elapsed_time(b) / 1e3 for a, b in between]

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


@contextlib.contextmanager
def _libckpt(loop: Loop, folder: Path) -> Iterator[lost_variants.Saver]:
    state = {"model": loop.model, "optimizer": loop.optimizer}
    with opened(folder, state, loop.bytes, eager=False) as ckpt:

        def save(_path: Path, step: int) -> lost_variants.Ending:
            return lost_variants.looked_at(ckpt.save(step))

        yield save


@contextlib.contextmanager
def _dcp_pinned(loop: Loop, _folder: Path) -> Iterator[lost_variants.Saver]:
    """torch.distributed.checkpoint at its best: pinned memory kept, staged behind the loop, plans kept."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    cuda = loop.device == "cuda"
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=cuda,
            use_non_blocking_copy=cuda,
            use_shared_memory=False,
            use_async_staging=True,
        )
    )
    staging: list[Any] = []

    @contextlib.contextmanager
    def fence() -> Iterator[None]:
        while staging:
            staging.pop().result()
        yield

    loop.guard = fence

    def save(path: Path, _step: int) -> lost_variants.Ending:
        future: Any = dcp.async_save(
            loop.state(),
            storage_writer=dcp.FileSystemWriter(path, thread_count=4, sync_files=True),
            planner=DefaultSavePlanner(enable_plan_caching=True),
            async_stager=stager,
        )
        staging.append(future.staging_completion)
        return lambda: future.upload_completion.result()

    yield save
    stager.close()


@contextlib.contextmanager
def _torch_checkpointing(loop: Loop, _folder: Path) -> Iterator[lost_variants.Saver]:
    """
    As its tutorial has it: pinned, shared with its process. It syncs no file; with O_DIRECT, its
    default, ext4 refuses what it writes.
    """
    import torch_checkpointing
    from torch_checkpointing.staging import CheckpointStagerConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    library: Any = torch_checkpointing  # which says little of its types

    cuda = loop.device == "cuda"
    staging = CheckpointStagerConfig(
        use_pinned_memory=cuda, use_non_blocking_copy=cuda, use_async_staging=cuda
    )
    save_config = library.AsyncCheckpointSaverConfig(staging_config=staging)
    config = library.CheckpointManager.Config(
        save=save_config, storage_config=LocalFileSystemStorageConfig(use_direct_io=False)
    )
    manager = library.CheckpointManager(config)
    loop.guard = manager.lock
    if cuda:
        manager.prewarm_staging(loop.state())

    def save(path: Path, _step: int) -> lost_variants.Ending:
        future: Any = manager.save(str(path), loop.state())
        return lambda: future.result()

    yield save
    manager.close()


SAVERS = {
    "libckpt": _libckpt,
    "dcp-pinned": _dcp_pinned,
    "torch_checkpointing": _torch_checkpointing,
}


def saving(loop: Loop, save: lost_variants.Saver, path: Path, number: int) -> dict[str, Any]:
    """Steps from a save until it has ended. The state of before is removed."""
    synchronize(loop.device)
    started: list[lost_variants.Watcher] = []
    called = 0.0

    def ended() -> bool:
        return started[0].seconds is not None

    # The call is the first thing of the block, so that what it costs is in it.
    original = loop.step

    def first() -> None:
        nonlocal called
        began = time.perf_counter()
        started.append(lost_variants.Watcher(save(path, number), began))
        called = time.perf_counter() - began
        started[0].start()
        loop.__dict__.pop("step")
        original()

    loop.__dict__["step"] = first
    wall, steps = loop.block(0.0, ended)
    started[0].join()
    if started[0].error is not None:
        raise started[0].error
    shutil.rmtree(path, ignore_errors=True)
    return {"wall": wall, "steps": steps, "call_s": called, "durable_s": started[0].seconds}


def lost(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The time of steps beside which a save ran, less that of as many without, before and after."""
    loop = Loop(args)
    quiet_seconds = 0.3 if args.quick else 4.0
    results: list[dict[str, Any]] = []
    with SAVERS[args.variant](loop, folder) as save:
        saving(loop, save, folder / "warm-1", 1)
        saving(loop, save, folder / "warm-2", 2)
        before = loop.block(quiet_seconds, lambda: True)[1]
        for number in Budget(args, 7).runs():
            found = saving(loop, save, folder / f"peer-{number}", number + 3)
            after = loop.block(quiet_seconds, lambda: True)[1]
            steps = found.pop("steps")
            alone = (statistics.fmean(before) + statistics.fmean(after)) / 2
            usual = statistics.median([*before, *after])
            found["lost_s"] = found.pop("wall") - len(steps) * alone
            found["first_s"] = sum(steps[:FIRST]) - FIRST * usual
            found["noise_s"] = abs(statistics.fmean(before) - statistics.fmean(after)) * len(steps)
            found["step_s"], found["count"] = alone, float(len(steps))
            results.append(found)
            before = after
        figures = ("lost_s", "first_s", "noise_s", "call_s", "durable_s", "step_s", "count")
        return {
            "bytes": loop.bytes,
            **{key: measure.spread([result[key] for result in results]) for key in figures},
        }
