# SPDX-License-Identifier: Apache-2.0
"""
What the ranks of all nodes have planned, where every node has a store of its own: rank 0 tells it
to the lowest rank of each, whose store lists it.

It goes through the job's key-value store when it has changed. All that a save has of it is a
digest, in what rank 0 says to all anyway: the plans of torch would bring it to every node again.
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

#: Bytes of one key. A store of keys that runs on libuv ends the connection at more than 8 MiB.
_PART = 4 << 20
#: Bytes of all of it, unpacked.
_MOST = 1 << 30

#: Writes keys, and drops others.
Put = Callable[[dict[str, bytes], list[str]], None]
#: Reads keys, as far as they are there.
Get = Callable[[list[str]], list[bytes | None]]


class Planned:
    """It, as one rank knows it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/planned"
        #: the last that is known, and its digest
        self._names: Absent | None = None
        self._digest = ""
        #: of rank 0: its digest, in how many keys it is, and what those are called
        self._told: list[Any] | None = None
        #: of rank 0: those that are there
        self._keys: list[str] = []

    def tell(self, names: Absent | None, put: Put) -> list[Any] | None:
        """Of rank 0: what the others are to hear() of. Raises ValueError if that is too much."""
        if names is None:
            return None
        if self._told is None or names != self._names:
            # Whatever becomes of this, what was told before cannot be read any more.
            self.forget()
            plain = json.dumps(names).encode()
            if len(plain) > _MOST:
                raise ValueError(f"it takes {len(plain)} bytes, and at most {_MOST} are told")
            text = zlib.compress(plain, 1)
            parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
            # No name is used twice: what drops an old key may come late.
            digest = hashlib.sha256(text).hexdigest()
            told = [digest, len(parts), os.urandom(8).hex()]
            old = self.take()
            self._keys = self._keys_of(told)
            put(dict(zip(self._keys, parts, strict=True)), old)
            self._names, self._digest, self._told = names, digest, told
        return self._told

    def hear(self, told: list[Any] | None, get: Get) -> Absent | None:
        """What all have planned; None: rank 0 does not know. Raises LookupError if it is gone."""
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
        """Of rank 0: not all have heard it. It is told anew."""
        self._told = None

    def take(self) -> list[str]:
        """Of rank 0: the keys that nobody needs once all have heard it, for the caller to drop."""
        keys, self._keys = self._keys, []
        return keys

    def _keys_of(self, told: list[Any]) -> list[str]:
        _, count, where = told
        return [f"{self._prefix}/{where}/{number}" for number in range(count)]
