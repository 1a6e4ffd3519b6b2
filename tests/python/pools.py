# SPDX-License-Identifier: Apache-2.0
"""Staging memory of tests that do not ask for a size."""

from __future__ import annotations

from typing import Any

#: The least that an engine takes with blocks of 8 MiB. One that finds the size itself begins with
#: up to 1 GiB, all of which the kernel clears for it: half a second of a processor for each rank.
SMALL = 32 << 20


def small_by_default(*classes: Any) -> None:
    """What these classes open has that much, unless it is given a size (0: it is found)."""
    for one in classes:
        defaults = one.__init__.__kwdefaults__
        assert "pool_bytes" in defaults, one
        defaults["pool_bytes"] = SMALL
