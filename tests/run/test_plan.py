# SPDX-License-Identifier: Apache-2.0
"""Each unit test runs with each commit, whatever the slice is."""

from __future__ import annotations

import plan
import pytest
from plan import half_of_unit, not_sanitized

KINDS = [{"unit"}, {"unit", "waits"}, {"unit", "alone"}, {"unit", "computing"}]


@pytest.mark.parametrize("suites", KINDS, ids=lambda suites: " ".join(sorted(suites)))
def test_each_unit_test_runs_somewhere(suites: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    where = set()
    for slice_ in map(str, range(64)):
        monkeypatch.setenv("CKPT_TEST_SLICE", slice_)
        # meson leaves what computes out of the builds with a sanitizer, and TSan's run what has one thread.
        asan = half_of_unit(0)("test_no_such", suites) and "computing" not in suites
        tsan = half_of_unit(1)("test_no_such", suites) and not suites & {"computing", "alone"}
        plain = not_sanitized("test_no_such", suites)
        assert asan + tsan + plain == 1
        where.add((asan, tsan, plain))
    assert len(where) == (1 if "computing" in suites else 2)


def test_the_public_interface_runs_under_sanitizers_and_in_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suites = {"api", "waits"}
    monkeypatch.setattr(plan, "changes", list)
    for name in "test_job_threads", "test_job_uring", "test_cuda_13":
        assert half_of_unit(0)(name, suites)
        assert half_of_unit(1)(name, suites)
    # A release without libraries that can be left out has these, and none with io_uring.
    assert not not_sanitized("test_job_threads", suites)
    assert not not_sanitized("test_cuda_13", suites)
    rings = [not_sanitized(f"test_{number}_uring", suites) for number in range(200)]
    assert 60 < sum(rings) < 140
    monkeypatch.setattr(plan, "changes", lambda: ["tests/api/test_job.c", "tests/api/kit.c"])
    assert not_sanitized("test_job_uring", suites)
    assert not_sanitized("test_job_threads", suites)
    assert not not_sanitized("test_cuda_13", suites)
