# SPDX-License-Identifier: Apache-2.0
"""A step that is damaged here is repaired from a bucket, and what that asks of the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from outage import SETTINGS, URL
from s3_server import S3D, Server

import libckpt

MIB = 1 << 20
SIZE = 24 * MIB  # several blocks, and several parts of an upload


class Two:
    """A training of two steps, which are here and in the bucket; its newest shard."""

    def __init__(self, store: Path, server: Server) -> None:
        self.store, self.server = store, server
        state = {"x": torch.arange(SIZE // 8)}
        with libckpt.Checkpointer(store, state, remote=URL, pool_bytes=32 * MIB) as ckpt:
            ckpt.save(1).wait("local")
            state["x"] += 1
            ckpt.save(2).wait("remote", timeout=120)
        self.expected = state["x"]
        self.key = "run/" + str(self.shard.relative_to(store))
        self.good = self.shard.read_bytes()

    @property
    def shard(self) -> Path:
        """A repair names it anew."""
        (shard,) = self.store.glob("*/step-0000000002/*.safetensors")
        return shard

    def flip(self, *offsets: int) -> None:
        with self.shard.open("r+b") as file:
            for offset in offsets:
                file.seek(offset)
                file.write(bytes([self.good[offset] ^ 1]))

    def flip_there(self, offset: int) -> None:
        body = bytearray(self.good)
        body[offset] ^= 1
        assert self.server.ask("PUT", self.key, bytes(body)).status == 200

    def resume(self) -> tuple[int, int]:
        """The step, and how often something of the newest shard was asked of the bucket for it."""
        since = len(self.server.journal())
        state = {"x": torch.zeros(SIZE // 8, dtype=torch.int64)}
        with libckpt.Checkpointer(self.store, state, remote=URL, pool_bytes=32 * MIB) as ckpt:
            found = ckpt.resume()
        assert torch.equal(state["x"], self.expected - int(found == 1))
        return found, sum(
            e["kind"] == "answered" and e["operation"] == "GetObject" and e["key"] == self.key
            for e in self.server.journal()[since:]
        )


@pytest.fixture
def two(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Two:
    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL_S3": server.endpoint}.items():
        monkeypatch.setenv(name, value)
    return Two(tmp_path / "store", server)


pytestmark = pytest.mark.skipif(not S3D.exists(), reason="a library built without S3")


def test_a_bad_byte(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    """Its chunk is asked for, and nothing else; what is said of it is not what to do instead."""
    two.flip(10 * MIB + 100_000)
    step, asked = two.resume()
    assert step == 2
    assert 1 <= asked <= 2
    assert two.shard.read_bytes() == two.good
    assert "is whole again, with 1 chunk (1.0 MiB) from s3://bkt/run: restore it" in caplog.text
    assert "put the file back" not in caplog.text
    assert two.resume() == (2, 0)


def test_bad_bytes_of_one_block(two: Two) -> None:
    """Chunks side by side are one request."""
    two.flip(10 * MIB + 100_000, 11 * MIB + 100_000, 12 * MIB + 100_000, 20 * MIB)
    step, asked = two.resume()
    assert step == 2
    assert 2 <= asked <= 4
    assert two.shard.read_bytes() == two.good


def test_damage_on_both_sides(two: Two) -> None:
    two.flip(10 * MIB)
    two.flip_there(15 * MIB)
    step, asked = two.resume()
    assert step == 2
    assert 1 <= asked <= 2
    assert two.shard.read_bytes() == two.good
    assert [f for f in libckpt.list_steps(two.store) if f.state != "committed"] == []


def test_nobody_has_it(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    two.flip(10 * MIB)
    two.flip_there(10 * MIB + 1)
    with pytest.warns(libckpt.CheckpointWarning, match="passed over for the next older one"):
        assert two.resume()[0] == 1
    assert "cannot be repaired from s3://bkt/run" in caplog.text
    assert two.shard.read_bytes() != two.good
