# SPDX-License-Identifier: Apache-2.0
"""
Preemption: after a signal the job saves a last time, at a step that all ranks agree on.

The handler only notes the signal. The ranks exchange it at step boundaries, by an all-reduce that
began one step before, so that no rank waits for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from types import FrameType
from typing import Any

from ._log import logger

__all__ = ["EXIT_CODE", "Preempted", "Preemption", "make_group", "signals_of"]

#: The exit code that a shell reports for a program that SIGTERM has ended.
EXIT_CODE = 128 + signal.SIGTERM


class Preempted(SystemExit):
    """
    The job was preempted: it has got one of the signals of `preempt`. `step` is the last step, and
    `saved` says whether it is durable. Raised by Checkpointer.step(). If nothing catches it, the
    program exits with code 143.
    """

    def __init__(self, message: str, step: int, saved: bool) -> None:
        super().__init__(EXIT_CODE)
        self.message = message
        self.step = step
        self.saved = saved

    def __str__(self) -> str:
        return self.message


def signals_of(preempt: bool | Iterable[signal.Signals | int]) -> tuple[signal.Signals, ...]:
    """The signals of the argument `preempt`; none for False."""
    if isinstance(preempt, bool):
        preempt = (signal.SIGTERM,) if preempt else ()
    chosen = tuple(signal.Signals(number) for number in preempt)
    for refused in (signal.SIGKILL, signal.SIGSTOP):
        if refused in chosen:
            raise ValueError(f"preempt: {refused.name} cannot be caught")
    if chosen and threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "preempt: only the main thread can install a signal handler: open the Checkpointer "
            "there, or leave preempt out"
        )
    return chosen


def make_group(timeout: float) -> Any:
    """Makes a process group of all ranks for the flag. All ranks must call this."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))


class Preemption:
    """
    Handles the signals for one Checkpointer. Made and used by the main thread. `group`: a separate
    process group for small CPU tensors, if there are other ranks.
    """

    def __init__(
        self, signals: tuple[signal.Signals, ...], grace: float, group: Any = None
    ) -> None:
        self._grace = grace
        self._group = group
        self._pid = os.getpid()
        self._removed = False
        self._until: float | None = None
        self._flag: Any = None
        self._work: Any = None
        self._handler = self._note  # one object, for the comparison in remove()
        self._before = {number: signal.signal(number, self._handler) for number in signals}

    def _note(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(signal.Signals(number))
        if self._removed or os.getpid() != self._pid:
            # A forked worker has nothing to save: the signal has its former effect.
            if not callable(before):
                signal.signal(number, before if before is not None else signal.SIG_DFL)
                os.kill(os.getpid(), number)
        elif self._until is None:
            self._until = time.monotonic() + self._grace
        if callable(before):
            before(number, frame)

    def agreed(self) -> bool:
        """
        True if some rank had got the signal at its previous call. Then all ranks get True. Every
        rank calls this at every step.
        """
        if self._group is None:
            return self._until is not None
        import torch
        import torch.distributed as dist

        told = False
        try:
            if self._work is not None:
                self._work.wait()
                told = bool(self._flag.item())
            if not told:
                self._flag = torch.tensor([self._until is not None], dtype=torch.int32)
                self._work = dist.all_reduce(
                    self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True
                )
        except RuntimeError as error:
            logger.warning(
                "from now on a signal preempts only the rank that gets it, because the ranks "
                "cannot exchange it: %s",
                error,
            )
            self._part()
            return self._until is not None
        if told and self._until is None:
            self._until = time.monotonic() + self._grace
        return told

    def _part(self) -> None:
        """Leaves the group, so that ranks that wait for this one get an error at once."""
        import torch.distributed as dist

        group, self._group, self._work = self._group, None, None
        try:
            dist.destroy_process_group(group)
        except (RuntimeError, ValueError, AssertionError) as error:
            logger.debug("a process group that has failed cannot be destroyed: %s", error)

    def left(self) -> float:
        """Seconds until the process must have ended."""
        if self._until is None:
            return self._grace
        return max(0.0, self._until - time.monotonic())

    def remove(self) -> None:
        """Restores the former handlers, unless the program has installed others since."""
        if threading.current_thread() is threading.main_thread() and os.getpid() == self._pid:
            for number, before in self._before.items():
                if signal.getsignal(number) is self._handler:
                    signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._removed = True
