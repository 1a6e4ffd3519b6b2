# SPDX-License-Identifier: Apache-2.0
"""ckpt diff: what two steps have not in common, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from s3_programs import Bucket, has_s3
from s3_server import S3D, Server
from test_consolidate import (
    FAILED,
    INCOMPLETE,
    INTEGRITY,
    OK,
    USAGE,
    Box,
    run,
    write_store,
)

import libckpt

SAME, DIFFER, NOT_FOUND = OK, FAILED, 10
BIG = (70 << 20) // 4  # elements; four of these take two batches


def state_of(**more: Any) -> dict[str, Any]:
    w = torch.arange(5000, dtype=torch.float32).reshape(50, 100)
    return {
        "w": w,
        "tied": w,
        "b": torch.zeros(7, dtype=torch.bfloat16),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "note": "hello",
        **more,
    }


def make(path: Path, *states: dict[str, Any]) -> Path:
    """A store whose steps 1, 2, ... hold these."""
    held: dict[str, Any] = {}
    with libckpt.Checkpointer(str(path), state=held) as ckpt:
        for step, state in enumerate(states, 1):
            held.clear()
            held.update(state)
            ckpt.save(step).wait("local")
    return path


def found(*arguments: object) -> dict[str, Any]:
    result = run("ckpt", "diff", *arguments, "--json")
    assert result.stderr == ""
    said: dict[str, Any] = json.loads(result.stdout)
    assert said["type"] == "diff"
    assert result.returncode == (SAME if said["same"] else DIFFER)
    return said


def one(path: Path, pattern: str) -> Path:
    (name,) = path.glob(pattern)
    return name


def test_the_same(tmp_path: Path) -> None:
    store = make(tmp_path / "store", state_of(), state_of())
    said = found(store)
    assert said["same"] is True
    assert (said["first"]["step"], said["second"]["step"]) == (1, 2)
    assert (said["differing"], said["only_first"], said["only_second"]) == ([], [], [])
    result = run("ckpt", "diff", store)
    assert "and the other values are the same" in result.stdout
    assert run("ckpt", "diff", store, "-q").stdout == ""


def test_every_element_counts(tmp_path: Path) -> None:
    other = state_of()
    other["w"][49, 99] = -1
    other["w"][3, 5] = -1
    other["b"][6] = 1
    other["scalar"] = torch.tensor(4)
    store = make(tmp_path / "store", state_of(), other)
    differing = {d["name"]: d for d in found(store)["differing"]}
    assert len(differing) == 3
    by_end = {name.rsplit("/", 1)[-1]: d for name, d in differing.items()}
    for name, count, of, first in (("b", 1, 7, 6), ("scalar", 1, 1, 0)):
        d = by_end[name]
        assert (d["differing"], d["elements"], d["first"]) == (count, of, first)
    # `tied` is the same bytes under another name: told once.
    (name,) = {"w", "tied"} & set(by_end)
    assert (by_end[name]["differing"], by_end[name]["first"]) == (2, 305)
    text = run("ckpt", "diff", store)
    assert text.returncode == DIFFER
    assert "2 of 5000 elements, the first is element 305" in text.stdout


def test_zeros_of_two_signs_differ(tmp_path: Path) -> None:
    """It is the bytes: what is equal as a number may be none the same, and NaN is the same as itself."""
    a = state_of(z=torch.tensor([0.0, float("nan")]))
    b = state_of(z=torch.tensor([-0.0, float("nan")]))
    (d,) = found(make(tmp_path / "store", a, b))["differing"]
    assert (d["differing"], d["elements"]) == (1, 2)


def test_names_types_and_values(tmp_path: Path) -> None:
    a = state_of(gone=torch.ones(2), typed=torch.ones(2), shaped=torch.ones(2, 3))
    b = state_of(come=torch.ones(2), typed=torch.ones(2).double(), shaped=torch.ones(3, 2))
    store = make(tmp_path / "store", a, {**b, "note": "good bye"})
    for arguments in ((), ("--structure",)):
        said = found(store, *arguments)
        assert [n.rsplit("/")[-1] for n in said["only_first"]] == ["gone"]
        assert [n.rsplit("/")[-1] for n in said["only_second"]] == ["come"]
        assert sorted(n.rsplit("/")[-1] for n in said["changed"]) == ["shaped", "typed"]
        assert said["values_differ"] is True
        assert said["differing"] == []
    text = run("ckpt", "diff", store).stdout
    for line in ("only in the first: ", "only in the second: ", "other type or shape: "):
        assert line in text


def test_structure_reads_no_shard(tmp_path: Path) -> None:
    other = state_of()
    other["w"][0, 0] = -1
    store = make(tmp_path / "store", state_of(), other)
    one(store, "g*/step-0000000002/*.safetensors").unlink()
    assert found(store, "--structure")["same"] is True
    assert run("ckpt", "diff", store).returncode == INCOMPLETE


def test_which_steps(tmp_path: Path) -> None:
    states = [state_of(x=torch.full((3,), float(i))) for i in (1, 2, 1)]
    store = make(tmp_path / "store", *states)
    assert found(store)["same"] is False
    assert found(store, "--step", 1)["same"] is True
    assert found(store, "--step", 1, "--with", "latest~1")["same"] is False
    assert found(store, "--with", 1, "--step", 3)["same"] is True
    said = found(store, "--with", "latest~1")
    assert (said["first"]["step"], said["second"]["step"], said["same"]) == (3, 2, False)
    for wrong in (("--step", 9), ("--with", 9), ("--with", "latest~3")):
        result = run("ckpt", "diff", store, *wrong)
        assert (result.returncode, result.stdout) == (NOT_FOUND, "")
        assert str(store) in result.stderr
    alone = make(tmp_path / "alone", states[0])
    assert run("ckpt", "diff", alone).returncode == NOT_FOUND
    assert run("ckpt", "diff", store, alone, "--with", "soon").returncode == USAGE
    assert run("ckpt", "diff", store, alone, alone).returncode == USAGE
    assert run("ckpt", "diff").returncode == USAGE
    # With another store it is the same number there.
    assert found(store, alone, "--step", 1)["same"] is True
    assert run("ckpt", "diff", store, alone).returncode == NOT_FOUND


def test_damage_is_not_a_difference(tmp_path: Path) -> None:
    store = make(tmp_path / "store", state_of(), state_of())
    shard = one(store, "g*/step-0000000001/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-3000] ^= 1
    shard.write_bytes(data)
    result = run("ckpt", "diff", store)
    assert (result.returncode, result.stdout) == (INTEGRITY, "")
    assert shard.name in result.stderr


@pytest.mark.parametrize("changed", [False, True])
def test_however_many_ranks_wrote_it(tmp_path: Path, changed: bool) -> None:
    w = np.arange(6000, dtype=np.float32).reshape(60, 100)
    other = w.copy()
    other[41, 3] += changed
    rows = [[Box("w", other, (slice(20 * i, 20 * i + 20),))] for i in range(3)]
    one_rank = write_store(tmp_path / "one", [[Box("w", w)]], alias="")
    three = write_store(tmp_path / "three", rows, alias="")
    said = found(one_rank, three)
    assert said["same"] is not changed
    if changed:
        assert [(d["first"], d["differing"]) for d in said["differing"]] == [(4103, 1)]


def test_larger_than_a_batch(tmp_path: Path) -> None:
    """Tensors in several batches, and one in rows that fall into two."""
    a = {f"t{i}": torch.arange(BIG, dtype=torch.int32).reshape(70, -1) for i in range(5)}
    b = {name: t.clone() for name, t in a.items()}
    for i in range(5):
        b[f"t{i}"].view(-1)[BIG - 1 - i] = -1
        b[f"t{i}"].view(-1)[i] = -1
    store = make(tmp_path / "store", a, b)
    differing = found(store)["differing"]
    assert sorted((d["first"], d["differing"], d["elements"]) for d in differing) == [
        (i, 2, BIG) for i in range(5)
    ]


def test_a_copy_in_a_bucket(tmp_path: Path) -> None:
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    server = Server()
    try:
        bucket = Bucket(server, tmp_path)
        store = make(tmp_path / "store", state_of(), state_of(x=torch.ones(3)))
        bucket.good("ckpt", "upload", store, "s3://bkt/run")
        assert json.loads(bucket.good("ckpt", "diff", store, "s3://bkt/run", "--json"))["same"]
        assert bucket.run("ckpt", "diff", "s3://bkt/run", store, "--with", "1").returncode == DIFFER
        shutil.rmtree(store)
        said = json.loads(bucket.run("ckpt", "diff", "s3://bkt/run", "--json").stdout)
        assert [n.rsplit("/")[-1] for n in said["only_second"]] == ["x"]
    finally:
        server.stop()
