# SPDX-License-Identifier: Apache-2.0
"""A training of a hundred saves, whose server is away in the middle.

usage: outage.py [--seconds S] [--way dies|hangs]

The server is away for S seconds at least (600), and the saves in that time are spread over them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from s3_server import ACCESS, SECRET, Server
from waiting import remotely, until

import libckpt
from libckpt import Checkpointer

URL = "s3://bkt/run"
STATE = {"w": torch.arange(50_000, dtype=torch.float32), "note": "hello"}
# The upload of LAST is under way when the server goes; it is away from the end of GONE to that of BACK.
LAST, GONE, BACK, END = 15, 30, 70, 100
KEPT = 2
SETTINGS = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # The uploader is to see the failures, and not only its client.
    "AWS_MAX_ATTEMPTS": "2",
}


def committed(store: object) -> list[int]:
    return [s.step for s in libckpt.list_steps(str(store)) if s.state == "committed"]


class Training:
    def __init__(self, store: Path) -> None:
        self.ckpt = Checkpointer(store, dict(STATE), remote=URL, keep_last=KEPT, pool_bytes=4 << 20)
        self.saves: dict[int, libckpt.Save] = {}
        self.stalls: dict[int, float] = {}

    def run(self, first: int, last: int, seconds: float = 0) -> None:
        """Each of the saves is on the local disk before the next one is made."""
        start = time.monotonic()
        for step in range(first, last + 1):
            begun = time.monotonic()
            self.saves[step] = self.ckpt.save(step)
            self.stalls[step] = time.monotonic() - begun
            self.saves[step].wait("local")
            due = start + seconds * (step - first + 1) / (last - first + 1)
            # What a training does between its saves, which makes the outage as long as the caller wants it. No check
            # depends on the time.
            while seconds > 0 and time.monotonic() < due:
                time.sleep(0.01)

    def stall(self, first: int, last: int) -> float:
        return statistics.median(self.stalls[step] for step in range(first, last + 1))


def published(journal: Path) -> list[int]:
    """Steps by the order of their manifests, each once, and each after all that it names."""
    there: set[str] = set()
    steps = []
    for line in journal.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        if entry["kind"] != "applied" or not entry["operation"].startswith(("Put", "Complete")):
            continue
        folder, _, name = entry["key"].rpartition("/")
        there.add(f"{folder}/{name.rpartition('.')[2]}")
        if name == "manifest.json":
            assert {f"{folder}/index", f"{folder}/safetensors"} <= there, entry
            steps.append(int(folder.rpartition("-")[2]))
    return steps


def check_away(training: Training, store: Path) -> None:
    """What is not there yet stays here, whatever retention would have removed."""
    waiting = list(range(LAST, BACK + 1))
    stats = training.ckpt.stats()
    assert stats["remote_step"] == LAST - 1
    assert stats["uploads_waiting"] == len(waiting)
    assert stats["uploads_waiting_bytes"] >= len(waiting) * 200_000
    assert sorted(committed(store))[-len(waiting) :] == waiting


def check_end(training: Training, folder: Path) -> None:
    for save in training.saves.values():
        assert save.done("remote")
        assert save.error is None
        save.wait("remote", timeout=0)
    stats = training.ckpt.stats()
    assert (stats["uploads_waiting"], stats["uploads_failed"]) == (0, 0)
    assert stats["remote_step"] == END
    until(lambda: committed(folder / "store") == [END, END - 1])
    training.ckpt.close()
    assert committed(URL) == list(range(END, 0, -1))
    assert published(folder / "journal") == list(range(1, END + 1))


def suffer(folder: Path, way: str, seconds: float) -> Training:
    """In an environment that has SETTINGS; the caller's assertions fail if anything is lost."""
    kept = ["--directory", folder / "buckets", "--journal", folder / "journal"]
    server = Server(*kept)
    # It comes back where it was.
    server.options = [*server.options, "--port", server.endpoint.rpartition(":")[2]]
    os.environ["AWS_ENDPOINT_URL_S3"] = server.endpoint
    training = Training(folder / "store")
    # Nobody gets an answer about the manifest of this one while the server is there.
    server.rules({"do": "stall", "key": f"*step-{LAST:010}/manifest.json", "operation": "PutObject"})
    training.run(1, GONE)
    until(lambda: training.ckpt.stats()["remote_step"] == LAST - 1)
    if way == "dies":
        server.kill()
    else:
        server.process.send_signal(signal.SIGSTOP)
    training.run(GONE + 1, BACK, seconds)
    if way == "dies":
        until(lambda: training.ckpt.stats()["uploads_retried"] >= 2)
    check_away(training, folder / "store")
    if way == "dies":
        server.start()
    else:
        server.process.send_signal(signal.SIGCONT)
        server.rules()
    training.run(BACK + 1, END)
    remotely(training.saves[END])
    check_end(training, folder)
    server.stop()
    return training


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--way", choices=["dies", "hangs"], default="dies")
    options = parser.parse_args()
    os.environ.update(SETTINGS)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        training = suffer(Path(folder), options.way, options.seconds)
    before, during = training.stall(1, GONE), training.stall(GONE + 1, BACK)
    sys.stdout.write(
        f"save() took {before * 1e3:.2f} ms before, {during * 1e3:.2f} ms while it was away; "
        f"{time.monotonic() - begun:.0f} s in all\n"
        f"counts outages=1 saves={END} seconds={options.seconds:.0f}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
