# SPDX-License-Identifier: Apache-2.0
"""Engine: the C engine as a Python object. Its calls, its end, its log, and checks for forks."""

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

#: Seconds that the end of an engine waits for calls of other threads.
_LAST_CALL = 10.0

#: Seconds after which a started thread must have begun.
_STARTS = 1.0


class Engine:
    """
    An open store. It belongs to the process that opened it. `log_thread`: start a thread that
    forwards the log of the library. Without it, the log is forwarded when the engine is closed.
    `ranks`: it is one of several. The engine then owns their service.

    Any thread may close it while others are in a call. So all calls of the library that take the
    engine or one of its handles must be made by work(), ask() and release().

    It adds itself to `opened` as soon as it is open. So the owner of that list can close it, even
    if Ctrl-C comes before the constructor has returned.
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
        #: the ranks that write to the same store; empty: all
        self.peers = ranks.peers if ranks else ()
        #: compares what names mean, if every node has a store
        self.names = ranks.names() if ranks else None
        #: for a restore in which a rank may take what another one saved
        self.takers = ranks.takers() if ranks else None
        #: which ranks hold which names in their modules; None: all ranks hold all, or unknown
        self.stages: Stages | None = None
        self._service = ranks.service if ranks else None
        #: messages at the end are logged at level DEBUG only
        self.hushed = False
        self.pid = os.getpid()
        self.ptr: Any = None
        #: Tensors that a GPU may still read. They are kept until the save is durable. After a
        #: failure they are kept until the next save has started: copies may not be enqueued yet.
        self.read: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: the library writes its handle here
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
            # The library may have written the handle before an interrupt.
            self.ptr = self.ptr or self._cell[0]
            self._door.close(_LAST_CALL)
            raise

    def _open(self, ranks: Membership | None) -> None:
        opts = engine_opts(self.options)
        # The default of the library is the host name, too, but here the ranks must know it.
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
        # With a store on every node, nodes wait for each other in this call, and copying a run from
        # its remote store may take long. So a thread makes the call, which may outlive this
        # function. The options and the service must live as long as the call.
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
        """The C handle. Raises if it is closed, or in a forked child."""
        if os.getpid() != self.pid:
            raise errors.ForkedError(
                f"the checkpointer of {self.path} belongs to process {self.pid}; a forked child "
                "cannot use it: open another one there, or use it in the parent only",
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
        """True if it was closed."""
        return not self._door.is_open

    @property
    def foreign(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self.pid

    def work(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls a function that needs the open engine. Raises ClosedError if it is closed."""
        self.guard()
        well, value = self._door.work(call, *args)
        if not well:
            raise self._closed_error()
        return value

    def ask(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls a function on a handle of this engine, which may be closed, but not closing."""
        well, value = self._door.ask(call, *args)
        if not well:
            raise self._closed_error()
        return value

    def release(self, call: Callable[..., Any], *args: Any) -> None:
        """Frees a handle, in a finalizer: now, or if the engine is closing, after that."""
        self._door.release(call, *args)

    def drain(self, timeout: float, tick: Callable[[], None] | None = None) -> bool:
        """Waits until no save is running. False: the timeout has expired."""
        ptr = self.guard()
        code = wait_sliced(lambda ms: int(self.work(lib.ckpt_engine_drain, ptr, ms)), timeout, tick)
        if code == -errno.ETIMEDOUT:
            return False
        check(code)
        return True

    def drain_remote(self, timeout: float) -> bool:
        """
        Waits until nothing is being copied to the remote store. Committed steps are there then, or
        the log says why they never will be. False: the timeout has expired.
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
        Closes the engine. Running saves are aborted. Does nothing if it is closed, or in a forked
        child. Waits for calls of other threads. If one does not return in time, it closes the
        engine when it does.
        """
        if self.foreign:
            return
        if not self._door.close(_LAST_CALL):
            logger.warning("closing %s: a call of another thread will close it", self.path)

    def _end(self) -> None:
        ptr = self.ptr
        if not ptr:  # it was never opened
            self._end_service()
            return
        lib.ckpt_engine_stop_log(ptr)
        if self._thread is None or not self._thread_runs():
            forward(ptr, hushed=self.hushed)
        elif self._thread is threading.current_thread():
            # A finalizer may run on the log thread itself, which must not use the engine again.
            self._stop.set()
            forward(ptr)
        else:
            self._thread.join()  # it ends when it has forwarded every line
        self.ptr = None
        # Aborted saves are told to the other ranks, so the service is closed after the engine.
        lib.ckpt_engine_close(ptr)
        self.read = None
        self._end_service()

    def _thread_runs(self) -> bool:
        """False: its start was interrupted, and it will not use the engine."""
        assert self._thread is not None
        end = time.monotonic() + _STARTS
        while self._thread.ident is None and time.monotonic() < end:
            self._stop.set()
            time.sleep(SLICE_MS / 1000)
        return self._thread.ident is not None

    def stats(self) -> dict[str, int]:
        """The counters of the C library."""
        stats = new_struct("ckpt_stats")
        check(self.work(lib.ckpt_engine_stats, self.guard(), stats))
        names = (name for name, _ in ffi.typeof("struct ckpt_stats").fields if name != "size")
        return {name: int(getattr(stats, name)) for name in names}

    def unchecked(self) -> tuple[int, str]:
        """
        Why tensors were not compared between ranks (CKPT_UNCHECKED_*), and the boxes that were not,
        as text.
        """
        boxes = ffi.new("const char **")
        why = int(self.work(lib.ckpt_engine_unchecked, self.guard(), boxes))
        return why, text(boxes[0])

    def own(self, group: int) -> int:
        """What is known of buffers that may differ, of a group (CKPT_OWN_*)."""
        return check(self.work(lib.ckpt_engine_own, self.guard(), group))

    def run_id(self) -> str:
        """The identifier of the run in the store."""
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
