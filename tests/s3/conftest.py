# SPDX-License-Identifier: Apache-2.0
"""A server for each test that wants one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import Server, make_certificate


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers; each must have ended well, with nothing left behind."""
    made: list[Server] = []

    def start(*options: object, **more: Any) -> Server:
        made.append(Server(*options, **more))
        return made[-1]

    yield start
    for server in made:
        if server.process.poll() is None:
            assert server.stop() == 0


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))
