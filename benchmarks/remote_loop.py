# SPDX-License-Identifier: Apache-2.0
"""A training loop whose saves go on to a bucket, to none, or to one that nobody answers for.

For bench_remote.py, which runs it as a program: it prints the wall time of as many steps as it is
told, a save after every so many of them. The loop has one thread, so that the other core is free,
as processors are beside a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    import torch
    from torch import nn

    from libckpt import Checkpointer

    place, remote = Path(sys.argv[1]), sys.argv[2]
    width, saves, between, drain, doomed = map(int, sys.argv[3:8])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(10)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    data = torch.randn(64, width)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    ckpt = Checkpointer(
        place / "store",
        state={"model": model, "optimizer": optimizer},
        remote=remote or None,
        on_error="raise",
        drain_timeout=drain,
    )
    ckpt.resume()
    ckpt.save(1).wait("local")
    if doomed:
        os.kill(doomed, signal.SIGKILL)
    began = time.perf_counter()
    for number in range(saves):
        ckpt.save(number + 2)
        for _ in range(between):
            step()
    wall = time.perf_counter() - began
    uploaded = ckpt.stats()["uploads_done"]
    ckpt.close()
    print(json.dumps({"wall_s": wall, "uploaded": uploaded}))


if __name__ == "__main__":
    main()
