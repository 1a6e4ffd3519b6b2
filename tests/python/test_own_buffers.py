# SPDX-License-Identifier: Apache-2.0
"""Buffers that differ by rank when a run saves first are each rank's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from libckpt._buffers import Meeting
from libckpt._opening import Opening
from libckpt._table import Group, Table
from ranks import together
from waiting import LIMIT

import libckpt

State = dict[str, Any]
Found = dict[str, torch.Tensor]


class Counter(torch.nn.Module):
    """One of its buffers differs by rank, and the other one does not."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(5))
        self.register_buffer("seen", torch.tensor(100 + rank))
        self.register_buffer("limit", torch.full((3,), 7.0, dtype=torch.bfloat16))


class Speaking(Counter):
    """The same, asked for its state_dict()."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return super().state_dict(*args, **more)


class Rows(torch.nn.Module):
    """Its buffer is the same on all ranks. Another one is in no checkpoint."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))
        self.register_buffer("scratch", torch.full((2,), float(rank)), persistent=False)


def state_of(rank: int) -> State:
    return {
        "model": torch.nn.ModuleDict({"counter": Counter(rank), "table": Rows(rank)}),
        "other": Speaking(rank),
        "norm": torch.nn.BatchNorm1d(2),
    }


#: What is each rank's own, as it is named in the step.
OWN = ["counter.limit", "counter.seen", "other/limit", "other/seen"]


def buffers(state: State) -> Found:
    counter, other = state["model"]["counter"], state["other"]
    tensors = [counter.limit, counter.seen, other.limit, other.seen]
    return {name: tensor.clone() for name, tensor in zip(OWN, tensors, strict=True)}


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]


def refused(ckpt: libckpt.Checkpointer, state: State, step: int) -> str:
    """What is said of a save in which a buffer differs that has been alike."""
    table = state["model"]["table"].table
    table += dist.get_rank()
    with pytest.raises(libckpt.ReplicaMismatchError) as caught:
        ckpt.save(step).wait()
    table -= dist.get_rank()
    return str(caught.value)


def give_up(store: Path) -> str:
    """Rank 1 cannot say what it has: nobody waits for it, and the next save decides."""
    state = state_of(dist.get_rank())
    wrong = {**state, 5: 1} if dist.get_rank() == 1 else state
    said = "saved"
    with libckpt.Checkpointer(store) as ckpt:
        try:
            ckpt.save(1, wrong).wait()
        except libckpt.CheckpointError as error:
            said = f"{type(error).__name__}: {error}"
        ckpt.save(2, state).wait()
    return said


def run(store: Path) -> dict[str, Any]:
    """A run, and another one that resumes it."""
    rank = dist.get_rank()
    given_up = give_up(store.with_name("other"))
    state = state_of(rank)
    with libckpt.Checkpointer(store, state) as ckpt:
        _, first = warned(lambda: ckpt.save(1).wait())
        state["model"]["counter"].seen += 10
        _, second = warned(lambda: ckpt.save(2).wait())
        differs = refused(ckpt, state, 3)
    were = buffers(state)
    state = state_of(rank + 50)
    with libckpt.Checkpointer(store, state) as ckpt:
        step, third = warned(ckpt.resume)
        found = buffers(state)
        # What differs only now was alike at the first save of the run.
        again = refused(ckpt, state, 4)
        _, fourth = warned(lambda: ckpt.save(5).wait())
    return {
        "warned": [first, second, third, fourth],
        "differs": [differs, again],
        "given_up": given_up,
        "step": step,
        "were": were,
        "found": found,
    }


def run_elsewhere(store: Path) -> tuple[Found, list[str]]:
    state = state_of(70)
    with libckpt.Checkpointer(store, state) as ckpt:
        step, said = warned(ckpt.resume)
        assert step == 5
        found = buffers(state)
        state["other"].seen += dist.get_rank()
        ckpt.save(6).wait()
    return found, said


def test_a_rank_that_missed_the_answer_hears_it_at_the_next_save() -> None:
    """Then nobody else is there to ask, and nobody waits."""
    store = dist.HashStore()
    table = Table(store)

    def decide(rank: int, step: int, timeout: float = LIMIT) -> list[str]:
        opening = Opening(Group(rank, 3, store), table, "prefix", "path", timeout)
        digests = {"alike.": "1", "own.": str(rank)}
        return Meeting(opening, "path", step, timeout).decide(digests)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(decide, range(3), [1] * 3)) == [["own."]] * 3
    for rank in range(3):
        assert decide(rank, 2, 0) == ["own."]


def names_of(store: Path) -> set[str]:
    return set(libckpt.load(store, names=["*"]))


def test_buffers_that_differ_are_each_ranks_own(store: Path, tmp_path: Path) -> None:
    said = together(3, tmp_path, run, store)
    for rank, one in enumerate(said):
        assert one["step"] == 2
        assert one["were"]["counter.seen"] == 110 + rank
        for name in OWN:
            assert torch.equal(one["found"][name], one["were"][name]), name
        for text in one["differs"]:
            assert "'table.table'" in text
            assert "counter" not in text
    assert said[1]["given_up"].startswith("UnsupportedStateError: ")
    for one in (said[0], said[2]):
        assert one["given_up"].startswith("AbortedError: step 1 of ")
        assert "was given up by rank 1: " in one["given_up"]
    assert "rank-00002/other/seen" in names_of(store.with_name("other"))
    # One line, of one rank, when it is decided.
    assert [one["warned"] for one in said[1:]] == [[[], [], [], []]] * 2
    first, *later = said[0]["warned"]
    assert later == [[], [], []]
    assert len(first) == 1
    assert all(repr(name) in first[0] for name in OWN)
    assert "table" not in first[0]
    assert "norm" not in first[0]
    names = names_of(store)
    assert {f"rank-{rank:05d}/{name}" for rank in range(3) for name in OWN} < names
    assert {"table.table", "counter.weight", "norm/running_mean"} < names
    # Another number of ranks gets what rank 0 had, and each has its own again from then on.
    for found, texts in together(2, tmp_path, run_elsewhere, store):
        assert all(torch.equal(found[name], said[0]["were"][name]) for name in OWN)
        assert len(texts) == 1
        assert "'counter.seen'" in texts[0]
        assert "are those of rank 0: each rank had its own" in texts[0]
    loaded = libckpt.load(store, names=["rank-*/other/seen"])
    assert [int(loaded[f"rank-{rank:05d}/other/seen"]) for rank in range(2)] == [100, 101]
