# SPDX-License-Identifier: Apache-2.0
"""The demo: it passes on a small training, and what it checks is able to fail."""

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import pytest
from forked import start_file
from waiting import ended, finished

ROOT = Path(__file__).resolve().parents[2]
# Not at the front: there is a conftest there, too.
sys.path.append(str(ROOT / "tests" / "s3"))

from s3_server import ACCESS, S3D, SECRET, Server  # noqa: E402

CHECK = ROOT / "scripts" / "demo_check.py"
SMALL = "--steps 30 --every 3 --width 128 --depth 4 --heads 4 --context 16 --text-bytes 200000"


def run(*command):
    return finished([sys.executable, *command])


def check(*arguments):
    return run(CHECK, *arguments)


def gpt(store, log, *more):
    return [ROOT / "examples" / "gpt.py", "--store", store, "--log", log, *SMALL.split(), *more]


def train(*command):
    """Runs a training to its end. Returns what it has printed."""
    started = start_file(*command)
    out, err = ended(started)
    assert started.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A training that is never killed: its store, and the losses beside it."""
    store = tmp_path_factory.mktemp("reference") / "store"
    train(*gpt(store, store.with_name("losses")))
    return store


def test_killed_in_the_middle_of_a_save_it_ends_with_the_same_losses(tmp_path, reference):
    killed = tmp_path / "killed"
    done = check("kill", killed, "--", sys.executable, *gpt(killed, tmp_path / "k"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed process" in done.stdout
    resumed = train(*gpt(killed, tmp_path / "k"))
    assert "resumed at step" in resumed
    same = check("losses", reference.with_name("losses"), tmp_path / "k", 30)
    assert same.returncode == 0, same.stdout + same.stderr
    equal = check("same", reference, killed)
    assert equal.returncode == 0, equal.stdout + equal.stderr


def lose_all_but(tmp_path, remote, reference):
    """Killed in the middle of an upload, its directory removed: it goes on from the remote one."""
    store = tmp_path / "run"
    command = gpt(store, tmp_path / "k", "--remote", remote)
    done = check("kill-upload", remote, "--", sys.executable, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in the middle of uploading" in done.stdout
    assert ".safetensors" in done.stdout
    shutil.rmtree(store)
    assert "resumed at step" in train(*command)
    same = check("losses", reference.with_name("losses"), tmp_path / "k", 30)
    assert same.returncode == 0, same.stdout + same.stderr


@pytest.mark.parametrize("remote", ["directory", "bucket"])
def test_killed_in_the_middle_of_an_upload_it_goes_on_from_what_is_there(
    tmp_path, reference, monkeypatch, remote
):
    if remote == "directory":
        lose_all_but(tmp_path, f"file://{tmp_path / 'remote'}", reference)
        return
    if not S3D.exists():
        pytest.skip("a library built without S3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = Server()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        made = check("bucket", "s3://demo/run")
        assert made.returncode == 0, made.stderr
        lose_all_but(tmp_path, "s3://demo/run", reference)
    finally:
        server.stop()


@pytest.mark.parametrize("what", ["kill", "kill-upload"])
def test_a_command_that_ends_before_it_is_killed_is_a_failure(tmp_path, what):
    where = f"file://{tmp_path}" if what == "kill-upload" else tmp_path
    done = check(what, where, "--", sys.executable, "-c", "pass")
    assert done.returncode != 0
    assert "ended by itself" in done.stderr


@pytest.mark.parametrize(
    ("killed", "why"),
    [
        ("1 0x1p+0\n2 0x1.8p+0\n2 0x1.8000000000001p+0\n3 0x1p+1\n", "step 2"),
        ("1 0x1p+0\n2 0x1.8p+0\n2 0x1.8p+0\n", "lacks"),
        ("1 0x1p+0\n2 0x1.8p+0\n3 0x1p+1\n", "no step twice"),
    ],
)
def test_losses_that_differ_are_a_failure(tmp_path, killed, why):
    (tmp_path / "r").write_text("1 0x1p+0\n2 0x1.8p+0\n3 0x1p+1\n")
    (tmp_path / "k").write_text(killed)
    done = check("losses", tmp_path / "r", tmp_path / "k", 3)
    assert done.returncode != 0
    assert why in done.stderr


def store_of(path, value):
    step = path / "g000001" / "step-0000000001"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    shard = step / "rank-00000.0123456789abcdef.safetensors"
    shard.write_bytes(struct.pack("<Q", len(header)) + header + bytes([1, 2, 3, value]))
    return shard


def test_one_byte_that_differs_is_a_failure(tmp_path):
    store_of(tmp_path / "a", 4)
    store_of(tmp_path / "b", 4)
    store_of(tmp_path / "c", 5)
    assert check("same", tmp_path / "a", tmp_path / "b").returncode == 0
    done = check("same", tmp_path / "a", tmp_path / "c")
    assert done.returncode != 0
    assert "a differs" in done.stderr


def test_flip_changes_one_byte_and_the_report_must_name_it(tmp_path):
    shard = store_of(tmp_path / "a", 4)
    before = shard.read_bytes()
    note, report = tmp_path / "note", tmp_path / "report"
    assert check("flip", tmp_path / "a", note).returncode == 0
    after = shard.read_bytes()
    differing = [
        at for at, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1
    ]
    flipped = json.loads(note.read_text())
    assert differing == [flipped["offset"]]
    assert flipped["tensor"] == "a"

    def verdict(**error):
        finding = {"type": "finding", "error": {**flipped, **error}}
        report.write_text(json.dumps(finding) + '\n{"type": "summary"}\n')
        return check("found", note, report).returncode

    assert verdict() == 0
    assert verdict(tensor="b") != 0
    assert verdict(file="another") != 0
    assert verdict(offset=flipped["offset"] + 1) != 0
