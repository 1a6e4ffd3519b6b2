# SPDX-License-Identifier: Apache-2.0
"""Whether a plan means the box of a tensor that is there."""

from __future__ import annotations

from typing import Any

from .._errors import UnsupportedStateError
from ..adapters._layout import is_dtensor, spread_of

Box = tuple[tuple[int, ...], tuple[int, ...]]


def is_within(whole: tuple[int, ...], start: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """True if a box at `start` is a part of a tensor; all three must have as many dimensions."""
    return len(whole) == len(start) == len(shape) and all(
        first >= 0 and count >= 0 and first + count <= size
        for size, first, count in zip(whole, start, shape, strict=True)
    )


def check_box(name: str, planner: Any, box: Box) -> None:
    """
    Raises if a DTensor of the planner's lies elsewhere than its plan says. For dimensions that are
    cut twice and do not divide, what some versions of torch compute differs from where the rows
    are, which nobody would notice before the ranks are cut in another way.
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
            f"{name}: torch takes what this rank holds for the box at {list(box[0])} of shape "
            f"{list(box[1])}, and its placements {value.placements} make it "
            f"{'nothing' if mine is None else f'the one at {list(mine[0])} of {list(mine[1])}'}: "
            "use another number of ranks, or libckpt.Checkpointer, which knows",
            tensor=name,
        )
