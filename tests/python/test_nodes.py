# SPDX-License-Identifier: Apache-2.0
"""
Nodes that cannot reach each other, or stand still: a step is of all ranks or of none, everybody
knows by the deadline, and who can be reached again goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killing_nodes import run
from nodes import Network, all_of, job, own_store
from waiting import until

import libckpt

pytestmark = pytest.mark.waits


@pytest.fixture
def network() -> Iterator[Network]:
    """Three nodes."""
    try:
        found = Network(3).__enter__()
    except OSError as error:
        pytest.skip(f"a container may not let its root make networks: {error}")
    yield found
    found.__exit__()


@pytest.fixture(params=["one store", "stores of their own"])
def own(request: pytest.FixtureRequest) -> bool:
    """Whether every node has one."""
    return bool(request.param == "stores of their own")


def committed(store: Path, *, own: bool = False) -> list[int]:
    """The steps that can be restored, oldest first; on all nodes."""
    stores = [own_store(store, node) for node in range(3)] if own else [store]
    found = [
        sorted(info.step for info in libckpt.list_steps(one) if info.state == "committed")
        for one in stores
    ]
    assert found == [found[0]] * len(found)
    return found[0]


def fail(answers: list[Any]) -> None:
    """They know by the deadline of the save, which is much shorter than they would wait."""
    for answer in answers:
        assert answer["error"] is not None
        assert "WaitTimeoutError" not in answer["error"]


def save(ranks: list[Any], step: int) -> int:
    """
    The first step from this one on that all have. The network may be back, but what was lost in it
    is sent again when as much time has passed once more (TCP), perhaps after a save's deadline.
    """
    saved: list[int] = []

    def is_saved() -> bool:
        number = step + len(saved)
        saved.append(number)
        return all(answer["error"] is None for answer in all_of(ranks, "save", number))

    until(is_saved, "a save after the network was repaired")
    return saved[-1]


def test_a_node_that_is_cut_off_costs_the_step_and_not_the_job(
    network: Network, own: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=own) as ranks:
        assert [answer["step"] for answer in all_of(ranks, "resume")] == [0, 0, 0]
        first = save(ranks, 100)
        network.cut(1)
        fail(all_of(ranks, "save", 200))
        assert first in committed(store, own=own)
        network.mend(1)
        second = save(ranks, 300)
        # The node of the service that they reach each other by.
        network.cut(0)
        fail(all_of(ranks, "save", 400))
        network.mend(0)
        third = save(ranks, 500)
    found = committed(store, own=own)
    assert {first, second, third} <= set(found)
    assert not {200, 400} & set(found)


def test_a_node_that_stands_still_hears_that_it_was_too_late(
    network: Network, own: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=own) as ranks:
        all_of(ranks, "resume")
        first = save(ranks, 100)
        frozen = ranks[1]
        frozen.freeze()
        fail(all_of([ranks[0], ranks[2]], "save", 200))
        frozen.thaw()
        fail(all_of([frozen], "save", 200))
        second = save(ranks, 300)
    found = committed(store, own=own)
    assert {first, second} <= set(found)
    assert 200 not in found


def test_without_a_node_the_others_resume_what_all_had(network: Network, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store) as ranks:
        all_of(ranks, "resume")
        first = save(ranks, 10)
        ranks[1].tell("save", 200)
        ranks[2].tell("save", 200)
        ranks[1].end()
        fail(all_of([ranks[0]], "save", 200))
        fail([ranks[2].answer()])
    with job(network, [0, 2], store) as ranks:
        answers = all_of(ranks, "resume")
        assert [answer["step"] for answer in answers] == [first] * 2
        sums = [64 * 64 * first + 1000 * (first + rank) for rank in range(2)]
        assert [answer["sum"] for answer in answers] == sums
        second = save(ranks, 300)
    found = committed(store)
    assert {first, second} <= set(found)
    assert 200 not in found


def test_nodes_with_stores_of_their_own_resume_what_all_had(
    network: Network, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=True) as ranks:
        all_of(ranks, "resume")
        first = save(ranks, 10)
        network.cut(2)
        fail(all_of(ranks, "save", 200))
    network.mend(2)
    with job(network, [0, 1, 2], store, own=True) as ranks:
        answers = all_of(ranks, "resume")
        assert [answer["step"] for answer in answers] == [first] * 3
        sums = [64 * 64 * first + 1000 * (first + rank) for rank in range(3)]
        assert [answer["sum"] for answer in answers] == sums
        second = save(ranks, 300)
    found = committed(store, own=True)
    assert {first, second} <= set(found)
    assert 200 not in found


def test_whatever_happens_to_a_node_all_resume_the_same(network: Network, tmp_path: Path) -> None:
    assert run(tmp_path, network, world=4, kills=3, seed=5, slow_in=1000) == ((3, 0), [])


@pytest.mark.full
def test_saves_that_come_to_their_deadline_cost_no_step_that_was_durable(
    network: Network, tmp_path: Path
) -> None:
    assert run(tmp_path, network, world=3, kills=1, seed=5, slow_in=1) == ((1, 1), [])
