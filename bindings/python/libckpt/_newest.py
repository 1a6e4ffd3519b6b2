# SPDX-License-Identifier: Apache-2.0
"""
The step that is read: the one that was asked for, or the newest that is good. Where that one cannot
be read or verified the next older one is taken, and said to be.
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

#: So often a step is chosen anew because the chosen one was removed by the store's writer.
_TRIES = 10


#: System errors that say that the file is damaged, or that something else is in its place.
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
    Opens a step and calls `read` with it. For "latest", a step that cannot be read or verified is
    passed over, loudly. (None, None) if nothing was ever committed.
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
            raise removed  # there was a step, and something may have come of it already
        return found
    assert removed is not None
    raise removed


def _read_agreed(engine: Engine, read: Callable[[Reader], Any]) -> tuple[int | None, Any]:
    """
    Of many ranks. With lost_nodes a step of which some node has no file is passed over. Rank 0
    decides that, and a rank may not even know how far the others have come: so whenever the files
    of a step are elsewhere all ask again, and all raise if they are given the same step.
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
                own.append(error)  # the other ranks have not heard of it
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
    Of many ranks each may see another newest step that is good: the library has them agree on one,
    and calls a step that one of them cannot read unreadable for all. Where rank 0 mends it with the
    remote store, which the others are not told, it is met a second time.
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
                raise removed[0] from error  # something may have come of it already
            return None, None
        except CheckpointError as caught:
            if reader is not None and reader.complete:
                raise  # all have restored it, and this is this rank's own
            # Removed while it was read: all have heard that, and there is a newer one.
            if caught.errno == errno.EBUSY and caught.code and len(removed) + 1 < _TRIES:
                removed.append(caught)
                logger.warning("%s", caught)
                continue
            # What Python itself found, this rank alone has found.
            found = caught.step if caught.code else None
            if not is_unreadable(caught) or found is None or met[found] == most:
                raise
            met[found] += 1
            if caught.repaired or (engine.options.remote and engine.rank > 0):
                logger.warning("%s", caught)
            else:
                _pass_over(engine, found, caught)


def _say_lost(engine: Engine, lost: list[OtherNodeError], step: int | None) -> None:
    """Once, for all steps that were passed over because nodes were lost."""
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
        f"{engine.path} goes on from step {step}, the newest that every node has. Newer steps were "
        f"passed over (lost_nodes=True): {steps}. A node has no file of them{there}. They are "
        "given up when the next save begins. If the store of another node has all tensors of them "
        "(DDP, HSDP), end the job before that, and copy that store to the node that has none "
        f"(rsync -a, then sync){upload}. Of step {lost[0].step}: {lost[0]}"
    )
    logger.error("%s", message)
    warnings.warn(message, CheckpointWarning, stacklevel=5)


def _with_way_out(engine: Engine, error: OtherNodeError, opening: bool) -> OtherNodeError:
    """`opening`: some node has no file of the step. Else ranks lack what others have."""
    options = engine.options
    if not options.node_store:
        return error
    if not opening:
        if options.lost_nodes:
            error.message += (
                "; lost_nodes=True passes over a step only if the store of a node has no file of "
                "it: start as many nodes as have saved it, an empty one for each that was lost"
            )
            if options.remote:
                error.message += (
                    f"; if {options.remote} has the step, and the layout is another one (another "
                    "mesh), start with empty stores and without lost_nodes: each node is then "
                    "brought all of it"
                )
    elif options.lost_nodes:
        if engine.rank > 0:
            error.message += "; the step was not passed over: the error of rank 0 says why"
    else:
        upload = (
            f", or run `ckpt upload` on each other node: {options.remote} is complete if the lost "
            "node had sent its part"
            if options.remote
            else ""
        )
        error.message += (
            "; if a node was lost with its disk, first copy to it the store of a node that has all "
            f"tensors of the step (DDP, HSDP; rsync -a, then sync){upload}; if that cannot be "
            "done, lost_nodes=True goes on from the newest step that all nodes have, and gives "
            "newer ones up"
        )
    return error


def _none_left(engine: Engine, lost: list[OtherNodeError]) -> OtherNodeError:
    """Nobody starts from nothing unless he says so."""
    remote = engine.options.remote
    way = (
        f", and none could be brought from {remote}; new_start=True starts from nothing"
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
    """The step that was chosen is no longer there: `found` says so. There is a newer one."""

    def __init__(self, found: StepNotFoundError) -> None:
        super().__init__()
        self.found = found


def _read_asked(
    engine: Engine, number: int, read: Callable[[Reader], Any]
) -> tuple[int | None, Any]:
    """
    Reads a step that was asked for. The library, too, chooses again when the one before the latest
    is removed before it is open, but a writer that commits without a pause may be quicker than it
    is patient; and once it is open nobody else can.
    """
    # Of many ranks only the one that missed the step would know that it was there.
    relative = number > lib.CKPT_STEP_MAX and engine.world == 1
    for _ in range(_TRIES - 1 if relative else 0):
        try:
            with Reader(engine, number) as reader:
                return reader.step, read(reader)
        except StepNotFoundError as error:
            # Of a step that was found the error names the manifest; of one that never was, nothing.
            if error.file is None:
                raise
    return _read_step(engine, number, read)


def _read_step(engine: Engine, number: int, read: Callable[[Reader], Any]) -> tuple[int, Any]:
    """
    Once more, if what was damaged is whole again, with the remote store. Not of many ranks: only
    one of them knows, and all must do the same.
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
    """Reads the newest step that is good; `passed` are those that are known not to be."""
    steps = engine.steps()
    # What is being removed is still better than nothing.
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
            f"{engine.path} holds committed steps, and none of them can be read ({len(passed)} "
            f"were tried); the newest: {newest}",
            step=newest.step,
        ) from newest
    elsewhere = sum(info.state not in ("aborted", "pending") for info in steps)
    return _nothing_there(engine, read, elsewhere) if elsewhere else (None, None)


def _nothing_there(
    engine: Engine, read: Callable[[Reader], Any], elsewhere: int
) -> tuple[int | None, Any]:
    """
    No step of the list may be chosen, and there are some. The library knows whether that is so
    because a new start was asked for, or because a file that says what belongs to what is damaged.
    """
    try:
        with Reader(engine, int(lib.CKPT_STEP_LATEST)) as reader:
            return reader.step, read(reader)  # it has just been committed
    except StepNotFoundError as error:
        raise _hidden(engine, elsewhere) from error


def _hidden(engine: Engine, elsewhere: int) -> StepNotFoundError:
    return StepNotFoundError(
        f"{engine.path} holds no step of its newest start: it was started anew, or from an "
        f"older step, and nothing has been committed since. The {elsewhere} steps of before "
        "are still there (`ckpt ls` lists them), but a restore does not choose them by "
        "itself; new_start=True leaves them alone and starts from nothing",
        code=lib.CKPT_ENOSTEP,
    )


def _reason_to_pass(info: StepInfo) -> CheckpointError | None:
    """Why a step that was committed once is not tried; None if it may be, or never was."""
    if not info.passed_over:
        return None
    note = f": {info.note}" if info.note else ""
    where = f"g{info.generation:06d}/step-{info.step:010d}"
    if info.state == "quarantined":
        cure = f" (if its files are good again, remove {where}/quarantine.json)"
        return IntegrityError(f"step {info.step} is quarantined{note}{cure}", step=info.step)
    # What could not be read this time may be good: then an older one in its place would be a loss.
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
