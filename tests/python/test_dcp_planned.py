# SPDX-License-Identifier: Apache-2.0
"""With stores on every node: what ranks of other nodes have planned, and when it travels."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from libckpt._engine import Options
from libckpt.dcp import StorageReader, StorageWriter, _hold, _planned, _sharing, close
from node_rig import TWO, on_node
from ranks import together
from torch.distributed.checkpoint import SavePlan

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
        (found,) = _hold._holds.values()
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
        own = f"{self.meeting._held_key(dist.get_rank())}/all"
        return sum("/planned/" in key for key in self.written), self.written.count(own)


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
        here = watch.meeting._planned._keys
        left = [*here, f"{watch.meeting._held_key(rank)}/all"] if rank == 0 else here
        planned, own = (now - then for now, then in zip(watch.counts(), before, strict=True))
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
    """A store of keys in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0

    def read(self, key: str) -> bytes | None:
        self.calls += 1
        return self.values.get(key)

    def write(self, key: str, value: bytes) -> None:
        self.calls += 1
        self.values[key] = value

    def drop(self, key: str) -> None:
        self.values.pop(key, None)


def test_names_that_no_key_can_hold_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_planned, "_PART", 100)
    keys: Any = Keys()
    first, other, late = (_planned.Planned("p") for _ in range(3))
    names = {os.urandom(8).hex(): ["F32", [n]] for n in range(50)}
    assert other.hear(keys, first.tell(keys, None)) is None
    told = first.tell(keys, names)
    assert told is not None
    assert told[1] > 5
    assert max(map(len, keys.values.values())) == 100
    assert other.hear(keys, told) == names
    # What has not changed is not looked at again, and once it has gone nobody needs it.
    first.done(keys)
    assert keys.values == {}
    calls = keys.calls
    assert first.tell(keys, dict(names)) == told
    assert other.hear(keys, told) == names
    assert keys.calls == calls
    with pytest.raises(LookupError):
        late.hear(keys, told)
    # Another one takes the place of one that a save has left behind.
    first.tell(keys, {"a": None})
    left = set(keys.values)
    assert other.hear(keys, first.tell(keys, {"b": None})) == {"b": None}
    assert left.isdisjoint(keys.values)


def test_plans_of_all_with_what_torch_has_kept() -> None:
    class Planner:
        global_plan: Any = None

    gone, one, two = SavePlan([], usable=False), SavePlan([]), SavePlan([], planner_data=1)
    planner: Any = Planner()
    assert _sharing.whole([one, two], planner) == [one, two]
    assert _sharing.whole([gone, two], planner) is None
    planner.global_plan = [one, one]
    assert _sharing.whole([gone, two], planner) == [one, two]
    planner.global_plan = [one]
    assert _sharing.whole([gone, two], planner) is None


def test_one_pass_over_the_ranks() -> None:
    """Of a great job: keepers() is asked at every save."""

    class Node(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Node.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    nodes = [Node(f"node-{rank // 8}") for rank in range(4096)]
    assert _sharing.keepers(nodes) == list(range(0, 4096, 8))
    assert Node.compared < 2 * 4096


def test_the_wait_for_other_nodes_is_what_is_left_of_the_save() -> None:
    asked: list[tuple[float, float]] = []

    class Fake:
        peers = (0,)
        rank = 0

        def hear_ends(self, patience: float, of: float) -> None:
            asked.append((patience, of))

    found: Any = _hold.Hold.__new__(_hold.Hold)
    found.engine = found._meeting = Fake()
    found.config = _hold.Config("/p", Options(save_timeout=600.0))
    for left in (100.0, -1.0):
        found._due = time.monotonic() + left
        found.await_nodes()
    assert [of for _, of in asked] == [615.0] * 2
    assert 90 < asked[0][0] <= 100
    assert asked[1][0] == 0
