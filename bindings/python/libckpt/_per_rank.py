# SPDX-License-Identifier: Apache-2.0
"""PerRank: a value that differs by rank."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ._errors import UnsupportedStateError
from ._into import into
from ._state_kinds import is_module, is_optimizer

T = TypeVar("T")


class PerRank(Generic[T]):
    """
    Marks a value in the state as each rank's own.

        state = {"model": model, "noise": PerRank(torch.zeros(8))}

    Every rank saves its value, and the rank with the same number gets it back. Without PerRank, a
    tensor in the state must be the same on all ranks, and one rank writes it. If the step was saved
    by fewer ranks, a rank that has no value in it keeps its present value, with a warning. Modules
    and optimizers are refused: name their tensors in Checkpointer(per_rank=[...]).
    """

    def __init__(self, value: T) -> None:
        if is_module(value) or is_optimizer(value):
            raise UnsupportedStateError(
                f"PerRank({type(value).__qualname__}): modules and optimizers are not supported. "
                "Put it into the state itself, and name the tensors that are each rank's own in "
                "Checkpointer(..., per_rank=[...])"
            )
        self.value = value

    def __repr__(self) -> str:
        return f"libckpt.PerRank({self.value!r})"

    def state_dict(self) -> dict[str, Any]:
        """The value."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a value. A tensor keeps its memory if type and shape are the same."""
        self.value = into(self.value, state["value"])
