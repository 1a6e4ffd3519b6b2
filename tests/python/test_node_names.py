# SPDX-License-Identifier: Apache-2.0
"""Ranks on several nodes, each with a store of its own, that mean different things by one name."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from libckpt._name_check import Names, difference
from libckpt.dcp import StorageWriter, _engine_cache
from node_rig import TWO, on_node, rank_of, steps_of, stores
from ranks import together
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from waiting import until

import libckpt
from libckpt import _name_check

SHAPES: dict[str, dict[str, tuple[Any, tuple[int, ...]]]] = {
    # of each node's ranks what they mean by the name
    "shape": {"a": (torch.float32, (4, 4)), "b": (torch.float32, (4, 8))},
    "type": {"a": (torch.float32, (4, 4)), "b": (torch.float64, (4, 4))},
    "same": {"a": (torch.float32, (4, 4)), "b": (torch.float32, (4, 4))},
    "third": {"a": (torch.float32, (4, 4)), "b": (torch.float32, (4, 4)), "c": (torch.int32, (2,))},
}


def staged(nodes: str, how: str) -> dict[str, Any]:
    """Tensors that the ranks of each node have on a mesh of their own, under one name."""
    node = nodes[rank_of()]
    meshes = {
        name: DeviceMesh("cpu", [r for r in range(len(nodes)) if nodes[r] == name])
        for name in sorted(set(nodes))
    }
    dtype, shape = SHAPES[how][node]
    whole = torch.ones(shape, dtype=dtype)
    state: dict[str, Any] = {
        "part": distribute_tensor(whole, meshes[node], [Shard(0)]),
        f"only-{node}": DTensor.from_local(whole[0], meshes[node], [Replicate()], run_check=False),
        "all": torch.ones(3),
    }
    return state


def save_apart(place: Path, nodes: str, how: str) -> list[str]:
    """What each of three saves raises; what is wrong with the first two is mended for the third."""
    store, said = on_node(place, nodes), []
    good = staged(nodes, "same") if how != "third" else {"all": torch.ones(3)}
    with libckpt.Checkpointer(
        store, staged(nodes, how), pool_bytes=1 << 20, on_error=lambda _: None, node_store=True
    ) as ckpt:
        for step in (1, 2, 3):
            if step == 3:
                ckpt.state = good
            dist.barrier()
            try:
                ckpt.save(step).wait()
                said.append("")
            except libckpt.CheckpointError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.slices(5)
@pytest.mark.parametrize(
    ("how", "nodes"),
    [("shape", "aabb"), ("type", "aabb"), ("shape", "abab"), ("third", "aabbcc"), ("same", "aabb")],
)
def test_ranks_of_several_nodes_mean_the_same(tmp_path: Path, how: str, nodes: str) -> None:
    for said in together(len(nodes), tmp_path, save_apart, tmp_path, nodes, how):
        assert said[2] == ""
        for text in said[:2]:
            if how == "same":
                assert text == ""
                continue
            # On all ranks, and with the name of it and what two of them mean.
            assert text.startswith("MismatchError: ")
            assert "'part'" in text
            assert {"shape": "[4, 8]", "type": "F64", "third": "I32 [2]"}[how] in text
    for store in stores(tmp_path, nodes):
        committed = [step for step, state in steps_of(store) if state == "committed"]
        assert committed == ([1, 2, 3] if how == "same" else [3])


def change_later(place: Path, nodes: str) -> list[str]:
    """What they mean is one thing in the first save, and not in the second one."""
    store, said = on_node(place, nodes), []
    with libckpt.Checkpointer(
        store, staged(nodes, "same"), pool_bytes=1 << 20, on_error=print, node_store=True
    ) as ckpt:
        for step, how in ((1, "same"), (2, "type"), (3, "same")):
            ckpt.state = staged(nodes, how)
            try:
                ckpt.save(step).wait()
                said.append("")
            except libckpt.CheckpointError as error:
                said.append(type(error).__name__)
    return said


def test_one_that_changes_what_it_means_to_what_nobody_does(tmp_path: Path) -> None:
    """Of those who change it in one save all are compared; of the others it is not known."""
    for said in together(4, tmp_path, change_later, tmp_path, TWO):
        assert said[0] == said[2] == ""


def save_by_dcp(place: Path, nodes: str) -> str:
    store, node = on_node(place, nodes), nodes[rank_of()]
    state: dict[str, Any] = {"w": torch.ones(4, dtype=torch.float64 if node == "b" else None)}
    said = ""
    for step in (1, 2):
        try:
            dcp.save(
                state,
                checkpoint_id=f"step-{step}",
                storage_writer=StorageWriter(store, pool_bytes=1 << 20, node_store=True),
            )
        except dcp.CheckpointException as error:
            said = str(error)
        state = {"w": torch.ones(4)}
    if rank_of() == 0:  # the others look when they save again
        (held,) = _engine_cache._holds.values()
        assert held.engine.names is not None
        assert held.engine.names._known == {"w": "F32 [4]"}
    return said


def test_ranks_that_save_by_dcp_mean_the_same(tmp_path: Path) -> None:
    for said in together(4, tmp_path, save_by_dcp, tmp_path, TWO):
        assert "MismatchError" in said
        assert "do not agree about 'w'" in said
        assert "F64 [4]" in said
    for store in stores(tmp_path):
        assert [step for step, state in steps_of(store) if state == "committed"] == [2]


def count_keys(place: Path, nodes: str) -> tuple[int, int]:
    """What is put there for it is taken away when all have agreed."""
    store = on_node(place, nodes)
    with libckpt.Checkpointer(
        store, staged(nodes, "same"), pool_bytes=1 << 20, node_store=True
    ) as ckpt:
        names = ckpt._core.engine.names
        assert names is not None
        put: list[str] = []
        kept, names._table.put = names._table.put, lambda k, v: bool(put.append(k)) or kept(k, v)
        ckpt.save(1).wait()
        ckpt.save(2).wait()
        once = [key for key in put if "/names/" in key]
        dist.barrier()
        place_of = f"{names._prefix}/1-1"
        left = [names._table.read(key) for key in (*once, f"{place_of}/list")]
    return len(once), sum(value is not None for value in left)


def test_it_is_compared_once_and_leaves_nothing(tmp_path: Path) -> None:
    for count, left in together(4, tmp_path, count_keys, tmp_path, TWO):
        assert (count, left) == (1, 0)


class Kept:
    """A store of keys in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0

    def read(self, key: str) -> bytes | None:
        self.calls += 1
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> bool:
        self.calls += 1
        return self.values.setdefault(key, value) == value

    def first(self, key: str, value: bytes) -> bytes:
        self.calls += 1
        return self.values.setdefault(key, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        self.calls += 1
        if self.values.get(key, b"") != old:
            return False
        self.values[key] = new
        return True

    def write(self, key: str, value: bytes) -> None:
        self.calls += 1
        self.values[key] = value

    def drop(self, key: str) -> None:
        self.values.pop(key, None)


A, B, C = {"x": "F32 [1]", "y": "F32 [2]"}, {"y": "F32 [3]"}, {"z": "F32 [1]"}


@pytest.mark.parametrize("few", [0, 1, 2, 16])
def test_whoever_comes_second_finds_out(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(_name_check, "_FEW", few)
    for order in itertools.permutations([A, B, C, A]):
        table: Any = Kept()
        all_of_them = [Names(table, "p", rank) for rank in range(4)]
        found = [
            names.compare(what, "1-1").why for names, what in zip(all_of_them, order, strict=True)
        ]
        assert [why for why in found if why] == [all_of_them[3].why("1-1")]
        assert "'y'" in next(why for why in found if why)
        assert all_of_them[0].why("1-2") is None
        # Another save is another matter.
        good = [names.compare(A, "1-2") for names in all_of_them]
        assert [compared.why for compared in good] == [None] * 4
        before = table.calls
        for names, compared in zip(all_of_them, good, strict=True):
            names.committed(compared)
        assert not [key for key in table.values if "/1-2" in key]
        assert [names.compare(A, "1-3").why for names in all_of_them] == [None] * 4
        assert table.calls == before


def compare_at_once(table: Any) -> list[str | None]:
    found: list[str | None] = []

    def one(rank: int, what: dict[str, str]) -> None:
        found.append(Names(table, "p", rank).compare(what, "1-1").why)

    threads = [threading.Thread(target=one, args=given) for given in enumerate([A, B, A, C])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("few", [0, 1, 2, 16])
def test_two_at_once_do_not_miss_each_other(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(_name_check, "_FEW", few)
    for _ in range(50):
        table: Any = Kept()
        assert sum(why is not None for why in compare_at_once(table)) == 1
        some = table.values.get("p/names/1-1/list", b"")
        assert len(some.splitlines()) == min(few, 3)


def test_many_ranks_with_names_of_their_own_cost_as_many_calls() -> None:
    """Each rank has other names than any other; what it costs grows with their number."""
    costs = []
    for count in (100, 200, 400):
        table: Any = Kept()
        all_of_them = [Names(table, "p", rank) for rank in range(count)]
        found = [
            names.compare({"all": "F32 [4]", **{f"{rank}-{n}": "F32 [2]" for n in range(5)}}, "1-1")
            for rank, names in enumerate(all_of_them)
        ]
        assert [compared.why for compared in found] == [None] * count
        costs.append(table.calls / count)
        for names, compared in zip(all_of_them, found, strict=True):
            names.committed(compared)
        assert table.values == {}
        late = Names(table, "p", 0).compare({"7-1": "F64 [2]"}, "1-1")
        assert late.why is None
    assert max(costs) < min(costs) * 1.1


def test_the_last_of_many_finds_out() -> None:
    for bad in (3, 40):  # one of the first, and one of the others
        table: Any = Kept()
        for rank in range(50):
            found = Names(table, "p", rank).compare({f"w{rank}": "F32 [4]"}, "1-1")
            assert found.why is None
        why = Names(table, "p", 50).compare({f"w{bad}": "F64 [4]"}, "1-1").why
        assert why is not None
        assert f"F32 [4] on rank {bad}, F64 [4] on rank 50" in why


def test_ranks_that_have_all_alike_ask_nobody() -> None:
    table: Any = Kept()
    assert Names(table, "p", 0).compare({}, "1-1") == ({}, [], None)
    assert table.calls == 0


def test_a_store_of_keys_that_fails_costs_no_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Kept):
        def put(self, key: str, value: bytes) -> bool:
            raise RuntimeError("Connection reset")

    class Hanging(Kept):
        def put(self, key: str, value: bytes) -> bool:
            until(free.is_set)
            return True

    free = threading.Event()
    cases = (Broken(), 3600.0, "Connection reset"), (Hanging(), 0.1, "does not answer")
    for table, patience, said in cases:
        monkeypatch.setattr(_name_check, "_PATIENCE", patience)
        names = Names(table, "p", 0)  # type: ignore[arg-type]
        assert names.compare(A, "1-1").why is None
        assert said in caplog.text
    free.set()
    monkeypatch.setattr(_name_check, "_PATIENCE", 3600)
    monkeypatch.setattr(_name_check, "_MOST", 10)
    full: Any = Kept()
    assert Names(full, "p", 0).compare(A, "1-1").why is None
    assert Names(full, "p", 1).compare(B, "1-1").why is None
    assert "too many" in caplog.text


class Slow(Kept):
    """So many calls are answered at once, and the others when it is let; claims may be not."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free
        self.entered, self.let = threading.Event(), threading.Event()
        self.lost = False

    def _wait(self) -> None:
        self.free -= 1
        if self.free < 0:
            self.entered.set()
            until(self.let.is_set)

    def put(self, key: str, value: bytes) -> bool:
        self._wait()
        return super().put(key, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        self._wait()
        return super().swap(key, old, new)

    def write(self, key: str, value: bytes) -> None:
        self._wait()
        super().write(key, value)

    def first(self, key: str, value: bytes) -> bytes:
        self._wait()
        found = super().first(key, value)
        if self.lost:
            raise RuntimeError("Connection reset")
        return found


@pytest.mark.waits
@pytest.mark.slices(8)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("few", [0, 16])
@pytest.mark.parametrize("free", [0, 1, 2, 5])
def test_what_is_given_up_ends_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, free: int, few: int, lost: bool
) -> None:
    """However far it has come by then, and though the save is committed before it ends."""
    monkeypatch.setattr(_name_check, "_FEW", few)
    monkeypatch.setattr(_name_check, "_PATIENCE", 1)
    table: Any = Slow(free)
    table.lost = lost and free > 0
    many = {f"w{number}": "F32 [4]" for number in range(1000)}
    names = Names(table, "p", 0)
    found = names.compare(many, "1-1")
    assert found.why is None
    monkeypatch.setattr(_name_check, "_PATIENCE", 3600)
    names.committed(found)
    calls = table.calls
    table.let.set()
    for thread in threading.enumerate():
        if thread.name == "libckpt-names":
            thread.join()
    assert table.values == {}
    assert table.calls <= calls + 2


def test_a_claim_whose_answer_is_lost_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_name_check, "_FEW", 0)
    table: Any = Slow(1 << 20)
    table.lost = True
    names = Names(table, "p", 0)
    found = names.compare(A, "1-1")
    assert [key for key in table.values if "/name/" in key]
    names.committed(found)
    assert table.values == {}


def test_a_commit_is_of_the_save_that_has_committed() -> None:
    """Not of one that has come after it, and was skipped."""
    table: Any = Kept()
    mine, others = Names(table, "p", 0), Names(table, "p", 1)
    first, skipped = mine.compare(A, "1-1"), mine.compare(B, "1-2")
    mine.committed(first)
    assert not [key for key in table.values if "/1-1" in key]
    assert set(skipped.keys) <= table.values.keys()
    assert others.compare({"y": "F32 [9]"}, "1-3").why is None
    # It is new for this rank, though it has looked at it in vain before.
    why = mine.compare(B, "1-3").why
    assert why is not None
    assert "F32 [9] on rank 1, F32 [3] on rank 0" in why


@pytest.mark.parametrize("how", ["thread", "drop"])
def test_a_commit_at_the_end_of_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """There are no new threads then, and perhaps no store of keys: nothing is wrong with that."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    table: Any = Kept()
    names = Names(table, "p", 0)
    found = names.compare(A, "1-1")
    assert found.keys
    with monkeypatch.context() as patch:
        if how == "thread":
            patch.setattr(_name_check.threading.Thread, "start", refuse)
        else:
            patch.setattr(table, "drop", refuse)
        names.committed(found)
    assert caplog.text == ""
    before = table.calls
    assert names.compare(A, "1-2").why is None
    assert table.calls == before


def skip_and_compare(place: Path, nodes: str) -> list[list[str]]:
    """The steps that were committed, and those whose meanings are known to be the same then."""
    store, known = on_node(place, nodes), []
    wheres: list[tuple[str, _name_check.Compared]] = []
    with libckpt.Checkpointer(
        store, staged(nodes, "same"), pool_bytes=1 << 20, busy="skip", node_store=True
    ) as ckpt:
        names = ckpt._core.engine.names
        assert names is not None
        compare = names.compare

        def note(meanings: dict[str, str], where: str) -> _name_check.Compared:
            wheres.append((where, compare(meanings, where)))
            return wheres[-1][1]

        names.compare = note  # type: ignore[method-assign]
        names.committed = known.append  # type: ignore[method-assign]
        saves = []
        for step in range(1, 30):
            saves.append(ckpt.save(step))
            if step % 8 == 0:
                dist.barrier()
    said = [where.partition("-")[2] for one in known for where, found in wheres if found is one]
    return [[str(save.step) for save in saves if save.error is None], said]


def test_what_is_known_is_of_the_saves_that_were_not_skipped(tmp_path: Path) -> None:
    for committed, known in together(2, tmp_path, skip_and_compare, tmp_path, "ab"):
        assert known == committed
        assert len(known) < 29


def test_what_two_mean() -> None:
    assert difference(A, 1, A, 0) is None
    assert difference(A, 1, C, 0) is None
    why = difference(B, 3, A, 2)
    assert why is not None
    assert "F32 [2] on rank 2, F32 [3] on rank 3" in why
