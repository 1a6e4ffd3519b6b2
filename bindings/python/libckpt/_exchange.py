# SPDX-License-Identifier: Apache-2.0
"""
How the ranks of a job meet when they open a store. They communicate through the job's c10d store,
on a separate connection, from one thread, without collectives and without calls that wait for a
key.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import _errors as errors
from ._barrier import Opening, Pause, failure, late_error, tell, words
from ._engine import Engine
from ._import import bring_all, same_remote
from ._kvstore import Group, Table, connect, find_group, first_line
from ._log import logger
from ._membership import Membership
from ._native import lib
from ._nodes import place_of
from ._options import Options
from ._service import Service
from ._store_names import store_path
from .adapters._stages import Told, tell_apart

#: How often each path was opened, by the prefix of its keys; the same on every rank.
_opened: collections.Counter[str] = collections.Counter()


#: more ranks than a job can have
_WORLD_MAX = 1 << 20


def node_ranks() -> int:
    """The number of ranks that the launcher has started on this node; 0: unknown."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(said), _WORLD_MAX) if said.isdecimal() else 0


def join(path: str, distributed: bool | None, options: Options) -> Membership | None:
    """
    Meets the other ranks of the job. All ranks must call this with the same arguments. None: this
    process is alone.
    """
    group = find_group(distributed)
    if group is None:
        return None
    timeout, remote = options.save_timeout, options.remote
    if options.node_store:
        return join_nodes(path, group, timeout, remote=remote, lost_nodes=options.lost_nodes)
    return join_group(path, group, timeout, also=_any_prefix(), remote=remote)


def join_group(
    path: str, group: Group, timeout: float, *, also: str = "", remote: str = ""
) -> Membership:
    """
    Meets the ranks of a group. All of them must call this with the same arguments. `also`: another
    prefix under which a rank may have written that it will not join. `remote`: the remote store.
    """
    with _coming(group, _path_prefix(path, group), path, timeout, also=also) as way:
        table = way.connect()
        session, said = way.agree(mine=os.fsencode(remote))
        if group.rank == 0:
            others = (os.fsdecode(said[rank]) for rank in range(1, group.world))
            same_remote(path, [remote, *others])
        if table is None:
            logger.info("%s: the ranks communicate by files in the store", path)
        opening = way.opening(session)
        service = None if table is None else Service(table, path)
        return Membership(group.rank, group.world, session, service, opening, node_ranks())


def join_nodes(
    path: str, group: Group, timeout: float, *, remote: str = "", lost_nodes: bool = False
) -> Membership:
    """Meets the ranks of a group, each with the store of its node. Paths may differ by node."""
    with _coming(group, _nodes_prefix(group), path, timeout) as way:
        table = way.connect()
        place = place_of(path, "" if table else "with node_store " + _NO_CONNECTION)
        place = place._replace(remote=remote, lost_nodes=lost_nodes)
        session, said = way.agree(mine=place.encode())
        opening = way.opening(session)
        wrong, peers, made = opening.share(place, said)
        if wrong is None:
            assert table is not None
            service = Service(table, path)
            rank, world, near = group.rank, group.world, len(peers)
            return Membership(rank, world, session, service, opening, near, peers, made)
    raise opening.refused(wrong)  # on all ranks


def meet(path: str, group: Group, timeout: float) -> tuple[Table, str]:
    """
    Meets the ranks of a group for something other than opening a store. All of them must call this
    with the same arguments. Returns a table, and a prefix for keys of this meeting.
    """
    with _coming(group, _next_prefix(f"meeting{group.name}"), path, timeout) as way:
        table = way.connect() or Table(group.store)
        session, _ = way.agree()
        return table, way.opening(session).prefix


_NO_CONNECTION = (
    "the ranks communicate through the job's key-value store, and this version of torch cannot "
    "make a second connection to it: install a newer one"
)


def _path_prefix(path: str, group: Group) -> str:
    name = os.path.abspath(path)
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    # Ranks that are in several groups have opened it more often, so it is counted by group.
    return _next_prefix(f"{digest}{group.name}")


def _nodes_prefix(group: Group) -> str:
    # Not by the path, which may differ by node.
    return _next_prefix(f"nodes{group.name}")


def _any_prefix() -> str:
    """A prefix that does not depend on the path. All ranks open paths in the same order."""
    return _next_prefix("any")


def _next_prefix(name: str) -> str:
    begin = f"libckpt/{name}"
    prefix = f"{begin}/{_opened[begin]}"
    _opened[begin] += 1  # also if the opening fails, so that it is the same on all ranks
    return prefix


def _past_over(table: Table, prefix: str) -> str:
    """
    The first prefix, from this one on, that no rank has given up. The rank that gives one up counts
    it, and so do all others, also if they arrive late. So all of them meet at the same prefix.
    """
    while table.read(f"{prefix}/over") is not None:
        begin, _, number = prefix.rpartition("/")
        prefix = f"{begin}/{int(number) + 1}"
        _opened[begin] = max(_opened[begin], int(number) + 2)
    return prefix


def open_all(
    path: str,
    options: Options,
    ranks: Membership | None,
    opened: list[Engine] | None = None,
    names: Callable[[], Told | None] | None = None,
) -> Engine:
    """
    Opens an engine on all ranks or on none. It is added to `opened`, so that the caller can close
    it even if an interrupt comes before the return. `names`: returns the names in the modules of
    this rank.
    """
    opening = ranks.opening if ranks is not None else None
    opened = [] if opened is None else opened
    try:
        told = names() if names is not None else None
        if ranks is not None:
            bring_all(path, options, ranks)
        Engine(path, options, log_thread=True, ranks=ranks, opened=opened)
        if opening is not None:
            opening.agree(told.digest if told else "")
            if told and opening.differ:
                opened[0].stages = tell_apart(opening, told)
    except BaseException as error:
        if opening is not None and not (opened and not _is_news(error)):
            opening.fail(error)
        for engine in opened:
            engine.close()
        raise
    return opened[0]


# A rank that does not join.


def refuse(
    path: Any, distributed: bool | None, error: BaseException, *, node_store: bool = False
) -> None:
    """
    Tells the other ranks, which wait for this one, that it will not join, and why. Raises nothing,
    because the caller raises `error`.
    """
    try:
        group = find_group(distributed)
        if group is None:
            return
        prefix, also = _nodes_prefix(group) if node_store else _any_prefix(), ""
        try:
            name = store_path(path)
            if not node_store:
                prefix, also = _path_prefix(name, group), prefix
        except Exception:  # the path itself is wrong on this rank
            name = repr(path)
        way = _Way(group, prefix, name, 0, also=also)
        with contextlib.suppress(errors.NetworkError):
            way.connect()
        way.tell(error)
    except Exception as lost:
        logger.warning("%s: the other ranks cannot be told: %s", path, first_line(lost))


def _tell_refusal(group: Group, table: Table, prefix: str, error: BaseException) -> None:
    said = {**json.loads(words(group.rank, error)), "at": time.time(), "start": _start()}
    table.write(f"{prefix}/refused", json.dumps(said).encode())
    # A write has no answer. The store answers in order, so a read confirms it.
    table.read(f"{prefix}/refused")


def _is_news(error: BaseException) -> bool:
    """False: the error came from other ranks, or is a timeout of a wait for them."""
    if not isinstance(error, errors.CheckpointError):
        return True
    return error.rank is None and not isinstance(error, errors.WaitTimeoutError)


class _Way:
    """The meeting of the ranks, as seen by one: its progress decides how it reports a failure."""

    def __init__(
        self, group: Group, prefix: str, path: str, timeout: float, *, also: str = ""
    ) -> None:
        # Without a separate connection, the default one is used, by this thread and only now.
        self._table = Table(group.store)
        self._group = group
        self._prefix = prefix
        self._also = also
        self._path = path
        self._timeout = timeout
        #: the session, as soon as another rank may know it
        self._sessions: list[str] = []
        #: refusals that existed when this rank arrived, by the prefix of their keys
        self._found: dict[str, bytes | None] = {}

    def connect(self) -> Table | None:
        """Makes a separate connection, if possible."""
        own = connect(self._group.store)
        self._table = own or self._table
        return own

    def agree(self, mine: bytes = b"") -> tuple[str, dict[int, bytes]]:
        """
        Meets the others. Returns the session, a random text of rank 0 that all ranks know, and on
        rank 0 the `mine` of each other rank. Keys of an earlier start of the job are ignored: each
        rank draws a nonce, rank 0 returns it with the session, and the rank acknowledges it.
        """
        try:
            return self._lead() if self._group.rank == 0 else (self._follow(mine), {})
        except RuntimeError as error:
            raise errors.NetworkError(
                f"the ranks that open {self._path} do not reach each other: {first_line(error)}",
                code=lib.CKPT_ENETWORK,
            ) from error

    def _lead(self) -> tuple[str, dict[int, bytes]]:
        table, prefix, world = self._table, self._prefix, self._group.world
        session = os.urandom(8).hex()
        self._sessions.append(session)
        hellos: dict[int, bytes] = {}
        given: dict[int, bytes] = {}
        told: dict[int, bytes] = {}
        missing = set(range(1, world))
        came: set[int] = set()
        pause = Pause(self._timeout)
        while missing:
            self._heed()
            if told and table.read(f"{prefix}/over") is not None:
                # Ranks that know the session wait for its outcome.
                raise self._give_up("another rank has waited for the others and has given up")
            if not told and self._go_on():
                prefix = self._prefix
                hellos.clear()
            for rank in missing:
                # A rank of this start overwrites the key of an earlier start.
                hello = table.read(f"{prefix}/hello/{rank}")
                if hello is not None:
                    hellos[rank] = hello
                    came.add(rank)
            for rank in sorted(missing) if len(hellos) == world - 1 else ():
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
                some = ", ".join(map(str, sorted(missing - came or missing)[:8]))
                raise self._give_up(f"rank 0 has waited {self._timeout:g} s for rank {some}")
        return session, given

    def _follow(self, mine: bytes) -> str:
        table, rank = self._table, self._group.rank
        nonce = os.urandom(8).hex().encode()
        self._go_on()
        table.write(f"{self._prefix}/hello/{rank}", nonce)
        pause = Pause(self._timeout)
        while True:
            answer = table.read(f"{self._prefix}/answer/{rank}")
            # Rank 0 may have refused this opening, and answer for the next one.
            self._heed()
            if answer is not None and answer.startswith(nonce):
                session = answer[len(nonce) :]
                self._sessions.append(session.decode())
                table.write(f"{self._prefix}/ack/{rank}", session + mine)
                return session.decode()
            if self._go_on():
                table.write(f"{self._prefix}/hello/{rank}", nonce)
            if not pause():
                raise self._give_up(f"rank {rank} has waited {self._timeout:g} s for rank 0")

    def _go_on(self) -> bool:
        """Moves on if a rank has given up this prefix. True: the prefix has changed."""
        before = self._prefix
        self._prefix = _past_over(self._table, before)
        if self._also:
            self._also = _past_over(self._table, self._also)
        return self._prefix != before

    def _give_up(self, what: str) -> errors.WaitTimeoutError:
        """Tells the others to wait no longer, and returns the error."""
        # In this order: a rank that finds the path's prefix given up finds the other one, too.
        for prefix in filter(None, (self._also, self._prefix)):
            self._table.put(f"{prefix}/over", str(self._group.rank).encode())
        return self._late(what)

    def _late(self, what: str) -> errors.WaitTimeoutError:
        return late_error(f"{self._path}: {what}")

    def _heed(self) -> None:
        """Raises the error of a rank that will not join."""
        self._hear_refusal(self._prefix)
        if not self._also:
            return
        try:
            self._hear_refusal(self._also)
        except errors.CheckpointError:
            # The rank that refused did not know the path, and has not counted it.
            _opened[self._prefix.rpartition("/")[0]] -= 1
            raise

    def _hear_refusal(self, prefix: str) -> None:
        text = self._table.read(f"{prefix}/refused")
        first = self._found.setdefault(prefix, text)
        said = {} if text is None else json.loads(text)
        if said.get("start") != _start():
            return
        # A refusal that existed when this rank arrived may be of an earlier start, if the launcher
        # does not tell starts apart. The processes of an earlier start ended before this one began.
        # If the launcher does, times are not compared: clocks of other hosts may be behind.
        now = time.time()
        since = _began() if _start() == _NO_START else now - self._timeout
        if text != first or since <= said["at"] <= now + self._timeout:
            raise failure(self._path, said)

    def opening(self, session: str) -> Opening:
        """The opening of the ranks that have met."""
        prefix = f"{self._prefix}/{session}"
        return Opening(self._group, self._table, prefix, self._path, self._timeout)

    def tell(self, error: BaseException) -> None:
        """Tells the others the error of this rank, wherever they wait."""
        news, group = _is_news(error), self._group
        # If rank 0 fails in any way, the ranks that know the session wait for its outcome.
        if self._sessions and (news or group.rank == 0):
            self.opening(self._sessions[0]).fail(error)
        if news:
            tell(
                self._path,
                group,
                self._table,
                lambda table: self._refuse(table, error),
            )

    def _refuse(self, table: Table, error: BaseException) -> None:
        if self._also:
            _past_over(table, self._also)
        _tell_refusal(self._group, table, _past_over(table, self._prefix), error)


@contextlib.contextmanager
def _coming(
    group: Group, prefix: str, path: str, timeout: float, *, also: str = ""
) -> Iterator[_Way]:
    """Tells the others of an exception in the block."""
    way = _Way(group, prefix, path, timeout, also=also)
    try:
        yield way
    except BaseException as error:
        way.tell(error)
        raise


_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
#: _start() without a launcher
_NO_START = " ".join("-" for _ in _LAUNCHERS)


def _start() -> str:
    """Identifies this start of the job, as far as the launcher tells."""
    return " ".join(os.environ.get(name, "-") for name in _LAUNCHERS)


def _began() -> float:
    """The start time of this process, in seconds since the epoch; 0: unknown."""
    try:
        line = pathlib.Path("/proc/self/stat").read_text("utf-8", "replace")
        ticks = int(line.rpartition(")")[2].split()[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
