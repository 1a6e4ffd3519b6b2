# SPDX-License-Identifier: Apache-2.0
"""What it takes to have pinned memory: touching its pages, and registering them, 4 KiB beside huge ones."""

from __future__ import annotations

import argparse
import ctypes
import mmap
import time
from pathlib import Path
from typing import Any

import measure
import torch

GIB = 1 << 30
HUGE = 2 << 20
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
PORTABLE_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped, as libckpt has it

libc = ctypes.CDLL(None, use_errno=True)
libc.mlock.argtypes = libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def huge_bytes(address: int) -> int:
    """Of the mapping that the address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low <= address < high
        elif inside and head == "AnonHugePages:":
            return int(line.split()[1]) << 10
    return 0


def touch(memory: mmap.mmap, address: int, size: int) -> float:
    began = time.perf_counter()
    try:
        memory.madvise(POPULATE_WRITE)
    except OSError:
        ctypes.memset(address, 1, size)
    return time.perf_counter() - began


def register(address: int, size: int) -> float:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    began = time.perf_counter()
    error = runtime.cudaHostRegister(address, size, PORTABLE_MAPPED)
    took = time.perf_counter() - began
    if int(error) != 0:
        raise RuntimeError(f"cudaHostRegister of {size} bytes: {error}")
    runtime.cudaHostUnregister(address)
    return took


def lock(address: int, size: int) -> float | None:
    """The kernel's part of it that needs no GPU; None: more than may be locked."""
    began = time.perf_counter()
    if libc.mlock(address, size) != 0:
        return None
    took = time.perf_counter() - began
    libc.munlock(address, size)
    return took


def one(size: int, huge: bool, device: str) -> dict[str, float | None]:
    """Fresh memory: touched, and then pinned."""
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    first = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(first)
    address = base + -base % HUGE
    found: dict[str, float | None] = {"touch": touch(memory, base, size + HUGE)}
    found["share"] = min(1.0, huge_bytes(address) / size)
    found["register"] = register(address, size) if device == "cuda" else None
    found["lock"] = None if device == "cuda" else lock(address, size)
    del first
    memory.close()
    return found


def pin(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of 1 GiB, and of 8 where there is twice as much memory, and the time."""
    del folder
    sizes = [64 << 20] if args.quick else [GIB, 8 * GIB] if available() > 16 * GIB else [GIB]
    if args.device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    runs: dict[tuple[int, bool], list[dict[str, float | None]]] = {}
    for size in list(sizes):
        began = time.monotonic()
        end = began + args.seconds / len(sizes)
        for number in range(2 if args.quick else 9):
            if number > 0 and time.monotonic() > end:
                break
            for huge in (False, True) if number % 2 else (True, False):
                runs.setdefault((size, huge), []).append(one(size, huge, args.device))
            if number == 0 and size == sizes[0] and 8 * (time.monotonic() - began) > args.seconds:
                del sizes[1:]  # a pair of the larger ones has no room
                break
        if size == sizes[-1]:
            break

    def figure(size: int, huge: bool, key: str, unit: float) -> dict[str, Any] | None:
        values = [run[key] for run in runs[size, huge]]
        return measure.spread([v / unit for v in values if v is not None]) if all(values) else None

    result: dict[str, Any] = {"bytes": sizes[-1]}
    for huge, pages in ((False, "small"), (True, "huge")):
        for way in ("touch", "register", "lock"):
            result[f"{way}_{pages}_s"] = figure(sizes[-1], huge, way, sizes[-1] / 1e9)
        result[f"first_register_{pages}_s"] = figure(sizes[0], huge, "register", 1)
    result["huge_share"] = measure.spread([run["share"] or 0.0 for run in runs[sizes[-1], True]])
    return result
