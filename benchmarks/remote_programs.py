# SPDX-License-Identifier: Apache-2.0
"""Programs that send four shards to a bucket and bring them back, for bench_remote.py.

Each run is a process: its wall time, its processor time, and the most memory that it had.
s3torchconnector is a library; what stands for its user is this file, run as a program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure

TOOLS = measure.ROOT / "build" / "tools"
#: Where s3torchconnector is installed, which needs nothing of what the tests have.
PEERS = measure.ROOT / "build" / "bench-peers"
BUCKET = "bkt"
PIECE = 8 << 20


@dataclass
class Cost:
    wall_s: float
    cpu_s: float
    memory_bytes: int


def run(command: Sequence[str], environment: dict[str, str], log: Path) -> Cost:
    """Fails when the program does; what it says is in `log`."""
    with log.open("wb") as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text()[-800:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


class Program:
    """Sends a folder to a prefix of the bucket, and brings a prefix into a folder."""

    name = ""

    def __init__(self, endpoint: str, home: Path) -> None:
        self.endpoint = endpoint
        self.home = home

    def there(self) -> str | None:
        """Its version, or None when it is not installed."""
        raise NotImplementedError

    def upload(self, store: Path, folder: Path, prefix: str) -> list[str]:
        raise NotImplementedError

    def restore(self, prefix: str, folder: Path) -> list[str]:
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        return {}


def first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.splitlines()[0] if said.stdout else None


class Libckpt(Program):
    """All that it does: digests checked at both ends, everything synced, committed by a manifest."""

    name = "libckpt"

    def there(self) -> str | None:
        return first_line(str(TOOLS / "ckpt"), "--version")

    def upload(self, store: Path, folder: Path, prefix: str) -> list[str]:
        return [str(TOOLS / "ckpt"), "upload", str(store), f"s3://{BUCKET}/{prefix}"]

    def restore(self, prefix: str, folder: Path) -> list[str]:
        return [str(TOOLS / "ckpt-restore"), f"s3://{BUCKET}/{prefix}", str(folder)]


class Aws(Program):
    """
    `aws s3 cp` in Python. Debian's 2.9 has AWS's C runtime, too, but connects with it to port 80
    whatever the endpoint says; s3torchconnector's is that runtime, and newer.
    """

    name = "aws s3 cp"

    def there(self) -> str | None:
        return first_line("/usr/bin/aws", "--version")

    def settings(self) -> dict[str, str]:
        config = self.home / "aws-config"
        config.write_text("[default]\ns3 =\n  addressing_style = path\n")
        return {"AWS_CONFIG_FILE": str(config)}

    def copy(self, source: str, target: str) -> list[str]:
        command = f"/usr/bin/aws --endpoint-url {self.endpoint} s3 cp --recursive --only-show-errors"
        return [*command.split(), source, target]

    def upload(self, store: Path, folder: Path, prefix: str) -> list[str]:
        return self.copy(str(folder), f"s3://{BUCKET}/{prefix}")

    def restore(self, prefix: str, folder: Path) -> list[str]:
        return self.copy(f"s3://{BUCKET}/{prefix}", str(folder))


class Rclone(Program):
    name = "rclone"

    def there(self) -> str | None:
        return first_line("rclone", "version")

    def settings(self) -> dict[str, str]:
        config = self.home / "rclone.conf"
        config.touch()
        return {
            "RCLONE_CONFIG": str(config),
            "RCLONE_CONFIG_IT_TYPE": "s3",
            "RCLONE_CONFIG_IT_PROVIDER": "Ceph",
            "RCLONE_CONFIG_IT_ENV_AUTH": "true",
            "RCLONE_CONFIG_IT_ENDPOINT": self.endpoint,
        }

    def copy(self, source: str, target: str) -> list[str]:
        options = "--transfers 4 --s3-upload-concurrency 4 --s3-chunk-size 16M --s3-no-check-bucket"
        return ["rclone", "copy", *options.split(), source, target]

    def upload(self, store: Path, folder: Path, prefix: str) -> list[str]:
        return self.copy(str(folder), f"IT:{BUCKET}/{prefix}")

    def restore(self, prefix: str, folder: Path) -> list[str]:
        return self.copy(f"IT:{BUCKET}/{prefix}", str(folder))


class TorchConnector(Program):
    """
    A thread for each file, its own reader and writer, and its client of 10 Gb/s. Its uploads fail
    at Ceph's gateway, whose answer to the last request of one has no ETag in its head.
    """

    name = "s3torchconnector"

    def there(self) -> str | None:
        found = sorted(PEERS.glob("s3torchconnector-*.dist-info"))
        return found[0].name.removesuffix(".dist-info") if found else None

    def settings(self) -> dict[str, str]:
        return {"PYTHONPATH": str(PEERS)}

    def command(self, what: str, prefix: str, folder: Path) -> list[str]:
        return [sys.executable, __file__, what, self.endpoint, prefix, str(folder)]

    def upload(self, store: Path, folder: Path, prefix: str) -> list[str]:
        return self.command("put", prefix, folder)

    def restore(self, prefix: str, folder: Path) -> list[str]:
        return self.command("get", prefix, folder)


PROGRAMS: list[type[Program]] = [Libckpt, Aws, Rclone, TorchConnector]


def connect_and(what: str, endpoint: str, prefix: str, folder: Path) -> None:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    config = S3ClientConfig(force_path_style=True, part_size=PIECE)
    client: Any = S3Client("us-east-1", endpoint=endpoint, s3client_config=config)
    failed: list[BaseException] = []

    def put(name: str) -> None:
        with (folder / name).open("rb") as source:
            writer = client.put_object(BUCKET, f"{prefix}/{name}")
            while piece := source.read(PIECE):
                writer.write(piece)
            writer.close()

    def get(name: str) -> None:
        reader = client.get_object(BUCKET, f"{prefix}/{name}")
        with (folder / name).open("wb") as target:
            while piece := reader.read(PIECE):
                target.write(piece)

    def one(name: str) -> None:
        try:
            (put if what == "put" else get)(name)
        except BaseException as error:
            failed.append(error)

    if what == "put":
        names = sorted(path.name for path in folder.iterdir())
    else:
        folder.mkdir(exist_ok=True)
        pages = client.list_objects(BUCKET, f"{prefix}/")
        keys = [each.key for page in pages for each in page.object_info]
        names = [key.rpartition("/")[2] for key in keys]
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    connect_and(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
