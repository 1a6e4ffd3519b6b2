# SPDX-License-Identifier: Apache-2.0
"""The files that the tidy checks look at, and as much of C as they need to see."""

import os
import pathlib
import re
import subprocess

SKIPPED_FOLDERS = ("build", ".venv", "demo-run")


class Tree:
    """Paths with their text. Checks see nothing else, so that they can be tested."""

    def __init__(self, files):
        self.files = files
        self._code = {}

    def paths(self, pattern):
        return sorted(path for path in self.files if re.search(pattern, path))

    def code(self, path):
        if path not in self._code:
            self._code[path] = without_comments(self.files[path])
        return self._code[path]


def _listed(root):
    """What git would commit; where there is no git, what lies there."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        run = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        run = None
    if run and run.returncode == 0:
        return [path for path in run.stdout.decode().split("\0") if path]
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".git", *SKIPPED_FOLDERS, "__"))]
        paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return paths


def read(root):
    files = {}
    for path in _listed(root):
        try:
            files[path] = (pathlib.Path(root) / path).read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            continue  # deleted but not committed; a submodule; binary
    return Tree(files)


_TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def without_comments(text):
    """C without comments and without what strings hold; every line stays where it was."""

    def blank(match):
        token = match.group()
        if token[0] in "\"'":
            return token[0] * 2
        return "\n" * token.count("\n") or " "

    return _TOKEN.sub(blank, text)


def functions(text):
    """(name, first line, last line) of every function of a C file in the project's format."""
    lines = text.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            head = "\n".join(lines[max(0, start - 8) : start - 1])
            names = re.findall(r"(\w+)\(", head.rsplit("\n\n", 1)[-1])
            yield names[0] if names else "?", start, number
            start = None


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1
