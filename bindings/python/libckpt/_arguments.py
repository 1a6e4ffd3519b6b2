# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a Checkpointer."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

from . import _errors as errors
from ._preflight import check_values
from ._save import Progress, callback
from ._state_kinds import check_state
from ._store_names import remote_name
from .adapters._sharded import refuse_sharded

OnError = Literal["warn", "raise"] | Callable[[errors.CheckpointError], object]


def ways(pool_bytes: int, io: str, busy: str, save_timeout: float) -> dict[str, Any]:
    """Options of saves."""
    return {
        "pool_bytes": count("pool_bytes", pool_bytes, 0) or 0,
        "io": one_of("io", io, ("auto", "uring", "threads")),
        "busy": one_of("busy", busy, ("wait", "skip")),
        "save_timeout": seconds("save_timeout", save_timeout),
    }


def stored(encoding: str, replicas: str) -> dict[str, Any]:
    """How a step is stored, and whether one is of which ranks differ."""
    return {
        "encoding": one_of("encoding", encoding, ("plain", "compact", "delta")),
        "replicas": one_of("replicas", replicas, ("check", "warn")),
    }


def stored_there(encoding: str | None) -> dict[str, Any]:
    """How a step is stored in the remote store."""
    if encoding is not None:
        one_of("remote_encoding", encoding, ("plain", "compact"))
    return {"remote_encoding": encoding}


def remote_options(
    remote: str | os.PathLike[str] | None,
    every: int | None,
    bytes_per_s: int | None,
    grace: int,
) -> dict[str, Any]:
    """Options of the remote store."""
    return {
        "remote_grace": _grace(grace),
        "remote": remote_name(remote),
        "remote_every": count("remote_every", every, 1) or 0,
        "remote_bytes_per_s": count("remote_bytes_per_s", bytes_per_s, 1) or 0,
    }


def check_given(
    progress: Callable[[Progress], object] | None,
    state: Any,
    distributed: bool | None,
    *,
    allow_pickle: bool,
) -> None:
    """Raises for a callback that is not callable, and for values that cannot be saved."""
    from ._kvstore import find_group

    callback("progress", progress)
    if state is not None:
        check_state(state)
        if find_group(distributed) is not None:
            refuse_sharded(state)
        check_values(state, allow_pickle=allow_pickle)


def retention(where: str, keep_last: int | None, keep_every: int | None) -> dict[str, Any]:
    """Options of retention."""
    return {
        f"{where}keep_last": count(f"{where}keep_last", keep_last, 1) or 0,
        f"{where}keep_every": count(f"{where}keep_every", keep_every, 1) or 0,
    }


def _grace(seconds: int) -> int:
    number = count("remote_grace", seconds, 1)
    if number is None or number >= 1 << 32:
        raise ValueError(f"remote_grace={number}: it must be from 1 to 2**32 - 1 seconds")
    return number


def count(name: str, value: int | None, least: int) -> int | None:
    """An integer of at least `least`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be an int or None, not {type(value).__qualname__}")
    number = value.__index__()
    if not least <= number < 1 << 63:
        raise ValueError(f"{name}={number}: it must be from {least} to 2**63 - 1, or None")
    return number


def seconds(name: str, value: float, *, zero: bool = False) -> float:
    """A number of seconds, more than 0, or 0 if `zero`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__qualname__}")
    if not (0 < value <= 86400 * 7 or (zero and value == 0)):
        raise ValueError(f"{name}={value}: it must be a number of seconds, a week at most")
    return float(value)


def patterns(given: Iterable[str], name: str = "per_rank") -> tuple[str, ...]:
    """Patterns of names."""
    patterns = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(one, str) for one in patterns):
        raise TypeError(f'{name} must be a list of patterns, such as ["experts.*"]')
    return patterns


def flag(name: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__qualname__}")
    return value


def origin(new_start: bool, node_store: bool, lost_nodes: bool) -> dict[str, Any]:
    """Options of the store: which steps the job continues from, and whose store it is."""
    if flag("lost_nodes", lost_nodes) and not flag("node_store", node_store):
        raise ValueError(
            "lost_nodes=True is for nodes with a store each: give node_store=True, too"
        )
    return {
        "new_start": new_start,
        "node_store": flag("node_store", node_store),
        "lost_nodes": lost_nodes,
    }


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: it must be one of {', '.join(map(repr, allowed))}")
    return value


def policy(on_error: OnError) -> OnError:
    """The argument on_error."""
    if not callable(on_error) and not isinstance(on_error, str):
        raise TypeError(
            f'on_error must be "warn", "raise" or a function, not {type(on_error).__qualname__}'
        )
    if isinstance(on_error, str) and on_error not in ("warn", "raise"):
        raise ValueError(f'on_error={on_error!r}: it must be "warn", "raise" or a function')
    return on_error
