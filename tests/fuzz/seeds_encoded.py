# SPDX-License-Identifier: Apache-2.0
"""Files of encoded shards, each behind the index that it is of: good ones, and what breaks the rules of section 23."""

import struct

from seeds_digest import digest
from seeds_index import chunks, index, tensor, tensors_json

PLAIN, PARTS = 0, 1
COUNT = 300
MOST = 1200
#: bf16 values, fp32 values of which they are the rounding, and bytes.
B = struct.pack(f"<{COUNT}H", *(0x3F80 + i % 100 for i in range(COUNT)))
W = b"".join(b"\0\0" + B[i : i + 2] for i in range(0, len(B), 2))
U = bytes(range(100))
HEADER = bytes(4096)
W_AT = len(HEADER)
B_AT = W_AT + len(W)
SHARD = HEADER + W + B + U
INDEX = index(
    tensors_json(
        [
            tensor("w", "F32", [COUNT], W_AT),
            tensor("b", "BF16", [COUNT], B_AT),
            tensor("u", "U8", [len(U)], B_AT + len(B)),
        ]
    ),
    [len(W), len(B), len(U)],
    most=MOST,
    shard_bytes=SHARD,
)
#: Of the header; then one of "w", and one of "b" and "u".
LENGTHS = chunks(len(HEADER), [len(W), len(B), len(U)], MOST)
W_CHUNK = len(LENGTHS) - 2
LAST = len(LENGTHS) - 1


def part(body, master=None, flag=None, length=None):
    """`flag` and `length` lie."""
    tell = (master is not None) if flag is None else flag
    body = bytes([tell]) + (b"" if master is None else struct.pack("<Q", master)) + body
    return struct.pack("<I", len(body) if length is None else length) + body


def constant(value):
    return bytes([1, value])


def planes_of_w():
    """Mode INTRA: the bits of a float are rotated left by one."""
    codes = [struct.unpack_from("<I", W, 4 * i)[0] << 1 for i in range(COUNT)]
    low = bytes(code >> 16 & 0xFF for code in codes)
    high = bytes(code >> 24 for code in codes)
    return b"\3" + constant(0) * 2 + b"\0" + low + b"\0" + high


CAST = b"\2"
RAW_U = b"\0" + U


def record(chunk, stored, kind=PARTS, refs=(), **lies):
    return {"chunk": chunk, "stored": stored, "kind": kind, "refs": list(refs), **lies}


def good():
    """A record of each chunk, all of kind 1."""
    zeros = part(b"\3" + constant(0))
    made = [record(i, zeros) for i in range(W_CHUNK)]
    made.append(record(W_CHUNK, part(planes_of_w())))
    made.append(record(LAST, part(CAST, W_AT) + part(RAW_U), refs=[W_CHUNK]))
    return made


def file(records, between=b"", behind=b"", table_more=b"", minor=0, major=1, **lies):
    """`lies` are numbers of the trailer."""
    data = b""
    table = b""
    refs = b""
    for r in records:
        offset = r.get("offset", len(data))
        length = r.get("length", len(r["stored"]))
        count = r.get("count", len(r["refs"]))
        table += struct.pack("<QIHH", offset, length, r["kind"], count) + digest(r["stored"])
        refs += struct.pack(f"<{len(r['refs'])}I", *r["refs"])
        data += r["stored"] + between
    table += refs + table_more
    numbers = {
        "shard": len(SHARD),
        "chunks": len(LENGTHS),
        "at": len(data),
        "length": len(table),
        **lies,
    }
    trailer = struct.pack("<8s2I4Q", b"CKPTENC\0", major, minor, *numbers.values()) + digest(table)
    return data + table + trailer + digest(trailer) + behind


def changed(chunk, **changes):
    made = good()
    made[chunk].update(changes)
    return file(made)


def with_last(stored, refs=(W_CHUNK,)):
    return changed(LAST, stored=stored, refs=list(refs))


def files():
    yield "good", file(good())
    yield "gaps", file(good(), between=bytes(7))
    plain = [
        record(i, SHARD[sum(LENGTHS[:i]) : sum(LENGTHS[: i + 1])], PLAIN)
        for i in range(len(LENGTHS))
    ]
    yield "plain", file(plain)
    yield "newer-minor", file(good(), minor=9)
    yield "newer-major", file(good(), major=2)
    whole = file(good())
    yield "cut-short", whole[:-1]
    yield "added-to", file(good(), behind=b"\0")
    yield "only-a-trailer", whole[-80:]
    yield "trailer-damaged", whole[:-30] + b"!" + whole[-29:]
    yield "table-damaged", whole[:-90] + b"!" + whole[-89:]
    for key in ("shard", "chunks", "at", "length"):
        for value in (0, 1, 2**63, 2**64 - 1):
            yield f"trailer-{key}-{value}", file(good(), **{key: value})
    yield "table-of-no-whole-number", file(good(), table_more=b"\0")
    yield "refs-of-no-chunk", file(good(), table_more=bytes(4))
    for kind in (2, 65535):
        yield f"kind-{kind}", changed(LAST, kind=kind)
    yield "plain-with-refs", changed(LAST, kind=PLAIN, stored=B + U)
    yield "plain-too-short", changed(LAST, kind=PLAIN, stored=B, refs=[])
    yield "parts-not-shorter", changed(LAST, stored=bytes(LENGTHS[LAST]))
    yield "length-zero", changed(LAST, length=0)
    for offset in (2**31, 2**64 - 1, 2**64 - 20):
        yield f"offset-{offset}", changed(LAST, offset=offset)
    yield "overlap", changed(LAST, offset=0)
    yield "refs-itself", changed(LAST, refs=[LAST])
    yield "refs-out-of-range", changed(LAST, refs=[len(LENGTHS)])
    yield "refs-greatest", changed(LAST, refs=[2**32 - 1])
    yield "refs-descend", changed(LAST, refs=[W_CHUNK, 0])
    yield "refs-twice", changed(LAST, refs=[W_CHUNK, W_CHUNK])
    yield "refs-to-one-with-refs", changed(0, refs=[LAST])
    yield "refs-64", changed(LAST, refs=[0] * 64)
    yield "refs-65", changed(LAST, refs=[0] * 65)
    yield "refs-65535", changed(LAST, count=65535)
    yield "refs-none", with_last(part(CAST, W_AT) + part(RAW_U), [])
    yield "refs-others", with_last(part(CAST, W_AT) + part(RAW_U), [0])
    yield "part-missing", with_last(part(CAST, W_AT))
    yield "part-behind", with_last(part(CAST, W_AT) + part(RAW_U) + part(RAW_U))
    yield "part-byte-behind", with_last(part(CAST, W_AT) + part(RAW_U) + b"\0")
    yield "part-empty", with_last(part(CAST, W_AT) + struct.pack("<I", 0))
    yield "part-of-nothing", with_last(part(CAST, W_AT) + part(b""))
    yield "part-longest", with_last(part(CAST, W_AT) + part(RAW_U, length=2**32 - 1))
    yield "part-flag-2", with_last(part(CAST, W_AT, flag=2) + part(RAW_U))
    yield "part-without-its-master", with_last(part(CAST) + part(RAW_U))
    yield "part-master-cut", with_last(part(CAST, W_AT) + part(b"\0\0\0", flag=1))
    yield "part-of-bytes-with-master", with_last(part(CAST, W_AT) + part(RAW_U, W_AT))
    for master in (0, W_AT - 4, W_AT + 2, W_AT + 4, B_AT, len(SHARD), 2**63, 2**64 - 1):
        yield f"master-{master}", with_last(part(CAST, master) + part(RAW_U))
    yield "stored-damaged", whole[:40] + b"!" + whole[41:]


def encoded_shards():
    for name, data in files():
        yield name, struct.pack("<I", len(INDEX))[:3] + INDEX + data
