# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch's own writer, as steps of a store."""

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
    Makes a checkpoint that dcp.save() has written into a directory a step of a store, and returns
    the step: the digits that the directory's name ends with, unless it is given.

    Runs in one process, and holds the whole checkpoint in its memory. What torch wrote is pickled:
    convert only what you trust. A store that holds commits is continued by what was loaded from it
    before, or with new_start.
    """
    number = step_of(source) if step is None else step
    if number is None:
        raise ValueError(f"{os.fspath(source)} ends with no step's number: say which step it is")
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
        warnings.filterwarnings("ignore", message="torch.distributed is ")  # meant so
        try:
            dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
            nested = _nest(state, found.planner_data or {})
            dcp.save(nested, storage_writer=writer, no_dist=True)
        except dcp.CheckpointException as error:  # of all ranks, and there is one
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
