# SPDX-License-Identifier: Apache-2.0
"""
The rehearsal that a Checkpointer makes by itself: behind the loop, once, after the first step that
is committed.

A thread opens the step, and reads it. What looks at the live state is done by the loop's own
thread, in a call of the Checkpointer: so is what calls the user's objects, which never know of
another thread. No rank waits for another one here: a rank reads what resume() would read for it, of
what all ranks have alike its share, and says nothing to others.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any

from . import _errors as errors
from ._engine import Engine, logger
from ._load import _is_unreadable
from ._loaders import is_of_user
from ._ranks import own_prefix
from ._slices import Bound, Slices, reading
from ._throwaway import Copier
from ._trial import Trial, TrialReader
from ._turn import turn

if TYPE_CHECKING:
    from ._save import Save
    from ._state import Planner

#: Bytes that are read at a time, and that are given to objects.
_SLICE = 256 << 20
_OBJECTS = 32 << 20
#: Seconds between looks whether it is this process's turn.
_PAUSE = 0.2
#: Seconds that the end waits for the thread, which looks ten times a second whether it is to end.
_END = 10.0
#: So often the loop comes by while the state is not as it was saved, before that is given up.
_LOOKS = 1000
#: So many steps are tried, where they are removed before they are read.
_STEPS = 3


class _StoppedError(Exception):
    """Nobody needs it any more."""


class Rehearsal:
    """One rehearsal. All but `end` is called by the thread of the loop."""

    def __init__(self, engine: Engine, *, allow_pickle: bool) -> None:
        self._engine = engine
        self._allow_pickle = allow_pickle
        self._pid = os.getpid()
        self._save: Save | None = None
        self._state: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._over = False
        self._looks = 0
        self._steps = 0
        self._began = 0.0
        self._ended = threading.Event()
        #: the thread has opened the step, and waits for `_go`
        self._opened = threading.Event()
        self._go = threading.Event()
        #: the thread has read it, or has failed
        self._done = threading.Event()
        self._trial: Trial | None = None
        self._nbytes = 0
        self._failed: Exception | None = None

    def note(self, save: Save, state: dict[str, Any]) -> None:
        """A save has started."""
        if not self._over and self._thread is None:
            self._save, self._state = save, state

    def look(self, planner: Planner) -> None:
        """Goes on, if there is anything to go on with. Raises nothing but what warnings raise."""
        if self._over or self._save is None or os.getpid() != self._pid:
            return
        failed: Exception | None = None
        try:
            over = self._advance(planner)
        except Exception as error:
            over, failed = True, error
        if over and not self._over:  # else another thread closes
            self._finish(failed)

    def _advance(self, planner: Planner) -> bool:
        """True: all has been tried. Raises what is found."""
        save = self._save
        assert save is not None
        if self._thread is None:
            if save._settled and save._failure is None:
                self._begin(save.step)
        elif self._done.is_set():
            return self._conclude()
        elif self._opened.is_set() and not self._go.is_set():
            self._looks += 1
            if planner.unchanged(self._state):
                assert self._trial is not None
                self._trial.compare(self._state)
                self._go.set()
            elif self._looks > _LOOKS:
                self._say_untried("the state is another one than was saved")
        return False

    def _begin(self, step: int) -> None:
        self._steps += 1
        self._began = time.perf_counter()
        self._opened, self._go, self._done = (threading.Event() for _ in range(3))
        self._trial = self._failed = None
        self._thread = threading.Thread(
            target=self._run, args=(step,), name="libckpt-rehearsal", daemon=True
        )
        self._thread.start()

    def _conclude(self) -> bool:
        if isinstance(self._failed, errors.StepNotFoundError) and self._steps < _STEPS:
            # It was removed by retention. The next one that is committed is tried.
            self._save, self._thread = None, None
            return False
        if self._failed is not None:
            raise self._failed
        assert self._trial is not None
        for load in self._trial.loads:
            self._trial.load(load)
        self._trial.decode(self._trial.rng)
        for leaf in self._trial.leaves:
            self._trial.value(leaf)
        return True

    # What is said.

    def _finish(self, error: Exception | None) -> None:
        save, trial, engine = self._save, self._trial, self._engine
        if save is None or (trial is None and error is None):
            return
        self._stop()
        who = f", rank {engine.rank} of {engine.world}" * (engine.world > 1)
        where = f"rehearsal: step {save.step} of {engine.path}{who}"
        if isinstance(error, _StoppedError):
            return
        if isinstance(error, (errors.StepNotFoundError, errors.ClosedError)):
            logger.info("%s is not there any more, and nothing was tried: %s", where, error)
        elif error is not None and _is_finding(error):
            self._warn(f"{where} is saved, and resume() would fail: {_words(error)}", error)
        elif error is not None:
            self._warn(f"{where} was not tried, for the rehearsal itself failed: {error!r}", error)
        else:
            assert trial is not None
            untried = f"; not tried: {'; '.join(trial.untried)}" if trial.untried else ""
            logger.info(
                "%s: in %.3f s resume() was tried without harm: %.1f MiB were read and verified, "
                "load_state_dict() was called of %d objects%s",
                where,
                time.perf_counter() - self._began,
                self._nbytes / 2**20,
                len(trial.loads),
                untried,
            )

    def _say_untried(self, why: str) -> None:
        self._stop()
        logger.info("rehearsal: nothing is tried of %s: %s", self._engine.path, why)

    def _warn(self, message: str, error: Exception) -> None:
        logger.error("%s", message)
        warning = errors.CheckpointWarning(message)
        warning.__cause__ = error
        warnings.warn(warning, stacklevel=6)

    # The thread.

    def _stop(self) -> None:
        self._over = True
        self._save, self._trial, self._state = None, None, {}
        self._ended.set()
        self._go.set()

    def look_last(self, planner: Planner) -> None:
        """Says what has been found by now. What is not there yet is not waited for."""
        if self._done.is_set():
            self.look(planner)

    def end(self) -> None:
        """Ends at once. Any thread."""
        if os.getpid() != self._pid:
            return
        self._stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END)

    def _heed(self) -> None:
        if self._ended.is_set() or self._engine.closed:
            raise _StoppedError

    def _wait(self) -> None:
        self._heed()
        self._ended.wait(_PAUSE)

    def _run(self, step: int) -> None:
        try:
            self._try(step)
        except Exception as error:
            self._failed = error
        finally:
            self._done.set()

    def _try(self, step: int) -> None:
        path, rank, world = self._engine.path, self._engine.rank, self._engine.world
        with reading(path, rank, world) as engine:
            with TrialReader(engine, step) as reader:
                self._trial = Trial(
                    reader,
                    allow_pickle=self._allow_pickle,
                    most=_OBJECTS,
                    copier=Copier(_OBJECTS),
                )
            # Nothing is kept from removal while the loop, or another rank, lets this one wait.
            self._opened.set()
            self._go.wait()
            self._heed()
            slices = Slices(engine, step, _SLICE, self._heed)
            with turn(path, self._wait):
                slices.read([bound for bound in reader.bounds if self._is_mine(bound)])
                slices.fill(reader.fresh)
            self._nbytes = slices.nbytes

    def _is_mine(self, bound: Bound) -> bool:
        """What all ranks would read alike is read by one of them."""
        rank, world = self._engine.rank, self._engine.world
        peers = self._engine.peers or tuple(range(world))
        if bound.what.start is not None or bound.name.startswith(own_prefix(rank)):
            return True
        return zlib.crc32(bound.name.encode()) % len(peers) == peers.index(rank)


def _is_finding(error: Exception) -> bool:
    """False: it says nothing of the step, and may be gone the next time."""
    if isinstance(error, errors.CheckpointError):
        return not error.transient or _is_unreadable(error)
    return is_of_user(error)


def _words(error: BaseException) -> str:
    # Python 3.10 has no notes, which say where the object is.
    notes: Any = getattr(error, "__notes__", None) or getattr(error, "_libckpt_where", ())
    return f"{type(error).__name__}: {error}" + "".join(f" ({note})" for note in notes)
