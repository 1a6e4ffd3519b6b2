# SPDX-License-Identifier: Apache-2.0
"""
Objects whose state_dict() has distributed tensors: torch's recipe for
torch.distributed.checkpoint, averages of weights under FSDP2.

Such an object is asked for its state before the restore, because only that shows the layout of the
tensors. Each rank reads its own part into new memory, because a tensor that the object returns may
be borrowed, and only the object knows what it does with what it is given.
"""

from __future__ import annotations

import sys
from typing import Any

from .._json_nodes import Json
from .._reader import Memory
from .._tensors import describe
from ._layout import is_spread


def must_be_asked(node: dict[str, Json]) -> bool:
    """True if the layout of an object's tensors is needed to restore it from this node."""
    if not node.get("spread") or "torch.distributed.tensor" not in sys.modules:
        return False
    import torch

    return torch.distributed.is_initialized()


def want_part(memory: Memory, node: Json, live: Any) -> bool:
    """
    Allocates memory for this rank's part of the node's tensor, if the live value is distributed and
    has its shape. False: the tensor is to be read whole.
    """
    if not isinstance(node, dict) or "$tensor" not in node or not is_spread(live):
        return False
    stored = memory.stored(node["$tensor"])
    if describe(live).full_shape != stored.shape:
        return False
    memory.hold(stored.name, memory.want_like(stored.name, live))
    return True
