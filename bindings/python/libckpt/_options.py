# SPDX-License-Identifier: Apache-2.0
"""How an engine is opened, for the library."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ._calls import last_error, new_struct
from ._gpus import cuda_major
from ._native import ffi, lib


class Options(NamedTuple):
    """How an engine is opened; zero is the C library's default."""

    pool_bytes: int = 0
    io: str = "auto"
    busy: str = "wait"
    save_timeout: float = 600.0
    keep_last: int = 0
    keep_every: int = 0
    new_start: bool = False
    read_only: bool = False
    debug: bool = False
    #: of the job's processes, those on this node; 0: not known
    node_ranks: int = 0
    #: every node has a store of its own
    node_store: bool = False
    #: with that: nodes were lost with their stores, and what only they had is given up
    lost_nodes: bool = False
    #: where committed steps go on to; empty: nowhere
    remote: str = ""
    remote_every: int = 0
    remote_bytes_per_s: int = 0
    #: what is kept there; 0: nothing is removed
    remote_keep_last: int = 0
    remote_keep_every: int = 0
    #: seconds; 0: 1800
    remote_grace: int = 0
    #: what to do when ranks differ in what they hold alike
    replicas: str = "check"
    #: how tensors are stored
    encoding: str = "plain"
    #: the same in the remote store; None: as they are here
    remote_encoding: str | None = None


_REPLICAS = {"check": lib.CKPT_REPLICAS_CHECK, "warn": lib.CKPT_REPLICAS_WARN}

_ENCODINGS = {
    "plain": lib.CKPT_ENCODING_PLAIN,
    "compact": lib.CKPT_ENCODING_COMPACT,
    "delta": lib.CKPT_ENCODING_DELTA,
}

_REMOTE_ENCODINGS = {
    None: lib.CKPT_REMOTE_AS_STORED,
    "plain": lib.CKPT_REMOTE_PLAIN,
    "compact": lib.CKPT_REMOTE_COMPACT,
}

_IO = {"auto": lib.CKPT_IO_AUTO, "uring": lib.CKPT_IO_URING, "threads": lib.CKPT_IO_THREADS}


def engine_opts(options: Options) -> Any:
    opts = new_struct("ckpt_engine_opts")
    if options.new_start:
        opts.flags |= lib.CKPT_ENGINE_NEW_START
    if options.read_only:
        opts.flags |= lib.CKPT_ENGINE_READ_ONLY
    if options.node_store:
        opts.flags |= lib.CKPT_ENGINE_NODE_STORE
    if options.lost_nodes:
        opts.flags |= lib.CKPT_ENGINE_LOST_NODES
    opts.pool_bytes = options.pool_bytes
    opts.io = _IO[options.io]
    # Whether one runs is seen in Python first. What has ended is on its way out of the library,
    # and the next one has only to wait a moment, unless the storage hangs.
    opts.busy = lib.CKPT_BUSY_SKIP if options.busy == "skip" else lib.CKPT_BUSY_WAIT
    opts.save_timeout_ms = max(1, round(options.save_timeout * 1000))
    opts.keep_last = options.keep_last
    opts.keep_every = options.keep_every
    opts.node_ranks = options.node_ranks
    opts.remote_every = options.remote_every
    opts.remote_bytes_per_s = options.remote_bytes_per_s
    opts.remote_keep_last = options.remote_keep_last
    opts.remote_keep_every = options.remote_keep_every
    opts.remote_grace_s = options.remote_grace
    opts.replicas = _REPLICAS[options.replicas]
    opts.encoding = _ENCODINGS[options.encoding]
    opts.remote_encoding = _REMOTE_ENCODINGS[options.remote_encoding]
    opts.cuda_major = cuda_major()
    opts.log_level = lib.CKPT_LOG_DEBUG if options.debug else lib.CKPT_LOG_INFO
    return opts


def bring(
    path: str, options: Options, peers: tuple[int, ...] = (), world: int = 1
) -> tuple[int, int] | None:
    """
    Imports the run from its remote store. No engine may have the store open. Returns the generation
    and the step, or None if there is nothing newer to import. `peers` are the ranks of `world` that
    share this store. Only their files are imported, if the step was saved so
    (ckpt_engine_import_ranks()). Without `peers` the whole step is imported.
    """
    opts = engine_opts(options)
    remote = ffi.new("char[]", os.fsencode(options.remote))
    opts.remote = remote
    generation, step = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    name = os.fsencode(path)
    if peers:
        ranks = ffi.new("uint32_t[]", peers)
        code = lib.ckpt_engine_import_ranks(name, opts, ranks, len(peers), world, generation, step)
    else:
        code = lib.ckpt_engine_import(name, opts, generation, step)
    if code < 0:
        raise last_error(code)
    return (int(generation[0]), int(step[0])) if generation[0] else None
