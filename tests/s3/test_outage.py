# SPDX-License-Identifier: Apache-2.0
"""The server is away in the middle of a hundred saves: none is lost, the backlog drains, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from outage import SETTINGS, suffer
from s3_server import S3D


@pytest.mark.waits
@pytest.mark.parametrize("way", ["dies", "hangs"])
def test_a_hundred_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if not S3D.exists():
        pytest.skip("a library built without S3")
    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL_S3": ""}.items():
        monkeypatch.setenv(name, value)
    # A save that waited for the server would do so for ever: it comes back after them.
    suffer(tmp_path, way, 0)
