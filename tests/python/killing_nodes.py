# SPDX-License-Identifier: Apache-2.0
"""
A training on several nodes, each a network namespace with a store of its own, to which something
happens at random moments of resuming and saving, again and again: a rank is killed, all of a node's
or all of the job's are, a node stands still, or its cable is cut. Then what is left of the job is
killed, and it is started anew. In some rounds a save may take a few seconds only, and a cable is
cut for longer: saves are left to their deadlines, and when it is repaired the job goes on.

usage: killing_nodes.py [--kills N] [--nodes N] [--world N] [--seed N] [--dir PATH]

What must hold is what killing.py says, and that a job which is not killed has a step durable again
after each deadline. Ends with a line of counts, for the soak; the exit code is 1
when something did not hold, and 77 where networks cannot be made.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from forked import Forked
from killing import PATIENCE, SPAN, Listener, end
from nodes import Network
from waiting import HangLimit, until

_PORT = 29500
#: seconds from what happens to a node until the others are killed, at most
_AFTER = 2.0
_SKIPPED = 77
#: seconds that a save may take in rounds in which some shall take longer
_SAVE_TIMEOUT = 8.0
#: of the cuts in one round, in which no save may have been under way, at most
_CUTS = 5
#: one round in so many is of that kind
_SLOW_IN = 4


class Job(Listener):
    """One start after the other, of ranks that are spread over the nodes."""

    def __init__(self, place: Path, network: Network, world: int) -> None:
        super().__init__(place, world)
        #: rounds in which a save has come to its deadline
        self.deadlines = 0
        self._network = network
        self._ranks: list[Forked] = []
        self._output = (place / "output").open("ab")

    def node_of(self, rank: int) -> int:
        """Those of one node follow each other; the first nodes may have one more."""
        return rank * self._network.count // self.world

    def of_node(self, node: int) -> list[int]:
        """Its ranks."""
        return [rank for rank in range(self.world) if self.node_of(rank) == node]

    def start(self, number: int, save_timeout: float | None = None) -> None:
        """All ranks, once nothing is left of the last start. With a timeout, saves may fail."""
        self._heard = time.monotonic()
        for rank in range(self.world):
            node = self.node_of(rank)
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "MASTER_ADDR": self._network.address(0),
                "MASTER_PORT": str(_PORT),
                "TORCHELASTIC_RESTART_COUNT": str(number),
                "LIBCKPT_NODE": f"node{node}",
                "GLOO_SOCKET_IFNAME": "cable",
            }
            if save_timeout is not None:
                environment["SAVE_TIMEOUT"] = str(save_timeout)
            output = self._output.fileno()
            rank_of_it = Forked(
                "import killing, pathlib, sys; killing.be_rank(pathlib.Path(sys.argv[1]))",
                str(self.place),
                environment=environment,
                streams=(None, output, output),
                network=self._network.name(node),
            )
            self._ranks.append(rank_of_it)

    def listen(self) -> None:
        """Raises also if a rank has ended."""
        super().listen()
        ended = [process.returncode for process in self._ranks if process.poll() is not None]
        if ended:
            raise ChildProcessError(f"a rank has ended with {ended[0]}")

    def listen_until_durable(self) -> None:
        """Until a step is durable that no rank had begun before."""
        newest = self.truth.newest

        def it_is_durable() -> bool:
            self.listen()
            return self.truth.durable > newest

        until(it_is_durable, f"a step after {newest} to be durable")

    def signal(self, ranks: list[int], number: signal.Signals) -> None:
        """Also a rank that has not said anything yet."""
        for rank in ranks:
            self._ranks[rank].send_signal(number)

    def kill(self) -> None:
        """Nothing of this start is left but what it has said."""
        self.signal(list(range(len(self._ranks))), signal.SIGKILL)
        for process in self._ranks:
            process.wait()
        self._ranks.clear()
        self.take()

    def end_well(self) -> None:
        """All ranks come to their end by themselves."""
        (self.place / "enough").touch()
        for rank, process in enumerate(self._ranks):
            code = process.wait(PATIENCE)
            if code != 0:
                self.truth.wrong.append(f"rank {rank} has ended with {code}")
        self.take()

    def close(self) -> None:
        """Also after a failure."""
        self.kill()
        self._output.close()


def _kill_one(job: Job, network: Network, dice: random.Random) -> None:
    job.signal([dice.randrange(job.world)], signal.SIGKILL)


def _kill_node(job: Job, network: Network, dice: random.Random) -> None:
    job.signal(job.of_node(dice.randrange(network.count)), signal.SIGKILL)


def _kill_all(job: Job, network: Network, dice: random.Random) -> None:
    job.kill()


def _freeze(job: Job, network: Network, dice: random.Random) -> None:
    ranks = job.of_node(dice.randrange(network.count))
    job.signal(ranks, signal.SIGSTOP)
    job.go_on(dice.uniform(0, _AFTER))
    job.signal(ranks, signal.SIGCONT)


def _cut(job: Job, network: Network, dice: random.Random) -> None:
    node = dice.randrange(network.count)
    network.cut(node)
    job.go_on(dice.uniform(0, _AFTER))
    network.mend(node)


_HAPPENS: list[Callable[[Job, Network, random.Random], None]] = [
    _kill_one,
    _kill_one,
    _kill_node,
    _kill_all,
    _freeze,
    _cut,
]


def _outlast(job: Job, network: Network, dice: random.Random) -> None:
    """A node is cut off for longer than a save may take, until one has failed of that."""
    lost = job.truth.lost
    for _ in range(_CUTS):
        job.listen_until_durable()
        node = dice.randrange(network.count)
        network.cut(node)
        job.go_on(_SAVE_TIMEOUT * dice.uniform(1.2, 2))
        network.mend(node)
        job.listen_until_durable()
        if job.truth.lost > lost:
            job.deadlines += 1
            return
    job.truth.wrong.append(f"in {_CUTS} cuts of more than {_SAVE_TIMEOUT} s no save has failed")


def _round(job: Job, network: Network, dice: random.Random, start: int, *, slow: bool) -> None:
    job.start(start, _SAVE_TIMEOUT if slow else None)
    if slow:
        job.listen_until(start, "resumed")
        _outlast(job, network, dice)
    else:
        # Half of them while it resumes, of which nobody knows how long it takes.
        job.listen_until(start, "resumed" if dice.random() < 0.5 else "begins")
        job.go_on(dice.uniform(0, SPAN))
        job.listen()
        dice.choice(_HAPPENS)(job, network, dice)
    job.go_on(dice.uniform(0, _AFTER))  # the others notice it, or do not
    job.kill()


class Counts(NamedTuple):
    """What there was."""

    kills: int
    #: rounds in which a save was left to its deadline
    deadlines: int


def run(
    place: Path, network: Network, world: int, kills: int, seed: int, *, slow_in: int = _SLOW_IN
) -> tuple[Counts, list[str]]:
    """So many of them; how many there were, and what did not hold. One in `slow_in` is slow."""
    dice = random.Random(seed)
    job = Job(place, network, world)
    done = 0
    try:
        for start in range(kills):
            _round(job, network, dice, start, slow=dice.randrange(slow_in) == 0)
            done += 1
        job.start(kills)
        job.listen_until(kills, "resumed")
        job.end_well()
    except (HangLimit, ChildProcessError, subprocess.TimeoutExpired) as error:
        job.truth.wrong.append(str(error))
    finally:
        job.close()
    return Counts(done, job.deadlines), job.truth.wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="killing-", dir=args.dir))
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(args.nodes))
        except OSError as error:
            sys.stdout.write(f"no networks can be made here: {error}\n")
            sys.exit(_SKIPPED)
        done, wrong = run(place, network, args.world, args.kills, args.seed)
    end(place, f"kills={done.kills} deadlines={done.deadlines}", wrong)


if __name__ == "__main__":
    main()
