# SPDX-License-Identifier: Apache-2.0
"""
The rehearsal that a Checkpointer makes by itself: behind the loop, once, of the first step that is
committed.

A thread opens the step, and reads what this rank has written to it, which is verified by its
digests. So every byte is read by one rank, and no rank has to ask another one. The comparison with
the live state is made by the loop's own thread, in a call of the Checkpointer, and only if the
state is built as it was when it was saved. No object of the user is called. Ranks of a node take
turns to open the step, and to read. They compare at the same time, some seconds after the save: in
the loop they wait for each other, and so all are held up once, and not one after the other.

What is found is looked at a second time before it is told. A failure of the rehearsal itself says
nothing of the step: it is in the log, and no warning.
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
#: Of so many seconds it reads during one. The loop and its saves have the disk first, and others
#: may share it.
_SHARE = 4
#: Each tensor takes up to 0.1 ms of the loop's time when it is compared, and 30 KiB when it is
#: read. So many of the state are compared, and so many of this rank are read; a step is compared
#: that has so many of all ranks.
_TENSORS = 5_000
_TENSORS_OF_ALL = 20_000
#: The same of other values. Those of the step are bytes of JSON.
_VALUES = 20_000
_JSON = 1 << 20
#: Each part that is read looks through the store. One with more steps is left alone.
_STEPS_OF_STORE = 20
#: Bytes of memory that must be left. It takes half of that at most.
_MEMORY = 1 << 30
#: Seconds between looks whether it is this process's turn, or the save has ended.
_PAUSE = 0.2
#: Seconds after the end of a save in which older steps may be removed.
_RETENTION = 2.0
#: Seconds that the end waits for the thread, which looks ten times a second whether it is to end.
_END = 2.0
#: Seconds after the save until many ranks compare: by then they have usually opened the step.
_TOGETHER = 5.0
#: Seconds until what could not be read is read once more.
_ONCE_MORE = 2.0
#: So many steps are tried, where they are removed before they are read.
_STEPS = 3
#: So many saves in a row it lets pass.
_SAVES = 20
#: Parts of the state that the log lists.
_LISTED = 10
_CHANGED = "the state is not built as it was when it was saved"


class _StoppedError(Exception):
    """Nobody needs it any more."""


class _LeftOutError(Exception):
    """It is not read. The text says why, and is no warning."""


class _Built(NamedTuple):
    """How the state was built when it was saved."""

    #: None: it is not compared
    mark: int | None
    why: str = _CHANGED

    @staticmethod
    def of(state: dict[str, Any]) -> _Built:
        """As it is now."""
        try:
            return _Built(mark(state, _TENSORS, _VALUES))
        except TooManyError as error:
            return _Built(None, str(error))


class _End:
    """
    Set once, and waited for by one thread. threading.Event has a lock that a signal handler could
    meet on its own thread, and wait for.
    """

    def __init__(self) -> None:
        self._set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it has been."""
        return self._set

    def set(self) -> None:
        """Any thread. Waits for nothing."""
        if not self._set:
            self._set = True
            self._open()

    def wait(self, timeout: float) -> None:
        """Waits for it, for so many seconds at most."""
        if self._gate.acquire(timeout=timeout):
            self._open()

    def _open(self) -> None:
        # Two may have set it at once.
        with contextlib.suppress(RuntimeError):
            self._gate.release()


class _Attempt:
    """One step. What the thread has found is there when `read` is set."""

    def __init__(self, save: Save, blocks: list[Block], built: _Built) -> None:
        self.save = save
        self.step = save.step
        #: what this rank has written
        self.blocks = blocks
        self.built = built
        self.generation = 0
        self.began = 0.0
        #: when it may be compared
        self.due = 0.0
        self.thread: threading.Thread | None = None
        #: set by the thread, and taken by the loop
        self.plan: Plan | None = None
        #: the comparison has found something, and is made once more
        self.doubted = False
        self.read = threading.Event()
        self.nbytes = 0
        #: the step was removed before it was read
        self.removed = False
        #: something has been said of it that ends it
        self.failed = False
        #: why it was not compared; empty: it was
        self.uncompared = built.why
        self.untried: list[str] = []


class Rehearsal:
    """
    `note` and `look` are called by the thread of the loop, `stop` and `end` by any. `_ended` is
    made once: the thread that waits for it hears whoever sets it.
    """

    def __init__(self, engine: Engine, *, allow_pickle: bool) -> None:
        self._engine = engine
        #: the program may go to another directory
        self._path = os.path.abspath(engine.path)
        self._place = _place_of(self._path)
        self._allow_pickle = allow_pickle
        self._pid = os.getpid()
        self._ended = _End()
        self._attempt: _Attempt | None = None
        self._attempts = 0
        #: a signal handler may come while a call is in here, and make another one
        self._busy = False
        #: the save that was started last; None: nobody needs to know
        self._newest: Save | None = None
        #: a save that has ended, and has removed what it removes
        self._calm: Save | None = None
        #: warnings that are still to be given
        self._found: collections.deque[str] = collections.deque()

    @property
    def over(self) -> bool:
        """Nothing is tried any more."""
        return self._ended.is_set()

    def note(self, save: Save, state: dict[str, Any] | None, blocks: list[Block]) -> None:
        """A save has started. `state`: that of the Checkpointer; None: the save is of another."""
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
        """Goes on, if there is anything to go on with. Raises nothing but what warnings raise."""
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
        ended = attempt.read.is_set()  # before the plan is taken, which is there by then
        if attempt.plan is not None and time.perf_counter() < attempt.due:
            return
        plan, attempt.plan = attempt.plan, None
        if plan is not None and state is not None:
            self._compare(attempt, plan, state)
        if ended and attempt.plan is None:
            self._conclude(attempt)

    def _begin(self, attempt: _Attempt) -> None:
        if attempt.save._failure is not None:
            self._attempt = None  # the next one that is saved is tried
            return
        attempt.generation = attempt.save.info.generation
        attempt.began = time.perf_counter()
        attempt.due = attempt.began + _TOGETHER * (self._engine.world > 1)
        # A finalizer that finds itself on it waits for no lock that it holds.
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
            # Another thread of the program may have changed it meanwhile, and back.
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

    # What is said.

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
        Any thread. Keeps nothing of the error but its text. `compared`: the comparison found it,
        and not the reading.
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
            logging.DEBUG if self.over else logging.WARNING,  # nobody needs it any more
            "%s was not tried. The rehearsal itself failed, which says nothing of the step: %s: %s",
            where,
            type(error).__name__,
            str(error),  # a handler may keep what it is given, and an exception keeps the buffer
        )

    def _tell(self) -> None:
        while self._found:
            warnings.warn(self._found.popleft(), errors.CheckpointWarning, stacklevel=5)

    # The end.

    def stop(self) -> None:
        """Ends it, and waits for nothing. Any thread."""
        if os.getpid() != self._pid:  # its thread may have had the event's lock at the fork
            return
        self._ended.set()
        self._newest = self._calm = None
        attempt = self._attempt
        if attempt is not None:
            attempt.plan = None
            attempt.blocks = []

    def end(self) -> None:
        """Ends it, and gives the thread a little time to end. Any thread."""
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
            if self.over:  # nobody takes it any more
                attempt.plan = None
            attempt.read.set()

    def _try(self, attempt: _Attempt, blocks: list[Block]) -> None:
        self._heed()
        if sum(len(block.names) for block in blocks) > _TENSORS:
            raise _LeftOutError(f"too many tensors: this rank has saved more than {_TENSORS}")
        if attempt.built.mark is not None:
            # Another turn than that of reading, which takes long. Staging memory that is not
            # registered is not taken.
            with turn(opening_of(self._path), self._wait), self._reading("threads") as engine:
                self._surely(attempt, engine, lambda: self._open(attempt, engine))
        # Neither memory is taken nor a step kept from removal while others have the turn.
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
        """An engine of its own. Nothing is asked of that of the loop, which may be closed."""
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
        Calls what reads, and once more if it cannot: file systems over a network fail now and then.
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
        """Finds what is to be compared."""
        self._give_way()  # an engine takes its time to open
        with TrialReader(engine, attempt.step) as reader:
            check_generation(reader, attempt.generation)
            if _count(reader) > _TENSORS_OF_ALL:
                attempt.uncompared = f"the step has more than {_TENSORS_OF_ALL} tensors"
            elif len(reader.raw(engine.rank)) > _JSON:
                attempt.uncompared = f"its values are more than {_JSON >> 20} MiB of JSON"
            else:
                attempt.plan = Plan(reader, allow_pickle=self._allow_pickle)

    def _written(self, blocks: list[Block]) -> list[Bound]:
        """The boxes that this rank has written, as what is to be read."""
        bounds: list[Bound] = []
        for block in blocks:
            for name, what in zip(block.names, block.described, strict=True):
                self._heed()
                if 0 not in what.shape:
                    plain = what._replace(pointer=0, strides=None, gpu=CPU)
                    bounds.append(Bound(name.decode(), plain, None))
        return bounds

    def _rest(self, took: float) -> None:
        """Before each slice; the last one took so long."""
        self._ended.wait((_SHARE - 1) * took)
        self._heed()
        self._give_way()

    def _give_way(self) -> None:
        """
        Waits while a save runs and may then remove steps. One that is open here stays until the
        next save, and the disk may have no room for it.
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
        """While a slice is read."""
        self._heed()
        save = self._newest
        if save is not None and save is not self._calm:
            raise AgainError


def opening_of(path: str) -> str:
    """Names the turn of those that open the store to compare, beside that of those that read."""
    return os.path.join(path, "opening")


def _check_there(attempt: _Attempt, engine: Engine) -> None:
    """What is missing or cannot be read is no finding where the whole step is gone: raises that."""
    try:
        with Reader(engine, attempt.step) as reader:
            check_generation(reader, attempt.generation)
    except errors.StepNotFoundError:
        raise
    except errors.CheckpointError:
        pass  # it has been told


def _is_finding(error: Exception) -> bool:
    """True if the step, or its files, are to blame."""
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
    """Which directory it is; None: that is not known."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_more_steps(path: str, most: int) -> bool:
    """
    True if there are more directories in those of a store: its steps, and what is left of some. To
    know more of them, much of each would have to be read.
    """
    found = 0
    with os.scandir(path) as outer:
        for folder in outer:
            if not folder.is_dir(follow_symlinks=False):
                continue
            # One that is removed meanwhile has none.
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as inner:
                for entry in inner:
                    found += entry.is_dir(follow_symlinks=False)
                    if found > most:
                        return True
    return False
