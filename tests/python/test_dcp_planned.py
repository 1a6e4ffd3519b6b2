# SPDX-License-Identifier: Apache-2.0
"""With stores on every node: what ranks of other nodes have planned, and when it travels."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from libckpt._barrier import Opening
from libckpt._kvstore import Group
from libckpt._options import Options
from libckpt.dcp import (
    StorageReader,
    StorageWriter,
    _dedup,
    _engine_cache,
    _planned,
    _rendezvous,
    close,
)
from node_rig import TWO, on_node
from ranks import together
from torch.distributed.checkpoint import SavePlan
from waiting import until

import libckpt

#: of all steps of save_changing()
NAMES = ("all", "early-a", "early-b", "late-a", "late-b")


def state_at(step: int, nodes: str) -> dict[str, Any]:
    """Node b has another tensor from step 3 on, and no longer the one that it had."""
    node = nodes[dist.get_rank()]
    kind = "late" if node == "b" and step >= 3 else "early"
    return {"all": torch.full((4,), float(step)), f"{kind}-{node}": torch.ones(8)}


def listed(store: Path, step: int) -> list[str]:
    """The names that are answered to, wherever the data is."""
    found = StorageReader(store, step, resume=False).read_metadata().state_dict_metadata
    return [name for name in NAMES if name in found]


class Watch:
    """What this rank writes into the job's key-value store from now on."""

    def __init__(self) -> None:
        (found,) = _engine_cache._holds.values()
        assert found.sharing is not None
        self.meeting = found.sharing
        self.table = table = self.meeting._table
        self.written: list[str] = []
        write = table.write

        def note(key: str, value: bytes) -> None:
            self.written.append(key)
            write(key, value)

        table.write = note  # type: ignore[method-assign]

    def counts(self) -> tuple[int, int]:
        """How often what all have planned was written, and what this rank holds."""
        own = f"{self.meeting._held_key(dist.get_rank())}/"
        planned, held = (sum(part in key for key in self.written) for part in ("/planned/", own))
        return planned, held


def write(store: Path, step: int, nodes: str, caching: bool) -> None:
    dcp.save(
        state_at(step, nodes),
        checkpoint_id=f"step-{step}",
        storage_writer=StorageWriter(store, pool_bytes=1 << 20, node_store=True),
        planner=dcp.DefaultSavePlanner(enable_plan_caching=caching),
    )


def save_changing(place: Path, nodes: str, caching: bool) -> list[tuple[int, int, int]]:
    """Of each step: what was written of the plans of all, of this rank's own, and what is left."""
    store, rank, counts = on_node(place, nodes), dist.get_rank(), []
    watch: Watch | None = None
    for step in range(1, 7):
        if step == 6:  # a meeting that knows nothing, and a torch that has kept its plans
            close()
        before = (0, 0) if watch is None else watch.counts()
        write(store, step, nodes, caching)
        if step in (1, 6):
            watch = Watch()
            continue
        assert watch is not None
        planned, own = (now - then for now, then in zip(watch.counts(), before, strict=True))
        # Rank 0 alone knows already that the step is committed.
        left = (
            [] if rank else [key for key in watch.written if re.search("/planned/|/held/./", key)]
        )
        counts.append((planned, own, sum(watch.table.read(key) is not None for key in left)))
    return counts


@pytest.mark.parametrize("caching", [False, True])
def test_names_travel_when_they_have_changed(tmp_path: Path, caching: bool) -> None:
    found = together(4, tmp_path, save_changing, tmp_path, TWO, caching)
    # Of steps 2 to 5.
    assert [planned for planned, _, _ in found[0]] == [0, 1, 0, 0]
    for rank, counts in enumerate(found):
        assert rank == 0 or not any(planned for planned, _, _ in counts)
        assert [own for _, own, _ in counts] == ([0, 1, 0, 0] if rank > 1 else [0] * 4)
        assert not any(left for _, _, left in counts)
    for node in "ab":
        store = tmp_path / node / "store"
        for step in (1, 2, 3, 4, 5, 6):
            want = ["all", "early-a", "early-b"] if step < 3 else ["all", "early-a", "late-b"]
            assert listed(store, step) == want, (node, step)


class Keys:
    """A store of keys in memory, as one rank reaches it."""

    def __init__(self, other: Keys | None = None) -> None:
        self.values: dict[str, bytes] = {} if other is None else other.values
        self.calls = 0
        #: called with each key before it is written, and dropped
        self.at_write: Callable[[str], None] = lambda _: None
        self.at_drop: Callable[[str], None] = lambda _: None

    def read(self, key: str) -> bytes | None:
        self.calls += 1
        return self.values.get(key)

    def get(self, keys: list[str]) -> list[bytes | None]:
        return [self.read(key) for key in keys]

    def write(self, key: str, value: bytes) -> None:
        self.calls += 1
        self.at_write(key)
        self.values[key] = value

    def drop(self, key: str) -> None:
        self.at_drop(key)
        self.values.pop(key, None)

    def again(self) -> None:
        """There is no other connection to be had."""

    def put(self, new: dict[str, bytes], old: list[str]) -> None:
        for key, value in new.items():
            self.write(key, value)
        for key in old:
            self.drop(key)


def break_at(part: str) -> Callable[[str], None]:
    def broken(key: str) -> None:
        if part in key:
            raise RuntimeError("connection reset")

    return broken


def test_names_that_no_key_can_hold_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_planned, "_PART", 100)
    keys = Keys()
    first, other, late = (_planned.Planned("p") for _ in range(3))
    names: Any = {os.urandom(8).hex(): ["F32", [n]] for n in range(50)}
    assert other.hear(first.tell(None, keys.put), keys.get) is None
    told = first.tell(names, keys.put)
    assert told is not None
    assert told[1] > 5
    assert max(map(len, keys.values.values())) == 100
    assert other.hear(told, keys.get) == names
    # What has not changed is not looked at again, and once it has gone nobody needs it.
    keys.put({}, first.take())
    assert keys.values == {}
    calls = keys.calls
    assert first.tell(dict(names), keys.put) == told
    assert other.hear(told, keys.get) == names
    assert keys.calls == calls
    with pytest.raises(LookupError):
        late.hear(told, keys.get)
    # Another one takes the place of one that a save has left behind.
    first.tell({"a": None}, keys.put)
    left = set(keys.values)
    assert other.hear(first.tell({"b": None}, keys.put), keys.get) == {"b": None}
    assert left.isdisjoint(keys.values)


@pytest.mark.parametrize("gone", ["the write", "the save"])
def test_names_that_nobody_need_have_heard_are_told_anew(gone: str) -> None:
    keys, first, other = Keys(), _planned.Planned("p"), _planned.Planned("p")
    told = first.tell({"a": None}, keys.put)
    if gone == "the write":
        keys.at_write = break_at("")
        with pytest.raises(RuntimeError):
            first.tell({"b": None}, keys.put)
        keys.at_write = lambda _: None
    else:
        first.forget()
    keys.values.clear()
    again = first.tell({"a": None}, keys.put)
    assert other.hear(again, keys.get) == {"a": None}
    # By another name: what drops the first may come any time.
    assert told is not None
    assert again is not None
    assert told[2] != again[2]


def meet(
    table: Keys, rank: int, world: int = 2, *, patience: float = 5.0
) -> _rendezvous.Rendezvous:
    """Ranks of one node, as one of them sees them."""
    keys: Any = table
    opening = Opening(Group(rank, world, None), keys, "p", "/s", 4.0)
    opening.nodes = ("a",) * world
    return _rendezvous.Rendezvous(opening, "/s", patience, tuple(range(world)))


def exchange(ranks: list[_rendezvous.Rendezvous], step: int, held: bytes) -> None:
    """Rank 1 has `held`, and each hears what the others have."""
    for rank, meeting in enumerate(ranks):
        meeting.say(step, None, None)
        meeting.tell_held(held if rank == 1 else b"same")
    for meeting in ranks:
        assert meeting.hear_held(collective=True) == {0: b"same", 1: held}


def test_what_drops_a_key_late_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys()
    slow, free = Keys(keys), threading.Event()
    late: list[threading.Thread] = []

    def wait(_: str) -> None:
        late.append(threading.current_thread())
        until(free.is_set)

    ranks = [meet(keys, 0), meet(slow, 1)]
    exchange(ranks, 1, b"first")
    slow.at_drop = wait
    with monkeypatch.context() as patched:
        patched.setattr(_rendezvous, "_SLACK", 0.2)
        ranks[1].committed()
    slow.at_drop = lambda _: None
    for meeting in ranks:
        meeting.say(2, None, None)
    ranks[0].tell_held(b"same")
    ranks[1].tell_held(b"first, again")
    free.set()
    late[0].join()
    assert ranks[0].hear_held(collective=True)[1] == b"first, again"
    # What has been said and dropped, and is said again, too.
    for step, held in enumerate([b"first", b"first, again", b"first"], 3):
        exchange(ranks, step, held)
        for meeting in ranks:
            meeting.committed()
    assert not [key for key in keys.values if re.search("/held/./", key)]


def test_what_is_gone_is_not_said_to_be_late() -> None:
    keys = Keys()
    ranks = [meet(keys, 0), meet(keys, 1)]
    for meeting in ranks:
        meeting.say(1, None, None)
        meeting.tell_held(b"x")
    for key in [key for key in keys.values if "/held/1/" in key]:
        del keys.values[key]
    with pytest.raises(libckpt.NetworkError, match="what rank 1 holds is no longer in the job's"):
        ranks[0].hear_held(collective=True)


def test_what_is_said_anew_while_it_is_read_is_read_again() -> None:
    """Without collectives a rank may see what was said for a save that has failed."""
    keys = Keys()
    ranks = [meet(keys, 0), meet(Keys(keys), 1)]
    for meeting in ranks:
        meeting.say(1, None, None)
        meeting.tell_held(b"old")
    get = keys.get

    def and_then(asked: list[str]) -> list[bytes | None]:
        found = get(asked)
        keys.get = get  # type: ignore[method-assign]
        ranks[1].say(1, None, None)
        ranks[1].tell_held(b"new")
        return found

    keys.get = and_then  # type: ignore[method-assign]
    assert ranks[0].hear_held(collective=False)[1] == b"new"


@pytest.mark.parametrize("part", ["/held/1/", "/held/1"])
def test_what_could_not_be_said_is_said_by_the_next_save(part: str) -> None:
    keys = Keys()
    bad = Keys(keys)
    ranks = [meet(keys, 0), meet(bad, 1)]
    exchange(ranks, 1, b"first")
    bad.at_write = break_at(part)
    ranks[1].say(2, None, None)
    with pytest.raises(libckpt.NetworkError, match="connection reset"):
        ranks[1].tell_held(b"other")
    bad.at_write = lambda _: None
    ranks[0] = meet(keys, 0)  # one that has heard nothing yet
    for step in (3, 4):
        exchange(ranks, step, b"first")
        ranks[1].failed()  # and says it by another name, as does everyone after a failure
        ranks[0] = meet(keys, 0)


def tell_and_hear(
    first: _rendezvous.Rendezvous, other: _rendezvous.Rendezvous, step: int, names: Any
) -> Any:
    """What rank 1, the lowest of another node, hears of what rank 0 tells in one save."""
    for meeting in (first, other):
        meeting.say(step, None, None)
    assert first.agree(collective=True, planned=names) is None
    assert other.agree(collective=True) is None
    return other.hear_planned()


def of_two_nodes() -> tuple[_rendezvous.Rendezvous, _rendezvous.Rendezvous, list[Keys]]:
    keys = Keys()
    tables = [keys, Keys(keys)]
    first, other = (meet(table, rank) for rank, table in enumerate(tables))
    first._peers, other._peers = (0,), (1,)
    return first, other, tables


@pytest.mark.parametrize("how", ["no text", "too much", "not written"])
def test_others_go_on_when_rank_0_cannot_tell_what_is_planned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    first, other, (keys, _) = of_two_nodes()
    names: Any = {"a": object() if how == "no text" else None}
    if how == "too much":
        monkeypatch.setattr(_planned, "_MOST", 8)
    if how == "not written":
        keys.at_write = break_at("/planned/")
    assert tell_and_hear(first, other, 1, names) is None
    assert "step 1 of /s: the other nodes are not told" in caplog.text
    monkeypatch.undo()
    keys.at_write = lambda _: None
    assert tell_and_hear(first, other, 2, {"a": None}) == {"a": None}


def test_a_node_that_cannot_read_what_is_planned_is_told_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, other, (keys, *_) = of_two_nodes()

    def lose(_: str) -> None:
        for key in [key for key in keys.values if "/planned/" in key]:
            del keys.values[key]

    keys.at_write = lambda key: lose(key) if key.endswith("/verdict") else None
    assert tell_and_hear(first, other, 1, {"a": None}) is None
    assert "could not be read" in caplog.text
    assert "no longer in the job's key-value store" in caplog.text
    keys.at_write = lambda _: None
    first.committed()
    assert tell_and_hear(first, other, 2, {"a": None}) == {"a": None}
    # Once it is known, it is told no more.
    first.committed()
    keys.at_write = break_at("/planned/")
    assert tell_and_hear(first, other, 3, {"a": None}) == {"a": None}
    assert tell_and_hear(first, other, 4, {"a": None}) == {"a": None}


class Refused:
    """A save that notes what it is refused for."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def refuse(self, error: BaseException) -> None:
        self.errors.append(error)


def agree_alone(meeting: _rendezvous.Rendezvous) -> tuple[list[BaseException], BaseException]:
    """Why a rank refuses a save whose ranks it could not agree with, and what it raises."""
    found: Any = _engine_cache.Hold.__new__(_engine_cache.Hold)
    found._meeting, found._turn, found._attempt = meeting, threading.Condition(), None
    attempt: Any = Refused()
    with pytest.raises(libckpt.CheckpointError) as caught:
        found.agree(attempt, collective=True)
    return attempt.errors, caught.value


@pytest.mark.parametrize("rank", [0, 1])
def test_who_fails_when_others_may_have_gone_on_tells_them(rank: int) -> None:
    first, other, tables = of_two_nodes()
    for meeting in (first, other):
        meeting.say(1, None, None)
    if rank == 0:
        tables[0].at_write = break_at("/verdict")
    else:
        other._patience = 0.1  # rank 0 takes longer to say what comes of it
    errors, raised = agree_alone((first, other)[rank])
    assert errors == [raised]


@pytest.mark.parametrize("why", ["they differ", "nobody comes"])
def test_what_all_fail_of_is_no_save_that_anyone_refuses(why: str) -> None:
    first, other, _ = of_two_nodes()
    first._patience = other._patience = 0.1
    if why == "nobody comes":
        other.say(1, None, None)
        assert agree_alone(other)[0] == []
        return
    first.say(1, None, None)
    other.say(2, None, None)
    assert agree_alone(first)[0] == []
    assert agree_alone(other)[0] == []


def test_a_planner_whose_plans_of_all_cannot_be_had(caplog: pytest.LogCaptureFixture) -> None:
    class Planner:
        @property
        def global_plan(self) -> Any:
            raise KeyError("mine")

    writer: Any = StorageWriter("/s", 1)
    writer._plans = [SavePlan([], usable=False)]
    assert writer._planned_by_all(Planner()) is None
    assert "what all ranks have planned is not known: 'mine'" in caplog.text


def test_after_a_save_that_was_not_committed_all_is_said_anew() -> None:
    calls: list[str] = []

    class Fake:
        def __getattr__(self, name: str) -> Callable[[], None]:
            return lambda: calls.append(name)

    class Engine:
        world = 2
        closed = foreign = False

        def close(self) -> None:
            self.closed = True

    class Ended:
        is_held = False
        step = 1

        def __init__(self, generation: int | None) -> None:
            self.generation = generation

        def outcome(self, _: float) -> int | None:
            return self.generation

        def _committed(self) -> None:
            pass

    found: Any = _engine_cache.Hold.__new__(_engine_cache.Hold)
    found._meeting, found._turn = Fake(), threading.Condition()
    found._thread = None
    found.engine = Engine()
    for generation in (None, 1):
        found._attempt = None
        found.ended(Ended(generation), generation)
        found._attempt = Ended(generation)
        found._settle(1.0)
    assert calls == ["failed"] * 2 + ["committed"] * 2
    # At the end of a job nobody may answer any more.
    found._attempt, found.config = Ended(1), _engine_cache.Config("/p", Options())
    found.close()
    assert _engine_cache._loaded.pop("/p")[:2] == (1, 1)
    assert calls == ["failed"] * 2 + ["committed"] * 2


def test_plans_of_all_with_what_torch_has_kept() -> None:
    class Planner:
        global_plan: Any = None

    gone, one, two = SavePlan([], usable=False), SavePlan([]), SavePlan([], planner_data=1)
    planner: Any = Planner()
    assert _dedup.whole([one, two], planner) == [one, two]
    assert _dedup.whole([gone, two], planner) is None
    planner.global_plan = [one, one]
    assert _dedup.whole([gone, two], planner) == [one, two]
    planner.global_plan = [one]
    assert _dedup.whole([gone, two], planner) is None


def test_one_pass_over_the_ranks() -> None:
    """Of a great job: keepers() is asked at every save."""

    class Node(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Node.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    nodes = [Node(f"node-{rank // 8}") for rank in range(4096)]
    assert _dedup.keepers(nodes) == list(range(0, 4096, 8))
    assert Node.compared < 2 * 4096


def test_the_wait_for_other_nodes_is_what_is_left_of_the_save() -> None:
    asked: list[tuple[float, float]] = []

    class Fake:
        peers = (0,)
        rank = 0

        def hear_ends(self, patience: float, of: float) -> None:
            asked.append((patience, of))

    found: Any = _engine_cache.Hold.__new__(_engine_cache.Hold)
    found.engine = found._meeting = Fake()
    found.config = _engine_cache.Config("/p", Options(save_timeout=600.0))
    for left in (1e6, -1.0):
        found._due = time.monotonic() + left
        found.await_nodes()
    assert [of for _, of in asked] == [615.0] * 2
    assert 9e5 < asked[0][0] <= 1e6
    assert asked[1][0] == 0
