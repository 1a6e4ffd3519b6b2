# SPDX-License-Identifier: Apache-2.0
"""
Reading much of a step into little memory: what goes to tensors is read into one buffer instead,
which holds as much as fits, and is used again for what follows.
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
#: Where each piece begins in the buffer.
_ALIGN = 64
#: Staging memory of an engine that only reads.
_READING = 64 << 20
#: So often in a row a part is given up and read again.
_TRIES = 10


class AgainError(Exception):
    """`stop` raises it: what is being read is given up, and read again after a rest."""


@contextlib.contextmanager
def reading(
    path: str, rank: int, world: int, *, io: str = "auto", hushed: bool = False
) -> Iterator[Engine]:
    """
    The store at `path`, as one rank sees it, for reading only and without the other ranks. What
    `hushed` logs is at level DEBUG: its errors are exceptions.
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
    """Raises if the step of that number is another one by now."""
    if reader.generation != generation:
        raise StepNotFoundError(f"step {reader.step} is now of generation {reader.generation}")


class Bound(NamedTuple):
    """A tensor of the step, and where resume() would put it."""

    name: str
    what: Described
    #: the tensor, array or bytes that it would go to; None: nothing is there
    home: Any


class Piece(NamedTuple):
    """A box of what is bound, and where it is in the buffer."""

    bound: Bound
    #: in what is here of the tensor
    start: Dims
    shape: Dims
    offset: int
    nbytes: int

    def described(self, base: int) -> Described:
        """As a target that the library reads to."""
        what = self.bound.what
        first = what.start or (0,) * len(what.shape)
        whole = self.shape == what.full_shape
        start = tuple(a + b for a, b in zip(first, self.start, strict=True))
        place = base + self.offset
        if whole:
            return Described(what.dtype, self.shape, None, place)
        return Described(what.dtype, self.shape, None, place, what.full_shape, start)

    def inside(self) -> tuple[slice, ...]:
        """Of what is here of the tensor, this box."""
        return tuple(
            slice(first, first + count) for first, count in zip(self.start, self.shape, strict=True)
        )


def boxes(shape: Dims, item: int, most: int) -> Iterator[tuple[Dims, Dims]]:
    """Cuts a tensor into boxes (start, shape) of no more than `most` bytes."""
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
    """What is read at a time."""
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
    Reads what is bound, `most` bytes at a time. `stop` is called now and then while it is read, and
    `rest` before each time, with the seconds that the last one took. Both may raise; AgainError
    comes out only if the same part was given up too often. `surely` is given what
    reads a part, and may call it more than once.
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
        #: the step is one of it; None: of any
        self._generation = generation
        #: bytes that have been read
        self.nbytes = 0

    def read(
        self,
        bounds: Sequence[Bound],
        look: Callable[[Piece, memoryview], object] | None = None,
    ) -> None:
        """Reads and verifies it, and shows each piece to `look`."""
        size = max((_end_of(pieces) for pieces in rounds(bounds, self._most)), default=0)
        if size == 0:
            return
        # It goes with the last view of it.
        memory = mmap.mmap(-1, size)
        # A worker that is forked meanwhile would keep it for as long as it lives.
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
        """The seconds that it took."""
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
        """Reads what is bound to where it is bound."""
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
