# SPDX-License-Identifier: Apache-2.0
"""
Buffers of which every rank has its own, though nobody has said so.

Parameters are the same on all ranks, or a step is refused. Buffers may differ by rank and be right:
what a rank has counted of its own data. So before a run saves for the first time the ranks compare
the buffers of each module. Where they differ, all buffers of that module are each rank's own from
then on, as if per_rank= had named them. What was the same on all ranks then must stay the same. The
step says what was decided, so that a run which resumes it does not decide again.

The ranks talk through the job's key-value store. Each tells rank 0 one digest. Only if these differ
each tells it the digests of its modules.
"""

from __future__ import annotations

import errno
import hashlib
import json
import warnings
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _errors as errors
from ._engine import Engine, logger
from ._into import bits_of
from ._layout import is_spread
from ._modules import buffer_slots, buffers_of_first
from ._native import lib
from ._opening import Opening, Pause, tell, words
from ._ranks import Ranks
from ._specials import Special, is_module, plain_path, prefix_in
from ._subclasses import wraps
from ._table import PATIENCE, first_line

if TYPE_CHECKING:
    import torch

    from ._state import Planner

#: So many buffers a warning names.
_NAMED = 10

#: What rank 0 says if the digests of ranks differ.
_MORE = b"more"

#: What the names of a module's buffers begin with, and a digest of them.
Digests = dict[str, str]
#: The names of a module's buffers, and they themselves.
Buffers = dict[str, list[tuple[str, "torch.Tensor"]]]


def buffers_by_module(specials: Iterable[Special], ranks: Ranks) -> Buffers:
    """The buffers that must be the same on all ranks, if nothing else is decided."""
    modules = [special for special in specials if is_module(special.value)]
    plain = plain_path(modules)
    found: Buffers = {}
    for special in modules:
        first = buffers_of_first(special.value, ranks.world)
        slots = buffer_slots(special.value, prefix_in(special, plain))
        for name, (owner, key) in slots:
            buffer = getattr(owner, key)
            if buffer is not None and id(buffer) not in first and _is_plain(buffer):
                found.setdefault(name[: len(name) - len(key)], []).append((name, buffer))
    return {
        module: [one for one in buffers if not ranks.is_own(*one)]
        for module, buffers in found.items()
    }


def _is_plain(buffer: torch.Tensor) -> bool:
    import torch

    return not (
        is_spread(buffer)
        or wraps(buffer)
        or buffer.is_meta
        or buffer.is_conj()
        or buffer.is_neg()
        or buffer.is_quantized
        or buffer.layout != torch.strided
        or torch.nn.parameter.is_lazy(buffer)
    )


def digests_of(buffers: Buffers) -> Digests:
    """Of each module that has buffers, a digest of all of them."""
    found: Digests = {}
    for module, some in buffers.items():
        digest = hashlib.blake2b(digest_size=16)
        for name, buffer in some:
            digest.update(f"{name} {buffer.dtype} {list(buffer.shape)}\n".encode())
            digest.update(bits_of(buffer).cpu().numpy().data)
        if some:
            found[module] = digest.hexdigest()
    return found


def decide(
    planner: Planner, engine: Engine, state: dict[str, Any], step: int, timeout: float
) -> None:
    """Before a save: which buffers are each rank's own, unless that is decided already."""
    if engine.opening is None or planner.ranks.own_buffers is not None:
        return
    meeting = Meeting(engine.opening, engine.path, step, timeout)
    try:
        names = planner.decide(state, meeting.decide)
    except errors.AbortedError:
        raise
    except BaseException as error:
        meeting.fail(error)
        raise
    if names and engine.rank == 0:
        some = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
        message = (
            f"{engine.path}: the ranks differ in buffers of modules: from step {step} on each rank "
            f"saves {some} of its own, and gets it back on {engine.world} ranks; another number of "
            "ranks gets those of rank 0"
        )
        logger.warning("%s", message)
        warnings.warn(message, errors.CheckpointWarning, stacklevel=3)


class Meeting:
    """The ranks of a job before a save, and this one among them."""

    def __init__(self, opening: Opening, path: str, step: int, timeout: float) -> None:
        self._opening = opening
        self._table = opening.table
        self._group = opening.group
        #: of this step alone, so that nothing of a step that was given up is taken for it
        self._place = f"{opening.prefix}/buffers/{step}"
        #: of all steps: a rank that has not heard the answer of one hears it at the next
        self._answer = f"{opening.prefix}/buffers/decided"
        self._path = path
        self._step = step
        self._timeout = timeout

    def decide(self, mine: Digests) -> list[str]:
        """
        The modules whose buffers differ between ranks: the same answer on all ranks that have
        buffers. Others wait for nobody.
        """
        try:
            said = self._table.read(self._answer)
            if said is None:
                said = self._lead(mine) if self._group.rank == 0 else self._follow(mine)
            return list(json.loads(said))
        except RuntimeError as error:
            raise errors.NetworkError(
                f"step {self._step} of {self._path} cannot start: the ranks do not reach each "
                f"other: {first_line(error)}",
                code=lib.CKPT_ENETWORK,
            ) from error

    def fail(self, error: BaseException) -> None:
        """This rank cannot say what it has. Raises nothing: there is an error already."""
        mine = words(self._group.rank, error)
        key = f"{self._place}/failed"
        tell(self._path, self._group, self._table, lambda table: table.put(key, mine))

    def _key(self, rank: int, kind: str = "") -> str:
        return f"{self._place}/{kind}{rank}"

    def _follow(self, mine: Digests) -> bytes:
        self._table.write(self._key(self._group.rank), _short(mine))
        if not mine:
            return b"[]"
        more = f"{self._place}/more"
        said = self._hear(self._answer, more)
        if said != _MORE:
            return said
        lines = zlib.compress(json.dumps(mine).encode())
        self._table.write(self._key(self._group.rank, "all/"), lines)
        return self._hear(self._answer)

    def _lead(self, mine: Digests) -> bytes:
        own = sorted(self._compare(mine)) if mine else []
        said = json.dumps(own).encode()
        self._table.write(self._answer, said)
        return said

    def _compare(self, mine: Digests) -> list[str]:
        short = self._gather(range(1, self._group.world))
        others = [rank for rank, value in short.items() if value != _short({})]
        if all(short[rank] == _short(mine) for rank in others):
            return []
        self._table.write(f"{self._place}/more", _MORE)
        seen = {module: {digest} for module, digest in mine.items()}
        for lines in self._gather(others, "all/").values():
            for module, digest in json.loads(zlib.decompress(lines)).items():
                seen.setdefault(module, set()).add(digest)
        return [module for module, digests in seen.items() if len(digests) > 1]

    def _gather(self, ranks: Iterable[int], kind: str = "") -> dict[int, bytes]:
        """What these ranks have told, which is dropped then."""
        found: dict[int, bytes] = {}
        missing = set(ranks)
        pause = Pause(self._timeout)
        while missing:
            for rank in sorted(missing):
                said = self._table.read(self._key(rank, kind))
                if said is not None:
                    self._table.drop(self._key(rank, kind))
                    found[rank] = said
            missing -= found.keys()
            self._heed()
            if missing and not pause():
                some = ", ".join(map(str, sorted(missing)[:8]))
                raise self._late(f"rank {some} has not come to it")
        return found

    def _hear(self, *keys: str) -> bytes:
        """What is there first under one of these keys."""
        pause = Pause(self._timeout + PATIENCE.total_seconds())
        while True:
            for key in keys:
                said = self._table.read(key)
                if said is not None:
                    return said
            self._heed()
            if not pause():
                raise self._late("rank 0 has not come to it")

    def _heed(self) -> None:
        """Raises what another rank has failed with."""
        said = self._table.read(f"{self._place}/failed")
        if said is not None:
            found = json.loads(said)
            raise errors.AbortedError(
                f"step {self._step} of {self._path} was given up by rank {found['rank']}: "
                f"{found['why']}",
                code=lib.CKPT_EABORTED,
                step=self._step,
                rank=int(found["rank"]),
            )

    def _late(self, who: str) -> errors.DeadlineError:
        return errors.DeadlineError(
            f"step {self._step} of {self._path} was given up: {who} within {self._timeout:g} s; "
            "all ranks compare the buffers of their modules before the first save",
            code=-errno.ETIMEDOUT,
            errno=errno.ETIMEDOUT,
            step=self._step,
        )


def _short(digests: Digests) -> bytes:
    text = json.dumps(sorted(digests.items())).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
