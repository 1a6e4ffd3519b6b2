# SPDX-License-Identifier: Apache-2.0
"""A process of s3d, with ways to see into it; for every test that wants a store in a bucket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from s3_client import Answer, Client

# Not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "python"))

from waiting import ended  # noqa: E402

S3D = Path(os.environ.get("CKPT_S3D", Path(__file__).parents[2] / "build/tests/s3/s3d"))
SCRIPTS = Path(__file__).parents[2] / "scripts"
ACCESS, SECRET = "ACCESSKEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Server:
    access, secret = ACCESS, SECRET

    def __init__(self, *options: object, tls: tuple[Path, Path] | None = None) -> None:
        self.options = [str(o) for o in options]
        self.tls = tls
        self.start()

    def start(self) -> None:
        certificate = ["--tls-cert", self.tls[0], "--tls-key", self.tls[1]] if self.tls else []
        command = [S3D, "--key", f"{ACCESS}:{SECRET}", "--bucket", "bkt", "--until-eof"]
        self.process = subprocess.Popen(
            [str(c) for c in [*command, *certificate, *self.options]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        scheme = "https" if self.tls else "http"
        host = "localhost" if self.tls else "127.0.0.1"
        self.endpoint = f"{scheme}://{host}:{int(self.process.stdout.readline())}"
        self.ca = str(self.tls[0]) if self.tls else None
        self.client = Client(self.endpoint, ACCESS, SECRET, self.ca)

    def ask(self, method: str, key: str, *args: Any, **more: Any) -> Answer:
        return self.client.ask(method, f"/bkt/{key}" if key else "/bkt", *args, **more)

    def admin(self, method: str, what: str, value: object = None) -> Answer:
        body = b"" if value is None else json.dumps(value).encode()
        answer = self.client.ask(method, "/_ckpt/" + what, body, anonymous=True)
        assert answer.status < 300, answer.body
        return answer

    def rules(self, *rules: dict[str, object], seed: int = 1) -> None:
        self.admin("PUT", "rules", {"seed": seed, "rules": list(rules)})

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.admin("GET", "journal").body.splitlines()]

    def applied(self) -> list[str]:
        """Operation and key of what came about."""
        return [f"{e['operation']} {e['key']}" for e in self.journal() if e["kind"] == "applied"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        ended(self.process)  # which closes its standard input
        return self.process.returncode


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
    files = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=DNS:localhost,DNS:s3.localhost,DNS:*.s3.localhost,IP:127.0.0.1"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-addext", names, "-out", files[0],
         "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Somebodys:
    """A server that others have written, as a script starts it: `with Radosgw(folder) as server`."""

    ca: str | None = None
    said: dict[str, str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, lines: list[str]) -> None:
        self.said = dict(line.split("=", 1) for line in lines)
        self.endpoint = self.said["S3_ENDPOINT"]
        self.access = self.said["AWS_ACCESS_KEY_ID"]
        self.secret = self.said["AWS_SECRET_ACCESS_KEY"]
        self.client = Client(self.endpoint, self.access, self.secret)

    def ask(self, method: str, key: str, *args: Any, **more: Any) -> Answer:
        return self.client.ask(method, f"/bkt/{key}" if key else "/bkt", *args, **more)


class Radosgw(Somebodys):
    """Ceph's, where it is installed."""

    SCRIPT = SCRIPTS / "radosgw"

    @staticmethod
    def installed() -> bool:
        if not shutil.which("radosgw") or not shutil.which("ceph-mon"):
            return False
        said = subprocess.run(["radosgw", "--version"], capture_output=True, text=True, check=False)
        return " 16.2." in said.stdout

    def do(self, what: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.SCRIPT), what, str(self.folder)], capture_output=True, text=True, check=False
        )

    def must(self, what: str) -> str:
        done = self.do(what)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __enter__(self) -> Radosgw:
        self.take(self.must("up").split())
        return self

    def __exit__(self, *_: object) -> None:
        running = [int(line.split()[1]) for line in (self.folder / "pids").read_text().splitlines()]
        self.must("down")
        assert not self.folder.exists()
        assert not [pid for pid in running if is_alive(pid)]


class Swift(Somebodys):
    """OpenStack's, where it is installed."""

    SCRIPT = SCRIPTS / "swift"

    @staticmethod
    def installed() -> bool:
        python = "/usr/bin/python3"
        said = subprocess.run(
            [python, "-c", "import swift.common.wsgi"], capture_output=True, check=False
        )
        return said.returncode == 0

    def __enter__(self) -> Swift:
        self.process = subprocess.Popen(
            [str(self.SCRIPT), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.take([self.process.stdout.readline().strip() for _ in range(4)])
        return self

    def __exit__(self, *_: object) -> None:
        ended(self.process)  # which closes its standard input
        assert self.process.returncode == 0
        assert not self.folder.exists()
