# SPDX-License-Identifier: Apache-2.0
"""What is kept of modules and optimizers that have been walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from ._alike import Alike, Group
    from ._balance import Held
    from ._json_nodes import Json
    from ._module_source import Modules
    from ._optimizer import OptimizerSource
    from ._state_kinds import Special
    from ._tensors import Block


class Walked(NamedTuple):
    """What is kept between saves: the description of all modules and optimizers."""

    specials: list[Special]
    modules: Modules
    sources: list[OptimizerSource]
    #: parameters that the optimizers own, by id
    owned: dict[int, torch.Tensor]
    #: those whose names are from tensors beside the modules
    borrowed: dict[int, str]
    block: Block
    #: of every tensor of the modules and the optimizers its place in the block; -1: another's turn
    places: list[int]
    #: those of them that other ranks have as well
    alike: Alike
    #: what the user has said to be this rank's own: the names that it is stored under
    owns: dict[str, str]
    #: what could be copied behind the loop is little, and copied before it goes on
    small: bool
    #: what the tensors of modules and optimizers are of which this rank holds nothing
    empty: dict[str, Json]
    #: of all of them, see Snapshot
    balance: int


class Settled(NamedTuple):
    """Of the tensors of modules and optimizers, who writes and who compares each of them."""

    #: whether this rank writes it
    mine: list[bool]
    #: the group of ranks that compares it
    groups: list[Group]
    #: what the library is to know of it
    flags: list[int]
    #: what other ranks have as well, whoever writes it
    held: list[Held]
    #: of which this rank holds nothing
    empty: dict[str, Json]

    @staticmethod
    def of(modules: Modules) -> Settled:
        """Of those of the modules, to which the optimizers' are added."""
        return Settled(
            list(modules.mine),
            list(modules.groups),
            list(modules.flags),
            list(modules.held),
            dict(modules.empty),
        )
