# SPDX-License-Identifier: Apache-2.0
"""CallGuard: counts calls into a C engine. The engine is closed when no call is running."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Any


class Helper(threading.Thread):
    """
    A thread that engines need until they are closed. Calls that close or wait for an engine must
    not run on it, though a finalizer may run on any thread: see apart().
    """


def apart(call: Callable[[], object]) -> None:
    """Makes a call. On a Helper, another thread makes it, and nothing waits for it."""
    if isinstance(threading.current_thread(), Helper):
        threading.Thread(target=call, name="libckpt-end", daemon=False).start()
    else:
        call()


class _State(enum.Enum):
    OPEN = enum.auto()
    #: a thread waits for running calls, to close it
    CLOSING = enum.auto()
    #: the closing thread has stopped waiting: the last call to return closes it
    LEFT = enum.auto()
    ENDING = enum.auto()
    ENDED = enum.auto()


class CallGuard:
    """
    All calls into an engine are made by it, from any thread. A signal handler or a finalizer may
    run at any time, also on a thread that is in a call or closes. No thread waits for itself.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._state = _State.OPEN
        # Acquired and released in C, so no interrupt comes between.
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        #: the thread of each running call
        self._inside: dict[object, int] = {}
        self._closer = 0
        #: calls that came while it was closing, to be made after that
        self._late: list[Callable[[], object]] = []

    @property
    def is_open(self) -> bool:
        """True if calls of the engine may be made."""
        return self._state is _State.OPEN

    def work(self, call: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """Makes a call that needs the open engine. False: it is closed, and no call was made."""
        token = object()
        try:
            with self._lock:
                if not self.is_open:
                    return False, None
                self._inside[token] = threading.get_ident()
            return True, call(*args)
        finally:
            self._leave(token)

    def ask(self, call: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """
        Makes a call that only needs a handle, which can be used after the engine was closed, too.
        False: no call was made, because it would wait for the closing, which waits for this thread.
        """
        me, token = threading.get_ident(), object()
        try:
            with self._lock:
                while self._is_shut_for(me):
                    if isinstance(threading.current_thread(), Helper):
                        return False, None
                    self._turn.wait()
                self._count(me, token)
            return True, call(*args)
        finally:
            self._leave(token)

    def release(self, call: Callable[..., Any], *args: Any) -> None:
        """Makes a call that frees a handle: now, or after the closing. Does not wait."""
        me, token = threading.get_ident(), object()
        try:
            with self._lock:
                if self._is_shut_for(me):
                    self._late.append(lambda: call(*args))
                    return
                self._count(me, token)
            call(*args)
        finally:
            self._leave(token)

    def _count(self, thread: int, token: object) -> None:
        """Counts a call of ask(), unless this thread closes, or the engine is closed."""
        if self._state in (_State.OPEN, _State.LEFT) or thread in self._inside.values():
            self._inside[token] = thread

    def _is_shut_for(self, thread: int) -> bool:
        return (
            self._state in (_State.CLOSING, _State.ENDING)
            and thread != self._closer
            and thread not in self._inside.values()
        )

    def close(self, patience: float) -> bool:
        """
        Lets no more calls in, and closes the engine when no call is running: True. False: a call is
        still running after the timeout, and the last one to return closes it.
        """
        me, ended = threading.get_ident(), False
        try:
            with self._lock:
                if self._state is _State.OPEN:
                    self._state = _State.CLOSING
                    self._closer = me
                    self._await_others(me, patience)
                else:
                    helper = isinstance(threading.current_thread(), Helper)
                    while self._is_shut_for(me) and not helper:
                        self._turn.wait()
        finally:
            ended = self._end_if_empty(me)
        return ended

    def _await_others(self, me: int, patience: float) -> None:
        end = time.monotonic() + patience
        while any(thread != me for thread in self._inside.values()):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._turn.wait(left)

    def _leave(self, token: object) -> None:
        with self._lock:
            if self._inside.pop(token, None) is None:
                return
            self._turn.notify_all()
            last = self._state is _State.LEFT and not self._inside
        if last:
            apart(lambda: self._end_if_empty(threading.get_ident()))

    def _end_if_empty(self, me: int) -> bool:
        """Closes the engine if this thread must do it. True if it is closed."""
        with self._lock:
            if self._state is _State.CLOSING and self._closer == me:
                self._state = _State.LEFT
                self._turn.notify_all()
            if self._state is not _State.LEFT or self._inside:
                return self._state is _State.ENDED
            self._state = _State.ENDING
            self._closer = me
        try:
            self._end()
        finally:
            with self._lock:
                self._state = _State.ENDED
                self._turn.notify_all()
            for call in self._late:
                call()
        return True
