# SPDX-License-Identifier: Apache-2.0
"""What a failure is: of the product, or bad luck that is tried once more; and what may be skipped."""

from __future__ import annotations

import datetime
import fnmatch
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

from results import FAILED, HUNG, SKIPPED, Test

HERE = pathlib.Path(__file__).resolve().parents[1]
NOT_ROOT = "(not root) "  # such a reason counts for other users only
MOST_FLAKY = 3
FLAKY_DAYS = 7

# The limit that tests have against hanging says so (tests/lib/hang.h, tests/python/waiting.py).
HANG_LIMIT = "hang limit: "
SHORTAGE = re.compile(
    r"Address already in use|Cannot allocate memory|No space left on device|MemoryError"
    r"|Cannot assign requested address|Resource temporarily unavailable: fork"
)
# A finding of a sanitizer or of an oracle, a crash.
FINDING = re.compile(
    r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehavior|runtime error: "
    r"|assertion failed|Assertion .* failed|VIOLATED|violation|Segmentation fault|core dumped"
    r"|repeat with: |repeat: "
)


def is_bad_luck(test: Test) -> bool:
    """Whether a test that failed may run once more, alone. In doubt it may not."""
    if test.outcome not in (FAILED, HUNG) or FINDING.search(test.output):
        return False
    if test.outcome == HUNG:
        return True
    # A signal is a crash, unless it is how the limit against hanging ends the program (tests/lib/hang.h).
    aborted = test.code in (-signal.SIGABRT, 128 + signal.SIGABRT)
    if (test.code < 0 or test.code >= 128) and not (aborted and HANG_LIMIT in test.output):
        return False
    if "no_oracle" in test.marks:
        return True
    excuses = test.output.count(HANG_LIMIT) + len(SHORTAGE.findall(test.output))
    return excuses > 0 and excuses >= list(test.inner.values()).count(FAILED)


def skip_patterns() -> Iterator[str]:
    """Of skips.txt: lines "PATTERN REASON" that count for this user."""
    path = HERE / "skips.txt"
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(" ")
            if not reason.strip():
                sys.exit(f"{path}: {pattern} has no reason")
            if not reason.startswith(NOT_ROOT) or os.geteuid() != 0:
                yield pattern


def skipped(test: Test) -> list[str]:
    """Names of what was skipped, of the test or within it."""
    inner = [f"{test.name}/{name}" for name, outcome in test.inner.items() if outcome == SKIPPED]
    return inner or ([test.name] if test.outcome == SKIPPED else [])


def skips_without_reason(tests: list[Test]) -> list[str]:
    """Names of tests that were skipped, and may not be."""
    patterns = list(skip_patterns())
    return [
        name
        for test in tests
        for name in skipped(test)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def flaky_names(text: str, today: datetime.date) -> list[str]:
    """Of flaky.txt: lines "DATE NAME CAUSE". Too many, or one that is too old, is an error."""
    names = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        date, name, *cause = line.split(maxsplit=2)
        age = today - datetime.date.fromisoformat(date)
        if age.days > FLAKY_DAYS:
            raise ValueError(f"{name} is flaky for {age.days} days: mend it")
        if not cause:
            raise ValueError(f"{name} has no cause")
        names.append(name)
    if len(names) > MOST_FLAKY:
        raise ValueError(f"{len(names)} tests are flaky, and {MOST_FLAKY} may be: mend them")
    return names


def flaky() -> list[str]:
    """Tests that run with --full alone, because they fail without a cause that is known."""
    path = HERE / "flaky.txt"
    try:
        return flaky_names(path.read_text(), datetime.datetime.now(datetime.timezone.utc).date())
    except ValueError as error:
        sys.exit(f"{path}: {error}")


def is_left_out(name: str) -> bool:
    """Whether a line of flaky.txt names this test: as it is printed, or by a pattern."""
    return any(name == line or fnmatch.fnmatchcase(name, line) for line in flaky())
