# SPDX-License-Identifier: Apache-2.0
"""
Ranks on nodes of their own: network namespaces with a cable each to one switch, which can be cut.
They share the file system of this machine, as nodes share one of the network; or each of them has a
store of its own there.

be_rank() is one rank, which does what it is told by lines on its standard input.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forked import Forked
from waiting import LIMIT

#: A rank that has not answered by then hangs.
_PATIENCE = LIMIT
_PORT = 29400


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """A switch and nodes at it, gone when the block ends."""

    def __init__(self, count: int) -> None:
        self._tag = f"ckpt{os.getpid()}"
        self.count = count

    def name(self, node: int) -> str:
        return f"{self._tag}-{node}"

    @staticmethod
    def address(node: int) -> str:
        return f"10.77.0.{node + 1}"

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self) -> None:
        hub = self._tag
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", hub, "link", "set", "switch", "up")
        for node in range(self.count):
            name, port = self.name(node), f"port{node}"
            _ip("netns", "add", name)
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "cable", "netns", name)
            _ip("-n", hub, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in [*map(self.name, range(self.count)), self._tag]:
            with contextlib.suppress(OSError):
                _ip("netns", "del", name)

    def __exit__(self, *_: object) -> None:
        self._remove()

    def cut(self, node: int) -> None:
        """Nothing gets through to this node and from it, and nobody is told so."""
        _ip("-n", self._tag, "link", "set", f"port{node}", "down")

    def mend(self, node: int) -> None:
        _ip("-n", self._tag, "link", "set", f"port{node}", "up")


def own_store(store: Path, node: int) -> Path:
    """Where each node has its own."""
    return store.with_name(f"{store.name}-{node}")


class Rank:
    """A process on a node."""

    def __init__(
        self, network: Network, node: int, rank: int, world: int, store: Path, *, own: bool
    ) -> None:
        self.rank = rank
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": network.address(0),
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": "cable",
        }
        if own:
            environment["LIBCKPT_NODE"] = f"node{node}"
            store = own_store(store, node)
        stdin, told = os.pipe2(os.O_CLOEXEC)
        self._told = os.fdopen(told, "w")
        self._process = Forked(
            "import nodes, sys; nodes.be_rank(sys.argv[1])",
            str(store),
            environment=environment,
            streams=(stdin, None, 2),
            network=network.name(node),
        )
        os.close(stdin)

    def tell(self, word: str, step: int = 0) -> None:
        self._told.write(f"{word} {step}\n")
        self._told.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"rank {self.rank} has ended with {self._process.wait()}"
        return json.loads(line)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._told.close()
        self._process.stdout.close()


@contextlib.contextmanager
def job(
    network: Network, nodes: list[int], store: Path, *, own: bool = False
) -> Iterator[list[Rank]]:
    """A rank on each of the nodes, the first of which must be number 0; killed at the end."""
    ranks = [
        Rank(network, node, rank, len(nodes), store, own=own) for rank, node in enumerate(nodes)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def all_of(ranks: list[Rank], word: str, step: int = 0) -> list[Any]:
    """What each answers."""
    for rank in ranks:
        rank.tell(word, step)
    return [rank.answer() for rank in ranks]


def be_rank(store: str) -> None:
    """One rank: resumes, saves, and says what came of it."""
    import torch
    import torch.distributed as dist

    import libckpt

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.alarm(6 * int(_PATIENCE))  # whatever becomes of the test, nothing stays
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, own = torch.nn.Linear(64, 64), libckpt.PerRank(torch.zeros(1000))
    state = {"model": model, "own": own}
    with libckpt.Checkpointer(
        store,
        state,
        save_timeout=SAVE_TIMEOUT,
        on_error=lambda _: None,
        node_store="LIBCKPT_NODE" in os.environ,
    ) as ckpt:
        for line in sys.stdin:
            word, step = line.split()
            found: dict[str, Any] = {"error": None}
            try:
                if word == "resume":
                    found["step"] = ckpt.resume()
                    found["sum"] = float(state["model"].weight.sum()) + float(
                        state["own"].value.sum()
                    )
                else:
                    with torch.no_grad():
                        model.weight.fill_(int(step))
                    own.value.fill_(int(step) + rank)
                    ckpt.save(int(step)).wait(timeout=_PATIENCE)
            except libckpt.CheckpointError as error:
                found["error"] = f"{type(error).__name__}: {error}"
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


#: seconds
SAVE_TIMEOUT = 6
