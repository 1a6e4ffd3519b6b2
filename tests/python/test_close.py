# SPDX-License-Identifier: Apache-2.0
"""Closing while other threads are inside: the engine goes when nobody is, and nobody hangs."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import run
from libckpt._call_guard import CallGuard, Helper, apart
from libckpt.dcp import _engine_cache
from ranks import together
from waiting import until

import libckpt
from libckpt import _kvstore


def begin(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


class Inside:
    """A thread that is in a call of the door's until it is told to leave."""

    def __init__(self, door: CallGuard) -> None:
        self._entered, self._leave = threading.Event(), threading.Event()
        self._thread = begin(lambda: door.work(self._stay))
        self._entered.wait()

    def _stay(self) -> None:
        self._entered.set()
        self._leave.wait()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join()


def closing(door: CallGuard, patience: float = 60) -> threading.Thread:
    """A thread that closes it, and has begun to."""
    thread = begin(lambda: door.close(patience))
    until(lambda: not door.is_open)
    return thread


def test_the_end_waits_for_who_is_inside() -> None:
    ended: list[str] = []
    door = CallGuard(lambda: ended.append("end"))
    inside = Inside(door)
    closer = closing(door)
    # Nobody new is let in, and who only asks waits for the end.
    assert door.work(ended.append, "work") == (False, None)
    door.release(ended.append, "released")
    asker = begin(lambda: door.ask(ended.append, "asked"))
    assert not ended
    inside.leave()
    closer.join()
    asker.join()
    assert ended[0] == "end"
    assert sorted(ended[1:]) == ["asked", "released"]
    assert door.ask(len, "four") == (True, 4)
    assert door.close(0)
    door.release(ended.append, "late")
    assert ended[-1] == "late"
    assert ended.count("end") == 1


def test_who_does_not_come_out_ends_it() -> None:
    ended: list[int] = []
    door = CallGuard(lambda: ended.append(threading.get_ident()))
    inside = Inside(door)
    assert not door.close(0.01)
    # Nobody waits for the end now, which may be long in coming.
    assert door.ask(len, "four") == (True, 4)
    assert not door.close(0.01)
    assert not ended
    inside.leave()
    assert len(ended) == 1
    assert ended[0] != threading.get_ident()


def test_a_finalizer_that_closes_does_not_wait_for_its_own_thread() -> None:
    ended: list[str] = []
    door = CallGuard(lambda: ended.append("end"))
    inside = Inside(door)

    def finalizer() -> None:
        begin(inside.leave).join()  # other threads are waited for
        assert not door.close(60)
        assert door.ask(len, "four") == (True, 4)
        assert not ended

    assert door.work(finalizer) == (True, None)
    assert ended == ["end"]


def test_a_helper_neither_waits_nor_ends() -> None:
    found: list[Any] = []
    door = CallGuard(lambda: helper.join(60))
    go = threading.Event()

    def help_out() -> None:
        go.wait()
        found.append(door.ask(len, "four"))
        door.release(found.append, "released")
        apart(lambda: found.append(threading.current_thread().name))

    helper = Helper(target=help_out)
    helper.start()
    inside = Inside(door)
    closer = closing(door)
    go.set()
    helper.join()
    inside.leave()
    closer.join()
    for thread in threading.enumerate():
        if thread.name == "libckpt-end":
            thread.join()
    assert sorted(map(str, found)) == ["(False, None)", "libckpt-end", "released"]


HAMMER = """
    import contextlib, itertools, random
    state = {{"model": torch.nn.Linear(64, 64), "x": torch.ones(1 << 20)}}

    def hammer(call):
        with contextlib.suppress(libckpt.CheckpointError):
            while not done:
                call()

    for turn in range(12):
        done = []
        ckpt = libckpt.Checkpointer(store, state, pool_bytes=1 << 20, eager=False)
        ckpt.resume()
        steps = itertools.count(turn * 10000 + 1)
        save = ckpt.save(next(steps))
        calls = [ckpt.stats, ckpt._core.engine.steps, lambda: save.wait(timeout=0.001),
                 lambda: save.info, save.done, lambda: ckpt.pin(1),
                 {more}]
        threads = [threading.Thread(target=hammer, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        threading.Event().wait(random.random() * 0.04)  # any moment will do
        with contextlib.suppress(libckpt.CheckpointError):
            {close}
        done.append(True)
        for thread in threads:
            thread.join()
        # It has let go of the store, and what became of the save can still be asked.
        save.info, save.done()
        del ckpt, calls
    print("well")
"""


@pytest.mark.slices(3)
@pytest.mark.parametrize(
    ("close", "more"),
    [
        ("ckpt.close()", "ckpt.resume"),
        ("ckpt._core.shut()", "lambda: ckpt.save(next(steps))"),
        ("ckpt._core.shut()", "ckpt.resume"),
    ],
)
def test_closing_beside_every_call(store: Path, close: str, more: str) -> None:
    body = HAMMER.format(close=close, more=more)
    done = run(store, "    import warnings; warnings.simplefilter('ignore')\n" + body)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "well\n"


ASYNC = """
    import torch.distributed.checkpoint as dcp
    import libckpt.dcp, warnings
    warnings.simplefilter("ignore")
    state = {"x": torch.ones(1 << 24)}

    def save(step):
        writer = libckpt.dcp.StorageWriter(store, pool_bytes=1 << 20)
        return dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer)
"""


def test_dcp_is_closed_beside_a_save_behind_the_loop(store: Path) -> None:
    body = """
    outcomes = []
    for step in range(1, 13):
        future = save(step)
        threading.Event().wait(step * step * 0.001)  # any moment will do
        libckpt.dcp.close()
        try:
            result_of(future)
            outcomes.append(step)
        except AssertionError:
            raise
        except BaseException as error:
            found = getattr(error, "failures", {0: (error, None)})[0][0]
            assert isinstance(found, libckpt.CheckpointError), repr(error)
    result_of(save(20))
    found = [info.step for info in libckpt.list_steps(store)]
    assert found == [20, *reversed(outcomes)], (found, outcomes)
    print("well")
    """
    done = run(store, ASYNC + body)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "well\n"


def test_dcp_is_closed_while_a_save_is_being_described(store: Path) -> None:
    body = """
    from libckpt.dcp._attempt import Attempt

    begun, closed, describe = threading.Event(), threading.Event(), Attempt._describe

    def slow(attempt, snapshot):
        describe(attempt, snapshot)
        begun.set()
        until(closed.is_set)

    Attempt._describe = slow
    future = save(1)
    until(begun.is_set)
    libckpt.dcp.close()
    closed.set()
    try:
        result_of(future)
        print("it was saved to what had been closed")
    except BaseException as error:
        found = getattr(error, "failures", {0: (error, None)})[0][0]
        assert isinstance(found, libckpt.CheckpointError), repr(error)
    Attempt._describe = describe
    result_of(save(2))
    assert [info.step for info in libckpt.list_steps(store)] == [2]
    print("well")
    """
    done = run(store, ASYNC + body)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "well\n"


@pytest.mark.slices(3)
@pytest.mark.parametrize("how", ["dcp", "wait", "stats"])
def test_a_program_that_ends_without_close(store: Path, how: str) -> None:
    body = """
    if HOW == "dcp":
        save(1)
    else:
        ckpt = libckpt.Checkpointer(store, state, pool_bytes=1 << 20)
        pending = ckpt.save(1)

        def ask():
            while True:
                pending.wait() if HOW == "wait" else ckpt.stats()

        threading.Thread(target=ask, daemon=True).start()
    print("well")
    """
    done = run(store, ASYNC + body.replace("HOW", repr(how)), destructors=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "well\n"
    assert [info.step for info in libckpt.list_steps(store)] == [1]


def test_a_store_that_cannot_be_closed_does_not_keep_others_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    class Held:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            if self.name != "c":
                raise RuntimeError(self.name)

    monkeypatch.setattr(_engine_cache, "_holds", {name: Held(name) for name in "abc"})
    monkeypatch.setattr(_engine_cache, "_turns", {name: threading.RLock() for name in "abc"})
    with pytest.raises(RuntimeError):
        _engine_cache.close()
    assert closed == ["a", "b", "c"]


def test_a_forked_child_that_ends_waits_for_no_thread_of_its_parent(store: Path) -> None:
    body = """
    from libckpt.dcp import _engine_cache
    result_of(save(1))
    held, over = threading.Event(), threading.Event()

    def opens():
        with _engine_cache._lock:
            held.set()
            over.wait()

    threading.Thread(target=opens).start()
    held.wait()
    child = os.fork()
    if child == 0:
        sys.exit(7)  # with what is called at the end of a program
    def ends():
        ended, status = os.waitpid(child, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if ended else [])
        return ended

    codes = []
    try:
        until(ends, "the child to end")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        over.set()
    print(*codes)
    """
    done = run(store, ASYNC + body, destructors=True)
    assert done.stdout == "7\n", done.stderr[-4000:]


# Forgotten ones.


class Cycle:
    """Keeps something alive until the garbage is collected."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.itself = self


def forget_on_log_thread(store: Path) -> list[str]:
    gc.disable()
    where: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread().name == "libckpt-log" and not where:
                where.append("collected")
                gc.collect()

    logger = logging.getLogger("libckpt")
    logger.setLevel(logging.INFO)
    ckpt = libckpt.Checkpointer(store, {"x": torch.ones(1 << 20)}, pool_bytes=1 << 20)
    ckpt.save(1)
    Cycle(ckpt)
    finalizer = ckpt._finalizer
    core = ckpt._core
    finish = core.finish

    def note() -> None:
        where.append(threading.current_thread().name)
        finish()
        where.append("finished")

    core.finish = note  # type: ignore[method-assign]
    logger.addHandler(Collect())
    del ckpt

    def is_finished() -> bool:
        if not core.engine.closed:
            core.engine.work(logger.isEnabledFor, 10)
        return "finished" in where

    until(is_finished)
    assert not finalizer.alive
    return where


def test_what_is_collected_on_a_log_thread_ends_on_another(store: Path, tmp_path: Path) -> None:
    (where,) = together(1, tmp_path, forget_on_log_thread, store)
    assert where == ["collected", "libckpt-end", "finished"]
    assert [info.step for info in libckpt.list_steps(store)] == [1]


def forget_on_the_service(store: Path) -> None:
    """The thread by which the ranks talk collects a checkpointer whose save needs it to end."""
    gc.disable()
    get = _kvstore.Table.get
    collected = threading.Event()
    armed: list[bool] = []

    def collect(self: Any, keys: Any) -> Any:
        if armed and threading.current_thread().name == "libckpt-ranks":
            armed.clear()
            gc.collect()
            collected.set()
        return get(self, keys)

    _kvstore.Table.get = collect  # type: ignore[method-assign]
    state = {"x": torch.ones(1 << 20)}
    ckpt = libckpt.Checkpointer(store, state, pool_bytes=1 << 20, save_timeout=3600)
    engine = ckpt._core.engine
    ckpt.save(1).wait()
    dist.barrier()
    if dist.get_rank() == 1:
        ckpt.save(2)  # which rank 0 does not come to before this one has been collected
        Cycle(ckpt)
        del ckpt
        armed.append(True)
        until(collected.is_set)
        dist.barrier()
        until(lambda: engine.ptr is None)
    else:
        dist.barrier()
        ckpt.save(2).wait()
        ckpt.close()


def test_what_is_collected_on_the_service_is_still_served(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, forget_on_the_service, store)
    assert [info.step for info in libckpt.list_steps(store)] == [2, 1]
