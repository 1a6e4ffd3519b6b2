# SPDX-License-Identifier: Apache-2.0
"""What bench_gpu.py measures of single saves and restores. Each part is run in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_pin
import measure
import raw_disk
import torch
from torch import nn

from libckpt import Checkpointer


class Budget:
    """So many runs, unless the time is over: a disk may be slow, and a GPU is lent for minutes."""

    def __init__(self, args: argparse.Namespace, most: int, least: int = 3) -> None:
        self.end = time.monotonic() + args.seconds
        self.most, self.least = (2, 2) if args.quick else (most, least)

    def runs(self) -> Iterator[int]:
        for number in range(self.most):
            if number >= self.least and time.monotonic() > self.end:
                return
            yield number


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def pinned(size: int, device: str) -> torch.Tensor:
    """Memory of the host that a GPU copies to as fast as it can, and that is there."""
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=device == "cuda")
    return memory.fill_(1)


def copy_time(tensors: list[torch.Tensor], memory: torch.Tensor, device: str) -> float:
    """Seconds that the plain copies take, all given to the GPU at once."""
    flat = [tensor.view(torch.uint8).flatten() for tensor in tensors]
    synchronize(device)
    began, offset = time.perf_counter(), 0
    for source in flat:
        memory[offset : offset + source.numel()].copy_(source, non_blocking=True)
        offset += source.numel()
    synchronize(device)
    return time.perf_counter() - began


@contextlib.contextmanager
def opened(folder: Path, state: dict[str, Any], size: int, **options: Any) -> Iterator[Any]:
    """
    With staging for all of a save, as who has the memory would give it. Saves alone are measured:
    the rehearsal of the first would read beside the next.
    """
    pool = size + max(256 << 20, size // 8)
    with Checkpointer(
        folder / "store",
        state,
        on_error="raise",
        keep_last=1,
        pool_bytes=pool,
        rehearse=False,
        **options,
    ) as ckpt:
        ckpt.resume()
        yield ckpt


def d2h(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """From save() until all is staged, beside plain copies into pinned memory; and until durable."""
    size = (64 << 20) if args.quick else args.gigabytes << 30
    tensors = [
        torch.randint(256, (size // 16,), dtype=torch.uint8, device=args.device) for _ in range(16)
    ]
    memory = pinned(size, args.device)
    pairs, durable = [], []
    with opened(folder, {"tensors": tensors}, size) as ckpt:
        ckpt.save(1).wait()
        copy_time(tensors, memory, args.device)
        for number in Budget(args, 9).runs():
            synchronize(args.device)
            plain = copy_time(tensors, memory, args.device) if number % 2 else 0.0
            save = ckpt.save(number + 2)
            save.wait()
            plain = plain or copy_time(tensors, memory, args.device)
            pairs.append((save.info.stage_time, plain))
            durable.append((save.info.local_time, raw_disk.write(folder / "raw", size)))
    return {
        "bytes": size,
        "stage_s": measure.spread([ours for ours, _ in pairs]),
        "plain_s": measure.spread([plain for _, plain in pairs]),
        "ratio": measure.spread([plain / ours for ours, plain in pairs]),
        "durable_s": measure.spread([ours for ours, _ in durable]),
        "raw_write_s": measure.spread([raw for _, raw in durable]),
        "durable_ratio": measure.spread([raw / ours for ours, raw in durable]),
    }


def many_tensors(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """10,000 tensors of 1 GB: weights, two moments and a count of steps each."""
    count, elements = (100, 1000) if args.quick else (2500, 33_333)
    model = nn.ParameterList(torch.rand(elements, device=args.device) for _ in range(count))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return model, optimizer, count * elements * 12


def call(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What save() and the fence of 10,000 tensors take of the host's time."""
    model, optimizer, size = many_tensors(args)
    calls, eager, fences, stages, plains = [], [], [], [], []
    moments = [v for entry in optimizer.state.values() for v in entry.values() if v.dim()]
    tensors = [*(p.detach() for p in model.parameters()), *moments]
    memory = pinned(size, args.device)
    with opened(folder, {"model": model, "optimizer": optimizer}, size, eager=False) as ckpt:
        for warm in (1, 2):
            save = ckpt.save(warm)
            optimizer.step()
            save.wait()
        for number in Budget(args, 25, 9).runs():
            synchronize(args.device)
            began = time.perf_counter()
            save = ckpt.save(number + 3)
            calls.append(time.perf_counter() - began)
            ckpt.wait_staged()
            fences.append(save.info.loop_time - calls[-1])
            optimizer.step()
            save.wait()
            eager.append(min(save.info.eager_time, calls[-1]))
            stages.append(save.info.stage_time)
            plains.append(copy_time(tensors, memory, args.device))
    return {
        "bytes": size,
        "tensors": len(tensors) + len(optimizer.state),
        "call_s": measure.spread(calls),
        "eager_s": measure.spread(eager),
        "beyond_s": measure.spread([a - b for a, b in zip(calls, eager, strict=True)]),
        "fence_s": measure.spread(fences),
        "stage_s": measure.spread(stages),
        "plain_s": measure.spread(plains),
    }


def restore(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """resume() into tensors on the GPU, every digest checked, beside reading the file and no more."""
    size = (64 << 20) if args.quick else args.gigabytes << 30
    tensors = [torch.rand(size // 64, device=args.device) for _ in range(16)]
    state = {"tensors": tensors}
    kept = [tensor[::4097].clone() for tensor in tensors]
    with opened(folder, state, size) as ckpt:
        ckpt.save(1).wait()
    (shard,) = (folder / "store").glob("g*/step-*/rank-*.safetensors")
    dropped = ""

    def ours() -> float:
        nonlocal dropped
        for tensor in tensors:
            tensor.zero_()
        synchronize(args.device)
        with Checkpointer(folder / "store", state, on_error="raise") as ckpt:
            dropped = measure.drop_cache([shard])
            began = time.perf_counter()
            if ckpt.resume() != 1:
                raise RuntimeError("the step was not restored")
            synchronize(args.device)
            took = time.perf_counter() - began
        if not all(torch.equal(t[::4097], k) for t, k in zip(tensors, kept, strict=True)):
            raise RuntimeError("what was restored is not what was saved")
        return took

    def raw() -> float:
        measure.drop_cache([shard])
        return raw_disk.read(shard)

    ours()
    pairs = []
    for number in Budget(args, 9).runs():
        if number % 2:
            theirs, mine = raw(), ours()
        else:
            mine, theirs = ours(), raw()
        pairs.append((mine, theirs))
    return {
        "bytes": shard.stat().st_size,
        "resume_s": measure.spread([mine for mine, _ in pairs]),
        "raw_read_s": measure.spread([theirs for _, theirs in pairs]),
        "ratio": measure.spread([theirs / mine for mine, theirs in pairs]),
        "cache": f"{dropped}; {measure.CACHE_NOTE}",
    }


Part = Callable[[argparse.Namespace, Path], dict[str, Any]]
PARTS: dict[str, Part] = {"d2h": d2h, "call": call, "restore": restore, "pin": gpu_pin.pin}
