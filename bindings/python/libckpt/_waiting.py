# SPDX-License-Identifier: Apache-2.0
"""Waits that Ctrl-C can interrupt."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Longest time that a C call may delay a KeyboardInterrupt, in milliseconds.
SLICE_MS = 100


def wait_sliced(
    call: Callable[[int], int],
    timeout: float | None,
    tick: Callable[[], None] | None = None,
    over: Callable[[], object] | None = None,
) -> int:
    """
    Repeats `call(milliseconds)` until it returns something other than -ETIMEDOUT, or `timeout`
    seconds have passed, or `over` returns something true: what is waited for may itself have failed
    with -ETIMEDOUT. Between the calls Python handles signals, and `tick` is called.
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


#: Seconds between two calls of `look`, while a call waits for other ranks.
_LOOK = 0.3

#: Seconds in which the call itself may return after that.
_LEAVE = 2.0


def aside(
    call: Callable[[], _T],
    undo: Callable[[_T | None], object],
    keep: Callable[[_T], object] | None = None,
    look: Callable[[], BaseException | None] | None = None,
) -> _T:
    """
    Makes a call that may take long on another thread, and returns its result. Ctrl-C, or another
    exception of a signal handler, is raised without waiting for the call. So is the exception that
    `look`, which is called repeatedly, returns, if the call does not end soon after. `undo` gets
    the result of an abandoned call when it ends; or None if the call has not begun, and then it
    never begins. `keep` gets the result before any interrupt can come. If `undo` is called after
    that, it must reverse `keep`, too.
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
    Calls `is_over` at least every `most` seconds until it returns True. Raises `late()` at the time
    `end` of time.monotonic(); None: never. `pause` waits in between, in slices, so that Ctrl-C
    works.
    """
    while not is_over():
        left = most if end is None else end - time.monotonic()
        if left <= 0:
            raise late()
        pause(min(most, left))
