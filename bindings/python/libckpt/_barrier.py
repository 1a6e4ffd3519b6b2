# SPDX-License-Identifier: Apache-2.0
"""
Whether all ranks of a job could open a store, once they have met: each says so in the job's
key-value store, and rank 0 what that makes of all of them.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _errors as errors
from ._calls import error_class
from ._kvstore import Group, Table, first_line
from ._log import logger
from ._native import lib
from ._nodes import Place, Refusal, peers_by_node, refusal

#: Asking again for what is not there yet.
_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.05
#: Seconds that rank 0 may need to publish its answer.
_ANSWER = 5.0
#: Seconds until a rank stops waiting for its error to reach the store.
_TELL = 10.0


class Pause:
    """Between asking and asking again, as long as there is time."""

    def __init__(self, timeout: float, most: float = _PAUSE_MAX) -> None:
        self._timeout = timeout
        self._most = most
        self._next = _PAUSE_MIN
        self.extend()

    def extend(self) -> None:
        """As much time as in the beginning, from now on."""
        self._end = time.monotonic() + self._timeout

    def __call__(self) -> bool:
        """Waits a little. False: the time is up."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next, left))
        self._next = min(self._next * 1.5, self._most)
        return True


def late_error(message: str) -> errors.WaitTimeoutError:
    """What a rank raises that has waited for others."""
    return errors.timed_out(
        f"{message}: all ranks of the job must make a Checkpointer of the same path, all with "
        "node_store or none, and in the same order if they make several (distributed=False: for "
        "this process alone); and all of them call libckpt.dcp.close(), or none"
    )


def words(rank: int, error: BaseException | None, **more: object) -> bytes:
    """How it went on one rank, and what else it says."""
    code = 0 if error is None else getattr(error, "code", 0) or -errno.ECANCELED
    why = "" if error is None else str(error)
    if error is not None and not (why and isinstance(error, errors.CheckpointError)):
        why = f"{type(error).__name__}: {why}" if why else type(error).__name__
    return json.dumps({"rank": rank, "code": code, "why": why[:2000], **more}).encode()


class Shared(NamedTuple):
    """What all places come to, for one rank."""

    #: what is wrong with them
    wrong: Refusal | None
    #: the ranks that share this one's store
    peers: tuple[int, ...]
    #: a store is there already
    made: bool


class Opening:
    """
    Each rank says once whether it could open the store, and rank 0 what that makes of all of them.
    One or two small keys of it stay in the job's store. If the names in the ranks' modules differ,
    two keys stay of each distinct set of names as well: see adapters/_stages.py.
    """

    def __init__(self, group: Group, table: Table, prefix: str, path: str, timeout: float) -> None:
        self.group = group
        self.table = table
        self.prefix = prefix
        #: of rank 0, where every node has a store: on which node each rank is
        self.nodes: tuple[str, ...] = ()
        #: once they agree: the digest that each rank has told, of rank 0; and whether they differ
        self.digests: list[str] = []
        self.differ = False
        self._path = path
        self._timeout = timeout

    def pause(self, most: float) -> Pause:
        """For as long as a rank that lives may take to say so; `most` seconds at once."""
        return Pause(self._timeout, most)

    def share(self, place: Place, said: dict[int, bytes]) -> Shared:
        """What comes of the places of all ranks. `said`, of rank 0, are those of the others."""
        try:
            if self.group.rank > 0:
                return self._hear_peers()
            places = [place, *(Place.decode(said[rank]) for rank in range(1, self.group.world))]
            wrong = refusal(places)
            made = any(found.made for found in places)
            self.nodes = tuple(found.node for found in places)
            near = peers_by_node(places)
            answers = {
                node: json.dumps({"wrong": wrong, "peers": [] if wrong else peers, "made": made})
                for node, peers in near.items()
            }
            for rank in range(1, self.group.world):
                answer = answers[places[rank].node].encode()
                self.table.write(f"{self.prefix}/peers/{rank}", answer)
        except RuntimeError as error:
            raise self.lost(error) from error
        return Shared(wrong, tuple(near[place.node]), made)

    def _hear_peers(self) -> Shared:
        key = f"{self.prefix}/peers/{self.group.rank}"
        pause = Pause(self._timeout)
        while True:
            for told in map(self.table.read, (key, f"{self.prefix}/opened")):
                if told is None:
                    continue
                answer = json.loads(told)
                if "why" in answer:
                    raise self._failure(told)
                self.table.drop(key)
                wrong = Refusal(*answer["wrong"]) if answer["wrong"] else None
                return Shared(wrong, tuple(map(int, answer["peers"])), bool(answer["made"]))
            if not pause():
                raise self._kept_waiting()

    def refused(self, wrong: Refusal) -> Exception:
        """That, as an exception."""
        text = f"{self._path}: {wrong.why}"
        if not wrong.errno:
            return ValueError(text)
        return errors.StorageError(text, code=-wrong.errno, errno=wrong.errno, rank=wrong.rank)

    def lost(self, error: RuntimeError) -> errors.NetworkError:
        """What this rank raises that does not reach the job's key-value store."""
        return errors.NetworkError(
            f"the ranks that open {self._path} do not reach each other: {first_line(error)}",
            code=lib.CKPT_ENETWORK,
        )

    def fail(self, error: BaseException) -> None:
        """This rank could not. Raises nothing: there is an error already."""
        mine = words(self.group.rank, error)

        def say(table: Table) -> None:
            # Those whose nodes wait for this one's look there. The first reason is that of all.
            first = table.put(f"{self.prefix}/failed", mine)
            said = mine if first else table.read(f"{self.prefix}/failed")
            table.write(self._own(), said or mine)
            table.read(self._own())

        tell(self._path, self.group, self.table, say)

    def heed(self) -> errors.CheckpointError | None:
        """What another rank has failed with, perhaps before its engine could say so."""
        try:
            said = self.table.read(f"{self.prefix}/failed")
        except RuntimeError as error:
            logger.debug("%s: %s", self._path, first_line(error))
            return None
        return None if said is None else self._failure(said)

    def agree(self, digest: str = "") -> None:
        """
        This rank could. Raises what another one has failed with. `digest`: of what may differ by
        rank; empty: not known.
        """
        try:
            if self.group.rank == 0:
                self.digests = [digest] * self.group.world
                self._lead()
            else:
                self.table.write(self._own(), words(self.group.rank, None, digest=digest))
                self._follow()
        except RuntimeError as error:
            raise self.lost(error) from error

    def _own(self) -> str:
        rank = self.group.rank
        return f"{self.prefix}/opened" if rank == 0 else f"{self.prefix}/open/{rank}"

    def _lead(self) -> None:
        missing = set(range(1, self.group.world))
        pause = Pause(self._timeout)
        while True:
            for rank in sorted(missing):
                key = f"{self.prefix}/open/{rank}"
                said = self.table.read(key)
                if said is None:
                    continue
                self.table.drop(key)
                missing.discard(rank)
                told = json.loads(said)
                self.digests[rank] = told.get("digest", "")
                if told["code"]:
                    self.table.write(self._own(), said)
                    raise self._failure(said)
            # One may have said that it could, and have lost its connection before it was told more.
            failed = self.table.read(f"{self.prefix}/failed")
            if failed is not None:
                self.table.write(self._own(), failed)
                raise self._failure(failed)
            if not missing:
                self.differ = len(set(self.digests)) > 1 and "" not in self.digests
                self.table.write(self._own(), words(0, None, differ=self.differ))
                return
            if not pause():
                some = ", ".join(map(str, sorted(missing)[:8]))
                took = f"{self._timeout:g} s"
                late = late_error(f"{self._path}: rank {some} has not opened it in {took}")
                self.table.write(self._own(), words(0, late))
                raise late

    def _follow(self) -> None:
        pause = Pause(self._timeout + _ANSWER)
        while True:
            said = self.table.read(f"{self.prefix}/opened")
            if said is not None:
                told = json.loads(said)
                if told["code"]:
                    raise self._failure(said)
                self.differ = bool(told.get("differ"))
                return
            if not pause():
                raise self._kept_waiting()

    def late(self, what: str) -> errors.WaitTimeoutError:
        """What this rank raises that has waited in vain."""
        return late_error(f"{self._path}: {what} in {self._timeout:g} s")

    def _kept_waiting(self) -> errors.WaitTimeoutError:
        who, long = f"rank {self.group.rank}", f"{self._timeout:g} s"
        return late_error(f"{self._path}: {who} has waited {long} for rank 0")

    def _failure(self, said: bytes) -> errors.CheckpointError:
        return failure(self._path, json.loads(said))


def tell(path: str, group: Group, table: Table, call: Callable[[Table], object]) -> None:
    """
    Says something to the others: where this rank's own connection has failed, through the one that
    all of the process share. That has no deadlines, so this thread does not wait for it to the end.
    Raises nothing: there is an error already.
    """
    told: list[bool] = []
    lost: list[str] = []

    def run() -> None:
        for one in (table, Table(group.store)):
            try:
                call(one)
            except Exception as error:
                lost.append(first_line(error))
            else:
                told.append(True)
                break

    thread = threading.Thread(target=run, name="libckpt-tell", daemon=True)
    try:
        thread.start()
        thread.join(_TELL)
    except RuntimeError as error:  # there can be no thread
        lost.append(first_line(error))
    if not told:
        why = lost[-1] if lost else "the job's key-value store does not answer"
        logger.warning("%s: the other ranks are not told: %s", path, why)


def failure(path: str, told: dict[str, Any]) -> errors.CheckpointError:
    """What another rank has said, as an exception."""
    code = int(told["code"])
    return error_class(code)(
        f"rank {told['rank']} could not open {path}: {told['why']}",
        code=code,
        errno=-code if code > lib.CKPT_EINTEGRITY else None,
        rank=int(told["rank"]),
    )
