# SPDX-License-Identifier: Apache-2.0
"""Checks of the boxes of tensors in a plan."""

from __future__ import annotations

from typing import Any

from .._errors import UnsupportedStateError
from ..adapters._layout import is_dtensor, spread_of

Box = tuple[tuple[int, ...], tuple[int, ...]]


def is_within(whole: tuple[int, ...], start: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """True if a box of `shape` at `start` is within a tensor of the shape `whole`."""
    return len(whole) == len(start) == len(shape) and all(
        first >= 0 and count >= 0 and first + count <= size
        for size, first, count in zip(whole, start, shape, strict=True)
    )


def check_box(name: str, planner: Any, box: Box) -> None:
    """
    Raises UnsupportedStateError if the box of a DTensor in the plan is not the one that its
    placements mean. Some versions of torch compute wrong offsets for a dimension that is sharded
    twice and not divisible. Without this check, the error would show only after resharding.
    """
    value = (getattr(planner, "state_dict", None) or {}).get(name)
    if value is None or not is_dtensor(value):
        return
    if not any(hasattr(placement, "split_factor") for placement in value.placements):
        return
    spread = spread_of(value)
    mine = spread.box
    nothing = 0 in box[1] or 0 in value.shape
    same = (mine is None or 0 in mine[1]) if nothing else mine == box
    if not same or spread.refusal:
        raise UnsupportedStateError(
            f"{name}: the plan of torch has the box at {list(box[0])} of shape {list(box[1])} for "
            f"this rank, but by its placements {value.placements} it holds "
            f"{'nothing' if mine is None else f'the one at {list(mine[0])} of {list(mine[1])}'}: "
            "use another number of ranks, or libckpt.Checkpointer, which computes the right box",
            tensor=name,
        )
