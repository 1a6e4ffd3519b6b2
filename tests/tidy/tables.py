# SPDX-License-Identifier: Apache-2.0
"""The members of a table are called by the one file that wraps it, and by no other.

The table `struct ckpt_NAME_ops` of libckpt/FOLDER/HEADER.h is wrapped by libckpt/FOLDER/NAME.c.
Tests may go round it: some hand a backend what the wrapper would refuse.
"""

import re

from tree import line_of

TABLE = re.compile(r"^struct ckpt_(\w+)_ops \{(.*?)^\};", re.MULTILINE | re.DOTALL)

# Breaks the rules that a wrapper would assert, to see that the simulated disk notices.
BREAKS_RULES = "tests/sim/test_sim_disk.c"


def tables(tree):
    """(wrapper file, header, members that are functions)"""
    for path in tree.paths(r"^libckpt/.*\.h$"):
        for name, body in TABLE.findall(tree.code(path)):
            folder = path.rsplit("/", 1)[0]
            yield f"{folder}/{name}.c", path, set(re.findall(r"\(\*(\w+)\)\(", body))


def _calls(tree, pattern):
    for path in tree.paths(pattern):
        code = tree.code(path)
        for match in re.finditer(r"\bops\s*(?:->|\.)\s*(\w+)", code):
            yield path, line_of(code, match.start()), match.group(1)


def check(tree):
    wrappers = {}
    for wrapper, header, members in tables(tree):
        if wrapper not in tree.files:
            yield header, 1, f"its table has no wrapper {wrapper}"
        for member in members:
            wrappers.setdefault(member, set()).add(wrapper)
    for path, line, member in _calls(tree, r"^(libckpt|tools|bindings)/.*\.[ch]$"):
        if path == BREAKS_RULES:
            continue
        if member in wrappers and path not in wrappers[member]:
            yield path, line, f"ops->{member} is for {', '.join(sorted(wrappers[member]))} alone"
