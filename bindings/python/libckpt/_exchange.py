# SPDX-License-Identifier: Apache-2.0
"""
What the ranks of a job tell each other, through the job's own c10d store: on a connection of its
own, from one thread, without collectives and without calls that wait for a key.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from . import _errors as errors
from ._apart import Names
from ._door import Helper
from ._engine import Engine, Options, check, error_class, logger, new_struct
from ._load import store_path
from ._native import ffi, lib
from ._nodes import Place, Refusal, peers_of, place_of, refusal

#: What compare_set() returns for a key that is not there. No record begins with a NUL.
_ABSENT = b"\0absent"
#: Longest that a call of the store may wait, as far as it has deadlines.
_PATIENCE = timedelta(seconds=5)
#: A connection that broke is made anew, but not more often than this.
_RECONNECT = 10.0
#: For the thread, at the end. A store that hangs is left behind with it.
_FAREWELL = 2.0
#: Asking again for what is not there yet.
_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.05

#: So often each path was opened by all ranks, by what its keys begin with; the same in every rank.
_opened: collections.Counter[str] = collections.Counter()


class Group(NamedTuple):
    """The default process group of torch.distributed, or another one that saves by itself."""

    rank: int
    world: int
    #: that of the default group
    store: Any
    #: tells it from other groups; empty: the default one
    name: str = ""


class Ranks(NamedTuple):
    """How an engine is opened as one of several. No service: they talk by files."""

    rank: int
    world: int
    session: str
    service: Service | None
    opening: Opening | None = None
    #: of them, those on this node; 0: not known
    node_ranks: int = 0
    #: those whose store this one is, where every node has one; empty: all
    peers: tuple[int, ...] = ()
    #: there, a node has one already
    made: bool = True

    def names(self) -> Names | None:
        """What they mean by their names, where no rank can read what all have described."""
        if self.opening is None or len(self.peers) in (0, self.world):
            return None
        return Names(self.opening.table, self.opening.prefix, self.rank)


#: more than a job can have
_WORLD_MAX = 1 << 20


def node_ranks() -> int:
    """How many of the job's ranks the launcher has started on this node; 0: it does not say."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(said), _WORLD_MAX) if said.isdecimal() else 0


def find_group(distributed: bool | None) -> Group | None:
    """The group that saves together; None: this process is alone."""
    if distributed is False:
        return None
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        if distributed:
            raise ValueError(
                "distributed=True, and torch.distributed has no default process group: call "
                "init_process_group() first, or leave it out"
            )
        return None
    world = int(dist.get_world_size())
    if world == 1:
        return None
    from torch.distributed import distributed_c10d

    return Group(int(dist.get_rank()), world, distributed_c10d._get_default_store())


def join(
    path: str, distributed: bool | None, timeout: float, *, node_store: bool = False
) -> Ranks | None:
    """All ranks of the job, which must call this alike; None: this process is alone."""
    group = find_group(distributed)
    if group is None:
        return None
    if node_store:
        return join_nodes(path, group, timeout)
    return join_group(path, group, timeout, also=_any_prefix())


def join_group(path: str, group: Group, timeout: float, *, also: str = "") -> Ranks:
    """
    The ranks of a group, which must call this alike. `also`: where else one may have said that it
    does not come.
    """
    with _coming(group, _path_prefix(path, group), path, timeout, also=also) as way:
        table = way.connect()
        session, _ = way.agree()
        if table is None:
            logger.info("%s: the ranks tell each other by files in the store", path)
        opening = way.opening(session)
        service = None if table is None else Service(table, path)
        return Ranks(group.rank, group.world, session, service, opening, node_ranks())


def join_nodes(path: str, group: Group, timeout: float) -> Ranks:
    """The ranks of a group, each with the store of its node, wherever that is there."""
    with _coming(group, _nodes_prefix(group), path, timeout) as way:
        table = way.connect()
        place = place_of(path, "" if table else "with node_store " + _NO_CONNECTION)
        session, said = way.agree(mine=place.encode())
        opening = way.opening(session)
        wrong, peers, made = opening.share(place, said)
        if wrong is None:
            assert table is not None
            service = Service(table, path)
            rank, world, near = group.rank, group.world, len(peers)
            return Ranks(rank, world, session, service, opening, near, peers, made)
    raise opening.refused(wrong)  # on all ranks


_NO_CONNECTION = (
    "the ranks talk through the job's key-value store, and this version of torch gives no second "
    "connection to it: install a newer one"
)


def _path_prefix(path: str, group: Group) -> str:
    name = os.path.abspath(path)
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    # Ranks that are of several groups have opened it more often than others.
    return _next_prefix(f"{digest}{group.name}")


def _nodes_prefix(group: Group) -> str:
    # Not by the path, which may be another one on every node.
    return _next_prefix(f"nodes{group.name}")


def _any_prefix() -> str:
    """Of every path: all ranks open them in the same order."""
    return _next_prefix("any")


def _next_prefix(name: str) -> str:
    begin = f"libckpt/{name}"
    prefix = f"{begin}/{_opened[begin]}"
    _opened[begin] += 1  # whatever becomes of it, on all ranks alike
    return prefix


def open_all(
    path: str, options: Options, ranks: Ranks | None, opened: list[Engine] | None = None
) -> Engine:
    """
    An engine on all ranks or on none: who is missing would be waited for, and for long. It is in
    `opened` then, whatever comes before it is returned.
    """
    opening = ranks.opening if ranks is not None else None
    opened = [] if opened is None else opened
    try:
        Engine(path, options, log_thread=True, ranks=ranks, opened=opened)
        if opening is not None:
            opening.agree()
    except BaseException as error:
        if opening is not None and not (opened and not _is_news(error)):
            opening.fail(error)
        for engine in opened:
            engine.close()
        raise
    return opened[0]


# A rank that does not come to it.


def refuse(
    path: Any, distributed: bool | None, error: BaseException, *, node_store: bool = False
) -> None:
    """
    This rank will not join: the others, which wait for it, are told why. Raises nothing: there is
    an error already.
    """
    try:
        group = find_group(distributed)
        if group is None:
            return
        prefix = _nodes_prefix(group) if node_store else _any_prefix()
        try:
            name = store_path(path)
            prefix = prefix if node_store else _path_prefix(name, group)
        except Exception:  # it is what is wrong, and not that of the others
            name = repr(path)
        way = _Way(group, prefix, name, 0)
        with contextlib.suppress(errors.NetworkError):
            way.connect()
        way.tell(error)
    except Exception as lost:
        logger.warning("%s: the other ranks are not told: %s", path, _first_line(lost))


def _tell_refusal(group: Group, table: Table, prefix: str, error: BaseException) -> None:
    said = {**json.loads(_words(group.rank, error)), "at": time.time(), "start": _start()}
    table.write(f"{prefix}/refused", json.dumps(said).encode())
    # A store may take what it does not get; it answers in turn, though.
    table.read(f"{prefix}/refused")


def _heed(table: Table, prefix: str, also: str, path: str, timeout: float) -> None:
    """Raises what a rank has said that will not join."""
    _refused(table, prefix, path, timeout)
    if not also:
        return
    try:
        _refused(table, also, path, timeout)
    except errors.CheckpointError:
        # Who has no such path has not counted how often it was opened.
        _opened[prefix.rpartition("/")[0]] -= 1
        raise


def _is_news(error: BaseException) -> bool:
    """False: the others have said it, or it is the end of a wait for them."""
    if not isinstance(error, errors.CheckpointError):
        return True
    return error.rank is None and not isinstance(error, errors.WaitTimeoutError)


def _tell(path: str, group: Group, table: Table, call: Callable[[Table], object]) -> None:
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
                lost.append(_first_line(error))
            else:
                told.append(True)
                break

    thread = threading.Thread(target=run, name="libckpt-tell", daemon=True)
    try:
        thread.start()
        thread.join(2 * _PATIENCE.total_seconds())
    except RuntimeError as error:  # there can be no thread
        lost.append(_first_line(error))
    if not told:
        why = lost[-1] if lost else "the job's key-value store does not answer"
        logger.warning("%s: the other ranks are not told: %s", path, why)


class _Way:
    """How far this rank has come to an opening, and so how the others can be told that it fails."""

    def __init__(
        self, group: Group, prefix: str, path: str, timeout: float, *, also: str = ""
    ) -> None:
        # Without a connection of its own, only this thread and only now uses the default one.
        self._table = Table(group.store)
        self._group = group
        self._prefix = prefix
        self._also = also
        self._path = path
        self._timeout = timeout
        self._sessions: list[str] = []

    def connect(self) -> Table | None:
        """A connection of its own, if there can be one."""
        own = connect(self._group.store)
        self._table = own or self._table
        return own

    def agree(self, mine: bytes = b"") -> tuple[str, dict[int, bytes]]:
        """Meets the others."""
        return agree(
            self._group,
            self._table,
            self._prefix,
            self._path,
            self._timeout,
            mine=mine,
            also=self._also,
            sessions=self._sessions,
        )

    def opening(self, session: str) -> Opening:
        """That of all who have met."""
        prefix = f"{self._prefix}/{session}"
        return Opening(self._group, self._table, prefix, self._path, self._timeout)

    def tell(self, error: BaseException) -> None:
        """Says to the others what this rank has failed with, wherever they are by now."""
        news, group = _is_news(error), self._group
        # Whatever rank 0 ends with, those who know the session wait for what becomes of it.
        if self._sessions and (news or group.rank == 0):
            self.opening(self._sessions[0]).fail(error)
        if news:
            _tell(
                self._path,
                group,
                self._table,
                lambda table: _tell_refusal(group, table, self._prefix, error),
            )


@contextlib.contextmanager
def _coming(
    group: Group, prefix: str, path: str, timeout: float, *, also: str = ""
) -> Iterator[_Way]:
    """Tells the others what comes in between, unless it is what they have said or wait for."""
    way = _Way(group, prefix, path, timeout, also=also)
    try:
        yield way
    except BaseException as error:
        way.tell(error)
        raise


def _start() -> str:
    """Tells this start of the job from others, as far as launchers say."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return " ".join(os.environ.get(name, "-") for name in names)


def _refused(table: Table, prefix: str, path: str, timeout: float) -> None:
    """Raises what a rank has said that will not join. What an earlier start has left is too old."""
    text = table.read(f"{prefix}/refused")
    if text is None:
        return
    said = json.loads(text)
    if said["start"] == _start() and abs(time.time() - said["at"]) <= timeout:
        raise _failure(path, said)


class Table:
    """The keys of a c10d store, with calls that do not wait until somebody sets one."""

    def __init__(self, store: Any) -> None:
        self._store = store
        extended = getattr(store, "has_extended_api", None)
        self._many = extended is not None and bool(extended())

    def read(self, key: str) -> bytes | None:
        """The value, if it is there. What compare_set() expects is not, so it changes nothing."""
        value: bytes = self._store.compare_set(key, _ABSENT, _ABSENT)
        return None if value == _ABSENT else value

    def get(self, keys: list[str]) -> list[bytes | None]:
        """The values of those that are there."""
        if len(keys) > 1 and self._many and self._store.check(keys):
            return list(self._store.multi_get(keys))
        return [self.read(key) for key in keys]

    def put(self, key: str, value: bytes) -> bool:
        """Gives a key its value, unless it has one. False: it has another."""
        return bool(self._store.compare_set(key, b"", value) == value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        """Gives a key that has `old` (empty: none) another value. False: it has not."""
        return bool(self._store.compare_set(key, old, new) == new)

    def write(self, key: str, value: bytes) -> None:
        """Gives a key its value, whatever it has."""
        self._store.set(key, value)

    def drop(self, key: str) -> None:
        """Forgets a key, where the store can."""
        try:
            self._store.delete_key(key)
        except NotImplementedError:
            return

    def again(self) -> Table | None:
        """Another connection to the same store."""
        return connect(self._store)


def connect(store: Any) -> Table | None:
    """A table on a connection of its own; None where this torch or this store cannot give one."""
    try:
        own = _second(store)
        if own is None:
            return None
        own.set_timeout(_PATIENCE)
        table = Table(own)
        key, value = f"libckpt/probe/{os.urandom(8).hex()}", b"\xff\0probe"
        there = table.read(key), table.put(key, value), table.read(key), table.put(key, b"other")
        table.drop(key)
    except (AttributeError, NotImplementedError, TypeError):
        return None
    except RuntimeError as error:
        raise errors.NetworkError(
            f"the job's key-value store cannot be reached: {_first_line(error)}",
            code=lib.CKPT_ENETWORK,
        ) from error
    return table if there == (None, True, value, False) else None


def _second(store: Any) -> Any:
    if hasattr(store, "clone"):
        return store.clone()
    # Before torch had that: the server below, by its address.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "host") or not hasattr(store, "port"):
        return None
    from torch.distributed import TCPStore

    return TCPStore(
        store.host, store.port, is_master=False, wait_for_workers=False, timeout=_PATIENCE
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# One name for this start of the job.


def agree(
    group: Group,
    table: Table,
    prefix: str,
    path: str,
    timeout: float,
    *,
    mine: bytes = b"",
    also: str = "",
    sessions: list[str] | None = None,
) -> tuple[str, dict[int, bytes]]:
    """
    A session that rank 0 has drawn and all ranks know. What an earlier start of the job has left
    under the same keys is not taken for an answer: each rank draws a number, which comes back with
    the session, and says that it has it. Rank 0 also gets what each other rank gives as `mine`.
    `sessions` has it before another rank can go on with it, whatever comes then.
    """
    known = [] if sessions is None else sessions
    try:
        if group.rank == 0:
            return _lead(group, table, prefix, path, timeout, also=also, known=known)
        return _follow(group, table, prefix, path, timeout, also=also, known=known, mine=mine), {}
    except RuntimeError as error:
        raise errors.NetworkError(
            f"the ranks that open {path} do not reach each other: {_first_line(error)}",
            code=lib.CKPT_ENETWORK,
        ) from error


class _Pause:
    def __init__(self, timeout: float) -> None:
        self._end = time.monotonic() + timeout
        self._next = _PAUSE_MIN

    def __call__(self) -> bool:
        """Waits a little. False: the time is up."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next, left))
        self._next = min(self._next * 1.5, _PAUSE_MAX)
        return True


def _late(message: str) -> errors.WaitTimeoutError:
    return errors.WaitTimeoutError(
        f"{message}: all ranks of the job must make a Checkpointer of the same path, all with "
        "node_store or none, and in the same order if they make several (distributed=False: for "
        "this process alone)",
        code=-errno.ETIMEDOUT,
        errno=errno.ETIMEDOUT,
    )


def _lead(
    group: Group,
    table: Table,
    prefix: str,
    path: str,
    timeout: float,
    *,
    also: str,
    known: list[str],
) -> tuple[str, dict[int, bytes]]:
    session = os.urandom(8).hex()
    known.append(session)
    hellos: dict[int, bytes] = {}
    given: dict[int, bytes] = {}
    told: dict[int, bytes] = {}
    missing = set(range(1, group.world))
    pause = _Pause(timeout)
    while missing:
        _heed(table, prefix, also, path, timeout)
        for rank in missing:
            # A rank that has just started overwrites what one before it has left.
            hello = table.read(f"{prefix}/hello/{rank}")
            if hello is not None:
                hellos[rank] = hello
        for rank in sorted(missing) if len(hellos) == group.world - 1 else ():
            if told.get(rank) != hellos[rank]:
                table.write(f"{prefix}/answer/{rank}", hellos[rank] + session.encode())
                told[rank] = hellos[rank]
                continue
            ack = table.read(f"{prefix}/ack/{rank}")
            if ack is not None and ack.startswith(session.encode()):
                given[rank] = ack[len(session) :]
                missing.discard(rank)
                for what in ("hello", "answer", "ack"):
                    table.drop(f"{prefix}/{what}/{rank}")
        if missing and not pause():
            some = ", ".join(map(str, sorted(missing - hellos.keys() or missing)[:8]))
            raise _late(f"{path}: rank 0 has waited {timeout:g} s for rank {some}")
    return session, given


def _follow(
    group: Group,
    table: Table,
    prefix: str,
    path: str,
    timeout: float,
    *,
    also: str,
    known: list[str],
    mine: bytes,
) -> str:
    nonce = os.urandom(8).hex().encode()
    table.write(f"{prefix}/hello/{group.rank}", nonce)
    pause = _Pause(timeout)
    while True:
        answer = table.read(f"{prefix}/answer/{group.rank}")
        if answer is not None and answer.startswith(nonce):
            session = answer[len(nonce) :]
            known.append(session.decode())
            table.write(f"{prefix}/ack/{group.rank}", session + mine)
            return session.decode()
        _heed(table, prefix, also, path, timeout)
        if not pause():
            raise _late(f"{path}: rank {group.rank} has waited {timeout:g} s for rank 0")


# Whether all could open the store.


def _words(rank: int, error: BaseException | None) -> bytes:
    """How it went on one rank."""
    code = 0 if error is None else getattr(error, "code", 0) or -errno.ECANCELED
    why = "" if error is None else str(error)
    if error is not None and not (why and isinstance(error, errors.CheckpointError)):
        why = f"{type(error).__name__}: {why}" if why else type(error).__name__
    return json.dumps({"rank": rank, "code": code, "why": why[:2000]}).encode()


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
    One small key of it stays in the job's store.
    """

    def __init__(self, group: Group, table: Table, prefix: str, path: str, timeout: float) -> None:
        self.group = group
        self.table = table
        self.prefix = prefix
        #: of rank 0, where every node has a store: on which node each rank is
        self.nodes: tuple[str, ...] = ()
        self._path = path
        self._timeout = timeout

    def share(self, place: Place, said: dict[int, bytes]) -> Shared:
        """What comes of the places of all ranks. `said`, of rank 0, are those of the others."""
        try:
            if self.group.rank > 0:
                return self._hear_peers()
            places = [place, *(Place.decode(said[rank]) for rank in range(1, self.group.world))]
            wrong = refusal(places)
            made = any(found.made for found in places)
            self.nodes = tuple(found.node for found in places)
            for rank in range(1, self.group.world):
                peers = [] if wrong else peers_of(rank, places)
                answer = {"wrong": wrong, "peers": peers, "made": made}
                self.table.write(f"{self.prefix}/peers/{rank}", json.dumps(answer).encode())
        except RuntimeError as error:
            raise self._lost(error) from error
        return Shared(wrong, tuple(peers_of(0, places)), made)

    def _hear_peers(self) -> Shared:
        key = f"{self.prefix}/peers/{self.group.rank}"
        pause = _Pause(self._timeout)
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
                rank = self.group.rank
                raise _late(f"{self._path}: rank {rank} has waited {self._timeout:g} s for rank 0")

    def refused(self, wrong: Refusal) -> Exception:
        """That, as an exception."""
        text = f"{self._path}: {wrong.why}"
        if not wrong.errno:
            return ValueError(text)
        return errors.StorageError(text, code=-wrong.errno, errno=wrong.errno, rank=wrong.rank)

    def _lost(self, error: RuntimeError) -> errors.NetworkError:
        return errors.NetworkError(
            f"the ranks that open {self._path} do not reach each other: {_first_line(error)}",
            code=lib.CKPT_ENETWORK,
        )

    def fail(self, error: BaseException) -> None:
        """This rank could not. Raises nothing: there is an error already."""
        words = _words(self.group.rank, error)

        def tell(table: Table) -> None:
            # Those whose nodes wait for this one's look there. The first reason is that of all.
            first = table.put(f"{self.prefix}/failed", words)
            said = words if first else table.read(f"{self.prefix}/failed")
            table.write(self._own(), said or words)
            table.read(self._own())

        _tell(self._path, self.group, self.table, tell)

    def heed(self) -> errors.CheckpointError | None:
        """What another rank has failed with, perhaps before its engine could say so."""
        try:
            said = self.table.read(f"{self.prefix}/failed")
        except RuntimeError as error:
            logger.debug("%s: %s", self._path, _first_line(error))
            return None
        return None if said is None else self._failure(said)

    def agree(self) -> None:
        """This rank could. Raises what another one has failed with."""
        try:
            if self.group.rank == 0:
                self._lead()
            else:
                self.table.write(self._own(), _words(self.group.rank, None))
                self._follow()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _own(self) -> str:
        rank = self.group.rank
        return f"{self.prefix}/opened" if rank == 0 else f"{self.prefix}/open/{rank}"

    def _lead(self) -> None:
        missing = set(range(1, self.group.world))
        pause = _Pause(self._timeout)
        while True:
            for rank in sorted(missing):
                key = f"{self.prefix}/open/{rank}"
                said = self.table.read(key)
                if said is None:
                    continue
                self.table.drop(key)
                missing.discard(rank)
                if json.loads(said)["code"]:
                    self.table.write(self._own(), said)
                    raise self._failure(said)
            # One may have said that it could, and have lost its connection before it was told more.
            failed = self.table.read(f"{self.prefix}/failed")
            if failed is not None:
                self.table.write(self._own(), failed)
                raise self._failure(failed)
            if not missing:
                self.table.write(self._own(), _words(0, None))
                return
            if not pause():
                some = ", ".join(map(str, sorted(missing)[:8]))
                late = _late(f"{self._path}: rank {some} has not opened it in {self._timeout:g} s")
                self.table.write(self._own(), _words(0, late))
                raise late

    def _follow(self) -> None:
        pause = _Pause(self._timeout + _PATIENCE.total_seconds())
        while True:
            said = self.table.read(f"{self.prefix}/opened")
            if said is not None:
                if json.loads(said)["code"]:
                    raise self._failure(said)
                return
            if not pause():
                rank = self.group.rank
                raise _late(f"{self._path}: rank {rank} has waited {self._timeout:g} s for rank 0")

    def _failure(self, said: bytes) -> errors.CheckpointError:
        return _failure(self._path, json.loads(said))


def _failure(path: str, told: dict[str, Any]) -> errors.CheckpointError:
    code = int(told["code"])
    return error_class(code)(
        f"rank {told['rank']} could not open {path}: {told['why']}",
        code=code,
        errno=-code if code > lib.CKPT_EINTEGRITY else None,
        rank=int(told["rank"]),
    )


# The service.


class Service:
    """Answers what an engine asks, from a thread. Made before the engine, closed after it."""

    def __init__(self, table: Table, path: str) -> None:
        self.ptr: Any = None
        ret = ffi.new("struct ckpt_exchange_server **")
        check(lib.ckpt_exchange_server_new(ret))
        self.ptr = ret[0]
        self._thread = Helper(
            target=_serve, args=(self.ptr, table, path), name="libckpt-ranks", daemon=True
        )
        self._thread.start()

    def __del__(self) -> None:
        # It never came to an engine.
        if getattr(self, "ptr", None) is not None:
            self.close()

    def close(self) -> None:
        """After the engine has closed, or could not be opened."""
        ptr, self.ptr = self.ptr, None
        if ptr is None:
            return
        lib.ckpt_exchange_server_quiet(ptr)
        if self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL)
            # One that hangs in the store still has the server in its hands.
            if not self._thread.is_alive():
                lib.ckpt_exchange_server_free(ptr)


class _Link:
    """The table, as long as it can be reached. That it cannot is logged once, until it can."""

    def __init__(self, table: Table, path: str) -> None:
        self._table = table
        self._path = path
        self._broken = False
        self._next_try = 0.0

    def do(self, request: Any) -> tuple[int, str, list[bytes | None]]:
        """Result, reason and values for a request."""
        keys = [f"libckpt/{ffi.string(request.keys[i]).decode()}" for i in range(request.count)]
        try:
            self._mend()
            values = self._ask(request, keys)
        except Exception as error:  # The engine is told: nobody else could be.
            self._failed(error)
            return lib.CKPT_ENETWORK, _first_line(error), []
        if self._broken:
            self._broken = False
            logger.info("%s: the job's key-value store is back", self._path)
        if values is None:
            return -errno.EEXIST, "another value is there: was this session used before?", []
        return 0, "", values

    def _ask(self, request: Any, keys: list[str]) -> list[bytes | None] | None:
        if request.verb == lib.CKPT_EXCHANGE_GET:
            return self._table.get(keys)
        put = request.verb == lib.CKPT_EXCHANGE_PUT
        well = True
        for index, key in enumerate(keys):
            if put:
                value = bytes(ffi.buffer(request.values[index], request.lengths[index]))
                well = self._table.put(key, value) and well
            else:
                self._table.drop(key)
        return [] if well else None

    def _mend(self) -> None:
        now = time.monotonic()
        if self._broken and now >= self._next_try:
            self._next_try = now + _RECONNECT
            self._table = self._table.again() or self._table

    def _failed(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        self._next_try = time.monotonic()
        logger.warning(
            "%s: the job's key-value store does not answer, so no step can be committed: %s",
            self._path,
            _first_line(error),
        )


def _serve(ptr: Any, table: Table, path: str) -> None:
    """The thread: sleeps in C until the engine asks something or has closed."""
    link = _Link(table, path)
    request = new_struct("ckpt_exchange_request")
    while lib.ckpt_exchange_next(ptr, lib.CKPT_FOREVER, request) == 0:
        if _reply(ptr, request, *link.do(request)) < 0:
            # An answer that the engine will not have: a value that is none of libckpt's.
            _reply(ptr, request, -errno.EIO, "the job's key-value store holds strange values", [])


def _reply(ptr: Any, request: Any, result: int, reason: str, values: list[bytes | None]) -> int:
    answer = new_struct("ckpt_exchange_answer")
    answer.id = request.id
    answer.result = result
    kept = [ffi.NULL if value is None else ffi.from_buffer("char[]", value) for value in values]
    pointers = ffi.new("void *[]", kept)
    lengths = ffi.new("uint64_t[]", [0 if value is None else len(value) for value in values])
    text = ffi.new("char[]", reason.encode("utf-8", "replace")[:200])
    answer.values = pointers
    answer.lengths = lengths
    if result < 0:
        answer.reason = text
    code = int(lib.ckpt_exchange_reply(ptr, answer))
    # Nobody waits for it any more.
    return 0 if code in (-errno.ETIMEDOUT, -errno.ENOENT) else code
