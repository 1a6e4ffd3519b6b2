# SPDX-License-Identifier: Apache-2.0
"""
The automatic rehearsal of a Checkpointer: a test of resume() in the background, once, with the
first committed step.

A thread opens the step, and reads and verifies what this rank wrote to it. So every byte is read by
one rank, and no rank depends on another. The thread of the loop compares the step with the live
state, in a call of the Checkpointer, and only if the structure of the state has not changed since
the save. No user code is called. Ranks of a node open the step one after another, and read one
after another. They compare at the same time, some seconds after the save: ranks wait for each other
in the loop, so the loop is delayed once, and not by one rank after another.

Every finding is checked twice before it is reported. A failure of the rehearsal itself is logged,
without a warning, because it says nothing of the step.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _errors as errors
from ._call_guard import Helper
from ._engine import Engine
from ._gpus import CPU
from ._log import logger
from ._native import lib
from ._newest import is_unreadable
from ._plan import Plan
from ._reader import Reader
from ._room import memory_left
from ._slices import AgainError, Bound, Slices, check_generation, reading
from ._structure import TooManyError, mark
from ._trial import TrialReader
from ._turn import turn

if TYPE_CHECKING:
    from ._save import Save
    from ._tensors import Block

#: Bytes that are read at a time.
_SLICE = 256 << 20
#: It reads for one of this many seconds, because the loop, its saves and other jobs use the disk.
_SHARE = 4
#: Limits. Comparing a tensor takes up to 0.1 ms of the loop's time, and reading one takes 30 KiB.
#: The first is for tensors of the state, and for tensors that this rank wrote. The second is for
#: tensors of the step, of all ranks.
_TENSORS = 5_000
_TENSORS_OF_ALL = 20_000
#: Limits for other values: number in the state, and bytes of JSON in the step.
_VALUES = 20_000
_JSON = 1 << 20
#: Most steps of the store, because each part that is read lists them.
_STEPS_OF_STORE = 20
#: Bytes of memory that must be free. The rehearsal takes at most half of that.
_MEMORY = 1 << 30
#: Seconds between two checks whether it is this process's turn, or the save has ended.
_PAUSE = 0.2
#: Seconds after the end of a save during which older steps may be removed.
_RETENTION = 2.0
#: Seconds that end() waits for the thread, which checks for it ten times a second.
_END = 2.0
#: Seconds after the save until many ranks compare. By then they have usually opened the step.
_TOGETHER = 5.0
#: Seconds until a failed read is repeated.
_ONCE_MORE = 2.0
#: Number of steps that are tried, if each is removed before it was read.
_STEPS = 3
#: Number of saves in a row that it gives way to.
_SAVES = 20
#: Parts of the state that the log lists.
_LISTED = 10
_CHANGED = "the state is not built as it was when it was saved"


class _StoppedError(Exception):
    """The rehearsal was stopped."""


class _LeftOutError(Exception):
    """The step is not read. The text says why; it is logged without a warning."""


class _Built(NamedTuple):
    """A mark of the structure of the state when it was saved."""

    #: None: it is not compared; `why` says why
    mark: int | None
    why: str = _CHANGED

    @staticmethod
    def of(state: dict[str, Any]) -> _Built:
        """The mark of a state as it is now."""
        try:
            return _Built(mark(state, _TENSORS, _VALUES))
        except TooManyError as error:
            return _Built(None, str(error))


class _End:
    """
    An event that is set once, and that one thread waits for. threading.Event is not used, because a
    signal handler that sets it could wait for a lock that its own thread holds.
    """

    def __init__(self) -> None:
        self._set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """True if it was set."""
        return self._set

    def set(self) -> None:
        """Sets it. Any thread. Does not wait."""
        if not self._set:
            self._set = True
            self._open()

    def wait(self, timeout: float) -> None:
        """Waits for it, at most `timeout` seconds."""
        if self._gate.acquire(timeout=timeout):
            self._open()

    def _open(self) -> None:
        # Two threads may have set it at once.
        with contextlib.suppress(RuntimeError):
            self._gate.release()


class _Attempt:
    """The rehearsal of one step. The results of the thread are complete when `read` is set."""

    def __init__(self, save: Save, blocks: list[Block], built: _Built) -> None:
        self.save = save
        self.step = save.step
        #: the tensors that this rank wrote
        self.blocks = blocks
        self.built = built
        self.generation = 0
        self.began = 0.0
        #: time from which on it may be compared
        self.due = 0.0
        self.thread: threading.Thread | None = None
        #: set by the thread, and taken by the loop
        self.plan: Plan | None = None
        #: the comparison has found a difference, and is repeated
        self.doubted = False
        self.read = threading.Event()
        self.nbytes = 0
        #: the step was removed before it was read
        self.removed = False
        #: the outcome was reported or logged
        self.failed = False
        #: why it was not compared; empty: it was
        self.uncompared = built.why
        self.untried: list[str] = []


class Rehearsal:
    """
    The rehearsal of a Checkpointer. The thread of the loop calls note() and look(); any thread may
    call stop() and end().
    """

    def __init__(self, engine: Engine, *, allow_pickle: bool) -> None:
        self._engine = engine
        #: absolute, because the program may change its directory
        self._path = os.path.abspath(engine.path)
        self._place = _place_of(self._path)
        self._allow_pickle = allow_pickle
        self._pid = os.getpid()
        self._ended = _End()
        self._attempt: _Attempt | None = None
        self._attempts = 0
        #: a call is running: a signal handler may interrupt it and make another one
        self._busy = False
        #: the save that was started last; None: not needed
        self._newest: Save | None = None
        #: a save that has ended, and whose retention has ended
        self._calm: Save | None = None
        #: warnings that are still to be given
        self._found: collections.deque[str] = collections.deque()

    @property
    def over(self) -> bool:
        """True if the rehearsal has ended."""
        return self._ended.is_set()

    def note(self, save: Save, state: dict[str, Any] | None, blocks: list[Block]) -> None:
        """A save has started. `state`: of the Checkpointer; None: another state is saved."""
        if self.over or os.getpid() != self._pid:
            return
        self._newest = save
        if self._attempt is not None or state is None:
            return
        try:
            built = _Built.of(state)
        except Exception as error:
            self._say_failed(f"rehearsal: step {save.step} of {self._engine.path}", error)
            self.stop()
            return
        self._attempt = _Attempt(save, blocks, built)

    def look(self, state: dict[str, Any] | None) -> None:
        """Does the next part that is due. Raises only if a warning is turned into an error."""
        if os.getpid() != self._pid:
            return
        attempt = self._attempt
        if attempt is not None and not self.over and not self._busy:
            self._busy = True
            try:
                self._advance(attempt, state)
            except Exception as error:
                self._judge(attempt, error, compared=True)
                self.stop()
            finally:
                self._busy = False
        self._tell()

    def _advance(self, attempt: _Attempt, state: dict[str, Any] | None) -> None:
        if attempt.thread is None:
            if attempt.save._settled:
                self._begin(attempt)
            return
        ended = (
            attempt.read.is_set()
        )  # read before the plan is taken: the thread sets the plan first
        if attempt.plan is not None and time.perf_counter() < attempt.due:
            return
        plan, attempt.plan = attempt.plan, None
        if plan is not None and state is not None:
            self._compare(attempt, plan, state)
        if ended and attempt.plan is None:
            self._conclude(attempt)

    def _begin(self, attempt: _Attempt) -> None:
        if attempt.save._failure is not None:
            self._attempt = None  # the next step is tried
            return
        attempt.generation = attempt.save.info.generation
        attempt.began = time.perf_counter()
        attempt.due = attempt.began + _TOGETHER * (self._engine.world > 1)
        # A Helper: a finalizer that runs on this thread must not wait for its locks.
        attempt.thread = Helper(
            target=self._run, args=(attempt,), name="libckpt-rehearsal", daemon=True
        )
        try:
            attempt.thread.start()
        except Exception:
            attempt.thread = None
            raise

    def _compare(self, attempt: _Attempt, plan: Plan, state: dict[str, Any]) -> None:
        if not _is_built_so(state, attempt.built):
            return
        try:
            plan.compare(state)
        except Exception:
            # Another thread may have changed the state during the comparison.
            if not _is_built_so(state, attempt.built):
                return
            if attempt.doubted:
                raise
            attempt.doubted = True
            attempt.plan = plan.again()
            return
        attempt.uncompared, attempt.untried = "", plan.untried

    def _conclude(self, attempt: _Attempt) -> None:
        if attempt.removed:
            self._attempts += 1
            self._attempt = None
            if self._attempts == _STEPS:
                logger.info(
                    "rehearsal: nothing was tried: %d steps of %s were removed before they had "
                    "been read",
                    _STEPS,
                    self._engine.path,
                )
                self.stop()
            return
        if not attempt.failed:
            self._say_tried(attempt)
        self.stop()
        self._attempt = None

    # Reports.

    def _where(self, attempt: _Attempt) -> str:
        engine = self._engine
        who = f", rank {engine.rank} of {engine.world}" * (engine.world > 1)
        return f"rehearsal: step {attempt.step} of {engine.path}{who}"

    def _say_tried(self, attempt: _Attempt) -> None:
        untried = [f"the state was not compared: {attempt.uncompared}"] * bool(attempt.uncompared)
        untried += attempt.untried[:_LISTED]
        if len(attempt.untried) > _LISTED:
            untried.append(f"and {len(attempt.untried) - _LISTED} more")
        logger.info(
            "%s: resume() was tried: %.1f MiB, all that this rank wrote, were read and verified in "
            "%.3f s%s%s",
            self._where(attempt),
            attempt.nbytes / 2**20,
            time.perf_counter() - attempt.began,
            "" if attempt.uncompared else "; the step fits the state",
            f"; not tried: {'; '.join(untried)}" if untried else "",
        )

    def _judge(self, attempt: _Attempt, error: Exception, *, compared: bool) -> None:
        """
        Any thread. Keeps only the text of the error. `compared`: the error is of the comparison,
        and not of the reading.
        """
        attempt.failed = True
        where = self._where(attempt)
        if not _is_finding(error):
            self._say_failed(where, error)
            return
        said = f"{type(error).__name__}: {error}"
        options = self._engine.options
        if compared:
            message = f"{where} is saved, and resume() would fail: {said}"
        elif options.remote and not options.node_store:
            message = (
                f"{where} cannot be restored from here: {said}. If {options.remote} has it whole, "
                "resume() mends it from there"
            )
        else:
            message = f"{where} cannot be restored from here: {said}"
        logger.error("%s", message)
        self._found.append(message)

    def _say_failed(self, where: str, error: Exception) -> None:
        logger.log(
            logging.DEBUG if self.over else logging.WARNING,  # it is not needed any more
            "%s was not tried. The rehearsal itself failed, which says nothing of the step: %s: %s",
            where,
            type(error).__name__,
            str(
                error
            ),  # not the exception, which would keep the buffer alive if a handler keeps it
        )

    def _tell(self) -> None:
        while self._found:
            warnings.warn(self._found.popleft(), errors.CheckpointWarning, stacklevel=5)

    # The end.

    def stop(self) -> None:
        """Ends the rehearsal. Does not wait. Any thread."""
        if os.getpid() != self._pid:  # its thread may have held the lock at the fork
            return
        self._ended.set()
        self._newest = self._calm = None
        attempt = self._attempt
        if attempt is not None:
            attempt.plan = None
            attempt.blocks = []

    def end(self) -> None:
        """Ends the rehearsal, and waits a short time for its thread. Any thread."""
        self.stop()
        attempt = self._attempt
        thread = None if attempt is None else attempt.thread
        own = thread is threading.current_thread() or os.getpid() != self._pid
        if thread is not None and thread.ident is not None and not own:
            thread.join(_END)

    # The thread.

    def _heed(self) -> None:
        if self.over or self._engine.closed:
            raise _StoppedError

    def _wait(self) -> None:
        self._ended.wait(_PAUSE)
        self._heed()

    def _run(self, attempt: _Attempt) -> None:
        where = self._where(attempt)
        try:
            self._try(attempt, list(attempt.blocks))
        except (_StoppedError, errors.ClosedError):
            attempt.failed = True
            logger.info("%s was not read to its end: it is not needed any more", where)
        except _LeftOutError as error:
            attempt.failed = True
            logger.info("%s was not read: %s", where, str(error))
        except AgainError:
            attempt.failed = True
            logger.info("%s was not read to its end: saves came between too often", where)
        except errors.StepNotFoundError as error:
            attempt.removed = True
            logger.info("%s was removed before it had been read: %s", where, str(error))
        except Exception as error:
            self._judge(attempt, error, compared=False)
        finally:
            if self.over:  # the loop does not take it any more
                attempt.plan = None
            attempt.read.set()

    def _try(self, attempt: _Attempt, blocks: list[Block]) -> None:
        self._heed()
        if sum(len(block.names) for block in blocks) > _TENSORS:
            raise _LeftOutError(f"too many tensors: this rank has saved more than {_TENSORS}")
        if attempt.built.mark is not None:
            # Not the turn of reading, which takes long. Unregistered staging memory is not taken.
            with turn(opening_of(self._path), self._wait), self._reading("threads") as engine:
                self._surely(attempt, engine, lambda: self._open(attempt, engine))
        # While others have the turn, no memory is taken and no step is protected from removal.
        with turn(self._path, self._wait), self._reading(self._engine.options.io) as engine:
            slices = Slices(
                engine, attempt.step, _SLICE,
                stop=self._tick,
                rest=self._rest,
                surely=lambda call: self._surely(attempt, engine, call),
                generation=attempt.generation,
            )  # fmt: skip
            slices.read(self._written(blocks))
            attempt.nbytes = slices.nbytes

    @contextlib.contextmanager
    def _reading(self, io: str) -> Iterator[Engine]:
        """Opens a separate engine, because the engine of the loop may be closed at any time."""
        if memory_left() < _MEMORY:
            raise _LeftOutError(f"less than {_MEMORY >> 20} MiB of memory are left")
        if _place_of(self._path) != self._place:
            raise _LeftOutError(f"{self._path} is another directory now, or none")
        if _has_more_steps(self._path, _STEPS_OF_STORE):
            raise _LeftOutError(f"the store has more than {_STEPS_OF_STORE} steps")
        self._heed()
        rank, world = self._engine.rank, self._engine.world
        with reading(self._path, rank, world, io=io, hushed=True) as engine:
            self._heed()
            yield engine

    def _surely(self, attempt: _Attempt, engine: Engine, call: Callable[[], object]) -> None:
        """
        Calls a function that reads, and again if it fails: network file systems fail sometimes.
        """
        try:
            call()
        except errors.CheckpointError as error:
            if not _is_finding(error):
                raise
            logger.info("%s is read once more: %s", self._where(attempt), str(error))
        else:
            return
        self._ended.wait(_ONCE_MORE)
        self._heed()
        try:
            call()
        except errors.CheckpointError as error:
            if _is_finding(error):
                _check_there(attempt, engine)
            raise

    def _open(self, attempt: _Attempt, engine: Engine) -> None:
        """Makes the plan of the comparison."""
        self._give_way()  # opening an engine takes long
        with TrialReader(engine, attempt.step) as reader:
            check_generation(reader, attempt.generation)
            if _count(reader) > _TENSORS_OF_ALL:
                attempt.uncompared = f"the step has more than {_TENSORS_OF_ALL} tensors"
            elif len(reader.raw(engine.rank)) > _JSON:
                attempt.uncompared = f"its values are more than {_JSON >> 20} MiB of JSON"
            else:
                attempt.plan = Plan(reader, allow_pickle=self._allow_pickle)

    def _written(self, blocks: list[Block]) -> list[Bound]:
        """The boxes that this rank wrote, to be read."""
        bounds: list[Bound] = []
        for block in blocks:
            for name, what in zip(block.names, block.described, strict=True):
                self._heed()
                if 0 not in what.shape:
                    plain = what._replace(pointer=0, strides=None, gpu=CPU)
                    bounds.append(Bound(name.decode(), plain, None))
        return bounds

    def _rest(self, took: float) -> None:
        """Called before each slice. Rests, depending on the time the last one took."""
        self._ended.wait((_SHARE - 1) * took)
        self._heed()
        self._give_way()

    def _give_way(self) -> None:
        """
        Waits while a save runs, and while it may remove steps. Retention cannot remove a step that
        is open here before the next save, and the disk may be too small for that.
        """
        passed = 0
        while (save := self._newest) is not None and save is not self._calm:
            if not _has_ended(save):
                self._wait()
                continue
            passed += 1
            if passed > _SAVES:
                raise AgainError
            self._ended.wait(_RETENTION)
            self._calm = save
            self._heed()
        self._heed()

    def _tick(self) -> None:
        """Called while a slice is read."""
        self._heed()
        save = self._newest
        if save is not None and save is not self._calm:
            raise AgainError


def opening_of(path: str) -> str:
    """The name of the turn for opening the store. It differs from the turn for reading."""
    return os.path.join(path, "opening")


def _check_there(attempt: _Attempt, engine: Engine) -> None:
    """Raises StepNotFoundError if the whole step is gone: then a failed read is no finding."""
    try:
        with Reader(engine, attempt.step) as reader:
            check_generation(reader, attempt.generation)
    except errors.StepNotFoundError:
        raise
    except errors.CheckpointError:
        pass  # it was reported


def _is_finding(error: Exception) -> bool:
    """True if the error is about the step or its files."""
    return isinstance(error, errors.MismatchError) or (
        isinstance(error, errors.CheckpointError) and is_unreadable(error)
    )


def _has_ended(save: Save) -> bool:
    info = save.info
    return info.local or info.failed


def _count(reader: Reader) -> int:
    return int(reader.engine.ask(lib.ckpt_restore_count, reader._ptr))


def _is_built_so(state: dict[str, Any], built: _Built) -> bool:
    return built.mark is not None and _Built.of(state).mark == built.mark


def _place_of(path: str) -> tuple[int, int] | None:
    """Identifies a directory; None: unknown."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_more_steps(path: str, most: int) -> bool:
    """
    True if the store has more directories of steps, including remains. They are not read, because
    that would take long.
    """
    found = 0
    with os.scandir(path) as outer:
        for folder in outer:
            if not folder.is_dir(follow_symlinks=False):
                continue
            # A directory that was removed meanwhile.
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as inner:
                for entry in inner:
                    found += entry.is_dir(follow_symlinks=False)
                    if found > most:
                        return True
    return False
