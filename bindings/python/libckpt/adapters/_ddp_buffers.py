# SPDX-License-Identifier: Apache-2.0
"""
The buffers that DDP broadcasts from rank 0 before each forward pass. Rank 0 saves them for all
ranks, and they are not compared.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ._layout import memory_of
from ._wrappers import plain_key

if TYPE_CHECKING:
    import torch
    from torch import nn


def ddp_buffers(module: nn.Module, world: int) -> set[int]:
    """Ids of the buffers that a DDP module in `module` broadcasts among all `world` ranks."""
    if world == 1:
        return set()
    parallel = sys.modules.get("torch.nn.parallel")
    found: set[int] = set()
    for inner in module.modules():
        if (
            parallel is not None
            and isinstance(inner, parallel.DistributedDataParallel)
            and inner.broadcast_buffers
            and inner.process_group.size() == world
        ):
            # Like DDP: the first name of a buffer decides whether it is ignored.
            named = inner.module.named_buffers()
            ignored = inner.parameters_to_ignore
            found.update(id(buffer) for name, buffer in named if name not in ignored)
    return found


def ddp_buffers_in_state(
    module: nn.Module, inner: nn.Module, world: int
) -> tuple[dict[str, torch.Tensor], set[int]]:
    """
    The same buffers by their keys in `inner.state_dict()`, without names of wrappers; and the
    addresses of their elements. `inner` is the module inside the wrappers of `module`. Both are
    needed: the tensor of a buffer may change from save to save, and a state_dict() may return a
    copy, or rename the buffer.
    """
    ids = ddp_buffers(module, world)
    names: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    for path, owner in inner.named_modules(remove_duplicate=False) if ids else ():
        for name, buffer in owner._buffers.items():
            if buffer is not None and id(buffer) in ids:
                keys = plain_key(inner, f"{path}.{name}" if path else name)
                names.update(dict.fromkeys(keys, buffer))
                memory.add(memory_of(buffer).data_ptr())
    return names, memory - {0}
