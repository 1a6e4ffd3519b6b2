# SPDX-License-Identifier: Apache-2.0
"""Loading through torch.distributed.checkpoint."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata
from torch.distributed.checkpoint import StorageReader as Base
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from .. import _dtypes
from .. import _errors as errors
from .._arguments import flag
from .._decoder import Decoder
from .._engine import Engine
from .._exchange import node_ranks
from .._kvstore import find_group
from .._native import lib
from .._newest import read_newest
from .._options import Options
from .._reader import Memory, Reader, Stored, references
from .._store_names import Step, parse_step, store_path
from .._tensors import describe, overlaps
from ._boxes import check_box, is_within
from ._engine_cache import Loaded, bring, remember, step_of
from ._names import Table, Value, table_of


class StorageReader(Base):
    """
    The reader for dcp.load().

        dcp.load(state, storage_reader=StorageReader("/shared/run42"))

    Reads steps of StorageWriter and libckpt.Checkpointer, on any number of ranks, into any
    sharding. Only the parts of tensors that are needed are read, and all data is verified.

    store: directory.
    step: a number, "latest", or "latest~1" for the step before the latest. The checkpoint_id of
        dcp.load() may give it, too. If the manifest or index of the latest step is damaged, the
        next older step is taken, with a warning. If its data is damaged, dcp.load() raises.
    allow_pickle: load pickled values. They can run any code: use it only for stores that you trust.
    resume: the next save of this process to the store continues from this step. False: the step is
        only read.
    node_store: True: `store` is a directory of this node, and every node of the job has its own
        store. Files that a crash has left out of a store are copied there first, so all ranks must
        load together, and no other job may save meanwhile. A rank that needs data of another node
        raises OtherNodeError.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        step: Step = "latest",
        *,
        allow_pickle: bool = False,
        resume: bool = True,
        node_store: bool = False,
    ) -> None:
        super().__init__()
        self._engine: Engine | None = None
        self._reader: Reader | None = None
        self._table: Table | None = None
        self._path = os.path.abspath(store_path(store))
        parse_step(step)
        self._step = step
        self._allow_pickle = flag("allow_pickle", allow_pickle)
        self._resume = flag("resume", resume)
        self._node_store = flag("node_store", node_store)
        #: checkpoint_id of the load, for the log of torch
        self.checkpoint_id: str | os.PathLike[str] | None = None
        #: why that is refused
        self._wrong: ValueError | None = None
        self._plan: list[Any] = []
        #: bytes that the last load has read from the storage
        self.bytes_read = 0

    def __repr__(self) -> str:
        return f"<libckpt.dcp.StorageReader of {self._path}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None, "_reader": None, "_table": None}

    def __del__(self) -> None:
        if getattr(self, "_path", None) is not None:
            self._close()

    def _close(self) -> None:
        reader, engine = self._reader, self._engine
        self._reader = self._engine = self._table = None
        if engine is None or engine.foreign:
            return
        if reader is not None:
            reader.close()
        engine.close()

    # torch calls these, in this order.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load. checkpoint_id: names the step, if it is given."""
        self._close()
        self.checkpoint_id = checkpoint_id
        self._wrong = None
        try:
            if checkpoint_id is not None:
                self._step = _step_named(checkpoint_id)
        except ValueError as error:
            # If only this rank raised here, the others would wait for it.
            if find_group(None) is None:
                raise
            self._wrong = error

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Opens the step and describes its contents."""
        self._close()
        # First, because all ranks wait there for each other.
        if self._node_store:
            bring(self._path)
        if self._wrong is not None:
            raise self._wrong
        group = find_group(None)
        options = Options(
            read_only=True, node_ranks=1 if group is None else node_ranks() or group.world
        )
        engine = self._engine = Engine(self._path, options, log_thread=False)
        try:
            found, value = read_newest(engine, self._step, _open)
        except BaseException:
            self._close()
            raise
        if found is None:
            self._close()
            raise errors.StepNotFoundError(
                f"{self._path}: nothing has been committed yet", code=lib.CKPT_ENOSTEP
            )
        self._reader, self._table = value
        assert self._table is not None
        return Metadata(self._table.describe(), planner_data=self._table.planner_data)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_options: Any
    ) -> None:
        """Does nothing."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the step that this rank has opened."""
        reader = self._opened()
        return dataclasses.replace(plan, storage_data=(reader.step, reader.generation))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raises MismatchError if ranks have opened different steps."""
        for rank, plan in enumerate(plans):
            if plan.storage_data != plans[0].storage_data:
                mine, other = plans[0].storage_data, plan.storage_data
                raise errors.MismatchError(
                    f"{self._path}: rank 0 has opened step {mine[0]} (generation {mine[1]}), and "
                    f"rank {rank} step {other[0]} (generation {other[1]}): another job saves to "
                    "the store now, or the ranks see different directories; give the step",
                    code=lib.CKPT_EMISMATCH,
                    step=mine[0],
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads and verifies everything in the plan, into CPU tensors directly."""
        reader = self._opened()
        try:
            with torch.no_grad():
                self._read(reader, plan, planner)
            if self._resume:
                nonce = os.urandom(8).hex()
                remember(self._path, Loaded(reader.generation, reader.step, nonce))
            self.bytes_read = reader.engine.stats()["bytes_read"]
        finally:
            self._close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _opened(self) -> Reader:
        if self._reader is None:
            raise errors.ClosedError(
                f"{self._path} is not open: read_metadata() comes first", code=lib.CKPT_ECLOSED
            )
        return self._reader

    def _read(self, reader: Reader, plan: LoadPlan, planner: LoadPlanner) -> None:
        assert self._table is not None
        memory = Memory(reader, reader.tensors())
        values: list[tuple[ReadItem, Value]] = []
        tensors: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        for item in plan.items:
            found = self._table.find(item.storage_index.fqn)
            if item.type == LoadItemType.BYTE_IO:
                assert isinstance(found, Value)
                _check_here(reader, item.storage_index.fqn, found)
                for name, kind in references(found.node):
                    memory.want(name, kind)
                values.append((item, found))
            else:
                assert isinstance(found, Stored)
                tensors.append((item, *_bind(reader, found, item, planner)))
        reader.read()
        for item, target, read in tensors:
            if read is not target:
                target.copy_(read)
            planner.commit_tensor(item, target)
        decoder = Decoder(memory.get, allow_pickle=self._allow_pickle)
        for item, value in values:
            planner.load_bytes(item, self._bytes_of(value, decoder))

    def _bytes_of(self, value: Value, decoder: Decoder) -> io.BytesIO:
        """A value as planners expect it: in the format of torch.save()."""
        if value.raw and not self._allow_pickle:
            raise errors.UnsupportedError(
                "the checkpoint has bytes of a planner, and loading them can run any code: pass "
                "allow_pickle=True only if you trust its origin"
            )
        decoded = decoder.decode(value.node)
        if value.raw:
            return io.BytesIO(decoded)
        text = io.BytesIO()
        torch.save(decoded, text)
        text.seek(0)
        return text

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        try:
            _step_named(checkpoint_id)
        except ValueError:
            return False
        return True


def _step_named(checkpoint_id: str | os.PathLike[str]) -> Step:
    last = os.path.basename(str(checkpoint_id).rstrip("/"))
    if last.startswith("latest"):
        parse_step(last)
        return last
    number = step_of(checkpoint_id)
    if number is None:
        raise ValueError(
            f"checkpoint_id={str(checkpoint_id)!r}: it must end with the number of a step, like "
            '"step-100", or be "latest" or "latest~1"'
        )
    return number


def _open(reader: Reader) -> tuple[Reader, Table]:
    """Takes the open step from read_newest(), and its table."""
    group = find_group(None)
    alike = group is not None and group.world == reader.world
    table = table_of(reader, group.rank if group is not None and alike else 0)
    return reader.take(), table


def _check_here(reader: Reader, name: str, found: Stored | Value) -> None:
    missing = None if found.here else reader.elsewhere(name)
    if missing is not None:
        raise missing


def _bind(
    reader: Reader, found: Stored, item: ReadItem, planner: LoadPlanner
) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory of a box, and the memory that it is read to: the same, if possible."""
    name, shape, start = found.name, tuple(item.lengths), tuple(item.storage_offsets)
    if not is_within(found.shape, start, shape):
        raise errors.MismatchError(
            f"step {reader.step}: the plan has a box of {name} of shape {list(shape)} at "
            f"{list(start)}, which is not within the tensor's shape {list(found.shape)}",
            code=lib.CKPT_EMISMATCH,
            step=reader.step,
            tensor=name,
        )
    target = planner.resolve_tensor(item).detach()
    if tuple(target.shape) != shape:
        raise errors.MismatchError(
            f"step {reader.step}: the plan has a box of {name} of shape {list(shape)}, and the "
            f"memory for it has the shape {list(target.shape)}",
            code=lib.CKPT_EMISMATCH,
            step=reader.step,
            tensor=name,
        )
    _check_dest(item, planner)
    if 0 in shape:
        return target, target
    _check_here(reader, name, found)
    dtype = _dtypes.torch_type(found.dtype)
    if dtype is None:
        raise errors.UnsupportedError(
            f"tensor {name!r} is {found}: this version of torch does not have this dtype",
            tensor=name,
        )
    read = target
    direct = target.device.type == "cpu" and target.dtype == dtype and not target.is_conj()
    if not direct or target.is_neg() or overlaps(describe(target)):
        read = torch.empty(shape, dtype=dtype)
    what = describe(read)
    if shape != found.shape:
        what = what._replace(whole=found.shape, start=start)
    reader.bind(name, what, read)
    return target, read


def _check_dest(item: ReadItem, planner: LoadPlanner) -> None:
    """Checks that the box at `dest_index` is where the placements of the DTensor put it."""
    offset = item.dest_index.offset
    if offset is not None and item.lengths:
        # The stored tensor is one box, so the lengths are those of the whole destination box.
        check_box(item.dest_index.fqn, planner, (tuple(offset), tuple(item.lengths)))
