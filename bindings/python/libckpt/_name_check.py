# SPDX-License-Identifier: Apache-2.0
"""
Whether the ranks of a job mean the same tensors by the same names, where every node has a store of
its own, so that no rank can read what all have described.

What all ranks must have alike is compared at every save. This is about names that only some ranks
have. At its first save a rank puts what it means by them into the job's key-value store, unless one
that means the same has done so, and looks at what others have put there before. So nobody waits for
another, and of two that differ the later one finds out. The first few that mean something else are
read whole by all who come after them; who comes later puts every name there by itself, so that what
it costs grows with the names and not with the pairs of ranks. One that finds out then gives the
engine other words than rank 0 does for what all ranks have alike, which fails the step for all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from . import _errors as errors
from ._log import logger

if TYPE_CHECKING:
    from ._kvstore import Table

T = TypeVar("T")

#: Seconds that a store of keys may take, which may hang, before this is left to who reads the step.
_PATIENCE = 10.0
#: Bytes of what others have put there that a rank looks at.
_MOST = 256 << 20

#: So many lists of names are read whole.
_FEW = 16

#: What a rank means by its names: "F32 [8, 8]", or "another name of 'w'".
Meanings = dict[str, str]


def difference(mine: Meanings, rank: int, others: Meanings, other: int) -> str | None:
    """What two ranks mean different things by; None: nothing."""
    for name in sorted(mine.keys() & others.keys()):
        if mine[name] != others[name]:
            return (
                f"the ranks do not agree about {name!r}: {others[name]} says rank {other}, "
                f"{mine[name]} says rank {rank}; one name is one tensor of the whole job, and what "
                "is each rank's own needs a name of its own"
            )
    return None


class Compared(NamedTuple):
    """What a save has looked at."""

    meanings: Meanings
    #: put for it into the job's key-value store
    keys: list[str]
    #: what this rank and another differ in; None: it knows of nothing
    why: str | None = None


class _GivenUpError(Exception):
    """Nobody waits for it any more."""


class _Puts:
    """
    What a save puts into the job's key-value store, until nobody waits for it any more. What is
    there by then is dropped when the save is committed, and what comes later is dropped here.
    """

    def __init__(self, table: Table, keys: list[str]) -> None:
        self._table = table
        self._keys = keys
        self.given_up = threading.Event()

    @contextlib.contextmanager
    def one(self, key: str) -> Iterator[None]:
        """Around what puts it there."""
        self._stop()
        self._keys.append(key)  # it may be there though no answer comes
        try:
            yield
        finally:
            if self.given_up.is_set() and key in self._keys[-1:]:
                self._table.drop(key)
        self._stop()

    def not_mine(self) -> None:
        """The last one is another's."""
        self._keys.pop()

    def _stop(self) -> None:
        if self.given_up.is_set():
            raise _GivenUpError


class Names:
    """What the ranks of a job mean by their names, as one of them sees it."""

    def __init__(self, table: Table, prefix: str, rank: int) -> None:
        self._table = table
        self._prefix = f"{prefix}/names"
        self._rank = rank
        #: what was compared, in a save that was committed
        self._known: Meanings | None = None

    def compare(self, meanings: Meanings, where: str) -> Compared:
        """Whether this rank and another differ. `where`: the save."""
        found = Compared(meanings, [])
        # One that has not changed is mostly the same object.
        if not meanings or meanings is self._known or meanings == self._known:
            return found
        puts = _Puts(self._table, found.keys)
        why = self._limited(
            lambda: self._look(meanings, where, puts), _UNKNOWN, given_up=puts.given_up
        )
        return found._replace(why=why)

    def _look(self, meanings: Meanings, where: str, puts: _Puts) -> str | None:
        lines = json.dumps(sorted(meanings.items())).encode()
        digest = hashlib.sha256(lines).hexdigest()
        table, place = self._table, f"{self._prefix}/{where}"
        mine = json.dumps([self._rank, digest]).encode() + b"\n"
        with puts.one(f"{place}/{digest}"):
            first = table.put(f"{place}/{digest}", mine)
            if not first:
                puts.not_mine()
        if not first:
            return None  # somebody else looks for all that mean the same
        before = table.read(f"{place}/list") or b""
        if not _is_full(before):
            with puts.one(f"{place}/{digest}/all"):
                table.write(f"{place}/{digest}/all", zlib.compress(lines))
        before = self._enlist(place, before, mine, puts)
        why = self._read_few(meanings, place, before)
        if why is None and _is_full(before):
            why = self._claim(meanings, place, puts)
        if why is not None:
            table.write(f"{self._prefix}/why", json.dumps([where, why]).encode())
        return why

    def _enlist(self, place: str, before: bytes, mine: bytes, puts: _Puts) -> bytes:
        """Says that it has come, if it is one of the first; those that have come before it."""
        key = f"{place}/list"
        while not _is_full(before):
            if before:
                swapped = self._table.swap(key, before, before + mine)
            else:
                with puts.one(key):
                    swapped = self._table.swap(key, before, mine)
                    if not swapped:
                        puts.not_mine()
            if swapped:
                break
            before = self._table.read(key) or b""
        return before

    def _read_few(self, meanings: Meanings, place: str, lists: bytes) -> str | None:
        """What this rank and one of those that have come first differ in."""
        size = 0
        for line in lists.splitlines():
            other, theirs = json.loads(line)
            text = self._table.read(f"{place}/{theirs}/all")
            data = zlib.decompress(text or zlib.compress(b"[]"))
            size += len(data)
            if size > _MOST:
                logger.warning("%s; the ranks have too many", _UNKNOWN)
                return None
            why = difference(meanings, self._rank, dict(json.loads(data)), other)
            if why is not None:
                return why
        return None

    def _claim(self, meanings: Meanings, place: str, puts: _Puts) -> str | None:
        """What this rank and one that has come as late as it has differ in."""
        for name, meaning in sorted(meanings.items()):
            short = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16)
            key = f"{place}/name/{short.hexdigest()}"
            mine = json.dumps([self._rank, meaning]).encode()
            with puts.one(key):
                found = self._table.first(key, mine)
                if found != mine:
                    puts.not_mine()
            if found == mine:
                continue
            other, theirs = json.loads(found)
            why = difference(meanings, self._rank, {name: theirs}, other)
            if why is not None:
                return why
        return None

    def committed(self, compared: Compared) -> None:
        """The save was that has looked at it: the ranks agree, and all of them have looked."""
        self._known = compared.meanings
        keys = compared.keys.copy()

        def drop() -> None:
            for key in keys:
                self._table.drop(key)

        if keys:
            self._limited(drop, "what the ranks have said of their names stays", logging.DEBUG)

    def why(self, where: str) -> str | None:
        """What a rank has found out in that save."""

        def read() -> str | None:
            text = self._table.read(f"{self._prefix}/why")
            found, why = ("", "") if text is None else json.loads(text)
            return why if found == where else None

        return self._limited(read, "what the ranks do not agree about is not known")

    def _limited(
        self,
        call: Callable[[], T | None],
        without: str,
        level: int = logging.WARNING,
        *,
        given_up: threading.Event | None = None,
    ) -> T | None:
        """
        Calls it on a thread that may be left behind: a store that hangs has no deadlines. `without`
        is logged if it fails, and `given_up` set when the thread is left behind.
        """
        found: list[T | None] = []

        def run() -> None:
            try:
                found.append(call())
            except _GivenUpError:
                return
            except (RuntimeError, errors.CheckpointError, ValueError, zlib.error) as error:
                logger.log(level, "%s: %s", without, str(error).partition("\n")[0])
                found.append(None)

        thread = threading.Thread(target=run, name="libckpt-names", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as at the end of the program
            logger.log(level, "%s: %s", without, error)
            return None
        thread.join(_PATIENCE)
        if not found:
            if given_up is not None:
                given_up.set()
            logger.log(level, "%s: the job's key-value store does not answer", without)
            return None
        return found[0]


def _is_full(lists: bytes) -> bool:
    return lists.count(b"\n") >= _FEW


_UNKNOWN = "whether all ranks mean the same tensors by the same names was not looked at"
