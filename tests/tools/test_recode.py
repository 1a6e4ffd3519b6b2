# SPDX-License-Identifier: Apache-2.0
"""ckpt recode, ckpt upload --encoding: another form, in another place; the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from s3_programs import INTEGRITY, OK, USAGE, Bucket, files_of
from s3_server import make_certificate
from waiting import ended, until

from libckpt import Checkpointer

pytestmark = pytest.mark.waits  # for servers

URL = "s3://bkt/run"
IN_USE = 11


def save(path: Path, *steps: int, encoding: Any = "plain", floats: int = 300_000) -> Path:
    """Of what gets smaller, and what does not."""
    generator = torch.Generator().manual_seed(5)
    state = {
        "weight": torch.randn(floats, generator=generator) * 0.02,
        "noise": torch.randint(0, 256, (floats,), dtype=torch.uint8, generator=generator),
        "zeros": torch.zeros(54_321),
    }
    with Checkpointer(path, state, encoding=encoding, pool_bytes=32 << 20) as ckpt:
        for step in steps:
            ckpt.save(step).wait("local")
    return path


def forms(store: Path) -> list[str]:
    return sorted(p.suffix for p in store.glob("g*/step-*/rank-*"))


def contents(store: Path) -> dict[str, bytes]:
    """Files by their names without attempts."""
    return {
        re.sub(r"rank-(\d+)\.[0-9a-f]{16}\.", r"rank-\1.", name): data
        for name, data in files_of(store).items()
    }


def test_there_and_back(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", 1, 2)
    before = contents(store)
    said = json.loads(here.good("ckpt", "recode", store, "--encoding", "compact", "--json"))
    assert (said["type"], said["encoding"]) == ("recoded", "compact")
    assert [(s["step"], s["ranks"]) for s in said["steps"]] == [(1, 1), (2, 1)]
    assert said["bytes_after"] < said["bytes_before"] * 0.95
    assert forms(store) == [".encoded"] * 2 + [".index"] * 2
    here.good("ckpt-verify", store)
    here.good("ckpt", "recode", store, "--encoding", "plain", "--step", "latest", "-q")
    assert forms(store) == [".encoded"] + [".index"] * 2 + [".safetensors"]
    out = here.good("ckpt", "recode", store, "--encoding", "plain")
    assert "step 2 is plain already" in out and "step 1 is plain now" in out
    after = contents(store)
    assert {k: v for k, v in after.items() if "remote" not in k} == before
    here.good("ckpt-verify", store)


def test_misused(here: Bucket, tmp_path: Path) -> None:
    assert here.run("ckpt", "recode", tmp_path).returncode == USAGE
    assert here.run("ckpt", "recode", tmp_path, "--encoding", "zip").returncode == USAGE
    assert here.run("ckpt", "ls", tmp_path, "--encoding", "plain").returncode == USAGE


def test_a_job_that_runs(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", 1)
    with Checkpointer(store, {"x": torch.zeros(3)}):
        result = here.run("ckpt", "recode", store, "--encoding", "compact")
    assert result.returncode == IN_USE, result
    assert ".encoded" not in forms(store)


def test_a_damaged_step_stays(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", 1, 2)
    (shard,) = store.glob("g*/step-0000000001/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[200_000] ^= 1
    shard.write_bytes(data)
    result = here.run("ckpt", "recode", store, "--encoding", "compact")
    assert result.returncode == INTEGRITY, result
    assert "weight" in result.stderr and "step 2 is compact now" in result.stdout
    assert shard.read_bytes() == data
    assert len(list(store.glob("g*/step-0000000001/*"))) == 3


def test_killed(here: Bucket, tmp_path: Path) -> None:
    """At some moment or other; the step is whole, and the next one ends it."""
    store = save(tmp_path / "store", 1, floats=3_000_000)
    whole = contents(save(tmp_path / "other", 1, floats=3_000_000))
    for seen in (".encoded", ".safetensors"):
        encoding = "compact" if seen == ".encoded" else "plain"
        process = here.start("ckpt", "recode", store, "--encoding", encoding)
        until(lambda seen=seen: seen in forms(store))
        process.send_signal(signal.SIGKILL)
        ended(process)
        here.good("ckpt-verify", store)
        here.good("ckpt", "recode", store, "--encoding", encoding)
        assert forms(store) == sorted([".index", seen])
    shard = "g000001/step-0000000001/rank-00000.safetensors"
    assert contents(store)[shard] == whole[shard]


@pytest.mark.parametrize("tls", [True, False])
def test_an_upload_that_is_killed(serve: Callable[..., Bucket], tmp_path: Path, tls: bool) -> None:
    """
    Compact there and plain here. The next upload sends again only what the server cannot say to be the same, and
    what comes back is the plain file, to the byte.
    """
    bucket = serve(tls=make_certificate(tmp_path)) if tls else serve()
    store = save(tmp_path / "store", 1, floats=6_000_000)
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "part": 3})
    process = bucket.start("ckpt", "upload", store, URL, "--encoding", "compact")
    until(lambda: bucket.applied("UploadPart", ".*encoded") >= 2)
    process.send_signal(signal.SIGKILL)
    ended(process)
    bucket.server.rules()
    sent = bucket.applied("UploadPart", ".*encoded")
    bucket.good("ckpt", "upload", store, URL, "--encoding", "compact")
    again = bucket.applied("UploadPart", ".*encoded") - sent
    parts = max(int(e["part"]) for e in bucket.server.journal() if e["operation"] == "UploadPart")
    assert again == (parts - sent if tls else parts)
    assert bucket.applied("CreateMultipartUpload", ".*") == 1
    (there,) = [name for name in bucket.names() if "rank-" in name and ".index" not in name]
    assert there.endswith(".encoded")
    assert ".encoded" not in forms(store)
    bucket.good("ckpt-verify", URL)
    bucket.good("ckpt-restore", URL, tmp_path / "plain", "--plain")
    assert (
        contents(tmp_path / "plain").items()
        >= {k: v for k, v in contents(store).items() if "rank-" in k}.items()
    )


def test_plain_there(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", 1, encoding="compact")
    plain = save(tmp_path / "plain", 1)
    bucket.good("ckpt", "upload", store, URL, "--encoding", "plain")
    (name,) = [name for name in bucket.names() if name.endswith(".safetensors")]
    shard = bucket.server.ask("GET", name).body
    assert shard == next(plain.glob("g*/step-*/*.safetensors")).read_bytes()
    bucket.good("ckpt-verify", URL)


def test_a_job_goes_on_from_there(bucket: Bucket, tmp_path: Path) -> None:
    """Its machine is lost, with a step that was stored anew before it was sent."""
    store = save(tmp_path / "store", 1, 2)
    bucket.good("ckpt", "recode", store, "--encoding", "compact", "--step", 2)
    bucket.good("ckpt", "upload", store, URL, "--encoding", "compact")
    assert sum(name.endswith(".encoded") for name in bucket.names()) == 2
    shutil.rmtree(store)
    assert bucket.run("ckpt-restore", URL, store).returncode == OK
    bucket.good("ckpt-verify", store)
