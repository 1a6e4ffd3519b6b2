# SPDX-License-Identifier: Apache-2.0
"""
The rehearsal that a Checkpointer makes by itself: behind the loop, once, of the first step that is
committed.

A thread opens the step and reads what this rank has written to it, which is verified by its
digests. So every byte is read by one rank, and no rank has to ask another one. The comparison with
the live state is made by the loop's own thread, in a call of the Checkpointer, and only if the
state is built as it was when it was saved. No object of the user is called.

A failure of the rehearsal itself says nothing of the step: it is in the log, and no warning.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from . import _errors as errors
from ._door import Helper
from ._engine import Engine, logger
from ._gpus import CPU
from ._load import is_unreadable
from ._native import lib
from ._restore import _has_special, _Live
from ._room import memory_left
from ._slices import AgainError, Bound, Slices, reading
from ._structure import TooManyError, mark
from ._throwaway import Copier, UntriedError
from ._trial import Trial, TrialReader
from ._turn import turn
from ._typed import Json, Path

if TYPE_CHECKING:
    import torch

    from ._reader import Reader
    from ._save import Save
    from ._tensors import Block

#: Bytes that are read at a time.
_SLICE = 256 << 20
#: Each tensor takes 0.1 ms of the loop's time when it is compared, and 30 KiB when it is read. So
#: many of the state are compared, and so many of this rank are read; a step is compared that has so
#: many of all ranks.
_TENSORS = 5_000
_TENSORS_OF_ALL = 20_000
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
#: So many steps are tried, where they are removed before they are read.
_STEPS = 3
#: Parts of the state that the log lists.
_LISTED = 10
_CHANGED = "the state is not built as it was when it was saved"


class _StoppedError(Exception):
    """Nobody needs it any more."""


class _LeftOutError(Exception):
    """It is not read. The text says why, and is no warning."""


class _NoCopies(Copier):
    """Objects in the middle of their run may refuse what new ones take: none is tried."""

    def __init__(self) -> None:
        super().__init__(0)

    def copy(self, value: Any, *, listed: bool) -> NoReturn:  # noqa: ARG002
        raise UntriedError("an object, which only libckpt.rehearse() tries")


class _Plan(Trial):
    """The comparison alone: nothing is read, and no memory is taken."""

    def __init__(self, reader: TrialReader, *, allow_pickle: bool) -> None:
        super().__init__(reader, allow_pickle=allow_pickle, most=0, copier=_NoCopies())

    def _check_copy(self, tag: str, node: dict[str, Json], live: Any, path: Path) -> None:
        """The copier says why there is none."""

    def _want(self, node: Json, path: Path) -> None:
        if _has_special(node):
            _Live._want(self, node, path)
            return
        self._decoder.check(node)
        self._look_at(node)

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """It fits, and was looked at when it was saved."""

    def _rng(self) -> Json:
        """They are looked at as values, and get no memory."""
        node = super()._rng()
        self._want(node, (None, "rng"))
        return {}


class _Attempt:
    """One step. What the thread has found is there when `read` is set."""

    def __init__(self, save: Save, blocks: list[Block], built: int | None) -> None:
        self.save = save
        self.step = save.step
        #: what this rank has written
        self.blocks = blocks
        #: the mark of the state; None: it is not compared
        self.built = built
        self.generation = 0
        self.began = 0.0
        self.thread: threading.Thread | None = None
        #: set by the thread, and taken by the loop
        self.plan: _Plan | None = None
        self.read = threading.Event()
        self.nbytes = 0
        #: the step was removed before it was read
        self.removed = False
        #: something has been said of it that ends it
        self.failed = False
        #: why it was not compared; empty: it was
        self.uncompared = f"it has more than {_TENSORS} tensors" if built is None else _CHANGED
        self.untried: list[str] = []


class Rehearsal:
    """
    `note` and `look` are called by the thread of the loop, `stop` and `end` by any. `_ended` is
    made once: who waits on it hears whoever sets it.
    """

    def __init__(self, engine: Engine, *, allow_pickle: bool) -> None:
        self._engine = engine
        #: the program may go to another directory
        self._path = os.path.abspath(engine.path)
        self._allow_pickle = allow_pickle
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._attempt: _Attempt | None = None
        self._attempts = 0
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
        built: int | None = None
        try:
            built = mark(state, _TENSORS)
        except TooManyError:
            pass
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
        if attempt is not None and not self.over:
            try:
                self._advance(attempt, state)
            except Exception as error:
                self._judge(attempt, error, compared=True)
                self.stop()
        self._tell()

    def _advance(self, attempt: _Attempt, state: dict[str, Any] | None) -> None:
        if attempt.thread is None:
            if attempt.save._settled:
                self._begin(attempt)
            return
        ended = attempt.read.is_set()  # before the plan is taken, which is there by then
        plan, attempt.plan = attempt.plan, None
        if plan is not None and state is not None:
            self._compare(attempt, plan, state)
        if ended:
            self._conclude(attempt)

    def _begin(self, attempt: _Attempt) -> None:
        if attempt.save._failure is not None:
            self._attempt = None  # the next one that is saved is tried
            return
        attempt.generation = attempt.save.info.generation
        attempt.began = time.perf_counter()
        self._calm = attempt.save
        # A finalizer that finds itself on it waits for no lock that it holds.
        attempt.thread = Helper(
            target=self._run, args=(attempt,), name="libckpt-rehearsal", daemon=True
        )
        try:
            attempt.thread.start()
        except Exception:
            attempt.thread = None
            raise

    def _compare(self, attempt: _Attempt, plan: _Plan, state: dict[str, Any]) -> None:
        if not _is_built_so(state, attempt.built):
            return
        try:
            plan.compare(state)
        except Exception:
            # Another thread of the program may have changed it meanwhile.
            if _is_built_so(state, attempt.built):
                raise
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
        logger.warning(
            "%s was not tried. The rehearsal itself failed, which says nothing of the step: %s: %s",
            where,
            type(error).__name__,
            error,
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
            logger.info("%s was not read: %s", where, error)
        except AgainError:
            attempt.failed = True
            logger.info("%s was not read to its end: saves came between too often", where)
        except Exception as error:
            if self._is_removed(attempt, error):
                attempt.removed = True
                logger.info("%s was removed before it had been read: %s", where, error)
            else:
                self._judge(attempt, error, compared=False)
        finally:
            if self.over:  # nobody takes it any more
                attempt.plan = None
            attempt.read.set()

    def _is_removed(self, attempt: _Attempt, error: Exception) -> bool:
        """What is missing or cannot be read is no finding where the whole step is gone."""
        if isinstance(error, errors.StepNotFoundError):
            return True
        if not _is_finding(error):
            return False
        name = f"g{attempt.generation:06d}/step-{attempt.step:010d}/manifest.json"
        try:
            os.stat(os.path.join(self._path, name))
        except FileNotFoundError:
            return True
        except OSError:
            pass
        return False

    def _try(self, attempt: _Attempt, blocks: list[Block]) -> None:
        self._heed()
        if sum(len(block.names) for block in blocks) > _TENSORS:
            raise _LeftOutError(f"too many tensors: this rank has saved more than {_TENSORS}")
        # Neither memory is taken nor a step kept from removal while others have the turn.
        with turn(self._path, self._wait):
            self._give_way()
            if memory_left() < _MEMORY:
                raise _LeftOutError(f"less than {_MEMORY >> 20} MiB of memory are left")
            rank, world, io = self._engine.rank, self._engine.world, self._engine.options.io
            with reading(self._path, rank, world, io=io, hushed=True) as engine:
                self._check_store(engine)
                self._open(attempt, engine)
                slices = Slices(engine, attempt.step, _SLICE, self._tick, self._rest)
                slices.read(self._written(blocks))
                attempt.nbytes = slices.nbytes

    def _check_store(self, engine: Engine) -> None:
        if engine.run_id() != self._engine.run_id():
            raise _LeftOutError(f"{self._path} holds the store of another run now")
        self._heed()
        if len(engine.steps()) > _STEPS_OF_STORE:
            raise _LeftOutError(f"the store has more than {_STEPS_OF_STORE} steps")
        self._heed()

    def _open(self, attempt: _Attempt, engine: Engine) -> None:
        """Finds what is to be compared."""
        with TrialReader(engine, attempt.step) as reader:
            if reader.generation != attempt.generation:
                raise errors.StepNotFoundError(
                    f"step {attempt.step} is now of generation {reader.generation}"
                )
            if attempt.built is not None and _count(reader) > _TENSORS_OF_ALL:
                attempt.uncompared = f"the step has more than {_TENSORS_OF_ALL} tensors"
            elif attempt.built is not None:
                attempt.plan = _Plan(reader, allow_pickle=self._allow_pickle)

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
        """
        Before each slice; the last one took so long. The loop and its saves have the disk first.
        """
        self._ended.wait(took)
        self._heed()
        self._give_way()

    def _give_way(self) -> None:
        """
        Waits while a save runs and may then remove steps. One that is open here stays until the
        next save, and the disk may have no room for it.
        """
        while (save := self._newest) is not None and save is not self._calm:
            if _has_ended(save):
                self._ended.wait(_RETENTION)
                self._calm = save
                self._heed()
            else:
                self._wait()
        self._heed()

    def _tick(self) -> None:
        """While a slice is read."""
        self._heed()
        save = self._newest
        if save is not None and save is not self._calm:
            raise AgainError


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


def _is_built_so(state: dict[str, Any], built: int | None) -> bool:
    try:
        return mark(state, _TENSORS) == built
    except TooManyError:
        return False
