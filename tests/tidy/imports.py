# SPDX-License-Identifier: Apache-2.0
"""Files of the Python package import each other in no circle, and all of them are installed.

Imports within functions, and those for types alone, count too: they only hide a circle.
"""

import ast
import posixpath
import re

PACKAGE = "bindings/python/libckpt"


def _named(node, path):
    """(folder where it is looked for, name, names in it) of each module that an import names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield None, alias.name, []
    elif isinstance(node, ast.ImportFrom):
        folder = path
        for _ in range(node.level):
            folder = posixpath.dirname(folder)
        names = [alias.name for alias in node.names]
        yield folder if node.level else None, node.module or "", names


def _file_of(tree, name):
    """The file of a module; None: there is none of that name. A .pyi stands for one in C."""
    files = (f"{name}.py", f"{name}/__init__.py", f"{name}.pyi")
    return next((file for file in files if file in tree.files), None)


def _imported(tree, path):
    """(line, file of the package) of each import. That a package is imported first is left out."""
    for node in ast.walk(ast.parse(tree.files[path])):
        for folder, module, names in _named(node, path):
            if folder is None:  # an absolute import
                top, _, module = module.partition(".")
                if top != posixpath.basename(PACKAGE):
                    continue
                folder = PACKAGE
            base = posixpath.join(folder, *module.split(".")).rstrip("/")
            within = [_file_of(tree, posixpath.join(base, name)) for name in names]
            # A name that is no module is in the package itself.
            for file in within or [None]:
                file = file or _file_of(tree, base)
                if file and file.endswith(".py"):
                    yield node.lineno, file


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
