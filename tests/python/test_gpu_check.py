# SPDX-License-Identifier: Apache-2.0
"""What is to run on a machine with a GPU runs here without one, and its report hides no failure."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, seconds: float = 150) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=seconds, check=False
    )


def test_every_part_of_the_benchmark_runs(tmp_path: Path) -> None:
    program = ROOT / "benchmarks" / "bench_gpu.py"
    command = [sys.executable, program, "--device", "cpu", "--quick", "--dir", tmp_path]
    done = run(*command, "--json", tmp_path / "bench.json", seconds=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert set(found["results"]) >= {"d2h", "call", "restore", "lost:libckpt", "lost:dcp-pinned"}
    assert [mark["name"] for mark in found["marks"]] == [
        "d2h ratio",
        "call beyond",
        "lost:libckpt lost",
        "lost:libckpt first",
        "restore ratio",
    ]
    assert not list(tmp_path.glob("build-bench-*")), "it left its files"


def test_a_part_that_fails_or_has_no_time_is_a_failure(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "bench_gpu.py", "--device", "cpu", "--quick"]
    command += ["--dir", tmp_path, "--json", tmp_path / "bench.json", "--parts", "call"]
    assert run(*command, "--limit", "1").returncode == 1
    found = json.loads((tmp_path / "bench.json").read_text())
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
    done = run(sys.executable, program, folder, folder, folder / "parts", device, *options)
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
    done = run(program, "--kit", tmp_path / "none", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "--pack" in done.stderr
    assert not (tmp_path / "out").exists()
    assert run(program, "--wrong").returncode == 2
    assert run(program, "--device", "tpu").returncode == 2
    assert run(program, "--help").stdout.startswith("usage: scripts/gpu-check")
