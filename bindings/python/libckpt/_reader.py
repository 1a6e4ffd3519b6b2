# SPDX-License-Identifier: Apache-2.0
"""Reader: one open step. Lists its tensors, allocates memory for them, and reads them."""

from __future__ import annotations

import copy
import errno
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _dtypes, _gpus
from ._calls import check, error_of, last_error, new_struct, raise_last, text
from ._engine import Engine
from ._errors import (
    FormatError,
    OtherNodeError,
    UnsupportedError,
    UnsupportedStateError,
    VersionError,
)
from ._json_nodes import PYTHON_VERSION, Json, tag_of
from ._native import ffi, lib
from ._ranks import own_prefix
from ._save import Progress, report
from ._tensors import Described, describe, describe_array, describe_bytes
from ._waiting import wait_sliced
from .adapters._buffers import said_of
from .adapters._layout import is_spread
from .adapters._optimizers import expand_state, state_tensor_name
from .adapters._subclasses import empty_like

if TYPE_CHECKING:
    import torch


class Stored(NamedTuple):
    """A tensor of a step."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    nbytes: int
    #: the tensor whose bytes it shares, or its own name
    home: str
    #: False: all of it is in the stores of other nodes
    here: bool = True
    #: the rank that wrote it, or its first part
    rank: int = 0

    def __str__(self) -> str:
        return f"{_dtypes.name_of(self.dtype)} {list(self.shape)}"


class Reader:
    """One open step. It must be closed."""

    def __init__(self, engine: Engine, step: int) -> None:
        ret = ffi.new("struct ckpt_restore **")
        check(engine.work(lib.ckpt_restore_open, engine.guard(), step, ret))
        self.engine = engine
        self._ptr: Any = ret[0]
        self.step = int(engine.ask(lib.ckpt_restore_step, self._ptr))
        self.generation = int(engine.ask(lib.ckpt_restore_generation, self._ptr))
        #: number of this restore, the same on all ranks; 0: this process is alone
        self.number = int(engine.ask(lib.ckpt_restore_number, self._ptr))
        #: number of ranks that wrote it
        self.world = int(engine.ask(lib.ckpt_restore_world, self._ptr))
        #: tensors in which its ranks differed when it was committed, as text; empty: none
        self.differ = text(engine.ask(lib.ckpt_restore_replicas, self._ptr))
        #: bytes of the Python states that were read
        self.meta_bytes = 0
        #: all ranks have read everything that they asked for
        self.complete = False
        #: the read has begun: from now on all ranks are told if one fails
        self.asked = False
        #: names of tensors that this rank takes, also those of which it has an empty box
        self.taken: set[str] = set()
        self._targets: list[tuple[bytes, Described]] = []
        self._keep: list[Any] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels a running read and frees the handle."""
        ptr, self._ptr = self._ptr, None
        if ptr is not None:
            self.engine.ask(lib.ckpt_restore_free, ptr)

    def tensors(self) -> dict[str, Stored]:
        """All tensors of the step, by name."""
        found: dict[str, Stored] = self.engine.ask(self._list)
        return found

    def _list(self) -> dict[str, Stored]:
        info = new_struct("ckpt_tensor_info")
        found: dict[str, Stored] = {}
        for index in range(lib.ckpt_restore_count(self._ptr)):
            check(lib.ckpt_restore_tensor(self._ptr, index, info))
            name = text(info.name)
            found[name] = Stored(
                name,
                int(info.dtype),
                tuple(ffi.unpack(info.shape, info.ndim)) if info.ndim else (),
                int(info.nbytes),
                text(info.alias_of) if info.alias_of != ffi.NULL else name,
                rank=int(info.rank),
            )
        return found

    def away(self, rank: int) -> str | None:
        """The node whose store has the files of a rank; None: they are in this store."""
        ret_node, ret_other_node = ffi.new("char const **"), ffi.new("uint32_t *")
        ask, ptr = self.engine.ask, self._ptr
        check(ask(lib.ckpt_restore_rank_node, ptr, rank, ret_node, ret_other_node))
        return text(ret_node[0]) if ret_other_node[0] else None

    def first_rank(self) -> int:
        """The lowest rank whose files this store has."""
        return next((rank for rank in range(self.world) if self.away(rank) is None), 0)

    def elsewhere(self, name: str) -> OtherNodeError | None:
        """The error for a tensor that is not in this store; None: it has the files of all ranks."""
        for rank in range(self.world):
            node = self.away(rank)
            if node is not None:
                return OtherNodeError(
                    f"step {self.step}: {self.engine.path} has no tensor {name!r}, but the store "
                    f"of another node may have it: rank {rank} wrote on node {node}; read it "
                    "there, or copy the files of the step from there into this store",
                    code=lib.CKPT_EOTHERNODE,
                    step=self.step,
                    rank=rank,
                    tensor=name,
                )
        return None

    def stored(
        self, meta: dict[str, Json] | None, *, own_buffers: bool = False
    ) -> dict[str, Stored]:
        """
        The tensors of the step, and those that `meta`, of a rank, names and that are empty or not
        here. `own_buffers`: buffers that differ by rank are the copies of that rank.
        """
        found = self.tensors()
        if meta is None:
            return found
        try:
            for name, (kind, shape) in meta.get("empty", {}).items():
                if name not in found:
                    found[name] = _absent(name, _dtypes.numbers()[kind], tuple(shape))
            buffers = said_of(meta).names
            for name, own in meta.get("per_rank", {}).items():
                if own not in found or (name in buffers and name in found and not own_buffers):
                    continue
                if name in buffers and name in found:
                    # Taking the copy counts as taking the buffer that all ranks know.
                    found[own] = found[own]._replace(home=found[name].home)
                found[name] = found[own]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise FormatError(
                f"step {self.step}: its state is malformed: {error!r}", step=self.step
            ) from error
        return found

    def take(self) -> Reader:
        """Moves the open step to a new object. This one is then closed."""
        taken = copy.copy(self)
        self._ptr = None
        return taken

    def raw(self, rank: int) -> Any:
        """The JSON that a rank saved beside its tensors, in memory of the library."""
        ret_json, ret_length = ffi.new("char const **"), ffi.new("size_t *")
        check(self.engine.work(lib.ckpt_restore_rank_meta, self._ptr, rank, ret_json, ret_length))
        return ffi.buffer(ret_json[0], ret_length[0])

    def json(self, rank: int) -> Json:
        """The same, parsed; None if there is none."""
        found = self.raw(rank)
        self.meta_bytes += len(found)
        if not len(found):
            return None
        try:
            return json.loads(bytes(found))
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"step {self.step}: its state is not JSON: {error}", step=self.step
            ) from error

    def meta(self, rank: int | None = None) -> dict[str, Json] | None:
        """
        The Python state of a rank, or of the first rank that this store has; None if the step was
        not written by a Checkpointer.
        """
        meta = self.json(self.first_rank() if rank is None else rank)
        if type(meta) is not dict or type(meta.get("python")) is not dict:
            return None
        version = meta["python"].get("version")
        if type(version) is not int or version > PYTHON_VERSION:
            raise VersionError(
                f"step {self.step} was written by libckpt {meta['python'].get('library')}, with "
                f"version {version} of the Python state; this libckpt reads version "
                f"{PYTHON_VERSION}: install a newer one",
                step=self.step,
            )
        return meta

    def bind(self, name: str, what: Described, keep: object) -> None:
        """
        The tensor `name`, or a box of it, is read to the memory that `what` describes. `keep` keeps
        the memory alive.
        """
        self.taken.add(name)
        if what.whole is not None and 0 in what.shape:
            return  # an empty box
        self._targets.append((name.encode(), what))
        self._keep.append(keep)

    def targets(self) -> list[tuple[str, Described]]:
        """What was bound: names, and the memory they are read to."""
        return [(name.decode(), what) for name, what in self._targets]

    def read(
        self,
        progress: Callable[[Progress], object] | None = None,
        stop: Callable[[], object] | None = None,
    ) -> None:
        """
        Reads and verifies everything that was bound. `progress` and `stop` are called repeatedly
        in this thread. An exception of `stop` ends the read.
        """
        array, alive = _target_array(self._targets)
        own = own_prefix(self.engine.rank).encode()
        for item, (name, what) in zip(array, self._targets, strict=False):
            # A tensor that a rank wants whole is wanted by the others, too, unless it is its own.
            if what.start is None and not name.startswith(own):
                item.flags = lib.CKPT_TARGET_SHARED
        work, ask, ptr = self.engine.work, self.engine.ask, self._ptr
        self.asked = True
        code = work(lib.ckpt_restore_bind, ptr, array, len(self._targets))
        if code == -errno.EINVAL:  # the store is good, and the state is not
            found = last_error(code, self.step)
            raise UnsupportedStateError(found.message, step=self.step, tensor=found.tensor)
        check(code)
        # Work that is enqueued on the GPUs may still use this memory.
        gpus = {what.gpu for _, what in self._targets} - {_gpus.CPU}
        if gpus:
            _gpus.synchronize(gpus)
        check(work(lib.ckpt_restore_start, ptr))
        done, total = ffi.new("uint64_t *"), ffi.new("uint64_t *")

        def tick() -> None:
            if stop is not None:
                stop()
            if progress is not None:
                check(ask(lib.ckpt_restore_progress, ptr, done, total))
                report(progress, Progress("restore", self.step, int(done[0]), int(total[0])))

        record = new_struct("ckpt_error")
        code = wait_sliced(
            lambda ms: int(ask(lib.ckpt_restore_wait, ptr, ms)),
            None,
            tick,
            over=lambda: ask(lib.ckpt_restore_error, ptr, record) != 0,
        )
        del alive
        if code < 0:
            if ask(lib.ckpt_restore_error, ptr, record) != 0:
                raise error_of(record)
            raise_last(code)
        self.complete = True
        tick()

    def adopt(self) -> None:
        """Makes this step the parent of the steps that are saved from now on."""
        check(self.engine.work(lib.ckpt_restore_adopt, self._ptr))


def _absent(name: str, dtype: int, shape: tuple[int, ...]) -> Stored:
    if not all(type(size) is int and 0 <= size < _SIZE_MAX for size in shape):
        raise ValueError(f"{name!r} has the shape {list(shape)}")
    return Stored(name, dtype, shape, 0, name, here=False)


#: Sizes must be less.
_SIZE_MAX = 1 << 63


def _target_array(targets: list[tuple[bytes, Described]]) -> tuple[Any, list[Any]]:
    array = ffi.new("struct ckpt_target[]", max(len(targets), 1))
    size = ffi.sizeof("struct ckpt_target")
    alive: list[Any] = []
    for item, (name, what) in zip(array, targets, strict=False):
        item.size = size
        item.dtype = what.dtype
        item.ndim = len(what.shape)
        item.data = ffi.cast("void *", what.pointer)
        if what.gpu != _gpus.CPU:
            item.device = lib.CKPT_DEVICE_CUDA
            item.device_index = what.gpu
        held = [ffi.new("char[]", name), ffi.new("int64_t[]", what.shape or (0,))]
        item.name, item.shape = held
        if what.strides is not None:
            held.append(ffi.new("int64_t[]", what.strides or (0,)))
            item.strides = held[-1]
        if what.start is not None:
            held.append(ffi.new("int64_t[]", what.start or (0,)))
            item.start = held[-1]
        alive += held
    return array, alive


class Memory:
    """
    New memory for tensors that have no place in the live state. `device`: for memory of kind
    "torch"; None: the CPU.
    """

    def __init__(
        self, reader: Reader, stored: dict[str, Stored], device: torch.device | None = None
    ) -> None:
        self._reader = reader
        self._stored = stored
        self._device = device
        # One for each tensor of the save and each device.
        self._made: dict[tuple[str, str], dict[str, Any]] = {}
        self._held: dict[tuple[str, str], Any] = {}

    def stored(self, name: object) -> Stored:
        """The tensor of a name that the Python state mentions."""
        if type(name) is not str or name not in self._stored:
            raise FormatError(
                f"step {self._reader.step}: its state names the tensor {name!r}, which it does not "
                "have",
                step=self._reader.step,
            )
        return self._stored[name]

    def want(self, name: str, kind: str, device: torch.device | None = None) -> Any:
        """
        Memory that the tensor will be read to. `kind`: "torch", "numpy" or "bytes". `device`: for
        "torch".
        """
        what = self.stored(name)
        made = self._made.setdefault((what.home, kind), {})
        place = device or self._device
        found = made.get(str(place or "cpu")) if device else next(iter(made.values()), None)
        if found is None:
            missing = None if what.here else self._reader.elsewhere(what.name)
            if missing is not None:
                raise missing
            found = _allocate(what, kind, place)
            self._reader.bind(what.name, _DESCRIBE[kind](found), found)
            made[str(place or "cpu")] = found
        self._held.setdefault((name, kind), found)
        return found

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """New memory of the layout of a live tensor and of the stored dtype."""
        if not is_spread(live):
            fresh: torch.Tensor = self.want(name, "torch")
            return fresh
        what = self.stored(name)
        made = self._made.setdefault((what.home, "spread"), {})
        found: torch.Tensor | None = made.get(str(live.device))
        if found is None:
            found = empty_like(live, _dtypes.torch_type(what.dtype))
            self._reader.bind(what.name, describe(found), found)
            made[str(live.device)] = found
        return found

    def use(self, name: str, memory: torch.Tensor) -> None:
        """The tensor will be read to this memory."""
        self._made.setdefault((self.stored(name).home, "torch"), {})[str(memory.device)] = memory
        self._held[name, "torch"] = memory
        self._reader.bind(name, describe(memory), memory)

    def hold(self, name: str, memory: torch.Tensor) -> None:
        """The decoder will return this for the tensor."""
        self._held[name, "torch"] = memory

    def get(self, name: str, kind: str) -> Any:
        """Memory of want(), for a decoder."""
        if (name, kind) in self._held:
            return self._held[name, kind]
        made = self._made.get((self.stored(name).home, kind))
        if not made:
            raise FormatError(f"the tensor {name!r} is used in two ways", tensor=name)
        return next(iter(made.values()))


_DESCRIBE: dict[str, Callable[[Any], Described]] = {
    "torch": describe,
    "numpy": describe_array,
    "bytes": describe_bytes,
}


def _allocate(what: Stored, kind: str, device: torch.device | None) -> Any:
    if kind == "torch":
        import torch

        dtype = _dtypes.torch_type(what.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"tensor {what.name!r} is {what}: this version of torch does not have this dtype",
                tensor=what.name,
            )
        return torch.empty(what.shape, dtype=dtype, device=device or "cpu")
    if kind == "bytes":
        if what.dtype != _dtypes.U8:
            raise FormatError(f"tensor {what.name!r} is {what}, not bytes", tensor=what.name)
        return bytearray(what.nbytes)
    import numpy as np

    numpy_type = _dtypes.numpy_type(what.dtype)
    if numpy_type is None:
        raise FormatError(
            f"tensor {what.name!r} is {what}: NumPy does not have this dtype", tensor=what.name
        )
    return np.empty(what.shape, dtype=numpy_type)


def references(node: Json, *, parts: bool = True) -> Iterator[tuple[Any, str]]:
    """
    Yields (name, kind of memory) of every tensor that a node mentions. `parts`: also of the tensors
    of modules and optimizers.
    """
    if type(node) is list:
        for item in node:
            yield from references(item, parts=parts)
    elif type(node) is dict:
        tag = tag_of(node)
        if tag == "$json":
            yield from references(json.loads(node["$json"]), parts=parts)
        elif tag == "$tensor":
            yield node["$tensor"], "torch"
        elif tag in _KINDS and type(node[tag]) is dict:
            yield node[tag].get("$tensor"), _KINDS[tag]
        elif parts or tag not in ("$module", "$optimizer"):
            if tag == "$module":
                yield from ((name, "torch") for name in node[tag]["tensors"])
            elif tag == "$optimizer":
                yield from ((name, "torch") for _, _, name in optimizer_tensors(node[tag]))
            for item in node.values():
                yield from references(item, parts=parts)


def optimizer_tensors(node: dict[str, Json]) -> Iterator[tuple[int, str, str]]:
    """(index of the parameter, role, name) of every tensor of an optimizer's state."""
    names = node["params"]
    for index, role in expand_state(node["state"], len(names)):
        yield index, role, state_tensor_name(node["prefix"], names[index], role)


_KINDS = {"$ndarray": "numpy", "$bytes": "bytes", "$bytearray": "bytes", "$pickle": "bytes"}
