# SPDX-License-Identifier: Apache-2.0
"""
Loaders of data in a state, and exceptions out of what the user's objects do.

A loader that goes on from a position draws from the generators when it begins its iteration, after
it was restored, where one that was never stopped had drawn before the step was saved. So it begins
during the restore, and the generators come back behind it: the global ones, those in the state, and
the one that it was given.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._engine import logger
from ._typed import Path, path_text

if TYPE_CHECKING:
    import torch


def is_loader(value: Any) -> bool:
    """True for a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.DataLoader)


def generator_of(value: Any) -> torch.Generator | None:
    """The generator that a loader was given; None if it has none, or is no loader."""
    if not is_loader(value):
        return None
    import torch

    found = getattr(value, "generator", None)
    return found if isinstance(found, torch.Generator) and found.device.type == "cpu" else None


def begin(loader: Any, path: Path) -> None:
    """
    Has a loader that was restored begin its iteration: torchdata's does when it is asked for its
    state, and goes on with that iteration in the loop. Not one that is still to be told its epoch:
    its workers would ask for the items of another one.
    """
    batches = getattr(loader, "batch_sampler", None)
    parts = (loader, loader.sampler, batches, getattr(batches, "sampler", None), loader.dataset)
    if any(hasattr(part, "set_epoch") for part in parts):
        logger.info(
            "%s is told its epoch by set_epoch(), so that it begins in the loop: what it draws "
            "from torch's generator there is drawn after the restore",
            path_text(path),
        )
        return
    with asking(path, "state_dict"):
        loader.state_dict()


def is_of_user(error: BaseException) -> bool:
    """True for an exception that asking() has seen."""
    return getattr(error, "_libckpt_asked", False)


@contextlib.contextmanager
def asking(path: Path, method: str) -> Iterator[None]:
    """An exception out of a method of what stands at `path` says so."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError):
            error._libckpt_asked = True  # type: ignore[attr-defined]
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"libckpt: in {method}() of {path_text(path)}")
        raise
