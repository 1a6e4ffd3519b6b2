# SPDX-License-Identifier: Apache-2.0
"""Ceph's gateway: what dies at any moment, and trainings that keep their steps there."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import waiting
from ceph import check_copy, ended, key, names, settled, uploads
from s3_programs import INCOMPLETE, NOT_FOUND, OK, Bucket, has_s3, same
from s3_server import Radosgw
from waiting import remotely, until

import libckpt
from libckpt import Checkpointer

# Not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "python"))
from ranks import together  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Radosgw.installed(), reason="radosgw 16.2 is not installed"),
    pytest.mark.skipif(not has_s3(), reason="a library built without S3"),
]

# Death at any moment.

TIMES = 3


class Way:
    """A program that sends or brings `large`, again and again, each time to another place."""

    def __init__(self, bucket: Bucket, url: str, large: Path, way: str) -> None:
        self.bucket, self.large, self.way = bucket, large, way
        self.url = url
        self.store = bucket.home / "run"
        if way == "upload":
            shutil.copytree(large, self.store)
        if way == "restore":
            bucket.good("ckpt-restore", large, url)

    def place(self, number: int) -> str:
        here = self.way == "restore"
        return str(self.bucket.home / f"out-{number}") if here else f"{self.url}/{number}"

    def words(self, number: int) -> list[object]:
        place = self.place(number)
        if self.way == "upload":
            return ["ckpt", "upload", self.store, place]
        return ["ckpt-restore", self.url if self.way == "restore" else self.large, place]

    def check(self, number: int) -> None:
        """It is there, and whole, and nothing else is left."""
        place = self.place(number)
        if self.way == "restore":
            same(Path(place), self.large, 7)
            return
        check_copy(self.bucket, place, self.large, 7)
        shutil.rmtree(self.bucket.home / "copy")
        assert uploads(self.bucket.server, place) == []

    def check_none_or_all(self, number: int) -> None:
        """A step is there if its manifest is, and then all of it."""
        place = self.place(number)
        verified = self.bucket.run("ckpt-verify", place)
        if self.way != "restore":
            there = names(self.bucket.server, place)
            assert (verified.returncode == OK) == any(n.endswith("manifest.json") for n in there)
        assert verified.returncode in (OK, NOT_FOUND, INCOMPLETE), verified


@pytest.mark.full
@pytest.mark.parametrize("way", ["copy", "upload", "restore"])
@pytest.mark.parametrize("whom", ["client", "server"])
def test_death_at_any_moment(bucket: Bucket, url: str, large: Path, way: str, whom: str) -> None:
    done = Way(bucket, url, large, way)
    begun = time.monotonic()
    bucket.good(*done.words(0))
    took = time.monotonic() - begun
    done.check(0)
    for number in range(1, TIMES + 1):
        moment = random.SystemRandom().uniform(0, took)
        print(f"{whom} dies after {moment:.3f} of {took:.3f} s")
        process = bucket.start(*done.words(number))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        if whom == "server":
            bucket.server.must("kill9")
            bucket.server.must("start")
            ended(process)
        else:
            process.send_signal(signal.SIGKILL)
            waiting.ended(process)
            until(lambda: settled(bucket.server))
            done.check_none_or_all(number)
            bucket.good(*done.words(number))
        done.check(number)


# Trainings.

STATE = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}


def test_a_training_keeps_there_what_it_is_told(told: Bucket, url: str) -> None:
    store = told.home / "run"
    options = {"remote_keep_last": 2, "remote_keep_every": 3, "remote_grace": 1}
    with Checkpointer(store, dict(STATE), remote=url, **options) as ckpt:
        for step in range(1, 7):
            remotely(ckpt.save(step))
        until(lambda: [info.step for info in libckpt.list_steps(url)] == [6, 5, 3])
        until(lambda: ckpt.stats()["remote_steps_removed"] == 3)
    steps = {n.removeprefix(key(url)).split("/")[1] for n in names(told.server, url) if "/step-" in n}
    assert steps == {f"step-{step:010d}" for step in (3, 5, 6)}
    check_copy(told, url, store, 6)


def test_damage_is_mended_from_there(told: Bucket, url: str) -> None:
    """What is bad of the newest step here comes from there, and no older step is taken."""
    store = told.home / "run"
    state = {"x": torch.arange(1 << 20, dtype=torch.float32)}
    with Checkpointer(store, state, remote=url) as ckpt:
        ckpt.save(1)
        state["x"] += 1
        ckpt.save(2)
    (shard,) = store.glob("g*/step-0000000002/*.safetensors")
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    expected = state["x"].clone()
    state["x"].zero_()
    with Checkpointer(store, state, remote=url) as ckpt:
        assert ckpt.resume() == 2
    assert torch.equal(state["x"], expected)
    # A repair names it anew.
    (shard,) = store.glob("g*/step-0000000002/*.safetensors")
    assert shard.read_bytes() == good


def value(rank: int, step: int) -> float:
    return float(100 * rank + step)


def train(root: Path, url: str, settings: dict[str, str], nodes: int, last: int) -> int:
    """From what is there to `last`, as one of the ranks; where it went on from."""
    rank = dist.get_rank()
    os.environ.update(settings)
    os.environ["LIBCKPT_NODE"] = f"n{rank % nodes}" if nodes else ""
    path = root / (f"node{rank % nodes}" if nodes else "store")
    mine = torch.full((3 << 20,), -1.0)  # two parts each
    state = {"mine": libckpt.PerRank(mine), "all": torch.full((1000,), -1.0)}
    with Checkpointer(path, state, remote=url, node_store=nodes > 0) as ckpt:
        found = ckpt.resume()
        if found > 0:
            assert torch.equal(mine, torch.full_like(mine, value(rank, found)))
            assert torch.equal(state["all"], torch.full((1000,), float(found)))
        for step in range(found + 1, last + 1):
            state["all"].fill_(float(step))
            mine.fill_(value(rank, step))
            remotely(ckpt.save(step))
    return found


@pytest.mark.full
@pytest.mark.parametrize(("world", "nodes"), [(2, 0), (4, 2)])
def test_ranks_go_on_from_there(told: Bucket, url: str, world: int, nodes: int) -> None:
    """All that is local is lost, twice; and a node can be given the files of its ranks alone."""
    settings = {k: v for k, v in told.environment().items() if k.startswith("AWS_")}
    root = told.home
    for last, found in ((2, 0), (3, 2), (4, 3)):
        assert together(world, root, train, root, url, settings, nodes, last) == [found] * world
        for path in (*root.glob("node*"), root / "store"):
            shutil.rmtree(path, ignore_errors=True)
    assert [info.step for info in libckpt.list_steps(url)] == [4, 3, 2, 1]
    assert uploads(told.server, url) == []
    told.good("ckpt-restore", url, root / "some", "--rank", world - 1)
    shards = list((root / "some").rglob("*.safetensors"))
    assert [path.name[:10] for path in shards] == [f"rank-{world - 1:05}"]
    assert "all good in this store" in told.good("ckpt-verify", root / "some")
