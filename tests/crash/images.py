# SPDX-License-Identifier: Apache-2.0
"""Crash images: every write beneath a file system on which the engine works, and what cuts leave of it.

    images.py --fs ext4 --seed 1 --images 100 --build build

qemu-storage-daemon records the writes and flushes of a loop device (recorder.c); replay.c makes the disk
as it may be after a power cut at any of them, mounts it, and looks. With --drop the engine does not sync,
and steps must be found lost.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import stage

PROCESSES = 8  # of a recorded life
MARKS = stage.MIB  # behind the file system: what was acknowledged, in its place among the writes


@contextlib.contextmanager
def recording(place: pathlib.Path, image: pathlib.Path, log: pathlib.Path) -> Iterator[pathlib.Path]:
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


def keep(folder: pathlib.Path, arguments: list[object], *files: pathlib.Path) -> None:
    """What failed can be looked at again."""
    folder.mkdir(exist_ok=True)
    for file in files:
        subprocess.run(["cp", "--sparse=always", file, folder], check=True)
    (folder / "command").write_text(" ".join(str(argument) for argument in arguments) + "\n")
    print(f"kept in {folder}: base, log-of-writes, and the command that replays them")


def main() -> int:
    parser = stage.options("Crash images on a real file system.")
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args()
    stage.need("qemu-storage-daemon", f"mkfs.{options.fs}")
    if not os.path.exists("/dev/fuse"):
        stage.skip("there is no /dev/fuse")
    programs = options.build.resolve() / "tests" / "crash"
    verify = options.build.resolve() / "tools" / "ckpt-verify"
    os.environ["CKPT_TEST_IO"] = options.backend
    recorder = programs / "recorder"
    if options.drop:
        os.environ["CKPT_TEST_DROP"] = options.drop
        recorder = programs / "recorder_dropping"

    with stage.memory() as place:
        base, size = stage.make(options.fs, place)
        image, log = place / "image", place / "log-of-writes"
        subprocess.run(["cp", "--sparse=always", base, image], check=True)
        os.truncate(image, size + MARKS)
        with recording(place, image, log) as device:
            os.environ["CKPT_TEST_LOG"] = str(place / "log")
            arguments = [device, size, options.fs, place / "disk", options.seed, PROCESSES]
            code = stage.run([recorder, *arguments]).returncode
            if code:
                return code
        image.unlink()
        arguments = [programs / "replay", log, base, size, options.fs, place]
        arguments += [options.seed, options.images, verify]
        output = stage.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        if "does not hold" in output and not options.drop:
            name = f"failed-{options.fs}-{options.backend}-{options.seed}"
            keep(programs / name, arguments, base, log)
    if options.drop:
        return stage.found(output, options.drop)
    print(output, end="")
    return int(not output.splitlines()[-1].endswith("unmountable=0 failed=0"))


if __name__ == "__main__":
    sys.exit(main())
