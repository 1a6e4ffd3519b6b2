# SPDX-License-Identifier: Apache-2.0
"""The programs on the store of one node of several: they list the ranks of other nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_consolidate import (
    INCOMPLETE,
    INTEGRITY,
    OK,
    RUN,
    Box,
    run,
    write_sealed,
    write_store,
)

W = np.arange(4000, dtype=np.float32).reshape(40, 100)
SAME = np.linspace(0, 1, 99)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of node-0 and node-1, a rank on each: half of `w`, and all of `same`. All files are here."""
    ranks = [
        [Box("w", W, (slice(0, 20),)), Box("same", SAME)],
        [Box("w", W, (slice(20, 40),)), Box("same", SAME)],
    ]
    path = write_store(tmp_path / "run", ranks, alias="")
    write_sealed(path / "ckpt.json", "store", {"run_id": RUN, "scope": "node", "wall_ms": 1})
    return path


def take_away(store: Path, rank: int) -> None:
    for path in store.glob(f"g*/*/rank-{rank:05}.*"):
        path.unlink()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("rank", [0, 1])
def test_verify(store: Path, rank: int) -> None:
    take_away(store, rank)
    result = run("ckpt-verify", store)
    assert (result.returncode, result.stderr) == (OK, "")
    assert f"step 10: other node: rank {rank} on node node-{rank}\n" in result.stdout
    assert f"step 10: rank {1 - rank} is good" in result.stdout
    assert "1 step, 1 rank on other nodes, " in result.stdout
    assert result.stdout.endswith("read: all good in this store\n")
    *said, summary = lines(run("ckpt-verify", store, "--json").stdout)
    assert {line["type"]: line["rank"] for line in said} == {"other_node": rank, "good": 1 - rank}
    assert [line["node"] for line in said if line["type"] == "other_node"] == [f"node-{rank}"]
    assert (summary["other_node"], summary["findings"], summary["exit"]) == (1, 0, OK)
    assert run("ckpt-verify", store, "-q").stdout == ""


def test_verify_says_what_is_wrong_here(store: Path) -> None:
    take_away(store, 0)
    (shard,) = store.glob("g*/*/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    *said, summary = lines(run("ckpt-verify", store, "--json").stdout)
    assert [line["type"] for line in said] == ["other_node", "finding"]
    assert (summary["other_node"], summary["findings"], summary["exit"]) == (1, 1, INTEGRITY)
    # Its own shard is missing: it is not on another node.
    shard.unlink()
    result = run("ckpt-verify", store)
    assert result.returncode == INCOMPLETE
    assert "is not in" in result.stdout
    assert "NOT good" in result.stdout


def test_nothing_is_here(store: Path, tmp_path: Path) -> None:
    take_away(store, 0)
    take_away(store, 1)
    result = run("ckpt-verify", store)
    assert result.returncode == INCOMPLETE
    assert "other node: rank 0 on node node-0" in result.stdout
    assert "nothing was verified: no rank of the step has its files here" in result.stdout
    *said, summary = lines(run("ckpt-verify", store, "--json").stdout)
    assert [line["type"] for line in said] == ["other_node", "other_node", "finding"]
    assert summary["exit"] == INCOMPLETE
    for command in (["ckpt", "show", store], ["ckpt-restore", store, tmp_path / "out"]):
        result = run(*command)
        assert result.returncode == INCOMPLETE
        assert "which rank 0 wrote on node node-0; start the job there" in result.stderr


def test_a_store_of_all_misses_them(store: Path) -> None:
    write_sealed(store / "ckpt.json", "store", {"run_id": RUN, "scope": "shared", "wall_ms": 1})
    take_away(store, 1)
    result = run("ckpt-verify", store)
    assert result.returncode == INCOMPLETE
    assert "other node" not in result.stdout


def test_show(store: Path) -> None:
    take_away(store, 0)
    result = run("ckpt", "show", store)
    assert result.returncode == OK, result.stderr
    assert result.stdout.endswith("other node: rank 0 on node node-0\n")
    found = json.loads(run("ckpt", "show", store, "--json").stdout)
    assert found["other_node"] == [{"rank": 0, "node": "node-0"}]
    assert [(t["name"], t["rank"]) for t in found["tensors"]] == [("same", 1), ("w", 1)]
    assert "other node" not in run("ckpt", "show", store, "-q").stdout


@pytest.mark.parametrize("how", [[], ["--consolidate"], ["--world-size", 1, "--rank", 0]])
def test_restore_wants_all_of_it(store: Path, tmp_path: Path, how: list[object]) -> None:
    whole = shutil.copytree(store, tmp_path / "whole")
    take_away(store, 1)
    result = run("ckpt-restore", store, tmp_path / "out", *how)
    assert result.returncode == INCOMPLETE
    assert "the files of rank 1 of step 10 are in the store of node node-1" in result.stderr
    assert "or copy that node's files of the step into" in result.stderr
    assert not list((tmp_path / "out").glob("*"))
    # As it says: the other node's files, and it is whole.
    for path in whole.glob("g*/*/rank-00001.*"):
        shutil.copy(path, store / path.relative_to(whole))
    assert run("ckpt-restore", store, tmp_path / "out", *how).returncode == OK
