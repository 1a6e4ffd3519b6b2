# SPDX-License-Identifier: Apache-2.0
"""Crash images: every write beneath a file system in use, and what power cuts leave of it.

    images.py --fs ext4 --seed 1 --images 100 --build build

qemu-storage-daemon records the writes and flushes of a loop device (recorder.c); replay.c makes the
disk as it may be after a power cut at any of them, mounts it, and looks. With --drop the engine does
not sync, and steps must be found lost.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import stage

PROCESSES = 8  # of a recorded life
SLICE_SEEDS = 1000
MARKS = stage.MIB  # behind the file system: what was acknowledged, in its place among the writes


@contextlib.contextmanager
def recording(
    place: pathlib.Path, image: pathlib.Path, log: pathlib.Path
) -> Iterator[pathlib.Path]:
    """A file whose writes go to `image` and are written down in `log`."""
    device = place / "device"
    device.touch()
    log.touch()
    daemon = subprocess.Popen(
        [
            "qemu-storage-daemon",
            *("--blockdev", f"node-name=image,driver=file,filename={image}"),
            *("--blockdev", f"node-name=log,driver=file,filename={log}"),
            "--blockdev",
            "node-name=all,driver=blklogwrites,file=image,log=log,log-sector-size=512",
            "--export",
            f"type=fuse,id=export,node-name=all,mountpoint={device},writable=on",
            *("--chardev", "stdio,id=control", "--monitor", "chardev=control"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=stage.die_with_parent,
    )
    assert daemon.stdin and daemon.stdout and daemon.stderr
    try:
        # It greets when everything before --monitor stands.
        if not daemon.stdout.readline():
            stage.skip(f"no recording: {daemon.stderr.read().strip()}")
        yield device
        daemon.communicate('{"execute":"qmp_capabilities"}\n{"execute":"quit"}\n', timeout=60)
        if daemon.returncode:
            sys.exit(f"qemu-storage-daemon ended with {daemon.returncode}")
    finally:
        daemon.kill()
        daemon.wait()


def record(options: argparse.Namespace, place: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A life on a new file system: as it was before, and the log of all that was written."""
    base, size = stage.make(options.fs, place)
    image, log = place / "image", place / "log-of-writes"
    subprocess.run(["cp", "--sparse=always", base, image], check=True)
    os.truncate(image, size + MARKS)
    recorder = options.build / "tests" / "crash" / "recorder"
    if options.drop:
        os.environ["CKPT_TEST_DROP"] = options.drop
        recorder = recorder.with_name("recorder_dropping")
    with recording(place, image, log) as device:
        os.environ["CKPT_TEST_LOG"] = str(place / "log")
        arguments = [device, size, options.fs, place / "disk", options.seed, PROCESSES]
        code = stage.run([recorder, *arguments]).returncode
        if code:
            sys.exit(code)
    image.unlink()
    return base, log


def keep(options: argparse.Namespace, *files: pathlib.Path) -> None:
    """What failed can be looked at again."""
    name = f"failed-{options.fs}-{options.backend}-{options.seed}"
    folder = options.build / "tests" / "crash" / name
    folder.mkdir(exist_ok=True)
    for file in files:
        subprocess.run(["cp", "--sparse=always", file, folder], check=True)
    print(
        f"repeat: images.py --fs {options.fs} --backend {options.backend} --build {options.build} "
        f"--again {folder} --at IMAGE"
    )


def main() -> int:
    parser = stage.options("Crash images on a real file system.")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--again", type=pathlib.Path, help="a folder that a failure has left")
    parser.add_argument("--at", help="this image alone, as it was printed")
    options = parser.parse_args()
    at, of = options.slice
    options.seed += at * SLICE_SEEDS
    options.images //= of
    options.build = options.build.resolve()
    stage.need("qemu-storage-daemon", f"mkfs.{options.fs}")
    if not os.path.exists("/dev/fuse"):
        stage.skip("there is no /dev/fuse")
    os.environ["CKPT_TEST_IO"] = options.backend

    with stage.memory() as place:
        if options.again:
            base, log = options.again / "base", options.again / "log-of-writes"
        else:
            base, log = record(options, place)
        replay: list[object] = [options.build / "tests" / "crash" / "replay", log, base]
        replay += [base.stat().st_size, options.fs, place, options.seed, options.images]
        replay += [options.build / "tools" / "ckpt-verify", *([options.at] if options.at else [])]
        output = stage.run(replay, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        good = output.splitlines()[-1].endswith("unmountable=0 failed=0")
        if not (good or options.drop or options.again):
            keep(options, base, log)
    if options.drop:
        return stage.found(output, options.drop)
    print(output, end="")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
