# SPDX-License-Identifier: Apache-2.0
"""A server for each test that wants one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ceph import MANY
from s3_programs import Bucket, save
from s3_server import Radosgw, Server, make_certificate


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


# Ceph's gateway, for the tests that skip where it is not installed.


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Radosgw]:
    with Radosgw(tmp_path_factory.mktemp("ceph") / "c") as gateway:
        assert gateway.ask("PUT", "").status == 200
        yield gateway


@pytest.fixture
def bucket(gateway: Radosgw, tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(gateway, tmp_path)
    yield bucket
    bucket.end()


@pytest.fixture
def told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """This process is told of the server, too; failures are seen by the uploader, not its client alone."""
    bucket.settings["AWS_MAX_ATTEMPTS"] = "2"
    for name, value in bucket.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A place of this test's own."""
    return "s3://bkt/" + "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("large") / "run", MANY, 7)
