#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a state of very many tensors costs, and what the rehearsal does.

resume() of 10,000, 40,000 and 100,000 parameters with AdamW, four tensors each, beside torch.load()
and load_state_dict() of the same; the first save() of the largest, beside torch.save(); and what
the rehearsal of the first committed step costs the loop beside which it runs, as in
bench_lost_time.py, beside a loop whose Checkpointer makes none.

Every run is a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lost_variants
import measure

PARAMETERS = (10_000, 40_000, 100_000)
LINEAR, FIRST_SAVE_S = 1.5, 5.0
#: Seconds of steps without a save, and the most that a rehearsal is waited for.
QUIET_S, PATIENCE_S = 3.0, 300.0


def make(count: int) -> dict[str, Any]:
    """A model of so many parameters, and its optimizer as after a step."""
    import torch

    model = torch.nn.Module()
    for number in range(count):
        weight = torch.nn.Parameter(torch.full((4, 4), float(number)))
        model.register_parameter(f"weight{number}", weight)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.ones(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return {"model": model, "optimizer": optimizer}


def save_ours(place: Path, count: int) -> dict[str, float]:
    import libckpt

    state = make(count)
    with libckpt.Checkpointer(place / "store", state, rehearse=False) as ckpt:
        ckpt.resume()
        began = time.perf_counter()
        save = ckpt.save(1)
        called = time.perf_counter() - began
        save.wait()
        return {"call_s": called, "durable_s": time.perf_counter() - began}


def save_torch(place: Path, count: int) -> dict[str, float]:
    import torch

    state = make(count)
    began = time.perf_counter()
    with (place / "state.pt").open("wb") as file:
        torch.save({name: value.state_dict() for name, value in state.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    return {"call_s": time.perf_counter() - began}


def resume_ours(place: Path, count: int) -> dict[str, float]:
    import libckpt

    state = make(count)
    with libckpt.Checkpointer(place / "store", state, rehearse=False) as ckpt:
        began = time.perf_counter()
        if ckpt.resume() != 1:
            raise RuntimeError("resume() has not found the step")
        return {"seconds": time.perf_counter() - began}


def resume_torch(place: Path, count: int) -> dict[str, float]:
    import torch

    state = make(count)
    began = time.perf_counter()
    loaded = torch.load(place / "state.pt")
    for name, value in state.items():
        value.load_state_dict(loaded[name])
    return {"seconds": time.perf_counter() - began}


class Ears(logging.Handler):
    """Hears how the rehearsal has ended."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("rehearsal: ") and " is read once more" not in text:
            self.said = text


class Loop:
    """Steps of training, each told to a Checkpointer."""

    def __init__(self, place: Path, case: str, quick: bool, rehearse: bool) -> None:
        import libckpt

        self.model, self.optimizer, self.train = lost_variants.build(case, quick)
        state = {"model": self.model, "optimizer": self.optimizer}
        self.ckpt = libckpt.Checkpointer(place / "store", state, rehearse=rehearse)
        self.ckpt.resume()
        self.number = 0

    def run(self, seconds: float, ears: Ears | None = None) -> list[float]:
        """Seconds of each step, for so long, or until the rehearsal has ended."""
        times: list[float] = []
        while sum(times) < seconds and not (ears and ears.said):
            began = time.perf_counter()
            self.train()
            self.number += 1
            self.ckpt.step(self.number)
            times.append(time.perf_counter() - began)
        return times


def rehearse(place: Path, case: str, quick: bool, seconds: float) -> dict[str, Any]:
    """With one if `seconds` is 0; else without, for so long."""
    import torch

    torch.set_num_threads(1)
    ears = Ears()
    logger = logging.getLogger("libckpt")
    logger.setLevel(logging.INFO)
    logger.addHandler(ears)
    loop = Loop(place, case, quick, rehearse=not seconds)
    loop.run(QUIET_S)
    before = statistics.mean(loop.run(QUIET_S))
    loop.number += 1
    save = loop.ckpt.save(loop.number)
    while not save.info.local:
        loop.run(1e-9)
    beside = loop.run(seconds or PATIENCE_S, None if seconds else ears)
    alone = (before + statistics.mean(loop.run(QUIET_S))) / 2
    loop.ckpt.close()
    return {
        "lost_s": sum(beside) - len(beside) * alone,
        "worst_s": max(beside) - alone,
        "seconds": sum(beside),
        "step_s": alone,
        "said": ears.said,
    }


ROADS = {
    "save_ours": save_ours,
    "save_torch": save_torch,
    "resume_ours": resume_ours,
    "resume_torch": resume_torch,
}


def be_child(road: str, place: Path, *rest: str) -> None:
    if road == "rehearse":
        case, quick, seconds = rest
        found: dict[str, Any] = rehearse(place, case, quick == "quick", float(seconds))
    else:
        found = dict(ROADS[road](place, int(rest[0])))
    print(json.dumps(found), flush=True)


def child(road: str, place: Path, *rest: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", road, str(place), *map(str, rest)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def cells(name: str, value: dict[str, Any], digits: int) -> list[str]:
    low, high = value["low90"], value["high90"]
    return [name, f"{value['median']:.{digits}f}", f"[{low:.{digits}f}, {high:.{digits}f}]"]


def many(args: Any, counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Saves and restores of each size, ours and torch's in pairs."""
    figures: dict[str, Any] = {}
    rows = []
    for count in counts:
        first: list[tuple[float, float]] = []
        back: list[tuple[float, float]] = []
        for number in range(rounds):
            with measure.scratch(args.dir) as place:
                print(f"  {count}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                turn = ("ours", "torch") if number % 2 == 0 else ("torch", "ours")
                saved = {who: child(f"save_{who}", place, count) for who in turn}
                read = {who: child(f"resume_{who}", place, count) for who in turn}
            first.append((saved["ours"]["call_s"], saved["torch"]["call_s"]))
            back.append((read["ours"]["seconds"], read["torch"]["seconds"]))
        for name, pairs in (("first save()", first), ("resume()", back)):
            ours, torchs = zip(*pairs, strict=True)
            key = f"{name}, {count} parameters"
            figures[key] = measure.spread(ours)
            figures[f"{key}, torch"] = measure.spread(torchs)
            figures[f"{key}, to torch's"] = measure.spread([a / b for a, b in pairs])
            ratio = figures[f"{key}, to torch's"]["median"]
            rows.append([*cells(key, figures[key], 2), f"{ratio:.2f}"])
    measure.table(["", "median, s", "90 % interval", "to torch's"], rows)
    least, most = counts[0], counts[-1]
    seconds = {count: figures[f"resume(), {count} parameters"]["median"] for count in (least, most)}
    figures["linear"] = seconds[most] / seconds[least] / (most / least)
    figures["first_s"] = figures[f"first save(), {most} parameters"]["median"]
    print(f"{most / least:.0f} times the parameters: {figures['linear']:.2f} times as long for each")
    return figures


def rehearsals(args: Any, rounds: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    rows = []
    for case in ("large", "small"):
        lost: dict[str, list[float]] = {"with": [], "without": [], "worst": [], "seconds": []}
        quick = "quick" if args.quick else "full"
        for number in range(rounds):
            print(f"  {case}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            with measure.scratch(args.dir) as place:
                one = child("rehearse", place, case, quick, 0)
            with measure.scratch(args.dir) as place:
                none = child("rehearse", place, case, quick, one["seconds"])
            lost["with"].append(one["lost_s"])
            lost["without"].append(none["lost_s"])
            lost["worst"].append(one["worst_s"])
            lost["seconds"].append(one["seconds"])
            figures[f"{case}: said"] = one["said"]
        for name, key in (
            ("lost to the rehearsal, in all", "with"),
            ("the same steps without one", "without"),
            ("the step that waited longest", "worst"),
            ("until it had ended", "seconds"),
        ):
            figures[f"{case}: {name}"] = measure.spread(lost[key])
            rows.append(cells(f"{case}: {name}", figures[f"{case}: {name}"], 2))
    measure.table(["rehearsal", "median, s", "90 % interval"], rows)
    return figures


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        be_child(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
        return
    parser = measure.parser("What states of very many tensors cost, and the rehearsal.")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each")
    parser.add_argument("--part", choices=("many", "rehearsal", "both"), default="both")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    counts = (100, 400, 1_000) if args.quick else PARAMETERS
    figures: dict[str, Any] = {"versions": measure.version_of("torch"), "parameters": counts[-1]}
    if args.part != "rehearsal":
        figures |= many(args, counts, rounds)
    if args.part != "many":
        figures |= rehearsals(args, rounds)
    measure.finish("many", args, figures)
    well = figures.get("linear", 0) <= LINEAR and figures.get("first_s", 0) < FIRST_SAVE_S
    sys.exit(0 if args.quick or well else 1)


if __name__ == "__main__":
    main()
