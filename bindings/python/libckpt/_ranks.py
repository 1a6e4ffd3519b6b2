# SPDX-License-Identifier: Apache-2.0
"""
Which of the ranks that hold the same writes it, and what each rank has of its own.

All ranks must come to the same answer without talking, so it follows from what they all know: the
names and sizes of the tensors, and the mesh.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import time
import zlib
from collections.abc import Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from ._errors import DeadlineError, NetworkError
from ._layout import Copies
from ._native import lib

T = TypeVar("T")


class Ranks(NamedTuple):
    """This process among those that save together."""

    rank: int = 0
    world: int = 1
    #: they do not have the same tensors, so that each writes all that it has
    apart: bool = False

    def own_name(self, name: str) -> str:
        """The name of a tensor that every rank has one of. The name of each is its own."""
        return name if self.world == 1 else f"{own_prefix(self.rank)}{name}"

    def everywhere(self) -> Copies:
        """Of a tensor that is the same on all ranks."""
        return Copies(None, 1, 0) if self.apart else Copies("world", self.world, self.rank)


def own_prefix(rank: int) -> str:
    """What the names of a rank's own tensors begin with."""
    return f"rank-{rank:05d}/"


def is_turn(name: str, copies: Copies) -> bool:
    """True if this rank writes a tensor that is asked about alone."""
    if copies.among == 1:
        return True
    return zlib.crc32(name.encode("utf-8", "replace")) % copies.among == copies.place


class Shares:
    """Balances tensors by bytes among those that hold them."""

    def __init__(self) -> None:
        #: (bytes so far, index) of each, the least first
        self._loads: dict[Hashable, list[tuple[int, int]]] = {}

    def settle(self, wanted: list[tuple[bytes, int, Copies]]) -> list[bool]:
        """
        Which of some tensors (name, bytes, who holds them) this rank writes. Large ones first, each
        by the one that has least so far.
        """
        mine = [copies.among == 1 for _, _, copies in wanted]
        for number in sorted(range(len(wanted)), key=lambda n: (-wanted[n][1], wanted[n][0])):
            _, nbytes, copies = wanted[number]
            if copies.among > 1:
                loads = self._loads.get(copies.group)
                if loads is None:
                    loads = [(0, index) for index in range(copies.among)]
                    self._loads[copies.group] = loads
                load, chosen = loads[0]
                heapq.heapreplace(loads, (load + max(nbytes, 1), chosen))
                mine[number] = chosen == copies.place
        return mine


class Agreement:
    """
    Whether all ranks have the same tensors where they share them out: what one of them takes to be
    another's turn would be in no shard if that one does not have it. They count each other in the
    store of the process group, once for every plan. Who is late is waited for.
    """

    def __init__(self, ranks: Ranks, session: str, store: Any, timeout: float) -> None:
        self._ranks = ranks
        self._key = f"libckpt/{session}/shared"
        self._store = store
        self._timeout = timeout
        self._said = ""
        self._times = 0
        self._alike = True

    def alike(self, shared: Iterable[tuple[str, int, tuple[int, ...]]]) -> bool:
        """True if all ranks have these. Costs nothing for what was asked last."""
        lines = sorted(f"{name} {dtype} {list(shape)}" for name, dtype, shape in shared)
        said = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()
        if said != self._said:
            self._said = ""
            self._times += 1
            try:
                self._alike = self._count(f"{self._key}/{self._times}", said)
            except RuntimeError as error:
                raise NetworkError(
                    f"the job's key-value store cannot be reached: {error}", code=lib.CKPT_ENETWORK
                ) from error
            self._said = said
        return self._alike

    def _count(self, key: str, said: str) -> bool:
        world, end, pause = self._ranks.world, time.monotonic() + self._timeout, 0.0005
        self._store.add(f"{key}/{said}", 1)
        there = self._store.add(key, 1)
        while there < world:
            if time.monotonic() > end:
                raise DeadlineError(
                    f"rank {self._ranks.rank} waited {self._timeout:g} s for the others to save a "
                    f"state of as many tensors as its own: {there} of {world} have come",
                    code=-errno.ETIMEDOUT,
                    errno=errno.ETIMEDOUT,
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
            there = self._store.add(key, 0)
        return bool(self._store.add(f"{key}/{said}", 0) == world)


class PerRank(Generic[T]):
    """
    A value that every rank has one of its own, in the state of a checkpointer of many ranks.

        state = {"model": model, "noise": PerRank(torch.zeros(8))}

    It is saved by every rank, and restored to the rank that it is of. Without it, tensors in the
    state are taken to be the same on all ranks, and one rank writes each. A rank that had none when
    the step was saved, because there were fewer, keeps the value it has, with a warning.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"libckpt.PerRank({self.value!r})"

    def state_dict(self) -> dict[str, Any]:
        """The value."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a value; a tensor keeps its memory if type and shape are the same."""
        from ._restore import into

        self.value = into(self.value, state["value"])
