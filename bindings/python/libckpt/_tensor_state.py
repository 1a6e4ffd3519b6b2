# SPDX-License-Identifier: Apache-2.0
"""
Detects changed and replaced tensors, by addresses, strides and version counters of PyTorch. Ten
thousand tensors are common, and all are checked at every save.

_glance does it in C. If torch has no DLPack table for that, map() runs over the list once for each
property, which is the fastest way in Python.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _glance

if TYPE_CHECKING:
    import torch

_dtype_of = operator.attrgetter("dtype")

#: Equal for the same tensors in the same memory.
Places: TypeAlias = bytes | list[list[Any]]


@functools.cache
def has_table() -> bool:
    """True if _glance works with this version of torch. Prepares it."""
    import torch

    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    found = _glance.prepare(torch.Tensor, torch.nn.Parameter, table)
    # If a torch mode intercepts these calls, only the caches remain cold.
    with torch.inference_mode(False):
        one = torch.empty(1, device="cpu")
        probes = one, one.detach(), one.data
        if all(type(probe) is torch.Tensor for probe in probes):
            addresses = one._cdata, probes[1]._cdata, probes[2]._cdata
            _glance.learn(probes, addresses, one.untyped_storage()._cdata)
    return found


def pointers_of(tensors: list[torch.Tensor]) -> list[int]:
    """The addresses of plain tensors."""
    if not tensors:  # a state without tensors needs no torch
        return []
    import torch

    return list(map(torch.Tensor.data_ptr, tensors))


def places_of(tensors: list[torch.Tensor]) -> Places:
    """The addresses and layouts of plain tensors."""
    found = _glance.places(tensors) if tensors and has_table() else None
    return _slow_places_of(tensors) if found is None else found


def same_places(tensors: list[torch.Tensor], places: Places) -> bool:
    """True if addresses and layouts have not changed."""
    if isinstance(places, bytes):
        return _glance.same_places(tensors, places)
    return _slow_places_of(tensors) == places


def _slow_places_of(tensors: list[torch.Tensor]) -> Places:
    # Strides and number of elements determine the shape of a contiguous tensor.
    if not tensors:
        return []
    import torch

    return [
        pointers_of(tensors),
        list(map(torch.Tensor.numel, tensors)),
        list(map(torch.Tensor.stride, tensors)),
        list(map(_dtype_of, tensors)),
    ]


def versions_of(tensors: list[torch.Tensor], start: int = 0) -> bytes:
    """The version counters of the tensors from `start` on, eight bytes each."""
    if start == len(tensors):
        return b""
    import torch

    has_table()
    # Otherwise calls on subclasses go through Python.
    with torch._C.DisableTorchFunctionSubclass():
        return _glance.versions(tensors, start)


def first_difference(now: bytes, then: bytes) -> int:
    """The index of the first different eight-byte number."""
    pairs = zip(memoryview(now).cast("q"), memoryview(then).cast("q"), strict=True)
    return next(number for number, (a, b) in enumerate(pairs) if a != b)
