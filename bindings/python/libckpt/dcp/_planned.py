# SPDX-License-Identifier: Apache-2.0
"""
The plans of all ranks, if every node has a store. Rank 0 publishes them for the lowest rank of each
node, which lists them in its store.

They are written to the job's key-value store when they have changed. At each save, rank 0 publishes
only their digest, with its other data. The plans of torch would be sent to every node every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._dedup import Absent

#: Most bytes of one key. A key-value store with libuv closes the connection at more than 8 MiB.
_PART = 4 << 20
#: Most bytes of the plans, uncompressed.
_MOST = 1 << 30

#: Function that writes keys, and deletes others.
Put = Callable[[dict[str, bytes], list[str]], None]
#: Function that reads keys, None for those that do not exist.
Get = Callable[[list[str]], list[bytes | None]]


class Planned:
    """The plans, as one rank knows them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/planned"
        #: the last plans that are known, and their digest
        self._names: Absent | None = None
        self._digest = ""
        #: rank 0: their digest, the number of keys, and the prefix of these
        self._told: list[Any] | None = None
        #: rank 0: the keys that exist
        self._keys: list[str] = []

    def tell(self, names: Absent | None, put: Put) -> list[Any] | None:
        """Rank 0: publishes plans for hear(). Raises ValueError if they are too large."""
        if names is None:
            return None
        if self._told is None or names != self._names:
            # If this fails, the former plans must not be used.
            self.forget()
            plain = json.dumps(names).encode()
            if len(plain) > _MOST:
                raise ValueError(f"it takes {len(plain)} bytes, and at most {_MOST} are told")
            text = zlib.compress(plain, 1)
            parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
            # Keys are never reused, because an old one may be deleted late.
            digest = hashlib.sha256(text).hexdigest()
            told = [digest, len(parts), os.urandom(8).hex()]
            old = self.take()
            self._keys = self._keys_of(told)
            put(dict(zip(self._keys, parts, strict=True)), old)
            self._names, self._digest, self._told = names, digest, told
        return self._told

    def hear(self, told: list[Any] | None, get: Get) -> Absent | None:
        """The plans; None: rank 0 does not know them. Raises LookupError if the keys are gone."""
        if told is None:
            return None
        digest = told[0]
        if digest != self._digest:
            text = b"".join(part or b"" for part in get(self._keys_of(told)))
            if hashlib.sha256(text).hexdigest() != digest:
                raise LookupError("it is no longer in the job's key-value store")
            self._names = json.loads(zlib.decompressobj().decompress(text, _MOST))
            self._digest = digest
        return self._names

    def forget(self) -> None:
        """Rank 0: not all have read them. They are published anew."""
        self._told = None

    def take(self) -> list[str]:
        """Rank 0: the keys that are not needed when all have read them, to be deleted."""
        keys, self._keys = self._keys, []
        return keys

    def _keys_of(self, told: list[Any]) -> list[str]:
        _, count, where = told
        return [f"{self._prefix}/{where}/{number}" for number in range(count)]
