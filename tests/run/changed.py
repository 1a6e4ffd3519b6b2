# SPDX-License-Identifier: Apache-2.0
"""Which parts of a test run a file that has changed can break, for the inner loop of a developer.

The first pattern that matches a path decides. test_changed.py sees that every file has one. A module of
the tests also runs the parts of the files that import it.
"""

from __future__ import annotations

import fnmatch
import functools
import pathlib
import re
from collections import Counter

from checkout import ROOT

MAP = {
    "libckpt/engine/*": "unit sim api tidy lint format",
    "libckpt/format/*": "unit sim api tidy lint format",
    "libckpt/store/*": "unit sim api tidy lint format",
    "libckpt/s3/*": "unit s3 tidy lint format",
    "libckpt/net/*": "unit s3 tidy lint format",
    "libckpt/*": "unit api tidy lint format",
    "agent/*": "unit tools tidy lint format",
    "include/*": "unit api python tidy installed lint format",
    "bindings/python/*.py": "python typing tidy format",
    "bindings/python/*": "python typing tidy format",
    "tools/*": "tools tidy lint format",
    "benchmarks/*.py": "typing format",
    "benchmarks/*": "tidy lint format",
    "examples/*.py": "python typing format",
    "examples/*": "installed format",
    "tests/unit/*": "unit format",
    "tests/headers/*": "unit",
    "tests/cuda/*": "unit api format",
    "tests/golden/*": "unit",
    "tests/api/*": "api format",
    "tests/sim/planted/*": "tidy planted format",
    "tests/sim/*": "sim faults format",
    "tests/damage/*": "faults format",
    "tests/kill/*": "faults format",
    "tests/crash/*": "faults format",
    "tests/torture/*": "faults format",
    "tests/fuzz/*": "asan format",
    "tests/model/*": "models format",
    "tests/tidy/*": "tidy format",
    "tests/install/*": "installed wheel format",
    "tests/python/*": "python format",
    "tests/tools/*": "tools format",
    "tests/s3/*.py": "s3 format",
    "tests/s3/*": "unit s3 format",
    "tests/gpu/*": "gpu format",
    "tests/lib/*": "unit api format",
    "tests/soak/*": "format",
    "tests/run/*": "runner typing format",
    "tests/*.txt": "runner tidy",
    "tests/*.md": "tidy",
    "tests/meson.build": "unit sim api tidy",
    "meson*": "unit api tidy installed",
    "pyproject.toml": "python typing format wheel",
    "scripts/wheel*": "wheel format",
    "scripts/*": "runner typing format",
    "docs/*": "python tidy",
    "README.md": "python tidy",
    "*.md": "tidy",
    ".ci/*": "",
    ".clang-*": "lint format",
    ".*": "format",
    "LICENSE": "",
}


#: Lower ones first: no unit test of a layer needs one above it.
LAYERS = ("base", "device", "io", "net", "staging", "peer", "codec", "format", "s3", "store", "exchange", "engine")
#: Slices are so many times smaller than in the run of a commit.
SMALLER = 4


def unit_folders(paths: list[str]) -> set[str] | None:
    """The folders of tests/unit that these files can break; None: all of them."""
    found: set[str] = set()
    for path in paths:
        words = path.split("/")
        # Nothing else uses it.
        if words[0] == "agent" or path.startswith("libckpt/peer/"):
            found.add("peer")
        elif words[0] == "libckpt" and words[1] in LAYERS:
            found |= {*LAYERS[LAYERS.index(words[1]) :], "tools"}
        elif path.startswith("tests/unit/") and len(words) > 3:
            found.add(words[2])
        elif words[0] == "tools":
            found.add("tools")
        elif (pattern := pattern_of(path)) is None or "unit" in MAP[pattern].split():
            return None
    return found


def pattern_of(path: str) -> str | None:
    """The pattern that decides about a path; None: no pattern matches."""
    return next((pattern for pattern in MAP if fnmatch.fnmatchcase(path, pattern)), None)


#: Also in the text of a program that a test starts.
IMPORT = re.compile(r"^\s*(?:from (\w+)[\w.]* import|import (\w[\w., ]*))", re.MULTILINE)


@functools.cache
def imported() -> dict[str, set[str]]:
    """By the Python files of tests: the names of the modules that each imports."""
    found = {}
    for path in (ROOT / "tests").glob("**/*.py"):
        names: set[str] = set()
        for one, several in IMPORT.findall(path.read_text()):
            names |= {words.split()[0].partition(".")[0] for words in (one or several).split(",")}
        found[str(path.relative_to(ROOT))] = names
    return found


@functools.cache
def same_name() -> Counter[str]:
    """How many modules of tests have a name: every folder has its own conftest."""
    return Counter(pathlib.PurePath(path).stem for path in imported())


@functools.cache
def importers(module: str) -> frozenset[str]:
    """The files of tests that import a module of theirs, themselves or through others."""
    found: set[str] = set()
    left = [module]
    while left:
        folder, _, file = left.pop().rpartition("/")
        name = file.removesuffix(".py")
        alone = same_name()[name] == 1
        users = {path for path, names in imported().items() if name in names}
        users = {path for path in users if alone or path.rpartition("/")[0] == folder}
        left += users - found
        found |= users
    return frozenset(found)


def parts_of(paths: list[str]) -> list[str]:
    """The parts for these files, each once."""
    modules = [path for path in paths if path in imported()]
    users = sorted({path for module in modules for path in importers(module)})
    found: dict[str, None] = {}
    for path in [*paths, *users]:
        pattern = pattern_of(path)
        found |= dict.fromkeys(
            MAP[pattern].split() if pattern else ["unit", "api", "tidy", "python"]
        )
    return list(found)
