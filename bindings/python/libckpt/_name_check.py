# SPDX-License-Identifier: Apache-2.0
"""
Checks that the same name means the same tensor on all ranks, if every node has its own store. No
rank can then read the descriptions of all ranks.

Tensors that all ranks must have are compared at every save. This is about names that only some
ranks have. At its first save a rank writes the meanings of its names to the job's key-value store,
unless a rank with the same meanings has done so, and reads what other ranks have written before. So
no rank waits for another, and of two that differ the later one finds it. The first few different
lists are read whole by all later ranks. Later ranks write every name as a key of its own, so the
cost grows with the names and not with the pairs of ranks. A rank that finds a difference gives the
engine other common words than rank 0, which fails the step for all ranks.
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

#: Seconds that the key-value store may take. It may hang. After that the comparison is left out,
#: and a reader of the step may find the difference.
_PATIENCE = 10.0
#: Most bytes of other ranks' lists that a rank reads.
_MOST = 256 << 20

#: Number of lists that are read whole.
_FEW = 16

#: The meanings of a rank's names: "F32 [8, 8]", or "another name of 'w'".
Meanings = dict[str, str]


def difference(mine: Meanings, rank: int, others: Meanings, other: int) -> str | None:
    """The message if two ranks have different meanings of a name; None: they have not."""
    for name in sorted(mine.keys() & others.keys()):
        if mine[name] != others[name]:
            return (
                f"the ranks do not agree about {name!r}: {others[name]} on rank {other}, "
                f"{mine[name]} on rank {rank}; a name must mean the same tensor in the whole job: "
                "give tensors that are each rank's own different names"
            )
    return None


class Compared(NamedTuple):
    """The result of the comparison of one save."""

    meanings: Meanings
    #: keys that it has written to the job's key-value store
    keys: list[str]
    #: the difference between this rank and another; None: none was found
    why: str | None = None


class _GivenUpError(Exception):
    """The caller has stopped waiting."""


class _Puts:
    """
    The keys that a save writes to the job's key-value store. Keys written before the caller stops
    waiting are deleted when the save is committed. Keys written later are deleted here.
    """

    def __init__(self, table: Table, keys: list[str]) -> None:
        self._table = table
        self._keys = keys
        self.given_up = threading.Event()

    @contextlib.contextmanager
    def one(self, key: str) -> Iterator[None]:
        """For the call that writes the key."""
        self._stop()
        self._keys.append(key)  # it may be written even if the call fails
        try:
            yield
        finally:
            if self.given_up.is_set() and key in self._keys[-1:]:
                self._table.drop(key)
        self._stop()

    def not_mine(self) -> None:
        """The last key was written by another rank."""
        self._keys.pop()

    def _stop(self) -> None:
        if self.given_up.is_set():
            raise _GivenUpError


class Names:
    """The comparison of names, on one rank."""

    def __init__(self, table: Table, prefix: str, rank: int) -> None:
        self._table = table
        self._prefix = f"{prefix}/names"
        self._rank = rank
        #: meanings that a committed save has compared
        self._known: Meanings | None = None

    def compare(self, meanings: Meanings, where: str) -> Compared:
        """Compares the names of this rank with those of others. `where`: key of the save."""
        found = Compared(meanings, [])
        # Unchanged meanings are usually the same object.
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
            return None  # another rank with the same meanings compares them
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
        """Adds this list to the first few, if there is room. Returns the earlier ones."""
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
        """The difference between this rank and one of the first few lists."""
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
        """The difference between this rank and another one after the first few."""
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
        """The save is committed: all ranks have compared, and agree."""
        self._known = compared.meanings
        keys = compared.keys.copy()

        def drop() -> None:
            for key in keys:
                self._table.drop(key)

        if keys:
            self._limited(drop, "what the ranks have said of their names stays", logging.DEBUG)

    def why(self, where: str) -> str | None:
        """The difference that a rank has found in that save."""

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
        Makes a call on a thread that is abandoned after a timeout, because a store that hangs has
        no timeouts. `without`: logged if it fails. `given_up`: set when the thread is abandoned.
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
