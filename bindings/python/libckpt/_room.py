# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a state."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _errors as errors
from ._into import is_module, is_tensor
from ._layout import memory_of
from ._modules import has_own_say
from ._specials import is_optimizer
from ._subclasses import wraps
from ._tensors import check_tensor
from ._typed import NESTING_MAX

if TYPE_CHECKING:
    import torch


def check_room(directory: str, state: dict[str, Any]) -> None:
    """
    Raises if the tensors that this process holds of a state take more than is free where the
    directory is. What objects and modules say of themselves is not counted.
    """
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    free = os.statvfs(directory or ".")
    if free.f_blocks == 0:  # it does not say: tmpfs without a limit, some FUSE
        return
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
        return _bytes_of_tensor(value, seen)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return int(value.nbytes)
    if is_module(value):
        parts = () if has_own_say(value) else value.parameters()
    elif is_optimizer(value):
        parts = value.state.values() if isinstance(value.state, dict) else ()
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    if depth > NESTING_MAX or id(value) in seen:
        return 0
    seen.add(id(value))
    return sum(_bytes_of(part, seen, depth + 1) for part in parts)


def _bytes_of_tensor(value: torch.Tensor, seen: set[int]) -> int:
    try:
        check_tensor(value, "")
    except errors.UnsupportedStateError:  # the save says where it is
        return 0
    memory = memory_of(value)
    if wraps(value) or memory.data_ptr() in seen:
        return 0
    seen.add(memory.data_ptr())
    return int(memory.numel() * memory.element_size())
