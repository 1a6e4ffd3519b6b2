# SPDX-License-Identifier: Apache-2.0
"""The programs on a store in a bucket of some server, and what two stores have alike."""

from __future__ import annotations

import filecmp
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from pools import small_by_default
from waiting import ended

from libckpt import Checkpointer

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).parents[2] / "build" / "tools"))

OK, FAILED, USAGE, INCOMPLETE, INTEGRITY = 0, 1, 2, 3, 4
NOT_FOUND, IN_USE, AUTH, NETWORK = 10, 11, 12, 13

small_by_default(Checkpointer)


class Nowhere:
    """No server: for what needs none."""

    endpoint, access, ca = "http://127.0.0.1:1", "nobody", None
    #: No word that a program may print: Bucket.run() looks for it in all output.
    secret = "gX2vN8qLr5TzWb0K"


class Bucket:
    """A server, and programs that are told of it by their environment."""

    def __init__(self, server: Any, home: Path) -> None:
        self.server = server
        self.home = home
        self.settings: dict[str, str | None] = {}
        self.started: list[subprocess.Popen[str]] = []

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        said: dict[str, str | None] = {
            **inherited,
            "HOME": str(self.home),
            "AWS_ENDPOINT_URL_S3": self.server.endpoint,
            "AWS_ACCESS_KEY_ID": self.server.access,
            "AWS_SECRET_ACCESS_KEY": self.server.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CA_BUNDLE": self.server.ca,
            **self.settings,
        }
        return {k: v for k, v in said.items() if v is not None}

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        program, *rest = (str(a) for a in arguments)
        process = subprocess.Popen(
            [str(TOOLS / program), *rest], env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def end(self) -> None:
        """What a test that has failed leaves running is in the way of the next."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *arguments: object, **settings: str | None) -> subprocess.CompletedProcess[str]:
        before, self.settings = self.settings, {**self.settings, **settings}
        process = self.start(*arguments)
        self.settings = before
        out, err = ended(process)
        assert self.server.secret not in out + err, "the output has the secret key"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def good(self, *arguments: object, **settings: str | None) -> str:
        result = self.run(*arguments, **settings)
        assert (result.returncode, result.stderr) == (OK, ""), result
        return result.stdout

    def applied(self, operation: str, key: str) -> int:
        return sum(bool(re.fullmatch(f"{operation} {key}", a)) for a in self.server.applied())

    def names(self) -> list[str]:
        return sorted(self.server.ask("GET", "", query={"list-type": "2"}).texts("Key"))

    def put(self, store: Path, prefix: str = "run/") -> None:
        """A store as some other program copies it there."""
        for path in in_order(store):
            body = path.read_bytes()
            assert self.server.ask("PUT", f"{prefix}{path.relative_to(store)}", body).status == 200


def has_s3() -> bool:
    """Whether the programs were built with it."""
    said = subprocess.run(
        [str(TOOLS / "ckpt-verify"), "--version"], capture_output=True, text=True, check=True
    )
    return "s3" in said.stdout.split()


def in_order(store: Path) -> list[Path]:
    files = [p for p in store.rglob("*") if p.is_file()]
    return sorted(files, key=lambda p: (p.parent != store, p.name == "manifest.json", p))


def save(path: Path, state: dict[str, Any], *steps: int) -> Path:
    with Checkpointer(str(path), state=dict(state)) as ckpt:
        for step in steps:
            ckpt.save(step).wait("local")
    return path


def files_of(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def same_anew(one: Path, other: Path, step: int) -> None:
    """The same, but for attempts: what a copy that was cut short has begun has another one when it is begun again."""

    def contents(store: Path) -> list[tuple[str, bytes]]:
        (directory,) = store.glob(f"g*/step-{step:010d}")
        return sorted(
            (re.sub(r"^(rank-\d+)\.[0-9a-f]{16}\.", r"\1.", p.name), p.read_bytes())
            for p in directory.iterdir()
        )

    assert contents(one) == contents(other)


def same(one: Path, other: Path, step: int) -> None:
    """Its files are those of the other store, to the byte."""
    (directory,) = other.glob(f"g*/step-{step:010d}")
    names = [p.name for p in directory.iterdir()]
    assert {"manifest.json"} < set(names)
    relative = directory.relative_to(other)
    assert filecmp.cmpfiles(one / relative, directory, names, shallow=False) == (names, [], [])
