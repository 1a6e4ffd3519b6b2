# SPDX-License-Identifier: Apache-2.0
"""Bitwise comparison of values, which finds the paths that differ."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from ._into import bits_of, is_tensor, kind_of, same_bits
from ._slices import Piece
from .adapters._layout import is_spread, memory_of


def same_piece(piece: Piece, data: memoryview) -> bool:
    """True if a piece of a tensor that was read equals that of the live tensor."""
    if piece.nbytes == 0:
        return True
    home = piece.bound.home
    if is_tensor(home):
        import torch

        local = memory_of(home).detach()
        if tuple(local.shape) != piece.bound.what.shape:
            return False
        there = torch.frombuffer(data, dtype=torch.uint8)
        return torch.equal(bits_of(local[piece.inside()]).cpu(), there)
    import numpy as np

    return bool(np.ascontiguousarray(home[piece.inside()]).tobytes() == data)


def differences(a: Any, b: Any, where: str) -> Iterator[str]:
    """Paths at which two values differ. Objects without equality are not compared."""
    if is_tensor(a) or is_tensor(b):
        if not is_spread(a) and not _is_hollow(b) and not same_bits(b, a):
            yield where
    elif _is_array(a) or _is_array(b):
        if not _same_arrays(a, b):
            yield where
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            place = f"{where}[{key!r}]"
            if key in a and key in b:
                yield from differences(a[key], b[key], place)
            else:
                yield place
    elif isinstance(a, (list, tuple, deque)) and isinstance(b, (list, tuple, deque)):
        if len(a) != len(b):
            yield f"{where} ({len(b)} items, and there were {len(a)})"
            return
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{where}[{index}]")
    elif not _equal(a, b):
        yield f"{where} ({_short(b)}, and was {_short(a)})"


def hollow_in(value: Any, where: str) -> Iterator[str]:
    """Paths of tensors without elements, which differences() does not compare."""
    if _is_hollow(value):
        yield where
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from hollow_in(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple, deque)):
        for index, item in enumerate(value):
            yield from hollow_in(item, f"{where}[{index}]")


def _short(value: Any) -> str:
    return f"{value!r:.60}"


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if getattr(type(a), "__eq__", None) is object.__eq__:
        return True
    # nan equals nan, and 0.0 does not equal -0.0
    if isinstance(a, (float, complex, Decimal)):
        return repr(a) == repr(b)
    if _is_number_of_numpy(a):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, (set, frozenset)):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    try:
        return bool(a == b)
    except Exception:  # its == cannot be used for this
        return True


def _is_hollow(value: Any) -> bool:
    return is_tensor(value) and bool(value.is_meta)


def _is_number_of_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _same_arrays(a: Any, b: Any) -> bool:
    if kind_of(a) != kind_of(b) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(a.tobytes() == b.tobytes())
