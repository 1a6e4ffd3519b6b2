# SPDX-License-Identifier: Apache-2.0
"""A server without TLS behind a proxy, which is given whole URLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from proxy import Proxy, serving
from s3_programs import NETWORK, Bucket, same, save

URL = "s3://bkt/run"


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with serving() as proxy:
        bucket.settings |= {"no_proxy": None, "NO_PROXY": None, "AWS_MAX_ATTEMPTS": "1"}
        bucket.settings["http_proxy"] = f"http://127.0.0.1:{proxy.port}"
        yield proxy


def test_there_and_back(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    parts = {"x": torch.arange(5 << 20, dtype=torch.float32)}  # 20 MiB: three parts
    store = save(tmp_path / "store", parts, 1)
    bucket.good("ckpt", "upload", store, URL)
    assert bucket.applied("UploadPart", ".*") == 3
    bucket.good("ckpt-restore", URL, tmp_path / "back")
    same(tmp_path / "back", store, 1)
    assert len(proxy.asked) > 10
    assert all(f" {bucket.server.endpoint}/" in head for head in proxy.asked)
    # Some hosts are asked without it.
    count = len(proxy.asked)
    bucket.good("ckpt-verify", URL, no_proxy="127.0.0.1")
    assert len(proxy.asked) == count
    # It is not passed by if it is away.
    assert bucket.run("ckpt", "ls", URL, http_proxy="http://127.0.0.1:1").returncode == NETWORK
