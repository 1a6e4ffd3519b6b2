#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves and restores of tensors on a GPU, beside what the bus and the disk give, and beside peers.

Every part and every variant runs in a process of its own, with its own share of the time. It needs
no fio. `--device cpu --quick` shows that it runs, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure

#: Seconds of measuring; the process is ended after twice that and a minute.
SHARES = {"d2h": 35, "call": 15, "restore": 35, "lost": 45, "pin": 30}
VARIANTS = ["libckpt", "dcp-pinned", "torch_checkpointing"]
#: Part, figure, its scale for people, unit, and the mark: at least or at most.
MARKS: list[tuple[str, str, float, str, str, float]] = [
    ("d2h", "ratio", 1, "", ">=", 0.95),
    ("call", "beyond_s", 1e3, "ms", "<=", 1.0),
    ("lost:libckpt", "lost_s", 1e3, "ms", "<=", 10.0),
    # What happens where the copies are made is not lost in the noise of a hundred steps.
    ("lost:libckpt", "first_s", 1e3, "ms", "<=", 10.0),
    ("restore", "ratio", 1, "", ">=", 0.90),
]
FIGURES: dict[str, list[tuple[str, str, float, str]]] = {
    "d2h": [
        ("save() until staged", "stage_s", 1e3, "ms"),
        ("plain copies into pinned memory", "plain_s", 1e3, "ms"),
        ("rate to plain copies", "ratio", 1, ""),
        ("save() until durable", "durable_s", 1, "s"),
        ("raw write of as much", "raw_write_s", 1, "s"),
        ("rate to the raw write", "durable_ratio", 1, ""),
    ],
    "call": [
        ("save() of 10,000 tensors", "call_s", 1e3, "ms"),
        ("of that, eager copies", "eager_s", 1e3, "ms"),
        ("beyond eager copies", "beyond_s", 1e3, "ms"),
        ("the fence", "fence_s", 1e3, "ms"),
        ("until staged", "stage_s", 1e3, "ms"),
        ("plain copies, one after the other", "plain_s", 1e3, "ms"),
    ],
    "restore": [
        ("resume()", "resume_s", 1, "s"),
        ("raw read of the file", "raw_read_s", 1, "s"),
        ("rate to the raw read", "ratio", 1, ""),
    ],
    "lost": [
        ("lost per save", "lost_s", 1e3, "ms"),
        ("of that, in the first three steps", "first_s", 1e3, "ms"),
        ("steps without a save differ by", "noise_s", 1e3, "ms"),
        ("the call", "call_s", 1e3, "ms"),
        ("until it has ended", "durable_s", 1, "s"),
        ("a step without", "step_s", 1e3, "ms"),
    ],
    # By the gigabyte, of the larger pool.
    "pin": [
        ("touching, pages of 4 KiB", "touch_small_s", 1e3, "ms/GB"),
        ("touching, huge pages", "touch_huge_s", 1e3, "ms/GB"),
        ("registration, pages of 4 KiB", "register_small_s", 1e3, "ms/GB"),
        ("registration, huge pages", "register_huge_s", 1e3, "ms/GB"),
        ("mlock in its place, pages of 4 KiB", "lock_small_s", 1e3, "ms/GB"),
        ("mlock in its place, huge pages", "lock_huge_s", 1e3, "ms/GB"),
        ("registration of 1 GiB, pages of 4 KiB", "first_register_small_s", 1e3, "ms"),
        ("registration of 1 GiB, huge pages", "first_register_huge_s", 1e3, "ms"),
        ("what of the huge ones was huge", "huge_share", 100, "%"),
    ],
}


def run_as_child(args: argparse.Namespace) -> None:
    import gpu_loop
    import gpu_parts
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    with measure.scratch(args.dir) as folder:
        part = gpu_loop.lost if args.part == "lost" else gpu_parts.PARTS[args.part]
        result = part(args, folder)
    print(json.dumps(result), flush=True)
    os._exit(0)  # neither gloo's threads nor a peer's processes are worth waiting for


def run_child(part: str, variant: str, args: argparse.Namespace, left: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--part", part, "--variant", variant]
    command += ["--device", args.device, "--dir", str(args.dir), "--seconds", str(SHARES[part])]
    command += ["--gigabytes", str(args.gigabytes)]
    command += ["--depth", str(args.depth), "--batch", str(args.batch)]
    if args.quick:
        command.append("--quick")
    limit = min(2 * SHARES[part] + 60, int(left))
    if limit < 20:
        return {"error": "no time was left for it; see --limit"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit} s"}
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(name: str, result: dict[str, Any]) -> None:
    print(f"\n== {name}")
    if "error" in result:
        print(f"failed: {result['error']}")
        return
    rows = []
    for words, key, scale, unit in FIGURES[name.split(":")[0]]:
        value = result[key]
        if value is None:
            rows.append([words, "not measured", "", "", unit])
            continue
        cells = [f"{value[which] * scale:.3f}" for which in ("median", "low90", "high90")]
        rows.append([words, *cells, unit])
    measure.table([f"{result['bytes'] / 1e9:.2f} GB", "median", "low", "high", ""], rows)


def judge(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each mark by the median."""
    found = []
    for part, key, scale, unit, sense, mark in MARKS:
        value = results.get(part, {}).get(key)
        if value is None:
            continue
        median = value["median"] * scale
        reached = median >= mark if sense == ">=" else median <= mark
        name = f"{part} {key.removesuffix('_s')}"
        found.append(
            {"name": name, "value": median, "mark": f"{sense} {mark:g} {unit}", "reached": reached}
        )
    return found


def missing(variant: str) -> str | None:
    """Why a peer cannot be measured."""
    package = {"torch_checkpointing": "torch_checkpointing"}.get(variant)
    if package is None:
        return None
    command = [sys.executable, "-c", f"import {package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def hardware(args: argparse.Namespace) -> dict[str, Any]:
    """The GPU, as torch sees it."""
    program = (
        "import json, torch\n"
        "p = torch.cuda.get_device_properties(0)\n"
        "print(json.dumps({'gpu': p.name, 'gpu_bytes': p.total_memory,"
        " 'gpus': torch.cuda.device_count(), 'cuda': torch.version.cuda}))"
    )
    if args.device != "cuda":
        return {"gpu": "none: this shows that the benchmark runs"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = measure.parser("Saves and restores of tensors on a GPU.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parts", default="d2h,call,restore,lost,pin", help="some of them")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of lost")
    parser.add_argument("--gigabytes", type=int, default=4, help="of d2h and restore")
    parser.add_argument("--depth", type=int, default=13, help="layers of 805 MB each, of lost")
    parser.add_argument("--batch", type=int, default=32768, help="of lost")
    parser.add_argument("--limit", type=float, default=530, help="seconds for everything")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dir = Path(args.dir).resolve()
    if args.part:
        run_as_child(args)
    end = time.monotonic() + args.limit
    results: dict[str, dict[str, Any]] = {}
    for part in args.parts.split(","):
        for variant in args.variants.split(",") if part == "lost" else [""]:
            name = f"{part}:{variant}" if variant else part
            why = missing(variant)
            if why is not None:
                print(f"\n== {name}\nnot here: {why}")
                results[name] = {"missing": why}
                continue
            results[name] = run_child(part, variant, args, end - time.monotonic())
            show(name, results[name])
    marks = judge(results)
    if not args.quick:
        print()
        for mark in marks:
            word = "reached" if mark["reached"] else "missed"
            print(f"{mark['name']}: {mark['value']:.3f}, mark {mark['mark']}: {word}")
    measure.finish(
        "gpu",
        args,
        {"device": args.device, **hardware(args), "results": results, "marks": marks},
    )
    failed = [name for name, result in results.items() if "error" in result]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
