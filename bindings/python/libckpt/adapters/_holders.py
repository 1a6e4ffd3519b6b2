# SPDX-License-Identifier: Apache-2.0
"""
Finds the ranks that hold a plain tensor, if not all ranks do: stages of a pipeline have names that
other stages do not have.

A plain tensor does not show that, but its context does. Optimizer state is held by the ranks of the
parameter's mesh. A plain tensor in a fully_shard() module is held by the ranks that have a part of
all sharded parameters of that module. For other plain tensors, the ranks may have compared their
names: see _stages.py.

The result may have fewer ranks than hold the tensor, but never more. With tensor parallelism, each
slice of the mesh writes a tensor that all slices have, like the parameters that are not sharded in
that dimension. Such copies are compared. With more ranks than hold it, a rank could leave the
tensor to one that does not have it.

A module without parameters of its own is on all ranks of the fully_shard() modules within it. Ranks
may see different ones of these: the last stage may have only an embedding that is tied to the first
stage. The widest mesh within is seen by all of its ranks. If no mesh has all ranks of the others,
the ranks may get different results. Then no step is committed, and the error of a rank that sees
several meshes names the tensors: see Meshes.unclear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._layout import Copies, Members, is_dtensor
from ._wrappers import is_fsdp, wrapped_child

if TYPE_CHECKING:
    from torch import nn


class Holders(NamedTuple):
    """Some ranks of the job, but not all."""

    members: Members
    #: the position of this rank among them; None: it is not among them
    place: int | None

    def copies(self, *, first: bool = False) -> Copies | None:
        """
        As Copies; None: this rank holds nothing. `first`: the tensor of the first rank is saved for
        all.
        """
        if self.place is None:
            return None
        # No balance: a tensor that a rank lacks must not change who writes the others.
        return Copies(None, len(self.members.ranks), self.place, self.members, first)


#: For a mesh without this rank. Such a mesh does not always know its ranks.
_OTHERS = Holders(Members(()), None)

_Found = set[Holders | None]


class Meshes:
    """Finds holders by the meshes of DTensors. For the same ranks it returns the same object."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        #: returns the ranks that hold a name, if no module shows it; None: all ranks
        self.named: Callable[[str], tuple[int, ...] | None] | None = None
        #: names of plain tensors of which ranks may disagree who holds them
        self.unclear: set[str] = set()
        #: by the id of a mesh, which is kept alive: comparing meshes is slow, and each parameter
        #: may have its own
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
        """The holders of what belongs to a tensor; None: all ranks."""
        return self.on(tensor.device_mesh) if self and is_dtensor(tensor) else None

    def on(self, mesh: Any) -> Holders | None:
        """The holders of what belongs to a DTensor on this mesh; None: all ranks."""
        found = self._of.get(id(mesh))
        if found is None:
            found = self._of[id(mesh)] = mesh, self._find(mesh)
        return found[1]

    def by_name(self, name: str) -> Holders | None:
        """The holders of a plain tensor, if no module shows them; None: all ranks."""
        ranks = self.named(name) if self.named else None
        return None if ranks is None else self._among(ranks)

    def widest(self, found: _Found) -> tuple[Holders | None, bool]:
        """
        The holders that include all others, and True. All of these ranks get this result, also
        those that are not in the others. If there are none, common(), and False: other ranks may
        get another result.
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
        """The ranks that are in all of these holders; None: all ranks."""
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
    """True if some of the tensors are DTensors on a mesh of fewer ranks than the world."""
    meshes = {tensor.device_mesh for tensor in tensors if is_dtensor(tensor)}
    return any(mesh.size() < world for mesh in meshes)


class ModuleHolders:
    """Finds the holders of plain tensors of a module, by names in it without wrappers."""

    def __init__(self, module: nn.Module, meshes: Meshes, prefix: str = "") -> None:
        self._meshes = meshes
        self._prefix = prefix
        #: by the path of each fully_shard() module
        self._paths: dict[str, Holders | None] = {}
        #: the paths for which ranks may disagree
        self._unclear: set[str] = set()
        if meshes:
            self._visit(module, "", set(), set())

    def _visit(self, module: nn.Module, path: str, own: _Found, inner: _Found) -> None:
        """Adds the holders of its parameters to `own`, and those of modules within to `inner`."""
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
            # A wrapper and the module inside have one path. The inner one is visited first.
            meshes = self._meshes
            holders, agreed = (meshes.common(own), True) if own else meshes.widest(inner)
            if path not in self._paths:
                self._paths[path] = holders
                if not agreed:
                    self._unclear.add(path)
            outer |= own | inner

    def of(self, name: str) -> Holders | None:
        """The holders of a plain tensor; None: all ranks."""
        path = name
        while path and self._paths:
            path = path.rpartition(".")[0]
            if path in self._paths:
                if path in self._unclear:
                    self._meshes.unclear.add(self._prefix + name)
                return self._paths[path]
        return self._meshes.by_name(self._prefix + name)
