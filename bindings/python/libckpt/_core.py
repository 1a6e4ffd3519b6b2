# SPDX-License-Identifier: Apache-2.0
"""What a Checkpointer has while its engine is open, and how that ends."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

from . import _errors as errors
from ._call_guard import apart
from ._calls import text
from ._engine import Engine
from ._log import logger
from ._native import lib
from ._twice import note_open

if TYPE_CHECKING:
    from ._fence import Fences
    from ._preempt import Preemption
    from ._rehearsal import Rehearsal
    from ._save import Save

#: Beyond the timeout of a save, for the wait for its end.
_GRACE = 15.0
#: For saves that were given up, at the end.
_FAREWELL = 2.0
#: For what is on its way to the remote store, where the program ends in haste.
_HASTE = 10.0
#: CKPT_UNCHECKED_MANY is for the log: it does not say that ranks have any part in common.
_UNPROVED = {
    lib.CKPT_UNCHECKED_GPU: "whether this rank holds what others hold is not found out, as its GPU "
    "takes no samples of its memory",
    lib.CKPT_UNCHECKED_MEMORY: "whether this rank held what others hold was not found out at a "
    "save, for want of memory or as its GPU failed",
    lib.CKPT_UNCHECKED_BOXES: "several ranks save the same part of a tensor, and whether it is the "
    "same on them was not found out: {boxes}",
}


class Core:
    """
    What lives as long as the engine does, apart from the Checkpointer, so that a forgotten one can
    be closed when it is collected and at the end of the program.
    """

    def __init__(self, engine: Engine, drain_timeout: float = 0.0) -> None:
        self.engine = engine
        note_open(engine)
        #: seconds that the end waits for the remote store
        self.drain_timeout = drain_timeout
        self.fences: Fences | None = None
        self.preemption: Preemption | None = None
        self.rehearsal: Rehearsal | None = None
        #: not yet known to have ended; oldest first
        self.saves: list[Save] = []
        self.waits = 0
        self.waited_ns = 0
        self.skips = 0
        #: steps of which say_unsent() has warned
        self.unsent = 0
        #: reasons of which say_unchecked() has warned
        self.unchecked = 0

    @property
    def deadline(self) -> float:
        """How long a save may take to end, whatever happens."""
        return self.engine.options.save_timeout + _GRACE

    def fence(self) -> None:
        """Runs the fence of the last save. What it finds costs that save, see _review()."""
        for save in list(self.saves):
            if not save._fenced:
                start = time.perf_counter()
                try:
                    save._fence(self.deadline, ahead=True)
                finally:
                    save._loop_time += time.perf_counter() - start

    def finish(self) -> None:
        """Lets what is under way come to its end, and closes. Raises nothing but interrupts."""
        if self.engine.closed or self.engine.foreign:
            return
        self.stop_rehearsal()
        try:
            for save in list(self.saves):
                save._fence(self.deadline)
            self.engine.drain(self.deadline)
            self.upload(_HASTE)
            self.say_unchecked()
        except errors.CheckpointError as error:
            logger.error("closing %s: %s", self.engine.path, error)
        finally:
            self.shut()

    def upload(self, most: float) -> None:
        """
        Lets the remote store have what is on its way. Of many ranks each waits until the steps are
        there whole: rank 0, which publishes them, does not end before the parts of others come.
        """
        engine, remote = self.engine, self.engine.options.remote
        if not remote:
            return
        timeout = min(self.drain_timeout, most)
        if not engine.drain_remote(0):
            logger.info(
                "closing %s: waiting for %s to be in %s, %g s at most",
                engine.path, _on_its_way(engine), remote, timeout,
            )  # fmt: skip
            engine.drain_remote(timeout)
        stats = engine.stats()
        if stats["uploads_waiting"]:
            logger.warning(
                "closing %s: after %g s %s are not known to be in %s: the next start of the job "
                "sends what is not",
                engine.path, timeout, _on_its_way(engine), remote,
            )  # fmt: skip
        self.say_unsent()

    def say_unsent(self) -> None:
        """Warns, once for each number, of steps that the remote store will never have."""
        if not self.engine.options.remote or self.engine.closed:
            return
        stats = self.engine.stats()
        failed = stats["uploads_failed"] - self.unsent
        self.unsent += failed
        if failed:
            code = stats["remote_code"]
            why = f" ({text(lib.ckpt_strerror(code))})" if code else ""
            warnings.warn(
                f"{failed} committed {'step' if failed == 1 else 'steps'} of {self.engine.path} "
                f"will never be in {self.engine.options.remote}{why}: the log of libckpt has more",
                errors.CheckpointWarning,
                stacklevel=5,
            )

    def stop_rehearsal(self) -> None:
        """Gives it up, if there is one, and does not wait for its end."""
        if self.rehearsal is not None:
            self.rehearsal.stop()

    def say_unchecked(self) -> None:
        """Warns, once for each reason, that it is not found out whether ranks hold the same."""
        if self.engine.world == 1 or self.engine.closed:
            return
        try:
            found, boxes = self.engine.unchecked()
        except errors.ClosedError:  # on another thread, meanwhile
            return
        fresh, self.unchecked = found & ~self.unchecked, found
        for reason, why in _UNPROVED.items():
            if fresh & reason:
                warnings.warn(
                    f"{self.engine.path}: {why.format(boxes=boxes)}; the log of libckpt has more",
                    errors.CheckpointWarning,
                    stacklevel=5,
                )

    def shut(self) -> None:
        """Closes at once. What is still under way is given up."""
        self.stop_rehearsal()
        if self.fences is not None:
            self.fences.remove()
        if self.preemption is not None:
            self.preemption.remove()
        if self.engine.closed or self.engine.foreign:
            return
        try:
            for save in list(self.saves):
                save._cancel()
            # So that the log says what became of them. A cancelled save does not wait for the disk.
            if self.saves:
                self.engine.drain(_FAREWELL)
        finally:
            self.engine.close()
            if self.rehearsal is not None:
                self.rehearsal.end()


def _on_its_way(engine: Engine) -> str:
    stats = engine.stats()
    return f"{stats['uploads_waiting']} steps ({stats['uploads_waiting_bytes'] / 2**20:.1f} MiB)"


def forgotten(core: Core) -> None:
    if not core.engine.closed and not core.engine.foreign:
        warnings.warn(
            f"the checkpointer of {core.engine.path} was not closed: use `with` or close()",
            ResourceWarning,
            stacklevel=2,
        )
        apart(core.finish)
