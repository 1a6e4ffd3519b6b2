# SPDX-License-Identifier: Apache-2.0
"""The description of modules and optimizers, kept between saves."""

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
    """The description of all modules and optimizers, kept between saves."""

    specials: list[Special]
    modules: Modules
    sources: list[OptimizerSource]
    #: parameters that only fenced optimizers change, by id
    owned: dict[int, torch.Tensor]
    #: names of parameters that are not in modules, by id
    borrowed: dict[int, str]
    block: Block
    #: place of every tensor of modules and optimizers in the block; -1: another rank writes it
    places: list[int]
    #: the tensors that other ranks hold, too
    alike: Alike
    #: tensors that the user has named as each rank's own: the names of this rank's copies
    owns: dict[str, str]
    #: everything is copied before save() returns, because it is small
    small: bool
    #: dtype and shape of tensors of which this rank holds nothing, by name
    empty: dict[str, Json]
    #: the contributions of all of them: see Snapshot.balance
    balance: int


class Settled(NamedTuple):
    """Which ranks write and compare the tensors of modules and optimizers."""

    #: whether this rank writes it
    mine: list[bool]
    #: the group of ranks that compare it
    groups: list[Group]
    #: its flags, for the library
    flags: list[int]
    #: contributions for tensors that other ranks hold, too
    held: list[Held]
    #: tensors of which this rank holds nothing
    empty: dict[str, Json]

    @staticmethod
    def of(modules: Modules) -> Settled:
        """Begins with the tensors of the modules. Those of optimizers are added."""
        return Settled(
            list(modules.mine),
            list(modules.groups),
            list(modules.flags),
            list(modules.held),
            dict(modules.empty),
        )
