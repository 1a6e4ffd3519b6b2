# SPDX-License-Identifier: Apache-2.0
"""The symbol map and the public headers name the same functions."""

import re

from tree import without_comments

MAP = "libckpt/libckpt.map"
BARE = r"^(?!CKPT_API|typedef|#)\w[^;{}#]*\b(ckpt_\w+)\([^;{}]*\);"


def declared(tree):
    """Functions marked CKPT_API -> the header that declares them."""
    found = {}
    for path in tree.paths(r"^include/ckpt/"):
        code = without_comments(tree.files[path])
        for name in re.findall(r"^CKPT_API\b[^;(]*?(\w+)\(", code, re.MULTILINE):
            found[name] = path
    return found


def mapped(tree):
    exported = tree.code(MAP).split("global:")[1].split("local:")[0]
    return set(re.findall(r"(\w+);", exported))


def check(tree):
    functions = declared(tree)
    exported = mapped(tree)
    for name in sorted(functions.keys() - exported):
        yield MAP, 1, f"{name} of {functions[name]} is missing"
    for name in sorted(exported - functions.keys()):
        yield MAP, 1, f"{name} is in no public header"
    for path in tree.paths(r"^include/ckpt/"):
        code = without_comments(tree.files[path])
        bare = re.findall(BARE, code, re.MULTILINE)
        for name in bare:
            yield path, 1, f"{name} is not marked CKPT_API"
