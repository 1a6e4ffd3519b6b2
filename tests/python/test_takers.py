# SPDX-License-Identifier: Apache-2.0
"""Ranks tell each other, through the job's key-value store, what they take of a step."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
import torch.distributed as dist
from libckpt._table import Table
from libckpt._takers import Taken, Takers

from libckpt import _table

NAMES = ["a", "b", "c"]


def sockets() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd).startswith("socket:"):
                found.add(fd.name)
    return found


class Job:
    """Two ranks that resume, each with a connection of its own to a real store."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.fds: list[str] = []
        self.ranks = [Takers(self.connect(), "job", rank, 2) for rank in range(2)]

    def connect(self) -> Table:
        before = sockets()
        table = _table.connect(self.store)
        assert table is not None
        self.fds.append(max(sockets() - before, key=int))
        return table

    def cut(self, rank: int) -> None:
        """The connection of a rank breaks."""
        with socket.socket(fileno=os.dup(int(self.fds[rank]))) as one:
            one.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        for rank in self.ranks:
            rank.begin(1, 7)

    def lost(self) -> list[tuple[list[str], list[str]]]:
        return [rank.lost(lambda: NAMES) for rank in self.ranks]


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_none_takes_is_lost_and_a_connection_that_broke_is_made_anew(job: Job) -> None:
    job.begin()
    job.cut(1)
    job.ranks[0].tell(Taken({"a"}, {"x"}, {"y"}), NAMES)
    job.ranks[1].tell(Taken({"b"}, {"y"}, {"z"}), NAMES)
    assert job.lost() == [(["c"], ["z"])] * 2

    job.begin()
    job.cut(0)
    job.ranks[0].tell_all()
    job.ranks[1].tell(Taken({"b"}, set(), set()), NAMES)
    assert job.lost() == [([], [])] * 2


def test_ranks_that_take_the_same_share_one_text(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = Table.write
    monkeypatch.setattr(
        Table, "write", lambda table, key, value: (written.append(key), write(table, key, value))
    )
    job.begin()
    for rank in job.ranks:
        rank.tell(Taken({"a", "b"}, set(), set()), NAMES)
    assert sum(key.endswith("/all") for key in written) == 1
    assert job.lost() == [(["c"], [])] * 2
