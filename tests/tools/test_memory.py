# SPDX-License-Identifier: Apache-2.0
"""What the programs, and a training, need of memory for several times their staging memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "s3"))

from s3_programs import OK, TOOLS, Bucket, has_s3, same, save  # noqa: E402
from s3_server import S3D, Server  # noqa: E402

URL = "s3://bkt/run"
POOL = 256 << 20  # tools/progress.c
MOST = POOL + (64 << 20)
SHARD = 3 * POOL

# A process counts as much as the one had that it was forked from: this one has little.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], check=False).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def sanitized() -> bool:
    return b"__asan_init" in (TOOLS / "ckpt").read_bytes()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    if sanitized():
        pytest.skip("AddressSanitizer keeps what was freed, and a shadow of all")
    server = Server()
    try:
        yield Bucket(server, tmp_path)
    finally:
        server.stop()


def most_of(bucket: Bucket, program: str, *arguments: object) -> int:
    """Bytes that were resident at once."""
    command = [sys.executable, "-c", MEASURE, str(TOOLS / program), *map(str, arguments)]
    done = subprocess.run(
        command, env=bucket.environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (OK, ""), done
    return int(done.stdout.splitlines()[-1]) << 10


@pytest.mark.full
def test_a_shard_of_three_times_the_staging_memory(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", {"x": torch.arange(SHARD // 4, dtype=torch.int32)}, 1)
    assert max(p.stat().st_size for p in store.rglob("*")) > SHARD
    needed = {
        "upload": most_of(bucket, "ckpt", "upload", store, URL),
        "verify": most_of(bucket, "ckpt-verify", URL),
        "restore": most_of(bucket, "ckpt-restore", URL, tmp_path / "back"),
        "copy": most_of(bucket, "ckpt-restore", tmp_path / "back", "s3://bkt/copy"),
    }
    print({name: f"{size / (1 << 20):.1f} MiB" for name, size in needed.items()})
    assert max(needed.values()) <= MOST, needed
    same(tmp_path / "back", store, 1)


# What it has at most beyond what it had with all of its state, before there was a checkpointer.
TRAINING = """
import sys
import torch
from libckpt import Checkpointer

def memory(what):
    for line in open("/proc/self/status"):
        if line.startswith(what):
            return int(line.split()[1]) << 10

store, url, elements, pool, start, end = *sys.argv[1:3], *map(int, sys.argv[3:])
state = {"x": torch.zeros(elements, dtype=torch.int32).add_(1)}
before = memory("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is that of now
# The rehearsal of the first step has memory of its own (docs/states.md).
with Checkpointer(store, state, remote=url, pool_bytes=pool, rehearse=False) as ckpt:
    assert ckpt.resume() == start
    for step in range(start + 1, end + 1):
        state["x"].fill_(step)
        ckpt.save(step).wait("remote", timeout=300)
    assert state["x"].min() == state["x"].max() == max(end, 1)
print(memory("VmHWM") - before)
"""


def train(bucket: Bucket, store: Path, start: int, end: int) -> int:
    words = (store, URL, SHARD // 4, POOL, start, end)
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, *map(str, words)],
        env=bucket.environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.full
def test_a_training_that_uploads_and_one_that_brings_its_run_back(
    bucket: Bucket, tmp_path: Path
) -> None:
    needed = {
        "upload": train(bucket, tmp_path / "store", 0, 2),
        "bring": train(bucket, tmp_path / "new-node", 2, 2),
    }
    print({name: f"{size / (1 << 20):.1f} MiB" for name, size in needed.items()})
    # Much of the staging memory is in use at least.
    assert min(needed.values()) >= POOL // 2 and max(needed.values()) <= MOST, needed
    same(tmp_path / "new-node", tmp_path / "store", 2)
