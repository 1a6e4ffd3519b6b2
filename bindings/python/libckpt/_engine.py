# SPDX-License-Identifier: Apache-2.0
"""The C engine as a Python object: errors, deadlines, the log, and the guard against fork."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from . import _errors as errors
from ._call_guard import CallGuard, Helper
from ._gpus import cuda_major
from ._native import ffi, lib
from ._nodes import given_name, node_name

if TYPE_CHECKING:
    from ._exchange import Ranks
    from ._stages import Stages

_T = TypeVar("_T")

logger = logging.getLogger("libckpt")
logger.addHandler(logging.NullHandler())

#: Longest that a C call may hold off a KeyboardInterrupt, in milliseconds.
SLICE_MS = 100

#: Seconds that the end of an engine waits for other threads that are inside of it.
_LAST_CALL = 10.0

#: Seconds in which a thread that was started has begun.
_STARTS = 1.0

#: Codes below are the library's, the others are those of errno.
_LIBRARY_CODES = -10000

_CLASSES: dict[int, type[errors.CheckpointError]] = {
    lib.CKPT_EINTEGRITY: errors.IntegrityError,
    lib.CKPT_EINCOMPLETE: errors.IncompleteError,
    lib.CKPT_EFORMAT: errors.FormatError,
    lib.CKPT_EVERSION: errors.VersionError,
    lib.CKPT_ENOSTORE: errors.StoreNotFoundError,
    lib.CKPT_ENOSTEP: errors.StepNotFoundError,
    lib.CKPT_EINUSE: errors.InUseError,
    lib.CKPT_EFENCED: errors.FencedError,
    lib.CKPT_ENOTRESUMED: errors.NotResumedError,
    lib.CKPT_ESTEP: errors.StepError,
    lib.CKPT_ETORN: errors.TornSnapshotError,
    lib.CKPT_EABORTED: errors.AbortedError,
    lib.CKPT_ESKIPPED: errors.SkippedError,
    lib.CKPT_ECLOSED: errors.ClosedError,
    lib.CKPT_EFORKED: errors.ForkedError,
    lib.CKPT_ELEVEL: errors.LevelError,
    lib.CKPT_EMISMATCH: errors.MismatchError,
    lib.CKPT_EUNSUPPORTED: errors.UnsupportedError,
    lib.CKPT_EDEVICE: errors.DeviceError,
    lib.CKPT_EAUTH: errors.AuthError,
    lib.CKPT_ENETWORK: errors.NetworkError,
    lib.CKPT_EQUARANTINED: errors.QuarantinedError,
    lib.CKPT_EOTHERNODE: errors.OtherNodeError,
    lib.CKPT_EREPLICA: errors.ReplicaMismatchError,
    -errno.ETIMEDOUT: errors.DeadlineError,
    -errno.ECANCELED: errors.CancelledError,
}

_LOG_LEVELS = {
    lib.CKPT_LOG_ERROR: logging.ERROR,
    lib.CKPT_LOG_WARN: logging.WARNING,
    lib.CKPT_LOG_INFO: logging.INFO,
    lib.CKPT_LOG_DEBUG: logging.DEBUG,
}

STEP_STATES = {
    lib.CKPT_STEP_COMMITTED: "committed",
    lib.CKPT_STEP_ABORTED: "aborted",
    lib.CKPT_STEP_PENDING: "pending",
    lib.CKPT_STEP_QUARANTINED: "quarantined",
    lib.CKPT_STEP_BROKEN: "broken",
}

_REMOTE_STATES = {
    lib.CKPT_REMOTE_UPLOADED: "uploaded",
    lib.CKPT_REMOTE_PENDING: "pending",
    lib.CKPT_REMOTE_EXCLUDED: "excluded",
    lib.CKPT_REMOTE_FAILED: "failed",
}


def text(cdata: Any) -> str:
    """A C string; bytes that are not UTF-8 are replaced."""
    return ffi.string(cdata).decode("utf-8", "replace")


VERSION = text(lib.ckpt_version())


def new_struct(ctype: str) -> Any:
    """A zeroed struct that knows its size."""
    made = ffi.new(f"struct {ctype} *")
    made.size = ffi.sizeof(f"struct {ctype}")
    return made


def error_of(record: Any) -> errors.CheckpointError:
    """The exception for an error record."""
    code = int(record.code)
    system = int(record.sys_errno) or (-code if _LIBRARY_CODES < code < 0 else 0)
    return error_class(code)(
        text(record.message) or text(lib.ckpt_strerror(code)),
        code=code,
        errno=system or None,
        step=_known(record.step),
        rank=_known(record.rank),
        tier=text(record.tier) or None,
        tensor=text(record.tensor) or None,
        file=text(record.file) or None,
        offset=_known(record.offset),
        repaired=bool(record.repaired),
    )


def _known(number: Any) -> int | None:
    return int(number) if number >= 0 else None


def error_class(code: int) -> type[errors.CheckpointError]:
    """The class of exceptions for a code."""
    return _CLASSES.get(code, errors.StorageError)


def last_error(code: int, step: int | None = None) -> errors.CheckpointError:
    """The exception for the call that has just failed on this thread with `code`."""
    record = new_struct("ckpt_error")
    if lib.ckpt_last_error_record(record) != code:
        record = new_struct("ckpt_error")
        record.code = code
        record.step = record.rank = record.offset = -1
    if step is not None and record.step < 0:
        record.step = step
    return error_of(record)


def has_failed(code: int) -> bool:
    """
    With -ETIMEDOUT from the call that has just been made on this thread: whether what was waited
    for has itself failed with that. Then the record says of which step.
    """
    record = new_struct("ckpt_error")
    return bool(lib.ckpt_last_error_record(record) == code and record.step >= 0)


def raise_last(code: int, step: int | None = None) -> NoReturn:
    """Raises it."""
    raise last_error(code, step)


def check(code: int) -> int:
    """Passes counts and zero through; raises for errors."""
    if code < 0:
        raise_last(code)
    return code


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


class Options(NamedTuple):
    """How an engine is opened; zero is the C library's default."""

    pool_bytes: int = 0
    io: str = "auto"
    busy: str = "wait"
    save_timeout: float = 600.0
    keep_last: int = 0
    keep_every: int = 0
    new_start: bool = False
    read_only: bool = False
    debug: bool = False
    #: of the job's processes, those on this node; 0: not known
    node_ranks: int = 0
    #: every node has a store of its own
    node_store: bool = False
    #: with that: nodes were lost with their stores, and what only they had is given up
    lost_nodes: bool = False
    #: where committed steps go on to; empty: nowhere
    remote: str = ""
    remote_every: int = 0
    remote_bytes_per_s: int = 0
    #: what is kept there; 0: nothing is removed
    remote_keep_last: int = 0
    remote_keep_every: int = 0
    #: seconds; 0: 1800
    remote_grace: int = 0
    #: what to do when ranks differ in what they hold alike
    replicas: str = "check"


class StepInfo(NamedTuple):
    """One step of a store."""

    step: int
    generation: int
    #: committed, aborted, pending, quarantined or broken
    state: str
    #: bytes of all shards
    bytes: int
    #: seconds since the epoch, by the writer's clock
    time: float
    #: number of ranks
    world: int
    #: a restore may choose it
    in_lineage: bool
    #: why it was aborted or quarantined, or what is broken
    note: str
    #: of a broken one: the library's code, or a negative errno if it may be good all the same
    code: int
    #: quarantined or broken, and newer than what a restore chooses instead
    passed_over: bool
    #: its removal has begun: the newest is another one, as long as there is one
    deleting: bool = False
    #: in the remote store, as the job last wrote down: uploaded, pending, failed, excluded (it
    #: does not go there) or unknown
    remote: str = "unknown"


_REPLICAS = {"check": lib.CKPT_REPLICAS_CHECK, "warn": lib.CKPT_REPLICAS_WARN}
_IO = {"auto": lib.CKPT_IO_AUTO, "uring": lib.CKPT_IO_URING, "threads": lib.CKPT_IO_THREADS}


def _opts(options: Options) -> Any:
    opts = new_struct("ckpt_engine_opts")
    if options.new_start:
        opts.flags |= lib.CKPT_ENGINE_NEW_START
    if options.read_only:
        opts.flags |= lib.CKPT_ENGINE_READ_ONLY
    if options.node_store:
        opts.flags |= lib.CKPT_ENGINE_NODE_STORE
    if options.lost_nodes:
        opts.flags |= lib.CKPT_ENGINE_LOST_NODES
    opts.pool_bytes = options.pool_bytes
    opts.io = _IO[options.io]
    # Whether one runs is seen in Python first. What has ended is on its way out of the library,
    # and the next one has only to wait a moment, unless the storage hangs.
    opts.busy = lib.CKPT_BUSY_SKIP if options.busy == "skip" else lib.CKPT_BUSY_WAIT
    opts.save_timeout_ms = max(1, round(options.save_timeout * 1000))
    opts.keep_last = options.keep_last
    opts.keep_every = options.keep_every
    opts.node_ranks = options.node_ranks
    opts.remote_every = options.remote_every
    opts.remote_bytes_per_s = options.remote_bytes_per_s
    opts.remote_keep_last = options.remote_keep_last
    opts.remote_keep_every = options.remote_keep_every
    opts.remote_grace_s = options.remote_grace
    opts.replicas = _REPLICAS[options.replicas]
    opts.cuda_major = cuda_major()
    opts.log_level = lib.CKPT_LOG_DEBUG if options.debug else lib.CKPT_LOG_INFO
    return opts


def bring(
    path: str, options: Options, peers: tuple[int, ...] = (), world: int = 1
) -> tuple[int, int] | None:
    """
    Brings the run back from its remote store, where no engine has it open: generation and step, or
    None if what is here is as good. `peers`: only the files of these ranks of `world`, which are
    all that have this store, are brought, if the step was saved so (ckpt_engine_bring_ranks()).
    Empty: all of the step is.
    """
    opts = _opts(options)
    remote = ffi.new("char[]", os.fsencode(options.remote))
    opts.remote = remote
    generation, step = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    name = os.fsencode(path)
    if peers:
        ranks = ffi.new("uint32_t[]", peers)
        code = lib.ckpt_engine_bring_ranks(name, opts, ranks, len(peers), world, generation, step)
    else:
        code = lib.ckpt_engine_import(name, opts, generation, step)
    if code < 0:
        raise last_error(code)
    return (int(generation[0]), int(step[0])) if generation[0] else None


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
        ranks: Ranks | None = None,
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
                    target=_forward_forever,
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

    def _open(self, ranks: Ranks | None) -> None:
        opts = _opts(self.options)
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
        return {name: int(getattr(stats, name)) for name in _STATS}

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
        found: list[StepInfo] = self.work(self._with_catalog, _read_catalog)
        return found

    def _with_catalog(self, read: Callable[[Any], Any]) -> Any:
        ret = ffi.new("struct ckpt_catalog **")
        check(lib.ckpt_catalog_open(self.ptr, ret))
        try:
            return read(ret[0])
        finally:
            lib.ckpt_catalog_free(ret[0])


def _read_catalog(ptr: Any) -> list[StepInfo]:
    info = new_struct("ckpt_step_info")
    found = []
    for index in range(lib.ckpt_catalog_count(ptr)):
        check(lib.ckpt_catalog_step(ptr, index, info))
        found.append(_step_info(info))
    return found


_STATS = (
    "io",
    "io_direct",
    "io_registered",
    "generation",
    "saves_started",
    "saves_committed",
    "saves_failed",
    "saves_skipped",
    "saves_waited",
    "saves_waited_ns",
    "bytes_staged",
    "bytes_written",
    "bytes_read",
    "fsyncs",
    "steps_removed",
    "pool_bytes",
    "pool_touched",
    "pool_starved",
    "pool_huge",
    "last_step",
    "last_stage_ns",
    "last_local_ns",
    "last_eager_ns",
    "threads",
    "bytes_uploaded",
    "uploads_done",
    "uploads_failed",
    "uploads_retried",
    "uploads_waiting",
    "uploads_waiting_bytes",
    "remote_generation",
    "remote_step",
    "remote_wall_ms",
    "remote_steps_deleting",
    "remote_steps_removed",
    "remote_failing_ms",
    "remote_code",
    "bytes_uploaded_staged",
    "unchecked",
)


def _step_info(info: Any) -> StepInfo:
    return StepInfo(
        step=int(info.step),
        generation=int(info.generation),
        state=STEP_STATES.get(info.state, "unknown"),
        bytes=int(info.bytes),
        time=info.wall_ms / 1000,
        world=int(info.world),
        in_lineage=bool(info.in_lineage),
        note=text(info.note),
        code=int(info.code),
        passed_over=bool(info.passed_over),
        deleting=bool(info.deleting),
        remote=_REMOTE_STATES.get(info.remote, "unknown"),
    )


def _emit(record: Any) -> None:
    if record.dropped:
        logger.warning("%d log lines were lost because nobody read them", record.dropped)
    logger.log(_LOG_LEVELS.get(record.level, logging.INFO), "%s", text(record.message))


def _forward_forever(ptr: Any, stop: threading.Event) -> None:
    """The log thread: sleeps in C until a line comes or the engine is quietened."""
    record = new_struct("ckpt_log_record")
    while not stop.is_set():
        code = lib.ckpt_engine_log(ptr, lib.CKPT_FOREVER, record)
        if code == 0:
            _emit(record)
        elif code != -errno.ETIMEDOUT:
            return


def forward(ptr: Any, *, hushed: bool = False) -> None:
    """Hands on the log lines that wait; `hushed`: at level DEBUG."""
    record = new_struct("ckpt_log_record")
    while lib.ckpt_engine_log(ptr, 0, record) == 0:
        if hushed:
            logger.debug("%s", text(record.message))
        else:
            _emit(record)
