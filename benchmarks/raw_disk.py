# SPDX-License-Identifier: Apache-2.0
"""What a disk gives and takes when nothing is done with the bytes, where there is no fio."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: As libckpt has it: 8 MiB at a time, 16 at once.
BLOCK = 8 << 20
DEPTH = 16

_here = threading.local()


def _buffer() -> mmap.mmap:
    """A block for each thread, aligned for O_DIRECT, and not of zeros: some disks keep none."""
    made: mmap.mmap | None = getattr(_here, "block", None)
    if made is None:
        made = _here.block = mmap.mmap(-1, BLOCK)
        made[:] = os.urandom(4096) * (BLOCK // 4096)
    return made


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # not every file system has it
        return os.open(path, flags, 0o600)


def _each_block(size: int, move: Callable[[memoryview, int], int]) -> float:
    """Seconds. Whole blocks only; the rest of a file is left out, see `whole()`."""

    def one(offset: int) -> None:
        with memoryview(_buffer()) as view:
            done = move(view, offset)
        if done != BLOCK:
            raise RuntimeError(f"the disk moved {done} bytes of {BLOCK}")

    ready = threading.Barrier(DEPTH)

    def prepare(_: int) -> None:
        _buffer()
        ready.wait()

    with ThreadPoolExecutor(DEPTH) as pool:
        list(pool.map(prepare, range(DEPTH)))
        began = time.perf_counter()
        list(pool.map(one, range(0, whole(size), BLOCK)))
        return time.perf_counter() - began


def whole(size: int) -> int:
    """What is moved of a file of so many bytes."""
    return size // BLOCK * BLOCK


def read(path: Path) -> float:
    """Seconds that it takes to read a file, reckoned for all of it."""
    size = path.stat().st_size
    file = _open(path, os.O_RDONLY)
    try:
        took = _each_block(size, lambda view, offset: os.preadv(file, [view], offset))
        return took * size / whole(size)
    finally:
        os.close(file)


def write(path: Path, size: int) -> float:
    """Seconds that it takes to write a new file of a size, durable."""
    file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        began = time.perf_counter()
        os.posix_fallocate(file, 0, whole(size))
        took = time.perf_counter() - began
        took += _each_block(size, lambda view, offset: os.pwritev(file, [view], offset))
        began = time.perf_counter()
        os.fdatasync(file)
        return (took + time.perf_counter() - began) * size / whole(size)
    finally:
        os.close(file)
        path.unlink()
