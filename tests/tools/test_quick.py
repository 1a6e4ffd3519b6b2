# SPDX-License-Identifier: Apache-2.0
"""`ckpt-verify --quick`: a step is there and whole, without reading what is in its tensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from s3_programs import INCOMPLETE, INTEGRITY, OK, USAGE, Bucket, save

URL = "s3://bkt/run"
PARTS = {"x": torch.arange(5 << 20, dtype=torch.float32), "b": torch.ones(3)}  # 20 MiB


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("quick") / "run", PARTS, 7, 8)


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def file_of(store: Path, step: int, kind: str) -> Path:
    return next(store.glob(f"g*/step-{step:010}/rank-00000.*.{kind}"))


def change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_whole(here: Bucket, store: Path) -> None:
    out = here.good("ckpt-verify", store, "--quick")
    assert "step 7: rank 0 has a good structure" in out
    assert "structure good, tensors not read" in out
    lines = [
        json.loads(line)
        for line in here.good("ckpt-verify", store, "--quick", "--json").split("\n")
        if line
    ]
    # Who looks for "good" shards finds none: nobody has read them.
    assert [line["type"] for line in lines[:-1]] == ["whole"] * 2
    assert lines[-1]["quick"] is True
    assert lines[-1]["bytes"] < 100_000, "it has read what is in the tensors"


@pytest.mark.parametrize("kind", ["index", "safetensors"])
def test_what_is_not_there(here: Bucket, store: Path, kind: str) -> None:
    file_of(store, 7, kind).unlink()
    result = here.run("ckpt-verify", store, "--quick")
    assert result.returncode == INCOMPLETE
    assert "step 8: rank 0 has a good structure" in result.stdout
    assert "NOT good" in result.stdout


def test_what_is_cut_off(here: Bucket, store: Path) -> None:
    path = file_of(store, 7, "safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert here.run("ckpt-verify", store, "--quick").returncode == INCOMPLETE


@pytest.mark.parametrize(("kind", "at"), [("index", 100), ("safetensors", 20)])
def test_damage_of_the_structure(here: Bucket, store: Path, kind: str, at: int) -> None:
    change(file_of(store, 7, kind), at)
    assert here.run("ckpt-verify", store, "--quick").returncode == INTEGRITY


def test_damage_that_it_does_not_see(here: Bucket, store: Path) -> None:
    """What it says is no more than what it looked at."""
    change(file_of(store, 7, "safetensors"), -5)
    assert here.run("ckpt-verify", store, "--quick").returncode == OK
    assert here.run("ckpt-verify", store).returncode == INTEGRITY


def test_in_a_bucket(bucket: Bucket, store: Path) -> None:
    bucket.put(store)
    before = len(bucket.server.journal())
    assert "step 7: rank 0 has a good structure" in bucket.good("ckpt-verify", URL, "--quick", "--step", "7")
    ranges = [
        e
        for e in bucket.server.journal()[before:]
        if e["operation"] == "GetObject" and "safetensors" in e["key"]
    ]
    assert len(ranges) <= 1, "more than the header was read"


def test_others_do_not_take_it(here: Bucket, store: Path) -> None:
    assert here.run("ckpt", "ls", store, "--quick").returncode == USAGE
