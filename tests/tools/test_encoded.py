# SPDX-License-Identifier: Apache-2.0
"""ckpt-restore --plain: an encoded step becomes the one that a plain save would have written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from s3_programs import (
    FAILED,
    INCOMPLETE,
    INTEGRITY,
    USAGE,
    Bucket,
    files_of,
    same,
    same_anew,
)
from safetensors.torch import load_file

import libckpt
from libckpt import Checkpointer

URL = "s3://bkt/run"
GOLDEN = Path(__file__).parents[1] / "golden" / "encoded"


def save(path: Path, encoding: Literal["plain", "compact"]) -> Path:
    """A state with what is encoded well, with a master weight, and with what is stored as it is."""
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(700_000, generator=generator)
    state = {
        "weight": master.bfloat16(),
        "master": master,
        "zeros": torch.zeros(123_457),
        "noise": torch.randint(0, 256, (1_300_001,), dtype=torch.uint8, generator=generator),
    }
    with Checkpointer(path, state, encoding=encoding, pool_bytes=32 << 20) as ckpt:
        ckpt.save(7).wait("local")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("plain") / "run", "plain")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save(tmp_path_factory.mktemp("encoded") / "run", "compact")
    assert forms(path) == [".encoded", ".index", ".json"]
    return path


def golden_state() -> dict[str, torch.Tensor]:
    """That of the golden store. Its values are exact on every machine."""
    counted = torch.arange(400_000)
    master = torch.where(counted % 61 == 0, counted % 509 - 254, 0).float() / 64
    return {
        "half": master.half(),
        "master": master,
        "noise": (torch.arange(5_003) * 40_503 % 65_521 % 251).to(torch.uint8),
        "one": torch.tensor(1.5, dtype=torch.float64),
        "special": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-42]).repeat(5_000),
        "weight": master.bfloat16(),
        "zeros": torch.zeros(70_001, dtype=torch.int32),
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def forms(store: Path) -> list[str]:
    return sorted(p.suffix for p in store.glob("g*/step-*/*"))


def shard(store: Path) -> Path:
    (path,) = [p for p in store.glob("g*/step-*/rank-*") if p.suffix != ".index"]
    return path


def is_plain(dest: Path, plain: Path, encoded: Path) -> None:
    """The shard is that of the plain save; index and manifest are those of the encoded step."""
    assert shard(dest).suffix == ".safetensors"
    assert shard(dest).read_bytes() == shard(plain).read_bytes()
    names = {re.sub(r"\.[0-9a-f]{16}\.", ".", n): b for n, b in files_of(dest).items()}
    for name, body in files_of(encoded).items():
        if not name.endswith(".encoded"):
            assert names[re.sub(r"\.[0-9a-f]{16}\.", ".", name)] == body
    assert len(names) == len(files_of(encoded))


def shown(here: Bucket, *arguments: object) -> Any:
    return json.loads(here.good(*arguments, "--json"))


def refused(result: subprocess.CompletedProcess[str], words: str) -> None:
    assert result.returncode == FAILED
    assert words in result.stderr


def test_a_directory(here: Bucket, plain: Path, encoded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    here.good("ckpt-restore", encoded, out, "--plain")
    is_plain(out, plain, encoded)
    assert shard(out).stem == shard(encoded).stem
    assert "all good" in here.good("ckpt-verify", out)
    assert "already" in here.good("ckpt-restore", encoded, out, "--plain")
    # Without it the shard is copied as it is, and a step that is there keeps its form.
    as_it_is = tmp_path / "as-it-is"
    here.good("ckpt-restore", encoded, as_it_is)
    same(as_it_is, encoded, 7)
    refused(here.run("ckpt-restore", encoded, as_it_is, "--plain"), "already, encoded")
    same(as_it_is, encoded, 7)
    assert here.run("ckpt-restore", encoded, out, "--plain", "--consolidate").returncode == USAGE
    # A plain step is copied as ever.
    here.good("ckpt-restore", plain, tmp_path / "other", "--plain")
    same(tmp_path / "other", plain, 7)


def test_added_ranks(here: Bucket, plain: Path, encoded: Path, tmp_path: Path) -> None:
    """Of a step that is there, a good encoded shard stays, and a missing one is copied as asked."""
    out = tmp_path / "out"
    here.good("ckpt-restore", encoded, out, "--rank", "0")
    refused(here.run("ckpt-restore", encoded, out, "--rank", "0", "--plain"), "already, encoded")
    assert shard(out).read_bytes() == shard(encoded).read_bytes()
    shard(out).unlink()
    here.good("ckpt-restore", encoded, out, "--rank", "0", "--plain")
    assert shard(out).read_bytes() == shard(plain).read_bytes()


def test_resumed_in_the_other_form(
    here: Bucket, plain: Path, encoded: Path, tmp_path: Path
) -> None:
    """A copy that was cut short before its manifest, with its index or without."""
    whole = {True: tmp_path / "plain", False: tmp_path / "encoded"}
    here.good("ckpt-restore", encoded, whole[True], "--plain")
    here.good("ckpt-restore", encoded, whole[False])
    for begun_plain in (False, True):
        for kept in (("manifest.json",), ("manifest.json", "*.index")):
            out = tmp_path / f"{begun_plain}-{len(kept)}"
            shutil.copytree(whole[begun_plain], out)
            for pattern in kept:
                (path,) = out.glob(f"g*/step-*/{pattern}")
                path.unlink()
            more = [] if begun_plain else ["--plain"]
            here.good("ckpt-restore", encoded, out, *more)
            assert "all good" in here.good("ckpt-verify", out)
            # What was whole stays as it is, unless it is to be plain.
            if begun_plain and len(kept) == 2:
                same_anew(out, encoded, 7)
            else:
                is_plain(out, plain, encoded)


def test_resumed_in_the_same_form(here: Bucket, encoded: Path, tmp_path: Path) -> None:
    """A copy that was cut short before its manifest: a shard that is whole stays."""
    out = tmp_path / "out"
    here.good("ckpt-restore", encoded, out)
    (manifest,) = out.glob("g*/step-*/manifest.json")
    manifest.unlink()
    before = shard(out), shard(out).stat().st_ino
    here.good("ckpt-restore", encoded, out)
    assert "all good" in here.good("ckpt-verify", out)
    assert (shard(out), shard(out).stat().st_ino) == before


def test_from_a_bucket_and_into_one(
    bucket: Bucket, plain: Path, encoded: Path, tmp_path: Path
) -> None:
    bucket.put(encoded)
    out = tmp_path / "out"
    bucket.good("ckpt-restore", URL, out, "--plain")
    is_plain(out, plain, encoded)
    bucket.good("ckpt-restore", encoded, "s3://bkt/plain", "--plain")
    bucket.good("ckpt-restore", "s3://bkt/plain", tmp_path / "back")
    is_plain(tmp_path / "back", plain, encoded)
    # Of one attempt there are not both forms: a copy that was begun in the other one is left alone.
    for begun, more in (("plain", []), ("run", ["--plain"])):
        shards = rf"{begun}/g.*/rank-[^/]*\.(encoded|safetensors)$"
        (kept,) = [n for n in bucket.names() if re.match(shards, n)]
        for name in bucket.names():
            if re.match(rf"{begun}/g.*(\.index|manifest\.json)$", name):
                assert bucket.server.ask("DELETE", name).status == 204
        result = bucket.run("ckpt-restore", encoded, f"s3://bkt/{begun}", *more)
        refused(result, "was to be copied " + ("plain" if more else "encoded"))
        assert [n for n in bucket.names() if n.startswith(f"{begun}/g0")] == [kept]


def test_what_was_saved(here: Bucket, plain: Path, encoded: Path) -> None:
    """ckpt ls and ckpt show say how large the files are, and how tensors are stored."""
    sizes = {path: shard(path).stat().st_size for path in (plain, encoded)}
    for path in (plain, encoded):
        assert "FILES" not in here.good("ckpt", "ls", path)
        (step,) = shown(here, "ckpt", "ls", path, "--stored")["steps"]
        assert step["bytes_stored"] == sizes[path]
        assert step["bytes"] == sizes[plain]
        stored = shown(here, "ckpt", "show", path, "--stored")["stored"]
        assert (stored["bytes"], stored["bytes_stored"]) == (sizes[plain], sizes[path])
        assert [r["encoded"] for r in stored["ranks"]] == [path == encoded]
    forms_of = {(c["form"], c["dtype"]): c for c in stored["chunks"]}
    assert sum(c["bytes"] for c in stored["chunks"]) == sizes[plain]
    # "weight" is left out, and what is random stays as it is.
    rounded = forms_of["rounded", "BF16"]
    assert rounded["bytes"] > 1_000_000 > 100 * rounded["bytes_stored"]
    assert forms_of["plain", "U8"]["bytes"] == forms_of["plain", "U8"]["bytes_stored"] > 1 << 20
    compressed = forms_of["compressed", "F32"]
    assert 0 < compressed["bytes_stored"] < compressed["bytes"]
    text = here.good("ckpt", "show", encoded, "--stored")
    assert re.search(r"stored: \S+ MiB in files of \S+ MiB, \d\.\d\d times smaller", text)
    assert re.search(r"^BF16 .* rounded$", text, re.MULTILINE)
    assert "plain" in here.good("ckpt", "show", plain, "--stored").splitlines()[-1]
    assert "FILES" in here.good("ckpt", "ls", encoded, "--stored")


def test_a_step_that_lacks_its_file(here: Bucket, encoded: Path, tmp_path: Path) -> None:
    """It is listed, and named."""
    store = tmp_path / "store"
    shutil.copytree(encoded, store)
    shard(store).unlink()
    for more in ([], ["--json"]):
        result = here.run("ckpt", "ls", store, "--stored", *more)
        assert result.returncode == INCOMPLETE
        assert "rank-00000" in result.stderr
        assert "committed" in result.stdout
    assert here.run("ckpt", "show", store, "--stored").returncode == INCOMPLETE
    here.good("ckpt", "show", store)


def test_the_golden_store(here: Bucket, tmp_path: Path) -> None:
    """An encoded step that was written once is read for ever: tests/golden/README.md."""
    store, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(GOLDEN, store)
    assert forms(store) == [".encoded", ".index", ".json"]
    assert "all good" in here.good("ckpt-verify", store)
    loaded = libckpt.load(store)
    assert list(loaded) == list(golden_state())
    for name, tensor in golden_state().items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(loaded[name]), bits(tensor))
    here.good("ckpt-restore", store, out, "--plain")
    plain = load_file(shard(out))
    for name, tensor in golden_state().items():
        assert torch.equal(bits(plain[name]), bits(tensor))


def test_a_copy_that_was_cut_short(
    here: Bucket, tmp_path: Path, plain: Path, encoded: Path
) -> None:
    """What is good of a plain file is kept, and only the other chunks are decoded: another one is bad."""
    source, dest = tmp_path / "source", tmp_path / "dest"
    shutil.copytree(encoded, source)
    here.good("ckpt-restore", source, dest, "--plain")
    next(dest.glob("g*/step-*/manifest.json")).unlink()
    flip(shard(dest), -1)
    flip(shard(source), 200_000)
    assert here.run("ckpt-verify", source).returncode == INTEGRITY
    here.good("ckpt-restore", source, dest, "--plain")
    assert shard(dest).read_bytes() == shard(plain).read_bytes()
    here.good("ckpt-verify", dest)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
