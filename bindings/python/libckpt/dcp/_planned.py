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
import zlib
from typing import TYPE_CHECKING, Any

from .._table import Table

if TYPE_CHECKING:
    from ._sharing import Absent

#: Bytes of one key. A store of keys that runs on libuv ends the connection at more than 8 MiB.
_PART = 4 << 20
#: Bytes of all of it, unpacked.
_MOST = 1 << 30


class Planned:
    """It, as one rank knows it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/planned"
        self._names: Absent | None = None
        #: of those, and how many keys they take
        self._digest, self._count = "", 0
        #: of rank 0: those that are there
        self._keys: list[str] = []

    def tell(self, table: Table, names: Absent | None) -> list[Any] | None:
        """Of rank 0: what the others are to hear() of."""
        if names is None:
            return None
        if self._digest == "" or names != self._names:
            text = zlib.compress(json.dumps(names).encode(), 1)
            parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
            digest = hashlib.sha256(text).hexdigest()
            self.done(table)
            for number, part in enumerate(parts):
                self._keys.append(self._key(digest, number))
                table.write(self._keys[-1], part)
            self._names, self._digest, self._count = names, digest, len(parts)
        return [self._digest, self._count]

    def hear(self, table: Table, told: list[Any] | None) -> Absent | None:
        """What all have planned; None: rank 0 does not know. Raises LookupError if it is gone."""
        if told is None:
            return None
        digest, count = told
        if digest != self._digest:
            text = b"".join(table.read(self._key(digest, n)) or b"" for n in range(count))
            if hashlib.sha256(text).hexdigest() != digest:
                raise LookupError(digest)
            self._names = json.loads(zlib.decompressobj().decompress(text, _MOST))
            self._digest = digest
        return self._names

    @property
    def is_there(self) -> bool:
        """Of rank 0: the others can read it."""
        return bool(self._keys)

    def done(self, table: Table) -> None:
        """Of rank 0: all have heard it."""
        while self._keys:
            table.drop(self._keys.pop())

    def _key(self, digest: str, number: int) -> str:
        return f"{self._prefix}/{digest}/{number}"
