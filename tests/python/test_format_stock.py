# SPDX-License-Identifier: Apache-2.0
"""
The golden stores, read by FORMAT.md alone: with the stock safetensors reader, Python's own JSON and
struct, and the system's XXH3. Nothing here is ours.
"""

import json
import pathlib
import re
import shutil
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from stock_digest import digest

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
STORES = sorted(GOLDEN.glob("v*"))

SIZES = {"BOOL": 1, "C64": 8, "C128": 16, "C32": 4, "BF16": 2}
STORED_AS_U8 = {"C128", "C32", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
RECORD = struct.Struct("<QI16s")
HEAD = struct.Struct("<8s4I6Q")


def element_bytes(dtype: str) -> int:
    match = re.match(r"[A-Z]+(\d+)", dtype)
    return SIZES.get(dtype) or int(match[1]) // 8


def read_sealed(path: pathlib.Path, kind: str) -> dict[str, Any]:
    data = path.read_bytes()
    body, end = data[:-46], data[-46:]
    assert end == b',"digest":"' + digest(body).hex().encode() + b'"}\n'
    found = json.loads(data)
    assert found["format"][0] == 1
    assert found["kind"] == kind
    return found


def chunks_of(header: int, sizes: list[int], most: int) -> list[tuple[int, int]]:
    """The chunk rule of FORMAT.md."""
    found: list[tuple[int, int]] = []
    at = 0

    def take(length: int) -> None:
        nonlocal at
        found.append((at, length))
        at += length

    def take_alone(length: int) -> None:
        while length:
            take(min(length, most))
            length -= min(length, most)

    take_alone(header)
    shared = 0
    for size in sizes:
        if shared and (size >= most or shared + size > most):
            take(shared)
            shared = 0
        if size >= most:
            take_alone(size)
        else:
            shared += size
    if shared:
        take(shared)
    return found


class Index:
    """An index, by its table in FORMAT.md."""

    def __init__(self, data: bytes) -> None:
        assert data[-16:] == digest(data[:-16])
        (magic, self.major, self.minor, head, self.rank, self.shard_bytes, self.header_bytes,
         self.chunk_bytes, tensors, meta, count) = HEAD.unpack_from(data)  # fmt: skip
        assert magic == b"CKPTIDX\0"
        assert head == HEAD.size
        listed = json.loads(data[head : head + tensors])
        self.tensors = listed["tensors"]
        self.aliases = listed["aliases"]
        self.meta = data[head + tensors : head + tensors + meta]
        records = data[head + tensors + meta : -16]
        assert len(records) == count * RECORD.size
        self.chunks = list(RECORD.iter_unpack(records))


def bytes_of(tensor: dict[str, Any]) -> int:
    size = element_bytes(tensor["dtype"])
    for dim in tensor["shape"]:
        size *= dim
    return size


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> pathlib.Path:
    return request.param


def commits(golden: pathlib.Path) -> list[tuple[pathlib.Path, dict[str, Any]]]:
    found = []
    for path in golden.glob("g*/step-*/manifest.json"):
        manifest = read_sealed(path, "manifest")
        if manifest["outcome"] == "commit":
            found.append((path.parent, manifest))
    assert found
    return found


def find_file(
    folder: pathlib.Path, rank: dict[str, Any], suffix: str, good: Callable[[bytes], bool]
) -> pathlib.Path:
    """The file that the manifest names, or else another one of that rank and kind that is good."""
    stem = f"rank-{rank['rank']:05}"
    names = [
        folder / f"{stem}.{rank['attempt']}{suffix}",
        *sorted(folder.glob(f"{stem}.*{suffix}")),
    ]
    return next(path for path in names if path.exists() and good(path.read_bytes()))


def shards(golden: pathlib.Path) -> list[tuple[Index, pathlib.Path]]:
    found = []
    for folder, manifest in commits(golden):
        for number, rank in enumerate(manifest["ranks"]):
            assert rank["rank"] == number
            path = find_file(folder, rank, ".index", partial(is_index, rank=rank))
            index = Index(path.read_bytes())
            shard = find_file(folder, rank, ".safetensors", partial(is_shard, index=index))
            assert shard.stat().st_size == rank["shard_bytes"]
            found.append((index, shard))
    return found


def is_index(data: bytes, rank: dict[str, Any]) -> bool:
    return len(data) == rank["index_bytes"] and digest(data).hex() == rank["index_digest"]


def is_shard(data: bytes, index: Index) -> bool:
    return len(data) == index.shard_bytes and all(
        digest(data[offset : offset + length]) == expected
        for offset, length, expected in index.chunks
    )


def test_there_is_one() -> None:
    assert STORES


def test_repaired_ranks(golden: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Whichever attempt the good files have, and whether bad ones are beside them."""
    expected = [(index.tensors, shard.read_bytes()) for index, shard in shards(golden)]
    store = tmp_path / "store"
    shutil.copytree(golden, store)
    for count, path in enumerate(sorted(store.glob("g*/step-*/rank-*"))):
        rank, attempt, suffix = path.name.split(".")
        new = path.with_name(f"{rank}.{int(attempt, 16) ^ 0xFF:016x}.{suffix}")
        path.rename(new)
        if count % 3 == 0:
            data = bytearray(new.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    assert [(index.tensors, shard.read_bytes()) for index, shard in shards(store)] == expected


def test_small_files(golden: pathlib.Path) -> None:
    run = read_sealed(golden / "ckpt.json", "store")["run_id"]
    claims = [read_sealed(path, "claim") for path in sorted((golden / "gens").iterdir())]
    assert [claim["generation"] for claim in claims] == list(range(1, len(claims) + 1))
    for claim in claims:
        assert claim["run_id"] == run
        assert claim["parent"] is None or claim["parent"]["generation"] < claim["generation"]
    for path in golden.glob("g*/step-*/manifest.json"):
        manifest = read_sealed(path, "manifest")
        assert manifest["run_id"] == run
        assert path.parent.name == f"step-{manifest['step']:010}"
        assert path.parent.parent.name == f"g{manifest['generation']:06}"
    for path in golden.glob("g*/step-*/quarantine.json"):
        assert read_sealed(path, "quarantine")["code"] < 0


def test_layout_rule(golden: pathlib.Path) -> None:
    for index, shard in shards(golden):
        order = sorted(
            index.tensors, key=lambda t: (-element_bytes(t["dtype"]), t["name"].encode())
        )
        assert index.tensors == order
        at = index.header_bytes
        assert at % 4096 == 0
        for tensor in index.tensors:
            assert tensor["offset"] == at
            at += bytes_of(tensor)
        assert at == index.shard_bytes == shard.stat().st_size
        names = [t["name"] for t in index.tensors] + [a["name"] for a in index.aliases]
        assert len(set(names)) == len(names)


def test_chunks(golden: pathlib.Path) -> None:
    for index, shard in shards(golden):
        data = shard.read_bytes()
        sizes = [bytes_of(tensor) for tensor in index.tensors]
        assert [(offset, length) for offset, length, _ in index.chunks] == chunks_of(
            index.header_bytes, sizes, index.chunk_bytes
        )
        for offset, length, expected in index.chunks:
            assert digest(data[offset : offset + length]) == expected


def test_meta_is_json(golden: pathlib.Path) -> None:
    for index, _ in shards(golden):
        assert json.loads(index.meta)


def test_stock_reader(golden: pathlib.Path) -> None:
    """Every tensor, with its name, type and shape, and the bytes that lie at its offset."""
    for index, shard in shards(golden):
        data = shard.read_bytes()
        with safetensors.safe_open(str(shard), "pt") as reader:
            assert set(reader.keys()) == {tensor["name"] for tensor in index.tensors}
            assert reader.metadata() == {"format": "pt"}
            for tensor in index.tensors:
                found = reader.get_tensor(tensor["name"])
                shape = list(tensor["shape"])
                if tensor["dtype"] in STORED_AS_U8:
                    assert found.dtype == torch.uint8
                    if element_bytes(tensor["dtype"]) > 1:
                        shape.append(element_bytes(tensor["dtype"]))
                assert list(found.shape) == shape
                raw = found.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                assert raw == data[tensor["offset"] : tensor["offset"] + bytes_of(tensor)]


def test_a_type_that_safetensors_lacks(golden: pathlib.Path) -> None:
    """The index has the true type, and the added dimension makes a view enough."""
    for index, shard in shards(golden):
        data = shard.read_bytes()
        with safetensors.safe_open(str(shard), "np") as reader:
            for tensor in index.tensors:
                if tensor["dtype"] == "C128":
                    found = reader.get_tensor(tensor["name"]).view(np.complex128)[..., 0]
                    assert list(found.shape) == tensor["shape"]
                    end = tensor["offset"] + bytes_of(tensor)
                    assert found.tobytes() == data[tensor["offset"] : end]


def test_header_is_canonical(golden: pathlib.Path) -> None:
    """What the writer makes is decided to the byte, so that equal states give equal shards."""
    for index, shard in shards(golden):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for tensor in index.tensors:
            shape = list(tensor["shape"])
            stored = tensor["dtype"]
            if stored in STORED_AS_U8:
                shape += [element_bytes(stored)] * (element_bytes(stored) > 1)
                stored = "U8"
            start = tensor["offset"] - index.header_bytes
            header[tensor["name"]] = {
                "dtype": stored,
                "shape": shape,
                "data_offsets": [start, start + bytes_of(tensor)],
            }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        padded = text + b" " * (-(8 + len(text)) % 4096)
        written = struct.pack("<Q", len(padded)) + padded
        assert shard.read_bytes()[: index.header_bytes] == written
