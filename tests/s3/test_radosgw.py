# SPDX-License-Identifier: Apache-2.0
"""Ceph's gateway: the programs against a store that others have written, and that dies, hangs and refuses."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import waiting
from ceph import check_copy, ended, key, names, parts, settled, uploads
from s3_probe import AWS, RADOSGW, Probe
from s3_programs import (
    AUTH,
    IN_USE,
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
from waiting import remotely, until

import libckpt
from libckpt import Checkpointer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Radosgw.installed(), reason="radosgw 16.2 is not installed"),
    pytest.mark.skipif(not has_s3(), reason="a library built without S3"),
]

STEPS = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}
SOME = {"x": torch.arange(8 << 20, dtype=torch.float32)}  # 32 MiB: four parts
ALL = set(range(1, 18))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("small") / "run", STEPS, 10, 20, 30)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("parted") / "run", SOME, 7)


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
    assert "already" in bucket.good("ckpt-restore", small, url)
    assert names(bucket.server, url) == before
    both = [bucket.start("ckpt-restore", parted, url + "/two") for _ in range(2)]
    errors = [waiting.ended(process)[1] for process in both]
    codes = [process.returncode for process in both]
    assert OK in codes, errors
    assert set(codes) <= {OK, IN_USE}, errors
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


# A training that has it as its remote store.

# So slowly that it is seen at it.
TRAIN = """
import sys, torch, libckpt
state = {"x": torch.arange(32 << 20, dtype=torch.float32)}
options = {"pool_bytes": 64 << 20, "remote_bytes_per_s": 24 << 20}
with libckpt.Checkpointer(sys.argv[1], state, remote=sys.argv[2], **options) as ckpt:
    if (step := ckpt.resume()) == 0:
        step = ckpt.save(1).step
    print("step", step, flush=True)
"""


def sent(gateway: Radosgw, url: str) -> list[int]:
    """Parts that the gateway has taken, in order."""
    log = (gateway.folder / "log/client.rgw.a.log").read_text()
    line = rf'"PUT /bkt/{re.escape(key(url))}\S*[?&]partNumber=(\d+)\S* HTTP/1.1" 200 '
    return [int(number) for number in re.findall(line, log)]


def check_rest_was_sent(gateway: Radosgw, url: str, had: set[int]) -> None:
    """And nothing again of those that were there."""
    numbers_sent = sent(gateway, url)
    assert sorted(n for n in numbers_sent if n in had) == sorted(had)
    assert set(numbers_sent) == ALL
    assert 0 < len(had) < len(ALL)


def numbers(gateway: Radosgw, url: str) -> set[int]:
    ((name, upload),) = uploads(gateway, url)
    said = gateway.ask("GET", name, query={"uploadId": upload})
    return {int(number) for number in said.texts("PartNumber")}


def test_a_training_whose_server_dies(told: Bucket, url: str) -> None:
    """Its saves do not fail; what it could not send goes up later, and comes back on another disk."""
    state = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}
    store = told.home / "run"
    with Checkpointer(store, state, remote=url) as ckpt:
        remotely(ckpt.save(1))
        told.server.must("kill9")
        state["w"] += 1
        saves = [ckpt.save(2)]
        saves[0].wait("local", timeout=180)
        saves.append(ckpt.save(3))
        saves[1].wait("local", timeout=180)
        assert not saves[0].done("remote")
        assert ckpt.stats()["uploads_waiting"] == 2
        told.server.must("start")
        for save_ in saves:
            remotely(save_)
        assert ckpt.stats()["uploads_waiting"] == 0
    check_copy(told, url, store, 3)
    assert [info.step for info in libckpt.list_steps(url)] == [3, 2, 1]
    back = {"w": torch.zeros(5000), "note": ""}
    with Checkpointer(told.home / "empty", back, remote=url) as ckpt:
        assert ckpt.resume() == 3
    assert torch.equal(back["w"], state["w"])
    same(told.home / "empty", store, 3)


def test_a_training_that_is_killed_sends_the_rest(told: Bucket, url: str) -> None:
    def train() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(told.home / "run"), url], env=told.environment(),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    process = train()
    until(lambda: parts(told.server, url) >= 2, 60)
    process.send_signal(signal.SIGKILL)
    waiting.ended(process)
    until(lambda: settled(told.server))
    had = numbers(told.server, url)
    process = train()
    out, err = waiting.ended(process)
    assert (process.returncode, out) == (OK, "step 1\n"), err
    check_rest_was_sent(told.server, url, had)
    check_copy(told, url, told.home / "run", 1)
    assert uploads(told.server, url) == []


def test_an_upload_that_is_killed_sends_the_rest(bucket: Bucket, url: str, large: Path) -> None:
    store = bucket.home / "run"
    shutil.copytree(large, store)
    process = bucket.start("ckpt", "upload", store, url)
    until(lambda: parts(bucket.server, url) >= 2)
    process.send_signal(signal.SIGKILL)
    waiting.ended(process)
    until(lambda: settled(bucket.server))
    had = numbers(bucket.server, url)
    bucket.good("ckpt", "upload", store, url)
    check_rest_was_sent(bucket.server, url, had)
    check_copy(bucket, url, large, 7)
    assert uploads(bucket.server, url) == []


def test_old_steps_go(bucket: Bucket, url: str, small: Path) -> None:
    for step in (10, 20, 30):
        bucket.good("ckpt-restore", small, url, "--step", step)
    bucket.good("ckpt", "prune", url, "--keep-last", 1, "--grace", 0)
    there = [n for n in names(bucket.server, url) if "step-" in n]
    assert there
    assert not [n for n in there if "step-0000000030" not in n], there
    check_copy(bucket, url, small, 30)


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
