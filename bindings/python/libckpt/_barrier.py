# SPDX-License-Identifier: Apache-2.0
"""
How the ranks of a job agree that all of them have opened a store. Each rank writes its result to
the job's key-value store, and rank 0 publishes the result of all.
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

#: Shortest and longest pause between two reads of a key, in seconds.
_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.05
#: Seconds that rank 0 may need to publish its answer.
_ANSWER = 5.0
#: Seconds until a rank stops waiting for its error to reach the store.
_TELL = 10.0


class Pause:
    """Pauses of a polling loop, with a timeout. Each pause is longer than the one before."""

    def __init__(self, timeout: float, most: float = _PAUSE_MAX) -> None:
        self._timeout = timeout
        self._most = most
        self._next = _PAUSE_MIN
        self.extend()

    def extend(self) -> None:
        """Starts the timeout anew."""
        self._end = time.monotonic() + self._timeout

    def __call__(self) -> bool:
        """Pauses. False: the timeout has expired."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next, left))
        self._next = min(self._next * 1.5, self._most)
        return True


def late_error(message: str) -> errors.WaitTimeoutError:
    """The error of a rank that has waited for others in vain."""
    return errors.timed_out(
        f"{message}: all ranks of the job must make a Checkpointer of the same path, all with "
        "node_store or none, and in the same order if they make several (distributed=False: for "
        "this process alone); and all of them call libckpt.dcp.close(), or none"
    )


def words(rank: int, error: BaseException | None, **more: object) -> bytes:
    """The result of one rank as JSON, and further fields."""
    code = 0 if error is None else getattr(error, "code", 0) or -errno.ECANCELED
    why = "" if error is None else str(error)
    if error is not None and not (why and isinstance(error, errors.CheckpointError)):
        why = f"{type(error).__name__}: {why}" if why else type(error).__name__
    return json.dumps({"rank": rank, "code": code, "why": why[:2000], **more}).encode()


class Shared(NamedTuple):
    """The result of all places, for one rank."""

    #: why they are refused
    wrong: Refusal | None
    #: the ranks that share this one's store
    peers: tuple[int, ...]
    #: some node has a store already
    made: bool


class Opening:
    """
    The opening of a store by all ranks. Each rank writes once whether it could open the store, and
    rank 0 publishes the result. One or two small keys remain in the job's key-value store. If the
    names in the ranks' modules differ, two more remain for each distinct set of names: see
    adapters/_stages.py.
    """

    def __init__(self, group: Group, table: Table, prefix: str, path: str, timeout: float) -> None:
        self.group = group
        self.table = table
        self.prefix = prefix
        #: rank 0, if every node has a store: the node of each rank
        self.nodes: tuple[str, ...] = ()
        #: after agree(): on rank 0 the digest of each rank; and whether they differ
        self.digests: list[str] = []
        self.differ = False
        self._path = path
        self._timeout = timeout

    def pause(self, most: float) -> Pause:
        """For a wait for other ranks. `most`: the longest pause, in seconds."""
        return Pause(self._timeout, most)

    def share(self, place: Place, said: dict[int, bytes]) -> Shared:
        """Compares the places of all ranks. `said`: on rank 0, those of the other ranks."""
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
        """The exception for a refusal."""
        text = f"{self._path}: {wrong.why}"
        if not wrong.errno:
            return ValueError(text)
        return errors.StorageError(text, code=-wrong.errno, errno=wrong.errno, rank=wrong.rank)

    def lost(self, error: RuntimeError) -> errors.NetworkError:
        """The error of a rank that cannot reach the job's key-value store."""
        return errors.NetworkError(
            f"the ranks that open {self._path} do not reach each other: {first_line(error)}",
            code=lib.CKPT_ENETWORK,
        )

    def fail(self, error: BaseException) -> None:
        """Tells the others that this rank failed. Raises nothing: the caller raises `error`."""
        mine = words(self.group.rank, error)

        def say(table: Table) -> None:
            # Nodes that wait for this one read this key. The first error counts for all.
            first = table.put(f"{self.prefix}/failed", mine)
            said = mine if first else table.read(f"{self.prefix}/failed")
            table.write(self._own(), said or mine)
            table.read(self._own())

        tell(self._path, self.group, self.table, say)

    def heed(self) -> errors.CheckpointError | None:
        """The error of another rank, also if its engine could not tell."""
        try:
            said = self.table.read(f"{self.prefix}/failed")
        except RuntimeError as error:
            logger.debug("%s: %s", self._path, first_line(error))
            return None
        return None if said is None else self._failure(said)

    def agree(self, digest: str = "") -> None:
        """
        Tells the others that this rank has opened the store. Raises the error of another rank.
        `digest`: of the names in this rank's modules; empty: unknown.
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
            # A rank may have reported success and then failed.
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
        """The error of a rank that has waited in vain."""
        return late_error(f"{self._path}: {what} in {self._timeout:g} s")

    def _kept_waiting(self) -> errors.WaitTimeoutError:
        who, long = f"rank {self.group.rank}", f"{self._timeout:g} s"
        return late_error(f"{self._path}: {who} has waited {long} for rank 0")

    def _failure(self, said: bytes) -> errors.CheckpointError:
        return failure(self._path, json.loads(said))


def tell(path: str, group: Group, table: Table, call: Callable[[Table], object]) -> None:
    """
    Runs a call that tells the others something. If the table's connection fails, uses the default
    connection of the process. That one may hang, so a thread makes the calls and is abandoned after
    a timeout. Raises nothing, because the caller has an error already.
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
        logger.warning("%s: the other ranks cannot be told: %s", path, why)


def failure(path: str, told: dict[str, Any]) -> errors.CheckpointError:
    """The exception for the error of another rank."""
    code = int(told["code"])
    return error_class(code)(
        f"rank {told['rank']} could not open {path}: {told['why']}",
        code=code,
        errno=-code if code > lib.CKPT_EINTEGRITY else None,
        rank=int(told["rank"]),
    )
