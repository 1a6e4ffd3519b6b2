# SPDX-License-Identifier: Apache-2.0
"""
Runs steps in three lanes, each one step after the other: tests that compute; beside them tests that mostly wait; and
what compiles, ahead of the tests.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from family import Family
from results import Test

CPU, WAIT, BUILD = "cpu", "wait", "build"
LONGEST = 300  # of a command that is shown
HANGS = 3600  # seconds, of a command; a test within one has a limit of its own
DIES = 10  # seconds, from SIGTERM to SIGKILL
NICE = 5  # of what computes or compiles: a test that waits is woken at once


class StepError(Exception):
    """A command of a step has failed in a way that no test tells."""


@dataclass
class Step:
    """`run` appends tests to the list that it is given, or raises StepError."""

    part: str
    lane: str
    run: Callable[[Lane, list[Test]], None]
    makes: str = ""  # what others may need
    needs: str = ""  # words


@dataclass
class Part:
    """What came of a part, over all of its steps."""

    outcome: str = "passed"
    began: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tests: list[Test] = field(default_factory=list)
    left: int = 0  # steps


class Run:
    """All steps, and what came of them."""

    def __init__(self, steps: Sequence[Step], logs: pathlib.Path) -> None:
        self.logs = logs
        self.steps = list(steps)
        self.parts: dict[str, Part] = {}
        for step in self.steps:
            self.parts.setdefault(step.part, Part()).left += 1
        self.made = {step.makes: threading.Event() for step in self.steps if step.makes}
        self.missing: set[str] = set()
        self.lock = threading.Lock()
        self.groups: set[int] = set()  # of processes, of the commands that run
        self.stopped = False

    def stop(self) -> None:
        """Ends what runs, and begins nothing more."""
        with self.lock:
            self.stopped = True
            for group in self.groups:
                kill_group(group, signal.SIGTERM)
        for event in self.made.values():
            event.set()

    def go(self, ended: Callable[[str, Part], None]) -> None:
        """
        Returns when every step has ended. `ended` is told of each part. When a signal raises something here, no
        process stays that this has started.
        """
        lanes = [Lane(self, lane, ended) for lane in (CPU, WAIT, BUILD)]
        threads = [threading.Thread(target=lane.go) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            left = Family(os.getpid())
            self.stop()
            left.kill_after(DIES)
            raise


class Lane:
    """One lane of a run, on a thread of its own."""

    def __init__(self, run: Run, lane: str, ended: Callable[[str, Part], None]) -> None:
        self.run = run
        self.lane = lane
        self.ended = ended
        self.part = ""
        self.cpu_seconds = 0.0

    def go(self) -> None:
        for step in self.run.steps:
            if step.lane == self.lane and not self.run.stopped:
                self.step(step)

    def step(self, step: Step) -> None:
        self.part = step.part
        self.cpu_seconds = 0.0
        tests: list[Test] = []
        failure = ""
        needs = step.needs.split()
        for need in needs:
            self.run.made[need].wait()
        began = time.monotonic()
        missing = [need for need in needs if need in self.run.missing]
        if missing:
            failure = f"there is no {' '.join(missing)}"
        else:
            try:
                step.run(self, tests)
            except StepError as error:
                failure = str(error)
        self.settle(step, began, tests, failure)

    def settle(self, step: Step, began: float, tests: list[Test], failure: str) -> None:
        with self.run.lock:
            if failure:
                with self.log_path().open("a") as log:
                    log.write(f"{failure}\n")
            if step.makes:
                if failure:
                    self.run.missing.add(step.makes)
                self.run.made[step.makes].set()
            part = self.run.parts[step.part]
            part.began = part.began or began
            part.seconds = time.monotonic() - part.began
            part.cpu_seconds += self.cpu_seconds
            part.tests += tests
            part.left -= 1
            if failure:
                part.outcome = "failed"
            if part.left == 0:
                self.ended(step.part, part)

    def log_path(self) -> pathlib.Path:
        return self.run.logs / f"{self.part}.{self.lane}.log"

    def command(self, words: Sequence[object], environment: dict[str, str] | None = None) -> int:
        """Runs a command to its end, its output in the part's log. Returns its exit code."""
        if self.run.stopped:
            raise StepError(f"stopped before {in_short(words)}")
        with self.log_path().open("ab") as log:
            log.write(f"$ {in_short(words)}\n".encode())
            log.flush()
            child = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=(lambda: os.nice(NICE) and None) if self.lane != WAIT else None,
            )
            return self.wait(child, words)

    def wait(self, child: subprocess.Popen[bytes], words: Sequence[object]) -> int:
        """Waits for the end of a command, and for HANGS seconds at most. Returns its exit code."""
        hung, ended = threading.Event(), threading.Event()

        def kill() -> None:
            hung.set()
            kill_group(child.pid, signal.SIGTERM)
            ended.wait(DIES)
            kill_group(child.pid, signal.SIGKILL)

        limit = threading.Timer(HANGS, kill)
        with self.run.lock:
            self.run.groups.add(child.pid)
            if self.run.stopped:
                kill_group(child.pid, signal.SIGTERM)
        limit.start()
        _, status, usage = os.wait4(child.pid, 0)
        ended.set()
        limit.cancel()
        with self.run.lock:
            self.run.groups.remove(child.pid)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_seconds += usage.ru_utime + usage.ru_stime
        if hung.is_set():
            raise StepError(f"no end after {HANGS} s: {in_short(words)}")
        return child.returncode

    def must(self, words: Sequence[object], environment: dict[str, str] | None = None) -> None:
        """As command(), and the step has failed when that does."""
        code = self.command(words, environment)
        if code:
            raise StepError(f"exit code {code}: {in_short(words)}")


def kill_group(group: int, number: signal.Signals) -> None:
    """Sends a signal to a group of processes, where there still is one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def in_short(words: Sequence[object]) -> str:
    """A command as people want to see it: some have the names of a thousand files."""
    line = " ".join(map(str, words))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
