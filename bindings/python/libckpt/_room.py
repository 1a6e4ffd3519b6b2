# SPDX-License-Identifier: Apache-2.0
"""Checks of free disk space for a state, and of free memory."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import _errors as errors
from ._into import is_tensor
from ._json_nodes import NESTING_MAX
from ._state_kinds import is_module, is_optimizer
from ._tensors import check_tensor
from .adapters._layout import memory_of
from .adapters._subclasses import wraps
from .adapters._wrappers import has_own_say

if TYPE_CHECKING:
    import torch


def check_room(directory: str, state: dict[str, Any]) -> None:
    """
    Raises if this process's tensors of a state take more than the free space of the directory's
    file system. Contents of objects and custom modules are not counted.
    """
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    free = os.statvfs(directory or ".")
    if free.f_blocks == 0:  # size not reported: tmpfs without a limit, some FUSE
        return
    left, need = free.f_bavail * free.f_frsize, _bytes_of(state, set(), 0)
    if need > left:
        raise errors.StorageError(
            f"{directory or '.'} has {left / 2**30:.2f} GiB left, and the state takes "
            f"{need / 2**30:.2f} GiB: give a directory with more room",
            code=-errno.ENOSPC,
            errno=errno.ENOSPC,
        )


def memory_left() -> int:
    """
    Bytes of memory that this process can still allocate: the least of the available memory of the
    machine and of what its control groups leave. Values that the kernel does not report are
    ignored.
    """
    left = [_field("/proc/meminfo", "MemAvailable:") * 1024]
    for line in _text("/proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        if kinds == "":
            names = ("memory.max", "memory.current", "inactive_file")
            left += _left_of_groups("/sys/fs/cgroup", group, *names)
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            left += _left_of_groups("/sys/fs/cgroup/memory", group, *names)
    return min((bytes_ for bytes_ in left if bytes_ >= 0), default=sys.maxsize)


def _left_of_groups(root: str, group: str, most: str, used: str, cached: str) -> Iterator[int]:
    """The least of the group and those around it. In a container the path may be of the host."""
    parts = [part for part in group.split("/") if part]
    for count in range(len(parts) + 1):
        where = os.path.join(root, *parts[:count])
        limit, now = _text(f"{where}/{most}").strip(), _text(f"{where}/{used}").strip()
        if limit.isdecimal() and now.isdecimal():
            cache = max(0, _field(f"{where}/memory.stat", cached))
            yield max(0, int(limit) - max(0, int(now) - cache))


def _field(path: str, key: str) -> int:
    """The number after a key at the beginning of a line; negative: there is none."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key and words[1].isdecimal():
            return int(words[1])
    return -1


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


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
    except errors.UnsupportedStateError:  # the save raises it, with the path
        return 0
    memory = memory_of(value)
    if wraps(value) or memory.data_ptr() in seen:
        return 0
    seen.add(memory.data_ptr())
    return int(memory.numel() * memory.element_size())
