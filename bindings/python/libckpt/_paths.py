# SPDX-License-Identifier: Apache-2.0
"""Where a value is in a state."""

from __future__ import annotations

from typing import Any

#: (path of its parent, key), or None for the state itself.
Path = tuple["Path", Any] | None


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
