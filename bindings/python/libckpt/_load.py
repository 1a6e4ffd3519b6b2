# SPDX-License-Identifier: Apache-2.0
"""Reading a store without a live state: load() and list_steps()."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._asking import placed
from ._catalog import StepInfo
from ._decoder import Decoder
from ._engine import Engine
from ._errors import CheckpointWarning, FormatError, MismatchError, StepNotFoundError
from ._json_nodes import Json, tag_of
from ._native import lib
from ._newest import read_newest
from ._options import Options
from ._ranks import is_own
from ._reader import Memory, Reader, Stored, optimizer_tensors, references
from ._save import Progress, callback
from ._store_names import Step, store_name
from .adapters._buffers import said_of

if TYPE_CHECKING:
    import torch


def load(
    store: str | os.PathLike[str],
    step: Step = "latest",
    names: Iterable[str] | None = None,
    allow_pickle: bool = False,
    *,
    map_location: str | torch.device | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> dict[str, Any]:
    """
    Reads a step without a live state, and returns it as a dict. The data is verified.

    store: directory of the store, or "s3://bucket/prefix".
    step: a number, "latest", or "latest~1" for the step before the latest. If the latest step
        cannot be read or verified, the next older one is taken, with a warning.
    names: None: the whole state, as it was given to the Checkpointer. A module is a dict of its
        tensors. An optimizer is a dict with "state" (by the names of its parameters) and
        "param_groups". Any other object is what its state_dict() returned. Otherwise: names of
        tensors, or patterns ("layers.0.*"). Only these are read, and returned by their names.
    allow_pickle: load pickled values. They can run any code: use it only for stores that you trust.
    map_location: device of the tensors ("cuda:0"). None: the CPU.
    progress: function that is called with a Progress, in this thread.

    Tensors of many ranks are returned whole. Raises StoreNotFoundError, StepNotFoundError,
    MismatchError if there is no tensor of a name, IntegrityError if data is damaged, and other
    CheckpointErrors.
    """
    callback("progress", progress)
    device = _device(map_location)
    engine = Engine(store_name(store), Options(read_only=True), log_thread=False)
    try:

        def read(reader: Reader) -> dict[str, Any]:
            value = _load_from(reader, names, allow_pickle, progress, device)
            if reader.differ:
                warnings.warn(
                    f"step {reader.step}: when it was saved, {reader.differ}; the copy of one of "
                    "them is loaded",
                    CheckpointWarning,
                    stacklevel=5,
                )
            return value

        found, value = read_newest(engine, step, read)
        if found is None:
            raise StepNotFoundError(
                f"{engine.path}: nothing has been committed yet", code=lib.CKPT_ENOSTEP
            )
        state: dict[str, Any] = value
        return state
    finally:
        engine.close()


def _device(map_location: str | torch.device | None) -> torch.device | None:
    """The device of the tensors. None: the CPU. torch is imported only if needed."""
    if map_location is None or map_location == "cpu":
        return None
    import torch

    device = torch.device(map_location)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"map_location={str(device)!r}: it must be the CPU or a CUDA device")
    return None if device.type == "cpu" else device


def list_steps(store: str | os.PathLike[str], *, everything: bool = False) -> list[StepInfo]:
    """
    Lists the steps of a store that can be restored, newest first. `everything`: also steps that
    were aborted, are quarantined, broken or in progress, or are of a branch that was rolled back.
    `store`: a directory or "s3://bucket/prefix". Only manifests are read, so a step that is listed
    may still have damaged data. Raises StoreNotFoundError and other CheckpointErrors.
    """
    engine = Engine(store_name(store), Options(read_only=True), log_thread=False)
    try:
        return [
            info
            for info in engine.steps()
            if everything or (info.in_lineage and info.state == "committed")
        ]
    finally:
        engine.close()


def _load_from(
    reader: Reader,
    names: Iterable[str] | None,
    allow_pickle: bool,
    progress: Callable[[Progress], object] | None,
    device: torch.device | None,
) -> dict[str, Any]:
    meta = reader.meta()
    stored = reader.stored(meta)
    memory = Memory(reader, stored, device)
    if names is not None or meta is None:
        chosen = list(stored) if names is None else _choose(names, stored, reader)
        tensors = {name: memory.want(name, "torch") for name in chosen}
        reader.read(progress)
        return tensors
    owns = sorted(set(meta.get("per_rank") or ()) - said_of(meta).names)
    if owns:
        warnings.warn(
            f"step {reader.step}: each rank had its own {owns[0]!r}, and {len(owns) - 1} more; "
            f"those of rank {reader.first_rank()} are loaded. names=['rank-*'] gives all",
            CheckpointWarning,
            stacklevel=6,
        )
    wanted: set[str] = set()
    try:
        for name, kind in references(meta["state"]):
            memory.want(name, kind)
            wanted.add(stored[name].home)
        for name, _ in references(meta.get("rng")):
            wanted.add(stored[name].home)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        raise FormatError(f"step {reader.step}: its state is malformed: {error!r}") from error
    _say_left(reader, stored, wanted)
    reader.read(progress)

    def special(tag: str, node: Json) -> Any:
        if tag == "$module":
            return _module(node, decoder, memory)
        if tag == "$optimizer":
            return _optimizer(node, decoder, memory)
        return decoder.decode(node["state"])

    decoder = Decoder(memory.get, allow_pickle=allow_pickle, special=special)
    return _decode_state(decoder, meta["state"])


def _say_left(reader: Reader, stored: dict[str, Stored], wanted: set[str]) -> None:
    """Warns of tensors that the rank whose state is loaded did not have."""
    homes = {what.home for what in stored.values() if what.here} - wanted
    left = sorted(home for home in homes if not is_own(home))
    if left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        warnings.warn(
            f"step {reader.step}: its ranks had different tensors, like stages of a pipeline. The "
            f"state of rank {reader.first_rank()} is loaded, without {left[0]!r}{more}: "
            "names=[...] gives those of all ranks",
            CheckpointWarning,
            stacklevel=7,
        )


def _decode_state(decoder: Decoder, node: Json) -> dict[str, Any]:
    """Decodes key by key, so that an exception of user code can say where it was raised."""
    if type(node) is not dict or tag_of(node) is not None:
        state: dict[str, Any] = decoder.decode(node)
        return state
    state = {}
    for key, item in node.items():
        with placed((None, key)):
            state[key] = decoder.decode(item)
    return state


def _choose(names: Iterable[str], stored: dict[str, Stored], reader: Reader) -> list[str]:
    import difflib
    import fnmatch

    if isinstance(names, str):
        names = [names]
    chosen: dict[str, None] = {}
    for name in names:
        found = [name] if name in stored else fnmatch.filter(stored, name)
        if not found and (missing := reader.elsewhere(name)) is not None:
            raise missing
        if not found:
            close = difflib.get_close_matches(name, stored, 3)
            hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
            raise MismatchError(
                f"step {reader.step} holds no tensor {name!r}{hint}",
                code=lib.CKPT_EMISMATCH,
                step=reader.step,
                tensor=name,
            )
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _module(node: dict[str, Json], decoder: Decoder, memory: Memory) -> dict[str, Any]:
    prefix = len(node["prefix"])
    state = {name[prefix:]: memory.get(name, "torch") for name in node["tensors"]}
    state.update({key: decoder.decode(value) for key, value in node["extra"].items()})
    return state


def _optimizer(node: dict[str, Json], decoder: Decoder, memory: Memory) -> dict[str, Any]:
    names = node["params"]
    state: dict[Any, dict[str, Any]] = {}
    for index, role, name in optimizer_tensors(node):
        state.setdefault(names[index], {})[role] = memory.get(name, "torch")
    for index_text, values in node["values"].items():
        entry = state.setdefault(names[int(index_text)], {})
        entry.update({role: decoder.decode(value) for role, value in values.items()})
    state.update(decoder.decode(node["other"]))
    groups, first = [], 0
    for group in node["groups"]:
        count = group["count"]
        groups.append({**decoder.decode(group["options"]), "params": names[first : first + count]})
        first += count
    return {"state": state, "param_groups": groups, **decoder.decode(node["extra"])}
