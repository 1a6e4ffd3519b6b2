# SPDX-License-Identifier: Apache-2.0
"""
Which ranks hold a plain tensor, where they are not all: the stages of a pipeline have names that
the other stages do not have.

A plain tensor says nothing of that, but what it belongs to does. The state of an optimizer is held
where its parameter is: by the ranks of the parameter's mesh. A plain tensor in a module of
fully_shard() is held where the sharded parameters of that module are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._layout import Copies, is_dtensor, position_in
from ._modules import is_fsdp, wrapped_child

if TYPE_CHECKING:
    from torch import nn


class Holders(NamedTuple):
    """The ranks of a mesh, which are not all ranks."""

    mesh: Any
    #: the number of this rank among them; None: it is none of them
    place: int | None

    def copies(self, *, first: bool = False) -> Copies | None:
        """
        As of a DTensor that is replicated on the mesh; None: this rank holds nothing. `first`: the
        first rank has the one of all.
        """
        if self.place is None:
            return None
        sizes = tuple(self.mesh.shape)
        # No balance: what one rank of the mesh lacks must shift no turns.
        return Copies(
            None, math.prod(sizes), self.place, (self.mesh, tuple(range(len(sizes)))), first
        )


class Meshes:
    """
    The meshes of some DTensors. One that is a part of a wider one counts as that: with tensor
    parallelism some parameters are on a mesh of one dimension, and the others on the whole mesh.
    """

    def __init__(self, tensors: Iterable[Any], world: int) -> None:
        self._world = world
        #: by mesh the numbers of its ranks
        self._ranks: dict[Any, frozenset[int]] = {}
        for tensor in tensors if world > 1 else ():
            if is_dtensor(tensor) and tensor.device_mesh not in self._ranks:
                mesh = tensor.device_mesh
                self._ranks[mesh] = frozenset(mesh.mesh.flatten().tolist())
        self._of = {mesh: self._holders(self._widest(mesh)) for mesh in self._ranks}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def of(self, tensor: Any) -> Holders | None:
        """Of what belongs to one of the tensors; None: all ranks hold it."""
        return self._of.get(tensor.device_mesh) if is_dtensor(tensor) else None

    def common(self) -> Holders | None:
        """Of what belongs to all of them; None: all ranks hold it, or no mesh has all others."""
        if not self._ranks:
            return None
        widest = max(self._ranks, key=lambda mesh: len(self._ranks[mesh]))
        if all(ranks <= self._ranks[widest] for ranks in self._ranks.values()):
            return self._of[widest]
        return None

    def _widest(self, mesh: Any) -> Any:
        ranks = self._ranks
        wider = [other for other in ranks if ranks[mesh] <= ranks[other]]
        return max(wider, key=lambda other: len(ranks[other]))

    def _holders(self, mesh: Any) -> Holders | None:
        return None if mesh.size() >= self._world else Holders(mesh, position_in(mesh))


def are_in_stages(tensors: Iterable[Any], world: int) -> bool:
    """True if some of them are DTensors on a mesh of fewer ranks than there are."""
    meshes = {tensor.device_mesh for tensor in tensors if is_dtensor(tensor)}
    return any(mesh.size() < world for mesh in meshes)


class ModuleHolders:
    """Who holds the plain tensors of a module, by their names in it, those of wrappers left out."""

    def __init__(self, module: nn.Module, world: int) -> None:
        #: by the path of each module of fully_shard()
        self._paths: dict[str, Holders | None] = {}
        if world > 1:
            self._visit(module, "", world)

    def _visit(self, module: nn.Module, path: str, world: int) -> None:
        if is_fsdp(module) and (meshes := Meshes(module.parameters(), world)):
            self._paths[path] = meshes.common()
        wrapped = wrapped_child(module)
        for name, child in module._modules.items():
            if child is not None:
                below = path if name == wrapped else f"{path}.{name}" if path else name
                self._visit(child, below, world)

    def of(self, name: str) -> Holders | None:
        """Of a tensor; None: all ranks."""
        path = name
        while path and self._paths:
            path = path.rpartition(".")[0]
            if path in self._paths:
                return self._paths[path]
        return None
