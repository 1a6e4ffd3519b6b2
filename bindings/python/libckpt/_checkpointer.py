# SPDX-License-Identifier: Apache-2.0
"""The Checkpointer: what a training loop sees of libckpt."""

from __future__ import annotations

import copy
import errno
import functools
import os
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, NoReturn

from . import _errors as errors
from ._arguments import (
    OnError,
    check_given,
    count,
    flag,
    one_of,
    origin,
    patterns,
    policy,
    remote_options,
    retention,
    seconds,
    ways,
)
from ._calls import check
from ._core import Core, forgotten
from ._differences import patterns_of
from ._engine import Engine
from ._existing import ExistingSave
from ._fence import Fences
from ._json_nodes import Path
from ._log import logger
from ._native import lib
from ._newest import read_newest
from ._options import Options
from ._preempt import Preempted, Preemption, make_group, signals_of
from ._preflight import Looks, check_early
from ._ranks import Ranks
from ._rehearsal import Rehearsal
from ._restore import restore
from ._save import Progress, Save
from ._snapshot import Snapshot
from ._state import SMALL_BYTES, Planner
from ._state_kinds import check_state
from ._store_names import Step, check_step, store_path
from ._twice import explained
from .adapters._stages import Told, told_by

#: With on_error="warn", so many saves that fail one after the other raise.
_PATIENCE = 3


class Checkpointer:
    """
    Saves a training loop's state behind its steps, and resumes it.

        state = {"model": model, "optimizer": optimizer}
        with Checkpointer("/nvme/run42", state, every=100) as ckpt:
            for step in range(ckpt.resume(), total_steps):
                train_one_step()
                ckpt.step(step + 1)

    `state` is a dict of modules, optimizers, other objects with state_dict() and load_state_dict(),
    tensors and plain values, nested in dicts, lists and tuples as you like. Random number
    generators (Python's, NumPy's, torch's) are saved and restored without asking.

    path: directory of the store; made if need be, its parent must exist. ~ is the home directory.
    every: step(n) saves when n is a multiple of it; None: only save() does.
    keep_last, keep_every: keep the newest k steps, and every step that is a multiple of n; None:
        keep all.
    on_error: what to do when a save fails because of the storage, or because a tensor was changed
        before it was copied: "warn" warns, and raises from the third in a row on; "raise" raises; a
        function is called with the error. That happens in the loop's thread: in the save() that
        cannot start, or in the next call of this object, never in an optimizer's step(). What
        Save.wait() has raised counts for the three in a row, but is not reported a second time:
        neither by a warning, nor by another exception, nor to the function. Integrity errors and
        misuse always raise.
    pool_bytes: staging memory. 0: it finds its size. It begins with an eighth of the memory there
        is, 1 GiB at most, and grows behind the first save until it holds what this rank saves; the
        ranks of a node have at most half of the memory that is available then, and agree on their
        shares. The log says how much it is, and warns if it is too little: the loop then waits for
        the disk. Between saves it gives back what the last eight have not needed.
    io: "auto", "uring" or "threads".
    busy: what a save does while the last one still runs: "wait" for it, or "skip" itself.
    save_timeout: seconds after which a save that is not durable is given up.
    progress: called with a Progress by the thread that waits in resume(), Save.wait() or close().
    remote: where committed steps go on to by themselves, behind the loop: "s3://bucket/prefix", or
        a directory ("file:///mnt/shared/run42", or its Path) whose parent exists. It becomes a
        store of this run; that of another run is refused. What was committed before and is not
        there goes, too. What fails is tried again until it works; nothing waits for it but
        Save.wait("remote") and the end. keep_last and keep_every leave a step alone until it is
        there, unless the disk is full. With many ranks all of them give the same, and each sends
        its own part. A store that has less than is there is given the newest step that verifies,
        before anything else.
    remote_every: only steps that are a multiple of it go there; None: all.
    remote_bytes_per_s: what a node may send there in a second, shared by its ranks; None: no
        bound.
    remote_keep_last, remote_keep_every: what is kept there, as keep_last and keep_every say it of
        the directory; None: nothing is removed there. Rank 0 removes, behind the uploads. A start
        does not send what has that many newer steps there.
    remote_grace: seconds between the moment at which a step there is marked and its removal, so
        that who reads it comes to an end; 600 at least where others remove steps, too. A job that
        ends sooner leaves it to the next start.
    drain_timeout: seconds that close() waits for what is on its way to the remote store. What is
        not there then is counted in a warning, and sent by the next start of the job. After an
        exception in the `with` block it is 10 at most.
    new_start: ignore the steps in the store and start a lineage of its own.
    eager: True: copy everything before save() returns, for loops in which something else than the
        optimizers in the state changes parameters. None: if that is little, which takes no longer
        than to watch it. False: never what can be copied behind the loop. There, changes that
        PyTorch counts (in-place operations, tensors that are replaced) are always noticed, and fail
        the save; writes that pass its counters by (through .data, NumPy, or kernels of your own)
        are noticed by comparing samples, so that one to a few rows may not be.
    preempt: True: when the job is told to go by SIGTERM, the next step() saves, waits until that is
        durable and raises Preempted, which ends the program with code 143; so do all ranks, at one
        step. Or the signals that mean it. Handlers that were there are called, too.
    preempt_grace: seconds from the signal until the process must be gone; what is not durable by
        then is given up.
    allow_pickle: pickle what cannot be stored otherwise, and load what was pickled.
    per_rank: patterns ("experts.*", as of fnmatch) of names of parameters and buffers, or of
        tensors of optimizers' state: of plain tensors of these names every rank has its own, and
        gets it back on as many ranks. What is named so of a parameter goes for its state in
        optimizers, too. Names are those in the checkpoint: without a prefix in the module under
        "model". Buffers of modules that differ by rank when a run saves first need no names.
    replicas: what to do when ranks hold different bytes of what all of them must have alike, and
        one saves for all, or of a part of a tensor that each of them saves: "check" fails the step
        on all ranks, with ReplicaMismatchError; "warn" commits it as it is, says so, and says so
        again when it is resumed. The same on all ranks.
    distributed: None: the processes of torch.distributed's default group, if there is one of more
        than one, save together. True: there must be one. False: this process is by itself.
    node_store: True: `path` is a directory of this node, such as one on its NVMe, and every node of
        the job has a store of its own.
    lost_nodes: True, with node_store: nodes were lost with their disks. resume() passes over steps
        of which some node's store has no file, with one warning, and takes the newest step that
        every node has here or gets from the remote store. A step that the remote store has is not
        passed over, and opening fails if a node cannot bring it. A node may be brought only the
        files of its own ranks: with another mesh start without it. All ranks give the same. False:
        such a step raises OtherNodeError, for its files may be on a node that only was not started.
    rehearse: True: after the first step that is committed, resume() is tried behind the loop: the
        step is compared with the state, and each rank reads and verifies what it has written, 256
        MiB at a time and one rank of a node after the other. The state is not touched, and no
        object's load_state_dict() is called: libckpt.rehearse() does that. A CheckpointWarning says
        if the step is damaged or resume() would fail; what was not tried is in the log. A state of
        very many tensors is left out. docs/states.md says more. Nothing is tried after a resume()
        that has found a step. False: nothing is tried.

    With many ranks all of them make the Checkpointer, of one store that they share, and each waits
    there for the others; if they make several, then in the same order. A step is committed for all
    ranks or for none, and all call save() with the same steps. What they tell each other goes
    through the job's key-value store, on a connection of its own and never by a collective, or
    through files where this torch has no such connections to give. keep_last, keep_every and pin()
    are those of rank 0. Ranks may be stages of a pipeline, whose modules have names that the others
    do not have: which ranks have a name they find out here, by the `state`.

    With node_store the ranks write into the store of their node, and restore from there. What
    ranks have alike is written once per node, so that each store has all that its own ranks need:
    start them on the nodes on which they have saved. What a rank wants and another node has raises
    OtherNodeError. Of a model that every rank has all of (DDP) every node has all: its ranks may
    change places, but what was each one's own is then missing, and a warning says so. Nodes are
    told apart by the names of their hosts; where these change from start to start, or are alike,
    LIBCKPT_NODE in the environment names the node. keep_last, keep_every and pin() are those of
    each node's lowest rank.

    One thread at a time may use a Checkpointer, but any may close it meanwhile. It cannot be
    pickled, nor used by a forked child.
    """

    #: another start of the job has the store: there is nothing to go on for
    _fenced: errors.FencedError | None = None
    #: for the test that shows what the fence is for
    _fence_disabled = False

    #: the state that was saved or resumed here, so that resume() is going back
    _lived: dict[str, Any] | None = None

    #: settings of it that a step which was resumed did not have: the program has them
    _kept: frozenset[Path] = frozenset()

    #: the save of the state that was started last, or the step that was resumed since
    _last: Save | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: dict[str, Any] | None = None,
        *,
        every: int | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        on_error: OnError = "warn",
        pool_bytes: int = 0,
        io: Literal["auto", "uring", "threads"] = "auto",
        busy: Literal["wait", "skip"] = "wait",
        save_timeout: float = 600.0,
        progress: Callable[[Progress], object] | None = None,
        remote: str | os.PathLike[str] | None = None,
        remote_every: int | None = None,
        remote_bytes_per_s: int | None = None,
        remote_keep_last: int | None = None,
        remote_keep_every: int | None = None,
        remote_grace: int = 1800,
        drain_timeout: float = 300.0,
        new_start: bool = False,
        eager: bool | None = None,
        allow_pickle: bool = False,
        preempt: bool | Iterable[signal.Signals | int] = False,
        preempt_grace: float = 25.0,
        per_rank: Iterable[str] = (),
        replicas: Literal["check", "warn"] = "check",
        distributed: bool | None = None,
        node_store: bool = False,
        lost_nodes: bool = False,
        rehearse: bool = True,
    ) -> None:
        from ._exchange import join, open_all, refuse

        try:
            check_given(progress, state, distributed, allow_pickle=allow_pickle)
            self._every, self._on_error = count("every", every, 1), policy(on_error)
            options = Options(
                **ways(pool_bytes, io, busy, save_timeout),
                **retention("", keep_last, keep_every),
                **origin(new_start, node_store, lost_nodes),
                **remote_options(remote, remote_every, remote_bytes_per_s, remote_grace),
                **retention("remote_", remote_keep_last, remote_keep_every),
                replicas=one_of("replicas", replicas, ("check", "warn")),
                debug=logger.isEnabledFor(10),
            )
            directory = store_path(path)
            patience = seconds("drain_timeout", drain_timeout, zero=True)
            self._per_rank, rehearses = patterns(per_rank), flag("rehearse", rehearse)
            signals, grace = signals_of(preempt), seconds("preempt_grace", preempt_grace)
        except BaseException as error:  # the other ranks wait for this one
            refuse(path, distributed, error, node_store=bool(node_store))
            raise
        self._progress, self._allow_pickle = progress, allow_pickle
        self._streak, self._said_eager, self._looks = 0, False, Looks()
        #: the state to save and resume; may be replaced by another dict
        self.state = state
        ranks = join(directory, distributed, options)
        opened: list[Engine] = []
        try:
            open_all(directory, options, ranks, opened, lambda: self._told(state, ranks))
            self._core = Core(opened[0], patience)
            self._equip(opened[0], eager, rehearses)
            self._heed(signals, grace)
            self._finalizer = weakref.finalize(self, forgotten, self._core)
        except BaseException as error:
            explained(error, directory)
            self._let_go(opened)
            raise

    def _told(self, state: dict[str, Any] | None, ranks: Any) -> Told | None:
        if ranks is None:
            return None
        return told_by(state, Ranks(ranks.rank, ranks.world, None, self._per_rank))

    def _equip(self, engine: Engine, eager: bool | None, rehearses: bool) -> None:
        self._core.fences = Fences(self._pass_fence)
        self._planner = self._planner_of(eager)
        if rehearses:
            self._core.rehearsal = Rehearsal(engine, allow_pickle=self._allow_pickle)

    def _let_go(self, opened: list[Engine]) -> None:
        """What a constructor that has failed leaves."""
        core: Core | None = self.__dict__.get("_core")
        if core is not None:
            core.shut()
        for engine in opened:
            engine.close()

    def _planner_of(self, eager: bool | None) -> Planner:
        engine = self._core.engine
        half = engine.stats()["pool_bytes"] // 2
        return Planner(
            eager=bool(eager),
            small_bytes=min(SMALL_BYTES, half) if eager is None else 0,
            allow_pickle=self._allow_pickle,
            rank=engine.rank,
            world=engine.world,
            peers=engine.peers,
            per_rank=self._per_rank,
            known=engine.own,
            stages=engine.stages,
        )

    def _heed(self, signals: tuple[signal.Signals, ...], grace: float) -> None:
        if not signals:
            return
        engine = self._core.engine
        group = make_group(engine.options.save_timeout) if engine.world > 1 else None
        self._core.preemption = Preemption(signals, grace, group)

    def __repr__(self) -> str:
        return f"<libckpt.Checkpointer of {self._core.engine.path}>"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(
            "a libckpt.Checkpointer holds threads and open files and cannot be pickled or copied; "
            "open it in the process that uses it"
        )

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The loop's own error is the one to be seen; what fails here is in the log.
            self._finalizer.detach()
            self._core.finish()
            self._review(raising=False)

    # Saving.

    def step(self, n: int) -> Save | None:
        """Call it after step `n`, with the state as it is then: saves if that is due."""
        number = check_step(n)
        self._core.engine.guard()
        preemption = self._core.preemption
        if preemption is not None and preemption.agreed():
            self._leave(number, preemption)
        self._review()
        self._check_fenced()
        due = self._every is not None and number % self._every == 0
        if not due and self.state is not None and self._looks.are_due(self.state):
            self._looks.note(self.state, whole=self._check_early(self.state))
        return self.save(number) if due else None

    def _leave(self, step: int, preemption: Preemption) -> NoReturn:
        """Saves for the last time, if that can be done in the time that is left."""
        path = self._core.engine.path
        cause: errors.CheckpointError | None = None
        self._core.stop_rehearsal()
        try:
            self._core.fence()
            if not self._core.engine.drain(preemption.left()):
                raise errors.WaitTimeoutError(f"the save before step {step} of {path} still runs")
            # What became of that one is in the log, and stops no other.
            self._review(raising=False)
            # It may have been saved by name.
            if self._core.engine.stats()["last_step"] != step:
                self.save(step).wait(timeout=preemption.left())
        except errors.CheckpointError as error:
            cause = error
            logger.error("step %d of %s is lost, the job was told to go: %s", step, path, error)
        else:
            # Whoever goes on with another disk has only what is there.
            self._core.upload(preemption.left())
        self._finalizer.detach()
        self._core.shut()
        said = f"the job was told to go: step {step} is " + ("lost" if cause else "saved")
        raise Preempted(f"{said} in {path}", step, cause is None) from cause

    def save(self, step: int, state: dict[str, Any] | None = None) -> Save:
        """
        Starts to save `state` (or the Checkpointer's) as `step` and returns at once. The steps of
        a run must ascend; for the last step again, without a `state`, the Save that exists is
        returned unless it has failed, so that a loop may end with save(n) after step(n). So is that
        of the step which resume() has returned, if it was saved by as many ranks and has all that
        is in the state, and nothing was tolerated. If the save cannot be started, what `on_error`
        says happens, and the error is in the Save that is returned.
        """
        start = time.perf_counter()
        number = check_step(step)
        same = state is None
        state = self._state_or(state)
        engine = self._core.engine
        engine.guard()
        self._core.fence()
        self._review()
        self._check_fenced()
        existing = self._existing(number, state) if same else None
        if existing is not None:
            return existing
        save = Save(engine, number)
        save._progress = self._progress
        if not self._wait_for_last(save):
            return save
        try:
            snapshot = self._planner.snapshot(state)
            self._prepare(snapshot)
        except BaseException as error:
            save._refuse(error)
            raise
        if same:  # whether it starts or not, in which ranks may differ
            self._looks.end()
            self._kept = self._kept if self._lived is state else frozenset()
            self._lived = state
        try:
            save._start(snapshot, self._core.deadline)
        except errors.SkippedError as error:
            # The storage still holds what is left of an earlier one.
            error.step = number
            self._core.skips += 1
            self._skip(save, error)
            return save
        except errors.CheckpointError as error:
            if error.step is None:
                error.step = number
            explained(error, engine.path, engine)
            # What failed after it had started is in the library's log already.
            if save._failure is None:
                logger.error("save of step %d to %s failed: %s", number, engine.path, error)
            save._fail(error)
            save._settled = save._told = True
            self._judge(error)
            return save
        self._core.saves.append(save)
        if self._core.rehearsal is not None:
            self._core.rehearsal.note(save, state if same else None, snapshot.blocks)
        self._last = save if same else None
        save._loop_time = time.perf_counter() - start
        return save

    def wait_staged(self) -> None:
        """
        Returns when everything that save() was given has been copied. Call it before something else
        than the optimizers in the state changes parameters, such as an optimizer of your own.
        """
        self._core.engine.guard()
        self._core.fence()
        self._review()

    def before_replay(self) -> None:
        """
        Call it before a CUDA graph is replayed that holds an optimizer's step(): what is replayed
        calls no hook. It is what the hook does: the GPU waits for the copies, the host does not.
        """
        self.wait_staged()

    def _existing(self, step: int, state: dict[str, Any]) -> Save | None:
        """The save of that state as that step, if it was the last one."""
        last = self._last
        if last is None or last.step != step or self._lived is not state:
            return None
        return None if last.error is not None else last

    def _state_or(self, state: dict[str, Any] | None) -> dict[str, Any]:
        chosen = self.state if state is None else state
        if chosen is None:
            raise errors.UnsupportedStateError(
                "there is no state: give one to the Checkpointer or to save()"
            )
        return chosen

    def _prepare(self, snapshot: Snapshot) -> None:
        if snapshot.behind.parts:
            assert self._core.fences is not None
            self._core.fences.guard(snapshot.optimizers)
        elif not self._said_eager:
            self._said_eager = True
            logger.info(
                "%s: everything is copied before save() returns (%s)",
                self._core.engine.path,
                snapshot.why_eager,
            )
        if snapshot.pickled:
            logger.warning("pickled into the checkpoint: %s", ", ".join(snapshot.pickled))

    def _pass_fence(self) -> None:
        """Called by an optimizer of the state before it changes anything."""
        if self._core.saves and not self._fence_disabled and not self._core.engine.foreign:
            self._core.fence()

    def _wait_for_last(self, save: Save) -> bool:
        """True when the save may start; otherwise it has been skipped."""
        running = [last for last in list(self._core.saves) if not last._is_over()]
        if not running:
            return True
        if self._core.engine.options.busy == "skip":
            # Of many ranks rank 0's engine decides; were each to, they would save different steps.
            if self._core.engine.world > 1:
                return True
            error = errors.SkippedError(
                f"step {save.step} was skipped: the save of step {running[-1].step} still runs",
                code=lib.CKPT_ESKIPPED,
                step=save.step,
            )
            self._core.skips += 1
            self._skip(save, error)
            return False
        # Waited for here, in slices, so that Ctrl-C gets through.
        start = time.perf_counter_ns()
        self._core.engine.drain(self._core.deadline)
        self._core.waits += 1
        self._core.waited_ns += time.perf_counter_ns() - start
        self._review()
        return True

    def _skip(self, save: Save, error: errors.CheckpointError) -> None:
        logger.info("%s", error)
        save._fail(error)
        save._settled = True

    # What became of earlier saves.

    def _review(self, *, raising: bool = True) -> None:
        """Looks at the saves under way: logs those that have ended, and reports failures."""
        failed: list[Save] = []
        for save in list(self._core.saves):
            if save._is_over():
                try:
                    self._core.saves.remove(save)
                except ValueError:  # close() on another thread was quicker
                    continue
                self._settle(save)
                if save._failure is not None:
                    failed.append(save)
        for save in failed:
            assert save._failure is not None
            told, save._told = save._told, True
            if isinstance(save._failure, errors.SkippedError):
                # Rank 0 had said so when this one had begun.
                self._core.skips += 1
                continue
            if raising:
                self._judge(save._failure, told=told)
        if raising and self._core.rehearsal is not None:
            self._core.rehearsal.look(self.state)

    def _settle(self, save: Save) -> None:
        save._settled = True
        if save._failure is not None:
            return
        self._streak = 0
        save._committed()
        self._core.say_unsent()
        self._core.say_unchecked()
        self._say_differ(save)
        info = save.info
        logger.info(
            "step %d: %.1f MiB, %.1f ms of the loop's time, staged in %.3f s, durable in %.3f s",
            save.step,
            info.bytes / 2**20,
            info.loop_time * 1e3,
            info.stage_time,
            info.local_time,
        )

    def _say_differ(self, save: Save) -> None:
        differ = save._differ() if self._core.engine.world > 1 else None
        if differ is not None:
            warnings.warn(
                f"step {save.step} is saved, and {differ}: readers are given what one of them "
                "wrote",
                errors.CheckpointWarning,
                stacklevel=5,
            )

    def _check_fenced(self) -> None:
        """Whoever goes on all the same is told so at every step."""
        if self._fenced is not None:
            raise copy.copy(self._fenced)

    def _judge(self, error: errors.CheckpointError, *, told: bool = False) -> None:
        """One more save has failed. `told`: the user has had this exception already."""
        self._streak += 1
        if isinstance(error, errors.FencedError):
            self._fenced = error
        if told:
            return
        if not error.transient:
            raise error
        if callable(self._on_error):
            self._on_error(error)
            return
        if self._on_error == "raise" or self._streak >= _PATIENCE:
            raise error
        # Past its deadline it may turn out to be there: the error says so then.
        what = "was not saved in time" if error.code == -errno.ETIMEDOUT else "was not saved"
        warnings.warn(
            f"step {error.step} {what}, and the training goes on: {error}",
            errors.CheckpointWarning,
            stacklevel=4,
        )

    # Getting it back.

    def resume(
        self, step: Step = "latest", *, strict: bool = True, tolerate: Iterable[str] = ()
    ) -> int:
        """
        Restores the state in place, and the random number generators, and returns the step to
        continue from: 0 if nothing was ever committed, or with new_start. (A tensor or array in a
        dict or list that cannot be written to, or whose elements share memory, is replaced.)

        A newest step that cannot be read or verified is passed over for the next older one, with
        an error in the log and a warning. So is one that only a lost node had all of, with
        lost_nodes=True. An older step may be asked for ("latest~1", or a number); what is saved
        next then continues from there.

        What only one of step and state has (a parameter, a group of an optimizer, a key) is
        refused, and listed. `tolerate` are patterns over names ("head.*", "ema/*") for which it is
        not: what is new stays as it is, what is gone is left out, and a warning lists both.
        strict=False tolerates all of it. Plain settings in a dict that the step does not have stay,
        with a warning, unless this Checkpointer has saved or resumed the state before and they have
        not stayed then.

        A state that could not be saved is refused here rather than when the first save is due, as
        far as that can be known without asking its objects for their state_dict(); values that no
        save takes by the constructor already; what depends on state that an optimizer has not made
        yet, in the first step() behind that. Only torch's schedulers are asked before a save:
        others may begin an iteration, make an optimizer's state, or talk to other ranks to answer.
        rehearse() tries all.
        """
        engine = self._core.engine
        engine.guard()
        tolerated = patterns_of(strict, tolerate)
        if self.state is None:
            raise errors.UnsupportedStateError(
                "there is no state to resume: give one to Checkpointer"
            )
        state = self.state
        check_state(state)
        self._core.fence()
        engine.drain(self._core.deadline)
        self._review()
        self._last = None
        if engine.options.new_start and step == "latest":
            self._check_early(state)
            logger.info("%s: started anew", engine.path)
            return 0
        # Before anything is changed.
        self._check_early(state)
        start = time.perf_counter()
        if self._lived is not state:
            self._lived, self._kept = None, frozenset()
        found, _ = read_newest(engine, step, functools.partial(self._read_into, state, tolerated))
        if found is None:
            logger.info("%s holds no step: starting from 0", engine.path)
            return 0
        self._lived = state
        self._core.stop_rehearsal()  # what it would try has just been done
        logger.info(
            "resumed step %d of %s in %.3f s", found, engine.path, time.perf_counter() - start
        )
        return found

    def _check_early(self, state: dict[str, Any]) -> bool:
        return check_early(state, self._planner, allow_pickle=self._allow_pickle)

    def _read_into(self, state: dict[str, Any], tolerated: list[str], reader: Any) -> None:
        restored = restore(
            reader,
            state,
            allow_pickle=self._allow_pickle,
            progress=self._progress,
            tolerated=tolerated,
            exact=self._lived is not None,
            kept=self._kept,
        )
        self._kept |= restored.stayed
        reader.adopt()
        # What differs from the step is another step's.
        if restored.complete:
            self._last = ExistingSave(self._core.engine, reader.step, reader.generation)
        if reader.differ:
            warnings.warn(
                f"step {reader.step}: when it was saved, {reader.differ}; all of them are now "
                "given what one of them wrote",
                errors.CheckpointWarning,
                stacklevel=5,
            )

    # The rest.

    def close(self) -> None:
        """
        Waits for what is under way, saves nothing new, and ends. What is on its way to the remote
        store has `drain_timeout` seconds more. Ctrl-C meanwhile gives up what is under way and ends
        at once. Closing twice is harmless.
        """
        engine = self._core.engine
        if engine.closed:
            return
        engine.guard()
        self._core.stop_rehearsal()  # what it has found is told when all is closed
        try:
            self._core.fence()
            if not engine.drain(self._core.deadline, self._tick):
                logger.error("closing %s: what is under way does not end", engine.path)
            self._core.upload(self._core.drain_timeout)
            self._core.say_unchecked()
        finally:
            self._finalizer.detach()
            self._core.shut()
        self._review()

    def _tick(self) -> None:
        for save in list(self._core.saves):
            save._tick()

    def stats(self) -> dict[str, int | str | bool]:
        """Counters since the store was opened. Times in nanoseconds (`_ns`), sizes in bytes."""
        stats: dict[str, int | str | bool] = dict(self._core.engine.stats())
        stats["io"] = {lib.CKPT_IO_URING: "uring", lib.CKPT_IO_THREADS: "threads"}.get(
            int(stats["io"]), "none"
        )
        for name in ("io_direct", "io_registered", "pool_huge"):
            stats[name] = bool(stats[name])
        stats["saves_skipped"] = self._core.skips
        stats["saves_waited"] = self._core.waits
        stats["saves_waited_ns"] = int(stats["saves_waited_ns"]) + self._core.waited_ns
        return stats

    def pin(self, step: int) -> None:
        """
        Keeps a step, whatever keep_last and keep_every say, until this Checkpointer closes. With
        many ranks it is rank 0's pin that counts; with node_store that of each node's lowest rank.
        """
        engine = self._core.engine
        check(engine.work(lib.ckpt_engine_pin, engine.guard(), check_step(step)))

    def unpin(self, step: int) -> None:
        """Takes the pin off."""
        engine = self._core.engine
        check(engine.work(lib.ckpt_engine_unpin, engine.guard(), check_step(step)))
