#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcp.async_save() takes from its caller, and when it is done: libckpt's writer and stager beside
torch's own.

One process, a state of 2 GB in 160 tensors on the CPU, saves in pairs. Torch's writer is told to sync its
files; it syncs no directory and makes no digest. libckpt's is done when the step is durable and
committed. What torch stages it allocates anew for every save; libckpt's stager keeps its memory.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

TENSORS, ELEMENTS, PAIRS = 160, 3_355_443, 9


def make_state(count: int, elements: int) -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    model = {f"layers.{number}.weight": torch.randn(elements) for number in range(count)}
    return {"model": model, "step": 0, "betas": (0.9, 0.95)}


def runner(
    state: dict[str, Any], place: Path, writer: Callable[[Path], Any], stager: Any
) -> Callable[[], tuple[float, float]]:
    """Saves once more; seconds that the caller was blocked, and until the future had its result."""
    import torch.distributed.checkpoint as dcp

    number = 0

    def run() -> tuple[float, float]:
        nonlocal number
        number += 1
        state["step"] = number
        name = place / f"step-{number}"
        began = time.perf_counter()
        future: Any = dcp.async_save(
            state, checkpoint_id=name, storage_writer=writer(name), async_stager=stager
        )
        blocked = time.perf_counter() - began
        future.result()
        done = time.perf_counter() - began
        shutil.rmtree(place / f"step-{number - 1}", ignore_errors=True)
        return blocked, done

    return run


def main() -> None:
    args = measure.parser("dcp.async_save() with libckpt's writer and with torch's.").parse_args()
    warnings.simplefilter("ignore")  # there is one process, as is meant here
    import torch.distributed.checkpoint as dcp
    from libckpt.dcp import Stager, StorageWriter, close

    count = 8 if args.quick else TENSORS
    state = make_state(count, ELEMENTS)
    size = 4 * count * ELEMENTS
    with measure.scratch(args.dir) as place:
        store = place / "store"
        (place / "torch").mkdir()
        mine = runner(state, place, lambda _: StorageWriter(store, keep_last=1), Stager())
        peer = runner(
            state,
            place / "torch",
            lambda name: dcp.FileSystemWriter(name, thread_count=2, sync_files=True),
            None,
        )
        # The first of each makes what the others use again.
        for run in (mine, peer):
            run()
        runs: dict[str, list[tuple[float, float]]] = {"libckpt": [], "torch": []}
        for number in range(2 if args.quick else PAIRS):
            order = [("libckpt", mine), ("torch", peer)]
            for name, run in order[:: -1 if number % 2 else 1]:
                os.sync()
                if not args.quick:
                    time.sleep(measure.REST_SECONDS)
                runs[name].append(run())
        close()
    figures: dict[str, Any] = {"bytes": size, "versions": measure.version_of("torch")}
    rows = []
    for name in runs:
        for index, what in enumerate(("blocked", "done")):
            value = measure.spread([found[index] for found in runs[name]])
            figures[f"{name}, {what}"] = value
            interval = f"[{value['low90']:.3f}, {value['high90']:.3f}]"
            rows.append([name, what, f"{value['median']:.3f}", interval])
    for index, what in enumerate(("blocked", "done")):
        pairs = zip(runs["torch"], runs["libckpt"], strict=True)
        value = measure.spread([theirs[index] / ours[index] for theirs, ours in pairs])
        figures[f"torch to libckpt, {what}"] = value
        interval = f"[{value['low90']:.2f}, {value['high90']:.2f}]"
        rows.append(["torch to libckpt, ratio", what, f"{value['median']:.2f}", interval])
    measure.table([f"async_save() of {size / 1e9:.2f} GB", "", "median, s", "90 % interval"], rows)
    measure.finish("dcp", args, figures)
    slower = any(figures[f"torch to libckpt, {what}"]["high90"] < 1 for what in ("blocked", "done"))
    sys.exit(1 if slower and not args.quick else 0)


if __name__ == "__main__":
    main()
