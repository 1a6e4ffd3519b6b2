# SPDX-License-Identifier: Apache-2.0
"""The processes that one has started, and that those have started: a signal to a run ends all of them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import time


class Family:
    """Those of a process that run now. Each is held by a descriptor, so that its number cannot become another's."""

    def __init__(self, pid: int) -> None:
        self.files: list[int] = []
        for one in descendants(pid):
            with contextlib.suppress(ProcessLookupError):
                self.files.append(os.pidfd_open(one))

    def kill_after(self, seconds: float) -> None:
        """Waits until they have ended, and so long at most. Then it ends those that are left."""
        limit = time.monotonic() + seconds
        while self.files:
            ended = select.select(self.files, [], [], max(0.0, limit - time.monotonic()))[0]
            if not ended:
                break
            for file in ended:
                os.close(file)
                self.files.remove(file)
        for file in self.files:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
            os.close(file)
        self.files.clear()


def descendants(pid: int) -> list[int]:
    """What a process has started and that still runs, and what that has."""
    children: dict[int, list[int]] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # NUMBER (NAME) STATE PARENT: there may be anything in the name.
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(words[1]), []).append(int(folder.name))
    found: list[int] = []
    left = [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found
