# SPDX-License-Identifier: Apache-2.0
"""
Buffers of modules, of which each rank may have its own and be right: statistics of its batches,
what it has counted of its data. Buffers that DDP broadcasts are not among them.

The lowest rank that holds a buffer saves it under its name, for whoever reads the step. Beside it
each rank saves a copy of its own, under a name of its rank, as long as it does not know that all
ranks have the same. Rank 0 compares what the ranks hold at every save, and all ranks hear with the
outcome of a commit whether they were alike. If they were, no rank saves its own copies any more,
and they must stay alike. If not, each rank goes on saving its own.

No rank waits for another one to know this, and ranks may know different things. One that has not
heard of a commit saves its own copies once more, which is more than it need do and never too
little. It says so, as does one that knows that they differ. The library takes a difference for an
error if any rank of the group saves no copy of its own, since that rank relies on what another one
saves. It lets nobody take them for alike as long as a rank knows that they differ.

Statistics of batches are each rank's own at every save, and nothing is found out of them: they
differ as soon as a rank has seen its data, which is often after the first save. Those of a
SyncBatchNorm over all ranks that hold it are the same on these, and treated like other buffers.
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

#: Bytes of buffers of one module of the state that the same ranks hold. Those of more must be alike
#: on all of these ranks, so that the first save is not many times as large as the others.
MOST = 64 << 20
#: Bytes of a name that leave room for what the name of a rank's own copy has more.
_NAME_MAX = 1000


class Buffer(NamedTuple):
    """One that may differ by rank."""

    name: str
    value: torch.Tensor
    what: Described
    #: None: all ranks
    holders: Holders | None
    #: of batches, and not of those of all ranks together
    is_statistic: bool


class Own(NamedTuple):
    """What one save has of a rank's own buffers."""

    #: copies that this rank saves
    blocks: list[Block]
    #: names of the buffers, and what the copies are called
    names: dict[str, str]
    #: what other ranks hold as well: the group, and what this rank does about it (CKPT_OWN_*)
    groups: dict[int, int]
    alike: list[tuple[int, Block]]
    #: must live until the save has started
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
    Ids of the buffers of a module that each rank may have its own of, and whether they are
    statistics. All ranks that hold a buffer come to the same answer. `excluded`: ids of others.
    """
    import torch

    statistics = torch.nn.modules.batchnorm._NormBase
    if ranks.world == 1:
        return {}
    slots = list(buffer_slots(module))
    if not slots:
        return {}
    # What is in the memory of a parameter is a parameter.
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
    """True for a SyncBatchNorm whose statistics are those of the batches of all these ranks."""
    import torch
    import torch.distributed as dist

    if not isinstance(module, torch.nn.SyncBatchNorm):
        return False
    group = module.process_group
    if group is None:
        return True
    # A rank that is not in the group has no ProcessGroup.
    return isinstance(group, dist.ProcessGroup) and set(dist.get_process_group_ranks(group)) >= set(
        who
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """True for a plain tensor whose elements are somewhere."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (
        tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided
    )


def _fits(name: str) -> bool:
    """True if a rank's own copy can have a name."""
    try:
        return len(encode_name(name, name)) <= _NAME_MAX
    except UnsupportedStateError:  # the save itself says so
        return False


class OwnBuffers:
    """What is known of them in a run. `known` says of a group what commits have found."""

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
        For one save. `tied`: other names of tensors. `taken`: names that are in use. `modules`: of
        the state.
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
        # Clones are of this save.
        self._last = None if own.keep else (same, own)
        return own

    def _does(self, groups: Iterable[int]) -> dict[int, int]:
        """What this rank does about each group."""
        if self._known is None:
            return dict.fromkeys(groups, int(lib.CKPT_OWN_UNKNOWN))
        return {group: self._known(group) for group in groups}

    def _split(self, buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        """Those of the same ranks together, but for statistics."""
        found: dict[Holders | None, list[Buffer]] = {}
        for one in buffers:
            if not one.is_statistic:
                found.setdefault(one.holders, []).append(one)
        return list(found.values())

    def _number(self, some: Sequence[Buffer]) -> int:
        """The same on all ranks that hold these, and another one for other buffers."""
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
            # Of a GPU the library reads some lines only, and this decides for the run.
            clones = [one.value.detach().cpu() for one in some]
            described = list(map(describe, clones))
            own.keep.extend(clones)
        names = [one.name.encode() for one in some]
        own.alike.append((group, Block(names, described, [False] * len(some))))

    def _show(self, buffers: Sequence[Buffer], own: Own) -> None:
        """
        Beside what ranks of a mesh hold alike there is a byte for each buffer, so that the library
        can name one that a rank lacks. What all ranks hold is compared by name anyway, and
        statistics are in the group of their mesh already, without their bytes.
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
    The meshes that parameters of modules are on: on as many ranks with other ones a rank has to do
    with other data.
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
    """What a rank has said in a step of its own buffers."""

    layout: str
    names: frozenset[str]


def said_of(meta: dict[str, Json] | None) -> Said:
    """
    Of the Python state of a rank. What is malformed counts as not said: the tensors are then what
    the user has named by per_rank=, and refused elsewhere.
    """
    said = (meta or {}).get("own_buffers")
    if type(said) is not dict or type(said.get("names")) is not list:
        return Said("", frozenset())
    layout = said.get("layout")
    names = frozenset(name for name in said["names"] if type(name) is str)
    return Said(layout if type(layout) is str else "", names)
