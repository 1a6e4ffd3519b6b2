# SPDX-License-Identifier: Apache-2.0
"""With a store on every node: the node of each rank, and which ranks share a store."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from typing import NamedTuple

#: Most bytes of a node's name in a manifest.
_NAME_MAX = 64
#: Identifies the kernel. Device and inode numbers identify a directory within one kernel only.
_KERNEL = "/proc/sys/kernel/random/boot_id"
#: The file that makes a directory a store.
_MARKER = "ckpt.json"


def given_name() -> str:
    """The name of this node in the environment; empty: none."""
    return os.environ.get("LIBCKPT_NODE", "")


def node_name() -> str:
    """The name of this node in manifests."""
    return given_name() or os.uname().nodename or "unknown"


class Place(NamedTuple):
    """Where the store of a rank is, as the rank tells rank 0."""

    node: str
    path: str
    #: identifies the directory within one kernel; empty: unknown
    directory: str
    #: why there can be no store; empty: there can
    trouble: str = ""
    #: the system error of that; 0: an error of the user
    errno: int = 0
    #: a store exists
    made: bool = False
    #: the remote store; empty: none
    remote: str = ""
    #: the argument of the Checkpointer
    lost_nodes: bool = False

    def encode(self) -> bytes:
        """For the job's key-value store."""
        return json.dumps(self).encode()

    @staticmethod
    def decode(data: bytes) -> Place:
        """Reads the result of encode()."""
        return Place(*json.loads(data))


def place_of(path: str, trouble: str = "") -> Place:
    """The place of this rank's store, which is at `path`."""
    name = node_name()
    if len(name.encode("utf-8", "replace")) > _NAME_MAX or not name.isprintable():
        trouble = trouble or (
            f"LIBCKPT_NODE is {name[:80]!r}, and must be one line of at most {_NAME_MAX} bytes"
        )
        name = "unknown"
    made = os.path.lexists(os.path.join(path, _MARKER))
    place = Place(name, os.path.abspath(path), _directory(path), trouble, made=made)
    # A rank that cannot open the store must say so here, or the others would wait for it.
    number = 0 if trouble else _why_closed(path)
    if number:
        what = f"the store {place.path} cannot be opened: {os.strerror(number)}"
        return place._replace(trouble=what, errno=number)
    return place


def _why_closed(path: str) -> int:
    """The system error if the directory cannot be written to; 0: none."""
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
    Identifies the directory by its parent, because other ranks may ask before it exists, or after.
    A mount point exists before, and is identified by itself.
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
    except OSError:  # opening the store will raise the error
        return ""
    return f"{kernel}/{above.st_dev}/{above.st_ino}/{name}"


def different_remotes(first: str, rank: int, other: str) -> str:
    """The message if rank 0 and another rank have different remote stores."""
    return (
        f"rank 0 has {_named(first)}, and rank {rank} {_named(other)}: all ranks must have the "
        "same remote store, or none"
    )


def _named(remote: str) -> str:
    return f"remote={remote!r}" if remote else "no remote store"


class Refusal(NamedTuple):
    """Why the stores of the nodes are refused."""

    rank: int
    why: str
    errno: int = 0


def refusal(places: list[Place]) -> Refusal | None:
    """Checks the places, in the order of the ranks. None: they are good."""
    #: by node its directory, by directory its node, each with the first rank that has it
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
                "node the same directory, and each node a different name (LIBCKPT_NODE in the "
                "environment, if host names are equal)",
            )
        node, first = directories.setdefault(place.directory, (place.node, rank))
        if node != place.node:
            return Refusal(
                rank,
                f"ranks {first} and {rank} have the same directory for their stores "
                f"({place.path}), and are on nodes {node!r} and {place.node!r}: leave node_store "
                "out for a shared store, or give these ranks the same LIBCKPT_NODE",
            )
    return None


def peers_by_node(places: list[Place]) -> dict[str, list[int]]:
    """The ranks of each node, in ascending order."""
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place.node, []).append(rank)
    return found
