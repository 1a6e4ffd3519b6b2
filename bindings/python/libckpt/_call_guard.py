# SPDX-License-Identifier: Apache-2.0
"""Who is inside of a C engine. Nothing may run beside its end, so that waits until all are out."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Any


class Helper(threading.Thread):
    """
    A thread that engines need until they have ended. What ends or waits for one does not run there,
    though a finalizer may find itself on it.
    """


def apart(call: Callable[[], object]) -> None:
    """Calls it; if this is a helper, from another thread and without waiting for it."""
    if isinstance(threading.current_thread(), Helper):
        threading.Thread(target=call, name="libckpt-end", daemon=False).start()
    else:
        call()


class _State(enum.Enum):
    OPEN = enum.auto()
    #: somebody waits for those who are inside, to end it
    CLOSING = enum.auto()
    #: who closed it has gone: the last one who comes out ends it
    LEFT = enum.auto()
    ENDING = enum.auto()
    ENDED = enum.auto()


class CallGuard:
    """
    Calls go in through it, from any thread. A signal handler or a finalizer may come at any moment,
    on a thread that is inside already or that closes: neither waits for itself.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._state = _State.OPEN
        # Entered and left in C: no interrupt comes between.
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        #: the thread of each that is inside
        self._inside: dict[object, int] = {}
        self._closer = 0
        #: came while it was being closed, to be called when it has ended
        self._late: list[Callable[[], object]] = []

    @property
    def is_open(self) -> bool:
        """Calls of the engine may be made."""
        return self._state is _State.OPEN

    def work(self, call: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """Calls what needs the engine. False, and nothing is called: it is closed."""
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
        Calls what needs a handle only, which is good for questions after the end as well. False: it
        would have to wait for the end, and the end for this thread.
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
        """Calls what frees a handle: now, or after the end. Waits for nobody."""
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
        """One who asks is inside, too; not who closes, and not after the end."""
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
        Lets nobody in any more, and ends the engine when all are out: True. False: somebody is
        inside still, and the last one who comes out ends it.
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
        """Ends it if it is for this thread to do so; whether it has ended."""
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
