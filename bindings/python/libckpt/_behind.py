# SPDX-License-Identifier: Apache-2.0
"""Tensors that are copied in the background, and the check that they have not changed."""

from __future__ import annotations

from typing import NamedTuple

from ._tensor_state import first_difference
from ._tensors import Part


class Behind(NamedTuple):
    """Tensors that are copied in the background, and their version counters at save()."""

    parts: list[Part]
    versions: list[bytes]

    def changed(self) -> bytes | None:
        """The name of a tensor that was changed in place; None if none was."""
        for part, versions in zip(self.parts, self.versions, strict=True):
            now = part.versions()
            if now != versions:
                return part.counted_name(first_difference(now, versions))
        return None

    def moved(self) -> bytes | None:
        """The name of a tensor whose memory has moved; None if none has."""
        return next(filter(None, (part.moved() for part in self.parts)), None)
