# SPDX-License-Identifier: Apache-2.0
"""
Data loaders in a state.

A restored loader draws from random generators when it begins its iteration. In a run that was never
stopped, it had drawn before the step was saved. So it begins during the restore, and the generators
are restored after it: the global ones, those in the state, and the one that it was given.
"""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING, Any

from .._asking import asking
from .._json_nodes import Path, path_text
from .._log import logger

if TYPE_CHECKING:
    import torch


def is_loader(value: Any) -> bool:
    """True for a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.DataLoader)


def generator_of(value: Any) -> torch.Generator | None:
    """The generator of a loader; None if it has none, or is not a loader."""
    if not is_loader(value):
        return None
    import torch

    found = getattr(value, "generator", None)
    return found if isinstance(found, torch.Generator) and found.device.type == "cpu" else None


def begin(loader: Any, path: Path, epochs: dict[str, int]) -> None:
    """
    Lets a restored loader begin its iteration: torchdata's loader begins when it is asked for its
    state, and continues that iteration in the loop. Before that, set_epoch() of its parts gets the
    epoch of the step, because workers ask for items at once. It is not called if the part has that
    epoch already, because it might start anew. If the epoch is not known, the loader begins in the
    loop.
    """
    parts = _told_epochs(loader)
    now = epochs_of(loader, path)
    if not all(name in epochs and name in now for name in parts):
        logger.info(
            "%s is told its epoch by set_epoch(), and the step does not say which it was, so that "
            "it begins in the loop: what it draws from torch's generator there is drawn after the "
            "restore",
            path_text(path),
        )
        return
    for name, part in parts.items():
        if now[name] != epochs[name]:
            with asking(path, f"{name}.set_epoch" if name else "set_epoch"):
                part.set_epoch(epochs[name])
    with asking(path, "state_dict"):
        loader.state_dict()


def epochs_of(loader: Any, path: Path) -> dict[str, int]:
    """The epochs of the parts of a loader that have set_epoch(), by their names, if known."""
    found = {}
    for name, part in _told_epochs(loader).items() if is_loader(loader) else ():
        if not _takes_an_epoch(part):
            continue
        with asking(path, "epoch"):
            epoch = getattr(part, "epoch", None)
        if isinstance(epoch, numbers.Integral):
            found[name] = int(epoch)
    return found


def _takes_an_epoch(part: Any) -> bool:
    """True if set_epoch() needs only the epoch."""
    import inspect

    try:
        inspect.signature(part.set_epoch).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def _told_epochs(loader: Any) -> dict[str, Any]:
    """The parts of a loader that have set_epoch(), each once, by name; "" is the loader."""
    batches = getattr(loader, "batch_sampler", None)
    parts = {
        "": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batches,
        "batch_sampler.sampler": getattr(batches, "sampler", None),
        "dataset": getattr(loader, "dataset", None),
    }
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if hasattr(part, "set_epoch") and not any(part is other for other in found.values()):
            found[name] = part
    return found
