# SPDX-License-Identifier: Apache-2.0
"""ckpt prune: what is to go goes, and wherever it ends no step is left that is not whole."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from s3_programs import (
    AUTH,
    INTEGRITY,
    NOT_FOUND,
    OK,
    USAGE,
    Bucket,
    files_of,
    save,
)  # fmt: skip
from sample import some
from waiting import ended, until

import libckpt

pytestmark = pytest.mark.waits  # for servers and for time limits

URL = "s3://bkt/run"
IN_USE = 11
SMALL = {"w": torch.arange(5000, dtype=torch.float32), "note": "hello"}


def states(bucket: Bucket, store: object) -> dict[int, str]:
    said = json.loads(bucket.good("ckpt", "ls", store, "--json"))
    return {s["step"]: "deleting" if s["deleting"] else s["state"] for s in said["steps"]}


def steps(said: str, what: str = "removed") -> list[int]:
    return [step["step"] for step in json.loads(said)[what]]


def test_of_a_directory(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1, 2, 3, 4, 5, 6)
    url = f"file://{tmp_path / 'remote'}"
    here.good("ckpt", "upload", store, url)
    before = files_of(tmp_path / "remote")
    keep = ("--keep-last", 2, "--keep-every", 3)
    said = here.good("ckpt", "prune", url, *keep, "--dry-run", "--json")
    assert (steps(said), json.loads(said)["dry_run"]) == ([1, 2, 4], True)
    assert "would delete step 4" in here.good("ckpt", "prune", url, *keep, "--dry-run")
    assert files_of(tmp_path / "remote") == before
    said = here.good("ckpt", "prune", url, *keep, "--grace", 0, "--json")
    assert (steps(said), json.loads(said)["dry_run"]) == ([1, 2, 4], False)
    assert json.loads(said)["bytes"] > 3 * 20000
    assert states(here, url) == dict.fromkeys((6, 5, 3), "committed")
    here.good("ckpt-verify", url)
    after = files_of(tmp_path / "remote")
    assert after == {name: before[name] for name in after}
    assert not [name for name in after if "tombstone" in name]
    assert steps(here.good("ckpt", "prune", url, *keep, "--json")) == []
    assert here.good("ckpt", "prune", url, *keep, "-q") == ""


def test_is_refused(here: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1, 2)
    assert here.run("ckpt", "prune", store).returncode == USAGE
    assert here.run("ckpt", "prune", store, "--keep-last", 0).returncode == USAGE
    assert here.run("ckpt", "prune", store, "--keep-last", 1, "--grace", "x").returncode == USAGE
    assert here.run("ckpt", "ls", store, "--keep-last", 1).returncode == USAGE
    absent = tmp_path / "absent"
    assert here.run("ckpt", "prune", absent, "--keep-last", 1).returncode == NOT_FOUND
    assert not absent.exists()
    with libckpt.Checkpointer(str(store), state=dict(SMALL)) as live:
        live.resume()
        result = here.run("ckpt", "prune", store, "--keep-last", 1, "--grace", 0)
        assert result.returncode == IN_USE and "live process" in result.stderr
    assert states(here, store) == dict.fromkeys((2, 1), "committed")


def test_the_newest_is_damaged(here: Bucket, tmp_path: Path) -> None:
    """Then what is older is all that there is."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    (shard,) = store.glob("g000001/step-0000000003/*.safetensors")
    content = bytearray(shard.read_bytes())
    content[10000] ^= 1
    shard.write_bytes(content)
    before = files_of(store)
    result = here.run("ckpt", "prune", store, "--keep-last", 1, "--grace", 0)
    assert result.returncode == INTEGRITY and "no step was deleted, because step 3 could not be verified: " in result.stderr
    assert files_of(store) == before


def test_interrupted_while_it_waits(here: Bucket, tmp_path: Path) -> None:
    """What is marked goes the next time, or stays after all."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    process = here.start("ckpt", "prune", store, "--keep-last", 1)
    until(lambda: len(list(store.glob("*/*.tombstone"))) == 2)
    process.send_signal(signal.SIGINT)
    ended(process)
    # Longer than a request lives that somebody else's removal tries again, and what it was made by.
    assert "Default: 600" in ended(here.start("ckpt", "prune", "--help"))[0]
    assert process.returncode == 128 + signal.SIGINT
    assert states(here, store) == {3: "committed", 2: "deleting", 1: "deleting"}
    assert "deleting" in here.good("ckpt", "ls", store)
    # What is marked does not count as kept.
    again = ("ckpt", "prune", store, "--keep-last", 2, "--grace", 0, "--json")
    said = here.good(*again)
    assert (steps(said), steps(said, "stayed")) == ([], [1, 2])
    assert steps(here.good(*again)) == [1]
    assert states(here, store) == {3: "committed", 2: "committed"}


def test_is_not_read(here: Bucket, tmp_path: Path) -> None:
    """A manifest that cannot be read says nothing: the mark of its step stays."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    here.good("ckpt", "prune", store, "--keep-last", 2, "--grace", 0)
    (store / "g000001" / "step-0000000002.tombstone").write_bytes(b"")
    manifest = store / "g000001" / "step-0000000002" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(b"{")
    result = here.run("ckpt", "prune", store, "--keep-last", 2, "--grace", 0, "--json")
    assert (result.returncode, steps(result.stdout, "busy")) == (INTEGRITY, [2])
    assert (store / "g000001" / "step-0000000002.tombstone").exists()
    manifest.write_bytes(content)
    said = here.good("ckpt", "prune", store, "--keep-last", 2, "--grace", 0, "--json")
    assert steps(said, "stayed") == [2]


def test_of_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    bucket.good("ckpt", "upload", store, URL)
    before, asked_before = len(bucket.server.applied()), len(bucket.server.journal())
    bucket.good("ckpt", "prune", URL, "--keep-last", 2, "--grace", 0)
    done = [a.replace("run/g000001/step-000000000", "") for a in bucket.server.applied()[before:]]
    done = [a for a in done if "ckpt.json" not in a]
    assert done[:2] == ["PutObject 1.tombstone", "DeleteObject 1/manifest.json"], done
    assert [a.rpartition(".")[2] for a in done[2:]] == ["index", "safetensors", "tombstone"]
    assert not [name for name in bucket.names() if "step-0000000001" in name]
    bucket.good("ckpt-verify", URL)
    # Before uploads are swept he looks whether he is still the one who removes.
    journal = bucket.server.journal()[asked_before:]
    asked = [f"{e['operation']} {e.get('key', '')}" for e in journal if e["kind"] == "answered"]
    at = next(i for i, what in enumerate(asked) if what.startswith("ListMultipartUploads"))
    assert asked[at - 1] == "GetObject run/g000001/step-0000000001.tombstone"


def test_another_one_goes_on(bucket: Bucket, tmp_path: Path) -> None:
    """What was somebody else's until the second grace goes after the third, and is not passed over silently."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    bucket.good("ckpt", "upload", store, URL)

    def mark(step: int, text: bytes) -> None:
        name = f"run/g000001/step-000000000{step}.tombstone"
        assert bucket.server.ask("PUT", name, text).status == 200

    mark(1, b"his")
    mark(2, b"his")
    # The first look at it is that of the mark, and what follows of the removal.
    bucket.server.rules(
        {"do": "answer", "operation": "GetObject", "key": "*1.tombstone", "nth": 2, "times": 1000,
         "status": 503, "code": "SlowDown"},
    )  # fmt: skip
    process = bucket.start("ckpt", "prune", URL, "--keep-last", 1, "--grace", 0, "--json")
    until(lambda: any(e.get("status") == 503 for e in bucket.server.journal()))
    mark(2, b"another's")
    bucket.server.rules()
    out, _ = ended(process)
    assert (process.returncode, steps(out), steps(out, "busy")) == (OK, [1, 2], [])
    assert states(bucket, URL) == {3: "committed"}


def test_marked_and_claimed_meanwhile(bucket: Bucket, tmp_path: Path) -> None:
    """It looks again because of the claim, and at once: what somebody else has marked since is his all the same."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    bucket.good("ckpt", "upload", store, URL)
    bucket.server.rules(
        {"do": "answer", "operation": "GetObject", "key": "*1.tombstone", "times": 1000,
         "status": 503, "code": "SlowDown"},
    )  # fmt: skip
    process = bucket.start("ckpt", "prune", URL, "--keep-last", 1, "--grace", 0, "--json")
    until(lambda: any(e.get("status") == 503 for e in bucket.server.journal()))
    with libckpt.Checkpointer(str(store), state=dict(SMALL)) as job:
        job.resume(3)
        job.save(4)
    claim = (store / "gens" / "000002.json").read_bytes()
    assert bucket.server.ask("PUT", "run/gens/000002.json", claim).status == 200
    his = "run/g000001/step-0000000001.tombstone"
    assert bucket.server.ask("PUT", his, b"his").status == 200
    bucket.server.rules()
    out, _ = ended(process)
    assert (process.returncode, steps(out), steps(out, "busy")) == (IN_USE, [2], [1])
    assert bucket.server.ask("GET", his).body == b"his"
    assert states(bucket, URL) == {3: "committed", 1: "deleting"}


def test_cannot_take_over(bucket: Bucket, tmp_path: Path) -> None:
    """What is left of a step whose removal somebody else has begun goes the next time."""
    store = save(tmp_path / "store", SMALL, 1, 2)
    bucket.good("ckpt", "upload", store, URL)
    step = "run/g000001/step-0000000001"
    assert bucket.server.ask("PUT", f"{step}.tombstone", b"his").status == 200
    assert bucket.server.ask("DELETE", f"{step}/manifest.json").status == 204
    prune = ("ckpt", "prune", URL, "--keep-last", 1, "--grace", 0, "-q")
    bucket.server.rules(
        {"do": "answer", "operation": "PutObject", "key": "*1.tombstone", "times": 1000,
         "status": 403, "code": "AccessDenied"},
    )  # fmt: skip
    assert bucket.run(*prune).returncode == AUTH
    bucket.server.rules()
    bucket.good(*prune)
    assert not [name for name in bucket.names() if "step-0000000001" in name]


def test_a_job_goes_back(bucket: Bucket, tmp_path: Path) -> None:
    """To a step that is about to be removed: its claim is seen just before, and what is to go is judged anew."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    bucket.good("ckpt", "upload", store, URL)
    bucket.server.rules(
        {"do": "answer", "operation": "GetObject", "key": "*1.tombstone", "times": 1000,
         "status": 503, "code": "SlowDown"},
    )  # fmt: skip
    process = bucket.start("ckpt", "prune", URL, "--keep-last", 1, "--grace", 0, "--json")
    until(lambda: any(e.get("status") == 503 for e in bucket.server.journal()))
    with libckpt.Checkpointer(str(store), state=dict(SMALL)) as job:
        job.resume(1)
        job.save(4)
    claim = (store / "gens" / "000002.json").read_bytes()
    assert bucket.server.ask("PUT", "run/gens/000002.json", claim).status == 200
    bucket.server.rules()
    out, _ = ended(process)
    assert process.returncode == OK
    assert (steps(out), steps(out, "stayed")) == ([], [1, 2])
    assert states(bucket, URL) == dict.fromkeys((3, 2, 1), "committed")


def test_what_was_only_begun(bucket: Bucket, tmp_path: Path) -> None:
    """A program that was killed has left an upload: whoever commits or removes the step ends it, and no other."""
    store = save(tmp_path / "store", SMALL, 1, 2)
    ours = [f"run/g000001/step-000000000{step}/rank-00000.x.safetensors" for step in (1, 2)]
    others = ["run/notes", "run2/g000001/step-0000000001/x", "run/g000001/step-00000000011/x"]

    def begin(key: str) -> None:
        assert bucket.server.ask("POST", key, query={"uploads": ""}).status == 200

    def begun() -> list[str]:
        return sorted(bucket.server.ask("GET", "", query={"uploads": ""}).texts("Key"))

    for key in (*ours, *others):
        begin(key)
    bucket.good("ckpt", "upload", store, URL)
    assert begun() == sorted(others)
    for key in ours:
        begin(key)
    # What stays may be on its way still.
    bucket.good("ckpt", "prune", URL, "--keep-last", 1, "--grace", 0)
    assert begun() == sorted([ours[1], *others])
    bucket.good("ckpt-verify", URL)


def test_cut_short_anywhere(bucket: Bucket, tmp_path: Path) -> None:
    """After any of its requests; then the job that has the step uploads again."""
    store = save(tmp_path / "store", SMALL, 1, 2, 3)
    prune = ("ckpt", "prune", URL, "--keep-last", 2, "--grace", 0, "-q")
    for nth in some(range(1, 40), 3):
        bucket.good("ckpt", "upload", store, URL)
        assert states(bucket, URL) == dict.fromkeys((3, 2, 1), "committed")
        bucket.server.rules(
            {"do": "answer", "key": "*step-0000000001*", "nth": nth, "times": 1000, "status": 403,
             "code": "AccessDenied"},
        )  # fmt: skip
        result = bucket.run(*prune)
        bucket.server.rules()
        gone = not [name for name in bucket.names() if "step-0000000001" in name]
        bucket.good("ckpt-verify", URL)
        bucket.good("ckpt", "upload", store, URL)
        bucket.good("ckpt-verify", URL)
        bucket.good(*prune)
        assert states(bucket, URL) == dict.fromkeys((3, 2), "committed")
        if gone:
            assert result.returncode == OK, result
            break
        # A manifest that cannot be read just now is none to remove.
        assert result.returncode == AUTH or nth <= 4, result
    assert 6 < nth < 36
