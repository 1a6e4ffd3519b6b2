# SPDX-License-Identifier: Apache-2.0
"""
Objects whose state_dict() holds tensors that are spread over ranks: torch's recipe for
torch.distributed.checkpoint, averages of weights under FSDP2.

Such an object is asked for its state before the restore, because only that says how the tensors
lie. Each rank reads its own part, into memory of its own: a tensor that an object gives may be one
that it has only borrowed, and what it does with what it is handed only the object knows.
"""

from __future__ import annotations

import sys
from typing import Any

from .._json_nodes import Json
from .._reader import Memory
from .._tensors import describe
from ._layout import is_spread


def must_be_asked(node: dict[str, Json]) -> bool:
    """Whether an object must be asked how its tensors lie, to restore it from this node."""
    if not node.get("spread") or "torch.distributed.tensor" not in sys.modules:
        return False
    import torch

    return torch.distributed.is_initialized()


def want_part(memory: Memory, node: Json, live: Any) -> bool:
    """
    Memory for this rank's part of what the node names, if the live value is spread over ranks and
    has the shape of it. False: it is to be read whole.
    """
    if not isinstance(node, dict) or "$tensor" not in node or not is_spread(live):
        return False
    stored = memory.stored(node["$tensor"])
    if describe(live).full_shape != stored.shape:
        return False
    memory.hold(stored.name, memory.want_like(stored.name, live))
    return True
