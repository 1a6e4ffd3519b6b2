# SPDX-License-Identifier: Apache-2.0
"""
Chooses the step that is read: the given one, or the newest one that is good. If the newest step
cannot be read or verified, the next older one is taken, with a warning.

The C library chooses among the steps that it does not know to be bad. The loop over them is here,
because each try needs this side: `read` binds the tensors that this very step has, a step may turn
out to be bad in Python only (its objects, its structure), and an engine that is read only, as that
of load(), keeps no note of a bad step.
"""

from __future__ import annotations

import errno
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from ._calls import error_class
from ._catalog import StepInfo
from ._engine import Engine
from ._errors import (
    CheckpointError,
    CheckpointWarning,
    FormatError,
    IncompleteError,
    IntegrityError,
    OtherNodeError,
    QuarantinedError,
    StepNotFoundError,
    StorageError,
)
from ._log import logger
from ._native import lib
from ._reader import Reader
from ._store_names import Step, parse_step

#: How often a step is chosen, if the writer of the store removes the chosen one each time.
_TRIES = 10


#: System errors that mean that the file is damaged, or is not a regular file.
_DAMAGE = {
    *(errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN),
    *(errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EFBIG),
}


def is_unreadable(error: CheckpointError) -> bool:
    """True if an older step may still be good."""
    return isinstance(error, (IntegrityError, IncompleteError, FormatError)) or (
        isinstance(error, StorageError) and error.errno in _DAMAGE
    )


def read_newest(
    engine: Engine, step: Step, read: Callable[[Reader], Any]
) -> tuple[int | None, Any]:
    """
    Opens a step and calls `read` with it. Returns its number and what `read` returned; (None, None)
    if nothing was ever committed. For "latest", a step that cannot be read or verified is
    passed over, with an error in the log and a warning.
    """
    number = parse_step(step)
    if number == lib.CKPT_STEP_LATEST and engine.world > 1:
        return _read_agreed(engine, read)
    if number != lib.CKPT_STEP_LATEST:
        return _read_asked(engine, number, read)
    passed: dict[tuple[int, int], CheckpointError] = {}
    removed: StepNotFoundError | None = None
    for _ in range(_TRIES):
        try:
            found = _read_latest(engine, read, passed)
        except _RemovedError as error:
            removed = error.found
            continue
        if found[0] is None and removed is not None:
            raise removed  # there was a step, and `read` may have changed something
        return found
    assert removed is not None
    raise removed


def _read_agreed(engine: Engine, read: Callable[[Reader], Any]) -> tuple[int | None, Any]:
    """
    For many ranks. With lost_nodes, a step of which some node has no file is passed over. Rank 0
    decides that, and a rank does not know how far the others are. So if files of a step are on
    another node, all ranks ask again, and all raise if they are given the same step again.
    """
    lost: list[OtherNodeError] = []
    own: list[CheckpointError] = []
    begun: list[CheckpointError] = []

    def note(reader: Reader) -> Any:
        try:
            return read(reader)
        except CheckpointError as error:
            begun.append(error)
            if reader.complete or not reader.asked:
                own.append(error)  # the other ranks do not know of it
            raise

    while True:
        try:
            taken = _read_common(engine, note)
        except OtherNodeError as error:
            again = error.step in [known.step for known in lost]
            if not engine.options.lost_nodes or error.step is None or again or _is_in(error, own):
                opening = error.step is not None and not _is_in(error, begun)
                raise _with_way_out(engine, error, opening) from None
            lost.append(error)
            logger.warning("%s", error)
        except (StepNotFoundError, QuarantinedError) as error:
            if lost and not _is_in(error, begun):
                raise _none_left(engine, lost) from error
            raise
        else:
            _say_lost(engine, lost, taken[0])
            return taken


def _is_in(error: CheckpointError, errors: list[CheckpointError]) -> bool:
    return any(error is known for known in errors)


def _read_common(engine: Engine, read: Callable[[Reader], Any]) -> tuple[int | None, Any]:
    """
    For many ranks, which may see different newest steps. The library makes them agree on one. If
    one rank cannot read it, it counts as unreadable for all. If rank 0 repairs it from the remote
    store, the other ranks are not told, so the same step is tried a second time.
    """
    met: Counter[int] = Counter()
    most = 2 if engine.options.remote else 1
    removed: list[CheckpointError] = []
    while True:
        reader: Reader | None = None
        try:
            with Reader(engine, int(lib.CKPT_STEP_LATEST)) as reader:
                return reader.step, read(reader)
        except StepNotFoundError as error:
            if reader is not None and reader.complete:
                raise
            steps = engine.steps()
            elsewhere = sum(info.state not in ("aborted", "pending") for info in steps)
            if elsewhere:
                raise _hidden(engine, elsewhere) from error
            if removed:
                raise removed[0] from error  # `read` may have changed something
            return None, None
        except CheckpointError as caught:
            if reader is not None and reader.complete:
                raise  # all ranks have restored it, and this error is of this rank alone
            # It was removed while it was read. All ranks know, and there is a newer one.
            if caught.errno == errno.EBUSY and caught.code and len(removed) + 1 < _TRIES:
                removed.append(caught)
                logger.warning("%s", caught)
                continue
            # An error without a code was raised by Python on this rank alone.
            found = caught.step if caught.code else None
            if not is_unreadable(caught) or found is None or met[found] == most:
                raise
            met[found] += 1
            if caught.repaired or (engine.options.remote and engine.rank > 0):
                logger.warning("%s", caught)
            else:
                _pass_over(engine, found, caught)


def _say_lost(engine: Engine, lost: list[OtherNodeError], step: int | None) -> None:
    """Warns once of all steps that were passed over because nodes were lost."""
    lost = [error for error in lost if error.step != step]
    if not lost:
        return
    assert step is not None
    steps = ", ".join(str(error.step) for error in reversed(lost))
    remote = engine.options.remote
    there = f", and {remote} does not have them whole" if remote else ""
    upload = (
        f", or run `ckpt upload` on each other node to complete them in {remote}" if remote else ""
    )
    message = (
        f"{engine.path} continues from step {step}, the newest that every node has. Newer steps "
        f"were passed over (lost_nodes=True): {steps}. A node has no file of them{there}. They are "
        "given up when the next save begins. If the store of another node has all tensors of them "
        "(DDP, HSDP), end the job before that, and copy that store to the node that has none "
        f"(rsync -a, then sync){upload}. Step {lost[0].step}: {lost[0]}"
    )
    logger.error("%s", message)
    warnings.warn(message, CheckpointWarning, stacklevel=5)


def _with_way_out(engine: Engine, error: OtherNodeError, opening: bool) -> OtherNodeError:
    """
    Adds advice to the error. `opening`: some node has no file of the step. Otherwise ranks lack
    data that other ranks have.
    """
    options = engine.options
    if not options.node_store:
        return error
    if not opening:
        if options.lost_nodes:
            error.message += (
                "; lost_nodes=True passes over a step only if the store of a node has no file of "
                "it: start as many nodes as have saved it, with an empty store for each lost one"
            )
            if options.remote:
                error.message += (
                    f"; if {options.remote} has the step, and the layout has changed (another "
                    "mesh), start with empty stores and without lost_nodes: each node then copies "
                    "all of it"
                )
    elif options.lost_nodes:
        if engine.rank > 0:
            error.message += "; the step was not passed over: the error of rank 0 says why"
    else:
        upload = (
            f", or run `ckpt upload` on each other node: {options.remote} is then complete if the "
            "lost node had copied its part"
            if options.remote
            else ""
        )
        error.message += (
            "; if a node was lost with its disk, first copy to it the store of a node that has all "
            f"tensors of the step (DDP, HSDP; rsync -a, then sync){upload}; if that is not "
            "possible, lost_nodes=True continues from the newest step that all nodes have, and "
            "gives up newer ones"
        )
    return error


def _none_left(engine: Engine, lost: list[OtherNodeError]) -> OtherNodeError:
    """The error if no step is left: a job starts from step 0 only if new_start says so."""
    remote = engine.options.remote
    way = (
        f", and none can be copied from {remote}; new_start=True starts from step 0"
        if remote
        else "; if the job has uploaded its steps, give remote="
    )
    lost[
        0
    ].message = (
        f"{engine.path}: there is no step that all nodes have{way}. The newest: {lost[0].message}"
    )
    return lost[0]


class _RemovedError(Exception):
    """The chosen step was removed: `found` is the error. There is a newer one."""

    def __init__(self, found: StepNotFoundError) -> None:
        super().__init__()
        self.found = found


def _read_asked(
    engine: Engine, number: int, read: Callable[[Reader], Any]
) -> tuple[int | None, Any]:
    """
    Reads the given step. If "latest~1" is removed before it is open, the library chooses again,
    but a writer that commits without a pause may be faster than its retries. After the step is
    open, only this function can choose again.
    """
    # With many ranks, only the rank that found the step gone would know.
    relative = number > lib.CKPT_STEP_MAX and engine.world == 1
    for _ in range(_TRIES - 1 if relative else 0):
        try:
            with Reader(engine, number) as reader:
                return reader.step, read(reader)
        except StepNotFoundError as error:
            # The error names the manifest if the step existed, and no file if it never did.
            if error.file is None:
                raise
    return _read_step(engine, number, read)


def _read_step(engine: Engine, number: int, read: Callable[[Reader], Any]) -> tuple[int, Any]:
    """
    Reads again if the damage was repaired from the remote store. With many ranks it does not,
    because only one of them knows, and all must do the same.
    """
    try:
        with Reader(engine, number) as reader:
            return reader.step, read(reader)
    except CheckpointError as found:
        if not found.repaired or engine.world > 1:
            raise
        logger.warning("%s", found)
    with Reader(engine, number) as reader:
        return reader.step, read(reader)


def _read_latest(
    engine: Engine, read: Callable[[Reader], Any], passed: dict[tuple[int, int], CheckpointError]
) -> tuple[int | None, Any]:
    """Reads the newest step that is good. `passed`: steps that are known to be bad."""
    steps = engine.steps()
    # Steps that are being removed come last.
    for info in sorted(steps, key=lambda found: found.deleting):
        key = info.generation, info.step
        error = _reason_to_pass(info)
        if key in passed or (error is None and not (info.in_lineage and info.state == "committed")):
            continue
        try:
            if error is not None:
                raise error
            return _read_step(engine, info.step, read)
        except StepNotFoundError as caught:
            raise _RemovedError(caught) from caught
        except CheckpointError as caught:
            if not is_unreadable(caught):
                raise
            passed[key] = caught
            _pass_over(engine, info.step, caught)
    if passed:
        newest = next(iter(passed.values()))
        raise IntegrityError(
            f"{engine.path} has committed steps, but none of them can be read ({len(passed)} "
            f"were tried); the newest: {newest}",
            step=newest.step,
        ) from newest
    elsewhere = sum(info.state not in ("aborted", "pending") for info in steps)
    return _nothing_there(engine, read, elsewhere) if elsewhere else (None, None)


def _nothing_there(
    engine: Engine, read: Callable[[Reader], Any], elsewhere: int
) -> tuple[int | None, Any]:
    """
    The store has steps, but none of them can be chosen: either a new start was made, or a file that
    describes the lineage is damaged. The library knows which, and raises.
    """
    try:
        with Reader(engine, int(lib.CKPT_STEP_LATEST)) as reader:
            return reader.step, read(reader)  # a step was committed meanwhile
    except StepNotFoundError as error:
        raise _hidden(engine, elsewhere) from error


def _hidden(engine: Engine, elsewhere: int) -> StepNotFoundError:
    return StepNotFoundError(
        f"{engine.path} has no step of its newest start: the run was started anew, or from an "
        f"older step, and nothing has been committed since. The {elsewhere} earlier steps "
        "still exist (`ckpt ls` lists them), but are not chosen automatically: give the number of "
        "one, or new_start=True, which keeps them and starts from step 0",
        code=lib.CKPT_ENOSTEP,
    )


def _reason_to_pass(info: StepInfo) -> CheckpointError | None:
    """Why a committed step is not tried; None if it is tried, or was never committed."""
    if not info.passed_over:
        return None
    note = f": {info.note}" if info.note else ""
    where = f"g{info.generation:06d}/step-{info.step:010d}"
    if info.state == "quarantined":
        cure = f" (if its files are good again, remove {where}/quarantine.json)"
        return IntegrityError(f"step {info.step} is quarantined{note}{cure}", step=info.step)
    # A system error may be temporary. Taking an older step would then lose progress.
    system = -info.code if info.code > lib.CKPT_EINTEGRITY else None
    return error_class(info.code)(
        f"the manifest of step {info.step} is broken{note}",
        code=info.code,
        errno=system,
        step=info.step,
        file=f"{where}/manifest.json",
    )


def _pass_over(engine: Engine, step: int, error: CheckpointError) -> None:
    message = f"step {step} of {engine.path} is passed over for the next older one: {error}"
    logger.error("%s", message)
    warnings.warn(message, CheckpointWarning, stacklevel=6)
