# SPDX-License-Identifier: Apache-2.0
"""The rehearsal behind the loop, of one process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import mmap
import os
import shutil
import struct
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same, flip, shards, step_directory
from libckpt._dtypes import item_bytes, torch_numbers
from libckpt._room import memory_left
from libckpt._structure import mark
from libckpt._turn import turn_file
from rehearsal_rig import (
    all_is_logged,
    go_on,
    held,
    opens,
    rehearsing,
    said_of,
    turn_taken,
)
from test_rehearsal import Forgets, Refuses, everything, generators
from waiting import finished, until

import libckpt
from libckpt import _rehearsal, _slices, _turn

pytestmark = pytest.mark.usefixtures(all_is_logged.__name__)


def test_the_first_step_is_tried_once(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rehearsal, "_SLICE", 1 << 10)  # less than its tensors
    training, state = everything()
    with libckpt.Checkpointer(store, state, every=4, keep_last=1, rehearse=True) as ckpt:
        assert ckpt.resume() == 0
        assert not rehearsing()
        save = ckpt.step(4)
        assert save is not None
        save.wait()
        before, drawn = training.snapshot(), generators()
        assert go_on(ckpt) == []
        assert_same(before, training.snapshot())
        assert_same(generators(), drawn)
        ((level, said),) = said_of(caplog)
        assert level == "INFO"
        assert "the step fits the state; not tried: state['scheduler']: an object" in said
        until(lambda: not rehearsing(), "its thread to end")
        assert not os.path.exists(turn_file(ckpt._core.engine.path))
        # And never again.
        ckpt.save(8).wait()
        ckpt.step(9)
        assert not rehearsing()


def test_damage_is_told_and_nothing_is_kept(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[weakref.ref[mmap.mmap]] = []

    real = mmap.mmap

    def make(*args: Any) -> mmap.mmap:
        made = real(*args)
        buffers.append(weakref.ref(made))
        return made

    monkeypatch.setattr(_slices.mmap, "mmap", make)
    ckpt = opened({"weights": torch.arange(50_000)}, rehearse=True)
    gc.collect()
    gc.disable()
    try:
        with held():
            ckpt.save(1).wait()
            opens(ckpt)
            flip(shards(store)[0], shards(store)[0].stat().st_size - 1000)
        (said,) = go_on(ckpt)
        until(lambda: not rehearsing(), "its thread to end")
        assert [ref() for ref in buffers] == [None]
    finally:
        gc.enable()
    assert "step 1 of" in said
    assert "cannot be restored from here: IntegrityError: " in said
    assert "mends" not in said
    assert shards(store)[0].name in said
    assert ("ERROR", said) in said_of(caplog)
    assert ckpt._core.rehearsal._attempt is None or ckpt._core.rehearsal._attempt.plan is None


@pytest.mark.parametrize("harm", ["cut", "lost", "unreadable"])
@pytest.mark.parametrize("remote", [False, True])
def test_files_that_cannot_be_read_are_told(
    opened: Any,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    harm: str,
    remote: bool,
) -> None:
    more = {"remote": store.parent / "remote"} if remote else {}
    ckpt = opened({"weights": torch.arange(50_000)}, rehearse=True, **more)

    def fail(*_: Any, **__: Any) -> None:
        raise libckpt.StorageError("bad disk", code=-errno.EIO, errno=errno.EIO)

    with held():
        ckpt.save(1).wait()
        opens(ckpt)
        if harm == "cut":
            os.truncate(shards(store)[0], 4096)
        elif harm == "lost":
            shards(store)[0].unlink()
        else:
            monkeypatch.setattr(_slices.Reader, "read", fail)
    (said,) = go_on(ckpt)
    assert "cannot be restored from here: " in said
    assert ("resume() mends it from there" in said) == remote
    assert ("ERROR", said) in said_of(caplog)


def test_what_is_missing_of_a_step_that_is_removed_is_no_finding(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        if failed:
            (step_directory(store, 1) / "manifest.json").unlink()
        failed.append("a shard is missing")
        raise libckpt.IncompleteError(failed[0])

    monkeypatch.setattr(_slices.Reader, "read", fail)
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    until(ckpt._core.rehearsal._attempt.read.is_set, "it to be missed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ckpt.step(2)
    assert {level for level, _ in said_of(caplog)} == {"INFO"}


def test_what_is_not_as_it_was_is_not_compared(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = torch.nn.Parameter(torch.ones(3))
    for name in ("list", "dict", "group", "state", "shape"):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        more: dict[str, Any] = {"list": [torch.ones(2)], "dict": {"a": torch.ones(2)}, "seen": []}
        state = {"model": model, "optimizer": optimizer, "more": more, "extra": [extra]}
        with opened(state, path=f"{store}-{name}", rehearse=True) as ckpt:
            ckpt.save(1).wait()
            opens(ckpt)
            if name == "list":
                more["list"].append(torch.zeros(3))
            elif name == "dict":
                more["dict"]["b"] = torch.zeros(3)
            elif name == "group":
                optimizer.add_param_group({"params": [extra]})
            elif name == "state":
                model(torch.ones(3)).sum().backward()
                optimizer.step()
            else:
                more["list"][0] = torch.ones(5)
            assert go_on(ckpt) == [], name
        assert (
            "not tried: the state was not compared: the state is not built"
            in said_of(caplog)[-1][1]
        )


def test_values_may_change(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    state: dict[str, Any] = {
        "weights": torch.ones(3),
        "more": {"step": 1, "best": None, "log": [], "by": {"a": 1}},
    }
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    state["weights"].add_(1)
    state["more"].update(step=2, best=0.5, log=[1, 2, [3]], by={"b": "c"}, new=3)
    assert go_on(ckpt) == []
    assert "the step fits the state" in said_of(caplog)[-1][1]


def test_a_step_that_does_not_fit_is_told(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"model": torch.nn.Linear(3, 2), "rest": torch.ones(3)}
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    state["rest"] = torch.ones(4)
    monkeypatch.setattr(_rehearsal, "_is_built_so", lambda *_: True)  # as if that were a defect
    (said,) = go_on(ckpt)
    assert "MismatchError: step 1 does not fit the state" in said
    assert "state['rest'] is F32 [4], and was F32 [3]" in said


def test_objects_are_not_called(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    called: list[Any] = []
    monkeypatch.setattr(torch.optim.lr_scheduler.StepLR, "load_state_dict", called.append)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "odd": Refuses()}
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert called == []


def fail_to_open(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(_rehearsal, "reading", refuse)


def fail_to_allocate(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(_slices.mmap, "mmap", refuse)


def fail_to_start(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def fail_to_find(_: pytest.MonkeyPatch, store: Path) -> None:
    store.rename(f"{store}-away")


def is_of_another(patch: pytest.MonkeyPatch, _: Path) -> None:
    class Later(_rehearsal.TrialReader):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.generation += 1

    patch.setattr(_rehearsal, "TrialReader", Later)


@pytest.mark.parametrize(
    "fail", [fail_to_open, fail_to_allocate, fail_to_start, fail_to_find, is_of_another]
)
def test_its_own_failures_are_in_the_log_only(
    opened: Any,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    fail: Any,
) -> None:
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    rehearsal = ckpt._core.rehearsal
    ckpt.save(1).wait()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        fail(patch, store)
        ckpt.step(2)
        attempt = rehearsal._attempt
        if attempt is not None:
            until(lambda: rehearsal.over or attempt.read.is_set(), "it to fail")
        ckpt.step(3)
    levels = {level for level, _ in said_of(caplog)}
    assert levels <= {"INFO", "WARNING"}, said_of(caplog)
    assert levels, "nothing is said"
    assert not any("resume() was tried" in said for _, said in said_of(caplog))


def test_saves_that_are_under_way_come_first(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rehearsal, "_PAUSE", 0.001)
    asked: list[int] = []
    ended = threading.Event()

    def has_ended(save: libckpt.Save) -> bool:
        if save.step == 1:
            return True
        asked.append(save.step)
        return ended.is_set()

    monkeypatch.setattr(_rehearsal, "_has_ended", has_ended)
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    with held():
        ckpt.save(1).wait()
        opens(ckpt)
        ckpt.save(2, {"other": 1}).wait()
    attempt = ckpt._core.rehearsal._attempt
    until(lambda: len(asked) > 3 or attempt.read.is_set(), "it to look")
    assert not attempt.read.is_set()
    ended.set()
    assert go_on(ckpt) == []
    assert "the step fits the state" in said_of(caplog)[-1][1]


def test_what_is_read_while_a_save_begins_is_given_up_and_read_again(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, saved = threading.Event(), threading.Event()
    read = _slices.Reader.read
    given_up: list[int] = []

    def late(reader: Any, stop: Any) -> None:
        reads.set()
        saved.wait()
        try:
            stop()
        except _slices.AgainError:
            given_up.append(reader.step)
            raise
        read(reader, stop=stop)

    monkeypatch.setattr(_slices.Reader, "read", late)
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    ckpt.save(1).wait()
    opens(ckpt)
    until(reads.is_set, "it to be read")
    ckpt.save(2)
    saved.set()
    assert go_on(ckpt) == []
    assert given_up == [1]
    assert "the step fits the state" in said_of(caplog)[-1][1]


@pytest.mark.parametrize("saves", [1, 2])
def test_nothing_is_held_while_a_save_may_remove_steps(
    opened: Any, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    monkeypatch.setattr(_rehearsal, "_RETENTION", 3600.0)
    goes_on = threading.Event()
    run = _rehearsal.Rehearsal._run

    def late(*args: Any) -> None:
        goes_on.wait()
        run(*args)

    monkeypatch.setattr(_rehearsal.Rehearsal, "_run", late)
    ckpt = opened({"weights": torch.ones(3)}, keep_last=1, rehearse=True)
    ended = ckpt._core.rehearsal._ended
    waits: list[float] = []
    real = ended.wait

    def wait(timeout: float) -> None:
        waits.append(timeout)
        real(timeout)

    ended.wait = wait
    ckpt.save(1).wait()
    ckpt.step(1)
    attempt = ckpt._core.rehearsal._attempt
    for step in range(2, saves + 1):
        ckpt.save(step).wait()
    goes_on.set()
    until(lambda: 3600.0 in waits or attempt.read.is_set(), "it to wait for the removal")
    assert attempt.plan is None
    assert not attempt.read.is_set()
    ckpt.close()
    until(lambda: not rehearsing(), "its thread to end")


def test_a_removal_that_it_meets_is_no_warning(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, *[0] * 4)
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    with contextlib.ExitStack() as stack:
        with held():
            ckpt.save(1).wait()
            opens(ckpt)
            attempt = ckpt._core.rehearsal._attempt
            path = step_directory(store, 1) / "manifest.json"
            file = stack.enter_context(open(path, "r+b"))

            def locked() -> bool:
                with contextlib.suppress(BlockingIOError):
                    fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
                    return True
                return False

            until(locked, "the step to be closed")
        until(attempt.read.is_set, "it to be missed")
    assert attempt.removed
    assert {record.levelname for record in caplog.records} == {"INFO"}, caplog.text


@pytest.mark.parametrize(
    "why", ["too many tensors", "of memory are left", "more than 0 steps", "another directory"]
)
def test_what_costs_too_much_is_left_out(
    opened: Any,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    monkeypatch.setattr(_rehearsal, "reading", None)  # it is not even opened
    if "tensors" in why:
        monkeypatch.setattr(_rehearsal, "_TENSORS", 3)
    elif "memory" in why:
        monkeypatch.setattr(_rehearsal, "memory_left", lambda: 1 << 20)
    elif "steps" in why:
        monkeypatch.setattr(_rehearsal, "_STEPS_OF_STORE", 0)
    ckpt = opened({"many": [torch.ones(3) for _ in range(4)]}, rehearse=True)
    ckpt.save(1).wait()
    if "directory" in why:  # the same store, to look at
        shutil.copytree(store, f"{store}-copy")
        store.rename(f"{store}-away")
        Path(f"{store}-copy").rename(store)
    assert go_on(ckpt) == []
    ((level, said),) = said_of(caplog)
    assert level == "INFO"
    assert "was not read: " in said
    assert why in said


def test_memory_that_is_left_is_known() -> None:
    assert 0 < memory_left() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_program_may_go_to_another_directory(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    ckpt = opened({"weights": torch.ones(3)}, path=store.name, io="threads", rehearse=True)
    elsewhere = store.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    used: list[str] = []
    read = _slices.Slices.read

    def note(slices: _slices.Slices, *args: Any) -> None:
        used.append(slices._engine.options.io)
        read(slices, *args)

    monkeypatch.setattr(_slices.Slices, "read", note)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert "the step fits the state" in said_of(caplog)[-1][1]
    assert used == ["threads"]


def test_a_checkpointer_that_is_collected_on_its_thread_ends(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    kept: list[Any] = []

    def rest(_rehearsal: Any, _took: float) -> None:
        kept.pop()()
        over.set()

    monkeypatch.setattr(_rehearsal.Rehearsal, "_rest", rest)
    ckpt = libckpt.Checkpointer(
        store, {"weights": torch.ones(3)}, pool_bytes=1 << 20, rehearse=True
    )
    core = ckpt._core
    kept.append(ckpt._finalizer)
    ckpt.save(1).wait()
    ckpt.step(2)
    until(over.is_set, "the finalizer to return")
    until(lambda: core.engine.closed, "the engine to be closed")


def test_it_needs_no_place_for_its_turn(
    opened: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_turn, "_FOLDER", "/nonexistent")
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert "the step fits the state" in said_of(caplog)[-1][1]


def test_nothing_is_kept_of_one_that_was_ended_meanwhile(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = opened({"weights": torch.ones(3)}, rehearse=True)
    rehearsal = ckpt._core.rehearsal
    plan = _rehearsal.Plan

    def late(*args: Any, **options: Any) -> Any:
        made = plan(*args, **options)
        rehearsal.stop()
        return made

    monkeypatch.setattr(_rehearsal, "Plan", late)
    ckpt.save(1).wait()
    ckpt.step(2)
    attempt = rehearsal._attempt
    until(attempt.read.is_set, "its thread to end")
    assert attempt.plan is None


def test_modules_are_not_called() -> None:
    class Own(torch.nn.Linear):
        def named_parameters(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("it is not to be called")

    mark({"model": Own(3, 2)}, 10, 10)


@pytest.mark.parametrize(
    ("bound", "most", "why"),
    [
        ("_TENSORS", 3, "it has more than 3 tensors"),
        ("_VALUES", 20, "it has more than 20 values"),
        ("_TENSORS_OF_ALL", 0, "the step has more than 0 tensors"),
        ("_JSON", 100, "its values are more than"),
    ],
)
def test_many_tensors_and_values_are_read_only(
    opened: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    bound: str,
    most: int,
    why: str,
) -> None:
    monkeypatch.setattr(_rehearsal, bound, most)
    state = {
        "many": [torch.ones(3)] * 4,  # one that is written
        "values": {str(n): n for n in range(30)},
    }
    ckpt = opened(state, rehearse=True)
    ckpt.save(1).wait()
    assert go_on(ckpt) == []
    assert f"the state was not compared: {why}" in said_of(caplog)[-1][1]


def test_the_bytes_of_an_element_are_those_of_torch() -> None:
    for dtype, number in torch_numbers().items():
        assert item_bytes(number) == dtype.itemsize, dtype


def test_it_needs_neither_torch_nor_numpy(store: Path) -> None:
    program = f"""
import logging, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import libckpt
libckpt._rehearsal._MEMORY = 0
libckpt._rehearsal._RETENTION = 0.0
logging.basicConfig(level=logging.INFO)
with libckpt.Checkpointer({str(store)!r}, {{"n": 1, "data": b"x" * 9000}}, rehearse=True) as ckpt:
    ckpt.save(1).wait()
    ckpt.step(2)
    attempt = ckpt._core.rehearsal._attempt
    attempt.read.wait()
    ckpt.step(3)
    assert ckpt._core.rehearsal.over
"""
    done = finished([sys.executable, "-W", "error", "-c", program])
    assert done.returncode == 0, done.stderr
    assert "resume() was tried" in done.stderr
    assert "the step fits the state" in done.stderr


def test_a_close_that_raises_its_warning_has_closed(opened: Any, store: Path) -> None:
    ckpt = opened({"weights": torch.arange(50_000)}, rehearse=True)
    with held():
        ckpt.save(1).wait()
        opens(ckpt)
        flip(shards(store)[0], shards(store)[0].stat().st_size - 1000)
    attempt = ckpt._core.rehearsal._attempt
    until(attempt.read.is_set, "it to be read")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(libckpt.CheckpointWarning, match="IntegrityError"):
            ckpt.close()
    assert ckpt._core.engine.closed
    assert not ckpt._finalizer.alive
    ckpt.close()


def test_steps_that_are_removed_are_no_finding(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt = opened({"weights": torch.ones(3)}, keep_last=1, rehearse=True)
    rehearsal = ckpt._core.rehearsal
    ended = rehearsal._ended
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first in (10, 20, 30):
            with turn_taken(store):
                ckpt.save(first).wait()
                ckpt.step(first + 1)
                attempt = rehearsal._attempt
                assert rehearsing()
                for step in (first + 2, first + 3):
                    ckpt.save(step).wait()
                until(lambda: not list(store.glob(f"g*/step-{first:010d}")), "it to go")  # noqa: B023
            until(attempt.read.is_set, "it to be missed")
            # What close() would set is what the thread heeds.
            assert rehearsal._ended is ended
            ckpt.step(first + 4)
    assert rehearsal.over
    assert "3 steps of" in said_of(caplog)[-1][1]
    assert {level for level, _ in said_of(caplog)} == {"INFO"}


def test_the_next_step_is_tried_when_one_was_removed_and_close_ends_it(
    opened: Any, store: Path
) -> None:
    ckpt = opened({"weights": torch.ones(3)}, keep_last=1, rehearse=True)
    rehearsal = ckpt._core.rehearsal
    with turn_taken(store):
        for step in (1, 2, 3):
            ckpt.save(step).wait()
            ckpt.step(step)
    until(lambda: ckpt.step(4) is None and rehearsal._attempt is None, "it to be missed")
    with turn_taken(store):
        ckpt.save(5).wait()
        ckpt.step(6)
        assert rehearsing()
        closing = threading.Thread(target=ckpt.close)
        closing.start()
        closing.join()
        until(lambda: not rehearsing(), "its thread to end")


def has_buffer() -> bool:
    """True if the process has memory that two could share, of about the size of the weights."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        size = int(end, 16) - int(begin, 16)
        if line.endswith("/dev/zero (deleted)") and 1_234_567 <= size < 1_300_000:
            return True
    return False


def test_a_worker_that_is_forked_meanwhile_lets_the_turn_be(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on = threading.Event(), threading.Event()

    def rest(_self: Any, _took: float) -> None:
        reads.set()
        goes_on.wait()

    monkeypatch.setattr(_rehearsal.Rehearsal, "_rest", rest)
    ckpt = opened({"weights": torch.ones(1_234_567, dtype=torch.uint8)}, rehearse=True)
    ckpt.save(1).wait()
    ckpt.step(2)
    until(reads.is_set, "it to have the turn")
    assert has_buffer()
    child = os.fork()
    if child == 0:
        try:
            if has_buffer():  # for as long as the worker lives
                os._exit(2)
            gc.collect()
            ckpt._core.shut()
            ckpt._core.rehearsal.look({})
        finally:
            os._exit(0 if not ckpt._core.rehearsal.over else 1)
    assert os.waitpid(child, 0)[1] == 0
    with open(turn_file(str(store))) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    goes_on.set()
    assert go_on(ckpt) == []


def test_it_is_the_default_and_follows_no_resume(opened: Any, store: Path) -> None:
    with libckpt.Checkpointer(store, {"odd": Refuses()}, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
        assert go_on(ckpt) == []
    with opened({"odd": Forgets()}, path=f"{store}-2", rehearse=False) as ckpt:
        assert ckpt._core.rehearsal is None
        ckpt.save(1).wait()
        ckpt.step(2)
        assert not rehearsing()
    with opened({"odd": Forgets()}, path=f"{store}-2", rehearse=True) as ckpt:
        assert ckpt.resume() == 1  # which has tried it
        ckpt.save(2).wait()
        ckpt.step(3)
        assert not rehearsing()
    with pytest.raises(TypeError, match="rehearse must be True or False"):
        opened({}, path=f"{store}-3", rehearse=1)
