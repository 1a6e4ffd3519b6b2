# SPDX-License-Identifier: Apache-2.0
"""Element types: the library's numbers, and what torch and NumPy call them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

# number: (name in the index, attribute of torch, NumPy type string without byte order)
_TYPES: dict[int, tuple[str, str, str | None]] = {
    1: ("BOOL", "bool", "b1"),
    2: ("U8", "uint8", "u1"),
    3: ("I8", "int8", "i1"),
    4: ("U16", "uint16", "u2"),
    5: ("I16", "int16", "i2"),
    6: ("U32", "uint32", "u4"),
    7: ("I32", "int32", "i4"),
    8: ("U64", "uint64", "u8"),
    9: ("I64", "int64", "i8"),
    10: ("F16", "float16", "f2"),
    11: ("BF16", "bfloat16", None),
    12: ("F32", "float32", "f4"),
    13: ("F64", "float64", "f8"),
    14: ("F8_E4M3", "float8_e4m3fn", None),
    15: ("F8_E5M2", "float8_e5m2", None),
    16: ("F8_E8M0", "float8_e8m0fnu", None),
    17: ("C64", "complex64", "c8"),
    18: ("C128", "complex128", "c16"),
    19: ("C32", "complex32", None),
    20: ("F8_E4M3FNUZ", "float8_e4m3fnuz", None),
    21: ("F8_E5M2FNUZ", "float8_e5m2fnuz", None),
    22: ("F4_X2", "float4_e2m1fn_x2", None),
}

U8 = 2


def name_of(number: int) -> str:
    """The index's name of a type."""
    return _TYPES[number][0] if number in _TYPES else f"type {number}"


def item_bytes(number: int) -> int:
    """Bytes of one element, for which neither torch nor NumPy is needed."""
    name, _, text = _TYPES.get(number, ("", "", None))
    return int(text[1:]) if text else {"BF16": 2, "C32": 4}.get(name, 1)


@cache
def numbers() -> dict[str, int]:
    """The number of each of the index's names."""
    return {name: number for number, (name, _, _) in _TYPES.items()}


@cache
def torch_numbers() -> dict[torch.dtype, int]:
    """Torch's types, as far as this torch has them, and their numbers."""
    import torch

    return {
        getattr(torch, attribute): number
        for number, (_, attribute, _) in _TYPES.items()
        if hasattr(torch, attribute)
    }


def torch_type(number: int) -> torch.dtype | None:
    """Torch's type of that number; None if this torch has none."""
    import torch

    found = getattr(torch, _TYPES[number][1], None) if number in _TYPES else None
    return found if isinstance(found, torch.dtype) else None


@cache
def numpy_numbers() -> dict[np.dtype[np.generic], int]:
    """NumPy's types in this machine's byte order, and their numbers."""
    import numpy as np

    return {np.dtype(text): number for number, (_, _, text) in _TYPES.items() if text}


def numpy_type(number: int) -> np.dtype[np.generic] | None:
    """NumPy's type of that number; None if NumPy has none."""
    import numpy as np

    text = _TYPES[number][2] if number in _TYPES else None
    return np.dtype(text) if text else None
