#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""encoding="compact" beside "plain": until a save is durable, a restore, and the size of the file.

A state as of AdamW with bf16 weights and fp32 master weights, of random numbers. The benchmark
`codec` has the ratios of real trainings. The two save in turn, and restore in turn, with the page
cache dropped before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import measure

BYTES = 2 + 4 + 4 + 4  # of a parameter


def training_state(args: Any) -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    size = (128 << 20) if args.quick else int(args.gigabytes * (1 << 30))
    state: dict[str, Any] = {"model": {}, "master": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for number in range(8):
        shape = (size // BYTES // 8 // 1024, 1024)
        scale = torch.exp(torch.randn(shape[0], 1)) * torch.exp(torch.randn(1, shape[1]))
        gradient = torch.randn(shape) * scale * 1e-4
        master = torch.randn(shape) * 0.02
        state["model"][f"{number}"] = master.bfloat16()
        state["master"][f"{number}"] = master
        state["exp_avg"][f"{number}"] = gradient
        noise = 0.5 + torch.rand(shape)
        state["exp_avg_sq"][f"{number}"] = (gradient * noise) ** 2 + (scale * 1e-5) ** 2
    return state


class Side:
    """One way to store, in a store of its own."""

    def __init__(self, folder: Path, state: dict[str, Any], encoding: Any) -> None:
        self.store, self.state, self.encoding = folder / encoding, state, encoding
        self.steps = 0
        self.info: Any = None

    def save(self, ckpt: Any) -> float:
        self.steps += 1
        began = time.perf_counter()
        save = ckpt.save(self.steps)
        save.wait("local")
        seconds = time.perf_counter() - began
        self.info = save.info
        return seconds

    def restore(self) -> float:
        from libckpt import Checkpointer

        with Checkpointer(self.store, self.state, on_error="raise", rehearse=False) as ckpt:
            measure.drop_cache(self.store.glob("g*/step-*/rank-*"))
            began = time.perf_counter()
            if ckpt.resume() != self.steps:
                raise RuntimeError("the step was not restored")
            return time.perf_counter() - began


def main() -> None:
    parser = measure.parser('encoding="compact" beside "plain".')
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    from libckpt import Checkpointer

    count = 3 if args.quick else max(5, args.pairs)
    state = training_state(args)
    with measure.scratch(args.dir) as folder:
        compact, plain = (Side(folder, state, encoding) for encoding in ("compact", "plain"))
        options: dict[str, Any] = {"keep_last": 1, "on_error": "raise", "rehearse": False}
        with (
            Checkpointer(compact.store, state, encoding="compact", **options) as first,
            Checkpointer(plain.store, state, **options) as second,
        ):
            for _ in range(2):  # staging memory grows behind the first save
                compact.save(first)
                plain.save(second)
            saves = measure.pairs(count, lambda: compact.save(first), lambda: plain.save(second))
        restores = measure.pairs(count, compact.restore, plain.restore)
        size, stored = compact.info.bytes, compact.info.bytes_stored
    rows, result = [], {}
    for name, runs in (("durable", saves), ("restore", restores)):
        ours, theirs = (measure.spread(side) for side in zip(*runs, strict=True))
        result[name] = {"compact": ours, "plain": theirs}
        rows.append((name, f"{ours['median']:.3f} s", f"{theirs['median']:.3f} s"))
    rows.append(("size", f"{stored / 1e6:.1f} MB", f"{size / 1e6:.1f} MB"))
    measure.table(("", "compact", "plain"), rows)
    print(f"{size / stored:.3f} times smaller")
    measure.finish("compact", args, {**result, "bytes": size, "bytes_stored": stored})


if __name__ == "__main__":
    main()
