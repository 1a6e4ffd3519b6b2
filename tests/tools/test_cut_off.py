# SPDX-License-Identifier: Apache-2.0
"""
ckpt-restore that is cut off: the same again goes on, and asks for the rest alone. A server that has stopped to
answer holds up nobody who wants to end.
"""

from __future__ import annotations

import errno
import fnmatch
import itertools
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from s3_programs import NETWORK, Bucket, same, same_anew, save
from waiting import until

pytestmark = pytest.mark.waits  # for servers and for time limits

URL = "s3://bkt/run"
# 68 MiB: nine blocks, or parts, of 8 MiB; and some are of small tensors.
STATE = {"x": torch.arange(16 << 20, dtype=torch.float32), **{
    f"y{i:02}": torch.arange(i << 10, (i + 64) << 10, dtype=torch.float32) for i in range(16)
}}  # fmt: skip
BLOCK, BLOCKS = 8 << 20, 9
SHARD = r".*\.safetensors"
# Seconds: how long what is sure to come may take where others want the machine, too.


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("cut") / "run", STATE, 7)


@pytest.fixture
def again(serve: Callable[[], Bucket], store: Path) -> Bucket:
    """Another server with the same objects, that nobody has asked for anything."""
    bucket = serve()
    bucket.put(store)
    return bucket


def asked(bucket: Bucket) -> int:
    """Ranges of the shard that were read so far."""
    return sum(
        e["kind"] == "answered" and e["operation"] == "GetObject"
        and bool(re.fullmatch(SHARD, e["key"]))
        for e in bucket.server.journal()
    )  # fmt: skip


def sent(bucket: Bucket) -> list[int]:
    """The parts of the shard that the server has taken, one after the other: a slow one may be sent twice."""
    return [
        e["part"]
        for e in bucket.server.journal()
        if (e["kind"], e["operation"]) == ("applied", "UploadPart")
        and re.fullmatch(SHARD, e["key"])
    ]


def end(process: subprocess.Popen[str], by: signal.Signals) -> tuple[str, str]:
    """A server that was there is given three minutes: nothing may wait for that."""
    process.send_signal(by)
    return process.communicate(timeout=100)


def cut(process: subprocess.Popen[str], by: signal.Signals) -> tuple[str, str]:
    said = end(process, by)
    assert process.returncode == (-by if by == signal.SIGKILL else 128 + by), said
    return said


def there(out: Path, store: Path) -> list[bool]:
    """Which blocks of the shard are in `out`, whole."""
    (shard,) = store.rglob("*.safetensors")
    copy = out / shard.relative_to(store)
    if not copy.exists():
        return []
    with shard.open("rb") as one, copy.open("rb") as other:
        return [one.read(BLOCK) == other.read(BLOCK) for _ in range(BLOCKS)]


def rest(blocks: list[bool]) -> tuple[int, int]:
    """How many ranges are missing: one more where a chunk is in two blocks, and in one of them only."""
    missing = blocks.count(False)
    gaps = sum(a != b for a, b in itertools.pairwise(blocks))
    return missing, missing + gaps


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_into_a_directory(
    bucket: Bucket, again: Bucket, store: Path, tmp_path: Path, by: signal.Signals
) -> None:
    bucket.put(store)
    bucket.server.rules({"do": "stall", "operation": "GetObject", "key": "*.safetensors", "nth": 9})
    out = tmp_path / "out"
    process = bucket.start("ckpt-restore", URL, out)
    # The first is for the header. A block waits for the ones before and after it, for their chunks are of
    # both: of any seven blocks of nine three are neighbours.
    until(lambda: sum(there(out, store)) >= 1)
    cut(process, by)
    least, most = rest(there(out, store))
    again.good("ckpt-restore", URL, out)
    same_anew(out, store, 7)
    assert "all good" in bucket.good("ckpt-verify", out)
    # One is for the header.
    assert least <= asked(again) - 1 <= most


def test_a_server_that_is_away(bucket: Bucket, again: Bucket, store: Path, tmp_path: Path) -> None:
    """What it gave is kept, and so are its words."""
    bucket.put(store)
    bucket.server.rules(
        {"do": "answer", "operation": "GetObject", "key": "*.safetensors", "nth": 9, "status": 503,
         "code": "SlowDown", "retry_after_s": 2}
    )  # fmt: skip
    out = tmp_path / "out"
    result = bucket.run("ckpt-restore", URL, out, AWS_MAX_ATTEMPTS="2")
    assert result.returncode == NETWORK, result
    least, most = rest(there(out, store))
    assert least < BLOCKS
    again.good("ckpt-restore", URL, out)
    same_anew(out, store, 7)
    assert least <= asked(again) - 1 <= most


def test_what_is_there_is_not_believed(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    """Whatever lies under the shard's name, the copy is the same."""
    bucket.put(store)
    (shard,) = store.rglob("*.safetensors")
    body = shard.read_bytes()
    for number, junk in enumerate(
        [b"", b"junk" * 3_000_000, body[: 3 * BLOCK + 5], body + body, body[::-1], body[:-1] + b"?"]
    ):
        out = tmp_path / f"out{number}"
        left = out / shard.relative_to(store)
        (out / "gens").mkdir(parents=True)
        left.parent.mkdir(parents=True)
        for name in ("ckpt.json", "gens/000001.json"):
            (out / name).write_bytes((store / name).read_bytes())
        left.write_bytes(junk)
        # One that ended just before the manifest, or the name of something else.
        if number % 2:
            (index,) = store.rglob("*.index")
            (out / index.relative_to(store)).write_bytes(index.read_bytes()[: -number // 5 or None])
        bucket.good("ckpt-restore", URL, out)
        same_anew(out, store, 7)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_into_a_bucket(bucket: Bucket, store: Path, tmp_path: Path, by: signal.Signals) -> None:
    """The parts that the server has are not sent again."""
    bucket.server.rules({"do": "stall", "operation": "UploadPart", "nth": 6})
    process = bucket.start("ckpt-restore", store, URL)
    until(lambda: len(set(sent(bucket))) >= 5)
    cut(process, by)
    bucket.server.rules()
    before = sent(bucket)
    bucket.good("ckpt-restore", store, URL)
    later = sent(bucket)[len(before) :]
    assert not set(before) & set(later), (before, later)
    assert {*before, *later} == set(range(1, BLOCKS + 1))
    assert "all good" in bucket.good("ckpt-verify", URL)
    bucket.good("ckpt-restore", URL, tmp_path / "out")
    same(tmp_path / "out", store, 7)
    assert bucket.server.ask("GET", "", query={"uploads": ""}).texts("UploadId") == []


# What hangs, and which request of its kind. Nothing else asks the server meanwhile.
READS = [
    ({"do": "stall", "operation": "GetObject", "key": "*/manifest.json"}, 2),
    ({"do": "stall", "operation": "GetObject", "key": "*.index"}, 1),
    ({"do": "length", "operation": "GetObject", "key": "*.safetensors", "bytes": 9}, 3),
    ({"do": "answer", "status": 503, "retry_after_s": 60, "operation": "GetObject",
      "key": "*.safetensors"}, 2),
]  # fmt: skip
RANGE = READS[2]
WRITES = [
    ({"do": "stall", "operation": "GetObject", "key": "run/ckpt.json"}, 1),
    ({"do": "stall", "operation": "PutObject", "key": "run/gens/*"}, 1),
    ({"do": "stall_body", "operation": "UploadPart"}, 2),
    ({"do": "stall", "operation": "CompleteMultipartUpload"}, 1),
    ({"do": "stall", "operation": "PutObject", "key": "*/manifest.json"}, 1),
]  # fmt: skip
PART = WRITES[2]


def manifest(nth: int) -> tuple[dict[str, object], int]:
    """Read by whoever opens a store, and whoever lists it; whoever picks a step lists it first, and reads it again."""
    return {"do": "stall", "operation": "GetObject", "key": "*/manifest.json"}, nth


INDEX = READS[1]
# Before anything is begun: what hangs, and in which program.
BEFORE = [
    (({"do": "stall", "operation": "GetObject", "key": "run/ckpt.json"}, 1), ["ckpt-verify", URL]),
    (manifest(1), ["ckpt-verify", URL]),
    (manifest(2), ["ckpt", "ls", URL]),
    (manifest(2), ["ckpt", "prune", URL, "--keep-last", "1"]),
    (manifest(2), ["ckpt", "show", URL]),
    (INDEX, ["ckpt", "show", URL]),
    (INDEX, ["ckpt", "diff", URL, "--step", "7", "--with", "7"]),
    (INDEX, ["ckpt-restore", URL, "{out}", "--consolidate"]),
]
# Behind the manifest: what is swept, and what is looked for that was passed over.
BEHIND = {
    "into": (({"do": "stall", "operation": "ListMultipartUploads"}, 2), ["{store}", URL]),
    "out": (manifest(4), [URL, "{out}"]),
    "files": (manifest(4), [URL, "{out}", "--consolidate"]),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three blocks: enough for the second and third of something."""
    state = {"x": torch.arange(5 << 20, dtype=torch.float32)}
    return save(tmp_path_factory.mktemp("small") / "run", state, 7)


def names(hangs: tuple[dict[str, object], int]) -> str:
    rule, nth = hangs
    return f"{rule['do']}-{rule['operation']}-{str(rule.get('key', '')).strip('*/')}-{nth}"


def answered(bucket: Bucket, rule: dict[str, object]) -> int:
    return sum(
        e["kind"] == "answered" and e["operation"] == rule["operation"]
        and fnmatch.fnmatch(e.get("key", ""), str(rule.get("key", "*")))
        for e in bucket.server.journal()
    )  # fmt: skip


def start_hanging(
    bucket: Bucket, hangs: tuple[dict[str, object], int], *arguments: object
) -> subprocess.Popen[str]:
    rule, nth = hangs
    bucket.server.rules({**rule, "nth": nth})
    before = answered(bucket, rule)
    process = bucket.start(*arguments)
    until(lambda: answered(bucket, rule) - before >= nth)
    return process


@pytest.mark.parametrize("hangs", READS, ids=names)
def test_a_server_that_hangs(bucket: Bucket, small: Path, tmp_path: Path, hangs: Any) -> None:
    bucket.put(small)
    out = tmp_path / "out"
    by = signal.SIGTERM if hangs is READS[0] else signal.SIGINT
    said = cut(start_hanging(bucket, hangs, "ckpt-restore", URL, out), by)
    assert said == ("", "ckpt-restore: interrupted\n")
    bucket.server.rules()
    bucket.good("ckpt-restore", URL, out)
    same_anew(out, small, 7)


@pytest.mark.parametrize("before", BEFORE, ids=lambda b: f"{names(b[0])}-{b[1][0]}-{b[1][1]}")
def test_before_it_is_begun(bucket: Bucket, small: Path, tmp_path: Path, before: Any) -> None:
    bucket.put(small)
    hangs, words = before
    words = [word.format(out=tmp_path / "out") for word in words]
    name = " ".join(words[:2]) if words[0] == "ckpt" else words[0]
    assert cut(start_hanging(bucket, hangs, *words), signal.SIGINT) == (
        "",
        f"{name}: interrupted\n",
    )
    assert not (tmp_path / "out").exists()


def test_before_it_is_begun_in_json(bucket: Bucket, small: Path) -> None:
    bucket.put(small)
    out, _ = cut(start_hanging(bucket, INDEX, "ckpt", "show", URL, "--json"), signal.SIGINT)
    said = json.loads(out)
    assert (said["type"], said["exit"]) == ("error", 128 + signal.SIGINT)
    assert said["error"].pop("code") == -errno.ECANCELED
    assert said["error"].pop("message") == "interrupted"
    assert list(said["error"]) == ["name"]


@pytest.mark.parametrize(
    ("nth", "options"), [(2, []), (4, ["--step", "latest"])], ids=["all", "one"]
)
def test_a_verification_that_lists(
    bucket: Bucket, small: Path, nth: int, options: list[str]
) -> None:
    """Before it reads, and once a step is read: it says how far it came."""
    bucket.put(small)
    words = ["ckpt-verify", URL, *options]
    steps = nth // 4
    out, err = cut(start_hanging(bucket, manifest(nth), *words), signal.SIGINT)
    assert err == ""
    assert re.fullmatch(rf"{steps} steps?, .* read: interrupted", out.splitlines()[-1])
    bucket.server.rules()
    out, err = cut(start_hanging(bucket, manifest(nth), *words, "--json"), signal.SIGINT)
    *good, summary = [json.loads(line) for line in out.splitlines()]
    assert [g["type"] for g in good] == ["good"] * steps
    assert (summary["type"], summary["steps"], summary["interrupted"]) == ("summary", steps, True)
    assert (summary["exit"], err) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize("program", ["ckpt-verify", "ckpt-restore"])
def test_whoever_reads_it(bucket: Bucket, small: Path, tmp_path: Path, program: str) -> None:
    """A verification; and a copy as one file, for which it goes into memory first."""
    bucket.put(small)
    more = [tmp_path / "out", "--consolidate"] if program == "ckpt-restore" else []
    cut(start_hanging(bucket, RANGE, program, URL, *more), signal.SIGINT)


@pytest.mark.parametrize("hangs", WRITES, ids=names)
def test_a_server_that_hangs_when_written_to(
    bucket: Bucket, small: Path, tmp_path: Path, hangs: Any
) -> None:
    _, err = cut(start_hanging(bucket, hangs, "ckpt-restore", small, URL), signal.SIGINT)
    assert err.startswith("ckpt-restore: interrupted")
    assert ("the step may be there" in err) == (hangs is WRITES[-1]), err
    bucket.server.rules()
    bucket.good("ckpt-restore", small, URL)
    bucket.good("ckpt-restore", URL, tmp_path / "out")
    same(tmp_path / "out", small, 7)


@pytest.mark.parametrize("way", BEHIND)
def test_too_late(bucket: Bucket, small: Path, tmp_path: Path, way: str) -> None:
    """The step is there, and that is what is said: nothing behind that is waited for."""
    if way != "into":
        bucket.put(small)
    out = tmp_path / "out"
    hangs, words = BEHIND[way]
    words = [word.format(store=small, out=out) for word in words]
    process = start_hanging(bucket, hangs, "ckpt-restore", *words)
    said = end(process, signal.SIGINT)
    assert (process.returncode, said[1]) == (0, "")
    assert f"step 7 is in {words[1]}" in said[0]
    if way == "files":
        assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    elif way == "out":
        same(out, small, 7)


def test_too_late_in_json(bucket: Bucket, small: Path, tmp_path: Path) -> None:
    bucket.put(small)
    process = start_hanging(bucket, manifest(4), "ckpt-restore", URL, tmp_path / "out", "--json")
    said = end(process, signal.SIGINT)
    assert (process.returncode, said[1]) == (0, "")
    done = json.loads(said[0])
    assert (done["type"], done["step"], done["passed_over"]) == ("restored", 7, None)


@pytest.mark.parametrize("hangs", [RANGE, PART], ids=["out", "in"])
def test_a_server_that_stands_still(
    bucket: Bucket, small: Path, tmp_path: Path, hangs: Any
) -> None:
    """It takes connections, and no byte: nothing is asked of it for the sake of ending."""
    if hangs is RANGE:
        bucket.put(small)
    ways = (URL, tmp_path / "out") if hangs is RANGE else (small, URL)
    process = start_hanging(bucket, hangs, "ckpt-restore", *ways)
    bucket.server.process.send_signal(signal.SIGSTOP)
    try:
        cut(process, signal.SIGINT)
    finally:
        bucket.server.process.send_signal(signal.SIGCONT)
    bucket.server.rules()
    bucket.good("ckpt-restore", *ways)
