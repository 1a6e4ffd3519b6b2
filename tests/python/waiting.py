# SPDX-License-Identifier: Apache-2.0
"""
How tests wait. A machine may be slow and busy, and no test is about how much: whatever has to come
has the same long time to do so, and after that it hangs.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

#: seconds
LIMIT = 300.0


class HangLimit(AssertionError):
    """What was waited for did not come."""

    def __init__(self, what: str) -> None:
        super().__init__(f"hang limit: {LIMIT:.0f} s waited for {what}")


def until(true: Callable[[], Any], what: str = "") -> None:
    """Returns when a condition has come about."""
    begun = time.monotonic()
    while not true():
        waited = time.monotonic() - begun
        if waited > LIMIT:
            code = getattr(true, "__code__", None)
            where = f"{code.co_filename}:{code.co_firstlineno}" if code else repr(true)
            raise HangLimit(what or f"the condition of {where}")
        # What takes long is looked at less often.
        time.sleep(min(0.001 + waited / 50, 0.05))


def result_of(future: Any) -> Any:
    """What comes of something that runs beside."""
    until(future.done, "a future")
    return future.result()


def remotely(save: Any) -> None:
    """A save is in the remote store, or raises why not."""
    until(lambda: save.done("remote"), f"step {save.step} to be in the remote store")
    save.wait("remote")


def ended(process: subprocess.Popen[Any]) -> tuple[Any, Any]:
    """What a process has written, which has ended."""
    try:
        return process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise HangLimit(f"the end of {process.args}, which wrote {out!r} and {err!r}") from None


def finished(command: list[Any], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a command to its end; what it has written is text, unless it goes elsewhere."""
    for stream in ("stdout", "stderr"):
        options.setdefault(stream, subprocess.PIPE)
    options.setdefault("text", True)
    with subprocess.Popen([str(word) for word in command], **options) as process:
        out, err = ended(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
