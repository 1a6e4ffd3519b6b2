# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: fio, the page cache, intervals, tables, versions, JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Between runs, for the disk of a virtual machine.
REST_SECONDS = 2.0

CACHE_NOTE = "only the guest's page cache can be dropped, not that of the disk's host"


def parser(description: str) -> argparse.ArgumentParser:
    """Options that every benchmark takes."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="small and few: shows that it runs")
    options.add_argument(
        "--dir", type=Path, default=ROOT, help="measure on the disk that holds this directory"
    )
    options.add_argument("--json", type=Path, help="write the result to this file")
    return options


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="build-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """
    The median, and an interval that holds the true one with at least 90 % certainty, whatever the
    distribution: order statistics. Fewer than five values: from the least to the greatest.
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    for below in range(count):
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 0.10:
            break
        rank = below
    return statistics.median(ordered), ordered[rank], ordered[count - 1 - rank]


def spread(values: Sequence[float]) -> dict[str, Any]:
    middle, low, high = interval(values)
    return {"median": middle, "low90": low, "high90": high, "runs": list(values)}


def pairs(
    count: int, first: Callable[[], float], second: Callable[[], float]
) -> list[tuple[float, float]]:
    """
    Runs the two in turn, changing which is first, so that a drift of the machine hits both. Each
    starts rested: what a virtual disk was given to do before counts against its limit of rate.
    """

    def rested(run: Callable[[], float]) -> float:
        os.sync()
        time.sleep(REST_SECONDS)
        return run()

    result = []
    for number in range(count):
        if number % 2:
            b, a = rested(second), rested(first)
        else:
            a, b = rested(first), rested(second)
        result.append((a, b))
        print(f"  pair {number + 1} of {count}: {a:.3f} s, {b:.3f} s", file=sys.stderr, flush=True)
    return result


def drop_cache(paths: Iterable[Path]) -> str:
    """Drops the guest's page cache: all of it where that is allowed, else that of these files."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "drop_caches"
    except OSError:
        pass
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return "posix_fadvise"


def fio(mode: str, path: Path, size: int, block: int, depth: int) -> float:
    """Seconds that fio takes to write a new file, durable, or to read one. io_uring, O_DIRECT."""
    if mode == "write":
        path.unlink(missing_ok=True)
    command = [
        *("fio", "--name=peer", "--output-format=json", f"--filename={path}"),
        *(f"--rw={mode}", f"--size={size}", f"--bs={block}", f"--iodepth={depth}"),
        *("--ioengine=io_uring", "--direct=1", "--registerfiles=1"),
    ]
    command += ["--fallocate=native", "--end_fsync=1"] if mode == "write" else ["--readonly"]
    # Registered buffers are fio's best where the limit on locked memory allows them.
    for extra in (["--fixedbufs=1"], []):
        done = subprocess.run(command + extra, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            job = json.loads(done.stdout)["jobs"][0][mode]
            if job["io_bytes"] != size:
                raise RuntimeError(f"fio moved {job['io_bytes']} bytes of {size}")
            return float(job["runtime"]) / 1e3
    raise RuntimeError(f"fio failed: {done.stderr.strip() or done.stdout.strip()}")


class AgainstFio:
    """Times of libckpt and fio in pairs. fio moves whole blocks only: rates are compared."""

    BLOCK = 8 << 20  # libckpt's default
    DEPTH = 16

    def __init__(self, shard: Path) -> None:
        self.length = shard.stat().st_size
        self.whole = self.length // self.BLOCK * self.BLOCK
        self.runs: list[tuple[float, float]] = []

    def fio(self, mode: str, path: Path) -> float:
        """Seconds that it would take for as many bytes as the shard has."""
        return fio(mode, path, self.whole, self.BLOCK, self.DEPTH) * self.length / self.whole

    def report(self, ours: str, theirs: str) -> dict[str, Any]:
        """Prints the table; returns the figures for the JSON."""
        mine, peer = (spread([pair[side] for pair in self.runs]) for side in (0, 1))
        ratio = spread([theirs / mine for mine, theirs in self.runs])
        size = self.length / 1e9
        rows = [
            [name, f"{value['median']:.3f}", f"{size / value['median']:.2f}"]
            for name, value in ((ours, mine), (theirs, peer))
        ]
        table(["", "median, s", "GB/s"], rows)
        print(
            f"ratio to fio: {ratio['median']:.3f} [{ratio['low90']:.3f}, {ratio['high90']:.3f}]"
            f" ({len(self.runs)} pairs of {size:.2f} GB)"
        )
        return {"bytes": self.length, "libckpt_s": mine, "fio_s": peer, "ratio_to_fio": ratio}


def state_of(args: argparse.Namespace) -> dict[str, Any]:
    """Sixteen equal tensors of random numbers."""
    import torch

    size = (256 << 20) if args.quick else int(args.gigabytes * (1 << 30))
    return {f"tensor.{number}": torch.rand(size // 16 // 4) for number in range(16)}


def need_fio() -> None:
    if shutil.which("fio") is None:
        sys.exit("this benchmark compares with fio, which is not installed: apt-get install fio")


def version_of(*packages: str) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    if shutil.which("fio"):
        found["fio"] = subprocess.run(
            ["fio", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
    return found


def machine(directory: Path) -> dict[str, Any]:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": kind,
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table to standard output, the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for number, row in enumerate([header, *rows]):
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def finish(name: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Adds what every result needs and writes it, if asked to."""
    result = {
        "schema": 1,
        "benchmark": name,
        "quick": args.quick,
        "machine": machine(args.dir),
        "versions": version_of("libckpt", "torch", "safetensors", "numpy"),
        **result,
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
