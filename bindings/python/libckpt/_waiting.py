# SPDX-License-Identifier: Apache-2.0
"""Waiting that lets Ctrl-C through."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Longest that a C call may hold off a KeyboardInterrupt, in milliseconds.
SLICE_MS = 100


def wait_sliced(
    call: Callable[[int], int],
    timeout: float | None,
    tick: Callable[[], None] | None = None,
    over: Callable[[], object] | None = None,
) -> int:
    """
    Calls `call(milliseconds)` again and again until it no longer answers -ETIMEDOUT, or `timeout`
    seconds have passed, or `over` says that waiting is no use: what is waited for may itself have
    failed with -ETIMEDOUT. Between the calls Python handles signals, and `tick` is called.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE_MS if end is None else math.ceil((end - time.monotonic()) * 1000)
        code = call(max(0, min(SLICE_MS, left)))
        if code != -errno.ETIMEDOUT:
            return code
        if over is not None and over():
            return code
        if tick is not None:
            tick()
        if end is not None and time.monotonic() >= end:
            return code


#: Seconds between looks at what others say, while a call waits for them.
_LOOK = 0.3

#: Seconds in which a call itself may come to what they have said.
_LEAVE = 2.0


def aside(
    call: Callable[[], _T],
    undo: Callable[[_T | None], object],
    keep: Callable[[_T], object] | None = None,
    look: Callable[[], BaseException | None] | None = None,
) -> _T:
    """
    What a call that may wait for long gives. Ctrl-C, or what another signal handler raises, does
    not wait for it, and neither does what `look` gives, which is asked now and then, if the call
    does not end soon after: when it comes to its end then, what it gives is undone; None is, if it
    has not begun, and then it never does. `keep` has what it gives before anything can come in
    between; what is undone after that it must give back.
    """
    found: list[_T] = []
    failed: list[BaseException] = []
    begun: list[bool] = []
    over: list[bool] = []
    given_up: list[bool] = []
    lock, done = threading.Lock(), threading.Lock()

    def run() -> None:
        with lock:
            if given_up:
                return
            begun.append(True)
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)
        with lock:
            over.append(True)
            late = bool(given_up)
            if found and not late and keep is not None:
                keep(found[0])
        done.release()
        if late and found:
            undo(found[0])

    done.acquire()
    try:
        threading.Thread(target=run, name="libckpt-open", daemon=True).start()
        _await(done, look)
    except BaseException:
        with lock:
            given_up.append(True)
            late = bool(over)
        if not begun:
            undo(None)
        elif late and found:
            undo(found[0])
        raise
    if failed:
        raise failed[0]
    return found[0]


def _await(done: threading.Lock, look: Callable[[], BaseException | None] | None) -> None:
    why: BaseException | None = None
    leaves = 0.0
    while not done.acquire(timeout=-1 if look is None else _LOOK):
        if why is not None and time.monotonic() >= leaves:
            raise why
        if why is None and look is not None:
            why, leaves = look(), time.monotonic() + _LEAVE


def wait_until(
    is_over: Callable[[], bool],
    end: float | None,
    late: Callable[[], Exception],
    *,
    most: float,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """
    Asks `is_over` again and again, at least every `most` seconds, until it says so. Raises `late()`
    at the time `end` of time.monotonic(); None: never. `pause` waits between, in slices, so that
    Ctrl-C gets through.
    """
    while not is_over():
        left = most if end is None else end - time.monotonic()
        if left <= 0:
            raise late()
        pause(min(most, left))
