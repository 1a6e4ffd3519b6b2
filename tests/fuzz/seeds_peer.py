# SPDX-License-Identifier: Apache-2.0
"""Messages on the agent's socket, and headers of slots."""

import struct

from seeds_digest import digest

JOB = bytes(range(1, 17))
MIB = 1 << 20


def packet(kind, body=b"", version=1, length=None):
    return (
        b"CKPT" + struct.pack("<III", version, kind, len(body) if length is None else length) + body
    )


def messages():
    attach = JOB + struct.pack("<QQQIII", 3, 0, 8 * MIB, 7, 2, 8)
    yield "attach", packet(1, attach)
    yield "attach-slots-9", packet(1, JOB + struct.pack("<QQQIII", 3, 0, 8 * MIB, 7, 9, 8))
    yield "attach-capacity-huge", packet(1, JOB + struct.pack("<QQQIII", 3, 0, 2**63, 7, 2, 8))
    yield "attach-rank-huge", packet(1, JOB + struct.pack("<QQQIII", 3, 0, MIB, 2**32 - 1, 2, 8))
    yield "attach-short", packet(1, attach[:-1])
    yield "attach-long", packet(1, attach + b"\0")
    yield "fill", packet(2, struct.pack("<QQQ", 11, 3, 10))
    yield "seal", packet(3, struct.pack("<QQQ", 5, 11, 8 * MIB) + JOB)
    yield "detach", packet(4)
    yield "next", packet(5, JOB + struct.pack("<Q", 0))
    yield "fetch", packet(6, struct.pack("<QQQ", 5, 3, 11))
    yield "release", packet(7, struct.pack("<Q", 5))
    yield "status", packet(8)
    yield "unmapped", packet(9)
    yield "ok", packet(64)
    yield "attached", packet(65, struct.pack("<Q", 2**64 - 2))
    yield "filled", packet(66, struct.pack("<QQ", 5, 8 * MIB))
    yield "slot", packet(69, JOB + struct.pack("<QQQQQIII", 5, 3, 11, 100, 8 * MIB, 7, 2, 1))
    yield "fetched", packet(70, struct.pack("<QQ", 5, 100))
    yield "state", packet(72, struct.pack("<QQQIIII", 2**40, 2**30, 1800, 16, 1, 8, 4711))
    yield "error", packet(127, struct.pack("<i", -12) + b"no memory\n\x1b[2J")
    yield "error-longest", packet(127, struct.pack("<i", -12) + b"x" * 1023)
    yield "error-too-long", packet(127, struct.pack("<i", -12) + b"x" * 1024)
    yield "error-no-code", packet(127, struct.pack("<i", 0) + b"fine")
    yield "version-2", packet(8, version=2)
    yield "length-wrong", packet(8, length=2**32 - 1)
    yield "type-unknown", packet(10)
    yield "empty", b""
    yield "head-cut", packet(8)[:-1]


def slot(
    state=2, capacity=2 * MIB, file_bytes=None, rank=3, number=12, length=100, major=1, chunk=MIB
):
    fixed = b"CKPTSLOT" + struct.pack("<IIQQ", major, 0, capacity, number) + JOB
    fixed += struct.pack("<IIQ", rank, chunk, 0)
    record = struct.pack("<IIQQQQQ", state, 0, 77, 4, 1000, length, 0) + digest(b"")
    data = fixed + digest(fixed) + bytes(48) + record + digest(fixed + record)
    return struct.pack("<Q", 4096 + capacity + 4096 if file_bytes is None else file_bytes) + data


def slots():
    yield "sealed", slot()
    yield "filling", slot(state=1, length=0)
    yield "empty", slot(state=0, length=0)
    yield "state-3", slot(state=3)
    yield "too-short", slot(file_bytes=4096)
    yield "capacity-odd", slot(capacity=2 * MIB + 1)
    yield "capacity-none", slot(capacity=0)
    yield "capacity-huge", slot(capacity=2**64 - 4096, file_bytes=2**64 - 1)
    yield "rank-huge", slot(rank=1000000)
    yield "number-none", slot(number=0)
    yield "length-huge", slot(length=2 * MIB + 1)
    yield "version-2", slot(major=2)
    yield "other-chunks", slot(chunk=4096)
    yield "torn", slot()[:150] + bytes(58) + slot()[208:]
    yield "zeros", bytes(216)
