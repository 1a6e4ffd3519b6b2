#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a save costs a training loop on the CPU, and when it is durable; beside its peers.

Lost time per save = the wall time of the steps beside which a save ran, less that of as many steps
without, measured right before and right after. It holds everything that the loop feels: the call,
the wait before the optimizer's step, and the processor time that the background takes away.

Every variant runs in processes of its own, in turn, several times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lost_variants
import measure
from lost_variants import DURABLE, OTHERS, PAGE_CACHE

FIGURES = ("lost_s", "call_s", "durable_s", "cpu_s", "step_s")


class Meter:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self.used, self.began = cpu_seconds(), time.perf_counter()

    def wall(self) -> float:
        return time.perf_counter() - self.began

    def cpu(self) -> float:
        return cpu_seconds() - self.used


def cpu_seconds() -> float:
    """Processor time of this process and of its descendants that still run."""
    total, parents = 0.0, {os.getpid()}
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        if int(entry.name) in parents or int(fields[1]) in parents:
            parents.add(int(entry.name))
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


class Child:
    """One variant in one process: blocks of steps, with a save and without, in turn."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.least = args.steps
        self.seconds = 0.5 if args.quick else args.seconds
        self.folder = Path(args.child_dir)
        self.model, self.optimizer, self.step = lost_variants.build(args.case, args.quick)
        self.step()
        self.save = lost_variants.saver(args.child, self.model, self.optimizer, self.folder)

    def quiet(self) -> tuple[float, float]:
        """Wall and processor time of one step without a save."""
        meter = Meter()
        count = self.steps(meter, lambda: True)
        wall, cpu = meter.wall(), meter.cpu()
        return wall / count, cpu / count

    def steps(self, meter: Meter, ended: Callable[[], bool]) -> int:
        """A block of steps: long enough to be measured, and until `ended`."""
        count = 0
        while count < self.least or meter.wall() < self.seconds or not ended():
            self.step()
            count += 1
        return count

    def saving(self, number: int) -> dict[str, Any]:
        """A save, and steps until it has ended."""
        path = self.folder / f"peer-{number}"
        meter = Meter()
        watcher = lost_variants.Watcher(self.save(path, number), meter.began)
        called = meter.wall()
        watcher.start()
        count = self.steps(meter, lambda: watcher.seconds is not None)
        wall, cpu = meter.wall(), meter.cpu()
        watcher.join()
        if watcher.error is not None:
            raise watcher.error
        shutil.rmtree(path, ignore_errors=True)
        os.sync()
        return {
            "wall": wall,
            "cpu": cpu,
            "steps": count,
            "call_s": called,
            "durable_s": watcher.seconds,
        }

    def measure(self, saves: int) -> list[dict[str, Any]]:
        self.saving(1)  # to warm up
        before = self.quiet()
        results = []
        for number in range(saves):
            result = self.saving(number + 2)
            after = self.quiet()
            alone = (before[0] + after[0]) / 2
            result["lost_s"] = result.pop("wall") - result["steps"] * alone
            result["cpu_s"] = result.pop("cpu") - result["steps"] * (before[1] + after[1]) / 2
            result["step_s"] = alone
            results.append(result)
            before = after
        return results

    def tensors(self) -> int:
        import torch

        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return sum(map(torch.is_tensor, state)) + sum(1 for _ in self.model.parameters())


def run_as_child(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(int(args.threads))
    child = Child(args)
    saves = child.measure(2 if args.quick else args.saves)
    print(json.dumps({"saves": saves, "tensors": child.tensors()}), flush=True)
    os._exit(0)  # neither DCP's process nor gloo's threads are worth waiting for


def run_child(name: str, args: argparse.Namespace, case: str, threads: int) -> dict[str, Any]:
    with measure.scratch(args.dir) as folder:
        command = [sys.executable, __file__, "--child", name, "--child-dir", str(folder)]
        command += ["--case", case, "--threads", str(threads)]
        command += ["--saves", str(args.saves), "--steps", str(args.steps)]
        command += ["--seconds", str(args.seconds)]
        if args.quick:
            command.append("--quick")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    bad = [run["error"] for run in runs if "error" in run]
    saves = [save for run in runs for save in run.get("saves", [])]
    if not saves:
        return {"error": bad[0]}
    result: dict[str, Any] = {key: measure.spread([save[key] for save in saves]) for key in FIGURES}
    result["tensors"] = next(run["tensors"] for run in runs if "saves" in run)
    if bad:
        result["failed_runs"] = bad
    return result


def row_of(name: str, value: dict[str, Any]) -> list[str]:
    if "error" in value:
        return [name, "failed: " + value["error"], "", "", "", ""]

    def cell(key: str, scale: float, digits: int) -> str:
        low, high = value[key]["low90"] * scale, value[key]["high90"] * scale
        return f"{value[key]['median'] * scale:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    return [
        name,
        cell("lost_s", 1e3, 0),
        f"{value['call_s']['median'] * 1e3:.0f}",
        cell("durable_s", 1, 2),
        f"{value['cpu_s']['median']:.2f}",
        f"{value['step_s']['median'] * 1e3:.0f}",
    ]


def report(case: str, threads: int, results: dict[str, dict[str, Any]]) -> None:
    tensors = next((value["tensors"] for value in results.values() if "tensors" in value), 0)
    print(f"\n{case} state, {tensors} tensors; training threads: {threads}")
    for title, ending, members in (
        ("durable", "until durable, s", DURABLE + OTHERS),
        ("in the page cache only: not to be compared with the above", "until done, s", PAGE_CACHE),
    ):
        rows = [row_of(name, results[name]) for name in members if name in results]
        if rows:
            print(f"\n{title}:")
            head = ["", "lost per save, ms", "call, ms", ending, "CPU, s", "quiet step, ms"]
            measure.table(head, rows)


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """libckpt against the best of the durable peers, by medians."""
    ours = results.get("libckpt", {})
    peers = {n: results[n] for n in DURABLE[1:] + OTHERS if "lost_s" in results.get(n, {})}
    if "lost_s" not in ours or not peers:
        return {}
    lost = min(peers, key=lambda name: float(peers[name]["lost_s"]["median"]))
    durable = min(peers, key=lambda name: float(peers[name]["durable_s"]["median"]))
    most = peers[lost]["lost_s"]["median"]
    return {
        "lost_best_peer": lost,
        # A peer that seems to lose nothing was measured on a machine that was not quiet.
        "lost_ratio": ours["lost_s"]["median"] / most if most > 0 else None,
        "durable_best_peer": durable,
        "durable_speedup": peers[durable]["durable_s"]["median"] / ours["durable_s"]["median"],
    }


def compare(args: argparse.Namespace, names: list[str], case: str, threads: int) -> dict[str, Any]:
    rounds = 1 if args.quick else args.rounds
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            print(f"  {case}, round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run_child(name, args, case, threads))
    results = {name: summarise(runs[name]) for name in names}
    report(case, threads, results)
    best = ratios(results)
    if best:
        lost = "unknown part" if best["lost_ratio"] is None else f"{best['lost_ratio']:.2f}"
        print(
            f"\nlost time: {lost} of that of the best durable peer"
            f" ({best['lost_best_peer']});\ndurable {best['durable_speedup']:.1f} times sooner than"
            f" the best ({best['durable_best_peer']})"
        )
    return {"case": case, "threads": threads, "variants": results, "ratios": best}


def main() -> None:
    parser = measure.parser("What a save costs a training loop, and when it is durable.")
    parser.add_argument("--case", choices=["large", "small", "both"], default="both")
    parser.add_argument("--threads", default="1", help="training threads; 1,2 measures each")
    parser.add_argument("--rounds", type=int, default=5, help="processes per variant")
    parser.add_argument("--saves", type=int, default=3, help="saves counted per process")
    parser.add_argument("--steps", type=int, default=4, help="least steps per block")
    parser.add_argument("--seconds", type=float, default=2.0, help="least seconds per block")
    parser.add_argument("--variants", help="a list, or all: also the peers' other options")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--child-dir", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_as_child(args)
    names = DURABLE + PAGE_CACHE
    if args.variants:
        names = names + OTHERS if args.variants == "all" else args.variants.split(",")
    failed = False
    output = []
    for case in ["large", "small"] if args.case == "both" else [args.case]:
        for threads in map(int, args.threads.split(",")):
            output.append(compare(args, names, case, threads))
            failed |= "error" in output[-1]["variants"].get("libckpt", {})
    measure.finish("lost_time", args, {"results": output})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
