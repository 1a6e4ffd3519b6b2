# SPDX-License-Identifier: Apache-2.0
"""Secrets are where they were put, and nowhere else: not in what is said, stored, dumped, or listed by ps."""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from proxy import Proxy, serving
from waiting import until

# Not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "s3"))

from s3_programs import AUTH, OK, TOOLS, Bucket, has_s3, same, save  # noqa: E402
from s3_server import ACCESS, S3D, SECRET, Server, make_certificate  # noqa: E402

URL = "s3://bkt/run"
KEY = "canary/Of+the+secret+key/0123456789abcdef"
TOKEN = "canary-of-the-session-token-" + "0123456789" * 10
PASSWORD = "canary-of-the-proxy"
CANARIES = (KEY, TOKEN, PASSWORD)
PARTS = {"x": torch.arange(5 << 20, dtype=torch.float32), "note": "hello"}  # 20 MiB: three parts

TRAIN = """
import logging, signal, sys
import torch, libckpt
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
ground = "-".join(["what", "is", "on", "the", "heap"])
ckpt = libckpt.Checkpointer(sys.argv[1], {"x": torch.arange(5 << 20, dtype=torch.float32),
    "note": ground}, remote=sys.argv[2], pool_bytes=32 << 20)
ckpt.save(1)
print("saved", flush=True)
signal.pause()
"""
GROUND = "what-is-on-the-heap"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """A server that wants these keys, behind a proxy that wants a password; every process may dump its core."""
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    (tmp_path / "home/.aws").mkdir(parents=True)
    server = Server(tls=make_certificate(tmp_path))
    server.admin(
        "PUT", "keys",
        [{"access": ACCESS, "secret": SECRET}, {"access": "ID", "secret": KEY, "token": TOKEN}],
    )  # fmt: skip
    bucket = Bucket(server, tmp_path / "home")
    bucket.settings = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    try:
        yield bucket
    finally:
        server.stop()
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    """It wants a password."""
    with serving() as proxy:
        bucket.settings["https_proxy"] = f"http://me:{PASSWORD}@127.0.0.1:{proxy.port}"
        bucket.settings["no_proxy"] = None
        bucket.settings["NO_PROXY"] = None
        yield proxy


def give_keys(bucket: Bucket, way: str) -> None:
    aws = bucket.home / ".aws"
    if way == "profile":
        (aws / "credentials").write_text(
            f"[default]\naws_access_key_id = ID\naws_secret_access_key = {KEY}\n"
            f"aws_session_token = {TOKEN}\n"
        )
        return
    keys = {"Version": 1, "AccessKeyId": "ID", "SecretAccessKey": KEY, "SessionToken": TOKEN}
    (aws / "keys.json").write_text(json.dumps(keys))
    (aws / "config").write_text(f"[default]\ncredential_process = cat {aws / 'keys.json'}\n")


def train(bucket: Bucket, store: Path) -> subprocess.Popen[str]:
    """Until its upload is under way."""
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "part": 2})
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(store), URL], env=bucket.environment(), text=True,
        cwd=bucket.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: process.poll() is not None or bucket.applied("UploadPart", ".*") >= 1)
    assert process.poll() is None, process.communicate()
    return process


def check_said(*texts: str) -> None:
    for text in texts:
        assert not [c for c in CANARIES if c in text]


def check_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not [c for c in CANARIES if c in path.name]
        if path.is_file():
            content = path.read_bytes()
            assert not [c for c in CANARIES if c.encode() in content], path


def check_bucket(bucket: Bucket) -> None:
    names = bucket.names()
    assert names
    check_said(*names)
    for name in names:
        body = bucket.server.ask("GET", name).body
        assert not [c for c in CANARIES if c.encode() in body], name


def check_processes() -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            check_said(path.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue


def abort(process: subprocess.Popen[str]) -> tuple[bool, str]:
    """Whether it has dumped its core, and what it had said."""
    process.send_signal(signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    process.returncode = -signal.SIGABRT
    assert process.stdout
    assert process.stderr
    return os.WCOREDUMP(status), process.stdout.read() + process.stderr.read()


def core_of(folder: Path) -> Path:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith("|") or not pattern:
        pytest.skip("this machine does not leave core files where the program is")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("this machine allows no core files")
    (core,) = folder.glob(f"{pattern.partition('%')[0]}*")
    return core


def holds(core: Path, text: str) -> bool:
    with core.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text.encode()) >= 0


@pytest.mark.parametrize("way", ["process", "profile"])
def test_nobody_tells_them(bucket: Bucket, proxy: Proxy, tmp_path: Path, way: str) -> None:
    give_keys(bucket, way)
    store = tmp_path / "store"
    training = train(bucket, store)
    check_processes()
    training.kill()
    out, log = training.communicate(timeout=300)
    assert out == "saved\n"
    assert "keys for S3 are from" in log
    check_said(log)
    bucket.server.rules()
    check_said(bucket.good("ckpt", "upload", store, URL))
    check_said(bucket.good("ckpt-restore", URL, tmp_path / "back"))
    same(tmp_path / "back", store, 1)
    check_said(bucket.good("ckpt-verify", URL), bucket.good("ckpt", "ls", URL, "--json"))
    check_bucket(bucket)
    # What fails is said in words that have none of it.
    bucket.server.admin("PUT", "keys", [{"access": "ID", "secret": "another", "token": TOKEN}])
    refused = bucket.run("ckpt", "ls", URL)
    assert refused.returncode == AUTH
    check_said(refused.stdout, refused.stderr)
    bucket.server.kill()
    refused = bucket.run("ckpt-restore", URL, tmp_path / "none", AWS_MAX_ATTEMPTS="1")
    assert refused.returncode != OK
    check_said(refused.stdout, refused.stderr)
    check_files(store)
    check_files(tmp_path / "back")
    assert all("Proxy-Authorization: Basic " in head for head in proxy.asked)
    assert len(proxy.asked) >= 6


@pytest.mark.parametrize("way", ["process", "profile"])
def test_a_training_dumps_no_key(bucket: Bucket, tmp_path: Path, way: str) -> None:
    """The key that signs is in no core dump. The token is libcurl's, too, and signs nothing without it."""
    give_keys(bucket, way)
    _, log = abort(train(bucket, tmp_path / "store"))
    check_said(log)
    core = core_of(bucket.home)
    assert holds(core, GROUND)
    assert not holds(core, KEY)


@pytest.mark.parametrize("way", ["process", "profile"])
def test_a_program_dumps_nothing(
    bucket: Bucket, proxy: Proxy, tmp_path: Path, way: str
) -> None:
    give_keys(bucket, way)
    store = save(tmp_path / "store", PARTS, 1)
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "part": 2})
    process = subprocess.Popen(
        [str(TOOLS / "ckpt"), "upload", str(store), URL], env=bucket.environment(), text=True,
        cwd=bucket.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: bucket.applied("UploadPart", ".*") >= 1)
    check_processes()
    dumped, said = abort(process)
    assert not dumped
    assert {path.name for path in bucket.home.iterdir()} == {".aws"}
    check_said(said)
    shutil.rmtree(bucket.home / ".aws")
    check_files(tmp_path)
    assert proxy.asked
