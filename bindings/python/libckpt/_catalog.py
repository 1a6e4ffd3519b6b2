# SPDX-License-Identifier: Apache-2.0
"""The steps of a store, as the library lists them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._calls import check, new_struct, text
from ._native import lib

STEP_STATES = {
    lib.CKPT_STEP_COMMITTED: "committed",
    lib.CKPT_STEP_ABORTED: "aborted",
    lib.CKPT_STEP_PENDING: "pending",
    lib.CKPT_STEP_QUARANTINED: "quarantined",
    lib.CKPT_STEP_BROKEN: "broken",
}

_REMOTE_STATES = {
    lib.CKPT_REMOTE_UPLOADED: "uploaded",
    lib.CKPT_REMOTE_PENDING: "pending",
    lib.CKPT_REMOTE_EXCLUDED: "excluded",
    lib.CKPT_REMOTE_FAILED: "failed",
}


class StepInfo(NamedTuple):
    """A step of a store, as listed in its manifest."""

    step: int
    generation: int
    #: committed, aborted, pending, quarantined or broken
    state: str
    #: bytes of all shards
    bytes: int
    #: seconds since the epoch, by the writer's clock
    time: float
    #: number of ranks
    world: int
    #: a restore can choose it
    in_lineage: bool
    #: why it was aborted or quarantined, or what is broken
    note: str
    #: for a broken step: the code of the library, or a negative errno if it may still be good
    code: int
    #: it is quarantined or broken, and newer than the step that a restore chooses instead
    passed_over: bool
    #: its removal has begun. It is chosen only if there is no other step
    deleting: bool = False
    #: state of the copy in the remote store, as last recorded by the job: uploaded, pending,
    #: failed, excluded (it is not copied) or unknown
    remote: str = "unknown"


def read_catalog(ptr: Any) -> list[StepInfo]:
    info = new_struct("ckpt_step_info")
    found = []
    for index in range(lib.ckpt_catalog_count(ptr)):
        check(lib.ckpt_catalog_step(ptr, index, info))
        found.append(_step_info(info))
    return found


def _step_info(info: Any) -> StepInfo:
    return StepInfo(
        step=int(info.step),
        generation=int(info.generation),
        state=STEP_STATES.get(info.state, "unknown"),
        bytes=int(info.bytes),
        time=info.wall_ms / 1000,
        world=int(info.world),
        in_lineage=bool(info.in_lineage),
        note=text(info.note),
        code=int(info.code),
        passed_over=bool(info.passed_over),
        deleting=bool(info.deleting),
        remote=_REMOTE_STATES.get(info.remote, "unknown"),
    )
