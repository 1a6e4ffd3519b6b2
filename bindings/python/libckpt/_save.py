# SPDX-License-Identifier: Apache-2.0
"""Save: the object that the user has while the library saves in the background."""

from __future__ import annotations

import contextlib
import errno
import math
import numbers
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from . import _errors as errors
from . import _gpus
from ._behind import Behind
from ._calls import check, error_of, has_failed, last_error, new_struct, raise_last
from ._engine import Engine
from ._log import logger
from ._name_check import Compared
from ._native import ffi, lib
from ._snapshot import Snapshot
from ._waiting import wait_sliced

_LEVELS = {
    "staged": lib.CKPT_LEVEL_STAGED,
    "local": lib.CKPT_LEVEL_LOCAL,
    "replicated": lib.CKPT_LEVEL_REPLICATED,
    "remote": lib.CKPT_LEVEL_REMOTE,
}


#: Seconds, as good as no limit.
_FOREVER = 1e10
#: Seconds that a rank whose first save has failed waits for the claim of rank 0. Before that, it
#: cannot tell the other ranks.
_TELL = 60.0
#: Longest wait until a save that was given up has released its tensors.
_LET_GO_MS = 10_000
#: Tensors that a save has never released. They are kept for ever, because it may still read them.
_stuck: list[Snapshot] = []


class Progress(NamedTuple):
    """Progress of a save or restore on this rank."""

    #: "save" or "restore"
    what: str
    step: int
    #: bytes
    done: int
    total: int


class SaveInfo(NamedTuple):
    """State of a save on this rank. Times are in seconds since it started; 0.0: not reached yet."""

    step: int
    generation: int
    staged: bool
    local: bool
    failed: bool
    bytes: int
    bytes_staged: int
    #: the part of `bytes` that is in the file
    bytes_written: int
    eager_time: float
    stage_time: float
    local_time: float
    #: total time in which no staging memory was free
    starved_time: float
    #: until shard and index of this rank were durable; the commit of all ranks follows
    durable_time: float
    #: total time that the loop was delayed: in save() and in the fence
    loop_time: float
    #: size of the file, once it is known; less than `bytes` with encoding="compact"
    bytes_stored: int = 0


def level_number(level: str) -> int:
    """The number of a level's name."""
    if level not in _LEVELS:
        raise ValueError(f"level {level!r}: it must be one of {', '.join(map(repr, _LEVELS))}")
    return _LEVELS[level]


class Save:
    """
    One save. Returned by `Checkpointer.save()`.

    It reaches these levels: "staged" when its tensors may be changed again, "local" when it is
    durable on the disk of this machine and its manifest is published, and "remote" when the remote
    store has it and its manifest is published there. A save that is local has not failed, even if
    the copy to the remote store fails: the log and wait("remote") say so. Any thread may use a
    Save. A forked child cannot use it.
    """

    _engine: Engine

    def __init__(self, engine: Engine, step: int) -> None:
        self._engine = engine
        self._step = step
        self._pid = os.getpid()
        self._ptr: Any = None
        self._lock = threading.RLock()
        self._behind: Behind | None = None
        self._fenced = False
        #: those that its tensors are on
        self._gpus: frozenset[int] = frozenset()
        self._failure: errors.CheckpointError | None = None
        self._loop_time = 0.0
        self._progress: Callable[[Progress], object] | None = None
        #: key under which the ranks of several nodes compare what their names mean
        self._where: str | None = None
        #: the result of that comparison
        self._compared: Compared | None = None
        #: plain tensors of which the ranks may not agree who holds them
        self._unclear: list[str] = []
        #: the failure was reported to the user
        self._told = False
        #: the Checkpointer has counted and logged the outcome
        self._settled = False

    def __repr__(self) -> str:
        return f"<libckpt.Save of step {self._step} in {self._engine.path}>"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError("a libckpt.Save belongs to its process and cannot be pickled or copied")

    def __del__(self) -> None:
        ptr = getattr(self, "_ptr", None)
        if ptr is not None and os.getpid() == self._pid:
            self._ptr = None
            self._engine.release(lib.ckpt_save_free, ptr)

    @property
    def step(self) -> int:
        """The step."""
        return self._step

    @property
    def error(self) -> errors.CheckpointError | None:
        """Why the save failed. None: it has not failed so far. Does not wait."""
        self._guard()
        self._try_fence()
        return self._poll()

    @property
    def info(self) -> SaveInfo:
        """Its progress and its times. Does not wait."""
        self._guard()
        info = new_struct("ckpt_save_info")
        if self._ptr is not None:
            check(self._engine.ask(lib.ckpt_save_info, self._ptr, info))
        return SaveInfo(
            step=self._step,
            generation=int(info.generation),
            staged=bool(info.staged),
            local=bool(info.local),
            failed=bool(info.failed) or self._failure is not None,
            bytes=int(info.bytes),
            bytes_staged=int(info.bytes_staged),
            bytes_written=int(info.bytes_written),
            eager_time=info.eager_ns / 1e9,
            stage_time=info.stage_ns / 1e9,
            local_time=info.local_ns / 1e9,
            starved_time=info.starved_ns / 1e9,
            durable_time=info.durable_ns / 1e9,
            loop_time=self._loop_time,
            bytes_stored=int(info.bytes_stored),
        )

    def wait(self, level: str = "local", timeout: float | None = None) -> None:
        """
        Waits until the save has reached `level`: "staged", "local", "replicated" or "remote".

        Raises the error of the save if it has failed (DeadlineError after `save_timeout`),
        WaitTimeoutError after `timeout` seconds (None: no limit), and LevelError at once if the
        level is not configured. wait("remote") also raises if the step will never be in the remote
        store. As long as a retry may succeed, it waits.
        """
        number = level_number(level)
        timeout = _seconds_or_none(timeout)
        self._guard()
        end = None if timeout is None else time.monotonic() + timeout
        if self._failure is None:
            self._check_level(number)
            self._fence(timeout)
        if self._failure is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            self._wait_level(number, left)
        if self._failure is not None:
            self._told = True
            raise self._failure

    def done(self, level: str = "local") -> bool:
        """
        True if the save has reached `level` or has failed (see `error`), or if it will never be in
        the remote store (see wait()). Does not wait.
        """
        number = level_number(level)
        self._guard()
        self._try_fence()
        if self._poll() is not None:
            return True
        code: int = self._engine.ask(lib.ckpt_save_wait, self._ptr, number, 0)
        if code == lib.CKPT_ELEVEL:
            raise_last(code)
        return code == 0 or self._is_lost(number, code)

    def _check_level(self, number: int) -> None:
        if number in (lib.CKPT_LEVEL_STAGED, lib.CKPT_LEVEL_LOCAL):
            return
        code: int = self._engine.ask(lib.ckpt_save_wait, self._ptr, number, 0)
        if code == lib.CKPT_ELEVEL:
            raise_last(code)

    def _is_lost(self, number: int, code: int) -> bool:
        """`code`: of a wait for the level. True: the remote store will never have the step."""
        if number != lib.CKPT_LEVEL_REMOTE or code == 0:
            return False
        return code != -errno.ETIMEDOUT or has_failed(code)

    # For the Checkpointer.

    def _guard(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkedError(
                f"the save of step {self._step} belongs to process {self._pid}; a forked child "
                "cannot use it",
                code=lib.CKPT_EFORKED,
                step=self._step,
            )

    def _refuse(self, error: BaseException) -> None:
        """The state cannot be described. Tells the other ranks, which wait for this one."""
        # If the engine has closed meanwhile, it has told the others.
        if self._engine.world == 1 or self._engine.closed:
            return
        if self._ptr is None:
            ret = ffi.new("struct ckpt_save **")
            if self._begin(ffi.NULL, ret) < 0:
                return
            self._ptr = ret[0]
        code = getattr(error, "code", 0)
        why = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        try:
            # After Ctrl-C nothing may wait.
            if isinstance(error, Exception):
                self._await_claim(error)
        finally:
            number = code if code < 0 else -errno.EINVAL
            with contextlib.suppress(errors.ClosedError):
                self._engine.work(lib.ckpt_save_fail, self._ptr, number, ffi.NULL, why)
            self._release()

    def _begin(self, opts: Any, ret: Any) -> int:
        engine = self._engine
        code: int = engine.work(lib.ckpt_save_begin, engine.guard(), self._step, opts, ret)
        return code

    def _await_claim(self, error: Exception) -> None:
        """Waits for the first claim. Before it, there is no key to tell the others under."""
        if self._read_error() is not None or self._engine.stats()["generation"]:
            return
        logger.warning(
            "step %d of %s cannot be saved. The other ranks are told when they reach it: %s",
            self._step,
            self._engine.path,
            error,
        )
        with contextlib.suppress(errors.ClosedError):
            wait_sliced(self._ready, _TELL, over=self._read_error)

    def _ready(self, ms: int) -> int:
        code: int = self._engine.work(lib.ckpt_save_ready, self._ptr, ms)
        return code

    def _await_others(self, deadline: float) -> None:
        """Waits for the other ranks in slices, because the start itself ignores Ctrl-C."""
        if self._engine.world == 1:
            return
        code = wait_sliced(self._ready, deadline, over=self._read_error)
        if code == 0:
            return
        found = self._read_error()
        if code == -errno.ETIMEDOUT and found is None:
            raise errors.DeadlineError(
                f"step {self._step}: rank 0 has not reached it within {deadline:g} s; the save was "
                "given up",
                code=code,
                errno=errno.ETIMEDOUT,
                step=self._step,
            )
        raise found or last_error(code, self._step)

    def _start(self, snapshot: Snapshot, deadline: float) -> None:
        """Gives the snapshot to the library. When this returns, its eager tensors may change."""
        ret = ffi.new("struct ckpt_save **")
        opts = new_struct("ckpt_save_opts")
        fenced = bool(snapshot.behind.parts)
        opts.flags = lib.CKPT_SAVE_FENCED if fenced else 0
        check(self._begin(opts, ret))
        self._ptr = ret[0]
        try:
            self._describe(snapshot)
            self._await_others(deadline)
            self._compare(snapshot, None)
        except BaseException as error:
            self._refuse(error)
            raise
        # From here on the library reads the tensors. They must live until it has released them.
        self._behind = snapshot.behind
        self._fenced = not fenced
        try:
            self._copy_eager(snapshot, deadline)
        except BaseException:
            self._give_up(snapshot)
            raise

    def _describe(self, snapshot: Snapshot) -> None:
        work, ptr = self._engine.work, self._ptr
        self._gpus, self._unclear = snapshot.gpus, snapshot.unclear
        for block in snapshot.blocks:
            check(work(lib.ckpt_save_add, ptr, block.array, block.count))
        for alias, name in snapshot.aliases:
            check(work(lib.ckpt_save_add_alias, ptr, alias, name))
        check(work(lib.ckpt_save_set_meta, ptr, snapshot.meta, len(snapshot.meta)))
        for group, block in snapshot.alike:
            check(work(lib.ckpt_save_add_replicas, ptr, group, block.array, block.count))
        for group in dict.fromkeys(group for group, _ in snapshot.alike):
            if snapshot.own.get(group, lib.CKPT_OWN_NONE) != lib.CKPT_OWN_NONE:
                check(work(lib.ckpt_save_set_own, ptr, group, snapshot.own[group]))
        if snapshot.common:
            check(work(lib.ckpt_save_set_common, ptr, snapshot.common, len(snapshot.common)))
        check(work(lib.ckpt_save_set_balance, ptr, snapshot.balance))

    def _compare(self, snapshot: Snapshot, where: str | None) -> None:
        """
        With a store on every node: whether the same names mean the same tensors on all ranks.
        `where`: key of this save, if that is not its generation and step.
        """
        names = self._engine.names
        if names is None:
            return
        self._where = where or f"{self._engine.stats()['generation']}-{self._step}"
        self._compared = names.compare(snapshot.apart, self._where)
        why = self._compared.why
        if why is not None:
            # With other common words than rank 0, rank 0 fails the step for all.
            logger.error("step %d of %s: %s", self._step, self._engine.path, why)
            words = snapshot.common + why.encode("utf-8", "replace")
            check(self._engine.work(lib.ckpt_save_set_common, self._ptr, words, len(words)))

    def _committed(self) -> None:
        """The step is committed."""
        names, compared = self._engine.names, self._compared
        self._compared = None
        self._engine.read = None
        if names is not None and compared is not None:
            names.committed(compared)

    def _differ(self) -> str | None:
        """After the commit: the tensors in which ranks differ, as text; None: there are none."""
        record = new_struct("ckpt_error")
        if self._ptr is None or self._ask(lib.ckpt_save_replicas, record) == 0:
            return None
        return error_of(record).message

    def _explained(self, error: errors.CheckpointError) -> errors.CheckpointError:
        if not isinstance(error, errors.MismatchError):
            return error
        names = self._engine.names
        where, self._where = self._where, None
        why = None if names is None or where is None else names.why(where)
        if why is not None:
            said = f"step {self._step} is of no rank: {why}"
            return errors.MismatchError(said, code=error.code, step=self._step, tier=error.tier)
        unclear, self._unclear = self._unclear, []
        # Only those that the error is about.
        unclear = [n for n in unclear if n == error.tensor or repr(n) in error.message]
        return _with_unclear(error, unclear) if unclear else error

    def _set_streams(self, gpus: frozenset[int]) -> None:
        """
        Orders the copies between the work that this thread has enqueued on these GPUs and the work
        that it will enqueue. For other GPUs of the state the library itself waits for the copies.
        """
        if self._gpus:
            array = _gpus.streams(gpus)
            check(self._ask(lib.ckpt_save_set_streams, array, len(array)))

    def _copy_eager(self, snapshot: Snapshot, deadline: float) -> None:
        self._set_streams(self._gpus)
        check(self._engine.work(lib.ckpt_save_start, self._ptr))
        self._engine.read = snapshot if self._gpus else None
        code = self._wait(lambda ms: self._ask(lib.ckpt_save_wait_eager, ms), deadline)
        if code == -errno.ETIMEDOUT and self._poll() is None:
            raise errors.DeadlineError(
                f"step {self._step}: its tensors were not copied within {deadline:g} s; the save "
                "was given up",
                code=code,
                errno=errno.ETIMEDOUT,
                step=self._step,
            )
        if code < 0:
            raise self._poll() or last_error(code, self._step)

    def _ask(self, call: Callable[..., int], *args: Any) -> int:
        """Calls a function on the handle, which may outlive the engine."""
        code: int = self._engine.ask(call, self._ptr, *args)
        return code

    def _wait(self, call: Callable[[int], int], timeout: float | None) -> int:
        """Calls until there is a result. -ETIMEDOUT: there is none, unless _poll() has an error."""
        return wait_sliced(call, timeout, self._tick, self._poll)

    def _give_up(self, snapshot: Snapshot) -> None:
        """Cancels, and waits until the library has released the tensors."""
        self._engine.ask(lib.ckpt_save_cancel, self._ptr)
        code = self._ask(lib.ckpt_save_wait, lib.CKPT_LEVEL_LOCAL, _LET_GO_MS)
        # The save may have failed with that code itself. Then it has released them.
        if code == -errno.ETIMEDOUT and self._read_error() is None:
            _stuck.append(snapshot)
        self._release()

    def _fail(self, error: errors.CheckpointError) -> None:
        """The save could not start."""
        self._failure = error
        self._release()

    def _release(self) -> None:
        self._behind = None
        self._fenced = True

    def _fence(self, timeout: float | None, *, ahead: bool = False) -> None:
        """
        Waits until every tensor has been copied, and checks that none has changed since save(). A
        change fails the save. Sets `_failure`; raises only WaitTimeoutError, and what a signal
        handler raises. `ahead`: for copies from GPUs the streams of this thread wait, and not the
        thread, so that what it enqueues next runs after the copies.
        """
        wait = not (ahead and self._gpus)
        if wait and not self._await_copies(timeout):
            return
        with self._lock:
            behind = self._behind  # read once: another thread may be noting a failure
            if behind is None or self._fenced or self._failure is not None:
                return
            # A captured call runs when the graph is replayed: see before_replay().
            if not wait and _gpus.is_capturing():
                return
            failure = self._compare_fenced(behind)
            if failure is None:
                # A thread that waits may have other streams than the loop. Leave these alone.
                self._set_streams(frozenset() if wait else self._gpus)
                failure = self._pass_gate(timeout)
            if self._failure is None:
                self._failure = failure
                self._release()

    def _await_copies(self, timeout: float | None) -> bool:
        """
        True if the copies are complete and no thread has passed the fence. Does not hold the lock,
        so that a loop whose streams wait does not wait for a thread that waits here.
        """
        if self._behind is None or self._fenced or self._failure is not None:
            return False
        code = self._wait(
            lambda ms: self._ask(lib.ckpt_save_wait, lib.CKPT_LEVEL_STAGED, ms), timeout
        )
        if self._failure is not None:
            return False
        if code == -errno.ETIMEDOUT:
            raise self._not_copied(code, timeout)
        if code == 0:
            return True
        found = self._explained(self._read_error() or _unknown(self._step, code))
        with self._lock:
            if self._failure is None:
                self._failure = found
                self._release()
        return False

    def _not_copied(self, code: int, timeout: float | None) -> errors.WaitTimeoutError:
        return errors.WaitTimeoutError(
            f"step {self._step}: its tensors have not been copied after {timeout:g} s",
            code=code,
            errno=errno.ETIMEDOUT,
            step=self._step,
        )

    def _compare_fenced(self, behind: Behind) -> errors.CheckpointError | None:
        """Compares the version counters and addresses of tensors with those at save()."""
        name, how = behind.changed(), "was changed in place"
        if name is None:
            name, how = behind.moved(), "was given other memory"
        if name is None:
            return None
        why = (
            f"step {self._step}: {name.decode()} {how} before the optimizer's step(), so that "
            "the checkpoint would mix two steps; the save has failed. Call wait_staged() "
            "before you change it, or pass eager=True"
        )
        check(self._ask(lib.ckpt_save_fail, lib.CKPT_ETORN, name, why.encode()))
        return self._told_of(
            errors.TornSnapshotError(
                why, code=lib.CKPT_ETORN, step=self._step, tensor=name.decode()
            )
        )

    def _pass_gate(self, timeout: float | None) -> errors.CheckpointError | None:
        """The library compares samples of the memory with those at save()."""
        code = self._wait(lambda ms: self._ask(lib.ckpt_save_fence, ms), timeout)
        if code == 0 or self._failure is not None:
            return None
        if code == -errno.ETIMEDOUT and self._read_error() is None:
            raise self._not_copied(code, timeout)
        return self._told_of(last_error(code, self._step))

    def _told_of(self, found: errors.CheckpointError) -> errors.CheckpointError:
        """Waits until the library knows of the failure: only then the next save can start."""
        wait_sliced(
            lambda ms: self._ask(lib.ckpt_save_wait, lib.CKPT_LEVEL_LOCAL, ms),
            _LET_GO_MS / 1000,
            over=self._read_error,
        )
        return self._read_error() or found

    def _try_fence(self) -> None:
        """Runs the fence, unless it would wait."""
        if not self._fenced and self._failure is None:
            code = self._ask(lib.ckpt_save_wait, lib.CKPT_LEVEL_STAGED, 0)
            if code != -errno.ETIMEDOUT:
                # The GPU is asked again for samples, which may take a moment.
                with contextlib.suppress(errors.WaitTimeoutError):
                    self._fence(0)

    def _wait_level(self, number: int, timeout: float | None) -> None:
        code = wait_sliced(
            lambda ms: self._ask(lib.ckpt_save_wait, number, ms),
            timeout,
            self._tick,
            lambda: self._is_lost(number, -errno.ETIMEDOUT) or self._poll(),
        )
        if code == 0:
            self._tick()
            return
        late = code == -errno.ETIMEDOUT and not self._is_lost(number, code)
        found = last_error(code, self._step)
        if self._poll() is not None:
            return
        if late:
            raise errors.WaitTimeoutError(
                f"step {self._step}: not complete after {timeout:g} s; the save goes on",
                code=code,
                errno=errno.ETIMEDOUT,
                step=self._step,
            )
        raise found

    def _poll(self) -> errors.CheckpointError | None:
        if self._failure is None and self._ptr is not None:
            found = self._read_error()
            if found is not None:
                self._failure = self._explained(found)
                self._release()
        return self._failure

    def _read_error(self) -> errors.CheckpointError | None:
        record = new_struct("ckpt_error")
        if self._ptr is None or self._ask(lib.ckpt_save_error, record) == 0:
            return None
        return error_of(record)

    def _is_over(self) -> bool:
        """True if it is committed or has failed."""
        return self._poll() is not None or (
            self._fenced and self._ask(lib.ckpt_save_wait, lib.CKPT_LEVEL_LOCAL, 0) == 0
        )

    def _cancel(self) -> None:
        if self._ptr is not None and not self._is_over():
            self._engine.ask(lib.ckpt_save_cancel, self._ptr)

    def _tick(self) -> None:
        if self._progress is not None and self._ptr is not None:
            info = self.info
            report(self._progress, Progress("save", self._step, info.bytes_written, info.bytes))


def _seconds_or_none(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number or None, not {type(timeout).__qualname__}")
    if math.isnan(timeout):
        raise ValueError(f"timeout={timeout}: it must be a number of seconds, or None")
    return None if timeout > _FOREVER else max(0.0, float(timeout))


def callback(name: str, value: Callable[..., object] | None) -> None:
    """Raises if an argument is not a function."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, not {type(value).__qualname__}")


def _unknown(step: int, code: int) -> errors.CheckpointError:
    return errors.StorageError(f"step {step}: the save failed", code=code, step=step)


def _with_unclear(error: errors.MismatchError, names: list[str]) -> errors.MismatchError:
    """The error, and what to do about tensors of which the ranks may not agree who holds them."""
    first, more = names[0], f" and {len(names) - 1} more" if len(names) > 1 else ""
    return type(error)(
        f"{error.message}; which ranks hold {first!r}{more} is not known on this rank: the module "
        "of fully_shard() that has it has no parameters of its own, and the modules within it are "
        "on different meshes. Move it into a module that has parameters on the mesh of the ranks "
        "that hold it",
        code=error.code,
        step=error.step,
        rank=error.rank,
        tier=error.tier,
        tensor=error.tensor or first,
    )


def report(progress: Callable[[Progress], object], what: Progress) -> None:
    """Calls the user's function. An exception that it raises is logged, and ignored."""
    try:
        progress(what)
    except Exception:
        logger.exception("the progress callback failed")
