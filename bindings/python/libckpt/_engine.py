# SPDX-License-Identifier: Apache-2.0
"""The C engine as a Python object: its calls and its end, the log, and the guard against fork."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _errors as errors
from ._call_guard import CallGuard, Helper
from ._calls import check, has_failed, last_error, new_struct, text
from ._catalog import StepInfo, read_catalog
from ._log import forward, forward_forever, logger
from ._native import ffi, lib
from ._nodes import given_name, node_name
from ._options import Options, engine_opts
from ._waiting import SLICE_MS, aside, wait_sliced

if TYPE_CHECKING:
    from ._membership import Membership
    from .adapters._stages import Stages

#: Seconds that the end of an engine waits for other threads that are inside of it.
_LAST_CALL = 10.0

#: Seconds in which a thread that was started has begun.
_STARTS = 1.0


class Engine:
    """
    One open store. Belongs to the process that made it. `log_thread` starts the thread that
    forwards the library's log; without it, that is done when the engine is closed. `ranks`: it is
    one of several, and has their service from here on.

    Any thread may close it while others are in a call: all calls of the library that take it or one
    of its handles are made by work(), ask() and release().

    It adds itself to `opened` as soon as it is open. Who has made that list can close it, though
    Ctrl-C may come before the constructor has returned, and before what it returns has a name.
    """

    def __init__(
        self,
        path: str,
        options: Options,
        *,
        log_thread: bool,
        ranks: Membership | None = None,
        opened: list[Engine] | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self.rank = ranks.rank if ranks else 0
        self.world = ranks.world if ranks else 1
        #: those that write into the same store; empty: all
        self.peers = ranks.peers if ranks else ()
        #: what the ranks of several nodes mean by their names
        self.names = ranks.names() if ranks else None
        #: those that resume a step, where one may take what another one had
        self.takers = ranks.takers() if ranks else None
        #: which of them hold which names in their modules; None: all hold all, or it is not known
        self.stages: Stages | None = None
        self._service = ranks.service if ranks else None
        #: what its end says in the log is for debugging only
        self.hushed = False
        self.pid = os.getpid()
        self.ptr: Any = None
        #: What a GPU may still read: until the save is durable, and if it fails until the next one
        #: has started, because what is not enqueued yet is behind no stream of the program.
        self.read: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: where the library puts its handle
        self._cell: Any = ffi.new("struct ckpt_engine **")
        self._door = CallGuard(self._end)
        try:
            self._open(ranks)
            if log_thread:
                self._thread = Helper(
                    target=forward_forever,
                    args=(self.ptr, self._stop),
                    name="libckpt-log",
                    daemon=True,
                )
                self._thread.start()
            if opened is not None:
                opened.append(self)
        except BaseException:
            # The handle may be there and have no name here yet.
            self.ptr = self.ptr or self._cell[0]
            self._door.close(_LAST_CALL)
            raise

    def _open(self, ranks: Membership | None) -> None:
        opts = engine_opts(self.options)
        # The library's own default is the host's name, too, but those who share it must know it.
        name = node_name() if self.options.node_store else given_name()
        node = ffi.new("char[]", name.encode("utf-8", "surrogateescape"))
        if name:
            opts.node = node
        remote = ffi.new("char[]", os.fsencode(self.options.remote))
        if self.options.remote:
            opts.remote = remote
        session = ffi.new("char[]", ranks.session.encode() if ranks is not None else b"")
        if ranks is not None:
            opts.rank = ranks.rank
            opts.world = ranks.world
            opts.node_ranks = ranks.node_ranks
            opts.node_leader = ranks.peers[0] if ranks.peers else 0
            opts.session = session
            if ranks.service is not None:
                opts.exchange = ranks.service.ptr
        path = os.fsencode(self.path)
        waits = ranks is not None and self.options.node_store
        if not waits and not self.options.remote:
            self._open_at(path, opts, self._cell)
            self.ptr = self._cell[0]
            return
        # With stores of their own nodes wait for each other in there, and a run that is brought
        # back from its remote store takes its time. What the options point to must live as
        # long as the call, which may outlive this one; so must the service.
        service, self._service = self._service, None
        held = (opts, node, remote, session)

        def open_it() -> Any:
            cell = ffi.new("struct ckpt_engine **")
            try:
                self._open_at(path, held[0], cell)
            except BaseException:
                end_it(None)
                raise
            return cell[0]

        def keep(ptr: Any) -> None:
            self.ptr, self._service = ptr, service

        def end_it(ptr: Any) -> None:
            self.ptr = self._service = None
            lib.ckpt_engine_close(ptr or ffi.NULL)
            if service is not None:
                service.close()

        opening = ranks.opening if ranks is not None and waits else None
        aside(open_it, end_it, keep, None if opening is None else opening.heed)

    def _open_at(self, path: bytes, opts: Any, cell: Any) -> None:
        code = lib.ckpt_engine_open(path, opts, cell)
        if code < 0:
            raise last_error(code)

    def _end_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def guard(self) -> Any:
        """The C handle; raises if it must not be used here."""
        if os.getpid() != self.pid:
            raise errors.ForkedError(
                f"the checkpointer of {self.path} belongs to process {self.pid}; a forked child "
                "cannot use it: open one of its own, or use it in the parent only",
                code=lib.CKPT_EFORKED,
            )
        if not self._door.is_open:
            raise self._closed_error()
        return self.ptr

    def _closed_error(self) -> errors.ClosedError:
        return errors.ClosedError(
            f"the checkpointer of {self.path} is closed", code=lib.CKPT_ECLOSED
        )

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return not self._door.is_open

    @property
    def foreign(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self.pid

    def work(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls what needs the engine open; ClosedError if it is not."""
        self.guard()
        well, value = self._door.work(call, *args)
        if not well:
            raise self._closed_error()
        return value

    def ask(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls what only asks a handle of this engine; open or closed, but not while it closes."""
        well, value = self._door.ask(call, *args)
        if not well:
            raise self._closed_error()
        return value

    def release(self, call: Callable[..., Any], *args: Any) -> None:
        """Frees a handle of this engine, from a finalizer: at once, or as soon as it has closed."""
        self._door.release(call, *args)

    def drain(self, timeout: float, tick: Callable[[], None] | None = None) -> bool:
        """Waits until nothing is under way; False if the time is up first."""
        ptr = self.guard()
        code = wait_sliced(lambda ms: int(self.work(lib.ckpt_engine_drain, ptr, ms)), timeout, tick)
        if code == -errno.ETIMEDOUT:
            return False
        check(code)
        return True

    def drain_remote(self, timeout: float) -> bool:
        """
        Waits until nothing is on its way to the remote store: what is committed is there, or will
        never be, which the log has said. False if the time is up first.
        """
        ptr = self.guard()
        code = wait_sliced(
            lambda ms: int(self.work(lib.ckpt_engine_drain_remote, ptr, ms)),
            timeout,
            over=lambda: has_failed(-errno.ETIMEDOUT),
        )
        return code != -errno.ETIMEDOUT or has_failed(code)

    def close(self) -> None:
        """
        Ends the engine; what is under way is aborted. Harmless when closed, or in a child. Threads
        that are inside are waited for; if one does not come out, it is ended when that has.
        """
        if self.foreign:
            return
        if not self._door.close(_LAST_CALL):
            logger.warning("closing %s: another thread is inside, and ends it", self.path)

    def _end(self) -> None:
        ptr = self.ptr
        if not ptr:  # it was never opened
            self._end_service()
            return
        lib.ckpt_engine_stop_log(ptr)
        if self._thread is None or not self._thread_runs():
            forward(ptr, hushed=self.hushed)
        elif self._thread is threading.current_thread():
            # A finalizer may run on the log thread itself: it is not inside the engine now, and
            # must not enter it again.
            self._stop.set()
            forward(ptr)
        else:
            self._thread.join()  # it ends when it has handed on every line
        self.ptr = None
        # What this ends is told to the other ranks, so their service goes after it.
        lib.ckpt_engine_close(ptr)
        self.read = None
        self._end_service()

    def _thread_runs(self) -> bool:
        """False: its start was interrupted, and it will not touch the engine."""
        assert self._thread is not None
        end = time.monotonic() + _STARTS
        while self._thread.ident is None and time.monotonic() < end:
            self._stop.set()
            time.sleep(SLICE_MS / 1000)
        return self._thread.ident is not None

    def stats(self) -> dict[str, int]:
        """The C library's counters."""
        stats = new_struct("ckpt_stats")
        check(self.work(lib.ckpt_engine_stats, self.guard(), stats))
        names = (name for name, _ in ffi.typeof("struct ckpt_stats").fields if name != "size")
        return {name: int(getattr(stats, name)) for name in names}

    def unchecked(self) -> tuple[int, str]:
        """
        Why it was not found out whether ranks hold the same (CKPT_UNCHECKED_*), and of which boxes.
        """
        boxes = ffi.new("const char **")
        why = int(self.work(lib.ckpt_engine_unchecked, self.guard(), boxes))
        return why, text(boxes[0])

    def own(self, group: int) -> int:
        """What the commits have found of a group of which ranks save their own copies."""
        return check(self.work(lib.ckpt_engine_own, self.guard(), group))

    def run_id(self) -> str:
        """The run's name in the store."""
        found: str = self.work(self._with_catalog, lambda ptr: text(lib.ckpt_catalog_run_id(ptr)))
        return found

    def steps(self) -> list[StepInfo]:
        """Reads the store: every step of every generation, newest first."""
        found: list[StepInfo] = self.work(self._with_catalog, read_catalog)
        return found

    def _with_catalog(self, read: Callable[[Any], Any]) -> Any:
        ret = ffi.new("struct ckpt_catalog **")
        check(lib.ckpt_catalog_open(self.ptr, ret))
        try:
            return read(ret[0])
        finally:
            lib.ckpt_catalog_free(ret[0])
