# SPDX-License-Identifier: Apache-2.0
"""A job that is told to go saves once more, in time, and all its ranks the same step."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import Forked
from libckpt._preempt import EXIT_CODE, Preemption
from waiting import LIMIT, ended

import libckpt

Open = Callable[..., libckpt.Checkpointer]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test does, the next one has the handlers that were there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def tell(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def run_program(text: str) -> int:
    process = Forked(textwrap.dedent(text))
    ended(process)
    return process.wait()


def test_the_step_after_the_signal_is_saved(store: Path, opened: Open) -> None:
    weight = torch.arange(1000.0)
    ckpt = opened({"weight": weight}, preempt=True, every=100)
    assert ckpt.step(1) is None
    tell()
    weight += 1
    with pytest.raises(libckpt.Preempted) as left:
        ckpt.step(2)
    assert left.value.code == EXIT_CODE == 143
    assert left.value.saved
    assert left.value.step == 2
    assert torch.equal(libckpt.load(store)["weight"], weight)
    assert [info.step for info in libckpt.list_steps(store)] == [2]


def test_a_failure_before_it_does_not_cost_the_last_step(store: Path, opened: Open) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ckpt = opened({"model": model, "optimizer": optimizer}, preempt=True, on_error="raise")
    torn = ckpt.save(1)
    with torch.no_grad():
        model.weight.add_(1)
    optimizer.step()
    assert isinstance(torn.error, libckpt.TornSnapshotError)
    tell()
    with pytest.raises(libckpt.Preempted) as left:
        ckpt.step(2)
    assert left.value.saved
    assert [info.step for info in libckpt.list_steps(store)] == [2]


def test_a_step_that_was_saved_by_name_is_enough(store: Path, opened: Open) -> None:
    ckpt = opened({"weight": torch.ones(3)}, preempt=True)
    ckpt.save(7)
    tell()
    with pytest.raises(libckpt.Preempted) as left:
        ckpt.step(7)
    assert left.value.saved
    assert [info.step for info in libckpt.list_steps(store)] == [7]


def test_a_step_that_was_resumed_is_enough(store: Path, opened: Open) -> None:
    with opened({"weight": torch.ones(3)}) as ckpt:
        ckpt.save(7).wait()
    ckpt = opened({"weight": torch.zeros(3)}, preempt=True)
    assert ckpt.resume() == 7
    tell()
    with pytest.raises(libckpt.Preempted) as left:
        ckpt.step(7)
    assert left.value.saved
    assert [info.step for info in libckpt.list_steps(store)] == [7]


def test_the_program_ends_with_its_code(store: Path) -> None:
    program = f"""
        import os, signal, torch
        from libckpt import Checkpointer
        with Checkpointer({str(store)!r}, {{"weight": torch.ones(3)}}, preempt=True) as ckpt:
            for step in range(ckpt.resume(), 10):
                if step == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                ckpt.step(step + 1)
        """
    assert run_program(program) == 143
    assert [info.step for info in libckpt.list_steps(store)] == [5]


def test_what_takes_too_long_is_given_up(store: Path, opened: Open) -> None:
    ckpt = opened({"weight": torch.ones(1000)}, preempt=True, preempt_grace=1e-6)
    ckpt.save(1).wait()
    ckpt.state = {"weight": torch.ones(100_000_000)}
    tell()
    with pytest.raises(libckpt.Preempted) as left:
        ckpt.step(2)
    assert not left.value.saved
    assert "lost" in str(left.value)
    assert isinstance(left.value.__cause__, libckpt.CheckpointError)
    assert libckpt.load(store)["weight"].numel() == 1000


def test_who_was_there_before_is_called_and_comes_back(opened: Open) -> None:
    told: list[int] = []

    def before(number: int, _frame: Any) -> None:
        told.append(number)

    signal.signal(signal.SIGUSR1, before)
    ckpt = opened({"weight": torch.ones(3)}, preempt=[signal.SIGUSR1])
    tell(signal.SIGUSR1)
    assert told == [signal.SIGUSR1]
    ckpt.close()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_handler_that_came_later_stays(opened: Open) -> None:
    def later(_number: int, _frame: Any) -> None:
        pass

    ckpt = opened({"weight": torch.ones(3)}, preempt=[signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, later)
    ckpt.close()
    assert signal.getsignal(signal.SIGUSR1) is later


def test_after_the_end_it_stands_in_nobodys_way(store: Path) -> None:
    """Who has kept the handler and puts it back must not make the program deaf."""
    program = f"""
        import os, signal, torch
        from libckpt import Checkpointer
        with Checkpointer({str(store)!r}, {{"weight": torch.ones(3)}}, preempt=True):
            kept = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, kept)
        os.kill(os.getpid(), signal.SIGTERM)
        print("deaf")
        """
    assert run_program(program) == -signal.SIGTERM


def test_a_forked_worker_still_dies_of_it(opened: Open) -> None:
    opened({"weight": torch.ones(3)}, preempt=True)
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        # What comes before this is forgotten by the fork.
        signal.alarm(int(LIMIT))
        os.write(say, b".")
        while True:
            pass
    assert os.read(ready, 1) == b"."
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(say)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_cannot_be_caught_is_refused(store: Path, number: signal.Signals) -> None:
    with pytest.raises(ValueError, match=f"{number.name} cannot be caught"):
        libckpt.Checkpointer(store, preempt=[number])


def test_another_thread_cannot_install_it(store: Path) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            libckpt.Checkpointer(store, preempt=True)
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "only the main thread" in str(failed[0])
    libckpt.Checkpointer(store).close()  # nothing of the first is left


def test_without_being_asked_nothing_is_installed(opened: Open) -> None:
    before = signal.getsignal(signal.SIGTERM)
    opened({"weight": torch.ones(3)})
    assert signal.getsignal(signal.SIGTERM) is before


AGREE = """
    import os, signal, sys
    import torch.distributed as dist
    from libckpt._preempt import Preemption

    rank, world = int(sys.argv[1]), 3
    store = dist.TCPStore("localhost", int(sys.argv[2]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    group = dist.new_group(backend="gloo")
    waits = Preemption((signal.SIGTERM,), 25.0, group)
    for step in range(1, 100):
        if rank == 1 and step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        if waits.agreed():
            print(step, flush=True)
            break
    store.set(f"end-{rank}", "")
    store.wait([f"end-{n}" for n in range(world)])
    """


LEAVE = """
    import os, signal, sys
    import torch
    import torch.distributed as dist
    import libckpt

    rank, world, path = int(sys.argv[1]), 3, sys.argv[3]
    store = dist.TCPStore("localhost", int(sys.argv[2]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    weight = torch.zeros(1000)
    ended = 0
    try:
        with libckpt.Checkpointer(path, {"weight": weight}, preempt=True, every=100) as ckpt:
            for step in range(ckpt.resume(), 50):
                if rank == 1 and step == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                weight += 1
                ckpt.step(step + 1)
    except libckpt.Preempted as left:
        ended = left.code
        print(left.step, left.saved, flush=True)
    store.set(f"end-{rank}", "")
    store.wait([f"end-{n}" for n in range(world)])
    sys.exit(ended)
    """


def run_ranks(program: str, *words: str) -> list[tuple[list[str], int]]:
    """What each of three ranks has printed, and how it has ended."""
    keys = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    text = textwrap.dedent(program)
    words = str(keys.port), *words
    ranks = [Forked(text, str(rank), *words, streams=(None, None, 2)) for rank in range(3)]
    said = [ended(rank)[0].split() for rank in ranks]
    return [(words, rank.wait()) for words, rank in zip(said, ranks, strict=True)]


def test_all_ranks_leave_at_one_step() -> None:
    """One of three ranks is told: all stop at the same boundary, and none before it was told."""
    assert run_ranks(AGREE) == [(["8"], 0)] * 3


PART = """
    import os, signal, sys
    import torch.distributed as dist
    from libckpt import _preempt

    rank, world = int(sys.argv[1]), 3
    store = dist.TCPStore("localhost", int(sys.argv[2]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    waits = _preempt.Preemption((signal.SIGTERM,), 25.0, _preempt.make_group(3600))
    assert not waits.agreed() and not waits.agreed()
    if rank == 1:
        def fail(*_, **__):
            raise RuntimeError("broken, says the test")
        dist.all_reduce = fail
    assert not waits.agreed() and not waits.agreed()
    assert waits._group is None
    os.kill(os.getpid(), signal.SIGTERM)
    assert waits.agreed()
    print("parted", flush=True)
    store.set(f"end-{rank}", "")
    store.wait([f"end-{n}" for n in range(world)])
    os._exit(0)
    """


def test_a_group_that_fails_on_one_rank_holds_up_nobody() -> None:
    """The others do not wait until its timeout, which is long: a rank may be late by minutes."""
    assert run_ranks(PART) == [(["parted"], 0)] * 3


def test_all_ranks_save_that_step(store: Path) -> None:
    assert run_ranks(LEAVE, str(store)) == [(["7", "True"], 143)] * 3
    assert [(info.step, info.world) for info in libckpt.list_steps(store)] == [(7, 3)]
    assert torch.equal(libckpt.load(store)["weight"], torch.full((1000,), 7.0))


def test_a_rank_alone_knows_at_once() -> None:
    waits = Preemption((signal.SIGUSR1,), 25.0)
    try:
        assert not waits.agreed()
        assert waits.left() == 25.0
        tell(signal.SIGUSR1)
        assert waits.agreed()
        assert waits.left() < 25.0
    finally:
        waits.remove()
