# SPDX-License-Identifier: Apache-2.0
"""Which cases the run of a commit takes: some of each, and all of them in time."""

from __future__ import annotations

import pytest
from sample import some
from selection import drawn


@pytest.mark.parametrize(("count", "slices"), [(1, 4), (3, 4), (7, 2), (7, 7), (40, 4)])
def test_cases_take_turns(count: int, slices: int) -> None:
    cases = {f"test_x[{n}]" for n in range(count)}
    taken = [drawn(sorted(cases), slices, f"{draw:x}") for draw in range(200)]
    assert {len(found) for found in taken} == {-(-count // slices)}
    assert set().union(*taken) == cases
    assert drawn(sorted(cases, reverse=True), slices, "0") == taken[0]


def test_loops_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(20))
    monkeypatch.delenv("CKPT_TEST_FULL", raising=False)
    monkeypatch.delenv("CKPT_TEST_SLICE", raising=False)
    assert some(numbers, 3) == numbers
    taken = set()
    for draw in range(50):
        monkeypatch.setenv("CKPT_TEST_SLICE", f"any text {draw}")
        taken.add(tuple(some(numbers, 3)))
    assert sorted(number for part in taken for number in part) == numbers
    assert len(taken) == 3
    monkeypatch.setenv("CKPT_TEST_FULL", "1")
    assert some(numbers, 3) == numbers
