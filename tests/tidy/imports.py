# SPDX-License-Identifier: Apache-2.0
"""Files of the Python package import each other in no circle, and all of them are installed.

Imports within functions, and those for types alone, count too: they only hide a circle.
"""

import ast
import posixpath
import re

PACKAGE = "bindings/python/libckpt"


def _imported(tree, path):
    """(line, file of the package) of each import."""
    for node in ast.walk(ast.parse(tree.files[path])):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = path
        for _ in range(node.level):
            folder = posixpath.dirname(folder)
        base = posixpath.join(folder, *(node.module or "").split("."))
        for name in (base, *(posixpath.join(base, alias.name) for alias in node.names)):
            for found in (f"{name.rstrip('/')}.py", f"{name.rstrip('/')}/__init__.py"):
                # What __init__.py of a file's own folder has is imported before any file there.
                if found in tree.files and found != posixpath.join(folder, "__init__.py"):
                    yield node.lineno, found


def _circles(tree, paths):
    graph = {path: {file: line for line, file in _imported(tree, path)} for path in paths}
    done = set()

    def visit(path, way):
        if path in way:
            circle = [posixpath.basename(file) for file in [*way[way.index(path) :], path]]
            yield path, graph[path][way[way.index(path) + 1]], "imports itself: " + " -> ".join(circle)
        elif path not in done:
            for other in graph[path]:
                yield from visit(other, [*way, path])
            done.add(path)

    for path in paths:
        yield from visit(path, [])


def check(tree):
    paths = tree.paths(rf"^{PACKAGE}/.*\.py$")
    yield from _circles(tree, paths)
    for path in paths:
        folder, name = posixpath.split(path)
        recipe = tree.files.get(f"{folder}/meson.build", "")
        if not re.search(rf"'{re.escape(name)}'", recipe):
            yield path, 1, "is in no meson.build"
