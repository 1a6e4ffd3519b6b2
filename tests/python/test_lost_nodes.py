# SPDX-License-Identifier: Apache-2.0
"""A node is lost with its disk, and the others have steps that nobody else can have."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from libckpt._native import lib
from libckpt._options import Options
from ranks import together
from test_remote import committed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import libckpt
from libckpt import _newest


def _value(step: int, rank: int) -> float:
    return float(100 * step + rank)


def _runs(root: Path, saves: list[int], options: dict[str, Any]) -> tuple[int, list[str]]:
    """Of ranks on a node each: what it goes on from, or what it fails with; then it saves."""
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank}"
    mine = torch.full((1000,), -1.0)
    with (
        warnings.catch_warnings(record=True) as caught,
        libckpt.Checkpointer(
            root / f"node{rank}",
            {"mine": libckpt.PerRank(mine)},
            node_store=True,
            remote=root / "remote",
            remote_every=4,
            **options,
        ) as ckpt,
    ):
        warnings.simplefilter("always")
        try:
            found = ckpt.resume()
        except libckpt.OtherNodeError as error:
            assert torch.equal(mine, torch.full((1000,), -1.0))
            return -1, [str(error)]
        assert torch.equal(mine, torch.full((1000,), _value(found, rank) if found else -1.0))
        for step in saves:
            mine.fill_(_value(step, rank))
            ckpt.save(step).wait("remote" if step % 4 == 0 else "local")
    return found, [str(w.message) for w in caught if "passed over" in str(w.message)]


def _job(root: Path, saves: list[int], **options: Any) -> tuple[int, list[str]]:
    """The same of all ranks."""
    answers = together(2, root, _runs, root, saves, options)
    assert len({step for step, _ in answers}) == 1, answers
    assert len({len(said) for _, said in answers}) == 1, answers
    return answers[0]


@pytest.mark.waits
@pytest.mark.slices(2)
@pytest.mark.parametrize("node", ["node0", "node1"])
def test_a_lost_node_and_newer_steps_of_others(tmp_path: Path, node: str) -> None:
    """
    The others may be only somewhere else, so that is an error, until the user says that they are
    lost; what is passed over then is said once, and never comes back.
    """
    assert _job(tmp_path, [4, 5, 6]) == (0, [])
    # What is in the remote store need not be here any more: keep_last may have removed it.
    for path in tmp_path.glob("node*/g*/step-0000000004"):
        shutil.rmtree(path)
    shutil.rmtree(tmp_path / node)
    step, said = _job(tmp_path, [])
    assert step == -1
    assert "`ckpt upload` on each other node" in said[0]
    assert "if that is not possible, lost_nodes=True" in said[0]
    step, said = _job(tmp_path, [5, 8], lost_nodes=True)
    assert step == 4
    (warning,) = said
    assert "continues from step 4" in warning
    for number in range(2):
        files = (tmp_path / f"node{number}").glob("g000001/step-0000000004/rank-*")
        # The start without lost_nodes has brought all of it into the empty store, this one only
        # what the node's own rank wrote into the other.
        ranks = range(2) if node == f"node{number}" else [number]
        assert {file.name[:10] for file in files} == {f"rank-{rank:05d}" for rank in ranks}
    assert "passed over (lost_nodes=True): 5, 6." in warning
    assert str(tmp_path / "remote") in warning
    assert _job(tmp_path, []) == (8, [])
    assert committed(tmp_path / "remote") == [8, 4]
    assert not list(tmp_path.rglob("quarantine.json"))


def _on_mesh(root: Path, order: list[int], step: int, options: dict[str, Any]) -> str:
    """Of a tensor every rank has a half, which `order` says: saved, or resumed if step is 0."""
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank}"
    whole, mesh = torch.arange(1000.0), DeviceMesh("cpu", order)
    own = distribute_tensor(whole if step else torch.zeros(1000), mesh, [Shard(0)])
    with libckpt.Checkpointer(
        root / f"node{rank}", {"x": own}, node_store=True, remote=root / "remote", **options
    ) as ckpt:
        if step:
            ckpt.save(step).wait("remote")
            return ""
        try:
            assert ckpt.resume() == 1
        except libckpt.OtherNodeError as error:
            return str(error)
    half = 500 * order.index(rank)
    assert torch.equal(own.to_local(), whole[half : half + 500])
    return ""


@pytest.mark.waits
def test_another_mesh_on_empty_nodes(tmp_path: Path) -> None:
    """
    The same ranks on the same nodes want what others wrote: the start brings all of the step. With
    lost_nodes each node is brought what its own rank wrote, and the error says what to do.
    """

    def resumed(order: list[int], **options: Any) -> list[str]:
        for path in tmp_path.glob("node*"):
            shutil.rmtree(path)
        return together(2, tmp_path, _on_mesh, tmp_path, order, 0, options)

    together(2, tmp_path, _on_mesh, tmp_path, [0, 1], 1, {})
    assert resumed([1, 0]) == ["", ""]
    assert resumed([0, 1], lost_nodes=True) == ["", ""]
    said = resumed([1, 0], lost_nodes=True)
    assert any("start with empty stores and without lost_nodes" in text for text in said), said


# How a rank goes on depends on what all ranks know, and not on how far it has come itself.


def _elsewhere(step: int) -> libckpt.OtherNodeError:
    return libckpt.OtherNodeError("it is elsewhere", code=lib.CKPT_EOTHERNODE, step=step)


def _asks(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], **options: Any
) -> tuple[Any, list[Any]]:
    """What becomes of a job that gets these answers, one after the other, and those left."""

    def answer(_: Any, read: Callable[[Any], Any]) -> Any:
        step, reader, error = answers.pop(0)
        if reader is None:
            if error is not None:
                raise error
            return step, None

        def fail(_: Any) -> Any:
            raise error

        return step, read(SimpleNamespace(step=step, read=fail, **reader))

    monkeypatch.setattr(_newest, "_read_common", answer)
    engine: Any = SimpleNamespace(
        path="/nvme/run", rank=1, options=Options(node_store=True, **options)
    )
    try:
        taken, _ = _newest._read_agreed(engine, lambda reader: reader.read(reader))
    except libckpt.CheckpointError as error:
        return error, answers
    return taken, answers


HEARD = {"asked": True, "complete": False}
OWN = {"asked": False, "complete": False}


@pytest.mark.parametrize("reader", [None, HEARD])
def test_all_ask_again_wherever_they_have_heard_it(
    monkeypatch: pytest.MonkeyPatch, reader: dict[str, bool] | None
) -> None:
    """One rank has begun to read, and another one is told of the failure while it opens."""
    answers = [(6, reader, _elsewhere(6)), (6, reader, _elsewhere(6)), (6, None, None)]
    error, left = _asks(monkeypatch, answers, lost_nodes=True)
    assert isinstance(error, libckpt.OtherNodeError)
    assert len(left) == 1
    assert ("as many nodes as have saved it" in str(error)) == (reader is not None)
    assert ("the error of rank 0 says why" in str(error)) == (reader is None)
    with pytest.warns(libckpt.CheckpointWarning, match="continues from step 5"):
        taken, _ = _asks(
            monkeypatch, [(6, reader, _elsewhere(6)), (5, None, None)], lost_nodes=True
        )
    assert taken == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = [(6, reader, _elsewhere(6)), (6, None, None)]
        assert _asks(monkeypatch, answers, lost_nodes=True) == (6, [])


def test_what_others_have_not_heard_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(6, OWN, _elsewhere(6)), (6, None, None)]
    for lost_nodes in (False, True):
        error, left = _asks(monkeypatch, answers.copy(), lost_nodes=lost_nodes)
        assert isinstance(error, libckpt.OtherNodeError)
        assert len(left) == 1
        assert ("lost_nodes=True" in str(error)) == lost_nodes


@pytest.mark.parametrize("remote", ["", "s3://bucket/run"])
def test_nothing_that_all_have(monkeypatch: pytest.MonkeyPatch, remote: str) -> None:
    """Nobody starts from nothing who has not said so, nor is told to if there may be something."""
    none = libckpt.QuarantinedError("all are", code=lib.CKPT_EQUARANTINED)
    answers = [(2, None, _elsewhere(2)), (0, None, none)]
    error, _ = _asks(monkeypatch, answers, lost_nodes=True, remote=remote)
    assert isinstance(error, libckpt.OtherNodeError)
    assert "there is no step that all nodes have" in str(error)
    assert ("new_start=True starts from step 0" in str(error)) == bool(remote)
