# SPDX-License-Identifier: Apache-2.0
"""
Imports a run from its remote store, before the ranks of a job open their stores. If the remote
store has newer steps, one rank of each store copies them. No rank opens a store before all have
finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from . import _errors as errors
from ._barrier import Opening, late_error
from ._kvstore import first_line
from ._log import logger
from ._membership import Membership
from ._native import lib
from ._nodes import different_remotes
from ._options import Options, bring
from ._waiting import aside


def same_remote(path: str, remotes: list[str]) -> None:
    """Raises if the remote stores, by rank, differ."""
    for rank, remote in enumerate(remotes):
        if remote != remotes[0]:
            raise ValueError(f"{path}: {different_remotes(remotes[0], rank, remote)}")


def bring_all(path: str, options: Options, ranks: Membership) -> None:
    """
    All ranks must call this. It takes as long as the copies. A rank that copies, and rank 0, write
    signs of life.
    """
    if ranks.opening is not None and options.remote:
        _Bringing(path, options, ranks.opening, ranks.peers).run()


#: Longest pause between two reads, in seconds. A thousand ranks may read the same key.
_LOOK = 0.5


class _Pulse:
    """Watches the signs of life of another rank."""

    def __init__(self, opening: Opening, key: str) -> None:
        self._opening = opening
        self._key = key
        self._seen: bytes | None = None
        self._pause = opening.pause(_LOOK)

    def wait(self) -> bool:
        """Pauses. False: there was no sign of life for too long."""
        seen = self._opening.table.read(self._key)
        if seen != self._seen:
            self._seen = seen
            self._pause.extend()
        return self._pause()


class _Bringing:
    def __init__(
        self, path: str, options: Options, opening: Opening, peers: tuple[int, ...]
    ) -> None:
        self._path = path
        self._options = options
        self._opening = opening
        self._peers = peers
        self._rank = opening.group.rank
        self._keeps = self._rank == (peers[0] if peers else 0)
        self._beats = itertools.count()

    def run(self) -> None:
        try:
            if self._keeps:
                self._keep()
            if self._rank == 0:
                self._lead()
            else:
                self._follow()
        except RuntimeError as error:
            raise errors.NetworkError(
                f"the ranks that open {self._path} do not reach each other: {first_line(error)}",
                code=lib.CKPT_ENETWORK,
            ) from error

    def _key(self, what: str, rank: int) -> str:
        return f"{self._opening.prefix}/{what}/{rank}"

    def _beat(self) -> BaseException | None:
        try:
            self._opening.table.write(
                self._key("pulse", self._rank), str(next(self._beats)).encode()
            )
        except RuntimeError as error:
            logger.debug("%s: %s", self._path, first_line(error))
        return self._opening.heed()

    def _keep(self) -> None:
        # The ranks may differ in new_start. A rank that has it copies nothing, and reports that.
        if not self._options.new_start:
            self._bring()
        if self._rank > 0:
            self._opening.table.write(self._key("brought", self._rank), b"1")

    def _bring(self) -> None:
        self._beat()
        world = self._opening.group.world
        # Only with lost_nodes: with another mesh the same ranks may want what other ranks wrote.
        peers = self._peers if self._options.lost_nodes else ()
        brought = aside(
            lambda: bring(self._path, self._options, peers, world),
            _nothing,
            None,
            self._beat,
        )
        if brought is not None:
            generation, step = brought
            logger.warning(
                "rank %d: step %d of generation %d was brought from %s into %s",
                self._rank, step, generation, self._options.remote, self._path,
            )  # fmt: skip

    def _keepers(self) -> set[int]:
        """The first ranks of the other stores."""
        first: dict[str, int] = {}
        for rank, node in enumerate(self._opening.nodes):
            first.setdefault(node, rank)
        return set(first.values()) - {0}

    def _lead(self) -> None:
        table = self._opening.table
        for keeper in sorted(self._keepers()):
            key = self._key("brought", keeper)
            self._await(keeper, lambda key=key: table.read(key) is not None)  # type: ignore[misc]
            table.drop(key)
            table.drop(self._key("pulse", keeper))
        table.write(self._key("pulse", 0), b"done")

    def _follow(self) -> None:
        table, key = self._opening.table, self._key("pulse", 0)
        self._await(0, lambda: table.read(key) == b"done")

    def _await(self, whom: int, came: Callable[[], bool]) -> None:
        pulse = _Pulse(self._opening, self._key("pulse", whom))
        while not came():
            failed = self._beat() if self._rank == 0 else self._opening.heed()
            if failed is not None:
                raise failed
            if not pulse.wait():
                raise late_error(
                    f"{self._path}: rank {self._rank} has waited for rank {whom}, which brings the "
                    f"run from {self._options.remote} and has shown no life since"
                )


def _nothing(_: object) -> None:
    """Files that were copied remain, because they are good."""
