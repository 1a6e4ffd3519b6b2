# SPDX-License-Identifier: Apache-2.0
"""Each unit test runs with each commit, whatever the slice is."""

from __future__ import annotations

import re

import plan
import pytest
from plan import half_of, not_sanitized

KINDS = [{"unit"}, {"unit", "waits"}, {"unit", "alone"}, {"unit", "computing"}]


@pytest.mark.parametrize("suites", KINDS, ids=lambda suites: " ".join(sorted(suites)))
def test_each_unit_test_runs_somewhere(suites: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    where = set()
    for slice_ in map(str, range(64)):
        monkeypatch.setenv("CKPT_TEST_SLICE", slice_)
        # meson leaves what computes out of the builds with a sanitizer, and TSan's run what has one thread.
        asan = half_of(0, "unit")("test_no_such", suites) and "computing" not in suites
        tsan = half_of(1, "unit", "api")("test_no_such", suites) and not suites & {
            "computing",
            "alone",
        }
        plain = not_sanitized("test_no_such", suites)
        assert asan + tsan + plain == 1
        where.add((asan, tsan, plain))
    assert len(where) == (1 if "computing" in suites else 2)


def test_the_public_interface_runs_under_sanitizers_and_in_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suites = {"api", "waits"}
    monkeypatch.setattr(plan, "changes", list)
    asan, tsan, minimal = half_of(0, "unit"), half_of(1, "unit", "api"), half_of(0, "api")
    for name in "test_job_threads", "test_job_uring", "test_cuda_13":
        assert asan(name, suites)
    # On threads, either under ThreadSanitizer or without a sanitizer; each has both within a few commits.
    where = set()
    for slice_ in map(str, range(64)):
        monkeypatch.setenv("CKPT_TEST_SLICE", slice_)
        for name in "test_job_threads", "test_cuda_12", "test_cuda_13":
            assert tsan(name, suites) != minimal(name, suites)
            where.add((name, tsan(name, suites)))
        assert tsan("test_cuda_12", suites) == tsan("test_cuda_13", suites)
    assert len(where) == 6
    assert not not_sanitized("test_job_threads", suites)
    assert not not_sanitized("test_cuda_13", suites)
    rings = [not_sanitized(f"test_{number}_uring", suites) for number in range(200)]
    assert 60 < sum(rings) < 140
    monkeypatch.setattr(plan, "changes", lambda: ["tests/api/test_job.c", "tests/api/kit.c"])
    assert not_sanitized("test_job_uring", suites)
    for takes in tsan, minimal, not_sanitized:
        assert takes("test_job_threads", suites)
    assert not not_sanitized("test_cuda_13", suites)


def test_what_the_model_checker_has_explored_is_not_explored_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(plan, "meson_tests", lambda *words, **more: asked.append((words, more)))
    monkeypatch.setattr(plan, "changes", lambda: ["tests/model/claim.pml"])
    list(plan.suite_steps(["sim", "model"], plan.everything))
    monkeypatch.setattr(plan, "changes", list)
    list(plan.suite_steps(["sim", "model"], plan.everything))
    changed, same = [(list(words[1]), more["also"]) for words, more in asked]
    assert changed == (["sim"], ["models-all"])
    assert same == (["sim", "model"], [])


def test_fuzz_targets_count_in_each_folder_that_they_name() -> None:
    fuzz = plan.ROOT / "tests/fuzz"
    text = "".join(path.read_text() for path in fuzz.glob("*.c"))
    library = plan.ROOT / "libckpt"
    folders = {path.parent.relative_to(library).as_posix() for path in library.glob("**/*.h")}
    named = folders & set(re.findall(r'^#include "([\w/]+)/\w+\.h"', text, re.MULTILINE))

    def listed(name: str) -> set[str]:
        lines = (fuzz / name).read_text()
        return set(re.findall(r"^src:\*libckpt/([\w/]+)/\*$", lines, re.MULTILINE))

    counted = listed("counted.txt")
    assert named
    assert named <= counted <= folders
    # What decodes is checked for alignment, too.
    assert listed("aligned.txt") <= folders - counted
