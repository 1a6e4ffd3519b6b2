# SPDX-License-Identifier: Apache-2.0
"""ckpt-restore --consolidate and --rank: tensors in plain files, whole or cut, whoever wrote them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from stock_digest import digest
from waiting import finished

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).parents[2] / "build" / "tools"))
OK, FAILED, USAGE, INCOMPLETE, INTEGRITY = 0, 1, 2, 3, 4
RUN = "0123456789abcdef0123456789abcdef"
ATTEMPT = "00000000000000aa"
CHUNK = 4096
NAMES = {"<f4": "F32", "<f8": "F64", "|u1": "U8", "<c16": "C128"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    program, *rest = (str(a) for a in arguments)
    return finished([TOOLS / program, *rest])


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def write_sealed(path: Path, kind: str, members: dict[str, object]) -> None:
    body = compact({"format": [1, 0], "kind": kind, **members})[:-1].encode()
    path.write_bytes(body + b',"digest":"' + digest(body).hex().encode() + b'"}\n')


class Box:
    """What a rank holds of an array: rows and columns of it."""

    def __init__(self, name: str, whole: np.ndarray, cut: tuple[slice, ...] = ()) -> None:
        self.name, self.whole = name, whole
        self.part = whole[cut].copy()
        bounds = [s.indices(n) for s, n in zip(cut, whole.shape, strict=False)]
        self.start = [b[0] for b in bounds] + [0] * (whole.ndim - len(bounds))
        self.dtype = NAMES[whole.dtype.str]

    def in_header(self) -> tuple[str, list[int]]:
        if self.dtype == "C128":
            return "U8", [*self.part.shape, 16]
        return self.dtype, list(self.part.shape)


def chunks(header: int, sizes: list[int]) -> list[tuple[int, int]]:
    found, at, shared = [], 0, 0

    def alone(length: int) -> None:
        nonlocal at
        for begin in range(0, length, CHUNK):
            found.append((at, min(CHUNK, length - begin)))
            at += found[-1][1]

    def close() -> None:
        nonlocal at, shared
        if shared:
            found.append((at, shared))
        at, shared = at + shared, 0

    alone(header)
    for size in sizes:
        if size >= CHUNK or shared + size > CHUNK:
            close()
        if size >= CHUNK:
            alone(size)
        else:
            shared += size
    close()
    return found


def write_rank(step: Path, rank: int, boxes: list[Box], alias: str | None) -> dict[str, object]:
    boxes.sort(key=lambda b: (-b.whole.dtype.itemsize, b.name.encode()))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for box in boxes:
        dtype, shape = box.in_header()
        offsets = [at, at + box.part.nbytes]
        header[box.name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        at = offsets[1]
    text = compact(header).encode()
    size = -(-(8 + len(text)) // 4096) * 4096
    shard = struct.pack("<Q", size - 8) + text.ljust(size - 8) + b"".join(b.part.tobytes() for b in boxes)
    tensors, at = [], size
    for box in boxes:
        entry = {
            "name": box.name,
            "dtype": box.dtype,
            "shape": list(box.part.shape),
            "offset": at,
        }
        if box.part.shape != box.whole.shape:
            entry["global_shape"] = list(box.whole.shape)
            if any(box.start):
                entry["global_start"] = box.start
        tensors.append(entry)
        at += box.part.nbytes
    aliases = [{"name": alias, "target": boxes[0].name}] if alias else []
    described = compact({"tensors": tensors, "aliases": aliases}).encode()
    places = chunks(size, [b.part.nbytes for b in boxes])
    head = struct.pack(
        "<8s4I6Q", b"CKPTIDX\0", 1, 0, 72, rank, len(shard), size, CHUNK, len(described), 0, len(places)
    )
    index = head + described
    index += b"".join(struct.pack("<QI", o, n) + digest(shard[o : o + n]) for o, n in places)
    index += digest(index)
    (step / f"rank-{rank:05}.{ATTEMPT}.safetensors").write_bytes(shard)
    (step / f"rank-{rank:05}.{ATTEMPT}.index").write_bytes(index)
    return {
        "rank": rank,
        "node": f"node-{rank}",
        "attempt": ATTEMPT,
        "index_digest": digest(index).hex(),
        "index_bytes": len(index),
        "shard_bytes": len(shard),
    }


def write_store(path: Path, ranks: list[list[Box]], alias: str = "tied") -> Path:
    step = path / "g000001" / "step-0000000010"
    step.mkdir(parents=True)
    (path / "gens").mkdir()
    write_sealed(path / "ckpt.json", "store", {"run_id": RUN, "scope": "shared", "wall_ms": 1})
    claim: dict[str, object] = {"run_id": RUN, "generation": 1, "parent": None}
    claim |= {"nonce": "0" * 15 + "1", "world": len(ranks), "node": "n", "wall_ms": 1}
    write_sealed(path / "gens" / "000001.json", "claim", claim)
    manifest: dict[str, object] = {"run_id": RUN, "generation": 1, "step": 10}
    manifest |= {"outcome": "commit", "attempt": ATTEMPT, "wall_ms": 1, "world": len(ranks)}
    manifest["ranks"] = [
        write_rank(step, i, boxes, alias if i == 1 else None) for i, boxes in enumerate(ranks)
    ]
    write_sealed(step / "manifest.json", "manifest", manifest)
    return path


RNG = np.random.default_rng(4)
WHOLE: dict[str, Any] = {
    "embed": RNG.random((90, 41), dtype=np.float32),
    "phase": RNG.random((3, 5)) + 1j * RNG.random((3, 5)),
    "mask": RNG.integers(0, 255, (7, 3, 50), dtype=np.uint8),
    "same": RNG.random(1000),
    "one": np.float32(3.5).reshape(()),
    "none": np.zeros((0, 4), dtype=np.float32),
}


def box(name: str, *cut: slice) -> Box:
    return Box(name, WHOLE[name], cut)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    every = slice(None)
    ranks = [
        [box("embed", slice(0, 20)), box("mask", every, every, slice(0, 20)), box("same")],
        [box("phase"), box("embed", slice(20, 71)), box("mask", every, every, slice(20, 50)), box("same")],
        [box("embed", slice(71, 90)), box("one"), box("none")],
    ]
    return write_store(tmp_path / "run", ranks)


def compare(found: dict[str, np.ndarray]) -> None:
    assert set(found) == set(WHOLE)
    for name, array in found.items():
        want = WHOLE[name]
        if name == "phase":
            assert array.dtype == np.uint8
            assert array.shape == (3, 5, 16)
            array = array.view(np.complex128)[..., 0]
        assert array.dtype == want.dtype
        assert array.shape == want.shape
        assert array.tobytes() == want.tobytes()


def test_one_file(store: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest, "--consolidate")
    assert (result.returncode, result.stderr) == (OK, "")
    assert result.stdout.startswith(f"step 10 is in {dest} (")
    assert [p.name for p in dest.iterdir()] == ["model.safetensors"]
    compare(load_file(dest / "model.safetensors"))
    with safe_open(dest / "model.safetensors", "np") as f:
        assert f.metadata() == {"format": "pt", "tied": "phase"}
    # What is there stays as it is.
    before = (dest / "model.safetensors").read_bytes()
    again = run("ckpt-restore", store, dest, "--consolidate")
    assert again.returncode == FAILED
    assert "File exists" in again.stderr
    assert [p.name for p in dest.iterdir()] == ["model.safetensors"]
    assert (dest / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("size", [1, 8000, 10_000, 20_000])
def test_many_files(store: Path, tmp_path: Path, size: int) -> None:
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest, "--consolidate", "--file-size", size, "--json")
    assert result.returncode == OK, result.stderr
    line = json.loads(result.stdout)
    names = sorted(p.name for p in dest.iterdir())
    assert sorted(line["files"]) == names
    assert (line["type"], line["step"]) == ("restored", 10)
    *models, index = names
    assert index == "model.safetensors.index.json"
    count = len(models)
    assert models == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    described = json.loads((dest / index).read_text())
    assert described["metadata"]["total_size"] == sum(a.nbytes for a in WHOLE.values())
    found = {}
    for model in models:
        part = load_file(dest / model)
        assert len(part) == 1 or sum(a.nbytes for a in part.values()) <= size
        assert {n for n, file in described["weight_map"].items() if file == model} == set(part)
        found |= part
    compare(found)


def test_large_enough_is_one(store: Path, tmp_path: Path) -> None:
    result = run("ckpt-restore", store, tmp_path / "out", "--consolidate", "--file-size", "5GiB", "-q")
    assert (result.returncode, result.stdout) == (OK, "")
    compare(load_file(tmp_path / "out" / "model.safetensors"))


def test_show(store: Path) -> None:
    result = run("ckpt", "show", store, "--json")
    tensors = {t["name"]: t for t in json.loads(result.stdout)["tensors"]}
    assert tensors["embed"]["shape"] == [90, 41]
    assert tensors["embed"]["pieces"] == 3
    assert "pieces" not in tensors["same"]
    assert "in 3 pieces" in run("ckpt", "show", store).stdout


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("kind", ["flip", "gone"])
def test_damage(store: Path, tmp_path: Path, rank: int, kind: str) -> None:
    (shard,) = store.glob(f"g*/step-*/rank-{rank:05}.*.safetensors")
    if kind == "gone":
        shard.unlink()
    else:
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest, "--consolidate", "--json")
    assert result.returncode == (INCOMPLETE if kind == "gone" else INTEGRITY)
    assert json.loads(result.stdout)["error"]["rank"] == rank
    assert not dest.exists()
    dest.mkdir()
    (dest / "note").write_text("mine")
    assert run("ckpt-restore", store, dest, "--consolidate").returncode == result.returncode
    assert [p.name for p in dest.iterdir()] == ["note"]


def test_a_part_that_nobody_holds(tmp_path: Path) -> None:
    store = write_store(tmp_path / "run", [[box("embed", slice(0, 20))], [box("embed", slice(30, 90))]])
    result = run("ckpt-restore", store, tmp_path / "out", "--consolidate")
    assert result.returncode == FAILED
    assert "no rank of the step holds [20:30, 0:41]" in result.stderr
    assert not (tmp_path / "out").exists()
    # As it is the step can be copied all the same.
    assert run("ckpt-restore", store, tmp_path / "copy").returncode == OK


@pytest.mark.parametrize("size", ["0", "", "-1", "5GB", "x", "99999999999999999999999999", "8388608TiB"])
def test_bad_sizes(store: Path, tmp_path: Path, size: str) -> None:
    result = run("ckpt-restore", store, tmp_path / "out", "--consolidate", "--file-size", size)
    assert result.returncode == USAGE
    assert "--file-size takes" in result.stderr
    assert not (tmp_path / "out").exists()


def test_usage(store: Path, tmp_path: Path) -> None:
    assert run("ckpt-restore", store, tmp_path / "out", "--file-size", "5GiB").returncode == USAGE
    assert run("ckpt-verify", store, "--consolidate").returncode == USAGE


def test_dest_that_cannot_be(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for dest in ("file", "none/below"):
        result = run("ckpt-restore", store, tmp_path / dest, "--consolidate", "--json")
        assert result.returncode == FAILED
        assert dest in json.loads(result.stdout)["error"]["message"]


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as f:
        return dict(f.metadata())


def test_each_file_has_its_own_aliases(store: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest, "--consolidate", "--file-size", 1, "-q")
    assert result.returncode == OK, result.stderr
    for file in dest.glob("*.safetensors"):
        want = {"format": "pt"} | ({"tied": "phase"} if "phase" in load_file(file) else {})
        assert metadata(file) == want


@pytest.mark.parametrize("alias", ["format", "rank"])
def test_an_alias_that_metadata_cannot_have(tmp_path: Path, alias: str) -> None:
    store = write_store(tmp_path / "run", [[box("same")], [box("one")]], alias)
    whole = tmp_path / "whole"
    assert run("ckpt-restore", store, whole, "--consolidate").returncode == OK
    found = load_file(whole / "model.safetensors")
    if alias == "format":
        assert found["format"] == np.float32(3.5)
        assert metadata(whole / "model.safetensors") == {"format": "pt"}
    else:
        assert metadata(whole / "model.safetensors") == {"format": "pt", "rank": "one"}
    view = tmp_path / "view"
    result = run("ckpt-restore", store, view, "--world-size", 3, "--rank", 2)
    assert result.returncode == OK, result.stderr
    file = view / "rank-00002-of-00003.safetensors"
    assert load_file(file)[alias] == np.float32(3.5)
    assert metadata(file) == {"format": "pt", "rank": "2", "world_size": "3"}


@pytest.mark.full
def test_a_header_that_no_reader_takes(tmp_path: Path) -> None:
    # As JSON each byte of these names is six.
    ranks = [
        [Box(f"{r}{i:05}" + "\1" * 1000, np.array([i], dtype=np.float32)) for i in range(8500)]
        for r in range(2)
    ]
    store = write_store(tmp_path / "run", ranks)
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest, "--consolidate")
    assert result.returncode == FAILED
    assert "use --file-size" in result.stderr
    assert not dest.exists()
    result = run("ckpt-restore", store, dest, "--consolidate", "--file-size", 40_000)
    assert result.returncode == OK, result.stderr
    assert len(load_file(dest / "model-00001-of-00002.safetensors")) == 10_000


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what is synced")
@pytest.mark.parametrize("there", [False, True])
def test_the_name_of_dest_is_synced(store: Path, tmp_path: Path, there: bool) -> None:
    dest, log = tmp_path / "out", tmp_path / "log"
    if there:
        dest.mkdir()
    command = ["strace", "-f", "-y", "-e", "trace=fsync", "-o", str(log), str(TOOLS / "ckpt-restore")]
    done = finished(
        [*command, store, dest, "--consolidate", "-q"],
        # Who is traced cannot look for leaks.
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == OK
    synced = [line for line in log.read_text().splitlines() if "fsync(" in line and line.endswith("= 0")]
    assert any(f"<{dest}>" in line for line in synced)
    assert any(f"<{tmp_path}>" in line for line in synced) != there


def view_of(whole: np.ndarray, world: int, rank: int) -> np.ndarray:
    """What torch's Shard(0) gives to a rank."""
    if whole.ndim == 0:
        return whole
    pieces = torch.from_numpy(whole).chunk(world) if whole.shape[0] else ()
    return np.asarray(pieces[rank]) if rank < len(pieces) else whole[:0]


def restore_view(store: Path, dest: Path, world: int, rank: int, *more: object) -> dict[str, np.ndarray]:
    result = run("ckpt-restore", store, dest, "--world-size", world, "--rank", rank, "--json", *more)
    assert result.returncode == OK, result.stderr
    name = f"rank-{rank:05}-of-{world:05}.safetensors"
    assert json.loads(result.stdout)["files"] == [name]
    assert metadata(dest / name) == {
        "format": "pt",
        "tied": "phase",
        "rank": str(rank),
        "world_size": str(world),
    }
    return load_file(dest / name)


@pytest.mark.parametrize(
    ("world", "ranks"),
    [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (7, [0, 3, 6]), (100, [0, 2, 3, 89, 90, 99]), (1000000, [999999])],
)
def test_views(store: Path, tmp_path: Path, world: int, ranks: list[int]) -> None:
    for rank in ranks:
        found = restore_view(store, tmp_path / "out", world, rank)
        assert set(found) == set(WHOLE)
        for name, array in found.items():
            want = view_of(WHOLE[name], world, rank)
            if name == "phase":
                assert array.shape == (*want.shape, 16)
                array = array.view(np.complex128)[..., 0] if array.size else want
            assert (array.dtype, array.shape) == (want.dtype, want.shape)
            assert array.tobytes() == want.tobytes()
    assert len(list((tmp_path / "out").iterdir())) == len(ranks)


def test_views_with_replicas(store: Path, tmp_path: Path) -> None:
    found = restore_view(store, tmp_path / "out", 3, 1, "--whole", "sam?", "--whole", "*k")
    assert found["same"].tobytes() == WHOLE["same"].tobytes()
    assert found["mask"].tobytes() == WHOLE["mask"].tobytes()
    assert found["embed"].shape == (30, 41)


def test_a_view_reads_what_it_needs(tmp_path: Path) -> None:
    rows = Box("rows", RNG.random((100, 1024), dtype=np.float32))
    store = write_store(tmp_path / "run", [[rows]])
    result = run("ckpt-restore", store, tmp_path / "out", "--world-size", 10, "--rank", 3, "--json")
    assert json.loads(result.stdout)["bytes"] == 10 * 4096
    found = load_file(tmp_path / "out" / "rank-00003-of-00010.safetensors")["rows"]
    assert found.tobytes() == rows.whole[30:40].tobytes()


def test_a_view_that_fails_leaves_nothing(store: Path, tmp_path: Path) -> None:
    (shard,) = store.glob("g*/step-*/rank-00000.*.safetensors")
    shard.unlink()
    dest = tmp_path / "out"
    # The rows of rank 0 are the first ones.
    assert run("ckpt-restore", store, dest, "--world-size", 5, "--rank", 0).returncode == INCOMPLETE
    assert not dest.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--world-size", "2"],
        ["--world-size", "0", "--rank", "0"],
        ["--world-size", "2", "--rank", "2"],
        ["--world-size", "1000001", "--rank", "0"],
        ["--world-size", "2", "--rank", "-1"],
        ["--world-size", "two", "--rank", "0"],
        ["--world-size", "2", "--rank", "0", "--consolidate"],
        ["--world-size", "2", "--rank", "0", "--file-size", "1"],
        ["--whole", "*"],
        ["--consolidate", "--whole", "*"],
        ["--world-size", "2", "--rank", "0", *(["--whole", "x"] * 65)],
    ],
)
def test_views_that_cannot_be(store: Path, tmp_path: Path, options: list[str]) -> None:
    result = run("ckpt-restore", store, tmp_path / "out", *options)
    assert result.returncode == USAGE
    assert "usage:" in result.stderr
    assert not (tmp_path / "out").exists()
    assert run("ckpt-verify", store, "--rank", "0").returncode == USAGE
