# SPDX-License-Identifier: Apache-2.0
"""Puts into one file what scripts/gpu-check found, prints the short of it, and judges.

usage: gpu_report.py OUT KIT PARTS DEVICE [--quick]
"""

from __future__ import annotations

import json
import platform
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any


def tests(path: Path) -> dict[str, Any]:
    """How many passed, and the names of the others."""
    found: dict[str, Any] = {"passed": 0, "skipped": {}, "failed": {}}
    if not path.exists():
        return {**found, "failed": {"tests/gpu": "it left no report"}}
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        skip = case.find("skipped")
        if bad:
            found["failed"][name] = (bad[0].get("message") or "").splitlines()[:1]
        elif skip is not None:
            found["skipped"][name] = skip.get("message")
        else:
            found["passed"] += 1
    return found


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def gather(out: Path, kit: Path, parts: Path, device: str, quick: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "schema": 1,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device,
        "measures": device == "cuda" and not quick,
        "python": platform.python_version(),
        "hardware": (out / "hardware.txt").read_text().splitlines(),
        "kit": read(kit / "kit.json"),
        "parts": {},
    }
    for line in parts.read_text().splitlines():
        name, outcome, seconds = line.split()
        report["parts"][name] = {"outcome": outcome, "seconds": int(seconds)}
    if "tests" in report["parts"]:
        report["tests"] = tests(out / "tests.xml")
    if "bench" in report["parts"]:
        report["bench"] = read(out / "bench.json")
    return report


def pinning(report: dict[str, Any]) -> list[str]:
    """What it costs to pin a gigabyte of staging memory, by its pages."""
    pin = report.get("bench", {}).get("results", {}).get("pin", {})
    lines = []
    for pages, words in (("small", "pages of 4 KiB"), ("huge", "huge pages")):
        for way in ("touch", "register", "lock"):
            value = pin.get(f"{way}_{pages}_s")
            if value is not None:
                lines.append(f"{way}, {words}: {value['median'] * 1e3:.0f} ms/GB")
    if pin and "error" not in pin and pin.get("register_small_s") is None:
        lines.append("the registration was not measured: there was no GPU; lock is mlock()")
    return lines


def problems(report: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: {part['outcome']}"
        for name, part in report["parts"].items()
        if part["outcome"] != "passed"
    ]
    ran = report.get("tests", {"passed": 1, "failed": {}})
    found += [f"{name}: {why}" for name, why in ran["failed"].items()]
    if not ran["passed"]:
        found.append("tests: none passed")
    if report["measures"]:
        marks = report.get("bench", {}).get("marks", [])
        found += [f"{mark['name']}: a mark was missed" for mark in marks if not mark["reached"]]
    return found


def main() -> int:
    out, kit, parts = map(Path, sys.argv[1:4])
    report = gather(out, kit, parts, sys.argv[4], "--quick" in sys.argv[5:])
    report["problems"] = problems(report)
    path = out / "gpu-report.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print("\n== report")
    for name, part in report["parts"].items():
        print(f"{name}: {part['outcome']}, {part['seconds']} s")
    if "tests" in report:
        ran = report["tests"]
        counts = f"{ran['passed']} passed, {len(ran['failed'])} failed"
        print(f"tests/gpu: {counts}, {len(ran['skipped'])} skipped")
    if report["measures"]:
        for mark in report.get("bench", {}).get("marks", []):
            word = "reached" if mark["reached"] else "missed"
            print(f"{mark['name']}: {mark['value']:.3f}, mark {mark['mark']}: {word}")
    else:
        print("the figures of this run mean nothing")
    for line in pinning(report):
        print(line)
    for problem in report["problems"]:
        print(f"not well: {problem}")
    print(path)
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
