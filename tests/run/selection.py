# SPDX-License-Identifier: Apache-2.0
"""
A plugin of pytest: which tests the run of a commit takes. `python -m pytest -p selection`

A test that is marked `full` or stands in flaky.txt is left out. Of the cases of a parametrised test one in two is taken, or one in N
where it is marked `slices(N)`, and one at least: others with each commit, whose hash is CKPT_TEST_SLICE. With
CKPT_TEST_SMALLER=K one in K times N is taken, and one in K of the tests that are marked `waits`, but all of a file
that CKPT_TEST_CHANGED names. With CKPT_TEST_FULL, or without the plugin, everything runs.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from draw import number, smaller
from judge import is_left_out

#: One in so many cases, where no mark says another number.
SLICES = 2


def drawn(cases: Iterable[str], slices: int, draw: str) -> set[str]:
    """One in so many cases, one at least. Each case is in one of `slices` draws, on average."""

    def place(case: str) -> bytes:
        return hashlib.sha256(f"{draw} {case}".encode()).digest()

    ordered = sorted(cases, key=place)
    return set(ordered[: -(-len(ordered) // slices)])


def slices_of(item: pytest.Item) -> int:
    """The number in the nearest mark."""
    mark = item.get_closest_marker("slices")
    return int(mark.args[0]) if mark else SLICES


def is_for_later(item: pytest.Item) -> bool:
    """Whether the inner loop leaves a test to the run of the commit: most of those that wait, unless they changed."""
    if smaller() == 1 or item.get_closest_marker("waits") is None:
        return False
    file, _, case = item.nodeid.partition("::")
    name, _, _ = case.partition("[")
    changed = os.environ.get("CKPT_TEST_CHANGED", "").split("\n")
    return file not in changed and number(smaller(), f"{file} {name}") != 0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of a file in which no test waits none is wanted: its import by each worker is saved."""
    if config.option.markexpr == "waits" and collection_path.is_file():
        return not names_waits(collection_path) or None
    return None


@functools.cache
def names_waits(file: Path) -> bool:
    return "mark.waits" in file.read_text(encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what another run takes."""
    for item in items:
        if item.get_closest_marker("waits") is not None and not names_waits(item.path):
            raise pytest.UsageError(f"{item.nodeid} has the mark `waits`, and its file does not name it")
    if os.environ.get("CKPT_TEST_FULL"):
        return
    draw = os.environ.get("CKPT_TEST_SLICE", "")
    part = os.environ.get("CKPT_TEST_PART", "")
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        full = item.get_closest_marker("full") is not None
        if not full and not is_for_later(item) and not is_left_out(f"{part}/{item.nodeid}"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[str] = set()
    for of_one in cases.values():
        kept |= drawn((item.nodeid for item in of_one), slices_of(of_one[0]) * smaller(), draw)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
