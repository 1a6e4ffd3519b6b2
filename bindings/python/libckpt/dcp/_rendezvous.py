# SPDX-License-Identifier: Apache-2.0
"""
Checks that all ranks begin a save with the same step, and continue from the same one.

Before the first collective of torch, each rank writes its record to the job's key-value store,
under one key that it overwrites at each save. After the collective it reads the records of the
others. A difference raises at once. Without this, the engine would wait for the missing ranks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .. import _errors as errors
from .._barrier import Opening
from .._calls import error_class
from .._log import logger
from .._native import lib
from ._dedup import Absent, keepers
from ._planned import Planned

T = TypeVar("T")
#: A step, by generation and number.
Place = tuple[int, int]

#: Seconds between two reads of a key that does not exist yet.
_PAUSE = 0.005
#: Without collectives a rank may not have said yet what is of this save.
_AGAIN = 5.0
#: Seconds for answers of the key-value store, in addition to the timeout of the wait.
_SLACK = 10.0


class Word(NamedTuple):
    """The record of a rank for a save."""

    step: int
    #: the step that it has loaded since the last save
    loaded: Place | None
    #: the last save that it knows to be committed
    tip: Place | None
    nonce: str = ""
    #: it could not read the plans that rank 0 has published
    missed: bool = False


def difference(path: str, words: list[Word]) -> errors.MismatchError | None:
    """Why the ranks cannot save together; None: they can. The first record is of rank 0."""
    first = words[0]
    place = adopted(words)
    for rank, word in enumerate(words):
        if word.step != first.step:
            why = (
                f"rank 0 saves step {first.step} to {path}, and rank {rank} step {word.step}: all "
                "ranks save the same step"
            )
        elif place is not None and word.loaded != first.loaded:
            why = (
                f"rank 0 has loaded {_text(first.loaded)} of {path} before it saves, and rank "
                f"{rank} {_text(word.loaded)}: load the same step on all ranks"
            )
        else:
            continue
        return errors.MismatchError(why, code=lib.CKPT_EMISMATCH, step=first.step, rank=rank)
    return None


def adopted(words: list[Word]) -> Place | None:
    """
    The step that the ranks have loaded, if it is not the last saved one. All of them must have
    loaded it.
    """
    news = [word.loaded for word in words if word.loaded and word.loaded != word.tip]
    return news[0] if news else None


def _text(place: Place | None) -> str:
    return "nothing" if place is None else f"step {place[1]} (generation {place[0]})"


class Rendezvous:
    """One of the ranks that save to a store."""

    def __init__(
        self, opening: Opening, path: str, patience: float, peers: tuple[int, ...] = ()
    ) -> None:
        self._table = opening.table
        self._prefix = f"{opening.prefix}/save"
        self._rank, self._world = opening.group.rank, opening.group.world
        self._path = path
        self._patience = patience
        self._mine = Word(0, None, None)
        #: key of the current save, the same on all ranks
        self.name = ""
        #: the last record that was read, by rank
        self._seen: dict[int, str] = {}
        #: the ranks that write to the store of this rank, if every node has one
        self._peers = peers
        #: rank 0: the node of each rank
        self.nodes = opening.nodes
        #: what each of them holds, its digest, and the last save that it was published for
        self._held: dict[int, bytes] = {}
        self._digests: dict[int, str] = {}
        self._held_for: dict[int, str] = {}
        #: the key of what this rank holds; and keys that are not needed after the save
        self._where = ""
        self._keys: list[str] = []
        #: the plans of all ranks, and what rank 0 has published of them for this save
        self._planned = Planned(self._prefix)
        self._told: list[Any] | None = None
        self._missed = False
        #: other ranks may have continued with the save
        self.is_open = False

    def say(self, step: int, loaded: Place | None, tip: Place | None) -> None:
        """Publishes the record of this rank. The others can read it when this returns."""
        self._mine = Word(step, loaded, tip, os.urandom(8).hex(), self._missed)
        self._put({self._key(self._rank): json.dumps(self._mine).encode()}, [])

    def agree(self, *, collective: bool, planned: Absent | None = None) -> Place | None:
        """
        Compares the records. Returns the step that all ranks continue from, if some of them do not
        yet. Raises if the records differ. `collective`: all records were written. `planned`: on
        rank 0, the plans of all ranks.
        """
        ranks = range(self._world) if self._rank == 0 else (0, self._rank)
        self.is_open = self._rank > 0  # rank 0 does not depend on what this rank reads
        words = self._hear(ranks, collective=collective)
        self.name = words[0].nonce
        if any(word.missed for word in words):
            self._planned.forget()
        why = difference(self._path, words if self._rank == 0 else [words[0], self._mine])
        if self._rank > 0 and why is not None:
            self.is_open = False
            # Of two records. The second is of this rank.
            said = why.message.replace("and rank 1 ", f"and rank {self._rank} ", 1)
            raise errors.MismatchError(said, code=why.code, step=why.step, rank=self._rank)
        if self._rank == 0:
            return self._decide(words, why, planned)
        return self._obey(words[0].nonce)

    def _decide(
        self, words: list[Word], why: errors.MismatchError | None, planned: Absent | None
    ) -> Place | None:
        place = None if why else adopted(words)
        said = {"nonce": self._mine.nonce, "place": place, "why": why.message if why else None}

        self._told = self._tell_planned(planned)
        text = json.dumps({**said, "planned": self._told}).encode()
        self.is_open = why is None
        self._limited(lambda: self._table.write(f"{self._prefix}/verdict", text), 0)
        if why is not None:
            raise why
        return place

    def _tell_planned(self, planned: Absent | None) -> list[Any] | None:
        """Marks the save as seen, also after a failure: the others wait for the next one."""
        try:
            return self._planned.tell(planned, self._put)
        except Exception as error:
            self._warn("the other nodes are not told what all ranks have planned", error)
            return None

    def _warn(self, what: str, error: Exception) -> None:
        """Publishes plans. The step is saved even if that fails."""
        logger.warning(
            "step %d of %s: %s, and what only other nodes have is not listed in the store of a "
            "node: %s",
            self._mine.step,
            self._path,
            what,
            error,
        )

    def _obey(self, nonce: str) -> Place | None:
        def look() -> dict[str, Any] | None:
            text = self._table.read(f"{self._prefix}/verdict")
            said: dict[str, Any] | None = None if text is None else json.loads(text)
            return said if said is not None and said["nonce"] == nonce else None

        found = self._limited(lambda: self._until(look), self._patience)
        if found is None:
            raise self._late("rank 0 has not said what all ranks go on from")
        if found["why"]:
            self.is_open = False
            raise errors.MismatchError(
                found["why"], code=lib.CKPT_EMISMATCH, step=self._mine.step, rank=0
            )
        self._told = found["planned"]
        return _place(found["place"])

    def _hear(self, ranks: Any, *, collective: bool) -> list[Word]:
        """The records of some ranks, that of rank 0 first."""
        keys = [self._key(rank) for rank in ranks]

        def look() -> list[Word] | None:
            words = [_word(text) for text in self._table.get(keys)]
            found = [
                word
                for rank, word in zip(ranks, words, strict=True)
                if word is not None and (collective or self._seen.get(rank) != word.nonce)
            ]
            return found if len(found) == len(words) else None

        def look_twice() -> list[Word] | None:
            words = self._until(look)
            end = time.monotonic() + _AGAIN
            # A record may be of an earlier save that failed before it was read.
            while words and not collective and difference("", words) and time.monotonic() < end:
                time.sleep(_PAUSE)
                words = self._until(look)
            return words

        words = self._limited(look_twice, self._patience + _AGAIN)
        if words is None:
            self.is_open = False
            raise self._late("not all ranks have come to it")
        self._seen.update((rank, word.nonce) for rank, word in zip(ranks, words, strict=True))
        return words

    # If every node has a store.

    @property
    def held(self) -> bytes | None:
        """What this rank has published last that it holds."""
        return self._held.get(self._rank)

    def tell_held(self, packed: bytes) -> None:
        """Publishes what this rank holds, for the others of the node."""
        if self._peers == (self._rank,):
            self._held[self._rank] = packed
            return
        digest = hashlib.sha256(packed).hexdigest()
        key = self._held_key(self._rank)
        new: dict[str, bytes] = {}
        old: list[str] = []
        if self._digests.get(self._rank) != digest:
            self._digests.pop(self._rank, None)  # until it is written
            # Keys are never reused, because an old one may be deleted late.
            self._where = f"{key}/{self._mine.nonce}"
            old, self._keys = self._keys, [self._where]
            new[self._where] = digest.encode() + packed
        text = json.dumps([self._mine.nonce, self._mine.step, digest, self._where]).encode()
        self._put({**new, key: text}, old)
        self._held[self._rank], self._digests[self._rank] = packed, digest

    def hear_held(self, *, collective: bool) -> dict[int, bytes]:
        """What each rank of the node holds. `collective`: all of them have published it."""
        others = [rank for rank in self._peers if rank != self._rank]
        keys = [self._held_key(rank) for rank in others]

        def look() -> list[Any] | None:
            texts = self._table.get(keys)
            words = [json.loads(text) for text in texts if text is not None]
            told = len(words) == len(others) and all(
                collective or (step == self._mine.step and self._held_for.get(rank) != nonce)
                for rank, (nonce, step, *_) in zip(others, words, strict=True)
            )
            return words if told else None

        def read() -> bool:
            words = self._until(look) if others else []
            for rank, (nonce, _, digest, where) in zip(
                others, words or [], strict=words is not None
            ):
                if self._digests.get(rank) != digest:
                    text = self._table.read(where) or b""
                    if not text.startswith(digest.encode()):
                        if look() == words:
                            raise self._lost(rank)
                        return read()  # it has published something new since
                    self._held[rank], self._digests[rank] = text[len(digest) :], digest
                self._held_for[rank] = nonce
            return words is not None

        if not self._limited(read, self._patience):
            raise self._late("not all ranks of this node have said what they hold")
        return {rank: self._held[rank] for rank in (*others, self._rank)}

    def hear_planned(self) -> Absent | None:
        """The plans of all ranks, for the lowest rank of a node; None: unknown."""
        if self._peers[0] != self._rank or self._told is None:
            return None
        self._missed = True
        try:
            found = self._planned.hear(self._told, self._get)
        except (LookupError, errors.NetworkError) as error:
            self._warn("what all ranks have planned could not be read", error)
            return None
        self._missed = False
        return found

    def committed(self) -> None:
        """All ranks have read what they need for a save: deletes keys."""
        old, self._keys = [*self._keys, *self._planned.take()], []
        if not old:
            return
        try:
            self._put({}, old)
        except errors.NetworkError as error:  # the keys remain, which does no harm
            logger.debug("%s: %s", self._path, error)

    def failed(self) -> None:
        """Some ranks may not have read what this rank published: the next save does it anew."""
        self._digests.pop(self._rank, None)
        self._planned.forget()

    def _held_key(self, rank: int) -> str:
        return f"{self._prefix}/held/{rank}"

    @property
    def nonce(self) -> str:
        """Identifies the current save."""
        return self._mine.nonce

    def tell_end(self, nonce: str, error: errors.CheckpointError | None) -> None:
        """Tells rank 0 the outcome of a save in the store of this node."""
        code, why = (0, "") if error is None else (error.code or -errno.EIO, error.message)
        text = json.dumps([nonce, code, why[:2000]]).encode()
        try:
            self._table.write(f"{self._prefix}/end/{self._rank}", text)
        except RuntimeError as lost:  # rank 0 will wait in vain
            logger.warning("%s: rank 0 is not told: %s", self._path, str(lost).partition("\n")[0])

    def hear_ends(self, patience: float, of: float) -> None:
        """
        Rank 0: waits until the step is committed in the stores of all nodes. Raises if it is not,
        within the time that is left `of` the timeout of the save.
        """
        missing = {rank: f"{self._prefix}/end/{rank}" for rank in keepers(self.nodes) if rank}

        def look() -> list[Any] | None:
            texts = self._table.get(list(missing.values())) if missing else []
            for rank, text in zip(list(missing), texts, strict=True):
                nonce, code, why = json.loads(text) if text is not None else ("", 0, "")
                if nonce and nonce == self._seen.get(rank):
                    del missing[rank]
                    if code:
                        return [rank, code, why]
            return None if missing else [0, 0, ""]

        found = self._limited(lambda: self._until(look, patience), patience)
        step = self._mine.step
        if found is None:
            some = ", ".join(f"{rank} on node {self.nodes[rank]}" for rank in sorted(missing)[:8])
            raise errors.DeadlineError(
                f"step {step} of {self._path} is committed, and rank {some} has not said within "
                f"the {of:g} s of a save that it is in the store of its node",
                code=-errno.ETIMEDOUT,
                errno=errno.ETIMEDOUT,
                step=step,
            )
        rank, code, why = found
        if code:
            raise error_class(code)(
                f"step {step} of {self._path} is committed, and not durable on node "
                f"{self.nodes[rank]}: rank {rank}: {why}",
                code=code,
                errno=-code if code > lib.CKPT_EINTEGRITY else None,
                step=step,
                rank=rank,
            )

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"

    # The following calls may be abandoned. So they change no fields, and return their results.

    def _put(self, new: dict[str, bytes], old: list[str]) -> None:
        """Writes keys, and deletes others. The new ones can be read when this returns."""
        table = self._table

        def put() -> None:
            for key, value in new.items():
                table.write(key, value)
            # A write may have no answer. The store answers in order, so a read confirms it.
            for key in list(new)[-1:]:
                table.read(key)
            for key in old:
                table.drop(key)

        self._limited(put, 0)

    def _get(self, keys: list[str]) -> list[bytes | None]:
        table = self._table
        return self._limited(lambda: [table.read(key) for key in keys], self._patience)

    def _until(self, look: Callable[[], T | None], patience: float | None = None) -> T | None:
        end = time.monotonic() + (self._patience if patience is None else patience)
        found = look()
        while found is None and time.monotonic() < end:
            time.sleep(_PAUSE)
            found = look()
        return found

    def _late(self, what: str) -> errors.DeadlineError:
        return errors.DeadlineError(
            f"step {self._mine.step} of {self._path}: {what} within {self._patience:g} s",
            code=-errno.ETIMEDOUT,
            errno=errno.ETIMEDOUT,
            step=self._mine.step,
        )

    def _lost(self, rank: int) -> errors.NetworkError:
        return errors.NetworkError(
            f"step {self._mine.step} of {self._path}: what rank {rank} holds is no longer in the "
            "job's key-value store",
            code=lib.CKPT_ENETWORK,
            step=self._mine.step,
            rank=rank,
        )

    def _limited(self, call: Callable[[], T], patience: float) -> T:
        """Makes a call on a thread that is abandoned after a timeout, because a store may hang."""
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(call())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="libckpt-meeting", daemon=True)
        thread.start()
        thread.join(patience + _SLACK)
        if found:
            return found[0]
        if failed and not isinstance(failed[0], RuntimeError):
            raise failed[0]
        why = str(failed[0]).partition("\n")[0] if failed else "it does not answer"
        self._mend()
        raise errors.NetworkError(
            f"the ranks that save to {self._path} do not reach each other: the job's key-value "
            f"store: {why}",
            code=lib.CKPT_ENETWORK,
            step=self._mine.step,
        ) from (failed[0] if failed else None)

    def _mend(self) -> None:
        """Connects again for the next save, if possible."""

        def connect() -> None:
            try:
                self._table = self._table.again() or self._table
            except (RuntimeError, errors.CheckpointError) as error:
                logger.debug("%s: no other connection: %s", self._path, error)

        threading.Thread(target=connect, name="libckpt-meeting", daemon=True).start()


def _word(text: bytes | None) -> Word | None:
    if text is None:
        return None
    step, loaded, tip, nonce, missed = json.loads(text)
    return Word(step, _place(loaded), _place(tip), nonce, missed)


def _place(pair: Any) -> Place | None:
    return None if pair is None else (int(pair[0]), int(pair[1]))
