# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a state."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

from . import _errors as errors
from ._into import is_module, is_tensor
from ._layout import memory_of
from ._specials import is_optimizer
from ._subclasses import wraps
from ._typed import NESTING_MAX


def check_room(directory: str, state: dict[str, Any]) -> None:
    """
    Raises if the tensors that this process holds of a state take more than is free where the
    directory is. What objects say of themselves is not counted.
    """
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    free = os.statvfs(directory or ".")
    left, need = free.f_bavail * free.f_frsize, _bytes_of(state, set(), 0)
    if need > left:
        raise errors.StorageError(
            f"{directory or '.'} has {left / 2**30:.2f} GiB left, and the state takes "
            f"{need / 2**30:.2f} GiB: give a directory with more room",
            code=-errno.ENOSPC,
            errno=errno.ENOSPC,
        )


def _bytes_of(value: Any, seen: set[int], depth: int) -> int:
    numpy = sys.modules.get("numpy")
    parts: Iterable[Any] = ()
    if is_tensor(value):
        if wraps(value) or value.is_meta or memory_of(value).data_ptr() in seen:
            return 0
        memory = memory_of(value)
        seen.add(memory.data_ptr())
        return int(memory.numel() * memory.element_size())
    if numpy is not None and isinstance(value, numpy.ndarray):
        return int(value.nbytes)
    if is_module(value):
        parts = value.parameters()
    elif is_optimizer(value):
        parts = getattr(value, "state", {}).values()
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    if depth > NESTING_MAX:
        return 0
    return sum(_bytes_of(part, seen, depth + 1) for part in parts)
