#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/demo does and checks beside the training itself: kill, kill-upload, losses, flip,
found, same.

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
import urllib.request
from pathlib import Path
from typing import NoReturn


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


def kill(store: Path, command: list[str]) -> None:
    """Runs the command until two steps are committed and a third is half saved; then kills it."""
    child = subprocess.Popen(command)
    try:
        while child.poll() is None:
            time.sleep(0.0005)
            if half_saved(store) is None or len(committed(store)) < 2:
                continue
            # Hold the process still and look again, so that it is certain what the kill interrupts.
            child.send_signal(signal.SIGSTOP)
            wait_stopped(child.pid)
            if half_saved(store) is None:
                child.send_signal(signal.SIGCONT)
                continue
            child.send_signal(signal.SIGKILL)
            child.wait()
            step = half_saved(store)
            if step is None:
                fail("the manifest appeared after the process was killed")
            shard = shard_of(step)
            blocks = shard.stat().st_blocks * 512
            print(f"killed process {child.pid} with SIGKILL in the middle of saving {step.name}:")
            print(
                f"  {shard.name} is there ({blocks / 1e6:.1f} MB allocated), manifest.json is not"
            )
            last = committed(store)[-1]
            print(f"  the newest step that is committed is {last.name}")
            return
        fail(f"the command ended by itself (exit code {child.returncode}) before it was killed")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def uploaded(server: str) -> tuple[list[str], int]:
    """Steps whose manifest is in the bucket, and how many parts came since the last of them."""
    with urllib.request.urlopen(server + "/_ckpt/journal", timeout=20) as answer:
        entries = [json.loads(line) for line in answer]
    steps: list[str] = []
    parts = 0
    for entry in entries:
        if entry["kind"] != "applied":
            continue
        if entry["operation"] == "UploadPart":
            parts += 1
        elif entry["operation"] == "PutObject" and entry["key"].endswith("/manifest.json"):
            steps.append(entry["key"].split("/")[-2])
            parts = 0
    return steps, parts


def kill_upload(server: str, command: list[str]) -> None:
    """Runs the command until two steps are in the bucket and a third is half there; then kills it."""
    child = subprocess.Popen(command)
    try:
        while child.poll() is None:
            time.sleep(0.002)
            steps, parts = uploaded(server)
            if len(steps) < 2 or not parts:
                continue
            # As in kill(): held still, so that it is certain what the kill interrupts.
            child.send_signal(signal.SIGSTOP)
            wait_stopped(child.pid)
            if uploaded(server)[1] == 0:
                child.send_signal(signal.SIGCONT)
                continue
            child.send_signal(signal.SIGKILL)
            child.wait()
            steps, parts = uploaded(server)
            if not parts:
                fail("the manifest appeared after the process was killed")
            print(f"killed process {child.pid} with SIGKILL in the middle of an upload:")
            print(f"  {parts} parts of a shard are there, the manifest of its step is not")
            print(f"  the newest step that is whole in the bucket is {steps[-1]}")
            return
        fail(f"the command ended by itself (exit code {child.returncode}) before it was killed")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


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
        kill(Path(rest[0]), rest[2:])
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
            "usage: kill STORE -- COMMAND... | kill-upload SERVER -- COMMAND... | losses A B STEPS |"
            " flip STORE NOTE | found NOTE REPORT | same A B"
        )


if __name__ == "__main__":
    main()
