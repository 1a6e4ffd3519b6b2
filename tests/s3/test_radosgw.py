# SPDX-License-Identifier: Apache-2.0
"""Ceph's gateway: the programs against a store that others have written, and that dies, hangs and refuses."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import waiting
from s3_probe import AWS, RADOSGW, Probe
from s3_programs import (
    AUTH,
    FAILED,
    INCOMPLETE,
    NOT_FOUND,
    OK,
    Bucket,
    files_of,
    has_s3,
    same,
    save,
)  # fmt: skip
from s3_server import Radosgw
from waiting import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Radosgw.installed(), reason="radosgw 16.2 is not installed"),
    pytest.mark.skipif(not has_s3(), reason="a library built without S3"),
]

STEPS = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}
SOME = {"x": torch.arange(8 << 20, dtype=torch.float32)}  # 32 MiB: four parts
MANY = {"x": torch.arange(32 << 20, dtype=torch.float32)}  # 128 MiB: sixteen


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Radosgw]:
    with Radosgw(tmp_path_factory.mktemp("ceph") / "c") as gateway:
        assert gateway.ask("PUT", "").status == 200
        yield gateway


@pytest.fixture
def bucket(gateway: Radosgw, tmp_path: Path) -> Bucket:
    return Bucket(gateway, tmp_path)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A place of this test's own."""
    return f"s3://bkt/{prefix_of(request.node.name)}"


def prefix_of(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("small") / "run", STEPS, 10, 20, 30)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("large") / "run", MANY, 7)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("parted") / "run", SOME, 7)


def key(url: str) -> str:
    return url.removeprefix("s3://bkt/") + "/"


def names(gateway: Radosgw, url: str) -> list[str]:
    return gateway.ask("GET", "", query={"list-type": "2", "prefix": key(url)}).texts("Key")


def uploads(gateway: Radosgw, url: str) -> list[tuple[str, str]]:
    said = gateway.ask("GET", "", query={"uploads": "", "prefix": key(url)})
    return list(zip(said.texts("Key"), said.texts("UploadId"), strict=True))


def parts(gateway: Radosgw, url: str) -> int:
    """Of all uploads below it: those that the gateway has."""
    listed = [gateway.ask("GET", k, query={"uploadId": u}) for k, u in uploads(gateway, url)]
    return sum(len(answer.texts("PartNumber")) for answer in listed)


def ended(process: subprocess.Popen[str]) -> None:
    _, err = waiting.ended(process)
    assert process.returncode == OK, err
    assert err == ""


def check_copy(bucket: Bucket, url: str, store: Path, step: int) -> None:
    assert "all good" in bucket.good("ckpt-verify", url)
    bucket.good("ckpt-restore", url, bucket.home / "copy")
    same(bucket.home / "copy", store, step)


# It is a store.


def test_radosgw_answers_as_the_table_says(gateway: Radosgw) -> None:
    assert Probe(gateway.client, "probe").run() == {**AWS, **RADOSGW}


def test_there_and_back(bucket: Bucket, url: str, small: Path, parted: Path) -> None:
    for step in (10, 20, 30):
        bucket.good("ckpt-restore", small, url, "--step", step)
    assert "3 steps" in bucket.good("ckpt-verify", url)
    for name, body in files_of(small).items():
        if "step-" in name:
            assert bucket.server.ask("GET", key(url) + name).body == body
    check_copy(bucket, url, small, 30)
    bucket.good("ckpt-restore", parted, url + "/large")
    bucket.good("ckpt-restore", url + "/large", url + "/again")
    bucket.good("ckpt-restore", url + "/again", bucket.home / "again")
    same(bucket.home / "again", parted, 7)
    assert uploads(bucket.server, url) == []


def test_conditions_are_heeded(bucket: Bucket, url: str, small: Path, parted: Path) -> None:
    """Nothing is warned of; what is there is not written again, and of two one puts the manifest."""
    bucket.good("ckpt-restore", small, url)
    before = names(bucket.server, url)
    assert not [name for name in before if ".tmp-" in name]
    result = bucket.run("ckpt-restore", small, url)
    assert result.returncode == FAILED
    assert "has step 30 of generation 1 already" in result.stderr
    assert names(bucket.server, url) == before
    both = [bucket.start("ckpt-restore", parted, url + "/two") for _ in range(2)]
    errors = [waiting.ended(process)[1] for process in both]
    codes = [process.returncode for process in both]
    assert OK in codes, errors
    assert set(codes) <= {OK, FAILED}, errors
    assert not [e for e in errors if "If-None-Match" in e]
    check_copy(bucket, url + "/two", parted, 7)


def test_tls(bucket: Bucket, url: str, parted: Path) -> None:
    said = bucket.server.said
    bucket.settings["AWS_ENDPOINT_URL_S3"] = said["S3_ENDPOINT_TLS"]
    bucket.settings["AWS_CA_BUNDLE"] = said["S3_CA"]
    bucket.good("ckpt-restore", parted, url)
    check_copy(bucket, url, parted, 7)
    bucket.settings["AWS_CA_BUNDLE"] = None
    for arguments in (("ckpt", "ls", url), ("ckpt-restore", parted, url + "/no")):
        result = bucket.run(*arguments)
        assert result.returncode == AUTH
        assert "certificate" in result.stderr
        assert "AWS_CA_BUNDLE" in result.stderr
    assert names(bucket.server, url + "/no") == []


def test_who_is_refused(bucket: Bucket, url: str, small: Path) -> None:
    bucket.good("ckpt-restore", small, url)
    for settings, word in (
        ({"AWS_SECRET_ACCESS_KEY": "not-it-at-all"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "NOBODYNOBODY"}, "InvalidAccessKeyId"),
    ):
        for arguments in (("ckpt-verify", url), ("ckpt-restore", small, url + "/no")):
            result = bucket.run(*arguments, **settings)
            assert result.returncode == AUTH
            assert word in result.stderr
            assert "not-it-at-all" not in result.stderr
    assert bucket.run("ckpt", "ls", "s3://nobodys/run").returncode == NOT_FOUND
    assert bucket.run("ckpt", "ls", url + "/nothing").returncode == NOT_FOUND
    assert names(bucket.server, url + "/no") == []


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *ts)
{
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int r = real(id, ts);
	if (id == CLOCK_REALTIME)
		ts->tv_sec += atol(getenv("CLOCK_OFF"));
	return r;
}
"""


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_wrong(bucket: Bucket, url: str, small: Path, hours: int) -> None:
    """The gateway refuses what is signed with it, and says what time it is."""
    library = bucket.home / "clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"],
        input=CLOCK, text=True, check=True,
    )  # fmt: skip
    wrong = {"LD_PRELOAD": str(library), "CLOCK_OFF": str(hours * 3600)}
    for arguments in (("ckpt-restore", small, url), ("ckpt-verify", url)):
        result = bucket.run(*arguments, **wrong)
        assert result.returncode == OK, result
    check_copy(bucket, url, small, 30)


# It fails.


@contextlib.contextmanager
def configured(gateway: Radosgw, lines: str) -> Iterator[None]:
    """With these settings, and then without."""
    conf = gateway.folder / "ceph.conf"
    before = conf.read_text()
    conf.write_text(before + lines)
    try:
        gateway.must("kill9")
        gateway.must("start")
        yield
    finally:
        conf.write_text(before)
        gateway.must("kill9")
        gateway.must("start")


def slowed(gateway: Radosgw) -> int:
    return (gateway.folder / "log/client.rgw.a.log").read_text().count("http_status=503")


def test_it_is_asked_too_often(bucket: Bucket, url: str, large: Path) -> None:
    """503 SlowDown, and a connection that is closed with it."""
    with configured(
        bucket.server, "rgw_max_concurrent_requests = 2\nrgw_scheduler_type = throttler\n"
    ):
        before = slowed(bucket.server)
        ended(bucket.start("ckpt-restore", large, url))
        assert slowed(bucket.server) > before
        check_copy(bucket, url, large, 7)
    assert uploads(bucket.server, url) == []


def lose(gateway: Radosgw, process: subprocess.Popen[str]) -> None:
    """Kills the gateway and starts it again; meanwhile the program cannot come to its end."""
    process.send_signal(signal.SIGSTOP)
    gateway.must("kill9")
    process.send_signal(signal.SIGCONT)
    gateway.must("start")


def test_it_is_killed_during_an_upload(bucket: Bucket, url: str, large: Path) -> None:
    process = bucket.start("ckpt-restore", large, url)
    until(lambda: parts(bucket.server, url) >= 2)
    lose(bucket.server, process)
    ended(process)
    check_copy(bucket, url, large, 7)
    assert uploads(bucket.server, url) == []


def test_it_is_killed_during_a_download(bucket: Bucket, url: str, large: Path) -> None:
    bucket.good("ckpt-restore", large, url)
    process = bucket.start("ckpt-restore", url, bucket.home / "out")
    until(lambda: list((bucket.home / "out").rglob("*.safetensors*")))
    lose(bucket.server, process)
    ended(process)
    same(bucket.home / "out", large, 7)


@pytest.mark.parametrize("way", ["up", "down"])
def test_its_disk_hangs(bucket: Bucket, url: str, large: Path, way: str) -> None:
    """Every request that is under way, for three seconds."""
    if way == "up":
        process = bucket.start("ckpt-restore", large, url)
        until(lambda: parts(bucket.server, url) >= 1)
    else:
        bucket.good("ckpt-restore", large, url)
        process = bucket.start("ckpt-restore", url, bucket.home / "out")
        until(lambda: list((bucket.home / "out").rglob("*.safetensors*")))
    process.send_signal(signal.SIGSTOP)  # or it may be over before
    bucket.server.must("stop-osd")
    process.send_signal(signal.SIGCONT)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
    finally:
        bucket.server.must("cont-osd")
    ended(process)
    check_copy(bucket, url, large, 7)


# The program is killed.

MOMENTS = {
    "at once": lambda gateway, url: True,
    "marker": lambda gateway, url: any(n.endswith("ckpt.json") for n in names(gateway, url)),
    "upload": lambda gateway, url: uploads(gateway, url),
    "parts": lambda gateway, url: parts(gateway, url) >= 1,
    "shard": lambda gateway, url: any("safetensors" in n for n in names(gateway, url)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_copy_that_is_killed(bucket: Bucket, url: str, large: Path, moment: str) -> None:
    """There is a step, and all of it, or none; parts stay until the same copy has gone through."""
    process = bucket.start("ckpt-restore", large, url)
    until(lambda: MOMENTS[moment](bucket.server, url))
    process.send_signal(signal.SIGKILL)
    waiting.ended(process)
    # What it had sent is still on its way.
    until(lambda: settled(bucket.server))
    stale = uploads(bucket.server, url)
    there = names(bucket.server, url)
    if moment in ("upload", "parts", "shard"):
        assert len(stale) + sum("safetensors" in n for n in there) == 1
    if any(n.endswith("manifest.json") for n in there):
        assert moment in ("parts", "shard")
    else:
        result = bucket.run("ckpt-restore", url, bucket.home / "none")
        assert result.returncode in (NOT_FOUND, INCOMPLETE), result
        bucket.good("ckpt-restore", large, url)
    check_copy(bucket, url, large, 7)
    # As docs/s3.md says.
    assert uploads(bucket.server, url) == []
    assert "all good" in bucket.good("ckpt-verify", url)


def settled(gateway: Radosgw) -> bool:
    """Every request that the gateway has begun, since it was started, has ended."""
    log = (gateway.folder / "log/client.rgw.a.log").read_text()
    log = log.rpartition("starting handler: beast")[2]
    return log.count("starting new request") == log.count("req done")


# The script.


def test_the_script_minds_its_own(gateway: Radosgw, tmp_path: Path) -> None:
    again = gateway.do("up")
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    (tmp_path / "mine").write_text("mine")
    for what in ("down", "kill9", "start", "status"):
        done = subprocess.run(
            [str(Radosgw.SCRIPT), what, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "has started nothing here" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"
    assert gateway.do("start").returncode == 1
    said = gateway.must("status")
    assert said.splitlines()[: len(gateway.said)] == [f"{k}={v}" for k, v in gateway.said.items()]
    for name in ("mon", "osd", "rgw"):
        assert f"# {name} runs as " in said
