# SPDX-License-Identifier: Apache-2.0
"""convert(): imports a checkpoint of torch.distributed.checkpoint into a store."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ._engine_cache import close, step_of
from ._storage_writer import StorageWriter


def convert(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    step: int | None = None,
    *,
    new_start: bool = False,
    allow_pickle: bool = False,
) -> int:
    """
    Imports a checkpoint that dcp.save() has written into the directory `source` as a step of
    `store`. Returns the number of the step: `step`, or the number at the end of the directory's
    name.

    Runs in one process and needs memory for the whole checkpoint. The checkpoint of torch is
    pickled and can run any code: convert only what you trust. If the store has committed steps, a
    step must have been loaded from it before in this process, or new_start is needed.
    """
    number = step_of(source) if step is None else step
    if number is None:
        raise ValueError(f"{os.fspath(source)} does not end with a number: give the step")
    reader = dcp.FileSystemReader(source)
    found = reader.read_metadata()
    state: dict[str, Any] = {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        if isinstance(what, TensorStorageMetadata)
        else None
        for name, what in found.state_dict_metadata.items()
    }
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    writer = StorageWriter(
        store, number, new_start=new_start, allow_pickle=allow_pickle, distributed=False
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is ")  # intended
        try:
            dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
            nested = _nest(state, found.planner_data or {})
            dcp.save(nested, storage_writer=writer, no_dist=True)
        except dcp.CheckpointException as error:  # has the errors of all ranks; there is one
            raise error.failures[0][0] from error
        finally:
            close(store)
    return number


def _nest(flat: dict[str, Any], paths: dict[str, tuple[int | str, ...]]) -> dict[str, Any]:
    """The state as it was given to dcp.save()."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        path = paths.get(name, (name,))
        at: Any = nested
        for key, after in itertools.pairwise(path):
            at = _enter(at, key, [] if type(after) is int else {})
        _enter(at, path[-1], None)
        at[path[-1]] = value
    return nested


def _enter(at: Any, key: int | str, fresh: Any) -> Any:
    if isinstance(at, list):
        assert isinstance(key, int)
        at.extend([None] * (key + 1 - len(at)))
        if at[key] is None:
            at[key] = fresh
        return at[key]
    return at.setdefault(key, fresh)
