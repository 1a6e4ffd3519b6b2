#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restore into tensors that exist, digests checked, against fio reading the same file.

fio uses io_uring, O_DIRECT, registered buffers and files, the same block size and depth. The page
cache is dropped before every run. The two run in turn, at least nine times.
"""

from __future__ import annotations

import time

import measure


def main() -> None:
    parser = measure.parser("Restore into tensors that exist, against fio.")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=11)
    args = parser.parse_args()
    measure.need_fio()
    import torch

    from libckpt import Checkpointer

    count = 3 if args.quick else max(9, args.pairs)
    tensors = measure.state_of(args)
    state = {"tensors": tensors}
    with measure.scratch(args.dir) as folder:
        store = folder / "store"
        with Checkpointer(store, state=state, on_error="raise") as ckpt:
            ckpt.resume()
            ckpt.save(1).wait("local")
        (shard,) = store.glob("g*/step-*/rank-*.safetensors")
        race = measure.AgainstFio(shard)
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        dropped = ""

        def ours() -> float:
            nonlocal dropped
            for tensor in tensors.values():
                tensor.zero_()
            with Checkpointer(store, state=state, on_error="raise") as ckpt:
                dropped = measure.drop_cache([shard])
                began = time.perf_counter()
                if ckpt.resume() != 1:
                    raise RuntimeError("the step was not restored")
                return time.perf_counter() - began

        def fio() -> float:
            measure.drop_cache([shard])
            return race.fio("read", shard)

        ours()
        race.runs = measure.pairs(count, ours, fio)
        if not all(torch.equal(kept[name], tensor) for name, tensor in tensors.items()):
            raise RuntimeError("what was restored is not what was saved")
    result = race.report("libckpt: resume()", "fio: read")
    print(f"the cache was dropped by {dropped}; {measure.CACHE_NOTE}")
    measure.finish("restore", args, {**result, "cache": f"{dropped}; {measure.CACHE_NOTE}"})


if __name__ == "__main__":
    main()
