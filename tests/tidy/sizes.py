# SPDX-License-Identifier: Apache-2.0
"""Files and functions that can be read."""

import ast

from tree import functions

FILE_LINES = 900
FUNCTION_LINES = 70
SOURCES = r"(\.(c|h|py|pyi|sh)$)|(^scripts/[^.]+$)"


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


def _licences(tree):
    for path in tree.paths(SOURCES):
        head = tree.files[path].split("\n")[:2]
        if tree.files[path].strip() and not any("SPDX-License-Identifier" in line for line in head):
            yield path, 1, "the first lines name no licence (SPDX-License-Identifier)"


def check(tree):
    yield from _lengths(tree)
    yield from _licences(tree)
