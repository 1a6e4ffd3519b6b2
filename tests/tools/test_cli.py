# SPDX-License-Identifier: Apache-2.0
"""The native programs as a person or a script meets them: output, exit codes, interruption."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stock_digest import digest
from waiting import ended, finished, until

from libckpt import Checkpointer, CheckpointWarning, IntegrityError

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).parents[2] / "build" / "tools"))
OK, FAILED, USAGE, INCOMPLETE, INTEGRITY = 0, 1, 2, 3, 4
NOT_FOUND, IN_USE, AUTH, NO_SPACE = 10, 11, 12, 14


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    program, *rest = (str(a) for a in arguments)
    return finished([TOOLS / program, *rest])


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


STATE = {
    "w": torch.arange(300_000, dtype=torch.float32).reshape(300, 1000),
    "b": torch.linspace(0, 1, 777, dtype=torch.float64),
    "note": "hello",
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "run"
    with Checkpointer(str(path), state=dict(STATE)) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step).wait("local")
    return path


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def one(store: Path, step: int, suffix: str) -> Path:
    (path,) = store.glob(f"g*/step-{step:010d}/*{suffix}")
    return path


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1]))


def test_verify_good(store: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    result = run("ckpt-verify", store)
    assert result.returncode == OK, result.stderr
    assert "3 steps" in result.stdout and "all good" in result.stdout
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before
    result = run("ckpt-verify", store, "--json")
    *good, summary = lines(result.stdout)
    assert {g["step"] for g in good} == {10, 20, 30}
    assert summary["type"] == "summary" and summary["exit"] == 0 and summary["schema"] == 1
    assert run("ckpt-verify", store, "-q").stdout == ""


def test_verify_names_file_offset_tensor(store: Path) -> None:
    shard = one(store, 20, ".safetensors")
    size = shard.stat().st_size
    at = size // 2
    flip(shard, at)
    result = run("ckpt-verify", store, "--json")
    assert result.returncode == INTEGRITY
    (finding,) = [x for x in lines(result.stdout) if x["type"] == "finding"]
    error = finding["error"]
    assert isinstance(error, dict)
    assert finding["step"] == 20
    assert error["file"] == str(shard.relative_to(store))
    assert error["tensor"] == "w"
    offset = error["offset"]
    assert isinstance(offset, int) and 4096 <= offset <= at < offset + (1 << 20)
    text = run("ckpt-verify", store)
    assert text.returncode == INTEGRITY
    assert shard.name in text.stdout and "tensor w" in text.stdout
    # The others are good, and said to be.
    assert run("ckpt-verify", store, "--step", "30").returncode == OK
    assert run("ckpt-verify", store, "--step", "latest~1").returncode == INTEGRITY


def test_verify_broken_claim(store: Path) -> None:
    flip(store / "gens" / "000001.json", 20)
    result = run("ckpt-verify", store)
    assert result.returncode == INTEGRITY
    assert "gens/000001.json" in result.stdout


def test_verify_missing_and_short(store: Path) -> None:
    one(store, 10, ".safetensors").unlink()
    shard = one(store, 20, ".safetensors")
    os.truncate(shard, shard.stat().st_size - 4096)
    assert run("ckpt-verify", store).returncode == INCOMPLETE
    assert run("ckpt-verify", store, "--step", "10").returncode == INCOMPLETE
    assert run("ckpt-verify", store, "--step", "20").returncode == INCOMPLETE
    flip(one(store, 30, ".safetensors"), 5000)
    assert run("ckpt-verify", store).returncode == INTEGRITY


def test_restore(store: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest)
    assert result.returncode == OK, result.stderr
    assert "step 30" in result.stdout
    tensors = load_file(one(dest, 30, ".safetensors"))
    assert torch.equal(tensors["w"], STATE["w"])
    assert torch.equal(tensors["b"], STATE["b"])
    # DEST is a store again, byte for byte, and training goes on from it.
    assert one(dest, 30, ".safetensors").read_bytes() == one(store, 30, ".safetensors").read_bytes()
    assert run("ckpt-verify", dest).returncode == OK
    state = {"w": torch.zeros(300, 1000), "b": torch.zeros(777, dtype=torch.float64), "note": ""}
    with Checkpointer(str(dest), state=state) as ckpt:
        assert ckpt.resume() == 30
        assert torch.equal(state["w"], STATE["w"])
        ckpt.save(40).wait("local")
    again = run("ckpt-restore", store, dest)
    assert again.returncode == OK, again.stderr
    assert "step 30 is in" in again.stdout
    assert "already" in again.stdout


def test_restore_older_and_json(store: Path, tmp_path: Path) -> None:
    result = run("ckpt-restore", store, tmp_path / "a", "--step", "latest~2", "--json")
    (line,) = lines(result.stdout)
    assert (line["type"], line["step"]) == ("restored", 10)


def test_restore_refuses_damage(store: Path, tmp_path: Path) -> None:
    flip(one(store, 30, ".safetensors"), 700_000)
    dest = tmp_path / "out"
    result = run("ckpt-restore", store, dest)
    assert result.returncode == INTEGRITY
    assert not list(dest.rglob("manifest.json"))
    assert not list(dest.rglob("*.safetensors"))


def test_all_quarantined(store: Path, tmp_path: Path) -> None:
    """Whoever asks for the newest gets no step because none verified: that is no mere failure."""
    for step in (10, 20, 30):
        flip(one(store, step, ".safetensors"), 700_000)
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(IntegrityError),
        Checkpointer(str(store), state=dict(STATE)) as ckpt,
    ):
        ckpt.resume()
    assert len(list(store.rglob("quarantine.json"))) == 3
    assert run("ckpt-restore", store, tmp_path / "out").returncode == INTEGRITY
    assert run("ckpt", "show", store).returncode == INTEGRITY
    assert run("ckpt-verify", store, "--step", "latest").returncode == INTEGRITY
    # A number is asked for all the same, and says what is wrong with it.
    assert run("ckpt-verify", store, "--step", "20").returncode == INTEGRITY


def test_ls_and_show(store: Path) -> None:
    result = run("ckpt", "ls", store)
    assert result.returncode == OK
    assert [row.split()[0] for row in result.stdout.splitlines()[2:]] == ["30", "20", "10"]
    (listing,) = lines(run("ckpt", "ls", store, "--json").stdout)
    steps = listing["steps"]
    assert isinstance(steps, list)
    assert [(s["step"], s["state"], s["lineage"]) for s in steps] == [
        (30, "committed", True),
        (20, "committed", True),
        (10, "committed", True),
    ]
    result = run("ckpt", "show", store, "--step", 20)
    assert result.returncode == OK
    assert "F32" in result.stdout and "[300, 1000]" in result.stdout
    (shown,) = lines(run("ckpt", "show", store, "--json").stdout)
    tensors = shown["tensors"]
    assert isinstance(tensors, list)
    assert {t["name"]: t["shape"] for t in tensors}["w"] == [300, 1000]
    assert "hello" in json.dumps(shown["meta"])


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Checkpointer(str(path), state={"evil\x1b[2J\n": torch.zeros(3)}) as ckpt:
        ckpt.save(1).wait("local")
    result = run("ckpt", "show", path)
    assert "\x1b" not in result.stdout and "\\x1b" in result.stdout
    assert result.returncode == OK


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ckpt-verify"], USAGE),
        (["ckpt-verify", "{store}", "--step", "newest"], USAGE),
        (["ckpt-verify", "{store}", "--step", "-1"], USAGE),
        (["ckpt-verify", "{store}", "--bogus"], USAGE),
        (["ckpt-verify", "{store}", "more"], USAGE),
        (["ckpt-restore", "{store}"], USAGE),
        (["ckpt", "ls", "{store}", "--step", "1"], USAGE),
        (["ckpt", "ls", "{store}", "-q"], USAGE),
        (["ckpt", "ls", "{store}", "--progress", "never"], USAGE),
        (["ckpt", "show", "{store}", "--progress=never"], USAGE),
        (["ckpt-verify", "{store}", "--js"], USAGE),
        (["ckpt-verify", "{store}", "--ste", "20"], USAGE),
        (["ckpt-verify", "--prog=never", "{store}"], USAGE),
        (["ckpt-verify", ""], USAGE),
        (["ckpt-restore", "", "{store}/../out"], USAGE),
        (["ckpt-restore", "{store}", ""], USAGE),
        (["ckpt-verify", "--step=20", "{store}", "--progress", "never", "--quiet", "--json"], OK),
        (["ckpt"], USAGE),
        (["ckpt", "frobnicate"], USAGE),
        (["ckpt-verify", "/nonexistent/store"], NOT_FOUND),
        (["ckpt-verify", "/"], NOT_FOUND),
        (["ckpt-verify", "/etc/passwd"], NOT_FOUND),
        (["ckpt-verify", "{store}", "--step", "11"], NOT_FOUND),
        (["ckpt-verify", "{store}", "--step", "latest~3"], NOT_FOUND),
        (["ckpt", "show", "{store}", "--step", "99"], NOT_FOUND),
        (["ckpt", "show", "{store}", "--with", "1"], USAGE),
        (["ckpt", "diff", "{store}", "", "--structure"], USAGE),
        (["ckpt", "ls", "/nonexistent"], NOT_FOUND),
    ],
)
def test_exit_codes(store: Path, arguments: list[str], code: int) -> None:
    result = run(*(a.format(store=store) for a in arguments))
    assert result.returncode == code, result.stderr
    assert result.stderr.strip() or result.stdout.strip()
    assert code != USAGE or "usage: " in result.stderr


@pytest.mark.parametrize("program", [["ckpt-verify"], ["ckpt-restore"], ["ckpt", "ls"], ["ckpt", "show"], ["ckpt", "diff"]])
def test_help_has_examples(program: list[str]) -> None:
    result = run(*program, "--help")
    assert result.returncode == OK
    assert "usage: " in result.stdout and "Example" in result.stdout
    assert "Exit status" in result.stdout


PAGES = Path(__file__).parents[2] / "tools" / "man"


@pytest.mark.parametrize("program", ["ckpt-verify", "ckpt-restore"])
def test_manual_has_every_exit_code_of_the_help(program: str) -> None:
    status = run(program, "--help").stdout.split("Exit status: ")[1].split("Examples")[0]
    told = set(re.findall(r"(?:^|[;,])\s*(\d+)\b", status)) | {"130"}
    page = (PAGES / f"{program}.1").read_text()
    table = page.split(".SH EXIT STATUS")[1].split(".TS")[1].split(".TE")[0]
    assert {"0", "1", "2", "3", "4", "10", "12"} <= told
    assert told == set(re.findall(r"^(\d+)[;,]", table, re.M)) | {"143"}
    for code in (11, 14):
        assert (str(code) in told) == (program == "ckpt-restore")


def test_version() -> None:
    said = run("ckpt-verify", "--version").stdout
    assert said.startswith("ckpt-verify (libckpt) 0.1.0")
    assert "zstd" in said.split()
    assert run("ckpt", "--version").stdout == said.replace("ckpt-verify", "ckpt")


def test_full_destination(store: Path, tmp_path: Path) -> None:
    dest = tmp_path / "small"
    dest.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(dest)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        result = run("ckpt-restore", store, dest)
        assert result.returncode == NO_SPACE, result.stderr
        assert "space" in result.stderr
    finally:
        subprocess.run(["umount", str(dest)], check=True)


def test_progress_bar_only_on_a_terminal(store: Path) -> None:
    assert run("ckpt-verify", store).stderr == ""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [str(TOOLS / "ckpt-verify"), str(store), "--progress", "always"],
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    out, _ = ended(process)
    os.close(follower)
    assert process.returncode == OK
    assert b"\r" not in out
    os.close(leader)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A signal ends a restore promptly, with its exit code, and leaves no half step behind."""
    path = tmp_path / "big"
    with Checkpointer(str(path), state={"x": torch.zeros(64 << 20)}) as ckpt:
        ckpt.save(1).wait("local")
    dest = tmp_path / "out"
    process = subprocess.Popen(
        [str(TOOLS / "ckpt-restore"), str(path), str(dest), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: process.poll() is not None or list(dest.rglob("*.safetensors")))
    process.send_signal(number)
    out, err = ended(process)
    (line,) = lines(out)
    if process.returncode == OK:
        assert run("ckpt-verify", dest).returncode == OK
        assert line["type"] == "restored"
    else:
        assert process.returncode == code
        assert not list(dest.rglob("manifest.json"))
        assert (line["type"], line["exit"]) == ("error", code)
        assert err == "ckpt-restore: interrupted\n"

    verify = subprocess.Popen(
        [str(TOOLS / "ckpt-verify"), str(path), "--progress", "always"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert verify.stderr is not None
    verify.stderr.read(1)
    verify.send_signal(number)
    out, _ = ended(verify)
    assert "NOT good" not in out
    assert out.endswith(": interrupted\n" if verify.returncode == code else ": all good\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_verify_interrupted_json(store: Path, number: signal.Signals) -> None:
    with paused(store) as pause:
        assert pause.catches(number)
        pause.process.send_signal(number)
        # A signal is caught once: then it has arrived.
        until(lambda: not pause.catches(number))
        *steps, summary = pause.finish()
        assert pause.process.returncode == 128 + number
    assert [(s["type"], s["step"]) for s in steps] in (
        [("good", 30)],
        [("good", 30), ("good", 20)],
    )
    assert (summary["exit"], summary["findings"]) == (128 + number, 0)
    assert summary["interrupted"] is True


def test_completion() -> None:
    script = Path(__file__).parents[2] / "tools" / "completion" / "ckpt.bash"
    shell = f"""
        . {script}
        COMP_WORDS=(ckpt "") COMP_CWORD=1; _ckpt; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(ckpt-verify --st) COMP_CWORD=1; _ckpt; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(ckpt ls --) COMP_CWORD=2; _ckpt; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(ckpt prune --k) COMP_CWORD=2; _ckpt; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(ckpt-restore --w) COMP_CWORD=1; _ckpt; echo "${{COMPREPLY[*]}}"
    """
    out = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        "ls show diff verify restore recode upload prune --help --version",
        "--step",
        "--stored --json --version --help",
        "--keep-last --keep-every",
        "--world-size --whole",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["ckpt", "ls", "{store}"],
        ["ckpt", "show", "{store}", "--json"],
        ["ckpt", "diff", "{store}", "--with", "latest"],
        ["ckpt-verify", "{store}"],
        ["ckpt-verify", "{store}", "--json"],
        ["ckpt-restore", "{store}", "{dest}"],
        ["ckpt", "--help"],
        ["ckpt-verify", "--version"],
    ],
)
@pytest.mark.parametrize("lost", [">/dev/full", ">&-"])
def test_lost_output_is_a_failure(
    store: Path, tmp_path: Path, command: list[str], lost: str
) -> None:
    words = [w.format(store=store, dest=tmp_path / "out") for w in command]
    result = finished(["sh", "-c", f'"$0" "$@" {lost}', TOOLS / words[0], *words[1:]])
    assert result.returncode == FAILED
    assert "cannot write the output" in result.stderr


def test_a_worse_exit_code_outlives_lost_output(store: Path) -> None:
    flip(one(store, 20, ".safetensors"), 700_000)
    with open("/dev/full", "w") as full:
        code = subprocess.call([TOOLS / "ckpt-verify", store], stdout=full, stderr=full)
    assert code == INTEGRITY


def test_closed_pipe_is_quiet(store: Path) -> None:
    """Whoever closes the pipe has read enough."""
    for ignored in (False, True):
        reader, writer = os.pipe()
        os.close(reader)
        old = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            command = [TOOLS / "ckpt-verify", store, "--json"]
            result = finished(command, stdout=writer, restore_signals=not ignored)
        finally:
            signal.signal(signal.SIGPIPE, old)
            os.close(writer)
        assert result.returncode == (FAILED if ignored else -signal.SIGPIPE)
        assert result.stderr == ""


def test_errors_about_the_destination(store: Path, tmp_path: Path) -> None:
    """They say nothing about STORE: a script that asks whether a step is there must not hear no."""
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_text("mine")
    damaged = tmp_path / "damaged"
    assert run("ckpt-restore", store, damaged, "--step", "10").returncode == OK
    (marker,) = (p for p in damaged.iterdir() if p.is_file())
    flip(marker, 20)
    for dest in (tmp_path / "no" / "parent", dangling, file, file / "below", damaged):
        result = run("ckpt-restore", store, dest, "--json")
        assert result.returncode == FAILED, (dest, result.stderr)
        (line,) = lines(result.stdout)
        assert (line["type"], line["exit"]) == ("error", FAILED)
        assert str(dest) in result.stderr
    held = tmp_path / "held"
    assert run("ckpt-restore", store, held, "--step", "10").returncode == OK
    with Checkpointer(str(held), state=dict(STATE)) as ckpt:
        ckpt.resume()
        ckpt.save(11).wait("local")
        assert run("ckpt-restore", store, held, "--step", "20").returncode == IN_USE
    assert file.read_text() == "mine"


class Paused:
    """ckpt-verify --json, stopped at its second line because the pipe has no room for that one."""

    def __init__(self, store: Path, room: int) -> None:
        self.reader, writer = os.pipe()
        capacity = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.filled = capacity - room
        os.write(writer, b" " * self.filled)
        self.process = subprocess.Popen([TOOLS / "ckpt-verify", store, "--json"], stdout=writer)
        os.close(writer)
        until(lambda: self.waiting() != self.filled or self.process.poll() is not None)
        assert self.process.poll() is None

    def waiting(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)), "little")

    def catches(self, number: int) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = next(row for row in status.splitlines() if row.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def finish(self) -> list[dict[str, object]]:
        with open(self.reader) as pipe:
            text = pipe.read()
        until(lambda: self.process.poll() is not None)
        return lines(text.lstrip())


@contextlib.contextmanager
def paused(store: Path, room: int = 200) -> Iterator[Paused]:
    """One line has to fit into `room`, and two must not."""
    pause = Paused(store, room)
    try:
        yield pause
    finally:
        pause.process.kill()
        pause.process.wait()


def remove(store: Path, step: int) -> None:
    """As retention does: the manifest first."""
    manifest = one(store, step, "manifest.json")
    manifest.unlink()
    shutil.rmtree(manifest.parent)


def test_verify_beside_retention(store: Path) -> None:
    """A step that goes between the listing and its reading is no finding."""
    with paused(store) as pause:
        remove(store, 10)
        *steps, summary = pause.finish()
        assert pause.process.returncode == OK
    assert all(100 < len(json.dumps(s, separators=(",", ":"))) < 200 for s in steps[:2])
    assert [(s["type"], s["step"]) for s in steps] == [("good", 30), ("good", 20), ("removed", 10)]
    assert (summary["steps"], summary["removed"], summary["findings"]) == (2, 1, 0)


def test_verify_lists_again_when_all_are_gone(store: Path, tmp_path: Path) -> None:
    """Damaged manifests make it pause before the first good step; each is said once."""
    with Checkpointer(str(store), state=dict(STATE)) as ckpt:
        ckpt.resume()
        ckpt.save(40).wait("local")
        ckpt.save(50).wait("local")
    for step in (40, 50):
        flip(one(store, step, "manifest.json"), 60)
    later = one(store, 10, "manifest.json").parent
    later.rename(tmp_path / "later")
    with paused(store, 400) as pause:
        remove(store, 30)
        remove(store, 20)
        (tmp_path / "later").rename(later)
        *steps, summary = pause.finish()
        assert pause.process.returncode == INTEGRITY
    assert all(200 < len(json.dumps(s, separators=(",", ":"))) < 400 for s in steps[:2])
    assert [(s["type"], s["step"]) for s in steps] == [
        ("finding", 50),
        ("finding", 40),
        ("removed", 30),
        ("removed", 20),
        ("good", 10),
    ]
    assert (summary["steps"], summary["removed"], summary["findings"]) == (1, 2, 2)


def test_verify_beside_a_writer_that_keeps_one_step(tmp_path: Path) -> None:
    path = tmp_path / "run"
    stop = threading.Event()
    written = []

    def write() -> None:
        with Checkpointer(str(path), state={"w": torch.zeros(1000)}, keep_last=1) as ckpt:
            while not stop.is_set():
                written.append(len(written) + 1)
                ckpt.save(written[-1]).wait("local")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: len(written) >= 3 or not writer.is_alive())
        results = [run("ckpt-verify", path) for _ in range(20)]
    finally:
        stop.set()
        writer.join()
    assert [r.returncode for r in results] == [OK] * len(results), results
    assert len(written) > 3, "nothing was written, and nothing removed, beside the verification"


def test_verify_beside_somebody_who_takes_no_lock(pristine: Path, tmp_path: Path) -> None:
    """Where locks do not work a step may go while it is read."""
    for part in range(12):
        store = Path(shutil.copytree(pristine, tmp_path / str(part)))
        process = subprocess.Popen(
            [TOOLS / "ckpt-verify", store], stdout=subprocess.PIPE, text=True
        )
        for step in (30, 20, 10)[: 1 + part % 2]:
            remove(store, step)
        out, _ = ended(process)
        assert process.returncode == OK, out
        assert "all good" in out


def reseal(manifest: Path, change: tuple[bytes, bytes]) -> None:
    """Changes a manifest so that it verifies: as another version of the program would write it."""
    body = manifest.read_bytes().rpartition(b',"digest":')[0]
    assert change[0] in body
    body = body.replace(*change)
    manifest.write_bytes(body + b',"digest":"' + digest(body).hex().encode() + b'"}\n')


def unreadable(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()


@pytest.mark.parametrize(
    ("damage", "code", "headline", "detail"),
    [
        (lambda m: flip(m, 60), INTEGRITY, "data differ from their digest", "put it back"),
        (lambda m: os.truncate(m, 100), INTEGRITY, "malformed file", "truncated"),
        (
            lambda m: reseal(m, (b'"world":1', b'"world":2')),
            INTEGRITY,
            "malformed file",
            "",
        ),
        (
            lambda m: reseal(m, (b'"format":[1,0]', b'"format":[9,0]')),
            FAILED,
            "newer",
            "install libckpt 9.0 or newer",
        ),
        (unreadable, FAILED, "Is a directory", ""),
        (lambda m: (m.unlink(), os.mkfifo(m)), FAILED, "No such device", ""),
        (lambda m: reseal(m, (b'"step":20', b'"step":21')), INTEGRITY, "digest", "another step"),
    ],
    ids=["damaged", "short", "malformed", "newer", "directory", "fifo", "strange"],
)
def test_verify_says_why_a_manifest_is_bad(
    store: Path, damage: Callable[[Path], object], code: int, headline: str, detail: str
) -> None:
    manifest = one(store, 20, "manifest.json")
    damage(manifest)
    name = str(manifest.relative_to(store))
    result = run("ckpt-verify", store)
    assert result.returncode == code, result.stdout
    rows = result.stdout.splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("step 20: "))
    assert headline in rows[at] and rows[at].endswith(name)
    assert name in rows[at + 1] and detail in rows[at + 1]
    assert "2 steps" in rows[-1] and "NOT good" in rows[-1]
    # By its number it is the same.
    assert run("ckpt-verify", store, "--step", "20").returncode == code


def test_verify_without_permission(store: Path, tmp_path: Path) -> None:
    manifest = one(store, 20, "manifest.json")
    manifest.chmod(0)
    command = [str(TOOLS / "ckpt-verify"), str(store)]
    if os.geteuid() == 0:
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        if not shutil.which("setpriv") or subprocess.call([*drop, "true"]):
            pytest.skip("root cannot give its rights up here")
        command = drop + command
    result = finished(command)
    assert result.returncode == AUTH, result.stdout
    assert "Permission denied" in result.stdout


def test_no_such_step_is_no_step_0(store: Path) -> None:
    flip(store / "gens" / "000001.json", 20)
    assert "step 0" not in run("ckpt-verify", store).stdout
    flip(store / "gens" / "000001.json", 20)
    for extra in ([], ["--json"]):
        result = run("ckpt-verify", store, "--step", "latest~9", *extra)
        assert result.returncode == NOT_FOUND
        assert "9 before the latest" in result.stderr
        assert "step 0" not in result.stdout and '"step":0' not in result.stdout


def quarantine(store: Path, step: int) -> None:
    shard = one(store, step, ".safetensors")
    flip(shard, 700_000)
    with (
        pytest.warns(CheckpointWarning),
        Checkpointer(str(store), state=dict(STATE)) as ckpt,
    ):
        assert ckpt.resume() != step
    flip(shard, 700_000)
    assert one(store, step, "quarantine.json").exists()


def test_restore_says_what_it_passes_over(store: Path, tmp_path: Path) -> None:
    quarantine(store, 30)
    flip(one(store, 20, "manifest.json"), 60)
    result = run("ckpt-restore", store, tmp_path / "a", "-q")
    assert (result.returncode, result.stdout) == (OK, "")
    rows = result.stderr.splitlines()
    assert len(rows) == 2
    assert "step 30 was skipped: it is quarantined: " in rows[0]
    assert "step 20 was skipped: its manifest is damaged: " in rows[1]
    (line,) = lines(run("ckpt-restore", store, tmp_path / "b", "--json").stdout)
    passed = line["passed_over"]
    assert isinstance(passed, list) and line["step"] == 10
    assert [(p["step"], p["state"]) for p in passed] == [(30, "quarantined"), (20, "broken")]
    # A step that was asked for by its number: none was skipped.
    result = run("ckpt-restore", store, tmp_path / "c", "--step", "10", "--json")
    assert lines(result.stdout)[0]["passed_over"] == []
    assert result.stderr == ""
    # Training went on from step 10: what is on the branch that was left is passed over by nobody.
    with (
        pytest.warns(CheckpointWarning),
        Checkpointer(str(store), state=dict(STATE)) as ckpt,
    ):
        assert ckpt.resume() == 10
        ckpt.save(11).wait("local")
        ckpt.save(12).wait("local")
    flip(one(store, 12, "manifest.json"), 60)
    flip(one(store, 11, "manifest.json"), 60)
    (line,) = lines(run("ckpt-restore", store, tmp_path / "d", "--json").stdout)
    passed = line["passed_over"]
    assert isinstance(passed, list) and line["step"] == 10
    assert [p["step"] for p in passed] == [12, 11]


def test_verify_says_what_lifts_a_quarantine(store: Path) -> None:
    quarantine(store, 30)
    for extra in ([], ["--step", "30"]):
        result = run("ckpt-verify", store, *extra)
        assert result.returncode == OK
        (row,) = (r for r in result.stdout.splitlines() if "quarantined" in r)
        assert "its files are good now: delete g000001/step-0000000030/quarantine.json" in row
        (line,) = (
            x
            for x in lines(run("ckpt-verify", store, "--json", *extra).stdout)
            if x["type"] == "quarantined"
        )
        assert line["step"] == 30
        (store / str(line["file"])).stat()
    # What it says helps.
    (store / str(line["file"])).unlink()
    assert "quarantined" not in run("ckpt-verify", store).stdout
    assert "step 30" in run("ckpt-restore", store, store.with_name("out")).stdout
