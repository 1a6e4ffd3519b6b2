# SPDX-License-Identifier: Apache-2.0
"""The process group of a job, and access to its key-value store (the store of c10d)."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any, NamedTuple

from . import _errors as errors
from ._native import lib

#: Returned by compare_set() for a key that does not exist. No value begins with a NUL.
_ABSENT = b"\0absent"
#: Timeout of the connections that libckpt makes. It covers the name lookup. glibc waits 5 s for an
#: answer of a name server, and then asks again, so the timeout must allow for several answers that
#: are lost. A clone of a connection has the timeout of the original.
TIMEOUT = timedelta(seconds=20)


class Group(NamedTuple):
    """A process group: the default one of torch.distributed, or another one."""

    rank: int
    world: int
    #: the c10d store of the default group
    store: Any
    #: distinguishes it from other groups; empty: the default group
    name: str = ""


def find_group(distributed: bool | None) -> Group | None:
    """The default group; None: this process is alone."""
    if distributed is False:
        return None
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        if distributed:
            raise ValueError(
                "distributed=True, but torch.distributed has no default process group: call "
                "init_process_group() first, or leave `distributed` out"
            )
        return None
    world = int(dist.get_world_size())
    if world == 1:
        return None
    from torch.distributed import distributed_c10d

    return Group(int(dist.get_rank()), world, distributed_c10d._get_default_store())


class Table:
    """The keys of a c10d store. No call waits until a key is set."""

    def __init__(self, store: Any) -> None:
        self._store = store
        extended = getattr(store, "has_extended_api", None)
        self._many = extended is not None and bool(extended())

    def read(self, key: str) -> bytes | None:
        """The value; None: no such key. compare_set() with a value that no key has only reads."""
        value: bytes = self._store.compare_set(key, _ABSENT, _ABSENT)
        return None if value == _ABSENT else value

    def get(self, keys: list[str]) -> list[bytes | None]:
        """The values; None for keys that do not exist."""
        if len(keys) > 1 and self._many and self._store.check(keys):
            return list(self._store.multi_get(keys))
        return [self.read(key) for key in keys]

    def put(self, key: str, value: bytes) -> bool:
        """Sets a key that does not exist. False: it exists with another value."""
        return self.first(key, value) == value

    def first(self, key: str, value: bytes) -> bytes:
        """Sets a key that does not exist. Returns its value afterwards."""
        found: bytes = self._store.compare_set(key, b"", value)
        return found

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        """Replaces the value `old` (empty: no such key). False: the key has another value."""
        return bool(self._store.compare_set(key, old, new) == new)

    def write(self, key: str, value: bytes) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def drop(self, key: str) -> None:
        """Deletes a key, if the store supports that."""
        try:
            self._store.delete_key(key)
        except NotImplementedError:
            return

    def again(self) -> Table | None:
        """Another connection to the same store."""
        return connect(self._store)


def connect(store: Any) -> Table | None:
    """A table on a new connection; None if this version of torch or this store has none."""
    try:
        own = second(store)
        if own is None:
            return None
        own.set_timeout(TIMEOUT)
        table = Table(own)
        key, value = f"libckpt/probe/{os.urandom(8).hex()}", b"\xff\0probe"
        there = table.read(key), table.put(key, value), table.read(key), table.put(key, b"other")
        table.drop(key)
    except (AttributeError, NotImplementedError, TypeError):
        return None
    except RuntimeError as error:
        raise errors.NetworkError(
            f"the job's key-value store cannot be reached: {first_line(error)}",
            code=lib.CKPT_ENETWORK,
        ) from error
    return table if there == (None, True, value, False) else None


def second(store: Any) -> Any:
    """Another connection to the store; None: not possible."""
    if hasattr(store, "clone"):
        return store.clone()
    # An older torch: connect to the server of the innermost store, by its address.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "host") or not hasattr(store, "port"):
        return None
    from torch.distributed import TCPStore

    return TCPStore(
        store.host, store.port, is_master=False, wait_for_workers=False, timeout=TIMEOUT
    )


def first_line(error: BaseException) -> str:
    """The first line of an error of torch. The other lines are stack frames."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
