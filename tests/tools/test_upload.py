# SPDX-License-Identifier: Apache-2.0
"""ckpt upload: what is committed here and not there comes to be there, once, and nothing else does."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from forked import Forked
from s3_programs import (
    AUTH,
    FAILED,
    INTEGRITY,
    NETWORK,
    NOT_FOUND,
    OK,
    USAGE,
    Bucket,
    Nowhere,
    has_s3,
    same,
    save,
)  # fmt: skip
from waiting import ended, until

import libckpt

pytestmark = pytest.mark.waits  # for servers and for time limits

URL = "s3://bkt/run"
IN_USE = 11
SMALL = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}
PARTS = {"x": torch.arange(5 << 20, dtype=torch.float32), "b": torch.ones(3)}  # 20 MiB: three parts


def steps_of(store: Path) -> list[int]:
    return [info.step for info in libckpt.list_steps(str(store)) if info.state == "committed"]


def test_into_a_directory(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    remote = tmp_path / "remote"
    said = json.loads(here.good("ckpt", "upload", store, f"file://{remote}", "--json"))
    assert (said["type"], said["steps"], said["step"]) == ("uploaded", 3, 3)
    assert said["bytes"] > 3 * 20000
    for step in (1, 2, 3):
        same(remote, store, step)
    again = json.loads(here.good("ckpt", "upload", store, f"file://{remote}", "--json"))
    assert (again["steps"], again["bytes"]) == (3, 0)
    here.good("ckpt-verify", remote)


def test_the_bar_knows_where_it_ends(bucket: Bucket, tmp_path: Path) -> None:
    """What is on its way is counted once: the whole is the same from the beginning to the end."""
    store = save(tmp_path / "store", PARTS, 1, 2, 3)
    bucket.server.rules({"do": "delay", "operation": "UploadPart", "part": 2, "delay_ms": 700})
    result = bucket.run("ckpt", "upload", store, URL, "--progress", "always")
    assert result.returncode == OK, result
    wholes = set(re.findall(r" of ([0-9.]+ \w+)  ", result.stderr))
    assert wholes == {"60.0 MiB"}, result.stderr


def test_is_refused(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1)
    absent = tmp_path / "absent"
    remote = f"file://{tmp_path / 'remote'}"
    assert here.run("ckpt", "upload", absent, remote).returncode == NOT_FOUND
    assert not absent.exists() and not (tmp_path / "remote").exists()
    assert here.run("ckpt", "upload", store).returncode == USAGE
    assert here.run("ckpt", "upload", store, "ftp://somewhere").returncode == FAILED
    assert here.run("ckpt", "upload", store, f"file://{store}").returncode == FAILED
    stranger = save(tmp_path / "stranger", SMALL, 1)
    result = here.run("ckpt", "upload", store, f"file://{stranger}")
    assert result.returncode == FAILED and "another run" in result.stderr
    with libckpt.Checkpointer(str(store), state=dict(SMALL)) as live:
        live.resume()
        live.save(2).wait("local")
        assert here.run("ckpt", "upload", store, remote).returncode == IN_USE


def test_a_damaged_step_stays(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1, 2)
    (shard,) = store.glob("g000001/step-0000000001/*.safetensors")
    content = bytearray(shard.read_bytes())
    content[10000] ^= 1
    shard.write_bytes(content)
    result = here.run("ckpt", "upload", store, f"file://{tmp_path / 'remote'}")
    assert result.returncode == INTEGRITY and str(shard.name) in result.stderr
    assert steps_of(tmp_path / "remote") == [2]


def test_into_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", PARTS, 1, 2)
    bucket.good("ckpt", "upload", store, URL)
    bucket.good("ckpt-verify", URL)
    assert bucket.applied("UploadPart", ".*") == 6
    bucket.good("ckpt", "upload", store, URL)
    assert bucket.applied("UploadPart", ".*") == 6
    bucket.good("ckpt-restore", URL, tmp_path / "back")
    same(tmp_path / "back", store, 2)
    # The manifest is the last of each step.
    puts = [name for name in bucket.server.applied() if name.startswith("PutObject run/g0")]
    assert [name for name in puts if "manifest" in name] == puts[1::2], puts


def test_only_what_is_missing_is_sent(bucket: Bucket, tmp_path: Path) -> None:
    """Killed when some parts were there: those are not sent again, and no upload is left over."""
    store = save(tmp_path / "store", PARTS, 1)
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "part": 3})
    process = bucket.start("ckpt", "upload", store, URL)
    until(lambda: bucket.applied("UploadPart", ".*") >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    bucket.server.rules()
    before = bucket.applied("UploadPart", ".*")
    bucket.good("ckpt", "upload", store, URL)
    assert bucket.applied("CreateMultipartUpload", ".*") == 1
    assert bucket.applied("UploadPart", ".*") - before <= 1
    uploads = bucket.server.ask("GET", "", query={"uploads": ""})
    assert uploads.texts("UploadId") == []
    bucket.good("ckpt-verify", URL)


def test_two_at_once(bucket: Bucket, tmp_path: Path) -> None:
    """What one of them is at is completed by the other, and gone: it looks again, and it is all there."""
    store = save(tmp_path / "store", PARTS, 1)
    shutil.copytree(store, tmp_path / "copy")
    bucket.server.rules(
        {"do": "delay", "operation": "UploadPart", "part": 2, "times": 1, "delay_ms": 60_000}
    )
    late = bucket.start("ckpt", "upload", store, URL)
    until(lambda: bucket.applied("UploadPart", ".*") >= 2)
    bucket.good("ckpt", "upload", tmp_path / "copy", URL)
    assert late.poll() is None, "it was over before"
    out, err = ended(late)
    assert (late.returncode, err) == (OK, ""), (out, err)
    assert bucket.applied("PutObject", ".*manifest.json") == 1
    bucket.good("ckpt-verify", URL)


def test_ends_with_what_the_server_says(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1)
    result = bucket.run("ckpt", "upload", store, URL, AWS_SECRET_ACCESS_KEY="wrong")
    assert result.returncode == AUTH and "SignatureDoesNotMatch" in result.stderr, result
    bucket.server.kill()
    result = bucket.run("ckpt", "upload", store, URL, AWS_MAX_ATTEMPTS="2")
    assert result.returncode == NETWORK, result


def test_interrupted(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", PARTS, 1)
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "part": 2})
    process = bucket.start("ckpt", "upload", store, URL)
    until(lambda: bucket.applied("UploadPart", ".*") >= 1)
    process.send_signal(signal.SIGINT)
    assert ended(process) == ("", "ckpt upload: interrupted\n")
    assert process.returncode == 128 + signal.SIGINT
    bucket.server.rules()
    assert bucket.run("ckpt-verify", URL).returncode != OK
    bucket.good("ckpt", "upload", store, URL)
    bucket.good("ckpt-verify", URL)


def test_a_node_that_is_gone(here: Bucket, tmp_path: Path) -> None:
    """What was uploaded is the run: it goes on from there with nothing else."""
    store = save(tmp_path / "store", SMALL, 1, 2)
    here.good("ckpt", "upload", store, f"file://{tmp_path / 'remote'}")
    shutil.rmtree(store)
    here.good("ckpt-restore", f"file://{tmp_path / 'remote'}", store)
    with libckpt.Checkpointer(str(store), state=dict(SMALL)) as ckpt:
        assert ckpt.resume() == 2


def test_a_manifest_that_is_not_given(bucket: Bucket, tmp_path: Path) -> None:
    """A server that does not give a manifest this time does not say that there is no step."""
    store = save(tmp_path / "store", SMALL, 1, 2)
    bucket.good("ckpt", "upload", store, URL)
    bucket.server.rules(
        {"do": "answer", "operation": "GetObject", "key": "run/g*manifest.json", "status": 403,
         "code": "AccessDenied"},
    )  # fmt: skip
    start = (
        "import sys, torch, libckpt\n"
        "with libckpt.Checkpointer(sys.argv[1], {'w': torch.zeros(5000), 'note': ''},"
        " remote=sys.argv[2]) as ckpt:\n"
        "    print('resumed', ckpt.resume())\n"
    )

    def run() -> subprocess.CompletedProcess[str]:
        process = Forked(start, f"{tmp_path / 'another'}", URL, environment=bucket.environment())
        out, err = ended(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    refused = run()
    assert refused.returncode != 0 and "AccessDenied" in refused.stderr, refused
    assert "resumed" not in refused.stdout
    bucket.server.rules()
    assert run().stdout == "resumed 2\n"


def test_nobody_knows_whether_there_is_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that cannot be asked is not an empty one; what has a step of its own goes on."""
    if not has_s3():
        pytest.skip("a library built without S3")
    for name, value in {
        "AWS_ENDPOINT_URL_S3": Nowhere.endpoint,
        "AWS_ACCESS_KEY_ID": Nowhere.access,
        "AWS_SECRET_ACCESS_KEY": Nowhere.secret,
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(libckpt.CheckpointError):
        libckpt.Checkpointer(str(tmp_path / "store"), state=dict(SMALL), remote=URL)
    store = save(tmp_path / "store", SMALL, 1)
    with caplog.at_level("WARNING"), libckpt.Checkpointer(
        str(store), state=dict(SMALL), remote=URL, drain_timeout=0
    ) as ckpt:  # fmt: skip
        assert ckpt.resume() == 1
    assert "cannot be asked" in caplog.text
