# SPDX-License-Identifier: Apache-2.0
"""A file includes only headers of its own folder and of the folders below it, and in no circle.

The folders of the engine stand in an order, too, and no file of one includes a header of another one above it.
A .c file counts as one with its header, and with NAME_state.h. What goes in a circle then is listed.
"""

import re

from tree import line_of

RANKS = {"base": 0, "device": 1, "io": 1, "net": 1}
RANKS |= {"staging": 2, "codec": 2, "format": 2, "s3": 2, "store": 3, "peer": 3}
RANKS |= {"exchange": 4, "engine": 5, "api": 6}

# What agent/ may include, besides its own headers.
AGENT = ("base", "staging", "peer")

# The folders of the engine, the lowest first.
ENGINE = (
    "core",
    "ranks",
    "lineage",
    "reshard",
    "shard",
    "gc",
    "copy",
    "save",
    "restore",
    "runtime",
)

INCLUDE = re.compile(r'^#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
GENERATED = {"config.h"}
PUBLIC_SYSTEM = {"stddef.h", "stdint.h"}


def includes(tree, path):
    """(line, name between quotes or None, name between angle brackets or None)"""
    text = tree.files[path]
    for match in INCLUDE.finditer(text):
        yield line_of(text, match.start()), match.group(1), match.group(2)


def _library(tree):
    for path in tree.paths(r"^libckpt/.*\.[ch]$"):
        folder = path.split("/")[1]
        if folder not in RANKS:
            yield path, 1, f"{folder}/ is not a layer"
            continue
        for line, quoted, _ in includes(tree, path):
            if quoted is None or quoted in GENERATED:
                continue
            other = quoted.split("/")[0]
            if f"libckpt/{quoted}" not in tree.files:
                yield path, line, f'"{quoted}" is not a header below libckpt/'
            elif other != folder and RANKS.get(other, 99) >= RANKS[folder]:
                yield path, line, f'{folder}/ must not include "{quoted}"'


def _engine(tree):
    for path in tree.paths(r"^libckpt/engine/.*\.[ch]$"):
        folder = path.split("/")[2]
        if folder not in ENGINE:
            yield path, 1, f"engine/{folder} is not a folder of the engine"
            continue
        for line, quoted, _ in includes(tree, path):
            if not quoted or not quoted.startswith("engine/"):
                continue
            other = quoted.split("/")[1]
            if other in ENGINE and ENGINE.index(other) > ENGINE.index(folder):
                yield path, line, f'engine/{folder}/ must not include "{quoted}", which is above it'


def _public(tree):
    for path in tree.paths(r"^include/ckpt/"):
        for line, quoted, angled in includes(tree, path):
            if quoted or not (angled.startswith("ckpt/") or angled in PUBLIC_SYSTEM):
                yield path, line, f"a public header must not include {quoted or angled}"


def _outside(tree):
    """Programs, examples and the tests of the interface know the public headers alone."""
    for path in tree.paths(r"^(tools|examples|tests/api)/.*\.[ch]$"):
        for line, quoted, _ in includes(tree, path):
            if quoted and f"libckpt/{quoted}" in tree.files:
                yield path, line, f'only <ckpt/...> is for programs, not "{quoted}"'


def _agent(tree):
    """The agent is a program of the lower layers."""
    for path in tree.paths(r"^agent/.*\.[ch]$"):
        for line, quoted, _ in includes(tree, path):
            if quoted is None or f"agent/{quoted}" in tree.files:
                continue
            if quoted.split("/")[0] not in AGENT or f"libckpt/{quoted}" not in tree.files:
                yield path, line, f'agent/ must not include "{quoted}"'


def _circles(tree):
    graph = {}
    for path in tree.paths(r"^(libckpt|include)/.*\.h$"):
        names = [
            f"libckpt/{quoted}" if quoted else f"include/{angled}"
            for _, quoted, angled in includes(tree, path)
        ]
        graph[path] = [name for name in names if name in tree.files]
    done = set()

    def visit(path, way):
        if path in way:
            yield path, 1, "includes itself: " + " -> ".join([*way[way.index(path) :], path])
        elif path not in done:
            for other in graph.get(path, []):
                yield from visit(other, [*way, path])
            done.add(path)

    for path in graph:
        yield from visit(path, [])


def _unit(tree, path):
    """base/task of base/task.c and base/task.h, engine/save/save of engine/save/save_state.h"""
    unit = path.removeprefix("libckpt/").rsplit(".", 1)[0]
    owner = unit.removesuffix("_state")
    return owner if f"libckpt/{owner}.c" in tree.files else unit


def _units(tree):
    """{unit: {unit that it includes}}"""
    graph = {}
    for path in tree.paths(r"^libckpt/.*\.[ch]$"):
        below = graph.setdefault(_unit(tree, path), set())
        for _, quoted, _ in includes(tree, path):
            if quoted and f"libckpt/{quoted}" in tree.files:
                below.add(_unit(tree, f"libckpt/{quoted}"))
    return graph


def _reached(graph, start):
    """What is included from `start`, by whatever way; itself only if it is in a circle."""
    reached, ahead = set(), list(graph[start])
    while ahead:
        unit = ahead.pop()
        if unit not in reached:
            reached.add(unit)
            ahead += graph[unit]
    return reached


def _file_circles(tree):
    graph = {unit: below - {unit} for unit, below in _units(tree).items()}
    reached = {unit: _reached(graph, unit) for unit in graph}
    circles = {
        frozenset(other for other in below if unit in reached[other])
        for unit, below in reached.items()
        if unit in below
    }
    for circle in sorted(circles, key=sorted):
        yield f"libckpt/{min(circle)}.h", 1, "include each other: " + ", ".join(sorted(circle))


def check(tree):
    yield from _library(tree)
    yield from _engine(tree)
    yield from _public(tree)
    yield from _outside(tree)
    yield from _agent(tree)
    headers = list(_circles(tree))
    yield from headers or _file_circles(tree)
