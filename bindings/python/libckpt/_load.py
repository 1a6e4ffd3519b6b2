# SPDX-License-Identifier: Apache-2.0
"""Reading a store without a live state: load() and list_steps()."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._asking import placed
from ._buffers import said_of
from ._decoder import Decoder
from ._engine import Engine, Options, StepInfo, error_class, logger
from ._errors import (
    CheckpointError,
    CheckpointWarning,
    FormatError,
    IncompleteError,
    IntegrityError,
    MismatchError,
    OtherNodeError,
    QuarantinedError,
    StepNotFoundError,
    StorageError,
    UnsupportedError,
)
from ._json_values import Json, tag_of
from ._native import lib
from ._ranks import is_own
from ._reader import Memory, Reader, Stored, optimizer_tensors, references
from ._save import Progress, callback

if TYPE_CHECKING:
    import torch

Step = int | str

#: So often a step is chosen anew because the chosen one was removed by the store's writer.
_TRIES = 10


def load(
    store: str | os.PathLike[str],
    step: Step = "latest",
    names: Iterable[str] | None = None,
    allow_pickle: bool = False,
    *,
    map_location: str | torch.device | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> dict[str, Any]:
    """
    Reads a step without a model. Tensors are on the CPU, or where `map_location` says ("cuda:0").

    Without `names`, returns the state as it was given to the Checkpointer: a module is a dict of
    its tensors, an optimizer a dict with "state" (by the names of its parameters) and
    "param_groups", any other object what its state_dict() returned. With `names` (tensor names, or
    patterns such as "layers.0.*"), returns these tensors only, by their names, and reads nothing
    else.

    `step` is a number, "latest", or "latest~1" for the one before. Where "latest" cannot be read or
    verified, the next older one is taken, with a warning.
    """
    callback("progress", progress)
    device = _device(map_location)
    engine = Engine(store_name(store), Options(read_only=True), log_thread=False)
    try:

        def read(reader: Reader) -> dict[str, Any]:
            value = _load_from(reader, names, allow_pickle, progress, device)
            if reader.differ:
                warnings.warn(
                    f"step {reader.step}: when it was saved, {reader.differ}; what is loaded is "
                    "what one of them held",
                    CheckpointWarning,
                    stacklevel=5,
                )
            return value

        found, value = read_newest(engine, step, read)
        if found is None:
            raise StepNotFoundError(
                f"{engine.path}: nothing has been committed yet", code=lib.CKPT_ENOSTEP
            )
        state: dict[str, Any] = value
        return state
    finally:
        engine.close()


def _device(map_location: str | torch.device | None) -> torch.device | None:
    """Where tensors go; None: to the CPU, and torch is not needed to say so."""
    if map_location is None or map_location == "cpu":
        return None
    import torch

    device = torch.device(map_location)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"map_location={str(device)!r}: it must be the CPU or a GPU of CUDA")
    return None if device.type == "cpu" else device


def list_steps(store: str | os.PathLike[str], *, everything: bool = False) -> list[StepInfo]:
    """
    The steps of a store that may be restored, newest first; with `everything`, also those that were
    aborted, are quarantined, broken or under way, or belong to a branch that was rolled back.
    """
    engine = Engine(store_name(store), Options(read_only=True), log_thread=False)
    try:
        return [
            info
            for info in engine.steps()
            if everything or (info.in_lineage and info.state == "committed")
        ]
    finally:
        engine.close()


def store_name(store: str | os.PathLike[str]) -> str:
    """A store that is read: a directory (~ is home), or what the library takes for one (s3://, file://)."""
    path = os.fspath(store)
    if not isinstance(path, str):
        raise TypeError(f"a store is named by a str or PathLike, not {type(store).__qualname__}")
    if not path:
        raise ValueError("the path of a store is empty: name a directory")
    if "\0" in path:
        raise ValueError(f"{path!r}: no path has a NUL in it")
    return os.path.expanduser(path)


def store_path(store: str | os.PathLike[str]) -> str:
    """The directory of a store that is written."""
    path = store_name(store)
    # Only its scheme is shown: behind it may be a password.
    if found := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise UnsupportedError(
            f"{found[0]} is no directory, and a Checkpointer saves into a directory of this "
            "machine: give its path. `ckpt-restore DIRECTORY s3://BUCKET/PREFIX` copies what was "
            "saved into a bucket, from which load() reads",
            code=lib.CKPT_EUNSUPPORTED,
        )
    return path


def remote_name(remote: str | os.PathLike[str] | None) -> str:
    """A remote store, as the library has it; empty: none."""
    if remote is None:
        return ""
    name = store_name(remote)
    # A Path is a directory, whatever it is called. Another directory may be the current one later.
    if isinstance(remote, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", name):
        return name
    return pathlib.Path(name).absolute().as_uri()


def parse_step(step: Step) -> int:
    """A step for C: a number, "latest" or "latest~k"."""
    if isinstance(step, str):
        found = re.fullmatch(r"latest(?:~(\d{1,9}))?", step)
        if found is None:
            raise ValueError(f'step {step!r}: it must be a number, "latest" or "latest~1"')
        return int(lib.CKPT_STEP_LATEST) - int(found[1] or 0)
    return check_step(step)


def check_step(step: Any) -> int:
    """A step's number."""
    if isinstance(step, bool) or not hasattr(type(step), "__index__"):
        raise TypeError(f"a step is an int, not {type(step).__qualname__}")
    number = step.__index__()
    if not 0 <= number <= lib.CKPT_STEP_MAX:
        raise ValueError(f"step {number}: it must be from 0 to {lib.CKPT_STEP_MAX}")
    return int(number)


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
        f", or run `ckpt upload` on each of them to complete them in {remote}" if remote else ""
    )
    message = (
        f"{engine.path} goes on from step {step}, the newest that every node has. Newer steps were "
        f"passed over (lost_nodes=True): {steps}. A node has no file of them{there}. They are "
        "given up when the next save begins. If another node has them whole (DDP, HSDP), end the "
        f"job before that, and copy them from there (cp -a){upload}. Of step {lost[0].step}: "
        f"{lost[0]}"
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
            f", or run `ckpt upload` on each of them: {options.remote} is complete if the lost "
            "node had sent its part"
            if options.remote
            else ""
        )
        error.message += (
            "; if a node was lost with its disk, first copy the step from a node that has all of "
            f"it (cp -a; DDP, HSDP){upload}; if that cannot be done, lost_nodes=True goes on from "
            "the newest step that all nodes have, and gives newer ones up"
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


def _load_from(
    reader: Reader,
    names: Iterable[str] | None,
    allow_pickle: bool,
    progress: Callable[[Progress], object] | None,
    device: torch.device | None,
) -> dict[str, Any]:
    meta = reader.meta()
    stored = reader.stored(meta)
    memory = Memory(reader, stored, device)
    if names is not None or meta is None:
        chosen = list(stored) if names is None else _choose(names, stored, reader)
        tensors = {name: memory.want(name, "torch") for name in chosen}
        reader.read(progress)
        return tensors
    owns = sorted(set(meta.get("per_rank") or ()) - said_of(meta).names)
    if owns:
        warnings.warn(
            f"step {reader.step}: each rank had {owns[0]!r} of its own, and {len(owns) - 1} more; "
            f"what is loaded is that of rank {reader.first_rank()}, and names=['rank-*'] gives all",
            CheckpointWarning,
            stacklevel=6,
        )
    wanted: set[str] = set()
    try:
        for name, kind in references(meta["state"]):
            memory.want(name, kind)
            wanted.add(stored[name].home)
        for name, _ in references(meta.get("rng")):
            wanted.add(stored[name].home)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        raise FormatError(f"step {reader.step}: its state is malformed: {error!r}") from error
    _say_left(reader, stored, wanted)
    reader.read(progress)

    def special(tag: str, node: Json) -> Any:
        if tag == "$module":
            return _module(node, decoder, memory)
        if tag == "$optimizer":
            return _optimizer(node, decoder, memory)
        return decoder.decode(node["state"])

    decoder = Decoder(memory.get, allow_pickle=allow_pickle, special=special)
    return _decode_state(decoder, meta["state"])


def _say_left(reader: Reader, stored: dict[str, Stored], wanted: set[str]) -> None:
    """Warns of what other ranks had and the one whose state is loaded had not."""
    homes = {what.home for what in stored.values() if what.here} - wanted
    left = sorted(home for home in homes if not is_own(home))
    if left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        warnings.warn(
            f"step {reader.step}: its ranks had different tensors, as stages of a pipeline have; "
            f"what is loaded is what rank {reader.first_rank()} had, without {left[0]!r}{more}: "
            "names=[...] gives those of all ranks",
            CheckpointWarning,
            stacklevel=7,
        )


def _decode_state(decoder: Decoder, node: Json) -> dict[str, Any]:
    """Key by key, so that an exception out of code of the user can say where it was."""
    if type(node) is not dict or tag_of(node) is not None:
        state: dict[str, Any] = decoder.decode(node)
        return state
    state = {}
    for key, item in node.items():
        with placed((None, key)):
            state[key] = decoder.decode(item)
    return state


def _choose(names: Iterable[str], stored: dict[str, Stored], reader: Reader) -> list[str]:
    import difflib
    import fnmatch

    if isinstance(names, str):
        names = [names]
    chosen: dict[str, None] = {}
    for name in names:
        found = [name] if name in stored else fnmatch.filter(stored, name)
        if not found and (missing := reader.elsewhere(name)) is not None:
            raise missing
        if not found:
            close = difflib.get_close_matches(name, stored, 3)
            hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
            raise MismatchError(
                f"step {reader.step} holds no tensor {name!r}{hint}",
                code=lib.CKPT_EMISMATCH,
                step=reader.step,
                tensor=name,
            )
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _module(node: dict[str, Json], decoder: Decoder, memory: Memory) -> dict[str, Any]:
    prefix = len(node["prefix"])
    state = {name[prefix:]: memory.get(name, "torch") for name in node["tensors"]}
    state.update({key: decoder.decode(value) for key, value in node["extra"].items()})
    return state


def _optimizer(node: dict[str, Json], decoder: Decoder, memory: Memory) -> dict[str, Any]:
    names = node["params"]
    state: dict[Any, dict[str, Any]] = {}
    for index, role, name in optimizer_tensors(node):
        state.setdefault(names[index], {})[role] = memory.get(name, "torch")
    for index_text, values in node["values"].items():
        entry = state.setdefault(names[int(index_text)], {})
        entry.update({role: decoder.decode(value) for role, value in values.items()})
    state.update(decoder.decode(node["other"]))
    groups, first = [], 0
    for group in node["groups"]:
        count = group["count"]
        groups.append({**decoder.decode(group["options"]), "params": names[first : first + count]})
        first += count
    return {"state": state, "param_groups": groups, **decoder.decode(node["extra"])}
