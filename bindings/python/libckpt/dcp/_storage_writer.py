# SPDX-License-Identifier: Apache-2.0
"""Saving through torch.distributed.checkpoint."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner
from torch.distributed.checkpoint import StorageWriter as Base
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _errors as errors
from .._arguments import count, flag, one_of, seconds
from .._log import logger
from .._native import lib
from .._options import Options
from .._ranks import Ranks
from .._store_names import check_step, store_path
from . import _dedup
from ._attempt import Attempt
from ._contents import contents
from ._engine_cache import Config, Hold, Loaded, hold, recall, remember, step_of


class StorageWriter(Base):
    """
    The writer for dcp.save() and dcp.async_save().

        dcp.save(state, checkpoint_id="step-100", storage_writer=StorageWriter("/shared/run42"))

    The step is the number at the end of the checkpoint_id, or `step` if there is no checkpoint_id.
    Steps must ascend. A step is committed for all ranks or for none. If it is not committed,
    dcp.save() raises on all ranks, and the previous step remains.

    The store stays open between saves of this process, also for other writers with the same
    options, until `libckpt.dcp.close()` or the end of the program. If the store has committed
    steps, the first save continues from the step that this process has last loaded by dcp.load()
    with a StorageReader. Without one it raises NotResumedError.

    store: directory. It is created if its parent exists. All ranks share it; with node_store, the
        ranks of a node do.
    step: number of the step, if dcp.save() gets no checkpoint_id.
    keep_last, keep_every: keep the newest k steps, and every step that is a multiple of n. None:
        keep all steps.
    pool_bytes, io, save_timeout, encoding: as for libckpt.Checkpointer.
    new_start: ignore the steps in the store and start a new lineage.
    allow_pickle: pickle values that cannot be stored otherwise. They are marked, and can only be
        loaded with StorageReader(..., allow_pickle=True).
    distributed: False: dcp.save() is called with no_dist=True, and this process is alone.
    process_group: the process_group of dcp.save(), if it is not all ranks. Other ranks need another
        store.
    node_store: True: `store` is a directory of this node, and every node of the job has its own
        store, as with libckpt.Checkpointer. What several ranks hold is written once per node,
        whatever the planner decides, so that each store has everything that its ranks hold. Load
        with StorageReader(..., node_store=True) on the nodes that have saved.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        step: int | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        pool_bytes: int = 0,
        io: Literal["auto", "uring", "threads"] = "auto",
        save_timeout: float = 600.0,
        encoding: Literal["plain", "compact"] = "plain",
        new_start: bool = False,
        allow_pickle: bool = False,
        distributed: bool | None = None,
        process_group: ProcessGroup | None = None,
        node_store: bool = False,
    ) -> None:
        super().__init__()
        options = Options(
            pool_bytes=count("pool_bytes", pool_bytes, 0) or 0,
            io=one_of("io", io, ("auto", "uring", "threads")),
            save_timeout=seconds("save_timeout", save_timeout),
            encoding=one_of("encoding", encoding, ("plain", "compact")),
            keep_last=count("keep_last", keep_last, 1) or 0,
            keep_every=count("keep_every", keep_every, 1) or 0,
            new_start=flag("new_start", new_start),
            node_store=flag("node_store", node_store),
            debug=logger.isEnabledFor(10),
        )
        if distributed is not None:
            flag("distributed", distributed)
        self._config = Config(
            os.path.abspath(store_path(store)), options, distributed, process_group
        )
        self._allow_pickle = flag("allow_pickle", allow_pickle)
        self._given = None if step is None else check_step(step)
        self._step = self._given
        #: checkpoint_id of the next save, for the log of torch
        self.checkpoint_id: str | os.PathLike[str] | None = None
        #: why that is refused
        self._wrong: ValueError | None = None
        self._hold: Hold | None = None
        self._attempt: Attempt | None = None
        self._coordinates = True
        self._collective = True
        #: the plan of this rank, before torch removes what other ranks save
        self._local: SavePlan | None = None
        #: rank 0, with node_store: the plans of all ranks
        self._plans: list[SavePlan] | None = None

    def __repr__(self) -> str:
        return f"<libckpt.dcp.StorageWriter of {self._config.path}>"

    def __getstate__(self) -> dict[str, Any]:
        # dcp.async_save() with a separate process sends it there. That process has one group.
        return {
            **self.__dict__,
            "_config": self._config._replace(process_group=None),
            "_hold": None,
            "_attempt": None,
            "_local": None,
            "_plans": None,
            "loaded": recall(self._config.path),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaded: Loaded | None = state.pop("loaded")
        self.__dict__.update(state)
        if loaded is not None:
            remember(self._config.path, loaded)

    # torch calls these, in this order.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a save. The step is the number at the end of checkpoint_id."""
        self.checkpoint_id = checkpoint_id
        self._wrong = None
        try:
            self._step = self._step_of(checkpoint_id)
        except ValueError as error:
            # If only this rank raised here, the others would wait for it.
            if self._config.group() is None:
                raise
            self._wrong = error

    def _step_of(self, checkpoint_id: str | os.PathLike[str] | None) -> int | None:
        found = None if checkpoint_id is None else step_of(checkpoint_id)
        if found is not None and self._given not in (None, found):
            raise ValueError(
                f"checkpoint_id={str(checkpoint_id)!r} ends with {found}, and the StorageWriter "
                f"was given step={self._given}: leave one of them out"
            )
        if found is None and self._given is None and checkpoint_id is not None:
            raise ValueError(
                f"checkpoint_id={str(checkpoint_id)!r} does not end with a number: name it like "
                '"step-100", or give StorageWriter a step'
            )
        return self._given if found is None else found

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        """Opens the store at the first save. All ranks wait there for each other."""
        # First, because all ranks must open it equally often.
        found = hold(self._config)
        if self._wrong is not None:
            raise self._wrong
        if self._step is None:
            raise ValueError(
                'the step is not known: give dcp.save(..., checkpoint_id="step-100"), or '
                "StorageWriter(store, step=100)"
            )
        rank = kwargs.get("rank")
        if rank is not None and rank != found.engine.rank:
            raise ValueError(
                f"this process is rank {found.engine.rank} of {found.engine.world} that save to "
                f"{self._config.path}, and rank {rank} for dcp.save(): give StorageWriter the same "
                "process_group, or distributed=False with no_dist=True"
            )
        # Without collectives torch calls finish() on every rank.
        self._coordinates = is_coordinator or kwargs.get("use_collectives") is False
        self._collective = kwargs.get("use_collectives") is not False
        found.prepare(self._step)
        self._hold = found

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """
        Returns the plan unchanged, because torch caches it for later saves. With node_store, tells
        the ranks of the node what this rank holds.
        """
        sharing = self._hold.sharing if self._hold is not None else None
        if sharing is None:
            return plan
        self._local = plan if _dedup.is_usable(plan) else None
        # torch means the plan in its cache, which may have been made for another store.
        last = self._local or _dedup.last_plan()
        if last is not None:
            sharing.tell_held(_dedup.pack(last.items))
        else:
            sharing.tell_held(sharing.held or b"")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns the plans unchanged. With node_store, keeps them to tell every node."""
        sharing = self._hold.sharing if self._hold is not None else None
        is_all = sharing is not None and len(plans) == len(sharing.nodes)
        self._plans = plans if is_all else None
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Returns when all tensors are copied. The engine writes them in the background."""
        found = self._hold
        assert found is not None
        assert self._step is not None
        engine = found.engine
        attempt = self._attempt = Attempt(engine, self._step)
        found.agree(attempt, collective=self._collective, planned=self._planned_by_all(planner))
        try:
            written, absent = self._part_of(plan, planner)
            first = engine.rank == (engine.peers[0] if engine.peers else 0)
            snapshot, sizes = contents(
                written,
                planner,
                Ranks(engine.rank, engine.world),
                allow_pickle=self._allow_pickle,
                first=first,
                absent=absent,
            )
            snapshot = snapshot._replace(apart=_dedup.meanings(self._local))
            self._local = None
        except BaseException as error:
            found.refused(attempt, error)
            raise
        if snapshot.pickled:
            logger.warning("pickled into the checkpoint: %s", ", ".join(snapshot.pickled))
        found.begin(attempt)
        try:
            attempt.stage(
                snapshot, found.deadline, held=self._coordinates, where=found.name_of_save
            )
        except BaseException:
            found.ended(attempt, None)
            raise
        if self._collective:
            found.watch(attempt)
        known = {item.index: size for item, size in zip(written.items, sizes, strict=True)}
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [WriteResult(item.index, known.get(item.index, 0), None) for item in plan.items]
        )
        return done

    def _planned_by_all(self, planner: SavePlanner) -> _dedup.Absent | None:
        """Rank 0, with node_store: what all ranks have planned; None: unknown."""
        plans, self._plans = self._plans, None
        try:
            whole = None if plans is None else _dedup.whole(plans, planner)
            return None if whole is None else _dedup.listed(whole)
        except Exception as error:  # code of the user's planner, and the other ranks wait
            logger.warning("%s: what all ranks have planned is not known: %s", self, error)
            return None

    def _part_of(
        self, plan: SavePlan, planner: SavePlanner
    ) -> tuple[SavePlan, _dedup.Absent | None]:
        """What this rank writes of the plan, and what is in the stores of other nodes only."""
        sharing = self._hold.sharing if self._hold is not None else None
        if sharing is None:
            return plan, None
        local = self._local = _dedup.local_plan(planner, self._local, sharing.held or b"")
        held = sharing.hear_held(collective=self._collective)
        assert self._hold is not None
        mine = _dedup.share(held, self._hold.engine.rank)
        items = _dedup.chosen(local, plan, mine)
        return (
            dataclasses.replace(plan, items=items),
            _dedup.absent(local, planner, sharing.hear_planned()),
        )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits the step. Raises if it is not committed for all ranks."""
        del metadata, results
        found, attempt = self._hold, self._attempt
        if found is None or attempt is None:
            raise errors.ClosedError("finish() without write_data()", code=lib.CKPT_ECLOSED)
        self._attempt = None
        generation = None
        try:
            generation = attempt.commit(found.deadline)
            if self._collective:
                found.await_nodes()
        finally:
            found.ended(attempt, generation)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it ends with a number."""
        return step_of(checkpoint_id) is not None
