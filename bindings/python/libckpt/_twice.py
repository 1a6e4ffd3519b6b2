# SPDX-License-Identifier: Apache-2.0
"""Warnings for two Checkpointers of one store in one process."""

from __future__ import annotations

import os
import warnings
import weakref

from ._engine import Engine
from ._errors import CheckpointWarning, InUseError

_open: weakref.WeakSet[Engine] = weakref.WeakSet()


def _another(path: str, own: Engine | None) -> bool:
    """True if this process has the store open for writing already."""
    real = os.path.realpath(path)
    return any(
        not (one is own or one.closed or one.foreign) and os.path.realpath(one.path) == real
        for one in list(_open)
    )


def note_open(engine: Engine) -> None:
    """Warns if there is another one. The one that saves first gets the store."""
    if _another(engine.path, engine):
        warnings.warn(
            f"{engine.path} is open in another Checkpointer of this process: whichever saves first "
            "has the store, and the other one is refused. Close the first one before you make "
            "another",
            CheckpointWarning,
            stacklevel=4,
        )
    _open.add(engine)


def explained(error: BaseException, path: str, own: Engine | None = None) -> None:
    """Adds to an InUseError that this process itself has the store open."""
    if isinstance(error, InUseError) and _another(path, own):
        error.message += ". It is another Checkpointer of this process: close that one first"
