# SPDX-License-Identifier: Apache-2.0
"""What the tests of the rehearsal behind the loop share."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from libckpt._turn import turn_file
from waiting import until

import libckpt
from libckpt import _rehearsal, _slices


@contextmanager
def turn_taken(store: Path) -> Iterator[None]:
    """Somebody else on this node has the turn: nothing is read."""
    with open(turn_file(str(store)), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        os.unlink(file.name)


@contextmanager
def held() -> Iterator[None]:
    """The step is opened, and nothing is read of it."""
    goes_on = threading.Event()
    read = _slices.Slices.read

    def late(*args: Any) -> None:
        goes_on.wait()
        read(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_slices.Slices, "read", late)
        try:
            yield
        finally:
            goes_on.set()


def rehearsing() -> bool:
    return any(thread.name == "libckpt-rehearsal" for thread in threading.enumerate())


def opens(ckpt: libckpt.Checkpointer) -> None:
    """Returns when the step is open to the rehearsal, which has not been compared."""
    rehearsal = ckpt._core.rehearsal
    assert rehearsal is not None
    ckpt.step(5)
    attempt = rehearsal._attempt
    assert attempt is not None
    until(lambda: attempt.plan is not None, "the step to be opened")


def go_on(ckpt: libckpt.Checkpointer) -> list[str]:
    """Calls step() until the rehearsal is over; the warnings."""
    rehearsal = ckpt._core.rehearsal
    assert rehearsal is not None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")

        def over() -> bool:
            ckpt.step(5)
            return rehearsal.over

        until(over, "the rehearsal to be over")
    assert all(issubclass(one.category, libckpt.CheckpointWarning) for one in seen)
    assert all(one.filename == __file__ for one in seen), [one.filename for one in seen]
    return [str(one.message) for one in seen]


def said_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what the log has of it."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.getMessage().startswith("rehearsal:")
    ]


@pytest.fixture
def all_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing waits longer than it must."""
    caplog.set_level(logging.INFO, "libckpt")
    monkeypatch.setattr(_rehearsal, "_RETENTION", 0.0)
    monkeypatch.setattr(_rehearsal, "_ONCE_MORE", 0.0)
    monkeypatch.setattr(_rehearsal, "memory_left", lambda: 1 << 40)
