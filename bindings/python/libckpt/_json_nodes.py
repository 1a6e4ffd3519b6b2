# SPDX-License-Identifier: Apache-2.0
"""Nodes of the JSON of a state, and paths of values in a state."""

from __future__ import annotations

import json
from typing import Any

#: A node: an encoded value.
Json = Any
#: (path of its parent, key), or None for the state itself.
Path = tuple["Path", Any] | None

#: Version of the Python state in an index.
PYTHON_VERSION = 1
#: Most levels of nested containers.
NESTING_MAX = 100
#: Tags of objects in a state: see _state_writer.py.
SPECIAL_TAGS = ("$module", "$optimizer", "$object")

_PLAIN = {bool, float, int, str, type(None)}


def dump(node: Json) -> str:
    """The JSON text of a node. It is the same for equal nodes."""
    return json.dumps(node, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def tag_of(node: dict[str, Json]) -> str | None:
    """The tag of a typed node; None for a plain dict."""
    if len(node) == 1:
        tag = next(iter(node))
        if tag[:1] == "$":
            return tag
    return None


def mentions(node: Json, *tags: str) -> bool:
    """True if a node with one of these tags is in it."""
    if type(node) is list:  # a fast check for long lists of plain values
        return not set(map(type, node)) <= _PLAIN and any(mentions(item, *tags) for item in node)
    if type(node) is not dict:
        return False
    tag = tag_of(node)
    if tag == "$json":
        return mentions(json.loads(node[tag]), *tags)
    return tag in tags or any(mentions(item, *tags) for item in node.values())


def path_text(path: Path) -> str:
    """A path as Python would write it: state['opt']['lr']."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(f"[{key!r}]")
    return "state" + "".join(reversed(keys))


def path_name(path: Path) -> str:
    """A path as a tensor's name: opt/lr."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return "/".join(reversed(keys))
