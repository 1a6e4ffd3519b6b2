# SPDX-License-Identifier: Apache-2.0
"""
What tells that a tensor was changed or replaced: where it is and how it lies, and how often PyTorch
has counted a change. Ten thousand tensors are common, and all are asked at every save.

_glance asks them in C. Where torch has no DLPack table for that, it is one pass of map() over the
list for each thing asked: the quickest that Python has.
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
    """Whether this torch can be asked in C. Gets ready for it."""
    import torch

    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    found = _glance.prepare(torch.Tensor, torch.nn.Parameter, table)
    # Were a mode to make something else of them, the caches would stay cold, and that is all.
    with torch.inference_mode(False):
        one = torch.empty(1, device="cpu")
        probes = one, one.detach(), one.data
        if all(type(probe) is torch.Tensor for probe in probes):
            addresses = one._cdata, probes[1]._cdata, probes[2]._cdata
            _glance.learn(probes, addresses, one.untyped_storage()._cdata)
    return found


def pointers_of(tensors: list[torch.Tensor]) -> list[int]:
    """Where plain tensors are."""
    if not tensors:  # a state without tensors needs no torch
        return []
    import torch

    return list(map(torch.Tensor.data_ptr, tensors))


def places_of(tensors: list[torch.Tensor]) -> Places:
    """Where plain tensors are and how they lie."""
    found = _glance.places(tensors) if tensors and has_table() else None
    return _slow_places_of(tensors) if found is None else found


def same_places(tensors: list[torch.Tensor], places: Places) -> bool:
    """True if they are there, and lie as they did."""
    if isinstance(places, bytes):
        return _glance.same_places(tensors, places)
    return _slow_places_of(tensors) == places


def _slow_places_of(tensors: list[torch.Tensor]) -> Places:
    # Strides and the number of elements tell the shape of a contiguous tensor.
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
    """How often PyTorch has seen the tensors from `start` on change: numbers of eight bytes."""
    if start == len(tensors):
        return b""
    import torch

    has_table()
    # Asking a subclass goes through Python otherwise.
    with torch._C.DisableTorchFunctionSubclass():
        return _glance.versions(tensors, start)


def first_difference(now: bytes, then: bytes) -> int:
    """Where numbers of eight bytes differ that are not all equal."""
    pairs = zip(memoryview(now).cast("q"), memoryview(then).cast("q"), strict=True)
    return next(number for number, (a, b) in enumerate(pairs) if a != b)
