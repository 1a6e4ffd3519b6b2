# SPDX-License-Identifier: Apache-2.0
"""What is refused on all ranks: steps of ranks that differ, and a store that another job has."""

from __future__ import annotations

import errno
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import together
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from waiting import until

import libckpt
from libckpt import _exchange

# What ranks must have alike.


def save_apart(store: Path, when: str) -> list[str]:
    rank = dist.get_rank()
    state: dict[str, Any] = {"model": torch.nn.Linear(3, 2), "seen": torch.zeros(2)}
    said = []
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, on_error=print) as ckpt:
        for step in (1, 2):
            if step == {"at once": 1, "later": 2}[when]:
                state[f"mine {rank}"] = torch.ones(5)
            try:
                ckpt.save(step).wait()
                said.append("")
            except libckpt.CheckpointError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_step_that_leaves_tensors_to_others_is_not_committed(
    store: Path, tmp_path: Path, when: str
) -> None:
    for said in together(2, tmp_path, save_apart, store, when):
        assert bool(said[0]) == (when == "at once")
        assert said[1].startswith("MismatchError")
    whole = libckpt.list_steps(store)
    assert [info.step for info in whole] == ([] if when == "at once" else [1])


def save_uneven_copies(store: Path) -> str:
    """Rank 1 has one DTensor more, which by its mesh rank 0 has as well."""
    mesh = init_device_mesh("cpu", (2,))
    names = ["a", "b", "c", "d"] if dist.get_rank() == 0 else ["a", "b", "b2", "c", "d"]
    state: dict[str, Any] = {
        name: DTensor.from_local(torch.ones(9 - n), mesh, [Replicate()], run_check=False)
        for n, name in enumerate(names)
    }
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, on_error=print) as ckpt:
        try:
            ckpt.save(1).wait()
        except libckpt.CheckpointError as error:
            return type(error).__name__
    return ""


def test_copies_that_one_rank_lacks_shift_nobodys_turn(store: Path, tmp_path: Path) -> None:
    said = together(2, tmp_path, save_uneven_copies, store)
    assert said == ["MismatchError", "MismatchError"]
    assert libckpt.list_steps(store) == []


def save_what_cannot_be(store: Path, failing: int, when: int) -> str:
    state: dict[str, Any] = {"weight": torch.ones(3)}
    said = ""
    options: dict[str, Any] = {"pool_bytes": 1 << 20, "on_error": print, "save_timeout": 3600}
    with libckpt.Checkpointer(store, state, **options) as ckpt:
        for step in range(1, 4):
            if step == when and dist.get_rank() == failing:
                state["odd"] = object()
            try:
                ckpt.save(step).wait()
            except libckpt.CheckpointError as error:
                said += f"{step} {type(error).__name__}: {error}"
            state.pop("odd", None)
    return said


@pytest.mark.slices(4)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("when", [1, 2])
def test_a_state_that_one_rank_cannot_save_ends_the_step_for_all(
    store: Path, tmp_path: Path, when: int, failing: int
) -> None:
    found = together(2, tmp_path, save_what_cannot_be, store, failing, when)
    assert found[failing].startswith(f"{when} UnsupportedStateError")
    said = found[1 - failing]  # and not after the hour that a save may take
    assert said.startswith(f"{when} AbortedError")
    assert "UnsupportedStateError" in said
    # And the others are saved: nobody waits for what is over.
    kept = [info.step for info in libckpt.list_steps(store)]
    assert kept == [step for step in (3, 2, 1) if step != when]


def interrupt_first(store: Path, place: Path) -> list[str]:
    """Rank 1 comes first, and Ctrl-C finds it waiting for rank 0's claim."""
    said = []
    rank = dist.get_rank()
    options: dict[str, Any] = {"on_error": lambda _: None, "save_timeout": 3600}
    with libckpt.Checkpointer(
        store, {"weight": torch.ones(3)}, pool_bytes=1 << 20, **options
    ) as ckpt:
        if rank == 0:
            await_files(place, "interrupted")
        for step in (1, 2):
            try:
                if rank == 1 and step == 1:
                    signal.signal(signal.SIGALRM, signal.default_int_handler)
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                ckpt.save(step).wait()
                said.append("")
            except (libckpt.CheckpointError, KeyboardInterrupt) as error:
                said.append(f"{type(error).__name__}: {error}")
                if rank == 1:
                    (place / "interrupted").touch()
    return said


def test_ctrl_c_reaches_a_rank_that_waits_for_rank_0(store: Path, tmp_path: Path) -> None:
    first, second = together(2, tmp_path, interrupt_first, store, tmp_path)
    assert second[0].startswith("KeyboardInterrupt")
    # And the other rank need not wait for what was given up.
    assert first[0].startswith("AbortedError")
    assert "KeyboardInterrupt" in first[0]
    assert first[1] == second[1] == ""


# Two jobs, one store.


class Said(logging.Handler):
    """What the library has to say."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        logger = logging.getLogger("libckpt")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def rejoin(place: Path, ranks: int) -> tuple[int, int]:
    """The ranks part, and meet again as jobs of `ranks` each: which job, and the rank in it."""
    number = dist.get_rank()
    job, rank = divmod(number, ranks)
    dist.barrier()
    dist.destroy_process_group()
    meeting = f"file://{place}/meeting-of-{job}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    return job, rank


def await_files(place: Path, *names: str) -> None:
    until(lambda: all((place / name).exists() for name in names))


def open_twice(store: Path, place: Path) -> dict[str, Any]:
    job, rank = rejoin(place, 2)
    state = {"weight": torch.full((100,), float(job))}
    if job == 0:
        with libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt:
            ckpt.save(1).wait()
            (place / f"held-{rank}").touch()
            await_files(place, "refused-0", "refused-1")
            ckpt.save(2).wait()
        (place / f"left-{rank}").touch()
        return {}
    await_files(place, "held-0", "held-1")
    said = Said()
    found: dict[str, Any] = {}
    try:
        libckpt.Checkpointer(store, state, pool_bytes=1 << 20, save_timeout=3600)
    except libckpt.CheckpointError as error:
        found = {"error": type(error).__name__, "text": str(error)}
    found["lines"] = list(said.lines)
    (place / f"refused-{rank}").touch()
    await_files(place, "left-0", "left-1")
    # The same processes try again.
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt:
        found["resumed"] = ckpt.resume()
        ckpt.save(3).wait()
    return found


def test_a_second_job_is_refused_on_all_its_ranks_at_once(store: Path, tmp_path: Path) -> None:
    for found in together(4, tmp_path, open_twice, store, tmp_path)[2:]:
        assert found["error"] == "InUseError"
        assert "held by a live process" in found["text"]
        # How the I/O is done is said of every store that is opened.
        assert len([line for line in found["lines"] if "I/O by" not in line]) <= 1, found["lines"]
        assert found["resumed"] == 2
    assert [info.step for info in libckpt.list_steps(store)] == [3, 2, 1]


def outlive(store: Path, place: Path) -> list[str]:
    """The old job loses its rank 0, and the next start of it comes while the other rank lives."""
    job, rank = rejoin(place, 2)
    if job == 1:
        await_files(place, "gone")
    ckpt = libckpt.Checkpointer(store, {"weight": torch.ones(9)}, every=1, pool_bytes=1 << 20)
    if job == 1:
        assert ckpt.resume() == 1
        ckpt.save(2).wait()
        (place / f"succeeded-{rank}").touch()
        ckpt.close()
        return []
    ckpt.save(1).wait()
    if rank == 0:
        ckpt.close()
        (place / "gone").touch()
        return []
    await_files(place, "succeeded-0", "succeeded-1")
    said: list[str] = []
    save = ckpt.step(2)
    assert save is not None
    for deed in (save.wait, lambda: ckpt.step(3), lambda: ckpt.save(4), lambda: ckpt.step(5)):
        try:
            deed()
            said.append("")
        except libckpt.FencedError as error:
            said.append(str(error))
    ckpt.close()
    return said


def test_who_outlives_its_job_is_told_at_every_step(store: Path, tmp_path: Path) -> None:
    said = together(4, tmp_path, outlive, store, tmp_path)[1]
    assert len(said) == 4
    for text in said:
        assert "has taken over" in text
        assert "another start of the job runs" in text
        assert "end it" in text
    assert [info.step for info in libckpt.list_steps(store)] == [2, 1]


def skip_some(store: Path) -> list[int]:
    """Saves without a pause: the steps that were skipped."""
    state = {"weight": torch.ones(1 << 16)}
    saves = []
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20, busy="skip") as ckpt:
        for step in range(1, 60):
            saves.append(ckpt.save(step))
            if step % 8 == 0:
                dist.barrier()
    return [save.step for save in saves if isinstance(save.error, libckpt.SkippedError)]


def test_of_a_skipped_step_nothing_is_left(store: Path, tmp_path: Path) -> None:
    skipped, others = together(2, tmp_path, skip_some, store)
    assert skipped == others
    assert skipped
    everything = libckpt.list_steps(store, everything=True)
    assert {info.state for info in everything} == {"committed"}
    assert sorted([info.step for info in everything] + skipped) == list(range(1, 60))


def open_with_a_bad_rank(store: Path, bad: int) -> str:
    """One rank alone cannot open it."""

    def refuse(*_: Any, **options: Any) -> Any:
        options["ranks"].service.close()
        raise libckpt.StorageError("no room", code=-errno.ENOSPC, errno=errno.ENOSPC)

    said = ""
    state, options = {"weight": torch.ones(3)}, {"pool_bytes": 1 << 20, "save_timeout": 3600}
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == bad:
            patch.setattr(_exchange, "Engine", refuse)
        try:
            libckpt.Checkpointer(store, state, **options)  # type: ignore[arg-type]
        except libckpt.StorageError as error:
            said = f"{error.errno}: {error}"
    with libckpt.Checkpointer(store, state, **options) as ckpt:  # type: ignore[arg-type]
        ckpt.save(1).wait()
    return said


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_cannot_open_is_waited_for_by_nobody(
    store: Path, tmp_path: Path, bad: int
) -> None:
    found = together(3, tmp_path, open_with_a_bad_rank, store, bad)
    for rank, said in enumerate(found):
        assert said.startswith(f"{errno.ENOSPC}: "), said
        assert (f"rank {bad} could not open" in said) == (rank != bad)
