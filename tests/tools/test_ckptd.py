# SPDX-License-Identifier: Apache-2.0
"""`ckptd` as its users meet it, and as systemd does; and its socket by FORMAT.md and message.h alone."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_programs import FAILED, IN_USE, NOT_FOUND, OK, TOOLS, USAGE
from waiting import ended, until

CKPTD = TOOLS.parent / "agent" / "ckptd"
MIB = 1 << 20
JOB = bytes(range(1, 17))
ATTACH, FILL, SEAL, DETACH, FETCH, STATUS = 1, 2, 3, 4, 6, 8
ATTACHED, FILLED, FETCHED, STATE, ERROR = 65, 66, 70, 72, 127


class Rank:
    """A client that shares no code with the library."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(folder / "socket"))

    def ask(self, kind: int, body: bytes = b"") -> tuple[int, bytes, list[int]]:
        self.socket.send(b"CKPT" + struct.pack("<III", 1, kind, len(body)) + body)
        data, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
        assert data[:8] == b"CKPT\1\0\0\0"
        answer, length = struct.unpack_from("<II", data, 8)
        assert length == len(data) - 16
        return answer, data[16:], fds

    def attach(self, capacity: int = MIB, writer: int = 0) -> int:
        body = JOB + struct.pack("<QQQIII", 1, writer, capacity, 0, 2, 1)
        kind, answer, _ = self.ask(ATTACH, body)
        assert kind == ATTACHED, answer
        (writer,) = struct.unpack("<Q", answer)
        return writer


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, as paths of sockets must be."""
    return tmp_path_factory.mktemp("d") / "agent"


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object, **more: Any) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
        process = subprocess.Popen(
            [CKPTD, "--dir", folder, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=more.pop("stderr", subprocess.PIPE), text=True,
            env={**environment, **more.pop("env", {})}, start_new_session=True, **more,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """With its agent. It leads a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def serving(folder: Path) -> bool:
    return (
        subprocess.run([CKPTD, "--dir", folder, "--status"], capture_output=True).returncode == OK
    )


def status(folder: Path) -> list[dict[str, Any]]:
    words = [CKPTD, "--dir", folder, "--status", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_serves_and_ends(start: Callable[..., subprocess.Popen[str]], folder: Path) -> None:
    agent = start("--memory", "64MiB", "--linger", "7")
    until(lambda: serving(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "socket").stat().st_mode & 0o777 == 0o600
    (said,) = status(folder)
    assert (said["type"], said["memory"], said["linger_s"], said["slots"]) == (
        "agent",
        64 * MIB,
        7,
        0,
    )
    rank = Rank(folder)
    rank.attach()
    said, *slots = status(folder)
    assert said["used"] == 2 * (MIB + 8192)
    assert [(s["rank"], s["state"], s["attached"]) for s in slots] == [(0, "empty", True)] * 2
    assert slots[0]["job"] == JOB.hex()
    words = [CKPTD, "--dir", folder, "--status"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "of 64.0 MiB in use" in out
    assert out.count(f"{JOB.hex()}  rank 0") == 2
    agent.terminate()
    out, err = ended(agent)
    assert (agent.returncode, out) == (OK, "")
    assert "up to 64.0 MiB" in err
    assert not (folder / "socket").exists()


def test_one_agent_serves_a_directory(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    first = start("--memory", "64MiB")
    until(lambda: serving(folder))
    second = start("--memory", "64MiB")
    _, err = ended(second)
    assert second.returncode == IN_USE
    assert "another ckptd serves" in err
    assert serving(folder), "it has taken the socket of the first one away"
    first.terminate()
    ended(first)
    assert first.returncode == OK


def attached(folder: Path) -> Rank:
    rank = Rank(folder)
    rank.attach()
    return rank


def agent_of(folder: Path) -> int:
    """The process that serves, which is not the one that was started."""
    pid = status(folder)[0]["pid"]
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize("full", [False, True], ids=["closed", "full"])
def test_nobody_reads_what_it_says(
    start: Callable[..., subprocess.Popen[str]], folder: Path, full: bool
) -> None:
    reader, writer = os.pipe()
    if full:
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
    else:
        os.close(reader)
    keeper = start("--memory", "64MiB", "--linger", "0", stderr=writer)
    until(lambda: serving(folder))
    attached(folder).socket.close()
    # It says that it has freed them.
    until(lambda: status(folder)[0]["slots"] == 0)
    first = agent_of(folder)
    os.kill(first, signal.SIGKILL)
    # Its keeper says so.
    until(lambda: serving(folder) and agent_of(folder) != first)
    keeper.terminate()
    keeper.wait()
    assert keeper.returncode == OK
    os.close(writer)
    if full:
        os.close(reader)


def test_it_ends_when_the_agent_dies_before_it_is_told(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    keeper = start("--memory", "64MiB")
    until(lambda: serving(folder))
    agent = agent_of(folder)
    # It finds both when it goes on.
    keeper.send_signal(signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    until(lambda: Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    keeper.terminate()
    keeper.send_signal(signal.SIGCONT)
    ended(keeper)
    assert keeper.returncode == OK


@pytest.mark.parametrize("notify", ["", "inherited"])
def test_variables_of_systemd_that_mean_another_process(
    start: Callable[..., subprocess.Popen[str]], folder: Path, notify: str
) -> None:
    keeper = start(
        "--memory", "64MiB", env={"NOTIFY_SOCKET": notify and "/none", "SYSTEMD_EXEC_PID": "1"}
    )
    until(lambda: serving(folder))
    assert agent_of(folder) != keeper.pid
    keeper.terminate()
    _, err = ended(keeper)
    assert keeper.returncode == OK
    assert f"process {keeper.pid} keeps the descriptors" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "7XiB"], "--memory takes a size"),
        (["--memory", "0"], "--memory takes a size"),
        (["--linger", "-1"], "--linger takes a number"),
        (["--json"], "--json goes with --status"),
        (["more"], "options only"),
        (["--port"], "unknown option"),
    ],
)
def test_wrong_usage(
    start: Callable[..., subprocess.Popen[str]], folder: Path, words: list[str], said: str
) -> None:
    agent = start(*words)
    _, err = ended(agent)
    assert agent.returncode == USAGE
    assert said in err
    assert not folder.exists()


def test_no_agent_and_a_directory_of_others(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    asked = start("--status")
    _, err = ended(asked)
    assert asked.returncode == NOT_FOUND
    assert "no agent answers" in err
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    agent = start("--memory", "64MiB")
    _, err = ended(agent)
    assert agent.returncode == FAILED
    assert "chmod 700" in err


class Systemd:
    """As much of it as keeps descriptors and starts a service again."""

    def __init__(self, path: Path) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.kept: dict[str, int] = {}

    def until_ready(self) -> None:
        while "READY=1" not in self.hear():
            pass

    def hear(self) -> list[str]:
        self.socket.settimeout(300)
        space = socket.CMSG_SPACE(4)
        data, ancillary, _, _ = self.socket.recvmsg(4096, space)
        fds = array.array("i")
        for _, _, body in ancillary:
            fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
        words = data.decode().split()
        name = next((w.removeprefix("FDNAME=") for w in words if w.startswith("FDNAME=")), "")
        if "FDSTORE=1" in words:
            (fd,) = fds
            # Above all that a service gets.
            self.kept[name] = fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
            os.close(fd)
        if "FDSTOREREMOVE=1" in words:
            os.close(self.kept.pop(name))
        return words

    def environment(self) -> dict[str, str]:
        names = ":".join(self.kept)
        return {
            "NOTIFY_SOCKET": str(self.path), "LISTEN_FDS": str(len(self.kept)), "LISTEN_FDNAMES": names,
        }  # fmt: skip

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        """With what is kept at 3 and up, and its process id in LISTEN_PID."""
        fds = list(self.kept.values())
        moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(fds))
        closes = " ".join(f"{fd}<&-" for fd in fds)
        words = f'LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$ exec "$@" {moves} {closes}'
        process = subprocess.Popen(
            ["bash", "-c", words, "bash", CKPTD, "--dir", folder, "--memory", "64MiB"],
            env={**os.environ, **self.environment()}, pass_fds=fds, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process


@pytest.fixture
def manager(folder: Path) -> Iterator[Systemd]:
    made = Systemd(folder.parent / "notify")
    yield made
    for process in made.started:
        stop(process)


def test_systemd_keeps_the_slots_of_an_agent_that_is_killed(manager: Systemd, folder: Path) -> None:
    agent = manager.start(folder)
    manager.until_ready()
    rank = Rank(folder)
    rank.attach()
    while len(manager.kept) < 2:
        manager.hear()
    kind, body, (fd,) = rank.ask(FILL, struct.pack("<QQQ", 10, 0, 0))
    assert kind == FILLED
    slot, capacity = struct.unpack("<QQ", body)
    assert capacity == MIB
    saved = os.urandom(MIB)
    os.pwrite(fd, saved, 4096)
    # The digest of one chunk; nobody compares it here, but for that of the table.
    os.pwrite(fd, bytes(16), 4096 + MIB)
    kind, body, _ = rank.ask(SEAL, struct.pack("<QQQ", slot, 10, MIB) + bytes(16))
    assert kind == 64, body
    kind, body, (other,) = rank.ask(FILL, struct.pack("<QQQ", 11, 1, 10))
    assert kind == FILLED
    os.pwrite(other, b"torn" * 1000, 4096)

    agent.send_signal(signal.SIGKILL)
    agent.wait()
    os.close(fd)
    os.close(other)
    agent = manager.start(folder)
    manager.until_ready()
    assert [(s["state"], s["step"]) for s in status(folder)[1:]] == [
        ("sealed", 10),
        ("filling", 11),
    ]
    rank = Rank(folder)
    kind, body, (fd,) = rank.ask(FETCH, struct.pack("<QQQ", slot, 1, 10))
    assert (kind, body) == (FETCHED, struct.pack("<QQ", slot, MIB))
    assert os.pread(fd, MIB, 4096) == saved
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 4096)
    header = os.pread(fd, 208, 0)
    assert header[:8] == b"CKPTSLOT"
    assert struct.unpack_from("<QQ", header, 16) == (MIB, slot)
    assert struct.unpack_from("<I", header, 128) == (2,)
    assert struct.unpack_from("<QQQ", header, 144) == (1, 10, MIB)
    kind, _, fds = rank.ask(FETCH, struct.pack("<QQQ", slot + 1, 1, 11))
    assert (kind, fds) == (ERROR, [])
    os.close(fd)

    # Another process of the rank: what was filling goes, and systemd is told so.
    rank.attach()
    kind, body, (fd,) = rank.ask(FILL, struct.pack("<QQQ", 11, 1, 10))
    assert kind == FILLED
    assert struct.unpack("<QQ", body)[0] > slot + 1
    os.close(fd)
    until(lambda: manager.hear() and f"slot-{slot + 1}" not in manager.kept)
    agent.terminate()
    agent.wait()
    assert agent.returncode == OK
