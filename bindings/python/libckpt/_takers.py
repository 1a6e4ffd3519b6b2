# SPDX-License-Identifier: Apache-2.0
"""
Checks that the ranks that resume a step together take all of it, if none of them alone must: stages
of a pipeline.

Before it reads, each rank writes to the job's key-value store what it takes. Ranks that take the
same share one record. When the first rank has read, all ranks have written. If all of them take
everything, that is all. Otherwise rank 0 reads the records and publishes the result, and the other
ranks wait for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ._barrier import Pause
from ._call_guard import Helper
from ._errors import FormatError, NetworkError
from ._kvstore import first_line
from ._native import lib

if TYPE_CHECKING:
    from ._kvstore import Table

T = TypeVar("T")

#: Seconds that the key-value store may take for all calls of a step. It may hang.
_PATIENCE = 30.0
#: Longest pause between two reads of the answer, in seconds. There may be many ranks.
_PAUSE = 0.5
#: The record of a rank that takes every tensor.
_ALL = b"all"


_LEAD = (
    "the ranks cannot tell each other, through the job's key-value store, what they take of the "
    "step: "
)


class _UntoldError(Exception):
    """Another rank has not written its record. The connection works."""


class Taken(NamedTuple):
    """What a rank takes and leaves of a step."""

    #: tensors that it takes, from a list that all ranks have
    tensors: set[str]
    #: names of other things that it takes
    others: set[str]
    left: set[str]

    def encode(self, names: Sequence[str]) -> bytes:
        """As bytes, for a key. `names`: the list of all tensors."""
        data = bytearray((len(names) + 7) // 8)
        for place, name in enumerate(names):
            if name in self.tensors:
                data[place >> 3] |= 1 << (place & 7)
        text = base64.b64encode(data).decode()
        said = [len(names), text, sorted(self.others), sorted(self.left)]
        return zlib.compress(json.dumps(said).encode())


def _zeros(bits: int, count: int) -> Iterator[int]:
    """The positions below `count` at which the bit is 0."""
    missing = ~bits & ((1 << count) - 1)
    data = missing.to_bytes((count + 7) // 8, "little")
    for place, byte in enumerate(data):
        if byte:
            yield from (8 * place + bit for bit in range(8) if byte >> bit & 1)


def _await(table: Table, key: str) -> None:
    """Waits until the server has handled earlier writes, which have no answer."""
    if table.read(key) is None:
        raise RuntimeError("the server has not got what was written")


class Takers:
    """One rank of a job that resumes."""

    def __init__(self, table: Table, prefix: str, rank: int, world: int) -> None:
        self._table = table
        self._begin = f"{prefix}/resume"
        self._rank = rank
        self._world = world
        self._place = ""

    def begin(self, number: int) -> None:
        """
        To be called when a step is open. `number`: of this restore, the same on all ranks. So no
        restore reads records of an interrupted one.
        """
        self._place = f"{self._begin}/{number}"

    def tell_all(self) -> None:
        """To be called before this rank reads, if it takes all tensors and leaves nothing else."""
        key = f"{self._place}/{self._rank}"

        def put(table: Table) -> None:
            table.write(key, _ALL)
            _await(table, key)

        self._limited(put)

    def tell(self, taken: Taken, names: Sequence[str]) -> None:
        """To be called before this rank reads. `names`: all tensors, in the order of all ranks."""
        said = taken.encode(names)
        digest = hashlib.sha256(said).hexdigest()[:32]
        place = self._place  # an abandoned thread must not write to keys of a later restore

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
        To be called when all ranks have read. Returns tensors that no rank takes, and other things
        that some rank leaves and none takes. `list_names`: returns all tensors; it is called only
        if some rank leaves something.
        """
        place = self._place
        if self._limited(lambda table: table.read(f"{place}/some")) is None:
            return [], []
        names = list_names()
        answer = self._decide(place, names) if self._rank == 0 else self._hear(place)
        if answer.why:
            raise _failure(answer.why)
        return [names[number] for number in answer.tensors], answer.others

    def _decide(self, place: str, names: Sequence[str]) -> _Answer:
        """Rank 0: reads the records of all ranks, and publishes the result."""
        try:
            answer = _sum_up(self._limited(lambda table: self._told(table, place)), names)
        except (NetworkError, FormatError) as error:
            answer = _Answer([], [], error.message)
        said = zlib.compress(json.dumps(answer).encode())

        def put(table: Table) -> None:
            table.write(f"{place}/answer", said)
            _await(table, f"{place}/answer")

        self._limited(put)
        return answer

    def _hear(self, place: str) -> _Answer:
        """Other ranks: waits for the result of rank 0."""

        def hear(table: Table) -> bytes:
            pause = Pause(_PATIENCE, _PAUSE)
            while (said := table.read(f"{place}/answer")) is None:
                if not pause():
                    raise _UntoldError(f"rank 0 has not answered in {_PATIENCE:g} s")
            return said

        return _Answer(*json.loads(zlib.decompress(self._limited(hear, 2 * _PATIENCE))))

    def _told(self, table: Table, place: str) -> list[bytes]:
        """The records of all ranks, each once."""
        digests = table.get([f"{place}/{rank}" for rank in range(self._world)])
        if None in digests:
            raise _UntoldError(f"rank {digests.index(None)} has not told what it takes")
        told = sorted({digest.decode() for digest in digests if digest and digest != _ALL})
        texts = table.get([f"{place}/{digest}/all" for digest in told])
        found = [text for text in texts if text is not None]
        if len(found) < len(told):
            raise _UntoldError("a rank has not told all of what it takes")
        return found + [_ALL] * (_ALL in digests)

    def _limited(self, call: Callable[[Table], T], patience: float | None = None) -> T:
        """
        Makes a call on a thread that is abandoned after a timeout, because a store that hangs has
        no timeouts. A broken connection is replaced.
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
            thread.join(_PATIENCE if patience is None else patience)
        except RuntimeError as error:  # no thread can be started
            failed.append(error)
        if found:
            return found[0]
        raise _failure(first_line(failed[0]) if failed else "it does not answer")

    def _call(self, call: Callable[[Table], T]) -> T:
        try:
            return call(self._table)
        except RuntimeError:  # c10d raises it for a broken connection
            fresh = self._table.again()
            if fresh is None:
                raise
            self._table = fresh
        return call(self._table)


class _Answer(NamedTuple):
    """The result of all records."""

    #: positions of the tensors that no rank takes
    tensors: list[int]
    #: other things that some rank leaves and none takes
    others: list[str]
    #: not empty: why the result is not known
    why: str


def _sum_up(texts: Sequence[bytes], names: Sequence[str]) -> _Answer:
    taken = 0
    left: set[str] = set()
    others: set[str] = set()
    for text in texts:
        if text == _ALL:
            taken |= (1 << len(names)) - 1
            continue
        count, bits, some, rest = json.loads(zlib.decompress(text))
        if count != len(names):
            raise FormatError(f"a rank knows of {count} tensors, and rank 0 of {len(names)}")
        taken |= int.from_bytes(base64.b64decode(bits), "little")
        others.update(some)
        left.update(rest)
    return _Answer(list(_zeros(taken, len(names))), sorted(left - others), "")


def _failure(why: str) -> NetworkError:
    return NetworkError(f"{_LEAD}{why.removeprefix(_LEAD)}", code=lib.CKPT_ENETWORK)
