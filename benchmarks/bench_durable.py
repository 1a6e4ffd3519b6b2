#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From save() until it is durable, digests on, against fio writing as many bytes to the same disk.

fio uses io_uring, O_DIRECT, registered buffers and files, the same block size and depth; it
preallocates its file and ends with an fsync. libckpt's time is that of the whole road: copy,
digests, shard, index, manifest. The two run in turn, at least nine times.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import measure


def settle(store: Path) -> None:
    """Until retention has removed all but one step, so that it does not run beside fio."""
    deadline = time.monotonic() + 60
    while len(list(store.glob("g*/step-*/rank-*.safetensors"))) > 1:
        if time.monotonic() > deadline:
            raise RuntimeError("retention does not remove the older steps")
        time.sleep(0.01)
    os.sync()


def main() -> None:
    parser = measure.parser("From save() until it is durable, against fio.")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=11)
    args = parser.parse_args()
    measure.need_fio()
    from libckpt import Checkpointer

    count = 3 if args.quick else max(9, args.pairs)
    state = {"tensors": measure.state_of(args)}
    with measure.scratch(args.dir) as folder:
        store = folder / "store"
        # Saves alone are measured: the rehearsal would read beside fio, and hold a step.
        with Checkpointer(
            store, state=state, keep_last=1, on_error="raise", rehearse=False
        ) as ckpt:
            ckpt.resume()
            number = 0

            def ours() -> float:
                nonlocal number
                number += 1
                began = time.perf_counter()
                ckpt.save(number).wait("local")
                seconds = time.perf_counter() - began
                settle(store)
                return seconds

            ours()  # warm: staging memory is touched, the generation is claimed
            (shard,) = store.glob("g*/step-*/rank-*.safetensors")
            race = measure.AgainstFio(shard)

            def fio() -> float:
                seconds = race.fio("write", folder / "fio")
                (folder / "fio").unlink()
                os.sync()
                return seconds

            race.runs = measure.pairs(count, ours, fio)
            stats = ckpt.stats()
    result = race.report("libckpt: save() until durable", "fio: write and fsync")
    measure.finish("durable", args, {**result, "stats": stats})


if __name__ == "__main__":
    main()
