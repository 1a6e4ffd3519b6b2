# SPDX-License-Identifier: Apache-2.0
"""
rehearse(): saves a state to a temporary store, restores it beside the live one, and compares both
bit by bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _errors as errors
from ._arguments import patterns
from ._checkpointer import Checkpointer
from ._equality import differences, hollow_in, same_piece
from ._exchange import node_ranks, refuse
from ._gathering import Rendezvous
from ._into import is_tensor
from ._json_nodes import path_text
from ._log import logger
from ._rng import keep
from ._room import check_room
from ._slices import Piece, Slices, reading
from ._state_kinds import check_state, find_specials, is_module
from ._store_names import store_path
from ._throwaway import Copier
from ._trial import Load, Trial, TrialReader
from .adapters._ddp_buffers import ddp_buffers

if TYPE_CHECKING:
    import torch

#: Bytes that are read at a time, and bytes for copies of objects.
_SLICE = 256 << 20
_OBJECTS = 512 << 20
#: Differences that a message lists.
_LISTED = 10


class Rehearsed(NamedTuple):
    """What rehearse() has tried on this rank. print() shows it as text."""

    #: number of tensors that were read and compared, and their bytes
    tensors: int
    nbytes: int
    #: objects whose load_state_dict() was called on a copy
    loaded: tuple[str, ...]
    #: what was not tried, and why. The data of these was read and verified, too.
    untried: tuple[str, ...]
    #: what was restored but not compared, and why
    uncompared: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.tensors} tensors ({self.nbytes / 2**20:.1f} MiB) were read and compared"
        if self.uncompared:
            said += f" (but not {'; '.join(self.uncompared)})"
        if self.loaded:
            said += f"; load_state_dict() was tried for {', '.join(self.loaded)}"
        if self.untried:
            said += f"; read but not tried: {'; '.join(self.untried)}"
        return said


def rehearse(
    state: dict[str, Any],
    directory: str | os.PathLike[str] | None = None,
    *,
    allow_pickle: bool = False,
    per_rank: Iterable[str] = (),
    try_load: Iterable[str] = (),
    distributed: bool | None = None,
    node_store: bool | None = None,
    timeout: float = 600.0,
) -> Rehearsed:
    """
    Saves `state` and restores it, as a test before a long job. Raises what save() or resume() would
    raise, and MismatchError, with names, if anything is not restored bit for bit. Returns what was
    tried, and what was not tried and why. With many ranks all of them call it, and all raise if one
    does.

    It needs disk space for the state once, and 1 GiB of memory beside the staging memory. The live
    state is not changed. Tensors are read in parts to other memory and compared there.
    load_state_dict() is called on copies of objects: those of torch and NumPy, and those that
    try_load lists. These are never copied: optimizers with their own load_state_dict(),
    DataLoaders, objects that are large or spread over ranks, and objects that may not be copied
    correctly.

    directory: where the temporary store is made and removed. None: the directory for temporary
        files, which may be in memory. With many ranks it is a directory that they share. A process
        that is killed leaves a directory libckpt-rehearsal-* there.
    allow_pickle, per_rank, distributed: as for the Checkpointer.
    try_load: patterns over the names of objects, of modules with their own load_state_dict(), and
        of pickled values (["ema", "metrics/*"]) that are tried on a copy. Their code must change
        nothing but the object: no global object, no file, no server.
    node_store: True: each node has its own `directory`. None: True if no directory is given and the
        ranks are on several nodes.
    timeout: seconds that ranks wait for each other, and that the save may take.
    """
    import tempfile

    listed = patterns(try_load, "try_load")
    parent = tempfile.gettempdir() if directory is None else store_path(directory)
    meeting = Rendezvous(parent, distributed, timeout)
    if node_store is None:
        node_store = directory is None and meeting.world > 1 and node_ranks() != meeting.world
    options: dict[str, Any] = {
        "allow_pickle": allow_pickle,
        "per_rank": per_rank,
        "distributed": distributed,
        "node_store": node_store,
        "save_timeout": timeout,
    }
    found = _meet_and_try(meeting, parent, state, options, listed)
    logger.info("rehearsal: %s", found)
    return found


def _meet_and_try(
    meeting: Rendezvous,
    parent: str,
    state: dict[str, Any],
    options: dict[str, Any],
    listed: tuple[str, ...],
) -> Rehearsed:
    """Saves and tries, and meets the other ranks at the end, also after a failure."""
    import shutil

    path = os.path.join(parent, f"libckpt-rehearsal-{meeting.token}")
    put_back = keep()
    found: Rehearsed | None = None
    failed: BaseException | None = None
    peers: Sequence[int] = ()
    try:
        try:
            check_state(state)
            if not options["node_store"]:
                check_room(parent, state)
        except BaseException as error:  # the other ranks wait for this one's Checkpointer
            refuse(path, options["distributed"], error, node_store=options["node_store"])
            raise
        with Checkpointer(path, state, on_error="raise", rehearse=False, **options) as ckpt:
            engine = ckpt._core.engine
            peers = engine.peers
            ckpt.save(0).wait()
            place = engine.rank, engine.world
        found = _try(path, place, state, allow_pickle=options["allow_pickle"], listed=listed)
    except BaseException as error:
        failed = error
    finally:
        # Other ranks may read the store until all have met.
        try:
            try:
                put_back()
            finally:
                others = meeting.end(failed)
        finally:
            if meeting.is_over or meeting.is_last(peers):
                shutil.rmtree(path, ignore_errors=True)
    if failed is not None:
        raise failed
    if others is not None:
        raise others
    assert found is not None
    return found


def _try(
    path: str,
    place: tuple[int, int],
    state: dict[str, Any],
    *,
    allow_pickle: bool,
    listed: tuple[str, ...],
) -> Rehearsed:
    with reading(path, *place) as engine, TrialReader(engine, 0) as reader:
        trial = Trial(
            reader,
            allow_pickle=allow_pickle,
            most=_OBJECTS // 2,
            copier=Copier(_OBJECTS // 2),
            listed=listed,
        )
        trial.compare(state)
        check = _Check(trial, _of_first(state, *place))
        slices = Slices(engine, 0, _SLICE)
        slices.read(reader.bounds, check.look)
        slices.fill(reader.fresh)
        check.values()
        for load in trial.loads:
            check.load(load)
        check.raise_differences()
        return Rehearsed(
            tensors=len({bound.name for bound in (*reader.bounds, *reader.fresh)}),
            nbytes=slices.nbytes,
            loaded=tuple(check.loaded),
            untried=tuple(trial.untried),
            uncompared=check.uncompared(),
        )


def _of_first(state: dict[str, Any], rank: int, world: int) -> list[torch.Tensor]:
    """Buffers that may differ from those of rank 0, which are the ones that are saved."""
    found: list[torch.Tensor] = []
    for special in find_specials(state) if rank else ():
        if is_module(special.value):
            ids = ddp_buffers(special.value, world)
            found += (buffer for buffer in special.value.buffers() if id(buffer) in ids)
    return found


class _Check:
    """Compares what was restored with the live state."""

    def __init__(self, trial: Trial, skipped: list[torch.Tensor]) -> None:
        self._trial = trial
        self._skipped = {id(buffer) for buffer in skipped}
        self._memory = {buffer.data_ptr() for buffer in skipped}
        #: names of skipped buffers that were met
        self._passed: dict[str, None] = {}
        #: tensors of copies that have no elements
        self._hollow: dict[str, None] = {}
        self._found: dict[str, None] = {}
        #: objects that were loaded
        self.loaded: list[str] = []

    def look(self, piece: Piece, data: memoryview) -> None:
        """Compares a piece of a tensor that was read."""
        home = piece.bound.home
        if home is not None and id(home) in self._skipped:
            self._passed[piece.bound.name] = None
        elif home is not None and not same_piece(piece, data):
            self._found[piece.bound.name] = None

    def values(self) -> None:
        """Compares the values that are not tensors, and decodes the generators."""
        for leaf in self._trial.leaves:
            for value in self._trial.value(leaf):
                if leaf.known:
                    self._add(differences(leaf.live, value, path_text(leaf.path)))
        self._trial.decode(self._trial.rng, None)

    def load(self, load: Load) -> None:
        """Loads a copy of an object. Its state_dict() must then equal that of the live one."""
        said = self._trial.load(load)
        if said is None:
            return
        where = path_text(load.path)
        self.loaded.append(where)
        was, now = said
        if isinstance(was, dict) and isinstance(now, dict):
            left_out = [key for key, value in was.items() if self._is_of_first(value)]
            self._passed.update(dict.fromkeys(f"{where}.state_dict()[{key!r}]" for key in left_out))
            was, now = (
                {key: value for key, value in one.items() if key not in left_out}
                for one in (was, now)
            )
        self._hollow.update(dict.fromkeys(hollow_in(now, f"{where}.state_dict()")))
        self._add(differences(was, now, f"{where}.state_dict()"))

    def _is_of_first(self, value: Any) -> bool:
        """True for a buffer that rank 0 saves for all ranks."""
        return is_tensor(value) and value.data_ptr() in self._memory

    def _add(self, names: Iterable[str]) -> None:
        self._found.update(dict.fromkeys(names))

    def uncompared(self) -> tuple[str, ...]:
        """What was restored but not compared, and why."""
        both = (
            (self._hollow, "the loaded copy does not have their elements"),
            (self._passed, "rank 0 saves these buffers for all ranks"),
        )
        return tuple(f"{_some(list(names), ', ')}: {why}" for names, why in both if names)

    def raise_differences(self) -> None:
        """Raises MismatchError if there is any."""
        if not self._found:
            return
        names = list(self._found)
        where = self._trial.differences.where
        raise errors.MismatchError(
            f"rehearsal{', rank ' + str(where.rank) if where.world > 1 else ''}: a restore changes "
            f"these: {_some(names)}",
            step=where.step,
            rank=where.rank,
            tensor=names[0],
        )


def _some(names: list[str], between: str = "; ") -> str:
    more = f"{between}and {len(names) - _LISTED} more" * (len(names) > _LISTED)
    return f"{between.join(names[:_LISTED])}{more}"
