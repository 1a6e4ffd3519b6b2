#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Upload and restore of a step in a bucket, and what they cost a loop, in interleaved runs.

programs: four shards of a step, 4 GiB, sent to Ceph's gateway and brought back by `ckpt upload`,
`ckpt-restore` and by what else does it. All have the same files, which are in the page cache, and
what they bring is synced before the clock stops: by themselves or by us. When the program itself
said that it was done is told beside it.

loop: a training loop whose saves go on to a bucket (the project's S3 server, which throws bodies
away so that it takes little of the two cores), to one that nobody answers for, or to none.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import remote_programs
from remote_programs import BUCKET, Cost, Program

SHARDS = 4
#: What the programs of libckpt have for staging, and what else they may take.
STAGING_BYTES, SLACK_BYTES = 256 << 20, 64 << 20
LOOPS = ("none", "bucket", "dead")
#: Of the time, for the programs; the loop has what they leave.
PROGRAMS_PART = 0.65


class Rounds:
    """At most `most`, and none but the first that would end too late if it took as long as the longest so far."""

    def __init__(self, most: int, end: float) -> None:
        self.most, self.end = most, end

    def __iter__(self) -> Iterator[int]:
        longest = 0.0
        for number in range(self.most):
            began = time.monotonic()
            if number and began + longest > self.end:
                print(f"  no time for more than {number} rounds", file=sys.stderr, flush=True)
                return
            yield number
            longest = max(longest, time.monotonic() - began)


def be_rank(place: Path, size: int) -> None:
    """One of the ranks that make the step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from libckpt import Checkpointer

    dist.init_process_group("cpu:gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(dist.get_rank())
    state = {
        f"tensor.{number}": DTensor.from_local(torch.rand(size // 16 // 4), mesh, [Shard(0)])
        for number in range(16)
    }
    with Checkpointer(place, state={"state": state}, on_error="raise") as ckpt:
        ckpt.resume()
        ckpt.save(1).wait("local")
    dist.destroy_process_group()


def make_store(place: Path, size: int) -> list[Path]:
    """A store with a step of as many ranks as there are shards; their shards."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(place), str(size // SHARDS)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(SHARDS),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(SHARDS)
    ]
    codes = [process.wait() for process in ranks]
    if any(codes):
        raise RuntimeError("the step was not made")
    return sorted(place.glob("g*/step-*/rank-*.safetensors"))


class Radosgw:
    """Ceph's gateway, where it is installed: `scripts/radosgw`."""

    def __init__(self, folder: Path, size: int) -> None:
        script = str(measure.ROOT / "scripts" / "radosgw")
        self.down = [script, "down", str(folder)]
        said = subprocess.run(
            [script, "up", str(folder)], capture_output=True, text=True, check=True,
            env={**os.environ, "RADOSGW_BYTES": str(size)},
        ).stdout  # fmt: skip
        lines = dict(line.split("=", 1) for line in said.split())
        self.name = "Ceph radosgw 16.2"
        self.endpoint = lines["S3_ENDPOINT"]
        self.access, self.secret = lines["AWS_ACCESS_KEY_ID"], lines["AWS_SECRET_ACCESS_KEY"]

    def stop(self) -> None:
        subprocess.run(self.down, check=True, capture_output=True)


class S3d:
    """The project's own server."""

    access, secret = "ACCESSKEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

    def __init__(self, *options: str) -> None:
        program = str(measure.ROOT / "build" / "tests" / "s3" / "s3d")
        command = f"{program} --key {self.access}:{self.secret} --bucket {BUCKET} --until-eof"
        self.process = subprocess.Popen(
            [*command.split(), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.name = "the project's S3 server"
        self.endpoint = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def a_server(folder: Path, size: int) -> Iterator[Radosgw | S3d]:
    installed = shutil.which("radosgw") and shutil.which("ceph-mon")
    server = Radosgw(folder / "radosgw", size) if installed else S3d("--memory", str(size))
    try:
        yield server
    finally:
        server.stop()


def environment(server: Any, home: Path, settings: dict[str, str]) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return {
        **inherited,
        "HOME": str(home),
        "AWS_ENDPOINT_URL_S3": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **settings,
    }


class Contest:
    """One server, one step, and who sends it and brings it back."""

    def __init__(self, server: Any, folder: Path, store: Path, shards: list[Path]) -> None:
        self.server, self.folder, self.store = server, folder, store
        self.bytes = sum(path.stat().st_size for path in shards)
        self.flat = folder / "shards"
        self.flat.mkdir()
        for path in shards:
            os.link(path, self.flat / path.name)
        made = [program(server.endpoint, folder) for program in remote_programs.PROGRAMS]
        self.versions = {program.name: program.there() or "not installed" for program in made}
        self.programs = [program for program in made if program.there()]
        self.cannot: dict[str, str] = {}
        self.costs: dict[str, dict[str, list[Cost]]] = {"upload": {}, "restore": {}}
        self.told: dict[str, dict[str, list[float]]] = {"upload": {}, "restore": {}}

    def timed(self, what: str, program: Program, command: list[str]) -> None:
        settings = environment(self.server, self.folder, program.settings())
        cost = remote_programs.run(command, settings, self.folder / "log")
        self.told[what].setdefault(program.name, []).append(cost.wall_s)
        if what == "restore" and program.name != "libckpt":
            began = time.perf_counter()
            for path in (self.folder / "back").iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            cost.wall_s += time.perf_counter() - began
        self.costs[what].setdefault(program.name, []).append(cost)
        print(f"  {what}, {program.name}: {cost.wall_s:.2f} s", file=sys.stderr, flush=True)

    def compare(self, folder: Path) -> None:
        brought = {path.name: path for path in folder.rglob("*.safetensors")}
        for path in self.flat.iterdir():
            same = ["cmp", "-s", str(path), str(brought[path.name])]
            subprocess.run(same, check=True)

    def one(self, program: Program, number: int) -> None:
        prefix = f"{program.name.split()[-1].lower()}-{number}"
        if not self.upload(program, prefix):
            prefix = "flat"
        back = self.folder / "back"
        rest()
        self.timed("restore", program, program.restore(prefix, back))
        self.compare(back)
        shutil.rmtree(back)
        if prefix != "flat":
            self.clear(prefix)

    def upload(self, program: Program, prefix: str) -> bool:
        """False: it cannot, and is given what rclone has uploaded."""
        if program.name in self.cannot:
            return False
        # Not by this process: the most memory that it had would count as that of whom it starts.
        subprocess.run(["cat", *self.flat.iterdir()], stdout=subprocess.DEVNULL, check=True)
        rest()
        try:
            self.timed("upload", program, program.upload(self.store, self.flat, prefix))
        except RuntimeError as error:
            if program.name == "libckpt":
                raise
            self.cannot[program.name] = str(error)
            self.clear(prefix)
            self.rclone("copy", f"{BUCKET}/flat", str(self.flat))
            return False
        return True

    def clear(self, prefix: str) -> None:
        """The server's disk holds a few of them."""
        self.rclone("purge", f"{BUCKET}/{prefix}")

    def rclone(self, what: str, where: str, *source: str) -> None:
        program = remote_programs.Rclone(self.server.endpoint, self.folder)
        settings = environment(self.server, self.folder, program.settings())
        subprocess.run(["rclone", what, *source, f"IT:{where}"], env=settings, check=True)

    def run(self, rounds: Rounds) -> None:
        self.rclone("mkdir", BUCKET)
        for number in rounds:
            turn = number % len(self.programs)
            for program in self.programs[turn:] + self.programs[:turn]:
                self.one(program, number)

    def report(self, what: str) -> dict[str, Any]:
        gib = self.bytes / 2**30
        found: dict[str, Any] = {}
        rows = []
        for name, costs in self.costs[what].items():
            wall = measure.spread([cost.wall_s for cost in costs])
            cpu = measure.spread([cost.cpu_s / gib for cost in costs])
            memory = max(cost.memory_bytes for cost in costs)
            told = measure.spread(self.told[what][name])
            found[name] = {
                "wall_s": wall, "told_s": told, "cpu_s_per_gib": cpu, "memory_bytes": memory,
            }  # fmt: skip
            rows.append([
                name, f"{wall['median']:.2f}", f"[{wall['low90']:.2f}, {wall['high90']:.2f}]",
                f"{told['median']:.2f}", f"{cpu['median']:.2f}", f"{memory / 2**20:.0f}",
            ])  # fmt: skip
        print(f"\n{what} of {gib:.2f} GiB in {SHARDS} shards, {self.server.name}")
        heads = ["", "median, s", "90 %", "not synced, s", "CPU s/GiB", "most memory, MiB"]
        measure.table(heads, rows)
        if what == "upload":
            for name, why in self.cannot.items():
                print(f"{name} cannot: {why.splitlines()[-1]}")
        peers = [name for name in found if name != "libckpt"]
        best = min(peers, key=lambda name: found[name]["wall_s"]["median"])
        mine = self.costs[what]["libckpt"]
        pairs = zip(mine, self.costs[what][best], strict=True)
        ratio = measure.spread([peer.wall_s / own.wall_s for own, peer in pairs])
        least = min(found[name]["cpu_s_per_gib"]["median"] for name in peers)
        cpu_ratio = found["libckpt"]["cpu_s_per_gib"]["median"] / least
        print(
            f"speed to the fastest peer ({best}): {ratio['median']:.2f} [{ratio['low90']:.2f}, "
            f"{ratio['high90']:.2f}]; processor time to the least of the peers: {cpu_ratio:.2f}"
        )
        return {"programs": found, "best": best, "speed": ratio, "cpu_ratio": cpu_ratio}


def rest() -> None:
    os.sync()
    time.sleep(measure.REST_SECONDS)


def contest(args: argparse.Namespace, folder: Path, end: float) -> dict[str, Any]:
    size = (256 << 20) if args.quick else int(args.gigabytes * 2**30)
    store = folder / "store"
    shards = make_store(store, size)
    with a_server(folder, 4 * size + (4 << 30)) as server:
        race = Contest(server, folder, store, shards)
        race.run(Rounds(2 if args.quick else args.rounds, end))
        return {
            "server": server.name,
            "bytes": race.bytes,
            "programs_versions": race.versions,
            "cannot_upload": race.cannot,
            **{what: race.report(what) for what in ("upload", "restore")},
        }


def loop_once(args: argparse.Namespace, folder: Path, which: str, number: int) -> Any:
    server = S3d("--null")
    place = folder / f"loop-{which}"
    place.mkdir()
    remote = "" if which == "none" else f"s3://{BUCKET}/{which}-{number}"
    sizes = (256, 2, 20) if args.quick else (2048, 4, 10)
    drain, doomed = 600 if which == "bucket" else 0, server.process.pid if which == "dead" else 0
    settings = environment(server, folder, {"OMP_NUM_THREADS": "1"})
    script = str(Path(__file__).parent / "remote_loop.py")
    rest()
    done = subprocess.run(
        [sys.executable, script, str(place), remote, *map(str, sizes), str(drain), str(doomed)],
        env=settings, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    server.stop()
    shutil.rmtree(place)
    return json.loads(done.stdout.splitlines()[-1])


def loops(args: argparse.Namespace, folder: Path, end: float) -> dict[str, Any]:
    walls: dict[str, list[float]] = {which: [] for which in LOOPS}
    uploaded = []
    for number in Rounds(2 if args.quick else args.pairs, end):
        turn = number % len(LOOPS)
        for which in LOOPS[turn:] + LOOPS[:turn]:
            found = loop_once(args, folder, which, number)
            walls[which].append(found["wall_s"])
            if which == "bucket":
                uploaded.append(found["uploaded"])
            print(f"  loop, {which}: {found}", file=sys.stderr, flush=True)
    rows, ratios = [], {}
    for which in LOOPS:
        wall = measure.spread(walls[which])
        pairs = zip(walls[which], walls["none"], strict=True)
        ratios[which] = measure.spread([mine / none for mine, none in pairs])
        low, high = ratios[which]["low90"], ratios[which]["high90"]
        text = f"{ratios[which]['median']:.3f} [{low:.3f}, {high:.3f}]"
        rows.append([which, f"{wall['median']:.2f}", text])
    print("\na training loop with saves; where these go on to")
    measure.table(["", "median, s", "time to that of none"], rows)
    print(f"steps that were in the bucket when the loop ended: {uploaded}")
    return {"seconds": walls, "ratios": ratios, "uploaded": uploaded}


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        be_rank(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = measure.parser("The remote tier beside what else sends files to a bucket.")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=11.0, help="fewer rounds when they end")
    parser.add_argument("--only", choices=("programs", "loop"))
    args = parser.parse_args()
    result: dict[str, Any] = {"staging_bytes": STAGING_BYTES, "slack_bytes": SLACK_BYTES}
    end = time.monotonic() + 60 * args.minutes
    with measure.scratch(args.dir) as folder:
        if args.only != "loop":
            part = 1.0 if args.only else PROGRAMS_PART
            result["contest"] = contest(args, folder, end - (1 - part) * 60 * args.minutes)
        if args.only != "programs":
            result["loop"] = loops(args, folder, end)
    measure.finish("remote", args, result)


if __name__ == "__main__":
    main()
