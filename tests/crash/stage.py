# SPDX-License-Identifier: Apache-2.0
"""Where crash tests play: mounts, memory and file systems of their own, which go with them."""

import argparse
import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NoReturn

SKIPPED = 77
CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 0x40000
PR_SET_PDEATHSIG = 1
MIB = 1 << 20

# Bytes, and how they are made: small, and without what writes into them behind our back.
FILE_SYSTEMS = {
    "ext4": (
        24 * MIB,
        "mkfs.ext4 -q -F -b 4096 -J size=4 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard",
    ),
    "xfs": (32 * MIB, "mkfs.xfs -q -f -K --unsupported"),
    "btrfs": (128 * MIB, "mkfs.btrfs -q -f -K"),
}

libc = ctypes.CDLL(None, use_errno=True)


def skip(why: str) -> NoReturn:
    print(f"skipped: {why}", flush=True)
    sys.exit(SKIPPED)


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def need(*programs: str) -> None:
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        skip(f"{', '.join(missing)} is not installed")


def slice_of(text: str) -> tuple[int, int]:
    at, _, of = text.partition("/")
    if int(at) >= int(of):
        raise ValueError
    return int(at), int(of)


def options(what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--fs", choices=FILE_SYSTEMS, required=True)
    parser.add_argument("--backend", choices=("uring", "threads"), default="uring")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument(
        "--slice", type=slice_of, default=(0, 1), help="I/N: an Nth, with a seed of its own"
    )
    parser.add_argument("--drop", choices=("fdatasync", "sync_dir"), help="leave these syncs out")
    return parser


def mount(source: str, target: str, kind: str, flags: int = 0, data: str | None = None) -> None:
    extra = data.encode() if data else None
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, extra) < 0:
        skip(f"{target} cannot be mounted: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def memory() -> Iterator[pathlib.Path]:
    """A directory in memory that nobody else sees; it goes with this process, whatever ends it."""
    if os.geteuid() != 0:
        skip("needs root")
    if libc.unshare(CLONE_NEWNS) < 0:
        skip("needs mounts of its own")
    mount("none", "/", "none", MS_REC_PRIVATE)
    # So that `with` is left, and what it made removed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    with tempfile.TemporaryDirectory(prefix="ckpt-crash-") as place:
        mount("none", place, "tmpfs", 0, "mode=700")
        os.mkdir(f"{place}/disk")
        try:
            yield pathlib.Path(place)
        finally:
            # Detached: with the last process that has something open in it, it is gone.
            libc.umount2(f"{place}/disk".encode(), 2)
            libc.umount2(place.encode(), 2)


def make(file_system: str, place: pathlib.Path) -> tuple[pathlib.Path, int]:
    """An empty file system in a file, and its size."""
    size, command = FILE_SYSTEMS[file_system]
    base = place / "base"
    with base.open("wb") as file:
        file.truncate(size)
    made = subprocess.run(
        [*command.split(), base], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if made.returncode:
        sys.exit(f"{command}: {made.stdout}")
    with open("/proc/filesystems") as file:
        known = file.read().split()
    if file_system not in known and subprocess.run(["modprobe", "-q", file_system]).returncode:
        skip(f"the kernel has no {file_system}")
    return base, size


def found(output: str, dropped: str) -> int:
    """The exit status of a run in which something must be found lost."""
    print(output.splitlines()[-1])
    if "does not hold" in output:
        return 0
    print(f"nothing shows that {dropped} is left out")
    return 1


def run(arguments: list[object], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [str(argument) for argument in arguments], text=True, preexec_fn=die_with_parent, **more
    )
