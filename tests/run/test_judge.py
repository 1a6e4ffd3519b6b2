# SPDX-License-Identifier: Apache-2.0
"""No failure is taken for luck that may be one of the product, and no skip goes unseen."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge
import main
import pytest
import report
import selection
from lanes import Part
from results import FAILED, HUNG, PASSED, SKIPPED, Test, of_meson, of_pytest

CMOCKA = "[       OK ] test_a\n[  {b} ] test_b\n[       OK ] test_c\n"
LIMIT = "hang limit: the save, 120 s\n"


def test(outcome: str = FAILED, output: str = "", **more: object) -> Test:
    return Test("build/test_x", outcome, 1.0, output, **more)  # type: ignore[arg-type]


test.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("luck", "failed"),
    [
        (True, test(HUNG)),
        (True, test(output=LIMIT, code=1)),
        (True, test(output=LIMIT, code=-6)),
        (True, test(output=LIMIT, code=134)),
        (False, test(code=-6)),
        (True, test(output="bind: Address already in use", code=1)),
        (True, test(output="the import took long", marks={"no_oracle"})),
        (True, test(output=LIMIT, inner={"test_a": PASSED, "test_b": FAILED})),
        (True, test(output="[  FAILED  ] test_b", code=1, marks={"unit", "no_oracle"})),
        (False, test(code=-11, marks={"no_oracle"})),
        (False, test(code=134, marks={"no_oracle"})),
        (False, test(output="ERROR: LeakSanitizer", code=1, marks={"no_oracle"})),
        (False, test()),
        (False, test(PASSED, output=LIMIT)),
        (False, test(output="expected 1, got 2", code=1)),
        (False, test(output=LIMIT, inner={"test_a": FAILED, "test_b": FAILED})),
        (False, test(output=LIMIT, code=-11)),
        (False, test(output=LIMIT, code=139)),
        (False, test(HUNG, output="==1==ERROR: AddressSanitizer: heap-use-after-free")),
        (False, test(HUNG, output="x.c:3: runtime error: signed integer overflow")),
        (False, test(HUNG, output="WARNING: ThreadSanitizer: data race")),
        (
            False,
            test(output="seed 7: step 3 is lost\nrepeat with: sim --seeds 7", marks={"no_oracle"}),
        ),
        (False, test(output="x.c:1: assertion failed: n > 0\n" + LIMIT)),
    ],
)
def test_what_runs_once_more(luck: bool, failed: Test) -> None:
    assert judge.is_bad_luck(failed) == luck


def test_unit_tests_that_run_once_more_judge_no_bytes() -> None:
    """Nor are they of what commits, keeps or sends steps."""
    folder = judge.HERE / "unit"
    (listed,) = re.findall(r"^no_oracle = \[(.*?)\]", (folder / "meson.build").read_text(), re.M | re.S)
    names = re.findall(r"'(\w+)'", listed)
    assert names
    for name in names:
        (source,) = folder.glob(f"*/{name}.c")
        assert source.parent.name in {"base", "device", "net", "staging"}, name
        assert not re.search(r"memcmp|assert_memory|rig_filled|digest|crc32", source.read_text()), name


def verdict(*tests: Test, outcome: str = PASSED) -> report.Verdict:
    part = Part(outcome=outcome, tests=list(tests))
    return report.Verdict("c0ffee", "5", False, 1.0, {"suites": part})


@pytest.mark.parametrize(("command", "stays"), [("true", False), ("false", True)])
def test_bad_luck_is_told_and_a_second_failure_is_one(
    command: str, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "LOGS", tmp_path)
    what = verdict(test(HUNG, alone=[command]), test(PASSED), outcome=FAILED)
    main.settle(what)
    assert what.failed == (["build/test_x"] if stays else [])
    assert [t.name for t in what.flaky] == ([] if stays else ["build/test_x"])
    assert what.parts["suites"].outcome == (FAILED if stays else PASSED)


def test_a_real_failure_never_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "LOGS", tmp_path)
    what = verdict(test(output="step 3 is lost", alone=["true"]), outcome=FAILED)
    main.settle(what)
    assert what.failed == ["build/test_x"]
    assert not what.flaky


def test_a_part_that_failed_without_a_test_has_failed() -> None:
    what = verdict(test(PASSED), outcome=FAILED)
    main.settle(what)
    assert what.failed == ["suites"]


def test_a_skip_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = [test(SKIPPED), test(PASSED, inner={"test_a": PASSED, "test_b": SKIPPED})]
    monkeypatch.setattr(judge, "skip_patterns", lambda: iter(()))
    assert judge.skips_without_reason(skipped) == ["build/test_x", "build/test_x/test_b"]
    monkeypatch.setattr(judge, "skip_patterns", lambda: iter(["build/*/test_b"]))
    assert judge.skips_without_reason(skipped) == ["build/test_x"]


def test_the_list_of_flaky_tests_stays_short() -> None:
    today = datetime.date(2026, 11, 27)
    line = "2026-11-20 build/test_x a race of the test with its server\n"
    assert judge.flaky_names("# text\n" + line * 3, today) == ["build/test_x"] * 3
    for wrong in (line * 4, line.replace("11-20", "11-19"), "2026-11-27 build/test_x\n"):
        with pytest.raises(ValueError, match="flaky|cause"):
            judge.flaky_names(wrong, today)


def test_a_flaky_test_is_left_out_by_its_printed_name(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    items = list(request.session.items)
    left_out = [f"runner/{items[0].nodeid}", "build/test_[xy]"]
    monkeypatch.setattr(judge, "flaky", lambda: left_out)
    assert judge.is_left_out("build/test_x")
    assert not judge.is_left_out("build/test_z")
    monkeypatch.setenv("CKPT_TEST_PART", "runner")
    monkeypatch.delenv("CKPT_TEST_FULL", raising=False)
    monkeypatch.setattr(selection, "SLICES", 1)
    told: list[pytest.Item] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    kept = items[:]
    selection.pytest_collection_modifyitems(SimpleNamespace(hook=hook), kept)  # type: ignore[arg-type]
    assert kept == items[1:]
    assert told == items[:1]


def test_only_files_in_which_a_test_waits_are_imported_for_those_that_wait(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    waits, computes = tmp_path / "test_waits.py", tmp_path / "test_computes.py"
    waits.write_text("@pytest.mark.waits\ndef test_it(): pass\n")
    computes.write_text("def test_it(): pass\n")
    for expression, ignored in (("waits", True), ("not waits", None)):
        config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
        assert selection.pytest_ignore_collect(computes, config) is ignored
        for path in (waits, tmp_path):
            assert selection.pytest_ignore_collect(path, config) is None
    # Where a mark comes from elsewhere, no run would take the test.
    item: Any = SimpleNamespace(nodeid="test_it", path=computes, get_closest_marker=str)
    with pytest.raises(pytest.UsageError, match="test_it has the mark"):
        selection.pytest_collection_modifyitems(request.config, [item])


def test_what_meson_tells(tmp_path: Path) -> None:
    log = tmp_path / "testlog.json"
    lines = [("OK", CMOCKA.format(b="SKIPPED")), ("TIMEOUT", ""), ("FAIL", ""), ("SKIP", "")]
    log.write_text(
        "".join(
            json.dumps(
                {
                    "name": "libckpt:api+waits / test_x",
                    "result": result,
                    "stdout": text,
                    "duration": 1.5,
                    "returncode": 0,
                }
            )
            + "\n"
            for result, text in lines
        )
    )
    ran = list(of_meson(log, "build"))
    assert [t.outcome for t in ran] == [PASSED, HUNG, FAILED, SKIPPED]
    assert ran[0].name == "build/test_x"
    assert ran[0].marks == {"api", "waits"}
    assert ran[0].inner == {"test_a": PASSED, "test_b": SKIPPED, "test_c": PASSED}
    assert report.counts(verdict(*ran)) == {PASSED: 2, FAILED: 2, SKIPPED: 2}


def test_what_pytest_tells(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    inner = tmp_path / "test_inner.py"
    inner.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0, 'hang limit: nothing'\n"
        "def test_skipped(): pytest.skip('why')\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_error(broken): pass\n"
    )
    record = tmp_path / "record.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TEST_RECORD", str(record))
        patch.delenv("PYTEST_XDIST_WORKER", raising=False)
        import subprocess
        import sys

        command = [sys.executable, "-m", "pytest", "-q", "-p", "record", "-p", "no:cacheprovider"]
        folder = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", folder)
        subprocess.run([*command, str(inner)], check=False, capture_output=True, cwd=tmp_path)
    ran = {t.name.rpartition(":")[2]: t for t in of_pytest(record, "python")}
    assert {name: t.outcome for name, t in ran.items()} == {
        "test_good": PASSED,
        "test_bad": FAILED,
        "test_skipped": SKIPPED,
        "test_error": FAILED,
    }
    assert judge.is_bad_luck(ran["test_bad"])
    assert not judge.is_bad_luck(ran["test_error"])
