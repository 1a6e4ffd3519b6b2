# SPDX-License-Identifier: Apache-2.0
"""Core: what lives as long as the engine of a Checkpointer, and how it is closed."""

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

#: Seconds added to save_timeout for the wait until a save has ended.
_GRACE = 15.0
#: Seconds for cancelled saves, at the end.
_FAREWELL = 2.0
#: Seconds for copies to the remote store, if the program ends by an exception or at its exit.
_HASTE = 10.0
#: CKPT_UNCHECKED_MANY is only logged: it does not mean that ranks have a part in common.
_UNPROVED = {
    lib.CKPT_UNCHECKED_GPU: "the tensors of this rank are not compared with those of other ranks, "
    "because its GPU cannot sample its memory",
    lib.CKPT_UNCHECKED_MEMORY: "at a save, the tensors of this rank were not compared with those "
    "of other ranks, because there was not enough memory or the GPU failed",
    lib.CKPT_UNCHECKED_BOXES: "several ranks save the same part of a tensor, and it was not "
    "compared between them: {boxes}",
}


class Core:
    """
    What lives as long as the engine. It is separate from the Checkpointer, so that a Checkpointer
    that was not closed can be closed when it is collected, and at the end of the program.
    """

    def __init__(self, engine: Engine, drain_timeout: float = 0.0) -> None:
        self.engine = engine
        note_open(engine)
        #: seconds that close() waits for the remote store
        self.drain_timeout = drain_timeout
        self.fences: Fences | None = None
        self.preemption: Preemption | None = None
        self.rehearsal: Rehearsal | None = None
        #: saves that are not known to have ended, oldest first
        self.saves: list[Save] = []
        self.waits = 0
        self.waited_ns = 0
        self.skips = 0
        #: number of steps that say_unsent() has warned of
        self.unsent = 0
        #: reasons that say_unchecked() has warned of
        self.unchecked = 0

    @property
    def deadline(self) -> float:
        """Seconds after which every save has ended."""
        return self.engine.options.save_timeout + _GRACE

    def fence(self) -> None:
        """Runs the fence of the last save. A change that it finds fails the save: _review()."""
        for save in list(self.saves):
            if not save._fenced:
                start = time.perf_counter()
                try:
                    save._fence(self.deadline, ahead=True)
                finally:
                    save._loop_time += time.perf_counter() - start

    def finish(self) -> None:
        """Waits for running saves, and closes. Raises only interrupts."""
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
        Waits for the copies to the remote store, `most` seconds at most. With many ranks each waits
        until the steps are complete there: rank 0 publishes them after the parts of all ranks.
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
        """Warns of steps that will never be in the remote store, once for each."""
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
                f"will never be in {self.engine.options.remote}{why}: see the log of libckpt",
                errors.CheckpointWarning,
                stacklevel=5,
            )

    def stop_rehearsal(self) -> None:
        """Stops the rehearsal, if there is one. Does not wait for its thread."""
        if self.rehearsal is not None:
            self.rehearsal.stop()

    def say_unchecked(self) -> None:
        """Warns that tensors are not compared between ranks, once for each reason."""
        if self.engine.world == 1 or self.engine.closed:
            return
        try:
            found, boxes = self.engine.unchecked()
        except errors.ClosedError:  # by another thread
            return
        fresh, self.unchecked = found & ~self.unchecked, found
        for reason, why in _UNPROVED.items():
            if fresh & reason:
                warnings.warn(
                    f"{self.engine.path}: {why.format(boxes=boxes)}; see the log of libckpt",
                    errors.CheckpointWarning,
                    stacklevel=5,
                )

    def shut(self) -> None:
        """Closes at once. Running saves are cancelled."""
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
            # So that the log has their outcome. A cancelled save does not wait for the disk.
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
            f"the Checkpointer of {core.engine.path} was not closed: use `with` or close()",
            ResourceWarning,
            stacklevel=2,
        )
        apart(core.finish)
