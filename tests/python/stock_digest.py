# SPDX-License-Identifier: Apache-2.0
"""The digest of the format, from the library that it is of."""

from __future__ import annotations

import ctypes
import struct


class _Hash128(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


def digest(data: bytes) -> bytes:
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = _Hash128
    library.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    found = library.XXH3_128bits(data, len(data))
    return struct.pack(">QQ", found.high, found.low)
