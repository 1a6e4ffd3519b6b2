# SPDX-License-Identifier: Apache-2.0
"""Modules: describes the modules of a state for a save. They are walked once, then checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ._alike import Groups
from ._balance import Holdings
from ._copies import Key, copies_of, empty_of, flags_of, key_of
from ._json_nodes import Path
from ._modules import Shape, module_text, parameter_names, walk
from ._ranks import Ranks, Shares, settle
from ._state_kinds import Special, name_clash, prefix_in, there_twice
from ._tensors import (
    Described,
    check_place,
    check_tensor,
    describe,
    encode_name,
    part_of,
    spread_last,
)
from .adapters._buffers import Buffer, buffers_that_may_differ
from .adapters._ddp_buffers import ddp_buffers
from .adapters._holders import Holders, Meshes, ModuleHolders
from .adapters._layout import Copies, is_spread, memory_of
from .adapters._subclasses import wraps
from .adapters._wrappers import has_own_say, reshard, unwrap

if TYPE_CHECKING:
    import torch


class _Wrapping(NamedTuple):
    """What is kept of a module with tensors that wrap other tensors."""

    prefix: str
    #: of the rest
    names: list[str]
    others: dict[str, torch.Tensor]
    holders: ModuleHolders


class Modules:
    """The modules of a state. Those that are not custom are walked once, then checked."""

    def __init__(
        self,
        specials: list[Special],
        plain: Path,
        owned: dict[int, torch.Tensor],
        ranks: Ranks,
        groups: Groups,
        *,
        meshes: Meshes,
    ) -> None:
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        self.tensors: list[torch.Tensor] = []
        self._copies: list[Copies | None] = []
        #: holders of plain parameters, by id; None: all ranks
        self._plain: dict[int, Holders | None] = {}
        #: holders of each tensor
        self.holders: list[Holders | None] = []
        #: ids of buffers that rank 0 saves for all ranks
        self._first: set[int] = set()
        #: ids of parameters that only fenced optimizers change
        self._owned: set[int] = set()
        #: ids of buffers that may differ by rank, and whether they are statistics
        self._may_differ: dict[int, bool] = {}
        #: those of modules that are not custom
        self.buffers: list[Buffer] = []
        #: (second name, first name) of tied tensors
        self.tied: list[tuple[bytes, str]] = []
        self._ranks = ranks
        self.meshes = meshes
        self.meshes.forget()
        #: path of the module of every name, aliases included
        self.used: dict[str, Path] = {}
        #: tensors that the user has named as each rank's own: the names of this rank's copies
        self.owns: dict[str, str] = {}
        self.keys: dict[Key, str] = {}
        self.ids: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        #: modules with tensors that wrap others, by id
        self.wrapping: dict[int, _Wrapping] = {}
        #: prefixes of the names of custom modules, by id
        self.own_say: dict[int, str] = {}
        self._shapes: list[Shape] = []
        self._doubles: list[torch.Tensor] = []
        self._others: list[torch.nn.Module] = []
        for special in specials:
            self._take(special, prefix_in(special, plain), owned)
        self._in_order()
        self._part = part_of(self.names, self.tensors)
        doubles = spread_last(self._doubles)
        self._doubled = part_of([], [self._doubles[number] for number in doubles])
        #: for each tensor, whether this rank writes it
        self.mine = settle(Shares(), self.names, self.tensors, self._copies, ranks)
        #: for each tensor, the group that compares it
        self.groups = [groups.of(found) for found in self._copies]
        #: contributions to the balance: see _balance.py
        self.held = Holdings(ranks, groups).all_of(
            self.names, self.described, self._copies, self.mine
        )
        #: flags of each tensor, for the library
        self.flags = list(map(flags_of, self._copies))
        self.empty = empty_of(self.names, self.described, self._copies)
        late = [n for n, eager in enumerate(self.eager) if not eager and self.mine[n]]
        self.behind = self._part.only(late)
        mine = {name for name, wanted in zip(self.names, self.mine, strict=True) if wanted}
        self.mine_names = {name.decode() for name in mine}
        self.aliases = [
            (alias, name.encode()) for alias, name in self.tied if name in self.mine_names
        ]

    def _take(self, special: Special, prefix: str, owned: dict[int, torch.Tensor]) -> None:
        module = special.value
        if id(module) in self.texts:
            raise there_twice(special.path)
        self._first |= ddp_buffers(module, self._ranks.world)
        reshard(module)
        holders = self._holders_in(module, prefix)
        self._owned |= owned.keys()
        self._may_differ = self._buffers_of(module, prefix, holders)
        if has_own_say(module):
            self._add_other(module, prefix)
        else:
            self._add_module(special, prefix, owned, holders)

    def _holders_in(self, module: torch.nn.Module, prefix: str) -> ModuleHolders:
        """The holders of its plain tensors. Those of its parameters are kept for optimizers."""
        holders = ModuleHolders(module, self.meshes, prefix)
        for name, tensor in parameter_names(module):
            # The first name decides: other ranks may have no second ones.
            found = None if is_spread(tensor) else holders.of(name)
            self._plain.setdefault(id(tensor), found)
        return holders

    def holders_of(self, parameter: torch.Tensor) -> Holders | None:
        """The holders of what belongs to a parameter; None: all ranks."""
        return self._plain.get(id(parameter)) or self.meshes.of(parameter)

    def _buffers_of(
        self, module: torch.nn.Module, prefix: str, holders: ModuleHolders
    ) -> dict[int, bool]:
        """Ids of buffers that may differ by rank, and whether they are statistics."""
        if self._ranks.world == 1:
            return {}
        first = ddp_buffers(module, self._ranks.world)
        # No copy of the set if possible: this runs at each save, and the set may be large.
        excluded = self._owned | first if first else self._owned
        return buffers_that_may_differ(module, prefix, self._ranks, holders, excluded)

    def may_differ_in(
        self, module: torch.nn.Module, prefix: str, holders: ModuleHolders
    ) -> dict[int, bool]:
        """The same for a custom module, by the addresses of the elements at this save."""
        ids = self._buffers_of(module, prefix, holders)
        return {
            memory_of(buffer).data_ptr(): ids[id(buffer)]
            for buffer in (module.buffers() if ids else ())
            if id(buffer) in ids
        }

    def _add_other(self, module: torch.nn.Module, prefix: str) -> None:
        """Adds a custom module, which is asked for its state_dict() at every save."""
        self.own_say[id(module)] = prefix
        self._others.append(module)
        self.texts[id(module)] = ""
        for name, tensor in parameter_names(unwrap(module), prefix):
            self.ids.setdefault(id(tensor), name)

    def _in_order(self) -> None:
        order = spread_last(self.tensors)
        self.names = [self.names[number] for number in order]
        self.described = [self.described[number] for number in order]
        self.eager = [self.eager[number] for number in order]
        self.tensors = [self.tensors[number] for number in order]
        self._copies = [self._copies[number] for number in order]
        self.holders = [self.holders[number] for number in order]

    def _add_module(
        self,
        special: Special,
        prefix: str,
        owned: dict[int, torch.Tensor],
        holders: ModuleHolders,
    ) -> None:
        self._shapes.append(Shape(special.value))
        names = []
        others: dict[str, torch.Tensor] = {}
        for name, tensor in walk(special.value, prefix):
            if name in self.used:
                raise name_clash(name, special.path)
            self.used[name] = special.path
            if wraps(tensor):
                others[name] = tensor
                continue
            check_tensor(tensor, name)
            names.append(name)
            held = holders.of(name[len(prefix) :])
            self._add(name, tensor, id(tensor) in owned, held)
        for name, tensor in parameter_names(special.value, prefix):
            self.ids.setdefault(id(tensor), name)
        self.texts[id(special.value)] = module_text(special.value, prefix, names, {})
        if others:
            self.wrapping[id(special.value)] = _Wrapping(prefix, names, others, holders)

    def _add(self, name: str, tensor: torch.Tensor, owned: bool, holders: Holders | None) -> None:
        what = describe(tensor)
        check_place(what, name)
        key = key_of(what)
        # For tied tensors the first name decides.
        if key is not None and key in self.keys:
            own = self.keys[key] in self.owns.values()
        else:
            own = self._ranks.is_own(name, tensor)
        if own:
            self.owns[name] = self._ranks.own_name(name)
            name = self.owns[name]
        data = encode_name(name, name)
        if key is not None and key in self.keys:
            self.tied.append((data, self.keys[key]))
            self._doubles.append(tensor)
            return
        if key is not None:
            self.keys[key] = name
        self.names.append(data)
        self.described.append(what)
        self.tensors.append(tensor)
        is_statistic = None if own else self._may_differ.get(id(tensor))
        if is_statistic is not None:
            self.buffers.append(Buffer(name, tensor, what, holders, is_statistic))
        first = is_statistic is not None or id(tensor) in self._first
        alike = is_statistic is False or not first
        self.holders.append(holders)
        self._copies.append(
            copies_of(tensor, name, self._ranks, first=first, own=own, holders=holders, alike=alike)
        )
        # Only a fenced optimizer changes it, so it may be copied in the background.
        self.eager.append(not owned)

    def same(self) -> bool:
        """True if every module still has the same tensors, with the same memory and layout."""
        return (
            all(shape.same() or shape.same_again() for shape in self._shapes)
            and self._part.same()
            and self._doubled.same()
            and all(map(has_own_say, self._others))
        )
