# SPDX-License-Identifier: Apache-2.0
"""Describes tensors for the C library, and checks which tensors can be saved."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _gpus
from ._dtypes import U8, numpy_numbers, torch_numbers
from ._errors import UnsupportedStateError
from ._glance import same_attributes
from ._native import ffi, lib
from ._tensor_state import Places, places_of, pointers_of, same_places, versions_of
from .adapters._layout import dtensor_memory, is_spread, memory_of, spread_of

if TYPE_CHECKING:
    import torch


class Described(NamedTuple):
    """The memory and the layout of a tensor, or of a box of one."""

    dtype: int
    shape: tuple[int, ...]
    #: in elements; None: contiguous
    strides: tuple[int, ...] | None
    pointer: int
    #: shape of the tensor that this is a box of, and where the box begins; None: the whole tensor
    whole: tuple[int, ...] | None = None
    start: tuple[int, ...] | None = None
    #: number of the GPU that the memory is on, or CPU
    gpu: int = _gpus.CPU

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self.shape if self.whole is None else self.whole


def check_tensor(value: torch.Tensor, where: str) -> None:
    """Raises UnsupportedStateError for a tensor that cannot be saved."""
    if _is_common(value):
        return
    reason = _refusal(value)
    if reason is not None:
        raise UnsupportedStateError(f"{where} is {reason}", tensor=where)


def _is_common(value: torch.Tensor) -> bool:
    """True for an ordinary tensor, which can be saved. A fast check: there may be very many."""
    import torch

    kind, dtype = type(value), value.dtype
    return (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and value.is_cpu
        and value.layout is torch.strided
        and dtype in torch_numbers()
        and not dtype.is_complex
        and not value.is_neg()
        and not value.is_nested
        and value.dim() <= lib.CKPT_NDIM_MAX
    )


def _instead_of_class(value: torch.Tensor) -> str:
    """Advice on what to save instead of a subclass."""
    try:
        has_memory = value.numel() == 0 or value.data_ptr() != 0
    except RuntimeError:
        has_memory = False
    if has_memory:
        return ": save a plain torch.Tensor, such as value.as_subclass(torch.Tensor)"
    return " without memory of its own: save the tensors that are inside it"


def _refusal(value: torch.Tensor) -> str | None:
    import torch

    if is_spread(value):
        return spread_of(value).refusal or _refusal(memory_of(value).detach())
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    reason = None
    if torch.nn.parameter.is_lazy(value):
        reason = f"a {name} without a shape: run the model once before it is saved"
    elif value.is_nested:
        reason = f"a {name}, a nested tensor: save value.values() and value.offsets()"
    elif kind.__name__ == "FakeTensor":
        reason = f"a {name}, which has no data: save the tensor that it stands for"
    elif kind is not torch.Tensor and kind is not torch.nn.Parameter:
        reason = f"a {name}{_instead_of_class(value)}"
    elif value.is_meta:
        reason = "on the meta device and has no data: materialize the model first"
    elif value.layout != torch.strided:
        reason = f"of layout {value.layout}: save value.to_dense(), or its indices and values"
    elif value.is_quantized:
        reason = "quantized: save value.int_repr() with its scale and zero point"
    elif value.is_conj() or value.is_neg():
        reason = "a lazy conjugate or negation: save value.resolve_conj().resolve_neg()"
    elif value.dtype not in torch_numbers():
        reason = f"of dtype {value.dtype}: save value.view(torch.uint8)"
    elif value.dim() > lib.CKPT_NDIM_MAX:
        reason = f"of {value.dim()} dimensions: {lib.CKPT_NDIM_MAX} are the most"
    else:
        reason = _gpus.refusal(value)
    return reason


def describe(value: torch.Tensor, like: torch.Tensor | None = None) -> Described:
    """
    Describes a tensor that was checked. `like`: a DTensor. The tensor is then the same box of it:
    see is_part_like().
    """
    if like is not None or is_spread(value):
        return _describe_spread(value, value if like is None else like)
    return Described(
        torch_numbers()[value.dtype],
        tuple(value.shape),
        None if value.is_contiguous() else value.stride(),
        value.data_ptr(),
        gpu=_gpus.index_of(value),
    )


def _describe_spread(value: torch.Tensor, like: torch.Tensor) -> Described:
    spread = spread_of(like)
    number = torch_numbers()[value.dtype]
    if spread.box is None:
        nothing = (0,) * len(spread.whole)
        return Described(number, nothing, None, 0, spread.whole, nothing)
    start, shape = spread.box
    local = memory_of(value)
    whole: tuple[int, ...] | None = spread.whole
    if shape == whole:
        whole = None
    return Described(
        number,
        shape,
        None if 0 in shape or local.is_contiguous() else local.stride(),
        local.data_ptr(),
        whole,
        None if whole is None else start,
        _gpus.index_of(local),
    )


def overlaps(what: Described) -> bool:
    """
    True if elements share memory, so the tensor cannot be read in place. On a GPU, interleaved
    dimensions count, too, because the kernels do not support them.
    """
    if what.strides is None or 0 in what.shape:
        return False
    reach, apart = 0, True
    dims = [(abs(step), n) for step, n in zip(what.strides, what.shape, strict=True) if n > 1]
    for step, count in sorted(dims):
        if step == 0:
            return True
        apart = apart and step > reach
        reach += step * (count - 1)
    # Interleaved dimensions are rare: use one bit for each used place.
    if apart or what.gpu != _gpus.CPU:
        return not apart
    return _places(dims).bit_count() < math.prod(what.shape)


def _places(dims: list[tuple[int, int]]) -> int:
    taken = 1
    for step, count in dims:
        done = 1
        while done < count:
            more = min(done, count - done)
            taken |= taken << (step * more)
            done += more
    return taken


def check_place(what: Described, where: str) -> None:
    """Raises UnsupportedStateError for a tensor that cannot be restored in place."""
    if overlaps(what):
        raise UnsupportedStateError(
            f"{where} has elements that {_shared(what)} (shape {list(what.shape)}, strides "
            f"{list(what.strides or ())}), so that it could be saved, but not restored in place: "
            "replace it by a copy of its own, as .clone(memory_format=torch.contiguous_format) "
            "makes",
            tensor=where,
        )


def _shared(what: Described) -> str:
    return "share memory" if what.gpu == _gpus.CPU else "share memory or lie between one another"


def is_whole(value: Any) -> bool:
    """True if the strides of a NumPy array are multiples of its element size."""
    return not any(step % (value.itemsize or 1) for step in value.strides)


def describe_array(value: Any) -> Described:
    """Describes a NumPy array. is_whole() must be true, and the dtype must have a number."""
    strides = None
    if not value.flags.c_contiguous:
        strides = tuple(step // value.itemsize for step in value.strides)
    return Described(
        numpy_numbers()[value.dtype], value.shape, strides, value.__array_interface__["data"][0]
    )


def describe_bytes(value: bytes | bytearray) -> Described:
    """Describes bytes. A bytearray must not change its length."""
    pointer = int(ffi.cast("uintptr_t", ffi.from_buffer("char[]", value)))
    return Described(U8, (len(value),), None, pointer)


def encode_name(name: str, where: str) -> bytes:
    """The name of a tensor as bytes. Raises if it is too long or not UTF-8."""
    try:
        data = name.encode("utf-8")
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data or not data or name == "__metadata__":
        raise UnsupportedStateError(f"{where} has the name {name!r}, which no checkpoint can hold")
    if len(data) >= lib.CKPT_NAME_MAX:
        raise UnsupportedStateError(
            f"{where} has a name of {len(data)} bytes; {lib.CKPT_NAME_MAX - 1} are the most"
        )
    return data


class Part(NamedTuple):
    """
    Tensors that a save describes together, and their layout at the last check. Lists are replaced
    and never changed, so that a running save keeps its own.

    Distributed tensors come last, from `split` on: their memory is that of their local tensors.
    """

    names: list[bytes]
    tensors: list[torch.Tensor]
    split: int
    #: the tensors with the elements: a plain tensor itself, or the local one of a distributed one
    held: list[torch.Tensor]
    #: keep the memory alive, in case a tensor gets other memory
    views: list[torch.Tensor]
    pointers: list[int]
    places: Places

    def only(self, numbers: list[int]) -> Part:
        """A part with some of the tensors, by ascending numbers."""
        held = [self.held[number] for number in numbers]
        split = sum(number < self.split for number in numbers)
        return Part(
            [self.names[number] for number in numbers],
            [self.tensors[number] for number in numbers],
            split,
            held,
            [self.views[number] for number in numbers],
            [self.pointers[number] for number in numbers],
            places_of(held),
        )

    def memories(self) -> list[torch.Tensor]:
        """The tensors with the elements of this process."""
        return memories(self.tensors, self.split)

    def same(self) -> bool:
        """True if memory and layout of all tensors are unchanged."""
        # The layout of the local tensor of a DTensor does not change.
        return self._holds_the_same() and same_places(self.held, self.places)

    def _holds_the_same(self) -> bool:
        try:
            return same_attributes(self.tensors, "_local_tensor", self.held, self.split)
        except AttributeError:  # not all are DTensors
            return all(map(operator.is_, self.memories(), self.held))

    def moved(self) -> bytes | None:
        """The name of a tensor whose memory has moved; None if none has."""
        if self.same():
            return None
        pairs = enumerate(zip(pointers_of(self.memories()), self.pointers, strict=True))
        return next((self.names[number] for number, (now, then) in pairs if now != then), None)

    def versions(self) -> bytes:
        """
        The version counters of the tensors, eight bytes each. A DTensor counts changes through it,
        and its local tensor counts the others.
        """
        return versions_of(self.tensors) + versions_of(self.held, self.split)

    def counted_name(self, number: int) -> bytes:
        """The name of the tensor with the counter of that number."""
        return (self.names + self.names[self.split :])[number]


def part_of(names: list[bytes], tensors: list[torch.Tensor]) -> Part:
    """A part of tensors that were checked. Distributed ones must come last."""
    split = len(tensors) - sum(map(is_spread, tensors))
    here = memories(tensors, split)
    views = [tensor.detach() for tensor in here]
    return Part(names, tensors, split, here, views, pointers_of(here), places_of(here))


def spread_last(tensors: Sequence[Any]) -> list[int]:
    """Numbers of the tensors in the order of a part: distributed ones last."""
    return sorted(range(len(tensors)), key=lambda number: is_spread(tensors[number]))


def memories(tensors: list[torch.Tensor], split: int) -> list[torch.Tensor]:
    """The tensors with the elements. From `split` on the tensors are distributed."""
    if split == len(tensors):
        return tensors
    spread = tensors[split:]
    try:
        return tensors[:split] + list(map(dtensor_memory, spread))
    except AttributeError:  # not all are DTensors
        return tensors[:split] + list(map(memory_of, spread))


#: `struct ckpt_tensor`.
_TENSOR = struct.Struct("@IIPIIPPPIiPP")
assert _TENSOR.size == ffi.sizeof("struct ckpt_tensor")
#: Bytes of a size or stride.
_DIM = 8


class Block:
    """
    Descriptions of tensors in C memory, kept between saves. `eager`: which are copied before save()
    returns. `flags`: other properties, for the library.
    """

    def __init__(
        self,
        names: Sequence[bytes],
        described: Sequence[Described],
        eager: Sequence[bool],
        flags: Sequence[int] | None = None,
    ) -> None:
        self.names = list(names)
        self.described = list(described)
        self.eager = list(eager)
        self.flags = [0] * len(self.names) if flags is None else list(flags)
        self.count = len(self.names)
        #: the GPUs that the tensors are on
        self.gpus = frozenset(what.gpu for what in self.described) - {_gpus.CPU}
        self.array = ffi.new("struct ckpt_tensor[]", max(self.count, 1))
        self._text = ffi.new("char[]", b"\0".join(self.names))
        self._dims = ffi.new("int64_t[]", _dims(self.described) or [0])
        self._fill()

    def _fill(self) -> None:
        text, dims = (int(ffi.cast("uintptr_t", place)) for place in (self._text, self._dims))
        size, place = ffi.sizeof("struct ckpt_tensor"), 0
        eager_flag = lib.CKPT_TENSOR_EAGER
        cuda, memory = lib.CKPT_DEVICE_CUDA, ffi.buffer(self.array)
        for name, what, eager, flags in zip(
            self.names, self.described, self.eager, self.flags, strict=True
        ):
            shape = dims
            dims += _DIM * len(what.shape)
            strides = whole = start = 0
            if what.strides is not None:
                strides = dims
                dims += _DIM * len(what.strides)
            if what.whole is not None:
                whole, start = dims, dims + _DIM * len(what.whole)
                dims += 2 * _DIM * len(what.whole)
            on_cpu = what.gpu == _gpus.CPU
            # Writing member by member would take ten times as long.
            _TENSOR.pack_into(
                memory,
                place,
                size,
                (eager_flag if eager else 0) | flags,
                text,
                what.dtype,
                len(what.shape),
                shape,
                strides,
                what.pointer,
                0 if on_cpu else cuda,
                0 if on_cpu else what.gpu,
                whole,
                start,
            )
            text += len(name) + 1
            place += size

    def fits(
        self,
        names: Sequence[bytes],
        described: Sequence[Described],
        eager: Sequence[bool],
        flags: Sequence[int] | None = None,
    ) -> bool:
        """True if only pointers differ. Then updates them."""
        if names != self.names or eager != self.eager:
            return False
        if flags is not None and flags != self.flags:
            return False
        for index, (new, old) in enumerate(zip(described, self.described, strict=True)):
            if new != old:
                if new._replace(pointer=0) != old._replace(pointer=0):
                    return False
                self.move(index, new.pointer)
        return True

    def move(self, index: int, pointer: int) -> None:
        """The tensor has new memory."""
        self.array[index].data = ffi.cast("void *", pointer)
        self.described[index] = self.described[index]._replace(pointer=pointer)


def _dims(described: Sequence[Described]) -> list[int]:
    flat: list[int] = []
    for what in described:
        flat += what.shape
        if what.strides is not None:
            flat += what.strides
        if what.whole is not None:
            flat += (*what.whole, *(what.start or ()))
    return flat
