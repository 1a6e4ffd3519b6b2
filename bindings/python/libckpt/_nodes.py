# SPDX-License-Identifier: Apache-2.0
"""Which node a rank is on, and who shares its store, where every node has a store of its own."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from typing import NamedTuple

#: Bytes of a node's name in a manifest.
_NAME_MAX = 64
#: Devices and inodes say the same to processes that share a kernel, and nothing to others.
_KERNEL = "/proc/sys/kernel/random/boot_id"
#: A directory is a store when it has this.
_MARKER = "ckpt.json"


def given_name() -> str:
    """What the user has named this node; empty: nothing."""
    return os.environ.get("LIBCKPT_NODE", "")


def node_name() -> str:
    """What the manifests call this node."""
    return given_name() or os.uname().nodename or "unknown"


class Place(NamedTuple):
    """Where one rank's store is, as it tells it to rank 0."""

    node: str
    path: str
    #: which directory that is, for processes of one kernel; empty: not known
    directory: str
    #: why it cannot be; empty: it can
    trouble: str = ""
    #: of that, as the system has it; 0: the user is to mend it
    errno: int = 0
    #: there is a store
    made: bool = False
    #: where what this rank commits goes on to; empty: nowhere
    remote: str = ""
    #: what only lost nodes had is given up
    lost_nodes: bool = False

    def encode(self) -> bytes:
        """For the job's key-value store."""
        return json.dumps(self).encode()

    @staticmethod
    def decode(data: bytes) -> Place:
        """What encode() gave."""
        return Place(*json.loads(data))


def place_of(path: str, trouble: str = "") -> Place:
    """This rank's, of a store at `path`."""
    name = node_name()
    if len(name.encode("utf-8", "replace")) > _NAME_MAX or not name.isprintable():
        trouble = trouble or (
            f"LIBCKPT_NODE is {name[:80]!r}, and must be one line of at most {_NAME_MAX} bytes"
        )
        name = "unknown"
    made = os.path.lexists(os.path.join(path, _MARKER))
    place = Place(name, os.path.abspath(path), _directory(path), trouble, made=made)
    # Who cannot open it at all could tell nobody, and the others would wait.
    number = 0 if trouble else _why_closed(path)
    if number:
        what = f"the store {place.path} cannot be opened: {os.strerror(number)}"
        return place._replace(trouble=what, errno=number)
    return place


def _why_closed(path: str) -> int:
    """Why nothing could be written there; 0: there is no such reason."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        where = path
    except FileNotFoundError:
        where = os.path.dirname(os.path.realpath(path))
    except OSError as error:
        return error.errno or errno.EIO
    if os.access(where, os.W_OK | os.X_OK):
        return 0
    return errno.EACCES if os.path.isdir(where) else errno.ENOENT


def _directory(path: str) -> str:
    """
    By the directory that it is in: other ranks may ask before it is made, or after. One that others
    are mounted on has been there before.
    """
    real = os.path.realpath(path)
    parent, name = os.path.split(real)
    try:
        kernel = pathlib.Path(_KERNEL).read_text("ascii").strip()
        above = os.stat(parent)
        with contextlib.suppress(FileNotFoundError):
            here = os.stat(real)
            if here.st_dev != above.st_dev:
                above, name = here, ""
    except OSError:  # whoever opens it says what is wrong
        return ""
    return f"{kernel}/{above.st_dev}/{above.st_ino}/{name}"


def different_remotes(first: str, rank: int, other: str) -> str:
    """What is wrong when rank 0 has the first, and another rank another one."""
    return (
        f"rank 0 has {_named(first)}, and rank {rank} {_named(other)}: the ranks of a job have one "
        "remote store, or none"
    )


def _named(remote: str) -> str:
    return f"remote={remote!r}" if remote else "no remote store"


class Refusal(NamedTuple):
    """Why the ranks of a job cannot have a store on each node."""

    rank: int
    why: str
    errno: int = 0


def refusal(places: list[Place]) -> Refusal | None:
    """What is wrong with these ranks' places, in the order of the ranks; None: nothing."""
    #: of a node its directory, of a directory its node, and the first rank that has said so
    nodes: dict[str, tuple[str, int]] = {}
    directories: dict[str, tuple[str, int]] = {}
    for rank, place in enumerate(places):
        if place.trouble:
            return Refusal(rank, f"rank {rank}: {place.trouble}", place.errno)
        if place.remote != places[0].remote:
            return Refusal(rank, different_remotes(places[0].remote, rank, place.remote))
        if place.lost_nodes != places[0].lost_nodes:
            return Refusal(
                rank,
                f"rank 0 has lost_nodes={places[0].lost_nodes}, and rank {rank} "
                f"lost_nodes={place.lost_nodes}: give all ranks the same",
            )
        if not place.directory:
            continue
        directory, first = nodes.setdefault(place.node, (place.directory, rank))
        if directory != place.directory:
            return Refusal(
                rank,
                f"ranks {first} and {rank} are both on node {place.node!r}, and their stores "
                f"({places[first].path}, {place.path}) are two directories: give the ranks of a "
                "node one directory, and each node a name of its own (LIBCKPT_NODE in the "
                "environment, if its host has none)",
            )
        node, first = directories.setdefault(place.directory, (place.node, rank))
        if node != place.node:
            return Refusal(
                rank,
                f"ranks {first} and {rank} have one directory for their stores ({place.path}), and "
                f"are on nodes {node!r} and {place.node!r}: leave node_store out for a store that "
                "all share, or give those ranks one LIBCKPT_NODE",
            )
    return None


def peers_by_node(places: list[Place]) -> dict[str, list[int]]:
    """The ranks of each node, which share its store, in their order."""
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place.node, []).append(rank)
    return found
