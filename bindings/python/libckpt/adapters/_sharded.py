# SPDX-License-Identifier: Apache-2.0
"""Refuses objects that shard tensors without showing it: FSDP1, ZeroRedundancyOptimizer etc."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._errors import UnsupportedStateError
from .._json_nodes import path_text
from .._state_kinds import find_objects, is_module, is_optimizer


class _Kind(NamedTuple):
    """Classes of a library."""

    module: str  # what the name of the class's module begins with
    name: str  # "": every class there
    instead: str


_INSTEAD_OF_ZERO = (
    "use the optimizer that it wraps, over a model with fully_shard() where memory is short, whose "
    "state is then shared out as DTensors are"
)
_INSTEAD_OF_FSDP = (
    "use torch.distributed.fsdp.fully_shard() (FSDP2), whose parameters are DTensors, or save its "
    "state_dict() with torch.distributed.checkpoint and libckpt.dcp"
)
_ITS_OWN = (
    "save it with the checkpoint functions of its library, or use "
    "torch.distributed.fsdp.fully_shard() (FSDP2), whose parameters are DTensors"
)
_KINDS = (
    _Kind("torch.distributed.", "ZeroRedundancyOptimizer", _INSTEAD_OF_ZERO),
    _Kind("torch.distributed.", "FullyShardedDataParallel", _INSTEAD_OF_FSDP),
    _Kind("deepspeed.runtime.zero.", "", _ITS_OWN),
    _Kind("megatron.", "DistributedOptimizer", _ITS_OWN),
    _Kind("fairscale.", "FullyShardedDataParallel", _ITS_OWN),
    _Kind("fairscale.", "OSS", _ITS_OWN),
    _Kind("apex.contrib.optimizers.", "DistributedFusedAdam", _ITS_OWN),
    _Kind("apex.contrib.optimizers.", "DistributedFusedLAMB", _ITS_OWN),
)


def refuse_sharded(state: dict[str, Any]) -> None:
    """
    Raises, on many ranks, for objects whose tensors are parts that look like plain tensors. Each
    part would be saved as the whole tensor.
    """
    for path, value in find_objects(state):
        found = next(_kinds_in(value), None)
        if found is not None:
            name, instead = found
            raise UnsupportedStateError(
                f"{path_text(path)} is, or has in it, a {name}: each rank has a part of its "
                f"tensors, and nothing says which: {instead}"
            )


def _kinds_in(value: Any) -> Iterator[tuple[str, str]]:
    """Why an object is refused: the name of its class, and what to use instead; None: it is not."""
    for part in value.modules() if is_module(value) else (value,):
        for kind in _KINDS:
            if _is_of(part, kind):
                name = type(part).__name__
                is_first = name == "FullyShardedDataParallel" and kind.module.startswith("torch")
                yield f"{name} (FSDP1)" if is_first else name, kind.instead
    if is_module(value):
        parameters = value.parameters()
    elif is_optimizer(value):
        parameters = (p for group in value.param_groups for p in group["params"])
    else:
        return
    # Placeholders: the parameters are only in memory while a layer computes.
    if any(hasattr(p, "ds_tensor") for p in parameters):
        yield "parameter of DeepSpeed's ZeRO-3", _ITS_OWN


def _is_of(value: Any, kind: _Kind) -> bool:
    return any(
        base.__module__.startswith(kind.module) and kind.name in ("", base.__name__)
        for base in type(value).__mro__
    )
