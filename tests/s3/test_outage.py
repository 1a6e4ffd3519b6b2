# SPDX-License-Identifier: Apache-2.0
"""The server is away in the middle of a hundred saves: none is lost, the backlog drains, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from outage import BACK, GONE, SETTINGS, suffer
from s3_server import S3D


@pytest.mark.parametrize("way", ["dies", "hangs"])
def test_a_hundred_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if not S3D.exists():
        pytest.skip("a library built without S3")
    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL_S3": ""}.items():
        monkeypatch.setenv(name, value)
    training = suffer(tmp_path, way, 0)
    # A noisy machine, and a promise that can fail: waiting for the server would be seconds.
    assert training.stall(GONE + 1, BACK) < 3 * training.stall(1, GONE) + 0.01
