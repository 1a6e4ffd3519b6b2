# SPDX-License-Identifier: Apache-2.0
"""Loops over everything there is, of which the run of a commit takes a part, as it takes cases."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def some(of: Sequence[T], one_in: int) -> Sequence[T]:
    """One in so many, others with each commit; without tests/run/selection.py, all."""
    draw = os.environ.get("CKPT_TEST_SLICE")
    if not draw or os.environ.get("CKPT_TEST_FULL"):
        return of
    return of[int(hashlib.sha256(draw.encode()).hexdigest(), 16) % one_in :: one_in]
