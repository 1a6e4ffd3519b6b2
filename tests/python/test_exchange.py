# SPDX-License-Identifier: Apache-2.0
"""Many ranks save one step: torchrun, a rank or the store of keys that dies, and how they meet."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import Forked, torchrun
from libckpt._native import ffi, lib
from ranks import together
from waiting import ended, until

import libckpt
from libckpt import _engine, _exchange, _kvstore, _membership, _service

HEADER = """
    import json, os, signal, sys, time, warnings
    import torch
    import torch.distributed as dist
    import libckpt
    torch.set_num_threads(1)
    store, out = {store!r}, {out!r}
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def tell(**what):
        with open(f"{{out}}/{{rank}}", "a") as file:
            file.write(json.dumps(what) + "\\n")

    def outcome(save):
        try:
            save.wait()
            return None
        except libckpt.CheckpointError as error:
            return type(error).__name__
"""


class Job:
    """Runs a program as the ranks of a job, and reads what they have told."""

    def __init__(self, path: Path) -> None:
        self.store = path / "store"
        self.out = path / "out"
        self.out.mkdir()
        self.file = path / "job.py"
        self.running: list[Forked] = []

    def program(self, body: str) -> str:
        for told in self.out.iterdir():
            told.unlink()
        header = textwrap.dedent(HEADER).format(store=str(self.store), out=str(self.out))
        return header + textwrap.dedent(body)

    def torchrun(self, world: int, body: str) -> None:
        self.file.write_text(self.program(body), encoding="utf-8")
        agent = torchrun("--standalone", "--nproc-per-node", world, self.file)
        _, err = ended(agent)
        assert agent.returncode == 0, err

    def start(self, world: int, port: int, body: str, stdin: int | None = None) -> None:
        """Without anybody who ends all ranks when one of them has ended."""
        program = self.program(body).replace("TIMEOUT", str(TIMEOUT))
        for rank in range(world):
            environment = {
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            streams = stdin, 1, None
            self.running.append(Forked(program, environment=environment, streams=streams))

    def wait(self) -> list[str]:
        """What the ranks have written to stderr; those that were not killed have ended well."""
        said = [ended(process)[1] for process in self.running]
        for process, text in zip(self.running, said, strict=True):
            assert process.returncode in (0, -9), text
        return said

    def told(self, rank: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / str(rank)).read_text().splitlines()]

    def steps(self) -> list[tuple[int, int]]:
        return [(info.step, info.world) for info in libckpt.list_steps(self.store)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def keys() -> dist.TCPStore:
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


SAVE_FOUR = """
    mine = libckpt.PerRank(torch.arange(1000.0) + rank)
    state = {"mine": mine, "common": torch.ones(8, 8)}
    with libckpt.Checkpointer(store, state, keep_last=3) as ckpt:
        for step in range(1, 5):
            tell(step=step, error=outcome(ckpt.save(step)))
    # As with a torch that has no second connections to give.
    from libckpt import _exchange
    _exchange.connect = lambda store: None
    with libckpt.Checkpointer(store + "-files", state) as ckpt:
        tell(error=outcome(ckpt.save(1)))
"""


def test_torchrun_commits_the_same_steps_on_all_ranks(job: Job) -> None:
    job.torchrun(4, SAVE_FOUR)
    for rank in range(4):
        *served, by_files = job.told(rank)
        assert served == [{"step": step, "error": None} for step in range(1, 5)]
        assert by_files == {"error": None}
    assert job.steps() == [(4, 4), (3, 4), (2, 4)]
    # What they told each other went another way.
    assert not (job.store / "exchange").exists()
    assert (job.store.with_name("store-files") / "exchange").is_dir()
    for rank in range(4):
        (loaded,) = libckpt.load(job.store, names=[f"rank-{rank:05d}/mine/value"]).values()
        assert torch.equal(loaded, torch.arange(1000.0) + rank)


RESUME = """
    state = {"w": torch.zeros(100)}
    with libckpt.Checkpointer(store, state, save_timeout=3600) as ckpt:
        first = ckpt.resume()
        tell(resumed=first, w=float(state["w"][0]))
        state["w"].fill_(first + 1)
        tell(error=outcome(ckpt.save(first + 1)))
"""


#: seconds: enough for a save of a few bytes, and a wait when one cannot come about
TIMEOUT = 12.0

DIE = """
    state = {"w": torch.ones(100)}
    ckpt = libckpt.Checkpointer(store, state, save_timeout=TIMEOUT)
    tell(error=outcome(ckpt.save(1)))
    dist.barrier()
    if rank == DEAD:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(error=outcome(ckpt.save(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt.close()
    tell(closed=True)
    os._exit(0)
"""


@pytest.mark.waits
@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_is_killed_ends_the_step_for_all(
    job: Job, keys: dist.TCPStore, dead: int
) -> None:
    job.start(2, keys.port, DIE.replace("DEAD", str(dead)))
    job.wait()
    assert job.told(dead) == [{"error": None}]
    first, second, end = job.told(1 - dead)
    assert first == {"error": None}
    assert second["error"] in ("AbortedError", "DeadlineError")
    assert end == {"closed": True}
    assert job.steps() == [(1, 2)]
    if dead == 0:
        job.torchrun(2, RESUME)
        for rank in range(2):
            assert job.told(rank) == [{"resumed": 1, "w": 1.0}, {"error": None}]
        assert job.steps() == [(2, 2), (1, 2)]


LOSE = """
    import logging
    logging.basicConfig(level=logging.WARNING, format="LOG %(message)s")
    state = {"w": torch.ones(100)}
    ckpt = libckpt.Checkpointer(store, state, save_timeout=TIMEOUT)
    tell(error=outcome(ckpt.save(1)))
    sys.stdin.readline()
    tell(error=outcome(ckpt.save(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt.close()
    tell(closed=True)
    os._exit(0)
"""
SERVER = """
import signal
import torch.distributed as dist
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
signal.pause()
"""


@pytest.mark.waits
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_store_of_keys_that_dies_ends_the_save_and_nothing_else(
    job: Job, how: signal.Signals
) -> None:
    server = Forked(SERVER)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    read, write = os.pipe()
    job.start(2, port, LOSE, read)
    os.close(read)
    until(lambda: all((job.out / str(rank)).exists() for rank in range(2)))
    server.send_signal(how)
    if how == signal.SIGKILL:
        server.wait()
    os.write(write, b"\n\n")
    os.close(write)
    said = job.wait()
    server.kill()
    server.communicate()
    for rank in range(2):
        first, second, end = job.told(rank)
        assert first == {"error": None}
        assert second["error"] in ("AbortedError", "DeadlineError")
        assert end == {"closed": True}
        # One that hangs holds the thread that serves, so nothing is said of it but by the engine.
        dead = "key-value store does not answer"
        assert said[rank].count(dead) == (how == signal.SIGKILL)
    assert job.steps() == [(1, 2)]


# How the ranks meet, without processes.

#: seconds: nobody waits for so long
PATIENT = 3600.0


class Rendezvous:
    """Some ranks in threads, each with a connection of its own."""

    def __init__(self, keys: dist.TCPStore, world: int) -> None:
        self.keys = keys
        self.world = world
        self.sessions: dict[int, Any] = {}

    def table(self) -> _kvstore.Table:
        table = _kvstore.connect(self.keys)
        assert table is not None
        return table

    def meet(self, ranks: range, timeout: float = PATIENT) -> dict[int, Any]:
        self.sessions = {}
        threads = [threading.Thread(target=self._one, args=(rank, timeout)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.sessions

    def _one(self, rank: int, timeout: float) -> None:
        group = _kvstore.Group(rank, self.world, self.keys)
        try:
            way = _exchange._Way(group, "a/0", "/p", timeout)
            way.connect()
            self.sessions[rank] = way.agree()[0]
        except libckpt.CheckpointError as error:
            self.sessions[rank] = error


def test_the_ranks_agree_on_one_session_whatever_was_left_there(keys: dist.TCPStore) -> None:
    meeting = Rendezvous(keys, 3)
    old = b"0123456789abcdef"
    for rank in range(3):
        for what in ("hello", "answer", "ack"):
            keys.set(f"a/0/{what}/{rank}", old + old)
    seen = set()
    for _ in range(3):
        sessions = meeting.meet(range(3))
        assert len(set(sessions.values())) == 1
        assert len(sessions[0]) == 16
        seen.add(sessions[0])
    assert len(seen) == 3
    assert old.decode() not in seen
    # Nothing stays of those that met.
    assert not any(keys.check([f"a/0/{what}/1"]) for what in ("hello", "answer", "ack"))


def test_a_rank_that_does_not_come_is_named(keys: dist.TCPStore) -> None:
    sessions = Rendezvous(keys, 3).meet(range(2), timeout=0.3)
    assert isinstance(sessions[0], libckpt.WaitTimeoutError)
    assert "for rank 2" in str(sessions[0])
    assert isinstance(sessions[1], libckpt.WaitTimeoutError)
    assert "rank 1 has waited" in str(sessions[1])


class Comer:
    """One rank, which looks for the others where it has come to, as often as it is to."""

    def __init__(self, keys: dist.TCPStore, rank: int, world: int) -> None:
        self._group = _kvstore.Group(rank, world, keys)
        self._next = 0
        self._thread: threading.Thread | None = None
        self.way: Any = None
        self.found: Any = None

    def come(self, timeout: float) -> Comer:
        self.way = _exchange._Way(self._group, f"a/{self._next}", "/p", timeout)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.way.connect()
            self.found = self.way.agree()[0]
        except libckpt.CheckpointError as error:
            self.way.tell(error)
            self.found = error

    def end(self) -> Any:
        """What it has found: a session, or an error."""
        assert self._thread is not None
        self._thread.join()
        self._next = int(self.way._prefix.rpartition("/")[2]) + 1
        return self.found


def come_together(ranks: list[Comer]) -> None:
    """They meet, and have not waited for anything."""
    for rank in ranks:
        rank.come(PATIENT)
    sessions = {rank.end() for rank in ranks}
    assert len(sessions) == 1
    assert isinstance(sessions.pop(), str)


@pytest.mark.slices(4)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("times", [(1, 1), (3, 1), (1, 3), (0, 2)])
def test_ranks_that_have_waited_in_vain_meet_when_they_come_together(
    keys: dist.TCPStore, first: int, times: tuple[int, int]
) -> None:
    """None has been there when the other was, and one perhaps more often than the other."""
    ranks = [Comer(keys, rank, 2) for rank in range(2)]
    for rank, count in zip((ranks[first], ranks[1 - first]), times, strict=True):
        for _ in range(count):
            assert isinstance(rank.come(0.1).end(), libckpt.WaitTimeoutError)
    for _ in range(2):
        come_together(ranks)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_rank_that_gives_up_while_another_waits(keys: dist.TCPStore, first: int) -> None:
    """The third one comes when the first has gone, and the second still waits."""
    ranks = [Comer(keys, rank, 3) for rank in range(3)]
    second, third = (ranks[(first + more) % 3] for more in (1, 2))
    second.come(1.5)
    assert isinstance(ranks[first].come(0.1).end(), libckpt.WaitTimeoutError)
    third.come(0.5)
    for rank in (second, third):
        assert isinstance(rank.end(), libckpt.WaitTimeoutError)
    come_together(ranks)


@pytest.mark.parametrize("patient", [0, 1])
def test_who_waits_longer_is_met_by_who_comes_again(keys: dist.TCPStore, patient: int) -> None:
    ranks = [Comer(keys, rank, 2) for rank in range(2)]
    table = Rendezvous(keys, 2).table()
    table.write("a/0/over", b"1")
    ranks[patient].come(PATIENT)
    if patient:
        until(lambda: table.read("a/1/hello/1") is not None)
    table.write("a/1/over", b"1")
    assert isinstance(ranks[1 - patient].come(PATIENT).end(), str)
    assert ranks[patient].end() == ranks[1 - patient].found
    assert [rank.way._prefix for rank in ranks] == ["a/2", "a/2"]


def test_a_rank_that_has_gone_when_it_is_answered(keys: dist.TCPStore) -> None:
    """Rank 0 takes its hello for that of a rank that waits; those who were told are told that."""
    leader, gone, other = (Comer(keys, rank, 3) for rank in range(3))
    keys.set("a/0/hello/1", b"gone")
    leader.come(PATIENT)
    assert isinstance(other.come(PATIENT).end(), str)
    keys.set("a/0/over", b"1")
    assert "another rank has waited for the others" in str(leader.end())
    with pytest.raises(libckpt.CheckpointError, match=r"rank 0 could not open /p: .*another rank"):
        other.way.opening(other.found).agree()
    come_together([leader, gone, other])


def open_apart(place: Path) -> tuple[list[str], str]:
    """Each rank has waited for the other in vain; then they open a store, and one will not."""
    rank, state, said = dist.get_rank(), {"w": torch.ones(3)}, []
    for who in (1, 0, 0):
        if rank == who:
            with pytest.raises(libckpt.WaitTimeoutError) as late:
                libckpt.Checkpointer(place / "s", state, save_timeout=0.5)
            said.append(str(late.value))
        dist.barrier()
    with libckpt.Checkpointer(place / "s", state, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
    with pytest.raises((ValueError, libckpt.CheckpointError)) as caught:
        libckpt.Checkpointer(place / "s" if rank else "", state, save_timeout=PATIENT)
    with libckpt.Checkpointer(place / "s", state, pool_bytes=1 << 20, new_start=True) as ckpt:
        ckpt.save(1).wait()
    return said, str(caught.value)


def test_a_store_that_each_rank_has_opened_alone(tmp_path: Path) -> None:
    """They open it together then, and hear of each other's errors, wherever those are said."""
    for rank, (late, said) in enumerate(together(2, tmp_path, open_apart, tmp_path)):
        assert len(late) == (2, 1)[rank]
        assert rank == 0 or "rank 0 could not open" in said


def test_a_table_never_waits_for_a_key(keys: dist.TCPStore) -> None:
    table = Rendezvous(keys, 2).table()
    value = b"\xff\0\x01" * 1000
    assert table.get(["x"]) == [None]
    assert table.put("x", value)
    assert table.put("x", value)
    assert not table.put("x", b"another")
    assert table.get(["x"]) == [value]
    assert table.get(["x", "y"]) == [value, None]
    assert table.put("y", b"")
    table.put("z", b"2")
    assert table.get(["x", "z"]) == [value, b"2"]
    table.drop("x")
    table.drop("x")
    assert table.get(["x", "z"]) == [None, b"2"]


class Broken(_kvstore.Table):
    """A table whose connection has broken."""

    def __init__(self, keys: dist.TCPStore) -> None:
        super().__init__(keys)
        self.tries = 0

    def get(self, keys: list[str]) -> list[bytes | None]:
        raise RuntimeError("Broken pipe\nframes")

    def again(self) -> _kvstore.Table | None:
        self.tries += 1
        if self.tries == 1:
            raise libckpt.NetworkError("refused")
        return _kvstore.Table(self._store)


def test_a_connection_that_broke_is_made_anew(
    keys: dist.TCPStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="libckpt")
    monkeypatch.setattr(_service, "_RECONNECT", 0.0)
    broken = Broken(keys)
    link = _service._Link(broken, "/p")
    request = _engine.new_struct("ckpt_exchange_request")
    request.verb = lib.CKPT_EXCHANGE_GET
    request.count = 1
    name = ffi.new("char[]", b"s/k")
    names = ffi.new("char *[]", [name])
    request.keys = names
    keys.set("libckpt/s/k", b"value")
    assert link.do(request) == (lib.CKPT_ENETWORK, "Broken pipe", [])
    assert link.do(request) == (lib.CKPT_ENETWORK, "refused", [])
    assert link.do(request) == (0, "", [b"value"])
    assert link.do(request) == (0, "", [b"value"])
    assert broken.tries == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_value_that_is_too_large_is_none_of_ours(
    keys: dist.TCPStore, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    reply = _service._reply

    def listen(ptr: Any, request: Any, result: int, reason: str, values: Any) -> int:
        reasons.append(reason)
        return reply(ptr, request, result, reason, values)

    # Which of its tries is the last one, and answered or not, is not known.
    monkeypatch.setattr(_service, "_reply", listen)
    table = Rendezvous(keys, 2).table()
    keys.set("libckpt/s1/claim-1", b"x" * ((1 << 20) + 1))
    ranks = _membership.Membership(1, 2, "s1", _service.Service(table, "/p"))
    engine = _engine.Engine(
        str(store), _engine.Options(save_timeout=1.0), log_thread=False, ranks=ranks
    )
    try:
        with pytest.raises(libckpt.CheckpointError, match="do not reach each other"):
            _engine.check(lib.ckpt_engine_claim(engine.guard(), ffi.NULL))
        assert "the job's key-value store has foreign values" in reasons
    finally:
        engine.close()
    # A service ends with an engine that could not be opened.
    bad = _service.Service(table, "/p")
    with pytest.raises(libckpt.CheckpointError):
        _engine.Engine(
            str(store / "no" / "such"),
            _engine.Options(),
            log_thread=False,
            ranks=_membership.Membership(0, 2, "s3", bad),
        )
    assert bad.ptr is None


def test_a_service_without_a_thread_is_freed(
    keys: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    freed: list[Any] = []
    unraised: list[Any] = []
    calls = {name: getattr(lib, name) for name in dir(lib) if name.startswith("ckpt_exchange_")}
    calls["ckpt_exchange_server_free"] = freed.append
    table = Rendezvous(keys, 2).table()
    monkeypatch.setattr(_service.Helper, "start", refuse)
    monkeypatch.setattr(_service, "lib", SimpleNamespace(**calls))
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    with pytest.raises(RuntimeError, match="start new thread"):
        _service.Service(table, "/p")
    gc.collect()
    assert (len(freed), unraised) == (1, [])


class Old:
    """A store as an older torch has it: it cannot be cloned."""

    def __init__(self, store: Any, *names: str) -> None:
        for name in names:
            setattr(self, name, getattr(store, name))


def test_what_a_torch_lacks_is_found_out(keys: dist.TCPStore) -> None:
    calls = ("compare_set", "set", "check", "multi_get", "has_extended_api", "delete_key")
    inner = Old(keys, "host", "port")
    wrapped = Old(keys, *calls)
    wrapped.underlying_store = inner  # type: ignore[attr-defined]
    table = _kvstore.connect(wrapped)
    assert table is not None
    assert table.put("k", b"v")
    assert Rendezvous(keys, 2).table().read("k") == b"v"
    # No way to a second connection, or no compare_set().
    assert _kvstore.connect(Old(keys, *calls)) is None

    class Poor:
        def clone(self) -> Any:
            return Old(keys, "set", "set_timeout")

    assert _kvstore.connect(Poor()) is None
    gone = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore(
        "localhost",
        gone.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=1),
    )
    del gone
    with pytest.raises(libckpt.NetworkError, match="cannot be reached"):
        _kvstore.connect(client)


def test_connecting_outlasts_a_lost_answer_of_a_name_server(keys: dist.TCPStore) -> None:
    """The timeout of a connection covers the name lookup, in which one lost answer takes 5 s."""
    older = Old(keys, "host", "port")
    table = _kvstore.connect(keys)
    assert table is not None
    again = table.again()
    assert again is not None
    for one in (_kvstore.second(older), again._store, _kvstore.second(again._store)):
        assert one.timeout >= timedelta(seconds=20)


def test_alone_where_there_is_no_group(store: Path) -> None:
    with pytest.raises(ValueError, match="no default process group"):
        libckpt.Checkpointer(store, {"w": torch.ones(3)}, distributed=True)
    with libckpt.Checkpointer(store, {"w": torch.ones(3)}, distributed=False) as ckpt:
        ckpt.save(1).wait()
    assert libckpt.list_steps(store)[0].world == 1
