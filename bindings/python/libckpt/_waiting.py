# SPDX-License-Identifier: Apache-2.0
"""Waiting for what says nothing when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    is_over: Callable[[], bool],
    end: float | None,
    late: Callable[[], Exception],
    *,
    most: float,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """
    Asks `is_over` again and again, at least every `most` seconds, until it says so. Raises `late()`
    at the time `end` of time.monotonic(); None: never. `pause` waits between, in slices, so that
    Ctrl-C gets through.
    """
    while not is_over():
        left = most if end is None else end - time.monotonic()
        if left <= 0:
            raise late()
        pause(min(most, left))
