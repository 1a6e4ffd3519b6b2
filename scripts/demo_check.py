#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/demo does and checks beside the training itself: kill, bucket, kill-upload, losses,
flip, found, same.

Knows the files of a store from FORMAT.md, and uses none of libckpt's code to look at them.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def fail(message: str) -> NoReturn:
    sys.exit(f"demo_check.py: {message}")


def steps_of(store: Path) -> list[Path]:
    """Directories of steps, oldest first."""
    return sorted(store.glob("g*/step-*"), key=lambda path: (path.name, path.parent.name))


def committed(store: Path) -> list[Path]:
    return [path for path in steps_of(store) if (path / "manifest.json").exists()]


def shard_of(step: Path) -> Path:
    shards = sorted(step.glob("rank-*.safetensors"))
    if len(shards) != 1:
        fail(f"{step} holds {len(shards)} shards, not one")
    return shards[0]


def half_saved(store: Path) -> Path | None:
    """The newest step, if its shard is there and its manifest is not."""
    steps = steps_of(store)
    if not steps or (steps[-1] / "manifest.json").exists():
        return None
    return steps[-1] if list(steps[-1].glob("rank-*.safetensors")) else None


def wait_stopped(pid: int) -> None:
    """Until every thread has stopped: one that is in the middle of a write finishes it first."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        states = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                states.append((task / "stat").read_text().rsplit(")", 1)[1].split()[0])
            except OSError:  # the thread has ended
                continue
        if all(state in "TtXZ" for state in states):
            return
        time.sleep(0.001)


# What is committed, and what is there of a step that is not, in words; None: nothing is.
Look = Callable[[], tuple[list[str], str | None]]


def look_into(store: Path) -> tuple[list[str], str | None]:
    steps = [path.name for path in committed(store)]
    half = half_saved(store)
    if half is None:
        return steps, None
    shard = shard_of(half)
    blocks = shard.stat().st_blocks * 512
    return steps, f"{half.name}: {shard.name} is there ({blocks / 1e6:.1f} MB allocated)"


def kill(look: Look, doing: str, command: list[str]) -> None:
    """Runs the command until two steps are committed and a third is half there; then kills it."""
    child = subprocess.Popen(command)
    try:
        while child.poll() is None:
            time.sleep(0.0005)
            steps, half = look()
            if half is None or len(steps) < 2:
                continue
            # Hold the process still and look again, so that it is certain what the kill interrupts.
            child.send_signal(signal.SIGSTOP)
            wait_stopped(child.pid)
            if look()[1] is None:
                child.send_signal(signal.SIGCONT)
                continue
            child.send_signal(signal.SIGKILL)
            child.wait()
            steps, half = look()
            if half is None:
                fail("the manifest appeared after the process was killed")
            print(f"killed process {child.pid} with SIGKILL in the middle of {doing}")
            print(f"  {half}, manifest.json is not")
            print(f"  the newest step that is committed is {steps[-1]}")
            return
        fail(f"the command ended by itself (exit code {child.returncode}) before it was killed")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def client_of() -> Any:
    """Of the server that the environment names."""
    import botocore.session  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        retries={"total_max_attempts": 1},
    )
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    region = os.environ.get("AWS_REGION", "us-east-1")
    session = botocore.session.get_session()
    return session.create_client("s3", region, endpoint_url=endpoint, config=config)


def bucket_of(url: str) -> tuple[str, str]:
    """Its name, and the prefix of a store in it."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix.rstrip("/") + "/"


def look_into_bucket(url: str) -> Look:
    client = client_of()
    bucket, prefix = bucket_of(url)

    def look() -> tuple[list[str], str | None]:
        # Uploads first: what is committed meanwhile is among the objects then.
        said = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
        uploads = [(u["Key"], u["UploadId"]) for u in said.get("Uploads", [])]
        said = client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        keys = [o["Key"] for o in said.get("Contents", [])]
        steps = sorted(k.split("/")[-2] for k in keys if k.endswith("/manifest.json"))
        shards = [k.split("/") for k in keys if k.endswith(".safetensors")]
        for *_, step, shard in shards:
            if step not in steps:
                return steps, f"{step}: {shard} is there"
        for key, upload in uploads:
            *_, step, shard = key.split("/")
            try:
                said = client.list_parts(Bucket=bucket, Key=key, UploadId=upload)
            except client.exceptions.ClientError:  # it has just been completed
                continue
            if step not in steps and (parts := len(said.get("Parts", []))):
                return steps, f"{step}: {parts} parts of {shard} are there"
        return steps, None

    return look


def kill_upload(remote: str, command: list[str]) -> None:
    if remote.startswith("file://"):
        store = Path(remote.removeprefix("file://"))
        kill(lambda: look_into(store), "uploading", command)
    else:
        kill(look_into_bucket(remote), "uploading", command)


def read_losses(path: Path) -> list[tuple[int, str]]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), loss) for step, loss in lines]


def losses(reference: Path, killed: Path, steps: int) -> None:
    expected = dict(read_losses(reference))
    if sorted(expected) != list(range(1, steps + 1)):
        fail(f"{reference} does not hold every step from 1 to {steps}")
    got = read_losses(killed)
    for step, loss in got:
        if expected[step] != loss:
            fail(f"step {step}: loss {loss} in the killed run, {expected[step]} in the other")
    if {step for step, _ in got} != set(expected):
        fail(f"{killed} lacks some steps")
    twice = len(got) - len(expected)
    if twice <= 0:
        fail("the killed run trained no step twice: it was not killed, or lost nothing")
    print(f"{steps} steps, {len(got)} losses ({twice} steps were trained again after the kill):")
    print(f"  all equal, bit for bit; the last is {expected[steps]}")


def flip(store: Path, note: Path) -> None:
    """Flips one byte in the middle of a tensor of the newest step."""
    shard = shard_of(committed(store)[-1])
    with shard.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        name = max(
            header, key=lambda key: header[key]["data_offsets"][1] - header[key]["data_offsets"][0]
        )
        begin, end = header[name]["data_offsets"]
        offset = 8 + length + (begin + end) // 2
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    where = shard.relative_to(store)
    note.write_text(json.dumps({"file": str(where), "offset": offset, "tensor": name}))
    print(
        f"flipped: byte {offset} of {where}\n"
        f"  which is in tensor {name}: {byte:#04x} -> {byte ^ 0x10:#04x}"
    )


def found(note: Path, report: Path) -> None:
    """What ckpt-verify --json says must name the file, the place and the tensor."""
    flipped = json.loads(note.read_text())
    values = [json.loads(line) for line in report.read_text().splitlines()]
    errors = [value["error"] for value in values if value["type"] == "finding"]
    bad = [error for error in errors if error["file"] == flipped["file"]]
    if len(errors) != 1 or len(bad) != 1:
        fail(f"ckpt-verify should find one thing wrong, in {flipped['file']}; it found {errors}")
    chunk = 1 << 20  # what has a digest of its own
    if not bad[0]["offset"] <= flipped["offset"] < bad[0]["offset"] + chunk:
        fail(f"ckpt-verify names offset {bad[0]['offset']}, the byte is at {flipped['offset']}")
    if bad[0]["tensor"] != flipped["tensor"]:
        fail(f"ckpt-verify names tensor {bad[0]['tensor']}, it is {flipped['tensor']}")
    print("found: the file, the chunk that holds the byte, and the tensor are named")


def same(reference: Path, restored: Path) -> None:
    """The newest steps of two stores, read by safetensors' own reader, must be equal."""
    from safetensors import safe_open

    ours, theirs = shard_of(committed(restored)[-1]), shard_of(committed(reference)[-1])
    if ours.parent.name != theirs.parent.name:
        fail(f"restored {ours.parent.name}, the other run ended with {theirs.parent.name}")
    with safe_open(ours, "numpy") as a, safe_open(theirs, "numpy") as b:
        if set(a.keys()) != set(b.keys()):
            fail("the names of the tensors differ")
        total = 0
        for name in sorted(a.keys()):
            left, right = a.get_tensor(name), b.get_tensor(name)
            if left.dtype != right.dtype or left.shape != right.shape:
                fail(f"{name} differs in type or shape")
            if left.tobytes() != right.tobytes():
                fail(f"{name} differs")
            total += left.nbytes
        print(f"safetensors opened {os.fspath(ours)}:")
        print(
            f"  {len(a.keys())} tensors, {total / 1e6:.1f} MB, equal bit for bit to those of the"
            " run that was never killed"
        )


def main() -> None:
    what, *rest = sys.argv[1:] or [""]
    if what == "kill" and len(rest) > 2 and rest[1] == "--":
        store = Path(rest[0])
        kill(lambda: look_into(store), "saving", rest[2:])
    elif what == "bucket" and len(rest) == 1:
        client_of().create_bucket(Bucket=bucket_of(rest[0])[0])
    elif what == "kill-upload" and len(rest) > 2 and rest[1] == "--":
        kill_upload(rest[0], rest[2:])
    elif what == "losses" and len(rest) == 3:
        losses(Path(rest[0]), Path(rest[1]), int(rest[2]))
    elif what == "flip" and len(rest) == 2:
        flip(Path(rest[0]), Path(rest[1]))
    elif what == "found" and len(rest) == 2:
        found(Path(rest[0]), Path(rest[1]))
    elif what == "same" and len(rest) == 2:
        same(Path(rest[0]), Path(rest[1]))
    else:
        fail(
            "usage: kill STORE -- COMMAND... | bucket URL | kill-upload URL -- COMMAND... |"
            " losses A B STEPS | flip STORE NOTE | found NOTE REPORT | same A B"
        )


if __name__ == "__main__":
    main()
