# SPDX-License-Identifier: Apache-2.0
"""
The contents that one rank saves: the tensors of its plan, by their names there, and the values as
typed JSON in the metadata of its index:

    {"dcp": {"version": 1, "library": "0.1.0", "pickled": [paths],
             "values": {name: VALUE}, "raw": [names of values that are bytes of the planner's own],
             "paths": {name: [keys]}, "planner": VALUE, "empty": {name: [dtype, shape]}}}

`paths`: the path of each value in the nested state. `planner`: the data of a planner that has no
such paths; rank 0 saves it, or the lowest rank of each node. `empty`: with a store on every node,
tensors and values (null) of which this rank has nothing.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, TypeGuard

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from .._behind import Behind
from .._calls import VERSION
from .._errors import UnsupportedStateError
from .._json_nodes import Json, Path, dump
from .._json_values import Encoder
from .._ranks import Ranks
from .._snapshot import Snapshot
from .._state_writer import META_MAX
from .._tensors import check_tensor, describe, encode_name
from ._boxes import check_box, is_within
from ._gather_tensors import Gathered, on_host

#: Version of this metadata.
DCP_VERSION = 1


def contents(
    plan: SavePlan,
    planner: SavePlanner,
    ranks: Ranks,
    *,
    allow_pickle: bool,
    first: bool,
    absent: dict[str, Json] | None = None,
) -> tuple[Snapshot, list[int]]:
    """
    The snapshot for the engine, and the size of each item of the plan. `first`: this rank saves
    what is the same on all ranks that write to its store.
    """
    gathered = Gathered(ranks)
    found = plan.planner_data
    paths: dict[str, Any] = found if _is_paths(found) else {}
    sizes = [
        0 if item.type == WriteItemType.BYTE_IO else _add_tensor(item, planner, gathered)
        for item in plan.items
    ]
    # After all tensors, so that tensors of values get names that are not in use.
    encoder = Encoder(gathered, allow_pickle=allow_pickle)
    values: dict[str, Json] = {}
    raw: list[str] = []
    for item in plan.items:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            encode_name(name, name)
            value, is_raw = _value_of(item, planner)
            if is_raw:
                _check_raw(name, planner, allow_pickle)
                raw.append(name)
            path = _path_of(paths.get(name), name)
            values[name] = encoder.encode(value, path, 4)
    node: dict[str, Json] = {
        "version": DCP_VERSION,
        "library": VERSION,
        "pickled": encoder.pickled + raw,
        "values": values,
        "raw": raw,
        "paths": {
            item.index.fqn: list(paths[item.index.fqn])
            for item in plan.items
            if item.index.fqn in paths
        },
    }
    if absent:
        node["empty"] = absent
    if found is not None and not _is_paths(found) and first:
        node["planner"] = encoder.encode(found, (None, "planner_data"), 3)
    return _snapshot(gathered, node, encoder.pickled + raw), sizes


def _is_paths(found: Any) -> bool:
    """True for the paths of a planner that flattens the state."""
    return type(found) is dict and all(
        type(name) is str and type(path) is tuple and all(type(key) in (int, str) for key in path)
        for name, path in found.items()
    )


def _path_of(keys: tuple[int | str, ...] | None, name: str) -> Path:
    path: Path = None
    for key in keys or (name,):
        path = path, key
    return path


def _add_tensor(item: WriteItem, planner: SavePlanner, gathered: Gathered) -> int:
    """Saves a box of a tensor. Returns its bytes."""
    name, data = item.index.fqn, item.tensor_data
    value = planner.resolve_data(item)
    if not isinstance(value, torch.Tensor) or data is None:
        raise UnsupportedStateError(
            f"{name}: the planner gave a {type(value).__qualname__} for a tensor", tensor=name
        )
    tensor = on_host(value)
    check_tensor(tensor, name)
    whole, start, shape = tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    if not is_within(whole, start, shape):
        raise UnsupportedStateError(
            f"{name}: the plan has a box of shape {list(shape)} at {list(start)}, which is no part "
            f"of a tensor of shape {list(whole)}",
            tensor=name,
        )
    if tuple(tensor.shape) != shape and (tensor.numel() or math.prod(shape)):
        raise UnsupportedStateError(
            f"{name}: the plan has a box of shape {list(shape)} for this rank, which holds one of "
            f"shape {list(tensor.shape)}",
            tensor=name,
        )
    check_box(name, planner, (start, shape))
    if 0 in whole:  # an empty tensor is whole on all ranks
        gathered.add(name, describe(tensor.new_empty(whole)), None)
        return 0
    if 0 in shape:
        return 0
    what = describe(tensor)
    if shape != whole:
        what = what._replace(whole=whole, start=start)
    gathered.add(name, what, tensor)
    return tensor.nbytes


def _value_of(item: WriteItem, planner: SavePlanner) -> tuple[Any, bool]:
    """A value that is not a tensor. True: it is bytes in a format of the planner."""
    if _is_plain(planner):
        return planner.lookup_object(item.index), False
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        raise UnsupportedStateError(
            f"{item.index.fqn}: the planner gave a {type(data).__qualname__} for a value"
        )
    text = data.getvalue()
    try:
        # This process has written it just now, so it is trusted.
        return torch.load(io.BytesIO(text), weights_only=False), False
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError):
        return text, True


def _is_plain(planner: SavePlanner) -> TypeGuard[DefaultSavePlanner]:
    """True if the planner returns values like its base class, by torch.save()."""
    base = DefaultSavePlanner
    return (
        isinstance(planner, base)
        and type(planner).resolve_data is base.resolve_data
        and type(planner).transform_object is base.transform_object
    )


def _check_raw(name: str, planner: SavePlanner, allow_pickle: bool) -> None:
    if not allow_pickle:
        raise UnsupportedStateError(
            f"{name}: {type(planner).__qualname__} gives bytes of its own for it, of which libckpt "
            "cannot say what loading them does; StorageWriter(..., allow_pickle=True) stores them "
            "as they are",
            tensor=name,
        )


def _snapshot(gathered: Gathered, node: dict[str, Json], pickled: list[str]) -> Snapshot:
    meta = dump({"dcp": node}).encode()
    if len(meta) > META_MAX:
        raise UnsupportedStateError(
            f"the values in the state that are no tensors take {len(meta) >> 20} MiB on this rank; "
            f"{META_MAX >> 20} MiB are the most: keep large data in tensors or NumPy arrays"
        )
    block = gathered.block()
    return Snapshot(
        blocks=[block] if block.count else [],
        aliases=gathered.aliases,
        meta=meta,
        common=b"",
        balance=0,
        apart={},
        alike=[],
        behind=Behind([], []),
        keep=gathered.keep,
        optimizers=[],
        why_eager="",
        pickled=pickled,
        own={},
        unclear=[],
    )
