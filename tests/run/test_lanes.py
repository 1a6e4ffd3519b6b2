# SPDX-License-Identifier: Apache-2.0
"""A step that fails or hangs fails its part and what needs it, and holds up nothing else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import lanes
import pytest
from lanes import BUILD, CPU, WAIT, Lane, Run, Step, StepError
from results import Test


def test_a_step_that_fails_fails_what_needs_it(tmp_path: Path) -> None:
    ran = []

    def fail(lane: Lane, _: list[Test]) -> None:
        raise StepError("no compiler")

    def note(lane: Lane, _: list[Test]) -> None:
        ran.append(lane.part)

    steps = [
        Step("a", CPU, fail, makes="build"),
        Step("b", WAIT, note, needs="build"),
        Step("c", CPU, note),
    ]
    run = Run(steps, tmp_path)
    told: list[str] = []
    run.go(lambda name, part: told.append(name))
    assert ran == ["c"]
    assert {name: part.outcome for name, part in run.parts.items()} == {
        "a": "failed",
        "b": "failed",
        "c": "passed",
    }
    assert sorted(told) == ["a", "b", "c"]


def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "HANGS", 1)
    monkeypatch.setattr(lanes, "DIES", 0)
    reader, writer = os.pipe()  # ends when nobody has it any more
    program = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    program += "; os.fork(); signal.pause()"
    popen = functools.partial(subprocess.Popen, pass_fds=[writer])
    monkeypatch.setattr(lanes.subprocess, "Popen", popen)
    ran = []

    def hang(lane: Lane, _: list[Test]) -> None:
        lane.must([sys.executable, "-c", program])

    run = Run([Step("a", CPU, hang), Step("b", CPU, lambda lane, _: ran.append(lane.part))], tmp_path)
    run.go(lambda name, part: None)
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert run.parts["a"].outcome == "failed"
    assert "no end after 1 s" in (tmp_path / "a.cpu.log").read_text()
    assert ran == ["b"]


def test_a_run_that_is_stopped_ends_what_runs(tmp_path: Path) -> None:
    ran = []

    def interrupt(lane: Lane, _: list[Test]) -> None:
        lane.run.stop()

    steps = [
        Step("a", CPU, lambda lane, _: lane.must(["sleep", "1000"])),
        Step("c", CPU, lambda lane, _: ran.append(lane.part)),
        Step("b", WAIT, interrupt),
    ]
    Run(steps, tmp_path).go(lambda name, part: None)
    assert not ran


def test_what_waits_is_woken_before_what_computes_or_compiles(tmp_path: Path) -> None:
    def tell(lane: Lane, _: list[Test]) -> None:
        lane.must([sys.executable, "-c", "import os; print(os.nice(0))"])

    lanes = (BUILD, CPU, WAIT)
    Run([Step(lane, lane, tell) for lane in lanes], tmp_path).go(lambda name, part: None)
    told = [int((tmp_path / f"{lane}.{lane}.log").read_text().split()[-1]) for lane in lanes]
    assert told[0] == told[1] > told[2]


def test_what_compiles_runs_beside_tests(tmp_path: Path) -> None:
    """Each waits for the other to have begun."""
    begun = {lane: threading.Event() for lane in (BUILD, CPU, WAIT)}

    def meet(lane: Lane, _: list[Test]) -> None:
        begun[lane.lane].set()
        if not all(event.wait(60) for event in begun.values()):
            raise StepError("hang limit: 60 s waited for another lane")

    run = Run([Step(lane, lane, meet) for lane in begun], tmp_path)
    run.go(lambda name, part: None)
    assert {part.outcome for part in run.parts.values()} == {"passed"}
