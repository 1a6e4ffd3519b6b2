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
    origin,
    patterns,
    policy,
    remote_options,
    retention,
    seconds,
    stored,
    stored_there,
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

#: With on_error="warn", this many failed saves in a row raise.
_PATIENCE = 3


class Checkpointer:
    """
    Saves the state of a training loop in the background, and resumes from it.

        state = {"model": model, "optimizer": optimizer}
        with Checkpointer("/nvme/run42", state, every=100) as ckpt:
            for step in range(ckpt.resume(), total_steps):
                train_one_step()
                ckpt.step(step + 1)

    `state` is a dict of modules, optimizers, other objects with state_dict() and load_state_dict(),
    tensors and plain values, nested in dicts, lists and tuples. The random number generators of
    Python, NumPy and torch are always saved and restored.

    Arguments:

    path: directory of the store. It is created if its parent exists. ~ is the home directory.
    every: step(n) saves if n is a multiple of `every`. None: only save() saves.
    keep_last, keep_every: keep the newest k steps, and every step that is a multiple of n. None:
        keep all steps.
    on_error: what to do when a save fails because of the storage, or because a tensor was changed
        before it was copied. "warn": warn, and raise from the third failure in a row on. "raise":
        raise. A function: call it with the error. This happens in the thread of the loop: in the
        save() that cannot start, or in the next call of this object, but never in an optimizer's
        step(). A failure that Save.wait() has raised counts as one in the row, and is not reported
        again. Integrity errors and misuse always raise.
    pool_bytes: bytes of staging memory. 0: automatic. It begins with an eighth of the memory, at
        most 1 GiB, and grows in the background of the first save until it holds what this rank
        saves. The ranks of a node together use at most half of the memory that is available then.
        The log says how much it is, and warns if that is too little: the loop then waits for the
        disk. Between saves, memory that the last eight saves did not need is released.
    io: the I/O backend: "auto", "uring" or "threads".
    busy: what a save does while the previous one still runs. "wait": wait for it. "skip": do not
        save this step.
    save_timeout: seconds after which a save that is not durable is given up.
    encoding: how tensors are stored. "plain": as they are, in safetensors files. "compact":
        compressed without loss, in the background. The files are smaller, and resume() restores
        the same bytes. It takes processor time, and about 20 MiB for each worker. "delta": also as
        the difference to the last step, for saving every few steps. Retention then keeps the steps
        that a kept one needs, at most 16. The staging memory has to hold two states. Each rank and
        each start may choose, and a store may have steps of all kinds.
    progress: function that the waiting thread calls with a Progress in resume(), Save.wait() and
        close().
    remote: where committed steps are copied in the background: "s3://bucket/prefix", or a directory
        ("file:///mnt/shared/run42", or its Path) whose parent exists. It becomes a store of this
        run. The store of another run is refused. Earlier steps that are not there are copied, too.
        A copy that fails is retried until it succeeds. Only Save.wait("remote") and the end wait
        for it. keep_last and keep_every remove no step that is not there yet, unless the disk is
        full. All ranks must give the same value, and each copies its own part. If the remote store
        has newer steps than the local one, the newest that verifies is copied here first.
    remote_every: copy only steps that are a multiple of it. None: all.
    remote_bytes_per_s: limit of a node in bytes per second, shared by its ranks. None: no limit.
    remote_keep_last, remote_keep_every: like keep_last and keep_every, for the remote store. None:
        nothing is removed there. Rank 0 removes steps in the background. A start does not copy a
        step if the remote store has that many newer ones.
    remote_grace: seconds between the marking of a remote step and its removal, so that readers can
        finish. At least 600 if other jobs remove steps there, too. If the job ends sooner, the next
        start removes the step.
    remote_encoding: how tensors are stored in the remote store, "plain" or "compact" as for
        `encoding`. "compact" encodes plain files in the background when they are copied. None: as
        in the local store.
    drain_timeout: seconds that close() waits for copies to the remote store. If some are not
        complete, a warning counts them, and the next start of the job continues. After an exception
        in the `with` block, close() waits at most 10 seconds.
    new_start: ignore the steps in the store and start a new lineage.
    eager: True: copy everything before save() returns. This is for loops in which something other
        than the optimizers in the state changes parameters. None: do so if the state is small.
        False: copy everything that can be in the background. Changes during a background copy that
        PyTorch counts (in-place operations, replaced tensors) are always detected and fail the
        save. Writes that PyTorch does not count (through .data, NumPy, or your own kernels) are
        detected by comparing samples, so a change of one or a few rows may be missed.
    preempt: True: after SIGTERM, the next step() saves, waits until the step is durable, and raises
        Preempted, which ends the program with code 143. All ranks do so at the same step. Or a list
        of signals that have this effect. Existing signal handlers are called, too.
    preempt_grace: seconds from the signal until the process must have ended. What is not durable by
        then is given up.
    allow_pickle: pickle values that cannot be stored otherwise, and load pickled values.
    per_rank: patterns, as of fnmatch ("experts.*"), for names of parameters, buffers, and tensors
        in optimizer state. Plain tensors with these names are each rank's own, and are restored to
        the same rank on the same number of ranks. A pattern for a parameter applies to its
        optimizer state, too. Names are those in the checkpoint: without a prefix in the module
        under "model". Buffers of modules that differ by rank at the first save of a run need no
        pattern.
    replicas: what to do when ranks hold different bytes of a tensor, or of a part of a tensor, that
        must be equal. "check": the step fails on all ranks with ReplicaMismatchError. "warn": the
        step is committed with the copy of one rank, and a warning says so now and when the step is
        resumed. All ranks must give the same value.
    distributed: None: the processes of torch.distributed's default group save together, if there is
        a group of more than one. True: there must be a default group. False: this process is alone.
    node_store: True: `path` is a directory of this node, such as one on its NVMe, and every node of
        the job has its own store.
    lost_nodes: True, with node_store: nodes were lost with their disks. resume() ignores steps of
        which a node's store has no file, with one warning. It takes the newest step that every node
        has or can copy from the remote store. A step in the remote store is not ignored, and
        opening fails if a node cannot copy it. A node may copy only the files of its own ranks:
        with another mesh, leave lost_nodes out. All ranks must give the same value. False: such a
        step raises OtherNodeError, because its files may be on a node that was not started.
    rehearse: True: after the first committed step, resume() is tested in the background. The step
        is compared with the state, and each rank reads and verifies what it wrote, 256 MiB at a
        time, one rank of a node after another. The state is not changed, and load_state_dict() of
        objects is not called: libckpt.rehearse() does that. A CheckpointWarning says if the step is
        damaged or resume() would fail. The log says what was not tested. Very large numbers of
        tensors are not tested, nor is anything after a resume() that found a step: see
        docs/states.md. False: no test.

    Many ranks: all of them make the Checkpointer, of one shared store, and wait there for each
    other. If they make several, they do so in the same order. All ranks call save() with the same
    steps, and a step is committed for all ranks or for none. They communicate through the job's
    key-value store, on a separate connection and without collectives, or through files if this
    version of torch has no such connections. keep_last, keep_every and pin() of rank 0 apply. Ranks
    may be stages of a pipeline, with modules that have other names. The constructor finds out from
    `state` which ranks have which names.

    With node_store, ranks write to the store of their node and restore from it. What all ranks hold
    is written once per node, so that each store has everything that its ranks need. Start the ranks
    on the nodes on which they saved. A rank that needs data of another node raises OtherNodeError.
    If every rank has the whole model (DDP), every node has it, and ranks may move to other nodes.
    What was each rank's own is then missing, and a warning says so. A node is identified by its
    host name. If host names change between starts, or are equal, set LIBCKPT_NODE in the
    environment to the name of the node. keep_last, keep_every and pin() of the lowest rank of each
    node apply.

    Threads: one thread at a time may use a Checkpointer, but any thread may close it. It cannot be
    pickled, and a forked child cannot use it.

    Raises ValueError or TypeError for wrong arguments, UnsupportedStateError for a state with
    values that no save accepts, InUseError if another process has the store, and other
    CheckpointErrors if the store cannot be opened. If one rank fails, all ranks raise.
    """

    #: another start of the job has taken over the store: every save would fail
    _fenced: errors.FencedError | None = None
    #: for the test of the fence
    _fence_disabled = False

    #: the state that was saved or resumed here. resume() then goes back exactly
    _lived: dict[str, Any] | None = None

    #: settings in it that a resumed step did not have, and that the program has kept
    _kept: frozenset[Path] = frozenset()

    #: failures in a row
    _streak = 0

    #: the log has said what eager=None has chosen
    _said_eager = False

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
        encoding: Literal["plain", "compact", "delta"] = "plain",
        progress: Callable[[Progress], object] | None = None,
        remote: str | os.PathLike[str] | None = None,
        remote_every: int | None = None,
        remote_bytes_per_s: int | None = None,
        remote_keep_last: int | None = None,
        remote_keep_every: int | None = None,
        remote_grace: int = 1800,
        remote_encoding: Literal["plain", "compact"] | None = None,
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
                **ways(pool_bytes, io, busy, save_timeout) | stored(encoding, replicas),
                **retention("", keep_last, keep_every) | stored_there(remote_encoding),
                **origin(new_start, node_store, lost_nodes),
                **remote_options(remote, remote_every, remote_bytes_per_s, remote_grace),
                **retention("remote_", remote_keep_last, remote_keep_every),
                debug=logger.isEnabledFor(10),
            )
            directory = store_path(path)
            patience = seconds("drain_timeout", drain_timeout, zero=True)
            self._per_rank, rehearses = patterns(per_rank), flag("rehearse", rehearse)
            signals, grace = signals_of(preempt), seconds("preempt_grace", preempt_grace)
        except BaseException as error:  # the other ranks wait for this one
            refuse(path, distributed, error, node_store=bool(node_store))
            raise
        self._progress, self._allow_pickle, self._looks = progress, allow_pickle, Looks()
        #: the state to save and resume. It may be replaced by another dict.
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
        """Releases what a failed constructor has opened."""
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
            # The caller must see the error of the loop. Failures in here are in the log.
            self._finalizer.detach()
            self._core.finish()
            self._review(raising=False)

    # Saving.

    def step(self, n: int) -> Save | None:
        """
        Call this after step `n`. Saves the state as step `n` if that is due, and returns the Save,
        or None. Reports the failures of earlier saves: see on_error. Raises Preempted after a
        preemption signal.
        """
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
        """Saves for the last time, if there is enough time left."""
        path = self._core.engine.path
        cause: errors.CheckpointError | None = None
        self._core.stop_rehearsal()
        try:
            self._core.fence()
            if not self._core.engine.drain(preemption.left()):
                raise errors.WaitTimeoutError(f"the save before step {step} of {path} still runs")
            # Its failure is in the log, and must not prevent this save.
            self._review(raising=False)
            # The program may have called save() for this step.
            if self._core.engine.stats()["last_step"] != step:
                self.save(step).wait(timeout=preemption.left())
        except errors.CheckpointError as error:
            cause = error
            logger.error("step %d of %s is lost, the job was preempted: %s", step, path, error)
        else:
            # A job that continues on another disk has only what is in the remote store.
            self._core.upload(preemption.left())
        self._finalizer.detach()
        self._core.shut()
        said = f"the job was preempted: step {step} is " + ("lost" if cause else "saved")
        raise Preempted(f"{said} in {path}", step, cause is None) from cause

    def save(self, step: int, state: dict[str, Any] | None = None) -> Save:
        """
        Starts to save `state` (or the state of the Checkpointer) as `step`, and returns a Save at
        once. The steps of a run must ascend.

        If `step` is the last step again and `state` is not given, the existing Save is returned,
        unless it has failed. So a loop may end with save(n) after step(n). This also applies to the
        step that resume() returned, if as many ranks saved it, it has everything that is in the
        state, and nothing was tolerated.

        If the save cannot start, `on_error` applies, and the Save that is returned has the error.
        Raises UnsupportedStateError if the state has a value that cannot be saved, StepError if the
        step is not after the last one, and FencedError if another start of the job has the store.
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
        if same:  # also if it does not start, because that may differ between ranks
            self._looks.end()
            self._kept = self._kept if self._lived is state else frozenset()
            self._lived = state
        try:
            save._start(snapshot, self._core.deadline)
        except errors.SkippedError as error:
            # The storage still works on the remains of an earlier save.
            error.step = number
            self._core.skips += 1
            self._skip(save, error)
            return save
        except errors.CheckpointError as error:
            if error.step is None:
                error.step = number
            explained(error, engine.path, engine)
            # The library has already logged a failure after the start.
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
        Returns when everything that save() was given has been copied. Call this before something
        other than the optimizers in the state changes parameters.
        """
        self._core.engine.guard()
        self._core.fence()
        self._review()

    def before_replay(self) -> None:
        """
        Call this before a CUDA graph that contains an optimizer's step() is replayed, because a
        replay calls no hooks. It does what the hook does: the GPU waits for the copies, the host
        does not.
        """
        self.wait_staged()

    def _existing(self, step: int, state: dict[str, Any]) -> Save | None:
        """The Save of that step, if it is the last one of this state and has not failed."""
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
        """True if the save may start. False: it was skipped."""
        running = [last for last in list(self._core.saves) if not last._is_over()]
        if not running:
            return True
        if self._core.engine.options.busy == "skip":
            # The engine of rank 0 decides for all ranks, so that all save the same steps.
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
        # Wait here, in slices, so that Ctrl-C works.
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

    # The outcome of earlier saves.

    def _review(self, *, raising: bool = True) -> None:
        """Logs the saves that have ended since, and reports failures."""
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
                # Rank 0 decided it after this rank had started the save.
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
        """Raises at every step once another start of the job has taken over the store."""
        if self._fenced is not None:
            raise copy.copy(self._fenced)

    def _judge(self, error: errors.CheckpointError, *, told: bool = False) -> None:
        """A save has failed. `told`: the exception was raised before."""
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
        # After the deadline the step may still be found committed. The error then says so.
        what = "was not saved in time" if error.code == -errno.ETIMEDOUT else "was not saved"
        warnings.warn(
            f"step {error.step} {what}, and the training goes on: {error}",
            errors.CheckpointWarning,
            stacklevel=4,
        )

    # Restoring.

    def resume(
        self, step: Step = "latest", *, strict: bool = True, tolerate: Iterable[str] = ()
    ) -> int:
        """
        Restores the state in place, and the random number generators. Returns the step to continue
        from: 0 if nothing was ever committed, or with new_start. A tensor or array in a dict or
        list is replaced if it is read-only or its elements share memory.

        step: "latest", a number, or "latest~1" for the step before the latest. The next save
            continues from the step that was restored. If the latest step cannot be read or
            verified, the next older one is taken, with an error in the log and a warning. With
            lost_nodes=True this also applies to a step of which a lost node had files.
        strict: False: tolerate all differences that `tolerate` can name.
        tolerate: patterns over names ("head.*", "ema/*"). A parameter, a group of an optimizer or a
            key that only the step or only the state has is refused and listed, unless it matches.
            If it matches, what is new keeps its value, what is gone is ignored, and a warning lists
            both.

        Plain settings in a dict that are not in the step keep their values, with a warning. If this
        Checkpointer has saved or resumed the state before, they are removed, unless an earlier
        resume() has kept them.

        Raises MismatchError, with names, if the step and the state do not fit, and
        StepNotFoundError, IntegrityError or another CheckpointError if no step can be restored.

        A state that cannot be saved is refused here, and not at the first save, as far as that can
        be known without calling state_dict() of its objects. Values that no save accepts are
        refused by the constructor. What depends on optimizer state that does not exist yet is
        checked by the first step() call after it does. Only torch's schedulers are asked for their
        state_dict() before a save, because for other objects the call may begin an iteration,
        create optimizer state, or communicate with other ranks. rehearse() tries all objects.
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
        # Before anything changes.
        self._check_early(state)
        start = time.perf_counter()
        if self._lived is not state:
            self._lived, self._kept = None, frozenset()
        found, _ = read_newest(engine, step, functools.partial(self._read_into, state, tolerated))
        if found is None:
            logger.info("%s holds no step: starting from 0", engine.path)
            return 0
        self._lived = state
        self._core.stop_rehearsal()  # this was the test
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
        # A state that differs from the step must be saved again.
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
        Waits for the saves that are running and closes the store. Copies to the remote store have
        `drain_timeout` seconds more. Ctrl-C gives up all of these and returns at once. Any thread
        may call this, also more than once. Reports the failures of earlier saves: see on_error.
        """
        engine = self._core.engine
        if engine.closed:
            return
        engine.guard()
        self._core.stop_rehearsal()  # its findings are reported when all is closed
        try:
            self._core.fence()
            if not engine.drain(self._core.deadline, self._tick):
                logger.error("closing %s: a save does not end", engine.path)
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
        """Counters since the store was opened. Times are in nanoseconds (`_ns`), sizes in bytes."""
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
        Protects a step from keep_last and keep_every until this Checkpointer is closed. With many
        ranks, rank 0 must call it; with node_store, the lowest rank of each node.
        """
        engine = self._core.engine
        check(engine.work(lib.ckpt_engine_pin, engine.guard(), check_step(step)))

    def unpin(self, step: int) -> None:
        """Ends the protection of a step by pin()."""
        engine = self._core.engine
        check(engine.work(lib.ckpt_engine_unpin, engine.guard(), check_step(step)))
