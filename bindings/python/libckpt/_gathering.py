# SPDX-License-Identifier: Apache-2.0
"""Rendezvous: a name for something that all ranks do, and the result of all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from . import _errors as errors
from ._barrier import Pause, late_error, words
from ._exchange import meet
from ._kvstore import Group, Table, find_group, first_line
from ._native import lib


class Rendezvous:
    """All ranks of the job make one and call end(), in the same order."""

    def __init__(self, path: str, distributed: bool | None, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._group: Group | None = find_group(distributed)
        self._table: Table | None = None
        self._prefix = ""
        #: no other rank uses the shared directory any more
        self.is_over = self._group is None
        #: the same on all ranks, and different each time
        self.token = os.urandom(8).hex()
        if self._group is not None:
            self._table, self._prefix = meet(path, self._group, timeout)
            self.token = self._prefix.rpartition("/")[2]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return 1 if self._group is None else self._group.world

    def end(self, error: BaseException | None) -> errors.CheckpointError | None:
        """
        Waits until all ranks have called this, and sets `is_over`. Returns the error to raise if
        another rank has failed: that of the lowest. A rank that is interrupted tells the others and
        does not wait. If rank 0 is interrupted, no rank waits.
        """
        group, table = self._group, self._table
        if group is None or table is None:
            return None
        mine = words(group.rank, error)
        interrupted = error is not None and not isinstance(error, Exception)
        try:
            if group.rank > 0:
                table.write(self._key(f"said/{group.rank}"), mine)
            elif interrupted:
                self._end_early(table, mine)
            if interrupted:
                return None
            said = self._lead(table, group, mine) if group.rank == 0 else self._follow(table)
        except RuntimeError as lost:
            self.is_over = not interrupted
            return errors.NetworkError(
                f"the ranks that rehearse do not reach each other: {first_line(lost)}",
                code=lib.CKPT_ENETWORK,
            )
        if said is None:
            self.is_over = True
            return late_error(f"{self._path}: a rank has not come to the end of the rehearsal")
        told = json.loads(said)
        self.is_over = not told.get("early")
        if not told["code"]:
            return None
        return errors.CheckpointError(
            f"the rehearsal has failed on rank {told['rank']}: {told['why']}", rank=told["rank"]
        )

    def is_last(self, peers: Sequence[int] = ()) -> bool:
        """
        If it is not over: tells the others that this rank does not use the shared directory of
        `peers` (empty: of all ranks) any more. True if no other of them uses it. Raises nothing,
        because the caller has an error already.
        """
        group, table = self._group, self._table
        if group is None or table is None:
            return True
        try:
            table.write(self._key(f"gone/{group.rank}"), b"1")
            # The last rank sees the keys of all.
            sharing = peers or range(group.world)
            return all(table.read(self._key(f"gone/{rank}")) for rank in sharing)
        except RuntimeError:
            return False

    def _end_early(self, table: Table, why: bytes) -> None:
        """Rank 0 publishes its error under the key where the others wait for the result."""
        table.write(self._key("end"), json.dumps({**json.loads(why), "early": True}).encode())

    def _key(self, what: str) -> str:
        return f"{self._prefix}/{what}"

    def _lead(self, table: Table, group: Group, mine: bytes) -> bytes | None:
        said = {0: mine}
        try:
            first = self._hear(table, group, said)
        except BaseException as stop:
            self._end_early(table, words(0, stop))
            raise
        if first is not None:
            table.write(self._key("end"), first)
        return first

    def _hear(self, table: Table, group: Group, said: dict[int, bytes]) -> bytes | None:
        """The record of the lowest rank that has failed, or of rank 0; None: some are missing."""
        pause = Pause(self._timeout)
        while len(said) < group.world:
            for rank in range(1, group.world):
                found = None if rank in said else table.read(self._key(f"said/{rank}"))
                if found is not None:
                    said[rank] = found
                    table.drop(self._key(f"said/{rank}"))
            if len(said) < group.world and not pause():
                return None
        return next(
            (said[rank] for rank in sorted(said) if json.loads(said[rank])["code"]), said[0]
        )

    def _follow(self, table: Table) -> bytes | None:
        pause = Pause(self._timeout)
        while True:
            found = table.read(self._key("end"))
            if found is not None or not pause():
                return found
