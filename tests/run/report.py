# SPDX-License-Identifier: Apache-2.0
"""What a run says at its end, and last.json."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import dataclass, field
from typing import Any

from lanes import Part
from results import FAILED, HUNG, PASSED, SKIPPED, Test

SLOWEST = 20


@dataclass
class Verdict:
    """What came of a whole run."""

    commit: str
    slice: str
    full: bool
    seconds: float
    parts: dict[str, Part]
    failed: list[str] = field(default_factory=list)
    flaky: list[Test] = field(default_factory=list)  # failed, and passed alone

    def tests(self) -> list[Test]:
        return [test for part in self.parts.values() for test in part.tests]


def counts(verdict: Verdict) -> dict[str, int]:
    """Tests by their outcome; a program counts as the tests within it."""
    count = {PASSED: 0, FAILED: 0, SKIPPED: 0}
    for test in verdict.tests():
        for outcome in test.inner.values() or [test.outcome]:
            count[FAILED if outcome == HUNG else outcome] += 1
    return count


def summary(verdict: Verdict) -> dict[str, Any]:
    """As last.json has it."""
    slowest = sorted(verdict.tests(), key=lambda test: -test.seconds)[:SLOWEST]
    return {
        "commit": verdict.commit,
        "slice": verdict.slice,
        "full": verdict.full,
        "outcome": "failed" if verdict.failed else "passed",
        "seconds": round(verdict.seconds, 1),
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[2], 2),
        "tests": counts(verdict),
        "failed": verdict.failed,
        "flaky": [{"name": test.name, "output": test.output[-4000:]} for test in verdict.flaky],
        "parts": {
            name: {
                "outcome": part.outcome,
                "seconds": round(part.seconds, 1),
                "cpu_seconds": round(part.cpu_seconds, 1),
            }
            for name, part in verdict.parts.items()
        },
        "slowest": [{"name": t.name, "seconds": round(t.seconds, 1)} for t in slowest],
    }


def write(verdict: Verdict, path: pathlib.Path) -> str:
    """Writes last.json. Returns the line that says it in short."""
    told = summary(verdict)
    path.write_text(json.dumps(told, indent=1) + "\n")
    count = ", ".join(f"{n} {outcome}" for outcome, n in told["tests"].items())
    flaky = f", {len(verdict.flaky)} flaky" if verdict.flaky else ""
    kind = " --full" if verdict.full else ""
    return (
        f"{told['outcome']}{kind}: {count}{flaky}, {verdict.seconds:.0f} s, {verdict.commit[:12]}"
    )
