# SPDX-License-Identifier: Apache-2.0
"""PerRank: a value of which every rank has its own."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ._errors import UnsupportedStateError
from ._into import into
from ._state_kinds import is_module, is_optimizer

T = TypeVar("T")


class PerRank(Generic[T]):
    """
    A value that every rank has one of its own, in the state of a checkpointer of many ranks.

        state = {"model": model, "noise": PerRank(torch.zeros(8))}

    It is saved by every rank, and restored to the rank that it is of. Without it, tensors in the
    state are taken to be the same on all ranks, and one rank writes each. A rank that had none when
    the step was saved, because there were fewer, keeps the value it has, with a warning.
    """

    def __init__(self, value: T) -> None:
        if is_module(value) or is_optimizer(value):
            raise UnsupportedStateError(
                f"PerRank({type(value).__qualname__}): put it into the state itself, and name what "
                "every rank has of its own of it, by Checkpointer(..., per_rank=[...])"
            )
        self.value = value

    def __repr__(self) -> str:
        return f"libckpt.PerRank({self.value!r})"

    def state_dict(self) -> dict[str, Any]:
        """The value."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a value; a tensor keeps its memory if type and shape are the same."""
        self.value = into(self.value, state["value"])
