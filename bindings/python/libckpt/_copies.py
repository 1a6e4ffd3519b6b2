# SPDX-License-Identifier: Apache-2.0
"""Which ranks hold copies of a tensor, and what must be equal on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._dtypes import name_of
from ._errors import UnsupportedStateError
from ._json_nodes import Json
from ._native import lib
from ._ranks import Ranks
from ._tensors import Described
from .adapters._holders import Holders
from .adapters._layout import ALONE, Copies, is_spread, spread_of

Key = Described


def key_of(what: Described) -> Key | None:
    """Equal for tensors with the same memory, dtype, shape and strides; None: no memory."""
    if 0 in what.shape or what.pointer == 0:
        return None
    return what


def copies_of(
    value: Any,
    where: str,
    ranks: Ranks,
    *,
    first: bool = False,
    own: bool = False,
    holders: Holders | None = None,
    alike: bool = True,
) -> Copies | None:
    """
    The ranks that hold this rank's part of a tensor that was checked; None: it holds nothing.
    `first`: rank 0, or the first of the `holders`, saves it for all. `own`: it is each rank's own.
    `holders`: of a plain tensor, if not all ranks. `alike`: if ranks of other meshes write a tensor
    of this name, it must be equal.
    """
    if not is_spread(value):
        if own:
            return ALONE
        if holders is not None:
            copies = holders.copies(first=first)
            return copies and copies._replace(more=alike)
        return ranks.of_first() if first else ranks.everywhere()
    spread = spread_of(value)
    if spread.ranks > ranks.world:
        raise UnsupportedStateError(
            f"{where} is a {type(value).__qualname__} spread over {spread.ranks} ranks, and this "
            f"checkpointer is of {ranks.world}: open it with all of them, in a process group of "
            "torch.distributed",
            tensor=where,
        )
    if spread.box is None:
        return None
    copies = spread.copies
    if spread.ranks < ranks.world:
        # No balance: a tensor that a rank lacks must not change who writes the others.
        return copies._replace(group=None, more=True)
    return copies


def flags_of(copies: Copies | None) -> int:
    """The flags of a tensor for the library, by its holders."""
    if copies is None:
        return 0
    # The first rank saves it for all: the tensors of other ranks may differ.
    flags: int = lib.CKPT_TENSOR_VARIES if copies.first and not copies.more else 0
    return flags | lib.CKPT_TENSOR_SHARED if copies.more else flags


def empty_of(
    names: Sequence[bytes], described: Sequence[Described], copies: Sequence[Copies | None]
) -> dict[str, Json]:
    """Dtype and shape of the tensors of which this rank holds nothing, by name."""
    return {
        name.decode(): describe_empty(what)
        for name, what, found in zip(names, described, copies, strict=True)
        if found is None
    }


def describe_empty(what: Described) -> Json:
    """Dtype and shape of a tensor, for the Python state of a rank."""
    return [name_of(what.dtype), list(what.full_shape)]


def shared_of(
    name: str, what: Described, value: Any, ranks: Ranks, holders: Holders | None
) -> Shared | None:
    """Name, dtype and shape of a tensor that all ranks must have; None: they need not have it."""
    if not is_spread(value):
        return None if holders is not None else (name, what.dtype, what.shape)
    spread = spread_of(value)
    if spread.ranks < ranks.world:
        return None
    return f"{name} of {spread.copies.among}", what.dtype, tuple(spread.whole)


#: Name, dtype and shape of a tensor that all ranks must have.
Shared = tuple[str, int, tuple[int, ...]]
