# SPDX-License-Identifier: Apache-2.0
"""ckpt-restore --rank: the files of some ranks, which make a store that says that it has no others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_consolidate import (
    FAILED,
    INCOMPLETE,
    INTEGRITY,
    OK,
    RUN,
    TOOLS,
    USAGE,
    Box,
    run,
    write_sealed,
    write_store,
)

WORLD = 4
W = np.arange(4000, dtype=np.float32).reshape(40, 100)


@pytest.fixture(params=["one node", "a node each", "no names"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A quarter of `w` on each rank."""
    ranks = [[Box("w", W, (slice(10 * i, 10 * i + 10),))] for i in range(WORLD)]
    path = write_store(tmp_path / "run", ranks, alias="")
    manifest = path / "g000001" / "step-0000000010" / "manifest.json"
    members = json.loads(manifest.read_text())
    for rank in members["ranks"]:
        rank["node"] = {"one node": "n", "no names": ""}.get(request.param, rank["node"])
    kept = {k: v for k, v in members.items() if k not in ("format", "kind", "digest")}
    write_sealed(manifest, "manifest", kept)
    return path


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "out"


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def of_any(name: str) -> str:
    """The name of a rank's file without its attempt."""
    return re.sub(r"/(rank-\d+)\.[0-9a-f]{16}\.", r"/\1.", name)


def here(store: Path) -> list[int]:
    """Ranks whose files verify; the others are elsewhere."""
    result = run("ckpt-verify", store, "--json")
    assert result.returncode == OK, result.stdout + result.stderr
    *said, _ = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["type"] for line in said} <= {"good", "other_node"}
    assert len({line["rank"] for line in said}) == WORLD
    return [line["rank"] for line in said if line["type"] == "good"]


def same_files(store: Path, dest: Path, ranks: list[int]) -> None:
    """Those of the ranks, to the bit, and the rest of the store but its marker; nothing else."""
    wanted = {
        name: data
        for name, data in files(store).items()
        if "/rank-" not in name or int(name.split("/rank-")[1][:5]) in ranks
    }
    found = files(dest)
    assert json.loads(found.pop("ckpt.json"))["scope"] == "ranks"
    del wanted["ckpt.json"]
    assert found == wanted


def test_one_rank(store: Path, dest: Path) -> None:
    result = run("ckpt-restore", store, dest, "--rank", 2)
    assert (result.returncode, result.stderr) == (OK, "")
    assert f"step 10, rank 2 is in {dest} (" in result.stdout
    assert result.stdout.endswith(" verified)\n")
    same_files(store, dest, [2])
    assert here(dest) == [2]
    shown = json.loads(run("ckpt", "show", dest, "--json").stdout)
    assert [away["rank"] for away in shown["other_node"]] == [0, 1, 3]
    result = run("ckpt", "show", dest)
    assert (result.returncode, result.stderr) == (OK, "")


def test_more_are_added(store: Path, dest: Path) -> None:
    assert run("ckpt-restore", store, dest, "--rank", 3).returncode == OK
    assert run("ckpt-restore", store, dest, "--rank", 0, "-q").stdout == ""
    same_files(store, dest, [0, 3])
    result = run("ckpt-restore", store, dest, "--rank", "1-2", "--rank", 3, "--json")
    said = json.loads(result.stdout)
    assert (said["ranks"], said["existed"]) == ("1-2,3", False)
    same_files(store, dest, [0, 1, 2, 3])
    assert here(dest) == [0, 1, 2, 3]
    # All of them are here: it may be copied from as any other, and is one for all nodes there.
    whole = dest.with_name("whole")
    assert run("ckpt-restore", dest, whole).returncode == OK
    assert files(whole) == files(store)


def test_again(store: Path, dest: Path) -> None:
    assert run("ckpt-restore", store, dest, "--rank", "1-2").returncode == OK
    before = files(dest)
    result = run("ckpt-restore", store, dest, "--rank", 1)
    assert result.returncode == OK
    assert f"step 10, rank 1 is in {dest} already (" in result.stdout
    assert "not verified" in result.stdout
    assert json.loads(run("ckpt-restore", store, dest, "--rank", 2, "--json").stdout)["existed"]
    assert files(dest) == before


@pytest.mark.parametrize("what", ["safetensors", "index", "both"])
@pytest.mark.parametrize("how", ["gone", "short"])
def test_what_is_not_whole_is_copied_again(store: Path, dest: Path, what: str, how: str) -> None:
    assert run("ckpt-restore", store, dest, "--rank", "0-1").returncode == OK
    before = files(dest)
    for path in dest.glob("g*/*/rank-00001.*"):
        if what == "both" or what in path.name:
            path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-1])
    result = run("ckpt-restore", store, dest, "--rank", "0-1")
    assert (result.returncode, result.stderr) == (OK, "")
    assert "already" not in result.stdout
    # The new files have names of their own, and the old ones are gone.
    found = files(dest)
    assert len(found) == len(before)
    assert {of_any(name): data for name, data in found.items()} == {
        of_any(name): data for name, data in before.items()
    }


def test_all_of_it_into_one_of_some(store: Path, dest: Path) -> None:
    assert run("ckpt-restore", store, dest, "--rank", 1).returncode == OK
    result = run("ckpt-restore", store, dest)
    assert (result.returncode, result.stderr) == (OK, "")
    same_files(store, dest, [0, 1, 2, 3])


def test_a_rank_that_there_is_not(store: Path, dest: Path) -> None:
    result = run("ckpt-restore", store, dest, "--rank", "3-4")
    assert result.returncode == USAGE
    assert "there is no rank 4 in step 10 of " in result.stderr
    assert "4 ranks saved it, 0 to 3" in result.stderr
    assert not dest.exists() or files(dest) == {}


def test_a_store_of_whole_steps(store: Path, dest: Path) -> None:
    """What has the step has the rank; a manifest without the others' files is never put there."""
    assert run("ckpt-restore", store, dest).returncode == OK
    before = files(dest)
    result = run("ckpt-restore", store, dest, "--rank", 1)
    assert result.returncode == OK
    assert "already" in result.stdout
    assert files(dest) == before
    shutil.rmtree(dest / "g000001")
    before = files(dest)
    result = run("ckpt-restore", store, dest, "--rank", 1)
    assert result.returncode == FAILED
    assert "is a store of whole steps, and has no step 10" in result.stderr
    assert files(dest) == before


def test_out_of_one_that_has_not_all(store: Path, dest: Path) -> None:
    some, more = dest.with_name("some"), dest.with_name("more")
    assert run("ckpt-restore", store, some, "--rank", "0-1").returncode == OK
    assert run("ckpt-restore", some, dest, "--rank", 1).returncode == OK
    assert here(dest) == [1]
    for ranks in (["--rank", "1-2"], []):
        result = run("ckpt-restore", some, more, *ranks)
        assert result.returncode == INCOMPLETE
        assert "the files of rank 2 of step 10" in result.stderr
        assert "which has the files of 2 of 4 ranks" in result.stderr
        assert "ckpt-restore --rank 2" in result.stderr
        assert not more.exists() or files(more) == {}


def test_into_itself(store: Path, dest: Path) -> None:
    """What is bad there would be copied from where it is: what is good of it stays."""
    assert run("ckpt-restore", store, dest, "--rank", "0-1").returncode == OK
    same = dest.with_name("same")
    same.symlink_to(dest)
    result = run("ckpt-restore", dest, same, "--rank", "0-1")
    assert result.returncode == OK
    assert "already" in result.stdout
    (shard,) = dest.glob("g*/*/rank-00000.*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    (shard,) = dest.glob("g*/*/rank-00001.*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    before = files(dest)
    for into in (dest, same):
        result = run("ckpt-restore", dest, into, "--rank", "0-1")
        assert result.returncode == INCOMPLETE
        assert shard.name in result.stderr
        assert files(dest) == before


@pytest.mark.parametrize("damage", [False, True])
def test_a_quarantined_step(store: Path, dest: Path, damage: bool) -> None:
    """Whoever has put back what was bad is told of the note, which is his to remove."""
    assert run("ckpt-restore", store, dest, "--rank", "0-1").returncode == OK
    (step,) = dest.glob("g0*/step-*")
    note = {"generation": 1, "step": 10, "code": -10002, "reason": "r", "wall_ms": 1}
    write_sealed(step / "quarantine.json", "quarantine", note)
    for path in step.glob("rank-00001.*.safetensors") if damage else ():
        path.unlink()
    result = run("ckpt-restore", store, f"{dest}/", "--rank", "0-1")
    assert result.returncode == OK
    assert ("already" in result.stdout) == (not damage)
    assert result.stderr.startswith(f"ckpt-restore: {dest}/: step 10 is quarantined there")
    assert "g000001/step-0000000010/quarantine.json" in result.stderr
    (step / "quarantine.json").unlink()
    assert run("ckpt-restore", store, dest, "--rank", "0-1").stderr == ""


def test_a_failure_takes_back_what_is_not_whole(store: Path, dest: Path) -> None:
    """Of a step that was there what is whole stays; of another nothing does."""
    first = dest.with_name("first")
    assert run("ckpt-restore", store, dest, "--rank", 0).returncode == OK
    (shard,) = store.glob("g*/*/rank-00002.*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    assert run("ckpt-restore", store, dest, "--rank", "0-3").returncode == INTEGRITY
    assert here(dest) == [0, 1]
    same_files(store, dest, [0, 1])
    assert run("ckpt-restore", store, first, "--rank", "1-3").returncode == INTEGRITY
    assert not list(first.rglob("rank-*"))
    assert not list(first.rglob("manifest.json"))
    assert run("ckpt-restore", store, dest, "--rank", 3).returncode == OK
    assert here(dest) == [0, 1, 3]


def test_another_run(store: Path, dest: Path) -> None:
    dest.mkdir()
    other = {"run_id": RUN[::-1], "scope": "ranks", "wall_ms": 1}
    write_sealed(dest / "ckpt.json", "store", other)
    result = run("ckpt-restore", store, dest, "--rank", 1)
    assert result.returncode == FAILED
    assert "is the store of another run" in result.stderr


# A process counts as much as the one had that it was forked from: this one has little.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_the_same_again_and_again(store: Path, dest: Path) -> None:
    """Each rank is listed once."""
    ranks = ["--rank", "0-999999", "--rank", "999998-999999"] * 32
    arguments = [str(TOOLS / "ckpt-restore"), str(store), str(dest), *ranks]
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True
    )
    assert "there is no rank 999999 in step 10 of " in measured.stderr
    assert int(measured.stdout) < 128 << 10
    assert run("ckpt-restore", store, dest, "--rank", "2-3", "--rank", "1-2").returncode == OK
    assert here(dest) == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        ["--rank", "x"],
        ["--rank", "-1"],
        ["--rank", "2-1"],
        ["--rank", "1-"],
        ["--rank", "1-2-3"],
        ["--rank", "1", "--consolidate"],
        ["--rank", "1-2", "--world-size", "4"],
        ["--rank", "1", "--rank", "2", "--world-size", "4"],
        ["--rank", "1"] * 65,
    ],
    ids=lambda options: " ".join(options[:4]),
)
def test_usage(tmp_path: Path, options: list[str]) -> None:
    result = run("ckpt-restore", tmp_path, tmp_path / "out", *options)
    assert result.returncode == USAGE
    assert "usage: ckpt-restore" in result.stderr


def test_a_bucket_holds_whole_steps(tmp_path: Path) -> None:
    result = run("ckpt-restore", tmp_path, "s3://bucket/run", "--rank", 1)
    assert result.returncode == USAGE
    assert "a bucket holds whole steps" in result.stderr
