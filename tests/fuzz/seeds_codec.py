# SPDX-License-Identifier: Apache-2.0
"""Encoded chunks: a plane of each kind, a chunk of each mode, and what breaks their rules."""

import struct

U8, U16, U32, U64 = range(4)
INT, FLOAT, BF16, F16 = (kind << 2 for kind in range(4))
M, V, W = (role << 4 for role in range(1, 4))
NO_BASE, NO_OTHERS = 0x40, 0x80


def constant(value):
    return bytes([1, value])


def raw(data):
    return b"\0" + data


def sized(kind, data, size=None):
    """Of a plane of less than 256 bytes."""
    return bytes([kind, len(data) if size is None else size]) + data


def frame(count, tell=None):
    """One zstd frame of one block: so many times the same byte, at most 255; without its magic number."""
    return (
        bytes([0x20, count if tell is None else tell])
        + (count << 3 | 3).to_bytes(3, "little")
        + b"a"
    )


def sparse(count, bits, values, tell=None):
    return sized(3, b"", tell if tell is not None else count) + bits + values


def chunk(what, count, mode, body=b""):
    return struct.pack("<BH", what, count) + bytes([mode]) + body


def terms(flags=0):
    return struct.pack("<B8f", flags, 0.9, 0.95, 0.1, 0.05, 0.9999, -1e-3, 0.2, 1e-8)


def encoded_chunks():
    text = bytes(range(64))
    yield "raw", chunk(U8, 4, 0, b"abcd")
    yield "raw-short", chunk(U8, 4, 0, b"abc")
    yield "raw-long", chunk(U8, 4, 0, b"abcde")
    yield "nothing", chunk(U32, 0, 0)
    yield "same", chunk(U32, 100, 1)
    yield "same-no-base", chunk(U32 | NO_BASE, 100, 1)
    yield "cast-exact", chunk(U16 | BF16, 300, 2)
    yield "cast-half", chunk(U16 | F16, 300, 2)
    yield "cast-int", chunk(U16, 300, 2)
    yield "cast-planes", chunk(U16 | BF16, 64, 2, raw(text) + constant(0))
    for name, what, width in (("u8", U8, 1), ("u16", U16, 2), ("u32", U32, 4), ("u64", U64, 8)):
        body = raw(text) + constant(3) * (width - 1)
        yield f"intra-{name}", chunk(what | FLOAT, 64, 3, body)
        yield f"delta-{name}", chunk(what, 64, 4, body)
        mask = chunk(what, 128, 5, b"\2\3" + body)
        yield f"mask-{name}", mask
    yield "mask-of-mask", chunk(U8, 128, 5, b"\3\5\3\0" + raw(text + text))
    yield "mask-of-same", chunk(U8, 128, 5, b"\3\1")
    yield "mask-rest", chunk(U8, 128, 5, b"\7\0" + text * 2)
    yield "mask-short-line", chunk(U8, 70, 5, b"\2\0abcdef")
    yield "frame", chunk(U8, 64, 3, sized(2, frame(64)))
    yield "frame-other-size", chunk(U8, 64, 3, sized(2, frame(64, 63)))
    large = struct.pack("<BI", 0xA0, 1 << 31) + frame(64)[2:]
    yield "frame-large", chunk(U8, 64, 3, sized(2, large))
    yield "frame-longer-than-plane", chunk(U8, 64, 3, sized(2, frame(64) + text))
    yield "frame-short", chunk(U8, 64, 3, sized(2, frame(64)[:-1]))
    yield "frame-no-room", chunk(U8, 64, 3, sized(2, frame(64), 65))
    yield "frame-wide-size", chunk(U8, 256, 3, b"\2\7\0\x60\0\0\x03\x08\0a")
    yield "two-frames", chunk(U8, 64, 3, sized(2, frame(32) + b"\x28\xb5\x2f\xfd" + frame(32)))
    yield "two-values", chunk(U8, 60, 3, b"\4ab\1\2\3\4\5\6\7\x08")
    yield "two-values-rest", chunk(U8, 60, 3, b"\4ab\1\2\3\4\5\6\7\x18")
    yield "two-values-short", chunk(U8, 60, 3, b"\4ab\1\2\3\4\5\6\7")
    bits = raw(b"\1\0\0\0\0\0\0\x80")
    yield "sparse", chunk(U8, 64, 3, sparse(2, bits, raw(b"ab")))
    yield "sparse-fewer", chunk(U8, 64, 3, sparse(1, bits, raw(b"a")))
    yield "sparse-more", chunk(U8, 64, 3, sparse(65, bits, raw(text + b"a")))
    yield "sparse-all", chunk(U8, 64, 3, sparse(64, constant(255), raw(text)))
    yield "sparse-rest", chunk(U8, 60, 3, sparse(2, bits, raw(b"ab")))
    inner = sparse(2, raw(b"\x81"), raw(b"\1\x80"))
    yield "sparse-in-sparse", chunk(U8, 64, 3, sparse(2, inner, raw(b"ab")))
    deeper = sparse(2, sparse(1, raw(b"\1"), raw(b"\x81")), raw(b"\1\x80"))
    yield "sparse-too-deep", chunk(U8, 64, 3, sparse(2, deeper, raw(b"ab")))
    yield "sparse-of-sparse", chunk(U8, 64, 3, sparse(2, bits, sparse(2, raw(b"\3"), raw(b"ab"))))
    planes = raw(text) + constant(1)
    for name, kind in (("bf16", BF16), ("f16", F16)):
        for groups in (0, 1, 16, 17):
            body = bytes([0x30, groups]) + planes
            yield f"grouped-{name}-{groups}", chunk(U16 | kind, 64, 9, body)
    yield "grouped-int", chunk(U16, 64, 9, b"\0\1" + planes)
    yield "grouped-no-base", chunk(U16 | BF16 | NO_BASE, 64, 9, b"\0\1" + planes)
    yield "grouped-short", chunk(U16 | BF16, 64, 9, b"\0")
    residual = raw(text) + constant(0) * 3
    for flags in range(17):
        yield (
            f"adam-m{flags}",
            chunk(U32 | FLOAT | M, 64, 6, terms(flags) + raw(text) + constant(0x3C) + residual),
        )
        yield f"adam-v{flags}", chunk(U32 | FLOAT | V, 64, 7, terms(flags) + residual)
        yield f"adam-w{flags}", chunk(U32 | FLOAT | W, 64, 8, terms(flags) + residual)
    yield "adam-of-nothing", chunk(U32 | FLOAT | V | NO_OTHERS, 64, 7, terms() + residual)
    yield "adam-of-ints", chunk(U32 | V, 64, 7, terms() + residual)
    yield "adam-short", chunk(U32 | FLOAT | W, 64, 8, terms()[:-1])
    yield "no-mode", chunk(U8, 4, 10, b"abcd")
