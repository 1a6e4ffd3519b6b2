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
from nodes import SAVE_TIMEOUT, Network, all_of, job, own_store

import libckpt


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


def fail_in_time(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["error"] is not None
        # The last save's end may have been waited for, and other processes have the processor.
        assert answer["seconds"] < 2 * SAVE_TIMEOUT


def well(answers: list[Any]) -> None:
    assert [answer["error"] for answer in answers] == [None] * len(answers)


def test_a_node_that_is_cut_off_costs_the_step_and_not_the_job(
    network: Network, own: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=own) as ranks:
        assert [answer["step"] for answer in all_of(ranks, "resume")] == [0, 0, 0]
        well(all_of(ranks, "save", 10))
        network.cut(1)
        fail_in_time(all_of(ranks, "save", 20))
        assert committed(store, own=own) == [10]
        network.mend(1)
        well(all_of(ranks, "save", 30))
        # The node of the service that they reach each other by.
        network.cut(0)
        fail_in_time(all_of(ranks, "save", 40))
        network.mend(0)
        well(all_of(ranks, "save", 50))
    assert committed(store, own=own) == [10, 30, 50]


def test_a_node_that_stands_still_hears_that_it_was_too_late(
    network: Network, own: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=own) as ranks:
        all_of(ranks, "resume")
        well(all_of(ranks, "save", 10))
        frozen = ranks[1]
        frozen.freeze()
        fail_in_time(all_of([ranks[0], ranks[2]], "save", 20))
        frozen.thaw()
        fail_in_time(all_of([frozen], "save", 20))
        well(all_of(ranks, "save", 30))
    assert committed(store, own=own) == [10, 30]


def test_without_a_node_the_others_resume_what_all_had(network: Network, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store) as ranks:
        all_of(ranks, "resume")
        well(all_of(ranks, "save", 10))
        ranks[1].tell("save", 20)
        ranks[2].tell("save", 20)
        ranks[1].end()
        fail_in_time(all_of([ranks[0]], "save", 20))
        assert ranks[2].answer()["error"] is not None
    with job(network, [0, 2], store) as ranks:
        answers = all_of(ranks, "resume")
        assert [answer["step"] for answer in answers] == [10, 10]
        sums = [64 * 64 * 10 + 1000 * (10 + rank) for rank in range(2)]
        assert [answer["sum"] for answer in answers] == sums
        well(all_of(ranks, "save", 30))
    assert committed(store) == [10, 30]


def test_nodes_with_stores_of_their_own_resume_what_all_had(
    network: Network, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with job(network, [0, 1, 2], store, own=True) as ranks:
        all_of(ranks, "resume")
        well(all_of(ranks, "save", 10))
        network.cut(2)
        fail_in_time(all_of(ranks, "save", 20))
    network.mend(2)
    with job(network, [0, 1, 2], store, own=True) as ranks:
        answers = all_of(ranks, "resume")
        assert [answer["step"] for answer in answers] == [10, 10, 10]
        sums = [64 * 64 * 10 + 1000 * (10 + rank) for rank in range(3)]
        assert [answer["sum"] for answer in answers] == sums
        well(all_of(ranks, "save", 30))
    assert committed(store, own=True) == [10, 30]


def test_whatever_happens_to_a_node_all_resume_the_same(network: Network, tmp_path: Path) -> None:
    assert run(tmp_path, network, world=4, kills=3, seed=5, slow_in=1000) == ((3, 0), [])


def test_saves_that_come_to_their_deadline_cost_no_step_that_was_durable(
    network: Network, tmp_path: Path
) -> None:
    assert run(tmp_path, network, world=3, kills=1, seed=5, slow_in=1) == ((1, 1), [])
