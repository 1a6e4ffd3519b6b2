# SPDX-License-Identifier: Apache-2.0
"""Starts of a job that come to nothing: a rank fails or is interrupted before its engine runs."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import own_threads
from libckpt._waiting import aside as _engine_aside
from node_rig import TWO, on_node, rank_of
from ranks import together
from sample import some
from waiting import finished, until

import libckpt
from libckpt import (
    _barrier,
    _calls,
    _catalog,
    _checkpointer,
    _core,
    _engine,
    _exchange,
    _kvstore,
    _log,
    _membership,
    _options,
    _service,
    _waiting,
)

#: seconds: nobody waits for so long
PATIENT = 3600.0

# Ctrl-C, and ranks that fail.


class Gone(Exception):
    """What a rank dies of."""


def open_alone(place: Path) -> None:
    """Rank 1 dies when it has told where its store is; Ctrl-C comes on rank 0 then."""
    store, gone, rank = on_node(place, "ab"), place / "gone", rank_of()

    def die(*_: object) -> Any:
        gone.touch()
        raise Gone

    def aside(*given: Any) -> Any:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return _engine_aside(*given)

    _engine.aside = die if rank else aside
    _exchange.Opening.fail = lambda *_: None  # type: ignore[method-assign] - as if it were killed
    with pytest.raises((Gone, KeyboardInterrupt)) as caught:
        libckpt.Checkpointer(store, {"w": torch.ones(3)}, node_store=True, save_timeout=PATIENT)
    assert caught.type is (Gone if rank else KeyboardInterrupt)


def test_ctrl_c_reaches_a_rank_whose_store_waits_for_anothers(tmp_path: Path) -> None:
    together(2, tmp_path, open_alone, tmp_path)


# A rank that does not come so far.


def open_with_one_gone(place: Path, who: int, how: str) -> tuple[str, str]:
    """One rank fails before its engine runs; what each raises."""
    store, rank = on_node(place, TWO), rank_of()
    options: dict[str, Any] = {"node_store": True, "pool_bytes": 1 << 20, "save_timeout": PATIENT}
    whole = options.copy()
    kept = _engine.aside, _exchange.place_of, _exchange.Service

    def die(*_: object) -> Any:
        raise Gone(f"rank {rank} has had enough")

    if rank == who and how == "argument":
        options["every"] = -7
    elif rank == who:
        setattr(
            *{
                "engine": (_engine, "aside", die),
                "place": (_exchange, "place_of", die),
                "service": (_exchange, "Service", die),
            }[how]
        )
    dist.barrier()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - it is looked at below
        libckpt.Checkpointer(store, {"w": torch.ones(3)}, **options)
    _engine.aside, _exchange.place_of, _exchange.Service = kept
    dist.barrier()
    if how in ("argument", "place"):  # no store was touched: all of them try again
        with libckpt.Checkpointer(store, {"w": torch.ones(3)}, **whole) as ckpt:
            ckpt.save(1).wait()
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.slices(6)
@pytest.mark.parametrize("who", [0, 1, 3])
@pytest.mark.parametrize(
    ("how", "kind", "why"),
    [
        ("argument", "ValueError", "every=-7"),
        ("place", "Gone", "has had enough"),
        ("service", "Gone", "has had enough"),
        ("engine", "Gone", "has had enough"),
    ],
)
def test_a_rank_that_fails_before_its_engine_runs_tells_the_others(
    tmp_path: Path, who: int, how: str, kind: str, why: str
) -> None:
    found = together(4, tmp_path, open_with_one_gone, tmp_path, who, how)
    for rank, (name, said) in enumerate(found):
        assert why in said
        if rank != who:
            assert f"rank {who}" in said, said
            assert issubclass(getattr(libckpt, name), libckpt.CheckpointError)
            assert f"{kind}: " in said
        else:
            assert name == kind


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_with_a_bad_argument_tells_those_of_one_store(tmp_path: Path, who: int) -> None:
    for rank, said in enumerate(together(2, tmp_path, open_badly, tmp_path, who)):
        assert "keep_last=0" in said
        assert rank == who or f"rank {who} could not open" in said


def open_badly(place: Path, who: int) -> str:
    state, keep = {"w": torch.ones(3)}, 0 if rank_of() == who else 1
    with pytest.raises((ValueError, libckpt.CheckpointError)) as caught:
        libckpt.Checkpointer(place / "s", state, keep_last=keep, save_timeout=PATIENT)
    with libckpt.Checkpointer(place / "s", state, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
    return str(caught.value)


WRONG: dict[str, Any] = {"empty": "", "bytes": b"store", "none": None, "remote": "s3://bucket/run"}


@pytest.mark.slices(4)
@pytest.mark.parametrize("how", WRONG)
def test_a_rank_whose_path_is_none_tells_the_others(tmp_path: Path, how: str) -> None:
    for rank, said in enumerate(together(2, tmp_path, open_nowhere, tmp_path, how)):
        assert rank == 1 or "rank 1 could not open" in said


def open_nowhere(place: Path, how: str) -> str:
    """It opens the same store as the others afterwards, as often as they do."""
    state = {"w": torch.ones(3)}
    with libckpt.Checkpointer(place / "a", state, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
    with pytest.raises((TypeError, ValueError, libckpt.CheckpointError)) as caught:
        libckpt.Checkpointer(WRONG[how] if rank_of() else place / "b", state, save_timeout=PATIENT)
    for name in "bab":
        with libckpt.Checkpointer(
            place / name, state, pool_bytes=1 << 20, new_start=True, save_timeout=PATIENT
        ) as ckpt:
            ckpt.save(1).wait()
    return str(caught.value)


class Torn(_kvstore.Table):
    """A connection that breaks when it is to be used for something."""

    breaks = ""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._broken = False

    def _use(self, key: str) -> None:
        self._broken = self._broken or self.breaks in key
        if self._broken:
            raise RuntimeError("Broken pipe")

    def read(self, key: str) -> bytes | None:
        self._use(key)
        return super().read(key)

    def put(self, key: str, value: bytes) -> bool:
        self._use(key)
        return super().put(key, value)

    def write(self, key: str, value: bytes) -> None:
        self._use(key)
        super().write(key, value)


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def open_cut_off(place: Path, who: int, how: str, nodes: bool) -> tuple[str, str]:
    """One rank's connection fails or it is interrupted; what each raises."""
    store, rank = on_node(place, "ab") if nodes else place / "shared", rank_of()

    def connect(keys: Any) -> Any:
        if how == "connect":
            raise libckpt.NetworkError("nobody there")
        return Torn(_kvstore.second(keys))

    if rank == who:
        Torn.breaks = {
            "connect": "?",
            "meet": "/answer/" if rank else "/hello/",
            "share": "/peers/",
            "agree": "/open/",
            "ctrl-c": "?",
        }[how]
        if how == "ctrl-c":
            _exchange.Service = interrupt  # type: ignore[misc,assignment]
        else:
            _exchange.connect = connect
    dist.barrier()
    options: dict[str, Any] = {"pool_bytes": 1 << 20, "save_timeout": PATIENT}
    with pytest.raises((libckpt.CheckpointError, KeyboardInterrupt)) as caught:
        libckpt.Checkpointer(store, {"w": torch.ones(3)}, node_store=nodes, **options)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.slices(5)
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize(
    ("how", "nodes"),
    [
        ("connect", False),
        ("meet", False),
        ("share", True),
        ("agree", False),
        ("ctrl-c", False),
    ],
)
def test_a_rank_that_is_cut_off_or_interrupted_is_waited_for_by_nobody(
    tmp_path: Path, who: int, how: str, nodes: bool
) -> None:
    found = together(2, tmp_path, open_cut_off, tmp_path, who, how, nodes)
    assert found[who][0] == ("KeyboardInterrupt" if how == "ctrl-c" else "NetworkError")
    name, said = found[1 - who]
    assert f"rank {who} could not open" in said, found
    assert issubclass(getattr(libckpt, name), libckpt.CheckpointError)


def hear_one_that_has_lost_its_connection(place: Path) -> str:
    """Rank 1 could open the store and does not hear the rest; rank 2 comes after that."""
    rank, open_engine = rank_of(), _exchange.Engine

    def late(*given: Any, **options: Any) -> Any:
        dist.recv(torch.zeros(1), 1)
        return open_engine(*given, **options)

    if rank == 1:
        Torn.breaks = "/opened"
        _exchange.connect = lambda keys: Torn(_kvstore.second(keys))  # type: ignore[assignment]
    if rank == 2:
        _exchange.Engine = late  # type: ignore[misc,assignment]
    with pytest.raises(libckpt.NetworkError) as caught:
        libckpt.Checkpointer(place / "shared", {"w": torch.ones(3)}, save_timeout=PATIENT)
    if rank == 1:
        dist.send(torch.zeros(1), 2)
    return str(caught.value)


def test_a_rank_that_does_not_hear_how_it_went_tells_the_others(tmp_path: Path) -> None:
    found = together(3, tmp_path, hear_one_that_has_lost_its_connection, tmp_path)
    for rank, said in enumerate(found):
        assert rank == 1 or "rank 1 could not open" in said


class Interrupting(_kvstore.Table):
    """Ctrl-C comes when a rank has taken the session, or rank 0 has told it to the first one."""

    def write(self, key: str, value: bytes) -> None:
        super().write(key, value)
        if "/ack/" in key or "/answer/" in key:
            raise KeyboardInterrupt


def open_interrupted(place: Path, who: int) -> str:
    if rank_of() == who:
        _exchange.connect = lambda keys: Interrupting(_kvstore.second(keys))
    with pytest.raises((libckpt.CheckpointError, KeyboardInterrupt)) as caught:
        libckpt.Checkpointer(place / "shared", {"w": torch.ones(3)}, save_timeout=PATIENT)
    return str(caught.value)


@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c_in_the_meeting_reaches_those_who_have_left_it(tmp_path: Path, who: int) -> None:
    for rank, said in enumerate(together(3, tmp_path, open_interrupted, tmp_path, who)):
        assert rank == who or f"rank {who} could not open" in said


class Kept:
    """A store of keys in which there is one."""

    text: bytes | None = None

    def write(self, _key: str, text: bytes) -> None:
        self.text = text

    def read(self, _key: str) -> bytes | None:
        return self.text


def test_what_an_earlier_start_has_said_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = Kept()
    group = _kvstore.Group(3, 4, None)

    def look(began: float = 0.0) -> Any:
        """What a rank does that comes now, and whose process was started then."""
        monkeypatch.setattr(_exchange, "_began", lambda: began)
        way = _exchange._Way(group, "p", "s", 600)
        way._table = table
        way._heed()
        return way

    earlier = look(), look(time.time() + 10)
    _exchange._tell_refusal(group, table, "p", ValueError("no"))
    now = time.time()
    for began in (0.0, now - 1000):  # however long ago it was said
        with pytest.raises(libckpt.CheckpointError, match="rank 3 could not open s: ValueError"):
            look(began)
    # Whoever has waited for it hears it, whatever the clocks say.
    for way in earlier:
        with pytest.raises(libckpt.CheckpointError, match="rank 3 could not open s: ValueError"):
            way._heed()
    # A process that was started after it is of another start, though no launcher says so.
    late = look(now + 1)
    _exchange._tell_refusal(group, table, "p", ValueError("again"))
    with pytest.raises(libckpt.CheckpointError, match="again"):
        late._heed()
    monkeypatch.setattr(time, "time", lambda: now - 700)
    look()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    look()


@pytest.mark.parametrize("launcher", ["TORCHELASTIC_RUN_ID", "SLURM_RESTART_COUNT"])
def test_a_launcher_that_numbers_its_starts_is_believed(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """The clock of the host that has said it may be behind: it began later, by its own."""
    group = _kvstore.Group(3, 4, None)
    way = _exchange._Way(group, "p", "s", 600)
    way._table = table = Kept()  # type: ignore[assignment]
    now = time.time()
    monkeypatch.setattr(_exchange, "_began", lambda: now + 20)
    monkeypatch.setattr(time, "time", lambda: now)
    _exchange._tell_refusal(group, table, "p", ValueError("no"))  # type: ignore[arg-type]
    way._heed()  # no launcher: it is of another start
    monkeypatch.setenv(launcher, "7")
    for behind in (-500, 20, 500):
        monkeypatch.setattr(time, "time", lambda behind=behind: now - behind)
        _exchange._tell_refusal(group, table, "p", ValueError("no"))  # type: ignore[arg-type]
        way._found.clear()
        monkeypatch.setattr(time, "time", lambda: now)
        with pytest.raises(libckpt.CheckpointError, match="rank 3 could not open s: ValueError"):
            way._heed()
    # What is there for longer than anybody waits is of nobody who is still there.
    monkeypatch.setattr(time, "time", lambda: now + 1200)
    way._found.clear()
    way._heed()


def test_when_a_process_began() -> None:
    program = "import time; from libckpt import _exchange; print(time.time() - _exchange._began())"
    begun = time.time()
    done = finished([sys.executable, "-c", program])
    assert 0 < float(done.stdout) < time.time() - begun + 0.1


def start_once(place: Path, port: int, who: int | None) -> str:
    """A start of a job whose store of keys is that of the starts before it; one rank refuses it."""
    rank = rank_of()
    keys = dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False)
    _exchange.find_group = lambda _: _kvstore.Group(rank, 2, keys)  # type: ignore[assignment]
    keep = 0 if rank == who else 1
    try:
        with libckpt.Checkpointer(
            place / "s", {"w": torch.ones(3)}, keep_last=keep, new_start=True, pool_bytes=1 << 20
        ) as ckpt:
            ckpt.save(1).wait()
    except (ValueError, libckpt.CheckpointError) as error:
        return str(error)
    return ""


def test_a_start_by_hand_after_one_that_was_refused(tmp_path: Path) -> None:
    """Nothing tells the two apart but the processes."""
    keys = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for who in (1, None, 0, None):
        for said in together(2, tmp_path, start_once, tmp_path, keys.port, who):
            assert ("keep_last=0" in said) is (who is not None), said


@pytest.mark.parametrize("when", ["before", "in", "behind"])
def test_what_comes_after_ctrl_c_is_undone(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It comes before the call has begun, while it runs, and when it has just come to its end."""
    called, told, undone = threading.Event(), threading.Event(), threading.Event()
    values: list[int | None] = []

    def call() -> int:
        called.set()
        if when != "behind":
            until(told.is_set)
        return 7

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if when != "before":
                super().start()
                until(called.is_set)
            if when == "behind":
                self.join()
            raise KeyboardInterrupt

    def undo(value: int | None) -> None:
        values.append(value)
        undone.set()

    monkeypatch.setattr(_engine.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        _engine.aside(call, undo)
    assert undone.is_set() is (when != "in")
    told.set()
    until(undone.is_set)
    assert values == [None if when == "before" else 7]
    assert called.is_set() is (when != "before")


@pytest.mark.parametrize("ends", [False, True])
def test_what_others_say_ends_a_call_that_does_not_end_by_itself(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    looked, told, undone = threading.Event(), threading.Event(), threading.Event()
    kept: list[int] = []
    monkeypatch.setattr(_waiting, "_LOOK", 0.01)
    monkeypatch.setattr(_waiting, "_LEAVE", PATIENT if ends else 0.1)

    def call() -> int:
        until((looked if ends else told).is_set)
        return 7

    def look() -> Gone:
        looked.set()
        return Gone("said")

    def undo(_: int | None) -> None:
        undone.set()

    if ends:
        assert _engine.aside(call, undo, kept.append, look) == 7
        assert kept == [7]
        assert not undone.is_set()
        return
    with pytest.raises(Gone, match="said"):
        _engine.aside(call, undo, kept.append, look)
    assert not undone.is_set()
    told.set()
    until(undone.is_set)
    assert kept == []


# Between the opening of an engine and its checkpointer no interrupt gets lost, and no engine.


class Interrupter:
    """Raises KeyboardInterrupt before the so manieth step of what is watched, once it has begun."""

    def __init__(self, files: set[str], begins: Any, number: int) -> None:
        self._files, self._begins, self._left = files, begins, number
        self.fired = False

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: Any, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.fired and self._begins():
            self._left -= 1
            if self._left < 0:
                self.fired = True
                raise KeyboardInterrupt
        return self._trace


FILES = {
    module.__file__
    for module in (
        *(_checkpointer, _core, _engine, _calls, _catalog, _log, _options, _waiting),
        *(_exchange, _membership, _barrier, _service, _kvstore),
    )
}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the library has opened an engine."""
    event = threading.Event()
    real = _engine.lib.ckpt_engine_open

    class Lib:
        def __getattr__(self, name: str) -> Any:
            return getattr(_kvstore.lib, name)

        def ckpt_engine_open(self, *given: Any) -> int:
            code: int = real(*given)
            event.set()
            return code

    monkeypatch.setattr(_engine, "lib", Lib())
    return event


@pytest.mark.parametrize("nodes", [False, True])
def test_ctrl_c_leaves_no_engine_open(
    store: Path, begun: threading.Event, nodes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one rank of a job whose nodes have stores: its engine is opened by another thread."""
    if nodes:
        ranks = _membership.Membership(0, 1, "", None)
        monkeypatch.setattr(_exchange, "join", lambda *_, **__: ranks)
    # Those of tests before this one may end meanwhile.
    kept = Counter(own_threads())
    for number in some(range(10_000), 7):
        begun.clear()
        watched = Interrupter(FILES, begun.is_set, number)
        ckpt: Any = None
        try:
            with watched:
                ckpt = libckpt.Checkpointer(
                    store, {"w": torch.ones(2)}, pool_bytes=1 << 20, node_store=nodes
                )
        except KeyboardInterrupt:
            assert watched.fired
        if ckpt is not None:
            ckpt.close()
        until(lambda: not Counter(own_threads()) - kept, f"the threads to end, at {number}")
        if not watched.fired:
            break
    assert 100 < number < 9_990
    assert not nodes or begun.is_set()
