# SPDX-License-Identifier: Apache-2.0
"""How tests ended, as meson and pytest report it."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED, HUNG = "passed", "failed", "skipped", "hung"
MESON_OUTCOMES = {"OK": PASSED, "EXPECTEDFAIL": PASSED, "SKIP": SKIPPED, "TIMEOUT": HUNG}


@dataclass
class Test:
    """One test: a program that meson ran, or a test of pytest's."""

    name: str  # build directory or part, and the test's own name
    outcome: str
    seconds: float
    output: str = ""
    alone: list[str] = field(default_factory=list)  # the command that runs it once more
    marks: set[str] = field(default_factory=set)
    code: int = 0  # what its process ended with; below 0: the signal
    inner: dict[str, str] = field(default_factory=dict)  # the tests within a program of cmocka's


def inner_tests(output: str) -> dict[str, str]:
    """The tests within a program, by cmocka's lines: `[       OK ] test_x`."""
    outcomes = {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}
    found = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\w+)$", output, re.MULTILINE)
    return {test: outcomes[mark] for mark, test in found}


def of_meson(path: pathlib.Path, build: str) -> Iterator[Test]:
    """The lines of a testlog.json."""
    for line in path.read_text().splitlines():
        told = json.loads(line)
        suites, _, name = told["name"].rpartition(" / ")
        marks = set(suites.partition(":")[2].split("+"))
        output = (told.get("stdout") or "") + (told.get("stderr") or "")
        yield Test(
            name=f"{build}/{name}",
            outcome=MESON_OUTCOMES.get(told["result"], FAILED),
            seconds=told["duration"],
            output=output,
            marks=marks,
            code=told["returncode"] or 0,
            inner=inner_tests(output),
        )


def of_pytest(path: pathlib.Path, part: str) -> Iterator[Test]:
    """The lines that record.py has written. A test has several: setup, call, teardown."""
    tests: dict[str, Test] = {}
    for line in path.read_text().splitlines():
        told = json.loads(line)
        test = tests.setdefault(told["id"], Test(f"{part}/{told['id']}", PASSED, 0.0))
        test.seconds += told["seconds"]
        test.marks |= set(told["marks"])
        if told["outcome"] != PASSED:
            test.outcome = told["outcome"]
            test.output += told["text"]
    yield from tests.values()
