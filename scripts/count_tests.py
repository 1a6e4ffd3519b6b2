# SPDX-License-Identifier: Apache-2.0
"""Counts what scripts/test ran, and refuses skips that nobody has given a reason for.

usage: count_tests.py LOGS SKIPS

LOGS holds `parts` (a line "passed|failed NAME" for each), meson's testlog.json of each build as
BUILD.meson.json, and pytest's report as *.junit.xml. A part that left a report counts as its tests;
another counts as one. SKIPS has lines "PATTERN REASON": what may be skipped, and why; what only root
can run has "PATTERN (not root) REASON", and root may not skip it.
"""

import fnmatch
import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator

Outcome = tuple[str, str]  # a test's name, and how it ended

NOT_ROOT = "(not root) "  # such a reason counts for other users only
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
REPORTS = {
    "suites": ["build.meson.json"],
    "asan": ["build-asan.meson.json", "asan-tools.junit.xml"],
    "tsan": ["build-tsan.meson.json"],
    "minimal": ["build-minimal.meson.json"],
    "fuzz": ["build-fuzz.meson.json"],
    "python": ["python.junit.xml", "gpu.junit.xml"],
}
OUTCOMES = {"OK": PASSED, "EXPECTEDFAIL": PASSED, "SKIP": SKIPPED}


def cmocka_tests(name: str, output: str) -> Iterator[Outcome]:
    """The tests inside one cmocka program, by their last lines: `[       OK ] test_x`."""
    for mark, test in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\w+)$", output, re.MULTILINE):
        yield f"{name}/{test}", {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}[mark]


def meson_tests(path: pathlib.Path) -> Iterator[Outcome]:
    build = path.name.removesuffix(".meson.json")
    for line in path.read_text().splitlines():
        test = json.loads(line)
        name = f"{build}/{test['name'].split(' / ')[-1]}"
        outcome = OUTCOMES.get(test["result"], FAILED)
        output = (test.get("stdout") or "") + (test.get("stderr") or "")
        inner = dict(cmocka_tests(name, output))
        if outcome == FAILED and FAILED not in inner.values():
            inner[name] = FAILED  # it crashed, ran too long, or a sanitizer stopped it
        yield from inner.items() if inner else [(name, outcome)]


def pytest_tests(path: pathlib.Path) -> Iterator[Outcome]:
    report = path.name.removesuffix(".junit.xml")
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{report}/{case.get('classname')}::{case.get('name')}"
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            yield name, FAILED
        elif "skipped" in tags:
            yield name, SKIPPED
        else:
            yield name, PASSED


def collect(logs: pathlib.Path) -> Iterator[Outcome]:
    for line in (logs / "parts").read_text().splitlines():
        outcome, part = line.split()
        tests: list[Outcome] = []
        for path in (logs / name for name in REPORTS.get(part, ())):
            if path.exists():
                tests += pytest_tests(path) if path.suffix == ".xml" else meson_tests(path)
        if not tests:
            yield part, outcome
            continue
        yield from tests
        if outcome == FAILED and FAILED not in dict(tests).values():
            yield part, FAILED


def reasons(path: pathlib.Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(" ")
            if not reason.strip():
                sys.exit(f"{path}: {pattern} has no reason")
            if not reason.startswith(NOT_ROOT) or os.geteuid() != 0:
                yield pattern


def main() -> int:
    logs, skips = map(pathlib.Path, sys.argv[1:])
    allowed = list(reasons(skips))
    count = {PASSED: 0, FAILED: 0, SKIPPED: 0}
    for name, outcome in collect(logs):
        if outcome == SKIPPED and not any(fnmatch.fnmatchcase(name, p) for p in allowed):
            print(f"{name}: skipped, and not listed in {skips}")
            outcome = FAILED
        elif outcome == FAILED:
            print(f"{name}: failed")
        count[outcome] += 1
    print(", ".join(f"{n} {outcome}" for outcome, n in count.items()))
    return 1 if count[FAILED] or not count[PASSED] else 0


if __name__ == "__main__":
    sys.exit(main())
