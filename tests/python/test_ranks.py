# SPDX-License-Identifier: Apache-2.0
"""Many ranks save, and any number of them resumes."""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from conftest import assert_same, bits, shards
from libckpt._reader import Reader
from ranks import Job, full, together
from sample import some
from torch.distributed.fsdp import fully_shard
from waiting import finished

import libckpt
from libckpt import _others


def look_at_parent() -> tuple[int, bool]:
    """How many threads the process has that this rank was forked from; whether it has torch."""
    maps = Path(f"/proc/{os.getppid()}/maps").read_text()
    return len(os.listdir(f"/proc/{os.getppid()}/task")), "libtorch" in maps


def test_ranks_are_forked_where_there_is_one_thread(tmp_path: Path) -> None:
    assert together(2, tmp_path, look_at_parent) == [(1, True)] * 2


def train(store: Path, layout: str, steps: int = 3) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Trains, saves each step, and goes on for two more: the truth at the save, and the losses."""
    job = Job(layout, seed=1)
    with job.open(store, every=1) as ckpt:
        assert ckpt.resume() == 0
        for step in range(steps):
            job.step()
            ckpt.step(step + 1)
        # Read while the save is under way.
        truth = job.truth()
    return truth, [job.step() for _ in range(2)]


def resume(
    store: Path, layout: str, steps: int = 3
) -> tuple[dict[str, torch.Tensor], list[float], list[str]]:
    job = Job(layout, seed=2)
    with warnings.catch_warnings(record=True) as caught, job.open(store) as ckpt:
        warnings.simplefilter("always")
        assert ckpt.resume() == steps
        truth = job.truth()
        losses = [job.step() for _ in range(2)]
    said = [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]
    return truth, losses, said


def header(shard: Path) -> dict[str, Any]:
    with shard.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found: dict[str, Any] = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return found


def written(store: Path) -> dict[str, list[int]]:
    """How many elements of each tensor the ranks have written in the last step."""
    last = shards(store)[-1].parent
    found = collections.defaultdict(list)
    for shard in sorted(last.glob("rank-*.safetensors")):
        for name, entry in header(shard).items():
            found[name].append(torch.Size(entry["shape"]).numel())
    return found


def check_resumed(
    found: list[tuple[dict[str, torch.Tensor], list[float], list[str]]],
    truth: dict[str, torch.Tensor],
    losses: list[float],
    *,
    exact: bool,
) -> None:
    for now, after, _ in found:
        assert set(now) == set(truth)
        for name, tensor in truth.items():
            assert bits(now[name]) == bits(tensor), name
        if exact:
            assert after == losses
        else:
            assert after == pytest.approx(losses, rel=1e-4)


def spread_by_both(truth: dict[str, torch.Tensor]) -> set[str]:
    """What is on the mesh of all ranks in the layout "tp", or belongs to what is."""
    return {name for name in truth if "up." in name or "down." in name}


LAYOUTS = ("ddp", "fsdp", "hsdp", "tp")


@pytest.mark.slices(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_ranks_save_and_any_number_resumes(store: Path, tmp_path: Path, layout: str) -> None:
    found = together(4, tmp_path, train, store, layout)
    truth, losses = found[0]
    for other, _ in found[1:]:
        assert_same(other, truth)

    counts = written(store)
    for name, tensor in truth.items():
        # Tensor parallelism that leaves a parameter out does not say that its groups have the same.
        times = 2 if layout == "tp" and name not in spread_by_both(truth) else 1
        assert sum(counts[name]) == tensor.numel() * times, name
    if layout == "ddp":  # shared out
        shares = [
            sum(torch.Size(entry["shape"]).numel() for entry in header(shard).values())
            for shard in shards(store)[-4:]
        ]
        least = min(shares) - sum(counts["rank-00000/rng/torch"])
        assert least > sum(tensor.numel() for tensor in truth.values()) / 8, shares

    worlds = (4, 3, 2, 1, 6) if layout in ("fsdp", "tp") else (4, 3, 1)
    for world in some(worlds, 2):
        resumed = together(world, tmp_path, resume, store, layout)
        check_resumed(resumed, truth, losses, exact=world == 4)
        for rank, (_, _, said) in enumerate(resumed):
            assert bool(said) == (rank >= 4), said


def test_one_rank_saves_and_three_resume(store: Path, tmp_path: Path) -> None:
    truth, losses = together(1, tmp_path, train, store, "fsdp")[0]
    resumed = together(3, tmp_path, resume, store, "fsdp")
    check_resumed(resumed, truth, losses, exact=False)
    assert not resumed[0][2]
    for _, _, said in resumed[1:]:
        assert len(said) == 1
        assert "seeded anew" in said[0]


def resume_removed(store: Path, layout: str) -> list[str]:
    """Rank 1 finds the newest step gone, after all have opened it."""
    job = Job(layout, seed=2)
    real = Reader.read

    def read(reader: Reader, *args: Any) -> None:
        newest = store / f"g000001/step-{reader.step:010d}"
        if dist.get_rank() == 1 and reader.step == 3:
            for path in sorted(newest.iterdir()):  # the manifest goes first
                path.unlink()
        real(reader, *args)

    Reader.read = read  # type: ignore[method-assign]
    with warnings.catch_warnings(record=True) as caught, job.open(store) as ckpt:
        warnings.simplefilter("always")
        assert ckpt.resume() == 2
    return [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning]


def test_a_step_that_is_removed_while_ranks_read_it_is_not_damaged(
    store: Path, tmp_path: Path
) -> None:
    together(3, tmp_path, train, store, "ddp")
    assert together(3, tmp_path, resume_removed, store, "ddp") == [[], [], []]
    assert not list((store / "g000001/step-0000000003").iterdir())


def resume_and_stumble(store: Path) -> str:
    """Rank 1 cannot make the step its own that all have restored."""
    job = Job("ddp", seed=2)
    real = Reader.adopt

    def adopt(reader: Reader) -> None:
        if dist.get_rank() == 1:
            raise libckpt.StorageError("a save is under way", code=-errno.EBUSY)
        real(reader)

    Reader.adopt = adopt  # type: ignore[method-assign]
    with job.open(store, save_timeout=3600) as ckpt:
        try:
            ckpt.resume()
        except libckpt.StorageError as error:
            return str(error)
    return ""


def test_what_one_rank_fails_with_after_the_restore_is_its_own(store: Path, tmp_path: Path) -> None:
    together(2, tmp_path, train, store, "ddp")
    assert together(2, tmp_path, resume_and_stumble, store) == ["", "a save is under way"]


def test_a_layout_is_saved_and_another_resumes(store: Path, tmp_path: Path) -> None:
    found = together(4, tmp_path, train, store, "fsdp")
    for layout in ("ddp", "hsdp"):
        resumed = together(4, tmp_path, resume, store, layout)
        check_resumed(resumed, *found[0], exact=False)


def test_load_needs_no_ranks(store: Path, tmp_path: Path) -> None:
    truth = together(4, tmp_path, train, store, "tp")[0][0]
    state = libckpt.load(store)
    for name, tensor in state["model"].items():
        assert bits(tensor) == bits(truth[name]), name
    for name, roles in state["optimizer"]["state"].items():
        for role, tensor in roles.items():
            assert bits(tensor) == bits(truth[f"optimizer/state/{name}/{role}"])
    assert_same(libckpt.load(store, names="up.*")["up.weight"], truth["up.weight"])


# What is each rank's own.


class Walk:
    """A loader: its position is another one on each rank."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.noise = torch.full((3,), float(position))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.noise = state["position"], state["noise"]


class Extra(torch.nn.Linear):
    """Has extra state: a part of it is another one on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(2, 2)
        for parameter in self.parameters():
            torch.nn.init.ones_(parameter)
        self.mine = {"rank": rank, "world": 2}

    def get_extra_state(self) -> dict[str, int]:
        return self.mine

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.mine = state


def own_state(rank: int) -> dict[str, Any]:
    return {
        "shared": torch.arange(5.0),
        "own": libckpt.PerRank(torch.full((2, rank + 1), float(rank))),
        "deep": [{"own": libckpt.PerRank({"name": f"rank {rank}"})}],
        "number": 100 + rank,
        "alike": {"same": 7, "array": numpy.arange(3.0)},
        "nested": [{"list": [1, 2 + rank], "same": [3]}, (rank,)],
        "arrays": {"one": numpy.full(3, float(rank)), "other": numpy.zeros(3)},
        "bytes": bytes([rank]) * 9000,
        "module": Extra(rank),
        "loader": Walk(rank),
        "generator": torch.Generator().manual_seed(rank),
    }


def save_own(store: Path) -> list[float]:
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    with libckpt.Checkpointer(store, own_state(rank), pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
    return torch.rand(3).tolist()


def resume_own(store: Path) -> dict[str, Any]:
    rank = dist.get_rank() if dist.is_initialized() else 0
    state = own_state(rank + 50)
    kept = state["own"].value
    state["own"].value = kept if rank > 1 else torch.zeros(2, rank + 1)
    with (
        warnings.catch_warnings(record=True) as caught,
        libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt,
    ):
        warnings.simplefilter("always")
        assert ckpt.resume() == 1
    return {
        "shared": state["shared"],
        "own": state["own"].value,
        "name": state["deep"][0]["own"].value["name"],
        "number": state["number"],
        "position": state["loader"].position,
        "noise": state["loader"].noise,
        "generator": state["generator"].get_state(),
        "drawn": torch.rand(3).tolist(),
        "said": [str(w.message) for w in caught if w.category is libckpt.CheckpointWarning],
    }


def test_what_is_a_ranks_own_comes_back_to_it(store: Path, tmp_path: Path) -> None:
    drawn = together(2, tmp_path, save_own, store)
    assert drawn[0] != drawn[1]
    for rank, found in enumerate(together(2, tmp_path, resume_own, store)):
        assert_same(found["shared"], torch.arange(5.0))
        assert_same(found["own"], torch.full((2, rank + 1), float(rank)))
        assert found["name"] == f"rank {rank}"
        assert found["number"] == 100 + rank
        assert found["position"] == rank
        assert_same(found["noise"], torch.full((3,), float(rank)))
        assert_same(found["generator"], torch.Generator().manual_seed(rank).get_state())
        assert found["drawn"] == drawn[rank]
        assert not found["said"]


def test_another_number_of_ranks_is_told_what_it_gets(store: Path, tmp_path: Path) -> None:
    drawn = together(2, tmp_path, save_own, store)
    found = together(3, tmp_path, resume_own, store)
    again = together(3, tmp_path, resume_own, store)
    for rank in range(3):
        assert_same(found[rank]["shared"], torch.arange(5.0))
        assert found[rank]["number"] == 100
        assert found[rank]["position"] == 0
        assert len(found[rank]["said"]) == 1
        assert "state['loader'] got the state of rank 0" in found[rank]["said"][0]
        assert found[rank]["drawn"] == again[rank]["drawn"]
    for rank in range(2):
        assert_same(found[rank]["own"], torch.full((2, rank + 1), float(rank)))
        assert found[rank]["name"] == f"rank {rank}"
        assert found[rank]["drawn"] == drawn[rank]
        assert "seeded anew" not in found[rank]["said"][0]
    assert found[2]["name"] == "rank 52"
    assert "state['own'], state['deep'][0]['own'] keep their present values" in found[2]["said"][0]
    # What rank 1 had is lost, and rank 1 says so: of what differed, and of nothing else.
    differing = [
        *("state['number']", "state['nested'][0]['list']", "state['nested'][1]"),
        "state['module']['_extra_state']['rank']",
        *("state['arrays']['one']", "state['bytes']", "state['generator']"),
    ]
    words = "ranks had different values of "
    for rank in (0, 2):
        assert words not in found[rank]["said"][0]
    one = together(1, tmp_path, resume_own, store)[0]
    assert "not compared" not in one["said"][0]
    for said in (found[1]["said"][0], one["said"][0]):
        names = said.partition(words)[2].partition(": those of rank 0 are restored")[0]
        assert sorted(names.split(", ")) == sorted(differing)
    assert "seeded anew" in found[2]["said"][0]
    assert found[2]["drawn"] not in drawn
    assert one["drawn"] == drawn[0]
    assert one["name"] == "rank 0"


def save_differing(store: Path) -> None:
    rank = dist.get_rank()
    state = {"number": rank, f"only {rank}": 1, "bytes": bytes([rank]) * 9000}
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()


def test_not_all_ranks_and_not_all_values_are_compared(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may be of thousands of ranks; what is left out is said."""
    together(4, tmp_path, save_differing, store)

    def said(**limits: int) -> str:
        with monkeypatch.context() as patch:
            for name, limit in limits.items():
                patch.setattr(_others, name, limit)
            state = {"number": 9, "only 0": 2, "bytes": b"?" * 9000}
            with libckpt.Checkpointer(store, state) as ckpt, pytest.warns() as caught:
                assert ckpt.resume() == 1
        assert (state["number"], state["only 0"]) == (0, 1)
        return str(caught[0].message)

    every = [f"only {rank}" for rank in range(4)]
    assert [name in said(_AT_A_TIME=2) for name in every] == [True] * 4
    assert "not compared" not in said()
    few = said(_RANKS=2, _AT_A_TIME=1)
    assert [name in few for name in every] == [True, True, True, False]
    assert "the values of 1 other ranks were not compared" in few
    assert "the values of 3 other ranks were not compared" in said(_META_MOST=0)
    large = said(_MOST=1000)
    assert "state['bytes'] are too large to be compared" in large


# The fence.


def change_early(store: Path, how: str) -> str:
    job = Job("fsdp", seed=1)
    job.step()
    parameter = job.model.up.weight
    with job.open(store, on_error="raise") as ckpt:
        ckpt.resume()
        job.step()
        save = ckpt.save(1)
        with torch.no_grad():
            if how == "through the DTensor":
                parameter.add_(1)
            elif how == "its memory":
                parameter._local_tensor.add_(1)
            elif how == "moved":
                parameter._local_tensor = parameter._local_tensor.clone()
            elif how == "a moment":
                job.optimizer.state[parameter]["exp_avg"].mul_(2)
        failed = ""
        try:
            job.optimizer.step()
            save.wait()
        except libckpt.CheckpointError as error:
            failed = f"{type(error).__name__}: {error}"
        # A rank that waits for the others hears of it from them.
        with contextlib.suppress(libckpt.CheckpointError):
            save.wait()
        with contextlib.suppress(libckpt.CheckpointError):
            ckpt.close()
    return failed


@pytest.mark.slices(3)
@pytest.mark.parametrize(
    "how", ["nothing", "through the DTensor", "its memory", "moved", "a moment"]
)
def test_a_change_before_the_fence_is_noticed(store: Path, tmp_path: Path, how: str) -> None:
    for failed in together(2, tmp_path, change_early, store, how):
        if how == "nothing":
            assert not failed
        else:
            assert "up.weight" in failed
            assert "Torn" in failed or "Aborted" in failed


def save_again(store: Path) -> list[Any]:
    """What is made anew at each of several saves."""
    job = Job("fsdp", seed=1)
    made = []
    with job.open(store) as ckpt:
        ckpt.resume()
        for step in range(1, 6):
            if step != 4:
                job.step()
            else:
                with torch.no_grad():
                    job.model(
                        torch.arange(3)
                    )  # leaves whole parameters in the place of sharded ones
            ckpt.save(step).wait()
            walked = ckpt._planner._walked
            made.append((id(walked.modules), id(walked.block)))
    return made


def test_from_the_second_save_on_nothing_is_walked_again(store: Path, tmp_path: Path) -> None:
    for made in together(2, tmp_path, save_again, store):
        assert len(set(made)) == 1, made


def count_operations(store: Path) -> list[str]:
    """Operations and collectives of PyTorch in a save that is not the first."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    job = Job("hsdp", seed=1)
    with job.open(store, rehearse=False) as ckpt:
        ckpt.resume()
        for step in (1, 2):
            job.step()
            ckpt.save(step).wait()
        job.step()
        with Count():
            save = ckpt.save(3)
        save.wait()
    return seen


def test_a_save_runs_no_operation_on_sharded_tensors(store: Path, tmp_path: Path) -> None:
    for seen in together(4, tmp_path, count_operations, store):
        # The clone of the generator's state, perhaps.
        assert len(seen) <= 2, seen


# As users run it.


PROGRAM = """
import sys, warnings
sys.path.insert(0, {tests!r})
import torch.distributed as dist
from pathlib import Path
from ranks import Job
dist.init_process_group("gloo")
job = Job("fsdp", seed=1)
with job.open(Path({store!r}), every=2) as ckpt:
    start = ckpt.resume()
    for step in range(start, start + 4):
        loss = job.step()
        ckpt.step(step + 1)
# In one piece: nothing is buffered here, and print() writes the end of a line by itself.
sys.stdout.write(f"rank {{dist.get_rank()}} from {{start}}: {{loss!r}}\\n")
dist.destroy_process_group()
"""


def torchrun(store: Path, ranks: int) -> list[str]:
    script = store.parent / "train.py"
    script.write_text(PROGRAM.format(tests=str(Path(__file__).parent), store=str(store)))
    words = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, script
    done = finished([sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


@pytest.mark.full
def test_torchrun(store: Path) -> None:
    first = torchrun(store, 2)
    assert [line.partition(":")[0] for line in first] == ["rank 0 from 0", "rank 1 from 0"]
    again = torchrun(store, 2)
    assert [line.partition(":")[0] for line in again] == ["rank 0 from 4", "rank 1 from 4"]


# Modules and optimizers that are not as plain.


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5)
        self.frozen = torch.nn.Parameter(torch.ones(3, 2), requires_grad=False)
        self.head = torch.nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class Talker(Tied):
    """Has a state_dict() of its own, with something that is no tensor."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "said": self.said}

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        self.said = state["said"]
        tensors = {key: value for key, value in state.items() if key != "said"}
        return super().load_state_dict(tensors, *args, **kwargs)


def odd_state(kind: Any, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = kind()
    model.said = f"seed {seed}"
    if dist.is_initialized():
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.arange(7)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def odd_truth(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = [entry["momentum_buffer"] for entry in state["optimizer"].state.values()]
    return [full(tensor) for tensor in (*state["model"].parameters(), *moments)]


def save_odd(store: Path, kind: Any) -> list[torch.Tensor]:
    state = odd_state(kind, 1)
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt:
        ckpt.save(1).wait()
        ckpt.save(2).wait()
    return odd_truth(state)


def resume_odd(store: Path, kind: Any) -> tuple[list[torch.Tensor], str]:
    state = odd_state(kind, 2)
    with libckpt.Checkpointer(store, state, pool_bytes=1 << 20) as ckpt:
        assert ckpt.resume() == 2
    assert state["model"].head.weight is state["model"].embed.weight
    return odd_truth(state), state["model"].said


@pytest.mark.parametrize("kind", [Tied, Talker])
def test_tied_frozen_and_hooked(store: Path, tmp_path: Path, kind: Any) -> None:
    truth = together(3, tmp_path, save_odd, store, kind)[0]
    held = libckpt.load(store)["model"]
    assert bits(held["head.weight"]) == bits(held["embed.weight"]) == bits(truth[1])
    assert sum(written(store)["embed.weight"]) == 35
    assert "head.weight" not in written(store)
    for world in (2, 1):
        for found, said in together(world, tmp_path, resume_odd, store, kind):
            assert_same(found, truth)
            assert said == ("seed 1" if kind is Talker else "seed 2")
