# SPDX-License-Identifier: Apache-2.0
"""The programs, with a server of this project's own and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_programs import Bucket, Nowhere, has_s3
from s3_server import S3D, Server


@pytest.fixture
def here(tmp_path: Path) -> Bucket:
    """The programs, and no server."""
    return Bucket(Nowhere(), tmp_path)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Bucket]]:
    """Starts servers; each must have ended well."""
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    made: list[Server] = []

    def start(*options: object, **more: Any) -> Bucket:
        made.append(Server(*options, **more))
        return Bucket(made[-1], tmp_path)

    yield start
    for server in made:
        if server.process.poll() is None:
            assert server.stop() == 0


@pytest.fixture
def bucket(serve: Callable[..., Bucket]) -> Bucket:
    return serve()
