# SPDX-License-Identifier: Apache-2.0
"""OpenStack's Swift with its interface of S3, which refuses conditional writes: what is done instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from s3_programs import AUTH, FAILED, NOT_FOUND, OK, Bucket, has_s3, same, save
from s3_server import Swift

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Swift.installed(), reason="Swift is not installed"),
    pytest.mark.skipif(not has_s3(), reason="a library built without S3"),
]

WARNING = "this server ignores If-None-Match"
URL = "s3://bkt/run"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with Swift(tmp_path / "swift") as swift:
        assert swift.ask("PUT", "").status == 200
        yield Bucket(swift, tmp_path)


def names(bucket: Bucket) -> list[str]:
    return bucket.server.ask("GET", "", query={"list-type": "2"}).texts("Key")


def test_without_conditions(bucket: Bucket, tmp_path: Path) -> None:
    """Said once for each copy; what is there is looked at first, and is never written over."""
    state = {"x": torch.arange(5 << 20, dtype=torch.float32), "b": torch.ones(3)}  # three parts
    store = save(tmp_path / "store", state, 7)
    assert bucket.server.ask("PUT", "a", b"x", {"If-None-Match": "*"}).status == 501
    result = bucket.run("ckpt-restore", store, URL)
    assert result.returncode == OK, result
    assert result.stderr.count(WARNING) == 1
    assert result.stderr.count("\n") == 1
    assert not [name for name in names(bucket) if ".tmp-" in name]
    assert "all good" in bucket.good("ckpt-verify", URL)
    bucket.good("ckpt-restore", URL, tmp_path / "out")
    same(tmp_path / "out", store, 7)
    assert bucket.server.ask("GET", "", query={"uploads": ""}).texts("UploadId") == []
    before = names(bucket)
    result = bucket.run("ckpt-restore", store, URL)
    assert result.returncode == OK, result
    assert "already" in result.stdout
    result = bucket.run("ckpt-restore", save(tmp_path / "other", {"y": torch.ones(9)}, 7), URL)
    assert result.returncode == FAILED
    assert "another run" in result.stderr
    assert names(bucket) == before
    assert "all good" in bucket.good("ckpt-verify", URL)
    assert bucket.run("ckpt", "ls", "s3://nobodys/run").returncode == NOT_FOUND
    result = bucket.run("ckpt", "ls", URL, AWS_SECRET_ACCESS_KEY="not-it-at-all")
    assert result.returncode == AUTH
    assert "SignatureDoesNotMatch" in result.stderr
