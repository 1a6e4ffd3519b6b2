# SPDX-License-Identifier: Apache-2.0
"""What steps do: configure and build a directory, run tests of meson's and of pytest's."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import Any

from checkout import ROOT
from judge import is_left_out
from lanes import CPU, Lane, StepError
from results import Test, of_meson, of_pytest

CPUS = os.cpu_count() or 2
BESIDE = CPUS + 6  # tests that wait, at a time
FULL = bool(os.environ.get("CKPT_TEST_FULL"))
PYTHON = str(ROOT / ".venv/bin/python")
# What is like it, in processes that are forked from one that has imported torch.
FORKS = ROOT / "tests/python/forked.py"


def system_or_venv(name: str) -> str:
    """As lib.sh: one ninja for all, for two of different versions do not read each other's logs."""
    system = pathlib.Path("/usr/bin", name)
    return str(system if os.access(system, os.X_OK) else ROOT / ".venv/bin" / name)


MESON, NINJA = system_or_venv("meson"), system_or_venv("ninja")
Body = Callable[[Lane, list[Test]], None]
Takes = Callable[[str, set[str]], bool]  # a test, by its name and its suites


def everything(_name: str, _suites: set[str]) -> bool:
    return True


def commands(*lines: Sequence[object]) -> Body:
    """Runs commands, each of which must end well."""

    def run(lane: Lane, _: list[Test]) -> None:
        for words in lines:
            lane.must(words)

    return run


def each(*bodies: Body) -> Body:
    def run(lane: Lane, tests: list[Test]) -> None:
        for body in bodies:
            body(lane, tests)

    return run


def configured(build: str, compiler: str, *options: str) -> Body:
    """Configures a build directory, by lib.sh. With clang comes lld: GNU's linker takes four times as long."""

    def run(lane: Lane, _: list[Test]) -> None:
        script = '. scripts/lib.sh; configure "$@"'
        chosen = {"CC": compiler, **({"CC_LD": "lld"} if compiler == "clang" else {})}
        lane.must(["bash", "-euc", script, "configure", build, *options], chosen)

    return run


def built_product(build: str) -> Body:
    """Builds the library and the programs, and no test."""

    def run(lane: Lane, _: list[Test]) -> None:
        make(
            lane,
            build,
            {
                file
                for target in introspected(build, "--targets")
                if target["build_by_default"] and not is_within("tests", target["defined_in"])
                for file in target["filename"]
            },
        )

    return run


def is_within(folder: str, path: str) -> bool:
    return (ROOT / folder) in pathlib.Path(path).parents


def make(lane: Lane, build: str, files: Collection[str]) -> None:
    """Builds files, of which the paths are absolute."""
    names = sorted(str(pathlib.Path(name).relative_to(ROOT / build)) for name in files)
    lane.must([NINJA, "-C", build, *names])


def built_for(
    build: str, suites: Collection[str], without: Collection[str] = (), takes: Takes = everything
) -> Body:
    """Builds what the tests of some suites need, and nothing else."""

    def run(lane: Lane, _: list[Test]) -> None:
        names = {
            name
            for waits in (True, False)
            for name in names_of(build, suites, without, takes, waits=waits)
        }
        files = {t["id"]: t["filename"] for t in introspected(build, "--targets")}
        needed = set()
        for test in introspected(build, "--tests"):
            if test["name"] in names:
                needed |= {file for target in test["depends"] for file in files[target]}
        make(lane, build, needed)

    return run


def introspected(build: str, what: str) -> list[dict[str, Any]]:
    asked = subprocess.run(
        [MESON, "introspect", build, what], check=True, capture_output=True, text=True
    )
    told: list[dict[str, Any]] = json.loads(asked.stdout)
    return told


def names_of(
    build: str,
    suites: Collection[str],
    without: Collection[str],
    takes: Takes,
    *,
    waits: bool,
) -> list[str]:
    """The tests of some suites that `takes` takes: those that mostly wait, or the others."""
    unwanted = set(without) if FULL else {*without, "full"}
    names = []
    for test in introspected(build, "--tests"):
        own = {suite.rpartition(":")[2] for suite in test["suite"]}
        wanted = own & set(suites) and not own & unwanted and ("waits" in own) == waits
        if wanted and (FULL or takes(test["name"], own)):
            names.append(test["name"])
    return [name for name in names if FULL or not is_left_out(f"{build}/{name}")]


def meson_tests(
    build: str,
    suites: Collection[str],
    *,
    without: Collection[str] = (),
    also: Collection[str] = (),
    takes: Takes = everything,
    wrapper: str = "",
) -> Body:
    """
    Runs tests of some suites, and those of a name in `also`: in the lane of what waits those of the suite
    `waits`, in the other the others.
    """

    def run(lane: Lane, tests: list[Test]) -> None:
        waits = lane.lane != CPU
        names = names_of(build, suites, without, takes, waits=waits)
        names += [] if waits else [name for name in also if name not in names]
        if not names:
            return
        base = [MESON, "test", "-C", build, "--no-rebuild", "--print-errorlogs", "--setup", "full"]
        base += [f"--wrapper={wrapper}"] if wrapper else []
        log = f"testlog-{lane.lane}"
        logs = pathlib.Path(build, "meson-logs")
        for path in logs.glob(f"{log}*.json"):
            path.unlink()
        processes = BESIDE if waits else CPUS
        code = lane.command(
            [*base, "--logbase", log, "--num-processes", processes, *names], {"NINJA": NINJA}
        )
        # The log's name has the wrapper in it, where there is one.
        for path in logs.glob(f"{log}*.json"):
            ran = list(of_meson(path, build))
        if len(ran) != len(names):
            raise StepError(f"{build}: {len(ran)} of {len(names)} tests ran, exit code {code}")
        for test in ran:
            name = test.name.partition("/")[2]
            test.alone = [*base, "--logbase", "testlog-alone", "--num-processes", "1", name]
        tests += ran

    return run


def pytest_tests(
    part: str,
    folders: Sequence[str],
    *,
    environment: dict[str, str] | None = None,
    jobs: int = 0,
    marks: bool = True,
) -> Body:
    """
    Runs the tests of folders: in the lane of what waits those with the mark `waits`, in the other the others;
    without `marks` all of them.
    """

    def run(lane: Lane, tests: list[Test]) -> None:
        waits = lane.lane != CPU
        record = lane.run.logs / f"{part}.{lane.lane}.jsonl"
        plugins = ["-p", "selection", "-p", "record"]
        own = {"PYTHONPATH": str(ROOT / "tests/run"), **(environment or {})}
        own |= {"CKPT_TEST_PART": part, "CKPT_TEST_RECORD": str(record.resolve())}
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        base = [PYTHON, *words]
        many = jobs or (BESIDE if waits else CPUS)
        worker = shlex.join([PYTHON, "-S", str(FORKS)])
        spread = ["--tx", f"{many}*popen//python={worker}", "--dist", "worksteal"] if many > 1 else []
        mark = ["-m", "waits" if waits else "not waits"] if marks else []
        first = [PYTHON, str(FORKS), *words] if many > 1 else base
        code = lane.command([*first, *plugins, *spread, *mark, *folders], own)
        before = len(tests)
        if record.exists():
            tests += of_pytest(record, part)
        for test in tests[before:]:
            test.alone = [*env_words(environment), *base, test.name.partition("/")[2]]
        # 1: some have failed, and are among them. 5: there was none.
        if code not in (0, 1, 5) or (code == 1 and len(tests) == before):
            raise StepError(f"pytest ended with {code}")

    return run


def env_words(environment: dict[str, str] | None) -> list[str]:
    return ["env", *(f"{key}={value}" for key, value in (environment or {}).items())]
