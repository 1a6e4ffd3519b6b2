# SPDX-License-Identifier: Apache-2.0
"""Collects the tensors that one rank saves."""

from __future__ import annotations

from typing import Any

import torch

from .._errors import UnsupportedStateError
from .._json_nodes import Path, path_name, path_text
from .._ranks import Ranks
from .._tensors import (
    Block,
    Described,
    check_tensor,
    describe,
    describe_array,
    describe_bytes,
    encode_name,
    is_whole,
)
from ..adapters._layout import is_spread


def on_host(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU with the same elements: in the same memory, if it is one."""
    value = value.detach()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    return value if value.device.type == "cpu" else value.cpu()


class Gathered:
    """The tensors so far. Also a sink for the encoder."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._used: set[str] = set()
        self._known: dict[Described, bytes] = {}
        self._names: list[bytes] = []
        self._described: list[Described] = []
        self.aliases: list[tuple[bytes, bytes]] = []
        #: objects that must live until the tensors are copied
        self.keep: list[Any] = []

    def block(self) -> Block:
        """The block for the engine."""
        return Block(self._names, self._described, [False] * len(self._names))

    def add(self, name: str, what: Described, keep: Any) -> None:
        """Adds a tensor. `keep` keeps its memory alive."""
        if name in self._used:
            raise UnsupportedStateError(
                f"{name}: this rank holds several boxes of it, and only one can be saved: make it "
                "a DTensor, or redistribute it",
                tensor=name,
            )
        data = encode_name(name, name)
        self._used.add(name)
        self.keep.append(keep)
        # Tied weights. Not distributed ones, because other ranks may have other pairs.
        if what.whole is None and 0 not in what.shape:
            first = self._known.setdefault(what, data)
            if first is not data:
                self.aliases.append((data, first))
                return
        self._names.append(data)
        self._described.append(what)

    def _free_name(self, path: Path) -> str:
        wanted = self._ranks.own_name(path_name(path))
        name, number = wanted, 1
        while name in self._used or name in ("", "__metadata__"):
            number += 1
            name = f"{wanted}~{number}"
        return name

    # The sink. Tensors in values are each rank's own.

    def put_tensor(self, value: Any, path: Path, *, own: bool = False) -> str:
        """Stores a torch tensor in a value."""
        del own
        where = path_text(path)
        if is_spread(value):
            raise UnsupportedStateError(
                f"{where} is spread over ranks, inside of a tuple or another value that "
                "torch.distributed.checkpoint does not look into: put it into a dict or list",
                tensor=where,
            )
        tensor = on_host(value)
        check_tensor(tensor, where)
        return self._put(path, describe(tensor), tensor)

    def put_array(self, value: Any, path: Path) -> str:
        """Stores a NumPy array."""
        if not is_whole(value):  # a member of a structured array
            value = value.copy()
        return self._put(path, describe_array(value), value)

    def put_bytes(self, value: bytes, path: Path) -> str:
        """Stores bytes."""
        return self._put(path, describe_bytes(value), value)

    def _put(self, path: Path, what: Described, keep: Any) -> str:
        name = self._free_name(path)
        self.add(name, what, keep)
        return name
