# SPDX-License-Identifier: Apache-2.0
"""The Save of a step that resume() has found in the store."""

from __future__ import annotations

import threading
import time

from . import _errors as errors
from ._calls import error_class
from ._engine import Engine
from ._native import lib
from ._options import Options
from ._save import Save, SaveInfo, _seconds_or_none, level_number
from ._waiting import wait_until

#: Seconds between two listings of the remote store: the first pause, and the longest.
_PAUSE, _PAUSE_MAX = 0.2, 5.0
#: Seconds after which a wait without a timeout ends, if the rank cannot know the outcome.
_MOST = 3600.0
#: Seconds between two checks of the result of a listing.
_SLICE = 0.05


class ExistingSave(Save):
    """
    A step that is committed in the store. It is staged and local, and all sizes and times in `info`
    are 0. It is remote when the remote store has it: a start copies what is not there. Only a
    listing of the remote store shows that for certain, and a separate thread makes it.
    """

    def __init__(self, engine: Engine, step: int, generation: int) -> None:
        super().__init__(engine, step)
        self._generation = generation
        self._fenced = self._settled = True
        self._is_there = False
        #: why it will not be there, or why the wait has ended
        self._lost: errors.CheckpointError | None = None
        #: wait() has raised it
        self._lost_told = False
        #: error of the last listing
        self._look_error: Exception | None = None
        self._listing: _Listing | None = None
        self._pause = _PAUSE
        self._next_look = 0.0
        #: when the first listing began
        self._since: float | None = None
        # The first rank of a store copies its old steps.
        self._sends = engine.rank == (engine.peers[0] if engine.peers else 0)

    @property
    def info(self) -> SaveInfo:
        """What is known of the step."""
        known = super().info
        return known._replace(generation=self._generation, staged=True, local=True)

    def wait(self, level: str = "local", timeout: float | None = None) -> None:
        """
        Returns at once, except for "remote": see Save.wait(). If it cannot be known whether the
        step will be there (the remote store cannot be listed, or another rank copies it), a wait
        without `timeout` raises WaitTimeoutError after an hour.
        """
        number, timeout = level_number(level), _seconds_or_none(timeout)
        self._guard()
        if self._is_beneath(number):
            return
        end = None if timeout is None else time.monotonic() + timeout
        if self._lost_told:  # it may be there by now
            self._lost = self._since = None
            self._lost_told = False
        wait_until(
            lambda: self._look_or_raise(limited=end is None),
            end,
            lambda: errors.timed_out(
                f"step {self._step}: not complete after {timeout:g} s; the log has errors of the "
                "copy, if there are any",
                step=self._step,
            ),
            most=_SLICE,
        )

    def done(self, level: str = "local") -> bool:
        """
        True if the step has reached `level`, will never be in the remote store, or if that cannot
        be known (see wait()). Does not wait.
        """
        number = level_number(level)
        self._guard()
        return self._is_beneath(number) or self._look(limited=True) or self._lost is not None

    def _is_beneath(self, number: int) -> bool:
        """True if it has that level for certain. Raises LevelError if it is not configured."""
        if number in (lib.CKPT_LEVEL_STAGED, lib.CKPT_LEVEL_LOCAL):
            return True
        options = self._engine.options
        there = number == lib.CKPT_LEVEL_REMOTE and options.remote
        if not there or (options.remote_every and self._step % options.remote_every):
            what = "remote store" if number == lib.CKPT_LEVEL_REMOTE else "peer"
            raise errors.LevelError(
                f"step {self._step} goes to no {what}: wait for 'local'",
                code=lib.CKPT_ELEVEL,
                step=self._step,
            )
        return False

    def _look(self, *, limited: bool) -> bool:
        """True if it is known to be in the remote store. Does not wait. May start a listing."""
        if self._is_there or self._lost is not None:
            return self._is_there
        stats = self._engine.stats()
        now = time.monotonic()
        listing = self._listing
        if listing is not None and listing.over.is_set():
            self._listing = None
            self._hear(listing, stats["remote_code"])
            self._next_look, self._pause = now + self._pause, min(2 * self._pause, _PAUSE_MAX)
        if self._is_there or self._lost is not None:
            return self._is_there
        if not self._may_be_there(stats):
            return False
        self._since = now if self._since is None else self._since
        if limited and now >= self._since + _MOST:
            self._end_wait()
        elif self._listing is None and now >= self._next_look:
            self._listing = _Listing(self._engine, self._step, self._generation)
            self._listing.is_last = self._sends and not stats["uploads_waiting"]
            self._listing.start()
        return False

    def _look_or_raise(self, *, limited: bool) -> bool:
        """Like _look(), but raises if the step will not be there, or the wait has ended."""
        is_there = self._look(limited=limited)
        if not is_there and self._lost is not None:
            self._lost_told = True
            raise self._lost
        return is_there

    def _may_be_there(self, stats: dict[str, int]) -> bool:
        """False: this rank copies the step and knows that it is not there yet."""
        newest = stats["remote_generation"], stats["remote_step"]
        mine = self._generation, self._step
        return not self._sends or not stats["uploads_waiting"] or newest >= mine

    def _hear(self, listing: _Listing, code: int) -> None:
        self._is_there, self._look_error = listing.found, listing.error
        if listing.found or listing.error is not None or not listing.is_last:
            return
        # This rank had nothing left to copy when the listing began.
        kind = error_class(code) if code else errors.StepNotFoundError
        self._lost = kind(
            f"step {self._step} is not in {self._engine.options.remote}, and is not being copied: "
            "it could not be copied, or was removed there; the log of libckpt says why",
            code=code or lib.CKPT_ENOSTEP,
            step=self._step,
            tier="remote",
        )

    def _end_wait(self) -> None:
        why = "" if self._look_error is None else f" ({self._look_error})"
        who = "this rank" if self._sends else "another rank"
        self._lost = errors.timed_out(
            f"step {self._step} was not seen in {self._engine.options.remote} within {_MOST:g} s"
            f"{why}; {who} copies it, and its log has the errors: correct them, and wait again",
            step=self._step,
        )


class _Listing(threading.Thread):
    """Lists the remote store once. No thread waits for it."""

    def __init__(self, engine: Engine, step: int, generation: int) -> None:
        super().__init__(name="libckpt-listing", daemon=True)
        self._engine = engine
        self._wanted = generation, step
        #: nothing is being copied: a step that is not listed will not be there
        self.is_last = False
        self.found = False
        self.error: Exception | None = None
        self.over = threading.Event()

    def run(self) -> None:
        """Lists the remote store."""
        try:
            self.found = self._look()
        except errors.StoreNotFoundError:
            pass  # nothing has been copied yet
        except Exception as error:
            self.error = error
        finally:
            self.over.set()

    def _look(self) -> bool:
        run_id = self._engine.run_id()
        other = Engine(self._engine.options.remote, Options(read_only=True), log_thread=False)
        try:
            return other.run_id() == run_id and any(
                (info.generation, info.step) == self._wanted
                and info.state == "committed"
                and not info.deleting
                for info in other.steps()
            )
        finally:
            other.close()
