# SPDX-License-Identifier: Apache-2.0
"""The map from files to parts has no hole, and names nothing that is not there."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import changed
import checkout
import draw
import main
import plan
import pytest
import selection
from checkout import ROOT


def test_every_file_has_a_pattern_and_every_pattern_a_file() -> None:
    files = checkout.git("ls-files")
    assert files
    assert [path for path in files if changed.pattern_of(path) is None] == []
    used = {changed.pattern_of(path) for path in files}
    assert set(changed.MAP) == used


def test_every_part_is_named_and_exists() -> None:
    named = {part for words in changed.MAP.values() for part in words.split()}
    assert named <= set(plan.ALL)
    assert set(plan.ALL) - named <= {"models", "tsan", "minimal", "wheel", "planted", "gpu"} | named


@pytest.mark.parametrize(
    ("path", "some"),
    [
        ("libckpt/engine/commit.c", {"unit", "sim", "lint"}),
        ("bindings/python/libckpt/_load.py", {"python", "typing"}),
        ("tools/cmd_ls.c", {"tools", "lint"}),
        ("tests/model/claim.pml", {"models"}),
        ("tests/python/waiting.py", {"python", "tools", "s3"}),
        ("tests/python/pools.py", {"python", "tools", "s3"}),
        ("tests/s3/s3_programs.py", {"s3", "tools"}),
    ],
)
def test_what_a_change_runs(path: str, some: set[str]) -> None:
    assert some <= set(changed.parts_of([path]))


def test_a_module_of_tests_runs_the_parts_of_all_that_import_it() -> None:
    """Python's own parser finds them here."""
    files = {path: ast.parse(path.read_text()) for path in (ROOT / "tests").glob("**/*.py")}
    modules: dict[str, list[Path]] = {}
    for path in files:
        modules.setdefault(path.stem, []).append(path)
    seen = 0
    for path, tree in files.items():
        names = {name for node in ast.walk(tree) for name in imported_by(node)}
        parts = set(changed.MAP[changed.pattern_of(str(path.relative_to(ROOT))) or ""].split())
        for name in names & modules.keys():
            if any(one.parent == path.parent for one in modules[name]):
                continue
            (module,) = modules[name]
            missing = parts - set(changed.parts_of([str(module.relative_to(ROOT))]))
            assert not missing, f"{path} imports {module}, and not all of its parts run"
            seen += 1
    assert seen > 20


def imported_by(node: ast.AST) -> list[str]:
    """Names of modules."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def test_the_parts_look_at_what_has_changed_since_the_commit_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "base", "")
    monkeypatch.setenv("CKPT_TEST_CHANGED", "")
    options = argparse.Namespace(changed="HEAD", parts=[])
    plan.changes.cache_clear()
    try:
        main.chosen(options)
        assert plan.changes() == checkout.changed_since("HEAD")
    finally:
        plan.changes.cache_clear()


def test_each_part_alone_has_steps() -> None:
    for part in plan.ALL:
        steps = plan.steps([part])
        assert steps, part
        made = {step.makes for step in steps}
        assert {need for step in steps for need in step.needs.split()} <= made, part


def test_slices_are_of_the_tree_and_are_all_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    for tree in range(200):
        monkeypatch.setenv("CKPT_TEST_SLICE", f"{tree}")
        drawn.add(draw.number(4, "sim --seeds 1..10"))
        assert draw.number(4, "x") == draw.number(4, "x")
    assert drawn == {0, 1, 2, 3}


def test_the_inner_loop_leaves_most_tests_that_wait_to_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(smaller: str) -> set[str]:
        monkeypatch.setenv("CKPT_TEST_SMALLER", smaller)
        return {name for name, item in items.items() if not selection.is_for_later(item)}

    def item(name: str, mark: str) -> pytest.Item:
        marks = SimpleNamespace(nodeid=name, get_closest_marker=lambda asked: asked == mark or None)
        return cast(pytest.Item, marks)

    names = [f"tests/python/test_{file}.py::test_{n}[x]" for file in "ab" for n in range(100)]
    items = {name: item(name, "waits") for name in names}
    items["tests/python/test_b.py::test_quick"] = item("tests/python/test_b.py::test_quick", "")
    monkeypatch.setenv("CKPT_TEST_CHANGED", "README.md\ntests/python/test_a.py")
    assert kept("1") == set(items)
    some = kept("4")
    assert set(names[:100]) <= some
    assert "tests/python/test_b.py::test_quick" in some
    assert 110 < len(some) < 150


def test_a_unit_test_runs_under_one_sanitizer_and_a_changed_one_under_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "changes", lambda: ["tests/unit/base/test_changed.c"])
    asan, tsan = plan.half_of(0, "unit"), plan.half_of(1, "unit", "api")
    of_asan = [asan(f"test_{number}", {"unit"}) for number in range(200)]
    of_tsan = [tsan(f"test_{number}", {"unit"}) for number in range(200)]
    assert of_tsan == [not takes for takes in of_asan]
    assert any(of_asan)
    assert any(of_tsan)
    for takes in asan, tsan:
        assert takes("test_changed", {"unit", "alone"})
    assert asan("test_ranks_threads", {"api"})


def test_the_commit_that_landed_is_known() -> None:
    if checkout.git("rev-parse", "--is-shallow-repository") == ["true"]:
        pytest.skip("a shallow clone does not have it")
    assert checkout.changed_since(checkout.landed()) is not None
    assert checkout.changed_since("0" * 40) is None
    assert (ROOT / "tests/landed.txt").exists()


@pytest.mark.parametrize(
    ("paths", "folders"),
    [
        (["libckpt/engine/save/save.c"], {"engine", "tools"}),
        (["libckpt/store/store.c", "docs/s3.md"], {"store", "exchange", "engine", "tools"}),
        (["tests/unit/io/test_io.c", "tools/cli.c"], {"io", "tools"}),
        (["libckpt/peer/client.c", "agent/fill.c"], {"peer"}),
        (["bindings/python/libckpt/_load.py"], set()),
        (["libckpt/engine/save/save.c", "tests/lib/test.h"], None),
        (["include/ckpt/ckpt.h"], None),
    ],
)
def test_which_unit_tests_a_change_runs(paths: list[str], folders: set[str] | None) -> None:
    assert changed.unit_folders(paths) == folders


def test_every_layer_is_known() -> None:
    top = ROOT / "libckpt"
    layers = {path.relative_to(top).parts[0] for path in top.glob("**/*.c")} - {"api"}
    assert set(changed.LAYERS) == layers
