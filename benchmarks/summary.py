#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up what the benchmarks wrote: every figure beside its mark.

usage: summary.py DIRECTORY RESULT: reads *.json in DIRECTORY, prints a table, writes RESULT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import measure

Row = tuple[str, str, str, bool]

UNMARKED = ("survey",)


def ratio_row(name: str, ratio: dict[str, Any], mark: float) -> Row:
    """A ratio to the hardware's best: judged by the upper end of its interval, since disks vary."""
    text = f"{ratio['median']:.3f} [{ratio['low90']:.3f}, {ratio['high90']:.3f}]"
    return name, text, f"at least {mark:.2f}", ratio["high90"] >= mark


def staging_row(load: dict[str, Any]) -> Row:
    ratio = {"median": load["ratio"], "low90": load["ratio_low90"], "high90": load["ratio_high90"]}
    return ratio_row(f"staging copy, to memcpy, {load['tensors']} tensor(s)", ratio, 0.90)


def world_rows(result: dict[str, Any]) -> list[Row]:
    name = f"commit of {result['ranks']:,} ranks, all but one simulated"
    return [
        (
            f"{name}: {which}",
            f"{result[key + 'all_ms']:.0f} ms, {result[key + 'mib']:.1f} MiB exchanged",
            "below 2000 ms",
            result[key + "all_ms"] < 2000,
        )
        for which, key in (("first step of a layout", "first_"), ("steps after it", ""))
    ]


def codec_rows(result: dict[str, Any]) -> list[Row]:
    return [
        (
            f"encoded, {case['name']}",
            f"{case['libckpt']['ratio']:.2f}",
            f"at least {case['mark']:.2f}",
            case["libckpt"]["ratio"] >= case["mark"],
        )
        for case in result["cases"]
        if case["mark"]
    ]


def http_rows(result: dict[str, Any]) -> list[Row]:
    return [
        (
            f"PUT, {way['name']}, to libcurl alone: {what}",
            f"{way[key]:.2f}",
            "at least 0.90",
            way[key] >= 0.90,
        )
        for way in result["ways"]
        for what, key in (("rate", "ratio_wall"), ("CPU time", "ratio_cpu"))
    ]


def remote_rows(result: dict[str, Any]) -> list[Row]:
    """Within noise of the best: the interval of the ratio holds 1, or is on the better side of it."""
    rows: list[Row] = []
    allowed = result["staging_bytes"] + result["slack_bytes"]
    for what in ("upload", "restore") if "contest" in result else ():
        part = result["contest"][what]
        rows.append(ratio_row(f"{what}, speed to {part['best']}'s", part["speed"], 1.0))
        cpu, memory = part["cpu_ratio"], part["programs"]["libckpt"]["memory_bytes"]
        name = f"{what}, processor time to the least of the peers'"
        rows.append((name, f"{cpu:.2f}", "below 1", cpu < 1))
        text, mark = f"{memory / 2**20:.0f} MiB", f"at most {allowed >> 20} MiB"
        rows.append((f"{what}, memory", text, mark, memory <= allowed))
    for which in ("bucket", "dead") if "loop" in result else ():
        ratio = result["loop"]["ratios"][which]
        text = f"{ratio['median']:.3f} [{ratio['low90']:.3f}, {ratio['high90']:.3f}]"
        rows.append((f"a loop's time, remote {which}", text, "1 within", ratio["low90"] <= 1))
    return rows


def many_rows(result: dict[str, Any]) -> list[Row]:
    """Of the largest state; a run may have measured the rehearsal alone."""
    if "linear" not in result:
        return []
    count, linear, first = result["parameters"], result["linear"], result["first_s"]
    name = f"{count:,} parameters with AdamW"
    return [
        (f"resume() of {name}, for each", f"{linear:.2f} x", "at most 1.50 x", linear <= 1.5),
        (f"first save() of {name}", f"{first:.2f} s", "below 5 s", first < 5),
    ]


def compact_rows(result: dict[str, Any]) -> list[Row]:
    ratio = result["bytes"] / result["bytes_stored"]
    return [("a compact step, times smaller", f"{ratio:.2f}", "at least 1.30", ratio >= 1.3)]


ROWS = {
    "codec": codec_rows,
    "compact": compact_rows,
    "http": http_rows,
    "many": many_rows,
    "remote": remote_rows,
    "world": world_rows,
}


def rows_of(result: dict[str, Any]) -> list[Row]:
    kind = result["benchmark"]
    if kind == "durable":
        return [ratio_row("save() until durable, to fio's write", result["ratio_to_fio"], 0.90)]
    if kind == "restore":
        return [ratio_row("restore, to fio's read", result["ratio_to_fio"], 0.90)]
    if kind == "staging":
        return [staging_row(load) for load in result["loads"]]
    if kind == "reshard":
        way = next(way for way in result["ways"] if way["name"] == "3, by rows")
        read, ratio = way["read_to_wanted"], way["ratio"]
        return [
            ("resharded by rows, read to wanted", f"{read:.3f}", "at most 1.05", read <= 1.05),
            ("resharded by rows, to the same cut", f"{ratio:.3f}", "at least 0.80", ratio >= 0.80),
        ]
    if kind == "import":
        milliseconds = result["seconds"]["median"] * 1e3
        well = milliseconds < 50 and result["clean"]
        return [("import libckpt", f"{milliseconds:.1f} ms", "below 50 ms", well)]
    if kind == "ranks":
        milliseconds = result["call_ms"]
        name = f"save() of {result['tensors']:,} FSDP tensors, {result['ranks']} ranks"
        return [(name, f"{milliseconds:.1f} ms", "below 5 ms", milliseconds < 5)]
    if kind in ROWS:
        return ROWS[kind](result)
    if kind == "commit":
        milliseconds = result["commit_ms"]
        name = f"commit of {result['ranks']} ranks, after the last part"
        return [(name, f"{milliseconds:.1f} ms", "below 20 ms", milliseconds < 20)]
    if kind == "open":
        marked = [run for run in result["runs"] if run["cut"] != "uneven"]
        milliseconds = max(run["all_ms"] for run in marked)
        mib = max(run["mib"] for run in marked)
        name = f"what one rank needs of {result['ranks']:,} x {result['tensors']:,} tensors"
        return [
            (name, f"{milliseconds:.0f} ms", "below 1000 ms", milliseconds < 1000),
            (f"{name}: memory", f"{mib:.0f} MiB", "below 512 MiB", mib < 512),
        ]
    if kind == "dcp":
        return [
            (
                f"dcp.async_save(), {what}, torch's writer to ours",
                f"{result[f'torch to libckpt, {what}']['median']:.2f}",
                "at least 1",
                result[f"torch to libckpt, {what}"]["high90"] >= 1,
            )
            for what in ("blocked", "done")
        ]
    if kind == "soak":
        text = "flat" if result["flat"] else "not flat"
        return [(f"{result['saves']} saves", text, "flat", result["flat"])]
    rows: list[Row] = []
    for part in result["results"]:
        best = part["ratios"]
        if not best:
            continue
        what = f"{part['case']} state, {part['threads']} training thread(s)"
        lost = best["lost_ratio"]
        sooner = best["durable_speedup"]
        peer, other = best["lost_best_peer"], best["durable_best_peer"]
        text = "not quiet enough" if lost is None else f"{lost:.2f} of {peer}'s"
        well = lost is not None and lost < 0.5
        rows.append((f"lost time, {what}", text, "below 0.50", well))
        rows.append(
            (f"durable, {what}", f"{sooner:.1f} x sooner than {other}", "at least 3 x", sooner >= 3)
        )
    return rows


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    target = Path(sys.argv[2])
    results = [
        json.loads(path.read_text())
        for path in sorted(Path(sys.argv[1]).glob("*.json"))
        if path != target
    ]
    marked = [result for result in results if result["benchmark"] not in UNMARKED]
    rows = [row for result in marked for row in rows_of(result)]
    measure.table(
        ["", "measured", "mark", ""],
        [
            [name, text, mark, "reached" if well else "NOT REACHED"]
            for name, text, mark, well in rows
        ],
    )
    if any(result.get("quick") for result in results):
        print("(--quick: these figures mean nothing)")
    versions = {
        key: value for result in results for key, value in result.get("versions", {}).items()
    }
    print(
        "versions: " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    )
    print(f"note: {measure.CACHE_NOTE}")
    marks = [
        {"figure": name, "measured": text, "mark": mark, "reached": well}
        for name, text, mark, well in rows
    ]
    target.write_text(
        json.dumps({"schema": 1, "marks": marks, "benchmarks": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
