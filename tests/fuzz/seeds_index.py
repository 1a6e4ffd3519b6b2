# SPDX-License-Identifier: Apache-2.0
"""Indexes for seeds.py."""

import json
import struct

from seeds_digest import digest

HEAD = struct.Struct("<8s4I6Q")
RECORD = struct.Struct("<QI16s")


def chunks(header, sizes, most):
    lengths, shared = [], 0

    def alone(left):
        while left:
            lengths.append(min(left, most))
            left -= lengths[-1]

    alone(header)
    for size in sizes:
        if shared and (size >= most or shared + size > most):
            lengths.append(shared)
            shared = 0
        if size >= most:
            alone(size)
        else:
            shared += size
    return lengths + ([shared] if shared else [])


def index(tensors, sizes=(), meta=b"", header=4096, most=4096, shard_bytes=None, **changes):
    """
    `tensors` is the JSON; `changes` are numbers of the head that lie. Digests of chunks are those of `shard_bytes`, the
    shard, or of nothing that there is.
    """
    text = tensors.encode("utf-8", "surrogatepass")
    lengths = chunks(header, sizes, most)
    numbers = {
        "major": 1,
        "minor": 0,
        "head": 72,
        "rank": 0,
        "shard": header + sum(sizes),
        "headers": header,
        "chunk": most,
        "tensor": len(text),
        "metas": len(meta),
        "chunks": len(lengths),
        **changes,
    }
    data = HEAD.pack(b"CKPTIDX\0", *numbers.values()) + text + meta
    at = 0
    for i, length in enumerate(lengths):
        content = shard_bytes[at : at + length] if shard_bytes else bytes([i % 256])
        data += RECORD.pack(at, length, digest(content))
        at += length
    return data + digest(data)


def tensor(name, dtype, shape, offset, **more):
    return {"name": name, "dtype": dtype, "shape": shape, "offset": offset, **more}


def tensors_json(tensors, aliases=()):
    return json.dumps(
        {"tensors": tensors, "aliases": [{"name": a, "target": b} for a, b in aliases]},
        separators=(",", ":"),
    )
