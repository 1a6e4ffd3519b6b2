# SPDX-License-Identifier: Apache-2.0
"""Ranks tell each other, through the job's key-value store, what they take of a step."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from libckpt._kvstore import Table
from libckpt._takers import Taken, Takers
from ranks import together
from waiting import until

import libckpt
from libckpt import _kvstore, _takers

NAMES = ["a", "b", "c"]


def sockets() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd).startswith("socket:"):
                found.add(fd.name)
    return found


class Job:
    """Three ranks that resume, each with a connection of its own to a real store."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.fds: list[str] = []
        self.ranks = [Takers(self.connect(), "job", rank, 3) for rank in range(3)]
        self.number = 0

    def connect(self) -> Table:
        before = sockets()
        table = _kvstore.connect(self.store)
        assert table is not None
        self.fds.append(max(sockets() - before, key=int))
        return table

    def cut(self, rank: int) -> None:
        """The connection of a rank breaks."""
        with socket.socket(fileno=os.dup(int(self.fds[rank]))) as one:
            one.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        self.number += 1
        for rank in self.ranks:
            rank.begin(self.number)

    def lost(self) -> list[Any]:
        """What each rank finds, or says. They ask at once."""
        found: list[Any] = [None] * len(self.ranks)

        def ask(number: int) -> None:
            try:
                found[number] = self.ranks[number].lost(lambda: NAMES)
            except libckpt.NetworkError as error:
                found[number] = str(error).rpartition("of the step: ")[2]

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(self.ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_none_takes_is_lost_and_a_connection_that_broke_is_made_anew(job: Job) -> None:
    job.begin()
    job.cut(1)
    job.ranks[0].tell(Taken({"a"}, {"x"}, {"y"}), NAMES)
    job.ranks[1].tell(Taken({"b"}, {"y"}, {"z"}), NAMES)
    job.ranks[2].tell(Taken({"b"}, {"y"}, {"z"}), NAMES)
    assert job.lost() == [(["c"], ["z"])] * 3

    job.begin()
    job.cut(0)
    job.ranks[0].tell_all()
    job.ranks[1].tell(Taken({"b"}, set(), set()), NAMES)
    job.ranks[2].tell(Taken({"b"}, set(), set()), NAMES)
    assert job.lost() == [([], [])] * 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What is read, and what is written; and when a connection is made anew."""
    seen: dict[str, list[Any]] = {"get": [], "write": [], "again": []}

    def note(name: str) -> None:
        call = getattr(Table, name)

        def noted(table: Table, *args: Any) -> Any:
            seen[name].append(args)
            return call(table, *args)

        monkeypatch.setattr(Table, name, noted)

    for name in seen:
        note(name)
    return seen


def test_ranks_that_take_the_same_share_one_text_and_rank_0_alone_reads_it(
    job: Job, asked: dict[str, list[Any]]
) -> None:
    job.begin()
    for rank in job.ranks:
        rank.tell(Taken({"a", "b"}, set(), set()), NAMES)
    assert sum(key.endswith("/all") for key, _ in asked["write"]) == 1
    assert job.lost() == [(["c"], [])] * 3
    # Who has told, and the one text.
    assert [len(keys) for (keys,) in asked["get"]] == [3, 1]
    # All take all: nobody reads what the others have told.
    job.begin()
    for rank in job.ranks:
        rank.tell_all()
    assert job.lost() == [([], [])] * 3
    assert len(asked["get"]) == 2


def test_who_has_not_told_is_no_fault_of_a_connection_and_all_hear_of_it(
    job: Job, asked: dict[str, list[Any]]
) -> None:
    job.begin()
    job.ranks[0].tell(Taken({"a"}, set(), set()), NAMES)
    job.ranks[1].tell(Taken({"b", "c"}, set(), set()), NAMES)
    assert job.lost() == ["rank 2 has not told what it takes"] * 3
    assert asked["again"] == []


def test_what_an_interrupted_resume_has_told_is_not_read(job: Job) -> None:
    """Rank 1 was interrupted behind the opening, and resumes again with the others."""
    job.number += 1
    for rank in (0, 2):
        job.ranks[rank].begin(job.number)
        job.ranks[rank].tell_all()
    job.begin()
    for rank in job.ranks:
        rank.tell(Taken({"a"}, set(), set()), NAMES)
    assert job.lost() == [(["b", "c"], [])] * 3


# A store that cannot be reached when the ranks have opened a step.


def keep_store(place: Path) -> dict[str, str]:
    """The last rank is the job's key-value store, and stops when the others have opened a step."""
    rank, ranks = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    dist.destroy_process_group()
    if rank == ranks:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (place / "port.tmp").write_text(f"{server.port} {os.getpid()}")
        (place / "port.tmp").rename(place / "port")
        until(lambda: all((place / f"opened-{n}").exists() for n in range(ranks)))
        (place / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        said: dict[str, str] = {}
    else:
        until((place / "port").exists)
        port, pid = map(int, (place / "port").read_text().split())
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        said = resume_without(place, rank, pid)
        (place / f"over-{rank}").touch()
        until(lambda: all((place / f"over-{n}").exists() for n in range(ranks)))
        if rank == 0:  # one alone: the last rank may have ended when another one wakes it again
            os.kill(pid, signal.SIGCONT)
    return said


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are: each stops for itself."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def resume_without(place: Path, rank: int, pid: int) -> dict[str, str]:
    begin = Takers.begin

    def stopped(takers: Takers, number: int) -> None:
        (place / f"opened-{rank}").touch()
        until(lambda: is_stopped(pid), "the key-value store to stop")
        begin(takers, number)

    state = {"weight": torch.ones(3), "count": 1}
    with libckpt.Checkpointer(place / "store", state, pool_bytes=1 << 20, rehearse=False) as ckpt:
        ckpt.save(7).wait()
    Takers.begin = stopped  # type: ignore[method-assign]
    _takers._PATIENCE = 0.5
    state["count"] = 2
    # What the ranks wait for each other when they open the store and the step must not expire.
    # What they wait when the key-value store has stopped must, and it is the same limit.
    ckpt = libckpt.Checkpointer(
        place / "store", state, pool_bytes=1 << 20, save_timeout=12, rehearse=False
    )
    # So they open the step at the same time.
    dist.barrier()
    try:
        ckpt.resume()
    except libckpt.CheckpointError as error:
        return {"error": type(error).__name__, "text": str(error), "count": str(state["count"])}
    finally:
        ckpt.close()
    return {"error": ""}


@pytest.mark.waits
def test_a_resume_without_the_store_ends_on_all_ranks(tmp_path: Path) -> None:
    *said, _ = together(3, tmp_path, keep_store, tmp_path)
    for one in said:
        assert one["error"] in ("DeadlineError", "NetworkError"), one
        assert "do not reach each other" in one["text"]
        assert one["count"] == "2"
