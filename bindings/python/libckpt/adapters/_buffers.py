# SPDX-License-Identifier: Apache-2.0
"""
Buffers of modules that may rightly differ by rank: statistics of a rank's batches, counts of its
data. Buffers that DDP broadcasts are handled in _ddp_buffers.py.

The lowest rank that holds a buffer saves it under its name, for all readers. As long as a rank does
not know that all ranks have equal buffers, it also saves its own copy, under a name with its
number. Rank 0 compares the buffers at every save, and all ranks get the result with the outcome of
the commit. If the buffers were equal, no rank saves its own copies any more, and they must remain
equal. If not, each rank continues to save its own.

No rank waits for this result, so ranks may know different things. A rank that has not received a
result saves its own copies once more. Each rank tells the library what it does. A difference is an
error if any rank of the group saves no copy of its own, because that rank relies on the copy of
another one. The buffers do not count as equal as long as a rank knows that they differ.

Statistics of batches are saved by each rank at every save and are not compared: they differ as soon
as ranks have seen their data, which may be after the first save. Statistics of a SyncBatchNorm over
all ranks that hold it are equal, and are treated like other buffers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _gpus
from .._alike import Groups
from .._dtypes import U8
from .._errors import UnsupportedStateError
from .._json_nodes import Json
from .._modules import buffer_slots
from .._native import ffi, lib
from .._ranks import Ranks
from .._tensors import Block, Described, describe, encode_name
from ._holders import Holders, ModuleHolders
from ._layout import is_dtensor

if TYPE_CHECKING:
    import torch

#: Most bytes of such buffers of one module of the state. If there are more, they must be equal on
#: all ranks, so that the first save is not many times as large as the others.
MOST = 64 << 20
#: Most bytes of a name, so that there is room for the prefix of a rank's own copy.
_NAME_MAX = 1000


class Buffer(NamedTuple):
    """A buffer that may differ by rank."""

    name: str
    value: torch.Tensor
    what: Described
    #: None: all ranks
    holders: Holders | None
    #: a statistic of the batches of one rank
    is_statistic: bool


class Own(NamedTuple):
    """The own buffers of this rank in one save."""

    #: copies that this rank saves
    blocks: list[Block]
    #: names of the buffers, and names of the copies
    names: dict[str, str]
    #: groups of ranks that hold the same buffers, and what this rank saves (CKPT_OWN_*)
    groups: dict[int, int]
    alike: list[tuple[int, Block]]
    #: objects that must live until the save has started
    keep: list[Any]
    #: see layout_of()
    layout: str = ""


NONE = Own([], {}, {}, [], [])

_MEMORY = ffi.new("uint8_t[1]")
_BYTE = Described(U8, (1,), None, int(ffi.cast("uintptr_t", _MEMORY)))


def buffers_that_may_differ(
    module: torch.nn.Module,
    prefix: str,
    ranks: Ranks,
    holders: ModuleHolders,
    excluded: Container[int],
) -> dict[int, bool]:
    """
    Ids of the buffers of a module that may differ by rank, and whether they are statistics. The
    result is the same on all ranks that hold a buffer. `excluded`: ids of buffers to leave out.
    """
    import torch

    statistics = torch.nn.modules.batchnorm._NormBase
    if ranks.world == 1:
        return {}
    slots = list(buffer_slots(module))
    if not slots:
        return {}
    # A buffer in the memory of a parameter counts as a parameter.
    taken = {one.data_ptr() for one in module.parameters() if _has_memory(one)}
    found: dict[int, tuple[Holders | None, bool]] = {}
    sizes: dict[tuple[Holders | None, bool], int] = {}
    for name, (owner, key) in slots:
        buffer = owner._buffers[key]
        if buffer is None or id(buffer) in excluded or id(buffer) in found:
            continue
        if not _has_memory(buffer) or not buffer.numel() or buffer.data_ptr() in taken:
            continue
        if not _fits(prefix + name) or ranks.is_own(prefix + name, buffer):
            continue
        held = holders.of(name)
        if held is not None and (held.place is None or len(held.members.ranks) == 1):
            continue
        who = range(ranks.world) if held is None else held.members.ranks
        kind = held, isinstance(owner, statistics) and not _is_synced(owner, who)
        found[id(buffer)] = kind
        sizes[kind] = sizes.get(kind, 0) + buffer.numel() * buffer.element_size()
    return {key: kind[1] for key, kind in found.items() if sizes[kind] <= MOST}


def _is_synced(module: torch.nn.Module, who: Iterable[int]) -> bool:
    """True for a SyncBatchNorm that spans all these ranks, so that its statistics are equal."""
    import torch
    import torch.distributed as dist

    if not isinstance(module, torch.nn.SyncBatchNorm):
        return False
    group = module.process_group
    if group is None:
        return True
    # On a rank outside the group it is not a ProcessGroup.
    return isinstance(group, dist.ProcessGroup) and set(dist.get_process_group_ranks(group)) >= set(
        who
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """True for a plain tensor that has memory."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (
        tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided
    )


def _fits(name: str) -> bool:
    """True if the name is short enough for the prefix of a rank's own copy."""
    try:
        return len(encode_name(name, name)) <= _NAME_MAX
    except UnsupportedStateError:  # the save raises it
        return False


class OwnBuffers:
    """Decides which copies this rank saves. `known`: what commits have found, by group."""

    def __init__(self, ranks: Ranks, groups: Groups, known: Callable[[int], int] | None) -> None:
        self._ranks = ranks
        self._groups = groups
        self._known = known
        self._last: tuple[Any, Own] | None = None

    def plan(
        self,
        buffers: Sequence[Buffer],
        tied: Iterable[tuple[str, str]],
        taken: Callable[[str], bool],
        modules: Iterable[torch.nn.Module] = (),
    ) -> Own:
        """
        For one save. `tied`: other names of tensors. `taken`: tells if a name is in use. `modules`:
        those of the state.
        """
        if not buffers:
            return NONE
        same = [(one.name, *one[2:]) for one in buffers], list(tied)
        if self._last is not None and self._last[0] == same:
            own = self._last[1]
            if own.groups == self._does(own.groups) and not any(map(taken, own.names.values())):
                return own
        groups = {self._number(some): some for some in self._split(buffers)}
        does = self._does(groups)
        copied = [one for one in buffers if one.is_statistic]
        for group, some in groups.items():
            copied += some if does[group] != lib.CKPT_OWN_NONE else []
        names = self._names(copied, taken)
        for alias, target in same[1]:
            if target in names:
                names[alias] = names[target]
        own = Own([], names, does, [], [], layout_of(modules))
        self._copy(copied, own)
        for group, some in groups.items():
            self._compare(group, some, own)
        self._show(buffers, own)
        # Clones are made for this save only.
        self._last = None if own.keep else (same, own)
        return own

    def _does(self, groups: Iterable[int]) -> dict[int, int]:
        """What this rank saves of each group."""
        if self._known is None:
            return dict.fromkeys(groups, int(lib.CKPT_OWN_UNKNOWN))
        return {group: self._known(group) for group in groups}

    def _split(self, buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        """The buffers by the ranks that hold them. Statistics are apart."""
        found: dict[Holders | None, list[Buffer]] = {}
        for one in buffers:
            if not one.is_statistic:
                found.setdefault(one.holders, []).append(one)
        return list(found.values())

    def _number(self, some: Sequence[Buffer]) -> int:
        """A number that is the same on all ranks that hold these buffers."""
        held = some[0].holders
        who = range(self._ranks.world) if held is None else held.members.ranks
        lines = [f"{one.name} {one.what.dtype} {list(one.what.shape)}" for one in some]
        text = "\n".join(["buffers of", ",".join(map(str, who)), *sorted(lines)])
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def _names(self, copied: Sequence[Buffer], taken: Callable[[str], bool]) -> dict[str, str]:
        names: dict[str, str] = {}
        for one in copied:
            wanted = name = self._ranks.own_name(one.name)
            number = 1
            while taken(name):
                number += 1
                name = f"{wanted}~{number}"
            names[one.name] = name
        return names

    @staticmethod
    def _copy(copied: Sequence[Buffer], own: Own) -> None:
        if copied:
            names = [own.names[one.name].encode() for one in copied]
            described = [one.what for one in copied]
            own.blocks.append(Block(names, described, [True] * len(copied)))

    @staticmethod
    def _compare(group: int, some: Sequence[Buffer], own: Own) -> None:
        described = [one.what for one in some]
        on_gpu = any(what.gpu != _gpus.CPU for what in described)
        if own.groups[group] == lib.CKPT_OWN_UNKNOWN and on_gpu:
            # The library only samples GPU memory, but this decision holds for the run: compare all.
            clones = [one.value.detach().cpu() for one in some]
            described = list(map(describe, clones))
            own.keep.extend(clones)
        names = [one.name.encode() for one in some]
        own.alike.append((group, Block(names, described, [False] * len(some))))

    def _show(self, buffers: Sequence[Buffer], own: Own) -> None:
        """
        Adds one byte for each buffer to the tensors that the ranks of a mesh compare, so that the
        library can name a buffer that a rank lacks. Buffers of all ranks are compared by name
        anyway. Statistics are in the group of their mesh already, without their bytes.
        """
        shown: dict[Holders, list[bytes]] = {}
        for one in buffers:
            if one.holders is not None and not one.is_statistic:
                shown.setdefault(one.holders, []).append(one.name.encode())
        for held, names in shown.items():
            copies = held.copies()
            assert copies is not None
            block = Block(names, [_BYTE] * len(names), [False] * len(names))
            own.alike.append((self._groups.number(copies), block))


# In the step.


def layout_of(modules: Iterable[torch.nn.Module]) -> str:
    """
    A digest of the meshes of all parameters. On other meshes a rank gets other data, also if the
    number of ranks is the same.
    """
    parameters: Iterable[Any] = chain.from_iterable(module.parameters() for module in modules)
    meshes = {id(one.device_mesh): one.device_mesh for one in parameters if is_dtensor(one)}
    texts = {
        f"{mesh.mesh_dim_names or ''}{list(mesh.shape)}"
        for mesh in meshes.values()
        if mesh.get_coordinate() is not None
    }
    return " ".join(sorted(texts))


class Said(NamedTuple):
    """The own buffers of a rank in a step."""

    layout: str
    names: frozenset[str]


def said_of(meta: dict[str, Json] | None) -> Said:
    """
    Reads them from the Python state of a rank. If that is malformed, there are none. Then the
    copies are treated like tensors that the user has named in per_rank=, and refused elsewhere.
    """
    said = (meta or {}).get("own_buffers")
    if type(said) is not dict or type(said.get("names")) is not list:
        return Said("", frozenset())
    layout = said.get("layout")
    names = frozenset(name for name in said["names"] if type(name) is str)
    return Said(layout if type(layout) is str else "", names)
