# SPDX-License-Identifier: Apache-2.0
"""Files and functions that can be read; names that say which file is meant."""

import ast
import collections

from tree import functions

FILE_LINES = 900
FUNCTION_LINES = 70
SOURCES = r"(\.(c|h|py|pyi|sh)$)|(^scripts/[^.]+$)"
# Names that a tool gives a meaning.
COMMON = {"__init__.py", "__main__.py", "conftest.py", "meson.build", "README.md"}


def _python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def _lengths(tree):
    for path in tree.paths(SOURCES):
        text = tree.files[path]
        lines = text.count("\n")
        if lines > FILE_LINES:
            yield path, lines, f"{lines} lines; {FILE_LINES} are the most"
        if path.endswith((".c", ".h")):
            found = functions(text)
        elif path.endswith(".py"):
            found = _python_functions(text)
        else:
            continue
        for name, first, last in found:
            if last - first + 1 > FUNCTION_LINES:
                yield (
                    path,
                    first,
                    f"{name}: {last - first + 1} lines; {FUNCTION_LINES} are the most",
                )


def _names(tree):
    """Public headers are a space of their own: they are always named with their folder."""
    places = collections.defaultdict(list)
    for path in tree.paths(r"\.(c|h|py)$"):
        name = path.rsplit("/", 1)[-1]
        if name not in COMMON:
            places[name, path.startswith("include/")].append(path)
    for (name, _), paths in places.items():
        for path in paths[1:]:
            yield path, 1, f"there is another {name}: {paths[0]}"


def _licences(tree):
    for path in tree.paths(SOURCES):
        head = tree.files[path].split("\n")[:2]
        if tree.files[path].strip() and not any("SPDX-License-Identifier" in line for line in head):
            yield path, 1, "the first lines name no licence (SPDX-License-Identifier)"


def check(tree):
    yield from _lengths(tree)
    yield from _names(tree)
    yield from _licences(tree)
