#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A thousand saves: memory, pool, descriptors and threads must stay flat after the tenth."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import measure

# What the allocators below Python may keep, whatever the number of saves.
SLACK_BYTES = 4 << 20


def sample(ckpt: Any) -> dict[str, int]:
    gc.collect()
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "rss_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "pool_bytes": ckpt.stats()["pool_bytes"],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


def main() -> None:
    parser = measure.parser(
        "A thousand saves must leave memory, descriptors and threads as they were."
    )
    parser.add_argument("--saves", type=int, default=1000)
    args = parser.parse_args()
    import torch
    from torch import nn

    from libckpt import Checkpointer

    saves = 60 if args.quick else args.saves
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(10)])
    optimizer = torch.optim.AdamW(model.parameters())
    samples = []
    with measure.scratch(args.dir) as folder:
        state = {"model": model, "optimizer": optimizer}
        with Checkpointer(
            str(folder / "store"), state=state, every=1, keep_last=3, on_error="raise"
        ) as ckpt:
            ckpt.resume()
            for step in range(1, saves + 1):
                optimizer.zero_grad()
                model(torch.randn(8, 256)).square().mean().backward()
                optimizer.step()
                ckpt.save(step).wait("local")
                if step >= 10 and (step % 10 == 0 or step == saves):
                    samples.append({"save": step, **sample(ckpt)})
            committed = ckpt.stats()["saves_committed"]
    first, last = samples[0], samples[-1]
    rows = [
        [key, str(first[key]), str(last[key]), str(max(value[key] for value in samples))]
        for key in ("rss_bytes", "pool_bytes", "descriptors", "threads")
    ]
    measure.table(["", "after 10 saves", f"after {saves}", "most"], rows)
    # Retention may have a file in hand at the moment of a sample: compare the least.
    late = samples[len(samples) // 2 :]
    flat = (
        committed == saves
        and min(value["rss_bytes"] for value in late) <= first["rss_bytes"] + SLACK_BYTES
        and max(value["pool_bytes"] for value in samples) == first["pool_bytes"]
        and min(value["descriptors"] for value in late) <= first["descriptors"]
        and max(value["threads"] for value in samples) <= first["threads"]
    )
    print("flat" if flat else "NOT FLAT")
    measure.finish(
        "soak", args, {"saves": saves, "committed": committed, "flat": flat, "samples": samples}
    )
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
