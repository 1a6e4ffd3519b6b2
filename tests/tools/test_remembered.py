# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a store go, as it remembers: ckpt ls tells, ckpt upload goes on, and no secret is in it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import libckpt

# Not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "s3"))

from s3_programs import (  # noqa: E402
    FAILED,
    NOT_FOUND,
    OK,
    USAGE,
    Bucket,
    Nowhere,
    files_of,
    has_s3,
    save,
)
from s3_server import S3D, Server  # noqa: E402

pytestmark = pytest.mark.waits  # for servers and for time limits

STATE = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}


@pytest.fixture
def here(tmp_path: Path) -> Bucket:
    """The programs, and no server."""
    return Bucket(Nowhere(), tmp_path)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    server = Server()
    try:
        yield Bucket(server, tmp_path)
    finally:
        server.stop()


def train(store: Path, remote: str, *steps: int, **options: Any) -> None:
    with libckpt.Checkpointer(str(store), state=dict(STATE), remote=remote, **options) as ckpt:
        ckpt.resume()
        for step in steps:
            ckpt.save(step).wait("local", timeout=180)


def ls(here: Bucket, store: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(here.good("ckpt", "ls", store, "--json"))
    return said


def remotes(said: dict[str, Any]) -> dict[int, str]:
    return {step["step"]: step["remote"] for step in said["steps"]}


def test_a_directory(here: Bucket, tmp_path: Path) -> None:
    store, remote = tmp_path / "store", tmp_path / "rem ote"
    train(store, str(remote), 1, 2, 3, remote_every=2)
    said = ls(here, store)
    assert remotes(said) == {1: "excluded", 2: "uploaded", 3: "excluded"}
    about = said["remote"]
    assert about["url"] == f"file://{tmp_path}/rem%20ote"
    assert (about["every"], about["generation"], about["failure"]) == (2, 1, None)
    assert about["waiting"] == {"steps": 0, "bytes": 0}
    assert about["newest"]["step"] == 2 and about["wall_ms"] > 0
    assert {info.step: info.remote for info in libckpt.list_steps(store)} == remotes(said)
    text = here.good("ckpt", "ls", store)
    assert "newest step 2, " in text and "; 0 pending (0 B)" in text
    assert "  recorded by generation 1 on " in text
    rows = {line.split()[0]: line.split()[-1] for line in text.splitlines()[-3:]}
    assert rows == {"1": "-", "2": "yes", "3": "-"}

    # What was saved without it: nobody knows. `ckpt upload` goes on where the job sent its steps.
    save_more(store, 4, 5)
    assert remotes(ls(here, store)) == {1: "excluded", 2: "uploaded", 3: "excluded", 4: "unknown", 5: "excluded"}
    said = json.loads(here.good("ckpt", "upload", store, "--json"))
    assert (said["steps"], said["step"], said["remote"]) == (2, 4, about["url"])
    assert [info.step for info in libckpt.list_steps(remote)] == [4, 2]
    assert remotes(ls(here, store))[4] == "uploaded"
    assert "as recorded by the job" in here.good("ckpt", "upload", store)


def save_more(store: Path, *steps: int) -> None:
    with libckpt.Checkpointer(str(store), state=dict(STATE)) as ckpt:
        ckpt.resume()
        for step in steps:
            ckpt.save(step).wait("local", timeout=180)


def test_no_remote(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", STATE, 1)
    assert ls(here, store)["remote"] is None
    assert "REMOTE" not in here.good("ckpt", "ls", store)
    result = here.run("ckpt", "upload", store)
    assert result.returncode == USAGE and "name it (ckpt upload STORE REMOTE)" in result.stderr
    assert libckpt.list_steps(store)[0].remote == "unknown"


def test_another_place_once(here: Bucket, tmp_path: Path) -> None:
    """A copy that somebody makes elsewhere does not say where the job's steps go."""
    store = tmp_path / "store"
    train(store, str(tmp_path / "remote"), 1)
    here.good("ckpt", "upload", store, f"file://{tmp_path}/copy")
    assert ls(here, store)["remote"]["url"] == f"file://{tmp_path}/remote"


def test_a_directory_that_is_gone(here: Bucket, tmp_path: Path) -> None:
    """It is not mounted, or somebody has written what is no remote store: nothing is made there."""
    store = tmp_path / "store"
    train(store, str(tmp_path / "remote"), 1)
    shutil.rmtree(tmp_path / "remote")
    result = here.run("ckpt", "upload", store)
    assert result.returncode == NOT_FOUND and "remote" in result.stderr
    assert not (tmp_path / "remote").exists()
    (tmp_path / "remote").mkdir()
    assert here.run("ckpt", "upload", store).returncode == NOT_FOUND
    assert not list((tmp_path / "remote").iterdir())


def test_damaged(here: Bucket, tmp_path: Path) -> None:
    """It harms nothing, and is written anew."""
    store = tmp_path / "store"
    train(store, str(tmp_path / "remote"), 1)
    (record,) = store.glob("remote-*.json")
    for content in (
        b"",
        b"\0" * 5000,
        record.read_bytes().replace(b"remote", b"REMOTE"),
        b"x" * (2 << 20),
    ):
        record.write_bytes(content)
        assert set(ls(here, store)["remote"]) == {"error"}
        assert "cannot be read" in here.good("ckpt", "ls", store)
        here.good("ckpt-verify", store)
        assert here.run("ckpt", "upload", store).returncode not in (OK, USAGE)
    train(store, str(tmp_path / "remote"), 2)
    assert remotes(ls(here, store)) == {1: "uploaded", 2: "uploaded"}
    assert len(list(store.glob("remote-*"))) == 1


def test_a_bucket_that_does_not_answer(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits, since when and why; then the server is back, and `ckpt upload` ends it."""
    for name, value in bucket.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = tmp_path / "store"
    url = "s3://bkt/run"
    train(store, url, 1)
    bucket.server.rules({"do": "answer", "status": 403, "code": "AccessDenied"})
    train(store, url, 2, 3, drain_timeout=2)
    said = ls(bucket, store)
    assert remotes(said) == {1: "uploaded", 2: "pending", 3: "pending"}
    sizes = {step["step"]: step["bytes"] for step in said["steps"]}
    assert said["remote"]["waiting"] == {"steps": 2, "bytes": sizes[2] + sizes[3]}
    failure = said["remote"]["failure"]
    assert "AccessDenied" in failure["message"] and failure["tries"] >= 1
    assert failure["since_ms"] <= said["remote"]["wall_ms"]
    assert failure["since_ms"] < failure["next_ms"]  # which may be due when the record is written
    text = bucket.good("ckpt", "ls", store)
    assert "uploads have failed for " in text and "AccessDenied" in text, text
    assert text.count("  pending") == 2
    bucket.server.rules()
    assert "3 steps are in s3://bkt/run" in bucket.good("ckpt", "upload", store)
    said = ls(bucket, store)
    assert set(remotes(said).values()) == {"uploaded"}
    assert (said["remote"]["failure"], said["remote"]["waiting"]["steps"]) == (None, 0)

    # Nothing of what was signed with is in any file of either store.
    for content in files_of(store).values():
        assert bucket.server.secret.encode() not in content
        assert bucket.server.access.encode() not in content


def test_a_refusal(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ckpt upload` gives up: nothing that it did not send is said to be there, by a later process neither."""
    for name, value in bucket.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = tmp_path / "store"
    train(store, "s3://bkt/run", 1)
    save_more(store, 2, 3)
    bucket.server.rules({"do": "answer", "status": 403, "code": "AccessDenied"})
    for _ in range(2):
        assert bucket.run("ckpt", "upload", store).returncode not in (OK, USAGE)
        said = remotes(ls(bucket, store))
        assert said[1] == "uploaded" and {said[2], said[3]} <= {"pending", "unknown"}, said
    bucket.server.rules()
    bucket.good("ckpt", "upload", store)
    assert set(remotes(ls(bucket, store)).values()) == {"uploaded"}


def test_another_run(here: Bucket, tmp_path: Path) -> None:
    """What is there is not this one's: the job gives up, and goes on without it."""
    save(tmp_path / "remote", STATE, 1)
    store = save(tmp_path / "store", STATE, 1)
    for step in (2, 3):
        train(store, str(tmp_path / "remote"), step)
        said = ls(here, store)
        assert set(remotes(said).values()) == {"pending"}, said
        failure = said["remote"]["failure"]
        assert failure["next_ms"] == 0 and "run" in failure["message"], failure
        assert said["remote"]["waiting"]["steps"] == len(said["steps"]) == step
        assert {info.remote for info in libckpt.list_steps(store)} == {"pending"}


def test_a_secret_is_not_taken(here: Bucket, tmp_path: Path) -> None:
    """Where a password might stand in a URL, there is no remote store, and nothing is written."""
    store = save(tmp_path / "store", STATE, 1)
    for url in ("s3://key:canary@bkt/run", "https://key:canary@host/run", "file:///r?canary=1"):
        result = here.run("ckpt", "upload", store, url)
        assert result.returncode in (FAILED, USAGE), result
    for content in files_of(store).values():
        assert b"canary" not in content
