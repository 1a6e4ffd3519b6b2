# SPDX-License-Identifier: Apache-2.0
"""What is to run on a machine with a GPU runs here without one, and its report hides no failure."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import finished

ROOT = Path(__file__).resolve().parents[2]


def bench(folder: Path, *options: object) -> tuple[int, dict[str, Any], str]:
    """The exit code, the report, and what was said."""
    command = [sys.executable, ROOT / "benchmarks" / "bench_gpu.py", "--device", "cpu", "--quick"]
    file = folder / "bench.json"
    done = finished([*command, "--dir", folder, "--json", file, *options])
    return done.returncode, json.loads(file.read_text()), done.stdout + done.stderr


@pytest.mark.no_oracle
@pytest.mark.slices(6)
@pytest.mark.parametrize(
    ("part", "marks"),
    [
        ("d2h", ["ratio"]),
        ("call", ["beyond"]),
        ("restore", ["ratio"]),
        ("lost:libckpt", ["lost", "first"]),
        ("lost:dcp-pinned", []),
        ("pin", []),
    ],
)
def test_every_part_of_the_benchmark_runs(tmp_path: Path, part: str, marks: list[str]) -> None:
    name, _, variant = part.partition(":")
    options = ["--parts", name, *(["--variants", variant] if variant else [])]
    code, found, said = bench(tmp_path, *options, "--limit", 3600)
    assert code == 0, said
    assert list(found["results"]) == [part]
    assert [mark["name"] for mark in found["marks"]] == [f"{part} {mark}" for mark in marks]
    assert not list(tmp_path.glob("build-bench-*")), "it left its files"


def test_a_part_that_fails_or_has_no_time_is_a_failure(tmp_path: Path) -> None:
    code, found, _ = bench(tmp_path, "--parts", "call", "--limit", 1)
    assert code == 1
    assert "no time was left" in found["results"]["call"]["error"]


CASES = (
    '<testcase classname="t" name="a"/>{}'
    '<testcase classname="t" name="s"><skipped message="x"/></testcase>'
)
FAILED = '<testcase classname="t" name="b"><failure message="it broke"/></testcase>'
MARK = {"name": "d2h ratio", "value": 0.9, "mark": ">= 0.95 ", "reached": False}


def report(
    folder: Path,
    *options: str,
    tests: str | None = CASES.format(""),
    parts: str = "tests passed 1\nbench passed 2\n",
    marks: Any = (),
    device: str = "cuda",
) -> tuple[int, dict[str, Any], str]:
    (folder / "hardware.txt").write_text("a machine\n")
    (folder / "kit.json").write_text('{"commit": "c"}')
    (folder / "parts").write_text(parts)
    if tests is not None:
        (folder / "tests.xml").write_text(
            f"<testsuites><testsuite>{tests}</testsuite></testsuites>"
        )
    (folder / "bench.json").write_text(json.dumps({"marks": list(marks)}))
    program = ROOT / "scripts" / "gpu_report.py"
    command = [sys.executable, program, folder, folder, folder / "parts", device, *options]
    done = finished(command)
    assert done.stderr == ""
    return done.returncode, json.loads((folder / "gpu-report.json").read_text()), done.stdout


def test_all_well(tmp_path: Path) -> None:
    code, found, said = report(tmp_path, marks=[{**MARK, "reached": True}])
    assert code == 0
    assert found["problems"] == []
    assert found["tests"]["passed"] == 1
    assert found["tests"]["skipped"] == {"t::s": "x"}
    assert "1 passed, 0 failed, 1 skipped" in said


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"tests": CASES.format(FAILED)}, "t::b"),
        ({"tests": None}, "it left no report"),
        ({"tests": ""}, "none passed"),
        ({"parts": "tests failed 420\nbench passed 2\n"}, "tests: failed"),
        ({"parts": "tests passed 1\nbench failed 2\n"}, "bench: failed"),
        ({"marks": [MARK]}, "a mark was missed"),
    ],
)
def test_what_is_not_well(tmp_path: Path, what: dict[str, Any], problem: str) -> None:
    code, found, said = report(tmp_path, **what)
    assert code == 1
    assert any(problem in line for line in found["problems"]), found["problems"]
    assert problem in said


def test_figures_without_a_gpu_are_judged_by_nobody(tmp_path: Path) -> None:
    assert report(tmp_path, "--quick", marks=[MARK], device="cpu")[0] == 0


def test_without_a_kit_or_with_a_wrong_word_it_says_so(tmp_path: Path) -> None:
    program = ROOT / "scripts" / "gpu-check"
    done = finished([program, "--kit", tmp_path / "none", "--out", tmp_path / "out"])
    assert done.returncode == 2
    assert "--pack" in done.stderr
    assert not (tmp_path / "out").exists()
    assert finished([program, "--wrong"]).returncode == 2
    assert finished([program, "--device", "tpu"]).returncode == 2
    assert finished([program, "--help"]).stdout.startswith("usage: scripts/gpu-check")
