# SPDX-License-Identifier: Apache-2.0
"""
Which ranks hold a plain tensor, where they are not all: the stages of a pipeline have names that
the other stages do not have.

A plain tensor says nothing of that, but what it belongs to does. The state of an optimizer is held
where its parameter is: by the ranks of the parameter's mesh. A plain tensor in a module of
fully_shard() is held by the ranks that have a part of all the sharded parameters of that module.

Of other plain tensors the ranks may have told each other who has them: see _stages.py.

This may be fewer ranks than hold it, never more: with tensor parallelism each slice of the mesh
writes a tensor that all slices have, as it writes the parameters that are not cut that way. Such
copies are compared. More ranks than hold it would be wrong: one of them would leave it to another
one that has none.

A module without parameters of its own is on all ranks of the modules of fully_shard() within it.
Ranks may see different ones of these: an embedding that is tied between the first stage and the
last may be all that the last one has. The widest mesh of those within is seen by all of its ranks.
If no mesh has all ranks of the others, the ranks may come to different answers. Then no step is
committed, and the error of a rank that sees several meshes names the tensors: see Meshes.unclear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._layout import Copies, Members, is_dtensor
from ._wrappers import is_fsdp, wrapped_child

if TYPE_CHECKING:
    from torch import nn


class Holders(NamedTuple):
    """Some ranks of the job, which are not all."""

    members: Members
    #: the number of this rank among them; None: it is none of them
    place: int | None

    def copies(self, *, first: bool = False) -> Copies | None:
        """
        What they are to each other; None: this rank holds nothing. `first`: the first rank has the
        one of all.
        """
        if self.place is None:
            return None
        # No balance: what one of them lacks must shift no turns.
        return Copies(None, len(self.members.ranks), self.place, self.members, first)


#: Of a mesh that this rank is not in. Such a mesh does not always tell its ranks.
_OTHERS = Holders(Members(()), None)

_Found = set[Holders | None]


class Meshes:
    """Who holds what belongs to DTensors, by their meshes. Of some ranks there is one object."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        #: which ranks hold a plain tensor of a name, where no module says it; None: all
        self.named: Callable[[str], tuple[int, ...] | None] | None = None
        #: names of plain tensors of which the ranks may not agree who holds them
        self.unclear: set[str] = set()
        #: by the id of a mesh, which is kept: to compare meshes takes long, and each parameter may
        #: have one of its own
        self._of: dict[int, tuple[Any, Holders | None]] = {}
        self._made: dict[tuple[int, ...], Holders] = {}

    def __bool__(self) -> bool:
        """False: there are no other ranks."""
        return self._world > 1

    def forget(self) -> None:
        """Releases the meshes. The modules are walked again."""
        self._of.clear()
        self.unclear.clear()

    def of(self, tensor: Any) -> Holders | None:
        """Of what belongs to a tensor; None: all ranks hold it."""
        return self.on(tensor.device_mesh) if self and is_dtensor(tensor) else None

    def on(self, mesh: Any) -> Holders | None:
        """Of what belongs to a DTensor on this mesh."""
        found = self._of.get(id(mesh))
        if found is None:
            found = self._of[id(mesh)] = mesh, self._find(mesh)
        return found[1]

    def by_name(self, name: str) -> Holders | None:
        """Of a plain tensor of which no module says it."""
        ranks = self.named(name) if self.named else None
        return None if ranks is None else self._among(ranks)

    def widest(self, found: _Found) -> tuple[Holders | None, bool]:
        """
        The one that has the ranks of all others, so that the ranks of it come to the same answer
        even if not all of them are in the others. Without such a one, as common(), and False: other
        ranks may come to another answer.
        """
        if None in found:
            return None, True
        here = [holders for holders in found if holders is not None and holders.place is not None]
        if not here:
            return self.common(found), True
        most = max(here, key=lambda holders: len(holders.members.ranks))
        if all(set(most.members.ranks).issuperset(one.members.ranks) for one in here):
            return most, True
        return self.common(found), False

    def common(self, found: _Found) -> Holders | None:
        """Of what belongs to all of these; None: all ranks."""
        some = [holders for holders in found if holders is not None]
        here = [holders for holders in some if holders.place is not None]
        if len(here) > 1:
            ranks = set.intersection(*(set(holders.members.ranks) for holders in here))
            return self._among(tuple(sorted(ranks)))
        return here[0] if here else _OTHERS if some else None

    def _find(self, mesh: Any) -> Holders | None:
        if mesh.size() >= self._world:
            return None
        if mesh.get_coordinate() is None:
            return _OTHERS
        return self._among(tuple(sorted(mesh.mesh.flatten().tolist())))

    def _among(self, ranks: tuple[int, ...]) -> Holders:
        found = self._made.get(ranks)
        if found is None:
            found = self._made[ranks] = Holders(Members(ranks), ranks.index(self._rank))
        return found


def are_in_stages(tensors: Iterable[Any], world: int) -> bool:
    """True if some of them are DTensors on a mesh of fewer ranks than there are."""
    meshes = {tensor.device_mesh for tensor in tensors if is_dtensor(tensor)}
    return any(mesh.size() < world for mesh in meshes)


class ModuleHolders:
    """Who holds the plain tensors of a module, by their names in it, those of wrappers left out."""

    def __init__(self, module: nn.Module, meshes: Meshes, prefix: str = "") -> None:
        self._meshes = meshes
        self._prefix = prefix
        #: by the path of each module of fully_shard()
        self._paths: dict[str, Holders | None] = {}
        #: those of them of which the ranks may not agree
        self._unclear: set[str] = set()
        if meshes:
            self._visit(module, "", set(), set())

    def _visit(self, module: nn.Module, path: str, own: _Found, inner: _Found) -> None:
        """Adds who holds what belongs to its parameters; to `inner` of fully_shard() modules."""
        outer = None
        if is_fsdp(module):
            outer, own, inner = inner, set(), set()
        parameters: Any = module._parameters
        for _, parameter in parameters.items():
            if is_dtensor(parameter):
                own.add(self._meshes.on(parameter.device_mesh))
        wrapped = wrapped_child(module)
        for name, child in module._modules.items():
            if child is not None:
                below = path if name == wrapped else f"{path}.{name}" if path else name
                self._visit(child, below, own, inner)
        if outer is not None and (own or inner):
            # Of a wrapper and what it wraps, the latter.
            meshes = self._meshes
            holders, agreed = (meshes.common(own), True) if own else meshes.widest(inner)
            if path not in self._paths:
                self._paths[path] = holders
                if not agreed:
                    self._unclear.add(path)
            outer |= own | inner

    def of(self, name: str) -> Holders | None:
        """Of a tensor; None: all ranks."""
        path = name
        while path and self._paths:
            path = path.rpartition(".")[0]
            if path in self._paths:
                if path in self._unclear:
                    self._meshes.unclear.add(self._prefix + name)
                return self._paths[path]
        return self._meshes.by_name(self._prefix + name)
