# SPDX-License-Identifier: Apache-2.0
"""Sink: collects the tensors that are described anew at every save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._alike import Groups
from ._balance import Held, Holdings
from ._copies import Key, Shared, copies_of, describe_empty, flags_of, key_of, shared_of
from ._json_nodes import Json, Path, path_name, path_text
from ._ranks import Ranks, is_turn
from ._state_kinds import name_clash
from ._tensors import (
    Described,
    check_tensor,
    describe,
    describe_array,
    describe_bytes,
    encode_name,
    is_whole,
)
from .adapters._buffers import NONE, Buffer, Own
from .adapters._holders import Holders
from .adapters._layout import is_spread

if TYPE_CHECKING:
    import torch

    from ._module_source import Modules


class Sink:
    """
    Collects the tensors that are described anew at every save, and that this rank writes.
    `modules`: the modules that were walked, whose tensors are stored already. `owned`: tensors that
    only fenced optimizers change.
    """

    def __init__(
        self, modules: Modules, owned: dict[int, torch.Tensor], ranks: Ranks, groups: Groups
    ) -> None:
        self._groups = groups
        self._holdings = Holdings(ranks, groups)
        #: tensors that other ranks hold, too: group, name, tensor and flags
        self.alike: list[tuple[int, bytes, Described, int]] = []
        self._taken = modules.used.__contains__
        self._known = modules.keys
        self._known_mine = modules.mine_names
        self._owned = owned
        self._ranks = ranks
        #: tensors that are put now are each rank's own
        self.own = False
        #: holders of plain tensors that are put now; None: all ranks
        self._holders: Holders | None = None
        self._owned_keys: dict[Key | None, torch.Tensor] | None = None
        self._keys: dict[Key, str] = {}
        self._own_keys: dict[Key, str] = {}
        self.used: set[str] = set()
        self._mine: set[str] = set()
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        #: flags of the tensors, for the library
        self.flags: list[int] = []
        #: (number, parameter that the optimizer changes) of tensors that are not eager
        self.behind: list[tuple[int, torch.Tensor]] = []
        self.keep: list[Any] = []
        #: names of torch tensors by id
        self.ids: dict[int, str] = {}
        self.aliases: list[tuple[bytes, bytes]] = []
        #: tensors that all ranks must have, whichever rank writes them
        self.shared: list[Shared] = []
        #: tensors that not all ranks must have
        self.apart: list[Shared] = []
        #: contributions to the balance: see _balance.py
        self.held: list[Held] = []
        #: tensors of which this rank holds nothing
        self.empty: dict[str, Json] = {}
        #: tensors that the user has named as each rank's own: the names of this rank's copies
        self.owns: dict[str, str] = {}
        #: buffers that may differ by rank
        self.buffers: list[Buffer] = []
        #: the copies of those that this rank saves
        self.own_buffers: Own = NONE
        #: (second name, first name) of tensors with several names
        self.tied: list[tuple[str, str]] = []

    def _free_name(self, path: Path, *, own: bool) -> str:
        """A name for the value at `path`. If it is in use, a number is added."""
        wanted = path_name(path)
        name, number = wanted, 1
        if own:
            name = wanted = self._ranks.own_name(wanted)
        while name in self.used or self._taken(name) or name in ("", "__metadata__"):
            number += 1
            name = f"{wanted}~{number}"
        return name

    def _add(
        self,
        name: str,
        data: bytes,
        what: Described,
        owner: torch.Tensor | None,
        *,
        flags: int = 0,
    ) -> None:
        """Adds a tensor that this rank writes. `data`: its name as bytes."""
        self._mine.add(name)
        if owner is not None:
            self.behind.append((len(self.names), owner))
        self.names.append(data)
        self.described.append(what)
        self.eager.append(owner is None)
        self.flags.append(flags)

    def _add_shared(
        self,
        name: str,
        data: bytes,
        where: str,
        value: torch.Tensor,
        what: Described,
        *,
        owner: Any,
        first: bool = False,
        holders: Holders | None = None,
        alike: bool = True,
    ) -> None:
        """Adds a tensor that other ranks may hold, too, if this rank writes it."""
        copies = copies_of(value, where, self._ranks, first=first, holders=holders, alike=alike)
        group = self._groups.of(copies)
        if group is not None:
            self.alike.append((group, data, what, flags_of(copies)))
        shared = shared_of(name, what, value, self._ranks, holders)
        if shared is not None:
            self.shared.append(shared)
        else:
            self.apart.append((name, what.dtype, what.full_shape))
        if copies is None:
            self.empty[name] = describe_empty(what)
            return
        mine = is_turn(name, self._ranks.here(copies))
        held = self._holdings.of(data, what, copies, mine)
        if held is not None:
            self.held.append(held)
        if mine:
            self._add(name, data, what, owner, flags=flags_of(copies))

    def is_mine(self, name: str) -> bool:
        """True if this rank writes the tensor of that name."""
        return name in self._mine

    def _stored(self, key: Key | None) -> str | None:
        return None if key is None else self._known.get(key) or self._keys.get(key)

    @contextlib.contextmanager
    def held_by(self, holders: Holders | None) -> Iterator[None]:
        """In the block, tensors that are put without a name are held by these ranks; None: all."""
        before, self._holders = self._holders, holders
        try:
            yield
        finally:
            self._holders = before

    def put_tensor(self, value: torch.Tensor, path: Path, *, own: bool = False) -> str:
        """Stores a tensor under the name of its path, unless its memory is stored already."""
        where = path_text(path)
        check_tensor(value, where)
        what = describe(value)
        key = key_of(what)
        self.keep.append(value)
        said = self._ranks.is_own(path_name(path), value)
        own = (own or self.own or said) and self._ranks.world > 1 and not is_spread(value)
        keys = self._own_keys if own else self._keys
        name = self._stored(key)
        if name is None and key is not None:
            name = keys.get(key)
        if name is None:
            name = self._free_name(path, own=own)
            self.used.add(name)
            data = encode_name(name, where)
            if own:
                self._add(name, data, what, None)
                if said:
                    self.owns[path_name(path)] = name
            else:
                owner = self._owned.get(id(value))
                self._add_shared(name, data, where, value, what, owner=owner, holders=self._holders)
            if key is not None:
                keys[key] = name
        if not own:
            self.ids.setdefault(id(value), name)
        return name

    def put_array(self, value: Any, path: Path) -> str:
        """Stores a NumPy array. It is each rank's own, like all Python values."""
        name = self._free_name(path, own=True)
        if not is_whole(value):  # a member of a structured array
            value = value.copy()
        self.keep.append(value)
        self.used.add(name)
        self._add(name, encode_name(name, path_text(path)), describe_array(value), None)
        return name

    def put_bytes(self, value: bytes, path: Path) -> str:
        """Stores bytes. They are each rank's own."""
        name = self._free_name(path, own=True)
        self.keep.append(value)
        self.used.add(name)
        self._add(name, encode_name(name, path_text(path)), describe_bytes(value), None)
        return name

    def put_named(
        self,
        name: str,
        value: torch.Tensor,
        path: Path,
        *,
        first: bool = False,
        own: bool = False,
        holders: Holders | None = None,
        is_statistic: bool | None = None,
    ) -> None:
        """
        Stores a tensor under this name. If its memory is stored already, adds a second name.
        `first`, `own`, `holders`: see copies_of(). `is_statistic`: for a buffer that may differ by
        rank, whether it is a statistic; None: not such a buffer.
        """
        where = f"{path_text(path)}, tensor {name}"
        check_tensor(value, where)
        if name in self.used or self._taken(name):
            raise name_clash(name, path)
        what = describe(value)
        key = key_of(what)
        self.keep.append(value)
        self.used.add(name)
        if own:
            self.owns[name] = self._ranks.own_name(name)
            name = self.owns[name]
        data = encode_name(name, path_text(path))
        stored = self._stored(key)
        if stored is not None:
            self.tied.append((name, stored))
            if stored in self._mine or stored in self._known_mine:
                self.aliases.append((data, stored.encode()))
            return
        if self._owned_keys is None:
            self._owned_keys = {key_of(describe(owner)): owner for owner in self._owned.values()}
        owner = None if key is None else self._owned_keys.get(key)
        if own:
            self._add(name, data, what, owner)
        else:
            self._add_shared(
                name,
                data,
                where,
                value,
                what,
                owner=owner,
                first=first,
                holders=holders,
                alike=is_statistic is False or not first,
            )
            if is_statistic is not None and first and key is not None:
                self.buffers.append(Buffer(name, value, what, holders, is_statistic))
        if key is not None:
            self._keys[key] = name
