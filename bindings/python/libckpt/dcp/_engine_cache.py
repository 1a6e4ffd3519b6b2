# SPDX-License-Identifier: Apache-2.0
"""
The stores of this process: for each, the engine, which is kept between saves, and the step that the
next save continues from.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _errors as errors
from .._engine import Engine
from .._exchange import join, join_group, join_nodes, open_all
from .._kvstore import Group, find_group
from .._log import logger
from .._native import lib
from .._options import Options
from .._reader import Reader
from .._store_names import store_path
from .._waiting import wait_until
from ._rendezvous import Rendezvous

if TYPE_CHECKING:
    from ._attempt import Attempt
    from ._dedup import Absent


class Loaded(NamedTuple):
    """A step that this process has loaded, and continues from."""

    generation: int
    step: int
    #: distinguishes loads of the same step
    nonce: str


class Config(NamedTuple):
    """How a store is opened to save to it."""

    path: str
    options: Options
    distributed: bool | None = None
    process_group: Any = None

    def group(self) -> Group | None:
        """The ranks that save together; None: this process is alone."""
        if self.process_group is None:
            return find_group(self.distributed)
        dist = sys.modules["torch.distributed"]
        world = int(dist.get_world_size(self.process_group))
        if world < 1:
            raise ValueError("this process is none of the process_group: it has nothing to save")
        found = find_group(True)
        if found is None or world == 1:
            return None
        members = repr(dist.get_process_group_ranks(self.process_group))
        return found._replace(
            rank=int(dist.get_rank(self.process_group)),
            world=world,
            name=f"-{hashlib.sha256(members.encode()).hexdigest()[:16]}",
        )


#: Seconds added to save_timeout for the wait until a save has ended.
_GRACE = 15.0
#: Seconds between two checks while another thread saves.
_LOOK_AGAIN = 0.05
#: The digits at the end of /run/step-100, "step_100" or 100, but not of 1.5 or -100.
_STEP = re.compile(r"(?:^|[^-.0-9]|[^-/]-|[^0-9]\.)([0-9]+)/?\Z")


def step_of(checkpoint_id: str | os.PathLike[str]) -> int | None:
    """The number at the end of a checkpoint_id; None: there is none."""
    found = _STEP.search(str(checkpoint_id))
    return None if found is None or int(found[1]) > lib.CKPT_STEP_MAX else int(found[1])


#: protects the variables below. It is never held during a wait
_lock = threading.RLock()
#: locks by store, held while it is opened or closed. Threads may open several, in any order
_turns: dict[str, Any] = {}
_holds: dict[str, Hold] = {}
#: by store, the last step that was loaded, as long as no save has continued from it
_loaded: dict[str, Loaded] = {}
#: by store, the nonce of the last load that a save has continued from
_taken: dict[str, str] = {}


def _key(path: str) -> str:
    return os.path.realpath(path)


def remember(path: str, loaded: Loaded) -> None:
    """The next save to the store continues from this step."""
    with _lock:
        if _taken.get(_key(path)) != loaded.nonce:
            _loaded[_key(path)] = loaded


def recall(path: str) -> Loaded | None:
    """The loaded step that the next save continues from; None: the last saved one."""
    with _lock:
        return _loaded.get(_key(path))


def hold(config: Config) -> Hold:
    """The open store. All ranks must call this."""
    group = config.group()
    key = _key(config.path)
    with _turn_of(key):
        with _lock:
            found = _holds.get(key)
        if found is not None and not found.fits(group):
            found.close()
            found = None
        if found is None:
            opened: list[Engine] = []
            try:
                found = Hold(config, group, opened)
                with _lock:
                    _holds[key] = found
            except BaseException:
                for engine in opened:
                    engine.close()
                raise
        elif found.config.options != config.options:
            raise ValueError(
                f"{config.path} is open with {_difference(found.config.options, config.options)}: "
                "give all its writers the same, or call libckpt.dcp.close() in between"
            )
        return found


def bring(path: str) -> None:
    """
    For a store on every node: copies the files that a crash has left out of one. All ranks must
    call this. Does nothing if the store is open, or if no node has a store.
    """
    key = _key(path)
    with _turn_of(key):
        with _lock:
            found = _holds.get(key)
        if found is not None and not found.engine.closed:
            return
        options = Options(node_store=True, pool_bytes=_BRING_BYTES)
        ranks = join(path, None, options)
        if ranks is None:
            return
        if not ranks.made:
            # Opening for writing would create the stores, though the caller only reads.
            if ranks.service is not None:
                ranks.service.close()
            return
        opened: list[Engine] = []
        try:
            open_all(path, options, ranks, opened)
        finally:
            for engine in opened:
                engine.close()


#: Bytes of staging memory of an engine that needs none.
_BRING_BYTES = 1 << 20


def _turn_of(key: str) -> Any:
    with _lock:
        return _turns.setdefault(key, threading.RLock())


def _difference(old: Options, new: Options) -> str:
    pairs = zip(Options._fields, old, new, strict=True)
    return ", ".join(f"{name}={was!r}" for name, was, now in pairs if was != now)


def close(store: str | os.PathLike[str] | None = None) -> None:
    """
    Closes a store that was saved to, or all stores (None), so that another process can save to it.
    A save that dcp.save() has not returned from is given up. The next save opens the store again
    and continues. All ranks must call this, or none.
    """
    only = None if store is None else _key(store_path(store))
    with _lock:
        keys = [key for key in _turns if only in (None, key)]
    # If closing one fails, the others are closed all the same.
    with contextlib.ExitStack() as closing:
        for key in reversed(keys):
            closing.callback(_close, key)


def _close(key: str) -> None:
    with _turn_of(key):
        with _lock:
            found = _holds.get(key)
        if found is not None:
            found.close()


def _forget() -> None:
    """In a forked child: open stores and locks belong to the parent."""
    global _lock  # noqa: PLW0603 - nobody in the child would ever open it
    _lock = threading.RLock()
    _turns.clear()
    _holds.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)


class Hold:
    """A store that is open for saves."""

    def __init__(self, config: Config, group: Group | None, opened: list[Engine]) -> None:
        self.config = config
        self._group = group
        timeout = config.options.save_timeout
        meet = join_nodes if config.options.node_store else join_group
        ranks = None if group is None else meet(config.path, group, timeout)
        self.engine = open_all(config.path, config.options, ranks, opened)
        opening = None if ranks is None else ranks.opening
        # As long as for a claim. The deadlines of the engine are later.
        self._meeting: Rendezvous | None = None
        if opening is not None:
            self._meeting = Rendezvous(opening, config.path, timeout * 3 / 4, self.engine.peers)
        #: (generation, step) that the next save continues from
        self._tip: tuple[int, int] | None = None
        #: it was closed, and its step is kept for the next one
        self._gone = False
        #: the save between write_data() and finish(); without finish(), until the next save
        self._attempt: Attempt | None = None
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        #: deadline of the running save
        self._due = 0.0
        #: the load that this rank has told the others
        self._said: Loaded | None = None
        if config.options.new_start:
            with _lock:
                _loaded.pop(_key(config.path), None)

    @property
    def deadline(self) -> float:
        """Seconds after which every save has ended."""
        return self.config.options.save_timeout + _GRACE

    def fits(self, group: Group | None) -> bool:
        """True if the group is the one that has opened it."""
        if self.engine.closed:
            return False
        mine = self._group
        if mine is None or group is None:
            return mine is group
        # Two groups of the same size may have this rank at the same position.
        return mine.store is group.store and mine._replace(store=None) == group._replace(store=None)

    def prepare(self, step: int) -> None:
        """
        Before a save, when the last one has ended. A single process continues from the loaded step.
        Ranks publish their step and what they have loaded.
        """
        self._settle(self.deadline)
        loaded = recall(self.config.path)
        self._said = loaded
        if self._meeting is not None:
            self._meeting.say(step, None if loaded is None else loaded[:2], self._tip)
        elif loaded is not None:
            self._go_on(loaded, None if loaded[:2] == self._tip else loaded[:2])
        claimed = self.engine.stats()["generation"]
        if not (loaded or self._tip or claimed or self.config.options.new_start):
            self._check_empty()

    def agree(self, attempt: Attempt, *, collective: bool, planned: Absent | None = None) -> None:
        """
        Checks that all ranks save the same step and continue from the same one. Otherwise all
        raise. `planned`: on rank 0, the plans of all ranks.
        """
        if self._meeting is None:
            return
        try:
            place = self._meeting.agree(collective=collective, planned=planned)
        except BaseException as error:
            if self._meeting.is_open:
                self.refused(attempt, error)
            else:
                self.ended(attempt, None)
            raise
        try:
            # A later load is for the next save.
            self._go_on(self._said, place)
        except BaseException as error:
            self.refused(attempt, error)  # the others have continued
            raise

    def refused(self, attempt: Attempt, error: BaseException) -> None:
        """Ends a save with an error, and tells the other ranks."""
        try:
            attempt.refuse(error)
        finally:
            self.ended(attempt, None)

    def _go_on(self, loaded: Loaded | None, place: tuple[int, int] | None) -> None:
        """Makes the next save continue from a step, if it does not already. Forgets the load."""
        if place is not None:
            self._adopt(*place)
        if loaded is None:
            return
        key = _key(self.config.path)
        with _lock:
            # If it was closed meanwhile, close() has kept the load for the next save.
            if self._gone:
                return
            _taken[key] = loaded.nonce
            if _loaded.get(key) is loaded:
                del _loaded[key]

    def watch(self, attempt: Attempt) -> None:
        """
        torch calls finish() only on the coordinator. With a store on every node, the lowest rank of
        each other node tells it when the step is committed there.
        """
        meeting, peers = self._meeting, self.engine.peers
        if meeting is None or not peers or peers[0] != self.engine.rank or self.engine.rank == 0:
            return
        nonce = meeting.nonce

        def tell() -> None:
            error: errors.CheckpointError | None = None
            try:
                attempt.wait("local", self.deadline)
            except errors.CheckpointError as found:
                error = found
            meeting.tell_end(nonce, error)

        threading.Thread(target=tell, name="libckpt-nodes", daemon=True).start()

    def await_nodes(self) -> None:
        """Coordinator: waits until the step, which is committed here, is so on all nodes."""
        if self._meeting is not None and self.engine.peers and self.engine.rank == 0:
            self._meeting.hear_ends(max(0.0, self._due - time.monotonic()), self.deadline)

    @property
    def name_of_save(self) -> str:
        """The key of the current save, the same on all ranks."""
        return "" if self._meeting is None else self._meeting.name

    @property
    def sharing(self) -> Rendezvous | None:
        """The rendezvous, if every node has a store."""
        return self._meeting if self.engine.peers else None

    def begin(self, attempt: Attempt) -> None:
        """Waits for the save of another thread: saves of a process run one after another."""
        self._due = time.monotonic() + self.deadline
        with self._turn:
            wait_until(
                lambda: not self._is_anothers(),
                self._due,
                lambda: errors.timed_out(
                    f"step {attempt.step} of {self.config.path} has waited {self.deadline:g} s for "
                    "another thread to end its save",
                    step=attempt.step,
                ),
                most=_LOOK_AGAIN,  # the other thread may end without a signal
                pause=self._turn.wait,
            )
            left, self._attempt = self._attempt, attempt
            self._thread = threading.current_thread()
        if left is not None:
            self._close_attempt(left, self.deadline)

    def _is_anothers(self) -> bool:
        """True while a save of another thread is between write_data() and finish()."""
        thread = self._thread
        return (
            self.engine.world == 1  # with many ranks there is one save at a time
            and self._attempt is not None
            and thread is not None
            and thread is not threading.current_thread()
            and thread.is_alive()
        )

    def _settle(self, deadline: float) -> None:
        with self._turn:
            if self._is_anothers():
                return
            left, self._attempt = self._attempt, None
        if left is not None:
            self._heard(self._close_attempt(left, deadline))

    def _close_attempt(self, attempt: Attempt, deadline: float) -> int | None:
        """
        The outcome of the last save: its generation, or None. A save whose dcp.save() has failed on
        some rank outside libckpt is given up.
        """
        if attempt.is_held:
            attempt.give_up()
        generation = attempt.outcome(deadline)
        if generation is not None:
            self._committed(generation, attempt)
        return generation

    def ended(self, attempt: Attempt, generation: int | None) -> None:
        """A save has ended. If it is committed, the next save continues from it."""
        with self._turn:
            if generation is not None:
                self._committed(generation, attempt)
            if self._attempt is attempt:
                self._attempt = None
            self._turn.notify_all()
        self._heard(generation)

    def _heard(self, generation: int | None) -> None:
        """
        Cleans up the keys of a save. If it is committed, all ranks have read them. Not if the store
        is closing, because the keys do no harm, and the job may be ending.
        """
        if self._meeting is None:
            return
        if generation is None:
            self._meeting.failed()
        else:
            self._meeting.committed()

    def _committed(self, generation: int, attempt: Attempt) -> None:
        self._tip = generation, attempt.step
        attempt._committed()

    def _adopt(self, generation: int, step: int) -> None:
        with Reader(self.engine, step) as reader:
            if reader.generation != generation:
                raise errors.FencedError(
                    f"step {step} of {self.config.path} was loaded from generation {generation}, "
                    f"and is now that of generation {reader.generation}: another job has saved it "
                    "meanwhile; load it again",
                    code=lib.CKPT_EFENCED,
                    step=step,
                )
            reader.read()
            reader.adopt()
        self._tip = generation, step
        logger.info("%s: saving continues from step %d", self.config.path, step)

    def _check_empty(self) -> None:
        for info in self.engine.steps():
            if info.state == "committed" and info.in_lineage:
                raise errors.NotResumedError(
                    f"{self.config.path} holds commits, the newest of step {info.step}: load it "
                    "with dcp.load() and libckpt.dcp.StorageReader first, so that saving continues "
                    "from there; or give StorageWriter new_start=True, or another store",
                    code=lib.CKPT_ENOTRESUMED,
                    step=info.step,
                )

    def close(self) -> None:
        """Closes the store. When it is opened again, it continues from the last save."""
        key = _key(self.config.path)
        with _lock:
            if _holds.get(key) is self:
                del _holds[key]
        if self.engine.closed or self.engine.foreign:
            return
        try:
            with self._turn:
                left, self._attempt = self._attempt, None
            if left is not None:
                self._close_attempt(left, _GRACE)
        except errors.CheckpointError as error:
            logger.error("closing %s: %s", self.config.path, error)
        finally:
            self.engine.close()
        with _lock:
            self._gone = True
            if self._tip is not None and key not in _loaded:
                _loaded[key] = Loaded(*self._tip, os.urandom(8).hex())
