# SPDX-License-Identifier: Apache-2.0
"""The parts of a test run, and the steps that each is made of. ../README.md says what they are for."""

from __future__ import annotations

import fnmatch
import functools
import json
import pathlib
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Iterator

import draw
from changed import unit_folders
from checkout import ROOT, changed_since, dependents, landed
from lanes import BUILD, CPU, WAIT, Lane, Step
from programs import (
    CPUS,
    FULL,
    MESON,
    NINJA,
    Body,
    Takes,
    built_for,
    built_product,
    commands,
    configured,
    each,
    everything,
    meson_tests,
    pytest_tests,
)
from results import FAILED, PASSED, Test

# Parts that are suites of build/, which is built and run once for all of them.
SUITES = {
    "unit": ("unit", "headers"),
    "sim": ("sim",),
    "api": ("api",),
    "faults": ("damage", "kill", "crash", "torture"),
    "models": ("model",),
    "tidy": ("tidy",),
    "planted": ("planted",),
}
# With --full alone: what finds bugs of the tests, and what `asan` promises as well.
ONLY_FULL = ("planted", "tools")
# What the wheel is made of besides the library's sources: it is built when any of this has changed.
WHEEL = (
    "scripts/wheel*",
    "tests/install/*",
    "pyproject.toml",
    "meson*",
    "bindings/*meson.build",
    "libckpt/*meson.build",
    "bindings/python/gen_cffi.py",
)
ALL = (
    *SUITES, "runner", "python", "s3", "gpu", "tools", "asan", "tsan", "minimal", "installed", "wheel",
    "typing", "format", "lint",
)  # fmt: skip
# For scripts and tests; pyproject.toml asks more of the package.
PYTHON_RULES = "B,C4,E4,E7,E9,F,I,PIE,SIM,UP"
SANITIZED = ("unit", "sim", "api", "fuzz")
# What is slow to import and tests of the programs need, but for those of Ceph (--full), which start ranks. It halves
# what the server of forked programs takes to start.
ONLY_TORCH = {} if FULL else {"LIBCKPT_TESTS_IMPORT": "torch botocore.auth"}
PACKAGE = "package"  # of Python, in .venv
PACKAGED = ("python", "s3", "gpu", "tools", "asan")  # parts that import it

#: The commit that changes() compares with, set before it is called; "": the last one that landed.
base = ""


@functools.cache
def changes() -> list[str] | None:
    """Files that have changed since `base`; None: nobody knows."""
    return changed_since(base or landed())


def default_parts() -> list[str]:
    """What a commit runs."""
    if FULL:
        return list(ALL)
    left = set(ONLY_FULL)
    files = changes()
    if files is not None and not any(fnmatch.fnmatchcase(f, p) for f in files for p in WHEEL):
        left.add("wheel")
    return [part for part in ALL if part not in left]


def steps(parts: Collection[str]) -> list[Step]:
    """The steps of parts, in the order in which their lane runs them."""
    suites = [suite for part, of_part in SUITES.items() if part in parts for suite in of_part]
    # A release with --full, else made of what build/ has compiled.
    package = commands(["scripts/package", *([] if FULL else ["--tests"])], [NINJA, "-C", "build", "test-helpers"])
    found = [Step(PACKAGE, BUILD, package, makes=PACKAGE)]
    if not set(parts).intersection(PACKAGED):
        found.clear()
    twice = {"asan", "tsan", "minimal"} <= set(parts)
    takes = not_sanitized if twice else touched if base else everything
    found += [step for step in checks() if step.part in parts]
    found += suite_steps(suites, takes) if suites else []
    found += [step for step in other_steps() if step.part in parts]
    return found


def suite_steps(suites: Collection[str], takes: Takes) -> Iterator[Step]:
    also = []
    if "model" in suites and is_model_changed():
        suites = [suite for suite in suites if suite != "model"]
        also = ["models-all"]
    body = meson_tests("build", suites, also=also, takes=takes)
    build_it = each(built_product("build"), built_for("build", suites, takes=takes))
    yield Step("suites", BUILD, build_it, makes="build")
    yield Step("suites", WAIT, body, needs="build")
    yield Step("suites", CPU, body, needs="build")


def is_model_changed() -> bool:
    """Whether a model, or a file that one stands for, differs from what landed."""
    files = changes()
    models = "".join(path.read_text() for path in (ROOT / "tests/model").glob("*.pml"))
    named = set(re.findall(r"\w+\.[ch]\b", models))
    return files is None or any(
        name.startswith("tests/model/") or name.rpartition("/")[2] in named for name in files
    )


def checks() -> Iterator[Step]:
    """What needs no build, and has one thread: it runs while the first tests are compiled."""
    yield Step("runner", CPU, pytest_tests("runner", ["tests/run"], jobs=1, marks=False))
    yield Step("typing", WAIT, commands([".venv/bin/mypy"]))
    yield Step("format", WAIT, check_format)


def other_steps() -> Iterator[Step]:
    for part in ("python", "s3", "tools"):
        environment = None if part == "python" else ONLY_TORCH
        # Without the tests of Ceph, all of s3 takes less time than the workers of pytest take to start.
        few = part == "s3" and not FULL
        body = pytest_tests(
            part, [f"tests/{part}"], environment=environment, jobs=int(few), marks=not few
        )
        yield Step(part, WAIT, body, needs=PACKAGE)
        if not few:
            yield Step(part, CPU, body, needs=PACKAGE)
    # On a GPU, where there is one; else they show that they run.
    gpu = pytest_tests("gpu", ["tests/gpu"], jobs=1, marks=False)
    yield Step("gpu", WAIT, gpu, needs=PACKAGE)
    yield from asan_steps()
    yield from tsan_steps()
    yield from release_steps()
    yield Step("lint", BUILD, each(lint_warnings, lint_tidy))


def half_of(half: int, *halved: str) -> Takes:
    """Of the tests of some suites one half, others with each tree, and those whose source has changed."""

    def takes(name: str, suites: set[str]) -> bool:
        source = source_of(name) if "api" in suites else name
        return not suites & set(halved) or is_test_changed(source) or draw.number(2, source) == half

    return takes


def source_of(name: str) -> str:
    """The source of a test of the public interface, which runs on more than one backend or runtime."""
    return re.sub(r"_(uring|threads|1[23])$", "", name)


def touched(name: str, suites: set[str]) -> bool:
    """What the files can break that have changed."""
    folders = unit_folders(changes() or [])
    where = {path.parent.name for path in (ROOT / "tests/unit").glob(f"*/{name}.c")}
    return "unit" not in suites or folders is None or not where or bool(where & folders)


def is_test_changed(name: str) -> bool:
    return any(path.endswith(f"/{name}.c") for path in changes() or ())


def not_sanitized(name: str, suites: set[str]) -> bool:
    """
    What no sanitizer runs in the same run, and the tests whose source has changed. Half of the tests of the
    public interface run without a sanitizer in `minimal`, which has no io_uring: half of those with io_uring
    run here.
    """
    if "api" in suites:
        changed = is_test_changed(source_of(name))
        return changed or (name.endswith("_uring") and draw.number(2, name) == 0)
    with_tsan = "alone" not in suites and draw.number(2, name) == 1
    sanitized = "computing" not in suites and (with_tsan or draw.number(2, name) == 0)
    return "unit" not in suites or is_test_changed(name) or not sanitized


def asan_steps() -> Iterator[Step]:
    """What sees a bad access: C tests, the corpora of the fuzz targets, the programs."""
    build = "build-asan"
    options = ["-Dwerror=true", "-Dfuzz=enabled", "-Doptimization=1", "-Dbenchmarks=disabled"]
    options += ["-Db_sanitize=address,undefined", "-Db_lundef=false"]
    options += [f"-Dc_args=-fno-sanitize-recover=all -gline-tables-only {'' if FULL else cheap()}"]
    tools = {"CKPT_TOOLS": str(ROOT / build / "tools"), **ONLY_TORCH}
    programs = pytest_tests("asan", ["tests/tools"], environment=tools)
    half = half_of(0, "unit")
    tests = meson_tests(build, SANITIZED, takes=half)
    build_it = each(built_product(build), built_for(build, SANITIZED, takes=half))
    yield Step("asan", BUILD, each(configured(build, "clang", *options), build_it), makes=build)
    needs = f"{build} {PACKAGE}"
    yield Step("asan", WAIT, each(tests, programs), needs=needs)
    yield Step("asan", CPU, each(tests, same_runs(build), programs), needs=needs)


def cheap() -> str:
    """
    Words for clang without which it takes longer to compile, and the tests to run. AddressSanitizer sees what an
    access through a null pointer or past an object reaches, too. Each list says why something is not in it.
    """
    lists = shlex.quote(str(ROOT / "tests/fuzz"))
    words = f"-fno-sanitize=null,object-size,pointer-overflow -fsanitize-ignorelist={lists}/aligned.txt"
    # The sources of tests, which are not counted, have no use for the list.
    return f"{words} -fsanitize-coverage-allowlist={lists}/counted.txt -Qunused-arguments"


def same_runs(other: str) -> Body:
    """A seed of the simulated world is the same run in build/ and in another build."""

    def run(lane: Lane, tests: list[Test]) -> None:
        began = time.monotonic()
        found = []
        for build in ("build", other):
            lane.must([NINJA, "-C", build, "tests/sim/sim"])
            words = [f"{build}/tests/sim/sim", "--seeds", "160001..160100"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            found.append(re.findall(r"hash \w+", done.stdout))
        outcome = PASSED if found[0] and found[0] == found[1] else FAILED
        tests.append(Test(f"{other}/same-runs", outcome, time.monotonic() - began, str(found)))

    return run


def tsan_steps() -> Iterator[Step]:
    """What sees a race. What has one thread has nothing to race with. It takes the half that `asan` leaves."""
    build = "build-tsan"
    options = ["-Dwerror=true", "-Doptimization=1", "-Db_sanitize=thread", "-Db_lundef=false"]
    options += ["-Dbenchmarks=disabled", "-Dc_args=-gline-tables-only"]
    # Some kernels place a program where ThreadSanitizer wants to have its own memory.
    fixed = subprocess.run(["setarch", "-R", "true"], check=False, capture_output=True)
    wrapper = "setarch -R" if fixed.returncode == 0 else ""
    without = () if FULL else ("alone",)
    half = half_of(1, "unit", "api")
    tests = meson_tests(build, ("unit", "api"), without=without, takes=half, wrapper=wrapper)
    build_it = built_for(build, ("unit", "api"), without, half)
    yield Step("tsan", BUILD, each(configured(build, "clang", *options), build_it), makes=build)
    yield Step("tsan", WAIT, tests, needs=build)
    yield Step("tsan", CPU, tests, needs=build)


def release_steps() -> Iterator[Step]:
    """A release by gcc, without what can be left out; what is installed of it; the wheel."""
    build = "build-minimal"
    prefix = f"{ROOT}/{build}/installed"
    options = [f"--prefix={prefix}", "-Dwerror=true", "-Dbuildtype=release"]
    options += ["-Dauto_features=disabled", "-Dtests=enabled"]
    suites = ("unit", "sim", "api") if FULL else ("api",)
    half = half_of(0, "api")
    configure = configured(build, "gcc", *options)
    tests = meson_tests(build, suites, takes=half)
    build_it = each(built_product(build), built_for(build, suites, takes=half))
    yield Step("minimal", BUILD, each(configure, build_it), makes=build)
    yield Step("minimal", WAIT, tests, needs=build)
    yield Step("minimal", CPU, tests, needs=build)
    if FULL:
        yield Step("minimal", CPU, same_runs(build), needs=build)
    install = [MESON, "install", "-C", build, "--no-rebuild"]
    installed = [built_product(build), commands(["rm", "-rf", prefix], install)]
    check = commands(["tests/install/check.sh", prefix])
    yield Step("installed", CPU, each(configure, *installed, check))
    wheel = "set -e; rm -rf build-wheel/dist; scripts/wheel build-wheel/dist; tests/install/wheel_tls.sh"
    wheel += "; tests/install/wheel.sh build-wheel/dist/*.whl"
    yield Step("wheel", CPU, commands(["bash", "-c", wheel]))


def check_format(lane: Lane, _: list[Test]) -> None:
    sources = tracked("*.c", "*.h")
    lane.must(["clang-format", "--dry-run", "-Werror", *sources])
    lane.must([".venv/bin/ruff", "check", "."])
    rules = ["--isolated", "--target-version", "py310", "--select", PYTHON_RULES]
    lane.must([".venv/bin/ruff", "check", *rules, *tracked("*.py")])


def tracked(*patterns: str) -> list[str]:
    asked = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], check=True, capture_output=True, text=True
    )
    return [name for name in asked.stdout.split("\0") if name and (ROOT / name).exists()]


def lint_build(lane: Lane) -> list[dict[str, str]]:
    """The commands of the compiler for everything, by clang."""
    configured("build-lint", "clang", "-Dwerror=true")(lane, [])
    told: list[dict[str, str]] = json.loads((ROOT / "build-lint/compile_commands.json").read_text())
    return told


def lint_warnings(lane: Lane, _: list[Test]) -> None:
    """clang's warnings, which are errors, about what has changed: `asan` and `tsan` compile most of it anyway."""
    told_of = {of_root(told): told for told in lint_build(lane)}
    lines = "".join(f"{told_of[name]['command']} -fsyntax-only\0" for name in to_look_at(told_of))
    path = ROOT / "build-lint/syntax"
    path.write_text(lines)
    each_of = f"xargs -0 -P {CPUS} -I{{}} sh -c '{{}}' <syntax"
    lane.must(["bash", "-c", f"cd build-lint && {each_of}"])


def of_root(told: dict[str, str]) -> str:
    """The source of a command."""
    return str(pathlib.Path(told["directory"], told["file"]).resolve().relative_to(ROOT))


def to_look_at(files: Collection[str]) -> list[str]:
    """Of sources those that have changed since the last commit that landed, or include such a file."""
    changed = None if FULL else changes()
    if changed is None or {".clang-tidy"}.intersection(changed):
        return list(files)
    depend = dependents(ROOT / "build", changed) | set(changed)
    return [name for name in files if name in depend]


def lint_tidy(lane: Lane, _: list[Test]) -> None:
    """clang-tidy, of what has changed since the last commit that landed or includes such a header."""
    # The library is compiled again for tests/torture, and clang-tidy 14 is wrong about the second time that
    # it sees a file (clang-analyzer-valist).
    once = [told for told in lint_build(lane) if "/torture/" not in told["output"]]
    folder = ROOT / "build-lint/lint"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(once))
    files = to_look_at(tracked("libckpt/*.c", "agent/*.c", "tools/*.c"))
    if not files:
        return
    tidy = ["run-clang-tidy", "-quiet", "-p", str(folder), "-j", str(CPUS)]
    lane.must([*tidy, *(f"^{re.escape(str(ROOT / name))}$" for name in files)])
