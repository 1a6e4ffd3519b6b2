# SPDX-License-Identifier: Apache-2.0
"""The rehearsal behind the loop does no harm: what it must not touch, call, wait for or say."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from libckpt._plan import Plan
from libckpt._slices import AgainError, Slices, reading
from libckpt._structure import TooManyError, mark
from libckpt._tensors import describe
from libckpt._turn import turn, turn_file
from rehearsal_rig import (
    all_is_logged,
    go_on,
    held,
    opens,
    rehearsing,
    said_of,
    turn_taken,
)
from test_states_parts import Coded, coded
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import until

import libckpt
from libckpt import _rehearsal, _slices

pytestmark = pytest.mark.usefixtures(all_is_logged.__name__)


def trained() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "seen": [torch.arange(4), 1]}


def fits(caplog: pytest.LogCaptureFixture) -> bool:
    return "the step fits the state" in said_of(caplog)[-1][1]


def test_no_turn_is_waited_for_to_compare(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranks that did so one after the other would each hold up all."""
    ckpt = opened(trained(), rehearse=True)
    with turn_taken(store):
        ckpt.save(1).wait()
        opens(ckpt)
        attempt = ckpt._core.rehearsal._attempt
        ckpt.step(5)
        assert attempt.uncompared == ""
        assert not attempt.read.is_set()
    assert go_on(ckpt) == []
    assert fits(caplog)


def test_its_thread_reads_nothing_with_the_engine_of_the_loop(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose end waits for all who do."""
    ckpt = opened(trained(), rehearse=True)
    ckpt.save(1).wait()
    door = ckpt._core.engine._door
    work = door.work
    inside: list[str] = []

    def noted(*args: Any) -> Any:
        inside.append(threading.current_thread().name)
        return work(*args)

    monkeypatch.setattr(door, "work", noted)
    assert go_on(ckpt) == []
    assert fits(caplog)
    assert "libckpt-rehearsal" not in inside


class Seen(TorchDispatchMode):
    """What torch is asked to do by this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_the_loop_reads_no_tensor_and_takes_no_memory(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU it would wait for all that was enqueued before."""
    state = {**trained(), "wrapped": [coded(4)]}
    state["model"].register_buffer("coded", coded(8))
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    before = torch.get_rng_state()
    with Seen() as seen:
        ckpt.step(5)
    assert ckpt._core.rehearsal._attempt.uncompared == ""
    assert seen.names <= {"aten.empty.memory_format"}, seen.names
    assert torch.equal(torch.get_rng_state(), before)
    assert go_on(ckpt) == []
    assert fits(caplog)


def test_values_are_counted() -> None:
    numbers = list(range(1000))
    mark({"values": numbers}, 1, 50)
    for many in (numbers * 10, dict.fromkeys(numbers), [[n] for n in numbers]):
        with pytest.raises(TooManyError, match="more than 50 values"):
            mark({"values": many}, 1, 50)


class Costly:
    """Its attributes are made when they are asked for."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __getattr__(self, name: str) -> Any:
        if name not in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        self.asked.append(name)
        return lambda *_: {"n": 1}


def test_no_code_of_the_user_is_called(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    state = {
        "costly": Costly(asked),
        "in": {"a": [Costly(asked)]},
        "wrapped": [coded(4)],
        "seen": torch.ones(3),
    }
    ckpt = opened(state, rehearse=True)
    ckpt.step(0)  # the first one looks at the state
    ckpt.save(1).wait()
    asked.clear()
    flatten = Coded.__tensor_flatten__

    def noted(one: Coded) -> Any:
        asked.append("__tensor_flatten__")
        return flatten(one)

    monkeypatch.setattr(Coded, "__tensor_flatten__", noted)
    assert go_on(ckpt) == []
    assert asked == []
    said = said_of(caplog)[-1][1]
    assert fits(caplog)
    assert "state['wrapped'][0]: a tensor that wraps others" in said
    assert "state['in']['a'][0]: an object" in said


def test_what_another_thread_changes_for_a_moment_is_no_finding(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = trained()
    compare = Plan.compare
    seen: list[str] = []

    def late(plan: Plan, found: dict[str, Any]) -> None:
        if seen:
            compare(plan, found)
            return
        kept, found["model"] = found["model"], torch.nn.Linear(2, 2)
        try:
            compare(plan, found)
        except libckpt.MismatchError as error:
            seen.append(str(error))
            raise
        finally:
            found["model"] = kept

    monkeypatch.setattr(Plan, "compare", late)
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert "does not fit the state" in seen[0]
    assert fits(caplog)


def test_parameters_whose_memory_is_away_are_no_finding(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them begin at the same address then: at none."""
    state = trained()
    first, second = state["model"][0].weight, state["model"][1].weight
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    for parameter in (first, second):
        parameter.untyped_storage().resize_(0)
    assert go_on(ckpt) == []
    assert "the state is not built as it was when it was saved" in said_of(caplog)[-1][1]


def test_what_can_be_read_the_second_time_is_no_finding(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _slices.Reader.read
    failed: list[Any] = []

    def fail(reader: Any, stop: Any) -> None:
        if not failed:
            failed.append(reader)
            raise libckpt.StorageError("no answer", code=-errno.EIO, errno=errno.EIO)
        read(reader, stop=stop)

    monkeypatch.setattr(_slices.Reader, "read", fail)
    ckpt = opened(trained(), rehearse=True)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert failed
    assert fits(caplog)
    assert {level for level, _ in said_of(caplog)} == {"INFO"}


def test_a_signal_handler_may_call_it_meanwhile(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = opened(trained(), rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    until(ckpt._core.rehearsal._attempt.read.is_set, "it to be read")
    compare = Plan.compare

    def interrupted(plan: Plan, state: dict[str, Any]) -> None:
        ckpt.save(2)
        compare(plan, state)

    monkeypatch.setattr(Plan, "compare", interrupted)
    assert go_on(ckpt) == []
    assert len(said_of(caplog)) == 1
    assert fits(caplog)


def test_one_checkpointer_of_a_process_reads_at_a_time(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, wait = Slices.read, _rehearsal.Rehearsal._wait
    waits = threading.Event()
    reading_now: list[Any] = []
    most: list[int] = []

    def noted(slices: Slices, *args: Any) -> None:
        reading_now.append(slices)
        until(lambda: waits.is_set() or len(reading_now) > 1, "the other one to come")
        most.append(len(reading_now))
        read(slices, *args)
        reading_now.remove(slices)

    def waiting(rehearsal: Any) -> None:
        waits.set()
        wait(rehearsal)

    monkeypatch.setattr(Slices, "read", noted)
    monkeypatch.setattr(_rehearsal.Rehearsal, "_wait", waiting)
    both = [opened(trained(), path=f"{store}-{n}", rehearse=True) for n in range(2)]
    for ckpt in both:
        ckpt.save(1).wait()
        ckpt.step(5)
    for ckpt in both:
        assert go_on(ckpt) == []
    assert most == [1, 1]


def test_a_child_that_is_forked_has_a_turn_of_its_own(store: Path) -> None:
    def refuse() -> None:
        raise AssertionError("another thread has the turn")

    with turn(str(store), refuse):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with turn(f"{store}-of-child", refuse):
                    code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_turns_are_of_the_node(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no lock of tempfile is taken: a child that is forked then could make no such file."""

    def refuse() -> str:
        raise AssertionError("it is not to be called")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setenv("TMPDIR", str(store.parent))  # of all nodes, maybe
    assert os.path.dirname(turn_file(str(store))) == "/dev/shm"


def test_it_reads_a_quarter_of_the_time(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = opened(trained(), rehearse=True)._core.rehearsal
    waits: list[float] = []
    monkeypatch.setattr(rehearsal._ended, "wait", waits.append)
    rehearsal._rest(2.0)
    assert waits == [6.0]


def test_saves_that_never_rest_are_not_waited_for_for_ever(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = opened(trained(), rehearse=True)._core.rehearsal

    passed: list[Any] = []

    def begins_another(save: Any) -> bool:
        passed.append(save)
        assert len(passed) < 100
        rehearsal._newest = object()
        return True

    monkeypatch.setattr(_rehearsal, "_has_ended", begins_another)
    rehearsal._newest = object()
    with pytest.raises(AgainError):
        rehearsal._give_way()


def test_a_step_of_another_generation_is_not_read(opened: Any, store: Path) -> None:
    weights = torch.ones(3)
    with opened({"weights": weights}) as ckpt:
        ckpt.save(1).wait()
    bound = _slices.Bound("weights", describe(weights)._replace(pointer=0), None)
    with reading(str(store), 0, 1) as engine:
        Slices(engine, 1, 1 << 20, generation=1).read([bound])
        with pytest.raises(libckpt.StepNotFoundError, match="is now of generation 1"):
            Slices(engine, 1, 1 << 20, generation=2).read([bound])


def test_close_does_not_wait_for_what_is_read(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to stop, and looks for that between parts and while it waits."""
    monkeypatch.setattr(_rehearsal, "_ONCE_MORE", 3600.0)

    def fail(*_: Any, **__: Any) -> None:
        raise libckpt.StorageError("no answer", code=-errno.EIO, errno=errno.EIO)

    monkeypatch.setattr(_slices.Reader, "read", fail)
    ckpt = opened(trained(), rehearse=True)
    with held():
        ckpt.save(1).wait()
        opens(ckpt)
    ckpt.close()
    until(lambda: not rehearsing(), "its thread to end")
