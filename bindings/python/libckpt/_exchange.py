# SPDX-License-Identifier: Apache-2.0
"""
What the ranks of a job tell each other, through the job's own c10d store: on a connection of its
own, from one thread, without collectives and without calls that wait for a key.
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

#: So often each path was opened by all ranks, by what its keys begin with; the same in every rank.
_opened: collections.Counter[str] = collections.Counter()


#: more than a job can have
_WORLD_MAX = 1 << 20


def node_ranks() -> int:
    """How many of the job's ranks the launcher has started on this node; 0: it does not say."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(said), _WORLD_MAX) if said.isdecimal() else 0


def join(path: str, distributed: bool | None, options: Options) -> Membership | None:
    """All ranks of the job, which must call this alike; None: this process is alone."""
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
    The ranks of a group, which must call this alike. `also`: where else one may have said that it
    does not come. `remote`: where what this one commits goes on to.
    """
    with _coming(group, _path_prefix(path, group), path, timeout, also=also) as way:
        table = way.connect()
        session, said = way.agree(mine=os.fsencode(remote))
        if group.rank == 0:
            others = (os.fsdecode(said[rank]) for rank in range(1, group.world))
            same_remote(path, [remote, *others])
        if table is None:
            logger.info("%s: the ranks tell each other by files in the store", path)
        opening = way.opening(session)
        service = None if table is None else Service(table, path)
        return Membership(group.rank, group.world, session, service, opening, node_ranks())


def join_nodes(
    path: str, group: Group, timeout: float, *, remote: str = "", lost_nodes: bool = False
) -> Membership:
    """The ranks of a group, each with the store of its node, wherever that is there."""
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
    The ranks of a group, which must call this alike, for something else than a store: a table, and
    what the keys of this meeting begin with.
    """
    with _coming(group, _next_prefix(f"meeting{group.name}"), path, timeout) as way:
        table = way.connect() or Table(group.store)
        session, _ = way.agree()
        return table, way.opening(session).prefix


_NO_CONNECTION = (
    "the ranks talk through the job's key-value store, and this version of torch gives no second "
    "connection to it: install a newer one"
)


def _path_prefix(path: str, group: Group) -> str:
    name = os.path.abspath(path)
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    # Ranks that are in several groups have opened it more often than others.
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


def _past_over(table: Table, prefix: str) -> str:
    """
    The first at or after it that no rank has given up. Who gives one up has counted it, and so do
    all others, however late they come to it: so all of them look for each other at the same one.
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
    An engine on all ranks or on none: who is missing would be waited for, and for long. It is in
    `opened` then, whatever comes before it is returned. `names`: what this rank's modules have.
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
        prefix, also = _nodes_prefix(group) if node_store else _any_prefix(), ""
        try:
            name = store_path(path)
            if not node_store:
                prefix, also = _path_prefix(name, group), prefix
        except Exception:  # it is what is wrong, and not that of the others
            name = repr(path)
        way = _Way(group, prefix, name, 0, also=also)
        with contextlib.suppress(errors.NetworkError):
            way.connect()
        way.tell(error)
    except Exception as lost:
        logger.warning("%s: the other ranks are not told: %s", path, first_line(lost))


def _tell_refusal(group: Group, table: Table, prefix: str, error: BaseException) -> None:
    said = {**json.loads(words(group.rank, error)), "at": time.time(), "start": _start()}
    table.write(f"{prefix}/refused", json.dumps(said).encode())
    # A store may take what it does not get; it answers in turn, though.
    table.read(f"{prefix}/refused")


def _is_news(error: BaseException) -> bool:
    """False: the others have said it, or it is the end of a wait for them."""
    if not isinstance(error, errors.CheckpointError):
        return True
    return error.rank is None and not isinstance(error, errors.WaitTimeoutError)


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
        #: there before another rank can go on with it, whatever comes then
        self._sessions: list[str] = []
        #: refusals that were there when this rank came, by what their keys begin with
        self._found: dict[str, bytes | None] = {}

    def connect(self) -> Table | None:
        """A connection of its own, if there can be one."""
        own = connect(self._group.store)
        self._table = own or self._table
        return own

    def agree(self, mine: bytes = b"") -> tuple[str, dict[int, bytes]]:
        """
        Meets the others: a session that rank 0 has drawn and all ranks know. What an earlier start
        of the job has left under the same keys is not taken for an answer: each rank draws a
        number, which comes back with the session, and says that it has it. Rank 0 also gets what
        each other rank gives as `mine`.
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
                # Those who were told wait for what becomes of this session.
                raise self._give_up("another rank has waited for the others, and waits no longer")
            if not told and self._go_on():
                prefix = self._prefix
                hellos.clear()
            for rank in missing:
                # A rank that has just started overwrites what one before it has left.
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
            # Rank 0 may have said that it will not join, and answer in what it has opened next.
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
        """Leaves what a rank has given up for the next. True: the others are looked for there."""
        before = self._prefix
        self._prefix = _past_over(self._table, before)
        if self._also:
            self._also = _past_over(self._table, self._also)
        return self._prefix != before

    def _give_up(self, what: str) -> errors.WaitTimeoutError:
        """Nobody need wait here any more."""
        # Who finds that the path's is over finds the other over as well.
        for prefix in filter(None, (self._also, self._prefix)):
            self._table.put(f"{prefix}/over", str(self._group.rank).encode())
        return self._late(what)

    def _late(self, what: str) -> errors.WaitTimeoutError:
        return late_error(f"{self._path}: {what}")

    def _heed(self) -> None:
        """Raises what a rank has said that will not join."""
        self._hear_refusal(self._prefix)
        if not self._also:
            return
        try:
            self._hear_refusal(self._also)
        except errors.CheckpointError:
            # Who has no such path has not counted how often it was opened.
            _opened[self._prefix.rpartition("/")[0]] -= 1
            raise

    def _hear_refusal(self, prefix: str) -> None:
        text = self._table.read(f"{prefix}/refused")
        first = self._found.setdefault(prefix, text)
        said = {} if text is None else json.loads(text)
        if said.get("start") != _start():
            return
        # What was there when this rank came may be of an earlier start, of which no launcher says
        # that it was another one. The processes of that had ended before this one was started. If
        # one does, it is believed: the clock of another host may be behind this one's.
        now = time.time()
        since = _began() if _start() == _NO_START else now - self._timeout
        if text != first or since <= said["at"] <= now + self._timeout:
            raise failure(self._path, said)

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
    """Tells the others what comes in between, unless it is what they have said or wait for."""
    way = _Way(group, prefix, path, timeout, also=also)
    try:
        yield way
    except BaseException as error:
        way.tell(error)
        raise


_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
#: no launcher says
_NO_START = " ".join("-" for _ in _LAUNCHERS)


def _start() -> str:
    """Tells this start of the job from others, as far as launchers say."""
    return " ".join(os.environ.get(name, "-") for name in _LAUNCHERS)


def _began() -> float:
    """When this process was started, in seconds since the epoch; 0: not known."""
    try:
        line = pathlib.Path("/proc/self/stat").read_text("utf-8", "replace")
        ticks = int(line.rpartition(")")[2].split()[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
