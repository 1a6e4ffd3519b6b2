# SPDX-License-Identifier: Apache-2.0
"""
Whether the ranks that resume a step take all of it, where none of them has to: stages of a
pipeline.

One rank alone cannot know that. So each rank says in the job's key-value store what it takes,
before it reads. All ranks have read when the first of them goes on, and so all have said it by
then: nobody waits for an answer, and all find the same. Ranks that take the same share one text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ._door import Helper
from ._errors import FormatError, NetworkError
from ._native import lib
from ._table import first_line

if TYPE_CHECKING:
    from ._table import Table

T = TypeVar("T")

#: Seconds that the store of keys may take, which may hang.
_PATIENCE = 30.0
#: What a rank tells that takes every tensor.
_ALL = b"all"


class Taken(NamedTuple):
    """What a rank takes of a step, and leaves."""

    #: tensors, of a list that all ranks have
    tensors: set[str]
    #: other things, by their names
    others: set[str]
    left: set[str]

    def encode(self, names: Sequence[str]) -> bytes:
        """For a key of the store. `names` is the list."""
        data = bytearray((len(names) + 7) // 8)
        for place, name in enumerate(names):
            if name in self.tensors:
                data[place >> 3] |= 1 << (place & 7)
        text = base64.b64encode(data).decode()
        said = [len(names), text, sorted(self.others), sorted(self.left)]
        return zlib.compress(json.dumps(said).encode())


def _zeros(bits: int, count: int) -> Iterator[int]:
    """Places, of so many, at which a number has no bit."""
    missing = ~bits & ((1 << count) - 1)
    data = missing.to_bytes((count + 7) // 8, "little")
    for place, byte in enumerate(data):
        if byte:
            yield from (8 * place + bit for bit in range(8) if byte >> bit & 1)


def _await(table: Table, key: str) -> None:
    """Until the server has what was written before. It answers no set()."""
    if table.read(key) is None:
        raise RuntimeError("the server has not got what was written")


class Takers:
    """The ranks of a job that resume, as one of them sees it."""

    def __init__(self, table: Table, prefix: str, rank: int, world: int) -> None:
        self._table = table
        self._begin = f"{prefix}/resume"
        self._rank = rank
        self._world = world
        self._count = 0
        self._place = ""

    def begin(self, generation: int, step: int) -> None:
        """All ranks have opened a step. They do so equally often."""
        self._count += 1
        self._place = f"{self._begin}/{self._count}/{generation}-{step}"

    def tell_all(self) -> None:
        """Before this rank reads: it takes all tensors, and leaves nothing else."""
        key = f"{self._place}/{self._rank}"

        def put(table: Table) -> None:
            table.write(key, _ALL)
            _await(table, key)

        self._limited(put)

    def tell(self, taken: Taken, names: Sequence[str]) -> None:
        """Before this rank reads: it takes that. `names` are all tensors, in one order."""
        said = taken.encode(names)
        digest = hashlib.sha256(said).hexdigest()[:32]
        place = self._place  # a thread that is left behind writes nowhere else

        def put(table: Table) -> None:
            if table.put(f"{place}/{digest}/by", str(self._rank).encode()):
                table.write(f"{place}/{digest}/all", said)
            if taken.left or len(taken.tensors) < len(names):
                table.write(f"{place}/some", b"1")
            table.write(f"{place}/{self._rank}", digest.encode())
            _await(table, f"{place}/{self._rank}")

        self._limited(put)

    def lost(self, list_names: Callable[[], Sequence[str]]) -> tuple[list[str], list[str]]:
        """
        After all have read: tensors that no rank takes, and other things that some leave and none
        takes. `list_names` gives all tensors, if somebody leaves something.
        """
        texts = self._limited(self._told)
        if texts is None:
            return [], []
        names = list_names()
        taken = 0
        left: set[str] = set()
        others: set[str] = set()
        for text in texts:
            if text == _ALL:
                taken |= (1 << len(names)) - 1
                continue
            count, bits, some, rest = json.loads(zlib.decompress(text))
            if count != len(names):
                raise FormatError(f"a rank knows of {count} tensors, and this one of {len(names)}")
            taken |= int.from_bytes(base64.b64decode(bits), "little")
            others.update(some)
            left.update(rest)
        return [names[place] for place in _zeros(taken, len(names))], sorted(left - others)

    def _told(self, table: Table) -> list[bytes] | None:
        """What the ranks have told, each once; None: all of them take all."""
        if table.read(f"{self._place}/some") is None:
            return None
        digests = table.get([f"{self._place}/{rank}" for rank in range(self._world)])
        if None in digests:
            raise RuntimeError(f"rank {digests.index(None)} has not told what it takes")
        told = sorted({digest.decode() for digest in digests if digest and digest != _ALL})
        texts = table.get([f"{self._place}/{digest}/all" for digest in told])
        found = [text for text in texts if text is not None]
        if len(found) < len(told):
            raise RuntimeError("a rank has not told all of what it takes")
        return found + [_ALL] * (_ALL in digests)

    def _limited(self, call: Callable[[Table], T]) -> T:
        """
        On a thread that may be left behind: a store that hangs has no deadlines. A connection that
        broke is made anew.
        """
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(self._call(call))
            except Exception as error:
                failed.append(error)

        thread = Helper(target=run, name="libckpt-takers", daemon=True)
        try:
            thread.start()
            thread.join(_PATIENCE)
        except RuntimeError as error:  # there can be no thread
            failed.append(error)
        if found:
            return found[0]
        why = first_line(failed[0]) if failed else "it does not answer"
        raise NetworkError(
            "the ranks cannot tell each other, through the job's key-value store, what they take "
            f"of the step: {why}",
            code=lib.CKPT_ENETWORK,
        )

    def _call(self, call: Callable[[Table], T]) -> T:
        try:
            return call(self._table)
        except Exception:
            fresh = self._table.again()
            if fresh is None:
                raise
            self._table = fresh
        return call(self._table)
