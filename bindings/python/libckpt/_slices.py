# SPDX-License-Identifier: Apache-2.0
"""
Reads much of a step with little memory: tensors are read to a buffer in parts, and the buffer is
reused for each part.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import mmap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ._dtypes import item_bytes
from ._engine import Engine
from ._errors import StepNotFoundError
from ._native import ffi
from ._options import Options
from ._reader import Reader
from ._tensors import Described

Dims = tuple[int, ...]
#: Alignment of pieces in the buffer, in bytes.
_ALIGN = 64
#: Bytes of staging memory of an engine that only reads.
_READING = 64 << 20
#: How often in a row a part is abandoned and read again.
_TRIES = 10


class AgainError(Exception):
    """Raised by `stop`: the present read is abandoned, and repeated after a rest."""


@contextlib.contextmanager
def reading(
    path: str, rank: int, world: int, *, io: str = "auto", hushed: bool = False
) -> Iterator[Engine]:
    """
    Opens the store at `path` for reading only, as one rank, without the other ranks. Messages are
    logged at level DEBUG (`hushed`), because errors are exceptions.
    """
    options = Options(read_only=True, pool_bytes=_READING, io=io)
    engine = Engine(path, options, log_thread=False)
    engine.hushed = hushed
    engine.rank, engine.world = rank, world
    try:
        yield engine
    finally:
        engine.close()


def check_generation(reader: Reader, generation: int) -> None:
    """Raises if the step of that number was replaced by another one."""
    if reader.generation != generation:
        raise StepNotFoundError(f"step {reader.step} is now of generation {reader.generation}")


class Bound(NamedTuple):
    """A tensor of the step, and the memory that resume() would read it to."""

    name: str
    what: Described
    #: the tensor, array or bytes that it would be read to; None: there is none
    home: Any


class Piece(NamedTuple):
    """A box of a tensor, and its place in the buffer."""

    bound: Bound
    #: where it begins in this rank's box of the tensor
    start: Dims
    shape: Dims
    offset: int
    nbytes: int

    def described(self, base: int) -> Described:
        """As a target for the library."""
        what = self.bound.what
        first = what.start or (0,) * len(what.shape)
        whole = self.shape == what.full_shape
        start = tuple(a + b for a, b in zip(first, self.start, strict=True))
        place = base + self.offset
        if whole:
            return Described(what.dtype, self.shape, None, place)
        return Described(what.dtype, self.shape, None, place, what.full_shape, start)

    def inside(self) -> tuple[slice, ...]:
        """This box of a live tensor or array."""
        return tuple(
            slice(first, first + count) for first, count in zip(self.start, self.shape, strict=True)
        )


def boxes(shape: Dims, item: int, most: int) -> Iterator[tuple[Dims, Dims]]:
    """Cuts a tensor into boxes (start, shape) of at most `most` bytes."""
    if math.prod(shape) * item <= most:
        yield (0,) * len(shape), shape
        return
    dim = next(n for n in range(len(shape)) if math.prod(shape[n + 1 :]) * item <= most)
    rest = shape[dim + 1 :]
    rows = max(1, most // (math.prod(rest) * item))
    for index in itertools.product(*map(range, shape[:dim])):
        for first in range(0, shape[dim], rows):
            count = min(rows, shape[dim] - first)
            yield (*index, first, *(0,) * len(rest)), (*(1,) * dim, count, *rest)


def rounds(bounds: Iterable[Bound], most: int) -> Iterator[list[Piece]]:
    """The pieces that are read together."""
    pieces: list[Piece] = []
    offset = 0
    for bound in bounds:
        item = item_bytes(bound.what.dtype)
        for start, shape in boxes(bound.what.shape, item, most):
            nbytes = math.prod(shape) * item
            if pieces and offset + nbytes > most:
                yield pieces
                pieces, offset = [], 0
            pieces.append(Piece(bound, start, shape, offset, nbytes))
            offset += -(-nbytes // _ALIGN) * _ALIGN
    if pieces:
        yield pieces


class Slices:
    """
    Reads tensors, at most `most` bytes at a time. `stop`: called repeatedly during a read. `rest`:
    called before each read, with the seconds that the last one took. Both may raise. AgainError is
    passed on only if the same part was abandoned too often. `surely`: gets the function that reads
    a part, and may call it more than once.
    """

    def __init__(
        self,
        engine: Engine,
        step: int,
        most: int,
        *,
        stop: Callable[[], object] | None = None,
        rest: Callable[[float], object] | None = None,
        surely: Callable[[Callable[[], object]], object] | None = None,
        generation: int | None = None,
    ) -> None:
        self._engine = engine
        self._step = step
        self._most = most
        self._stop = stop
        self._rest = rest
        self._surely = surely
        #: generation of the step; None: any
        self._generation = generation
        #: bytes that were read
        self.nbytes = 0

    def read(
        self,
        bounds: Sequence[Bound],
        look: Callable[[Piece, memoryview], object] | None = None,
    ) -> None:
        """Reads and verifies the tensors, and calls `look` with each piece."""
        size = max((_end_of(pieces) for pieces in rounds(bounds, self._most)), default=0)
        if size == 0:
            return
        # The buffer is freed with the last view of it.
        memory = mmap.mmap(-1, size)
        # A worker that is forked meanwhile must not keep it.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_DONTFORK)
        base = int(ffi.cast("uintptr_t", ffi.from_buffer("char[]", memory)))
        view = memoryview(memory)
        took = 0.0
        for pieces in rounds(bounds, self._most):
            took = self._read_patiently(pieces, base, took)
            if look is not None:
                for piece in pieces:
                    look(piece, view[piece.offset : piece.offset + piece.nbytes])

    def _read_patiently(self, pieces: list[Piece], base: int, took: float) -> float:
        """Reads one part. Returns the seconds that it took."""
        tries = 0
        while True:
            if self._rest is not None:
                self._rest(took)
            began = time.perf_counter()
            try:
                if self._surely is None:
                    self._read_round(pieces, base)
                else:
                    self._surely(functools.partial(self._read_round, pieces, base))
            except AgainError:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            return time.perf_counter() - began

    def _read_round(self, pieces: list[Piece], base: int) -> None:
        with Reader(self._engine, self._step) as reader:
            if self._generation is not None:
                check_generation(reader, self._generation)
            for piece in pieces:
                if self._stop is not None:
                    self._stop()
                reader.bind(piece.bound.name, piece.described(base), None)
            reader.read(stop=self._stop)
        self.nbytes += sum(piece.nbytes for piece in pieces)

    def fill(self, bounds: Iterable[Bound]) -> None:
        """Reads tensors directly to their memory."""
        found = list(bounds)
        if not found:
            return
        with Reader(self._engine, self._step) as reader:
            for bound in found:
                reader.bind(bound.name, bound.what, bound.home)
                self.nbytes += math.prod(bound.what.shape) * item_bytes(bound.what.dtype)
            reader.read(stop=self._stop)


def _end_of(pieces: list[Piece]) -> int:
    return max(1, *(piece.offset + piece.nbytes for piece in pieces))
