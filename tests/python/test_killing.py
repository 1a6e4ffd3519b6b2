# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed at random moments: the short form of killing.py, and what it looks for."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from killing import Line, Logs, Truth, kill, run


@pytest.mark.waits
def test_a_rank_is_killed_again_and_again(tmp_path: Path) -> None:
    assert run(tmp_path, world=2, kills=3, seed=7) == (3, [])


def test_a_rank_that_closes_files_meanwhile_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = iter([True])
    readlink = os.readlink

    def read(link: Path) -> str:
        if next(closed, False):
            raise FileNotFoundError(link)
        return readlink(link)

    with (tmp_path / "log-0").open("wb") as log:
        rank = subprocess.Popen(["sleep", "600"], stdout=log)
    monkeypatch.setattr(os, "readlink", read)
    assert kill(rank.pid, tmp_path)
    assert rank.wait() == -signal.SIGKILL


GOOD = [
    Line(0, 0, "begins", 0, "100"),
    Line(1, 0, "begins", 0, "101"),
    Line(0, 0, "at", 1, "aa"),
    Line(1, 0, "at", 1, "ab"),
    Line(0, 0, "at", 2, "ba"),
    Line(1, 0, "at", 2, "bb"),
    Line(1, 0, "has", 1, "-"),
    Line(0, 1, "begins", 0, "102"),
    Line(1, 1, "begins", 0, "103"),
]


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ([Line(0, 1, "resumed", 1, "aa"), Line(1, 1, "resumed", 1, "ab")], None),
        ([Line(0, 1, "resumed", 2, "ba"), Line(1, 1, "resumed", 2, "bb")], None),
        ([Line(0, 1, "resumed", 2, "ba"), Line(1, 1, "resumed", 1, "ab")], "have resumed"),
        ([Line(0, 1, "resumed", 0, "00")], "was durable"),
        ([Line(0, 1, "resumed", 2, "aa")], "had saved ba"),
        ([Line(0, 1, "at", 2, "bc")], "was ba before"),
    ],
)
def test_what_does_not_hold_is_said(said: list[Line], wrong: str | None) -> None:
    truth = Truth()
    for line in [*GOOD, *said]:
        truth.take(line)
    assert [wrong in found for found in truth.wrong] == [True] if wrong else not truth.wrong


def test_half_a_line_is_no_line(tmp_path: Path) -> None:
    logs, path = Logs(tmp_path, 1), tmp_path / "log-0"
    path.write_text("0 begins 0 17\n0 resum")
    assert [line.word for line in logs.new()] == ["begins"]
    with path.open("a") as more:
        more.write("ed 5 ab\n")
    assert list(logs.new()) == [Line(0, 0, "resumed", 5, "ab")]
