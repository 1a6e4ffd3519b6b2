# SPDX-License-Identifier: Apache-2.0
"""usage: coverage_report.py [--missing] EXPORT

Lines and branches of the library, from what `llvm-cov export` wrote. A branch is one side of one
condition, as it is written; that a release assertion fails is no branch, and nothing else is left out.
A macro's branches count where the macro is used.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASSERTION = re.compile(r"\bCKPT_ASSERT(\(|_NO_OTHER\b)")

# What must be taken whole: a branch that no test takes here is a step that may be lost some day.
WHOLE = {
    "commit": "engine/save/save.c engine/save/publish.c engine/save/cleanup.c engine/save/builder.c "
    "engine/save/pipeline.c",
    "recovery": "engine/lineage/open.c engine/lineage/opener.c engine/lineage/scan.c engine/lineage/scanner.c "
    "engine/lineage/lineage.c engine/lineage/select_step.c engine/restore/sink.c engine/restore/fsm.c",
    "retention": "engine/gc/gc.c engine/gc/retention.c engine/gc/delete_step.c engine/gc/delete_command.c",
    "fencing": "engine/lineage/claim.c",
    "verification": "engine/shard/shard.c engine/shard/read.c engine/shard/read_block.c engine/shard/findings.c "
    "engine/lineage/quarantine.c",
    # What all of them stand on: the order in which things become durable, and its failures.
    "store": "store/store.c store/store_file.c store/store_file_error.c store/store_file_names.c "
    "store/store_file_shard.c store/store_file_small.c",
}
LEAST = 90  # per cent of the branches of the library

EXPANSION, BRANCH = 1, 4


class Source:
    """A file, and where its assertions are."""

    def __init__(self, path: pathlib.Path) -> None:
        text = path.read_text()
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.starts = starts
        self.assertions: list[tuple[int, int, str]] = []
        for found in ASSERTION.finditer(text):
            failing = "false" if found[1] == "(" else "true"
            depth, end = int(found[1] == "("), found.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            self.assertions.append((found.start(), end, failing))

    def failing(self, line: int, column: int) -> str | None:
        """The side of a condition on which an assertion fails; None: it is in none."""
        at = self.starts[line - 1] + column - 1
        return next((side for start, end, side in self.assertions if start <= at < end), None)


class Export:
    def __init__(self, path: pathlib.Path) -> None:
        (data,) = json.loads(path.read_text())["data"]
        self.sources: dict[str, Source] = {}
        self.lines: dict[str, dict[str, int]] = {}
        # file -> (line, column, place in the macro) -> [times true, times false, failing side]
        self.branches: dict[str, dict[Any, list[Any]]] = collections.defaultdict(dict)
        for file in data["files"]:
            name = self.name_of(file["filename"])
            if name:
                self.lines[name] = file["summary"]["lines"]
        for function in data["functions"]:
            self.add(function)

    def name_of(self, filename: str) -> str | None:
        path = pathlib.Path(filename).resolve()
        library = ROOT / "libckpt"
        return path.relative_to(library).as_posix() if path.is_relative_to(library) else None

    def source(self, name: str) -> Source:
        if name not in self.sources:
            self.sources[name] = Source(ROOT / "libckpt" / name)
        return self.sources[name]

    def add(self, function: dict[str, Any]) -> None:
        names = [self.name_of(name) for name in function["filenames"]]
        # Where a macro's text came to be: the file number of an expansion -> its place.
        places = {
            region[6]: (region[5], region[0], region[1])
            for region in function["regions"]
            if region[7] == EXPANSION
        }
        for branch in function["branches"]:
            line, column, _, _, true, false, number = branch[:7]
            inner = (line, column)
            failing = None
            while True:
                name = names[number]
                if name:
                    failing = failing or self.source(name).failing(line, column)
                if number not in places:
                    break
                number, line, column = places[number]
            if name is None:
                continue
            counts = self.branches[name].setdefault(
                (line, column, inner), [0, 0, failing]
            )
            counts[0] += true
            counts[1] += false

    def sides(self, name: str) -> Iterator[tuple[int, int, str, int]]:
        """Yields (line, column, side, how often it was taken)."""
        for (line, column, _), (true, false, failing) in sorted(
            self.branches[name].items(), key=lambda item: item[0]
        ):
            for side, taken in (("true", true), ("false", false)):
                if side != failing:
                    yield line, column, side, taken


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f}" if whole else "     -"


class Sum:
    def __init__(self) -> None:
        self.lines = self.lines_taken = self.sides = self.sides_taken = 0

    def add(self, lines: dict[str, int], sides: list[tuple[int, int, str, int]]) -> Sum:
        self.lines += lines["count"]
        self.lines_taken += lines["covered"]
        self.sides += len(sides)
        self.sides_taken += sum(1 for side in sides if side[3] > 0)
        return self

    def __str__(self) -> str:
        return (
            f"{share(self.lines_taken, self.lines)} % of {self.lines:5} lines, "
            f"{share(self.sides_taken, self.sides)} % of {self.sides:5} branches"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("export", type=pathlib.Path)
    arguments = parser.parse_args()
    export = Export(arguments.export)
    library, whole = Sum(), Sum()
    groups = {name: group for group, names in WHOLE.items() for name in names.split()}
    absent = sorted(set(groups) - set(export.lines))
    if absent:
        sys.exit(f"not in the library: {', '.join(absent)}")
    for name in sorted(export.lines):
        sides = list(export.sides(name))
        if not sides and not export.lines[name]["count"]:
            continue
        one = Sum().add(export.lines[name], sides)
        library.add(export.lines[name], sides)
        if name in groups:
            whole.add(export.lines[name], sides)
        left = one.sides - one.sides_taken
        print(f"{name:28} {one}{f', {left} not taken' if left else ''}")
        if arguments.missing:
            for line, column, side, taken in sides:
                if not taken:
                    print(f"    libckpt/{name}:{line}:{column}: never {side}")
    print(f"{'the library':28} {library}")
    print(f"{', '.join(group for group in WHOLE if group != 'store')}:")
    for group, names in WHOLE.items():
        one = Sum()
        for name in names.split():
            one.add(export.lines[name], list(export.sides(name)))
        print(f"  {group:26} {one}")
    print(f"  {'all of these':26} {whole}")
    print(
        f"counts branches={library.sides} taken={library.sides_taken} "
        f"whole={whole.sides} whole_taken={whole.sides_taken}"
    )
    good = whole.sides == whole.sides_taken and library.sides_taken * 100 >= library.sides * LEAST
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
