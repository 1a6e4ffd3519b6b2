# SPDX-License-Identifier: Apache-2.0
"""
A training under torchrun, one of whose ranks is killed at random moments of resuming and saving,
again and again; torchrun starts all of them anew each time.

usage: killing.py [--kills N] [--world N] [--seed N] [--dir PATH]

What must hold: all ranks resume the same step; it is not older than any that some rank was told is
durable; and every rank's parameters and moments are, bit for bit, those it had when it saved that
step. Ends with a line of counts, for the soak; the exit code is 1 when something did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from forked import torchrun
from waiting import LIMIT, HangLimit, until

#: seconds: a job in which nothing has happened for so long hangs
PATIENCE = LIMIT
#: seconds from the first rank's start within which a rank is killed, at most
SPAN = 3.0


# One rank.


def digest_of(model: object, optimizer: object) -> str:
    """Of everything that this rank holds of both."""
    import torch
    from torch.distributed.tensor import DTensor

    found = hashlib.sha256()
    assert isinstance(model, torch.nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    for name, value in model.named_parameters():
        for held in (value, *(optimizer.state[value].get(k) for k in ("exp_avg", "exp_avg_sq"))):
            if held is None:
                continue
            local = held.to_local() if isinstance(held, DTensor) else held
            found.update(name.encode() + local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:20]


def join(rank: int, world: int, start: int, *, serves: bool) -> None:
    """The job. `serves`: rank 0 does what torchrun does else."""
    import torch.distributed as dist

    # torchrun keeps its store from start to start: gloo would find the addresses of the dead there.
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=serves
    )
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"start-{start}", store), rank=rank, world_size=world
    )


def be_rank(place: Path) -> None:
    """
    Trains and saves every step, until it is killed or told that it is enough. With a node's name
    (killing_nodes.py) the store is its own, and rank 0 serves; with a timeout a save may fail.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import libckpt

    signal.alarm(6 * int(PATIENCE))  # whatever becomes of the test, nothing stays
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = os.open(place / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(word: str, step: int, what: object) -> None:
        os.write(log, f"{start} {word} {step} {what}\n".encode())

    say("begins", 0, os.getpid())
    torch.set_num_threads(1)
    node, timeout = os.environ.get("LIBCKPT_NODE"), os.environ.get("SAVE_TIMEOUT")
    join(rank, world, start, serves=node is not None and rank == 0)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(61, 61) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optimizer": optimizer}
    with libckpt.Checkpointer(
        place / f"store-{node or 'all'}",
        state,
        keep_last=3,
        save_timeout=float(timeout or 60),
        on_error=(lambda _: None) if timeout else "warn",
        eager=bool(start % 2),
        node_store=node is not None,
    ) as ckpt:
        step = ckpt.resume()
        say("resumed", step, digest_of(model, optimizer))
        last = None
        while True:
            x = torch.randn(8, 61, generator=torch.Generator().manual_seed(step))
            loss = model(x[rank % 2 :: 2]).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
            say("at", step, digest_of(model, optimizer))
            save = ckpt.save(step)
            if last is not None:
                try:
                    last.wait()
                    say("has", last.step, "-")
                except libckpt.CheckpointError as error:
                    if timeout is None:
                        raise
                    say("lost", last.step, type(error).__name__)
            last = save
            # Who has seen the end must not leave the others alone in a collective.
            ends = torch.tensor(float((place / "enough").exists()))
            dist.all_reduce(ends)
            if ends:
                break
    if last is not None:
        say("has", last.step, "-")
    say("ends", step, "-")
    dist.destroy_process_group()


# Who kills them, and looks at what they say.


class Line(NamedTuple):
    """What a rank has said."""

    rank: int
    start: int
    word: str
    step: int
    what: str


class Logs:
    """What all ranks have said so far."""

    def __init__(self, place: Path, world: int) -> None:
        self._paths = [place / f"log-{rank}" for rank in range(world)]
        self._seen = [0] * world  # bytes

    def new(self) -> Iterator[Line]:
        """What has come since the last time; of each rank in its order."""
        for rank, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._seen[rank])
                found = file.read()
            whole = found[: found.rfind(b"\n") + 1]
            self._seen[rank] += len(whole)
            for line in whole.decode("ascii").splitlines():
                start, word, step, what = line.split(" ")
                yield Line(rank, int(start), word, int(step), what)


class Truth:
    """What was said, and what follows from it."""

    def __init__(self) -> None:
        self.durable = 0
        #: the newest step that a rank has come to
        self.newest = 0
        #: saves that have failed, of all ranks together
        self.lost = 0
        self.pids: dict[tuple[int, int], int] = {}
        self.wrong: list[str] = []
        self.resumed: dict[int, dict[int, int]] = {}
        #: what was durable before anybody of a start had resumed
        self._floor: dict[int, int] = {}
        self._digests: dict[tuple[int, int], str] = {}

    def take(self, line: Line) -> None:
        if line.word == "begins":
            self.pids[line.start, line.rank] = int(line.what)
            self._floor.setdefault(line.start, self.durable)
        elif line.word == "has":
            self.durable = max(self.durable, line.step)
        elif line.word == "lost":
            self.lost += 1
        elif line.word == "resumed":
            self._take_resumed(line)
        elif line.word == "at":
            self.newest = max(self.newest, line.step)
            known = self._digests.setdefault((line.rank, line.step), line.what)
            if known != line.what:
                self._say(line, f"step {line.step} is {line.what}, and was {known} before")

    def _take_resumed(self, line: Line) -> None:
        steps = self.resumed.setdefault(line.start, {})
        steps[line.rank] = line.step
        if len(set(steps.values())) > 1:
            self._say(line, f"the ranks have resumed {steps}")
        if line.step < self._floor[line.start]:
            self._say(line, f"resumed {line.step}, and {self._floor[line.start]} was durable")
        known = self._digests.get((line.rank, line.step))
        if line.step and known != line.what:
            self._say(line, f"resumed {line.step} as {line.what}, and had saved {known}")

    def _say(self, line: Line, what: str) -> None:
        self.wrong.append(f"start {line.start}, rank {line.rank}: {what}")


class Listener:
    """Hears what the ranks of a job say."""

    def __init__(self, place: Path, world: int) -> None:
        self.place, self.world = place, world
        self.truth = Truth()
        self._logs = Logs(place, world)
        self._heard = time.monotonic()

    def take(self) -> None:
        """What was said."""
        for line in self._logs.new():
            self._heard = time.monotonic()
            self.truth.take(line)

    def go_on(self, seconds: float) -> None:
        """So long, whatever becomes of it: what comes after that may come at any moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take()
            # The end was drawn, and nothing is judged by what has come until then.
            time.sleep(0.002)

    def listen(self) -> None:
        """Takes what was said; raises if nobody says anything any more."""
        self.take()
        if time.monotonic() - self._heard > PATIENCE:
            raise HangLimit(f"anything to be said; see {self.place / 'output'}")

    def listen_until(self, start: int, word: str) -> None:
        """Until a rank of this start has begun, or all of them have resumed."""

        def it_is_said() -> bool:
            self.listen()
            if word == "begins":
                return any(key[0] == start for key in self.truth.pids)
            return len(self.truth.resumed.get(start, {})) == self.world

        until(it_is_said, f"start {start}: {word}")


class Job(Listener):
    """torchrun, its ranks, and what they say."""

    def __init__(self, place: Path, world: int, kills: int) -> None:
        super().__init__(place, world)
        self._output = (place / "output").open("wb")
        output = self._output.fileno()
        self.process = torchrun(
            *("--standalone", "--monitor-interval", "0.1", "--max-restarts", kills),
            *("--nproc-per-node", world, __file__, "--rank-in", place),
            streams=(None, output, output),
            session=True,
        )

    def listen(self) -> None:
        """Raises also if torchrun has ended."""
        super().listen()
        if self.process.poll() is not None:
            raise ChildProcessError(f"torchrun has ended with {self.process.returncode}")

    def end(self) -> None:
        """Nothing of it is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pid in self.truth.pids.values():
            kill(pid, self.place)
        self._output.close()


def kill(pid: int, place: Path) -> bool:
    """A rank of this job; not whoever has its number now."""
    try:
        if not any(name.startswith(f"{place}/log-") for name in open_files(pid)):
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def open_files(pid: int) -> Iterator[str]:
    """Raises if there is no such process. It opens and closes files meanwhile."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(link)


def run(place: Path, world: int, kills: int, seed: int) -> tuple[int, list[str]]:
    """So many kills; how many there were, and what did not hold."""
    dice = random.Random(seed)
    job = Job(place, world, kills)
    done = 0
    try:
        for start in range(kills):
            # Half of them while it resumes, of which nobody knows how long it takes.
            saving = dice.random() < 0.5
            job.listen_until(start, "resumed" if saving else "begins")
            job.go_on(dice.uniform(0, SPAN))
            victims = [job.truth.pids[key] for key in sorted(job.truth.pids) if key[0] == start]
            done += kill(dice.choice(victims), place)
        job.listen_until(kills, "resumed")
        (place / "enough").touch()
        job.process.wait(PATIENCE)
        job.take()
        if job.process.returncode != 0:
            job.truth.wrong.append(f"torchrun has ended with {job.process.returncode}")
    except (HangLimit, ChildProcessError, subprocess.TimeoutExpired) as error:
        job.truth.wrong.append(str(error))
    finally:
        job.end()
    return done, job.truth.wrong


def end(place: Path, counts: str, wrong: list[str]) -> NoReturn:
    """Says what there was and what did not hold, of which the files stay."""
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    if wrong:
        sys.stdout.write(f"what is left of it: {place}\n")
    else:
        shutil.rmtree(place)
    sys.stdout.write(f"counts {counts} wrong={len(wrong)}\n")
    sys.exit(1 if wrong else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--rank-in", type=Path, default=None)
    args = parser.parse_args()
    if args.rank_in is not None:
        be_rank(args.rank_in)
        return
    place = Path(tempfile.mkdtemp(prefix="killing-", dir=args.dir))
    done, wrong = run(place, args.world, args.kills, args.seed)
    end(place, f"kills={done}", wrong)


if __name__ == "__main__":
    main()
