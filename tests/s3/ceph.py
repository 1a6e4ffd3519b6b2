# SPDX-License-Identifier: Apache-2.0
"""Ceph's gateway as the tests see it: what is in it, and what it was asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
import waiting
from s3_programs import OK, Bucket, same
from s3_server import Radosgw

MANY = {"x": torch.arange(32 << 20, dtype=torch.float32)}  # 128 MiB and a header: seventeen parts


def key(url: str) -> str:
    return url.removeprefix("s3://bkt/") + "/"


def names(gateway: Radosgw, url: str) -> list[str]:
    return gateway.ask("GET", "", query={"list-type": "2", "prefix": key(url)}).texts("Key")


def uploads(gateway: Radosgw, url: str) -> list[tuple[str, str]]:
    said = gateway.ask("GET", "", query={"uploads": "", "prefix": key(url)})
    return list(zip(said.texts("Key"), said.texts("UploadId"), strict=True))


def parts(gateway: Radosgw, url: str) -> int:
    """Of all uploads below it: those that the gateway has."""
    listed = [gateway.ask("GET", k, query={"uploadId": u}) for k, u in uploads(gateway, url)]
    return sum(len(answer.texts("PartNumber")) for answer in listed)


def ended(process: subprocess.Popen[str]) -> None:
    _, err = waiting.ended(process)
    assert process.returncode == OK, err
    assert err == ""


def check_copy(bucket: Bucket, url: str, store: Path, step: int) -> None:
    assert "all good" in bucket.good("ckpt-verify", url)
    bucket.good("ckpt-restore", url, bucket.home / "copy")
    same(bucket.home / "copy", store, step)


def settled(gateway: Radosgw) -> bool:
    """Every request that the gateway has begun, since it was started, has ended."""
    log = (gateway.folder / "log/client.rgw.a.log").read_text()
    log = log.rpartition("starting handler: beast")[2]
    return log.count("starting new request") == log.count("req done")
