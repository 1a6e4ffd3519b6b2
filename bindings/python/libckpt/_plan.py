# SPDX-License-Identifier: Apache-2.0
"""
The comparison of a step with the live state, like in resume(), but without memory, reads or calls
of user code. The loop waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ._json_nodes import SPECIAL_TAGS, Json, Path, mentions, path_text, tag_of
from ._live import Live
from ._structure import is_open
from ._throwaway import Copier, UntriedError
from ._trial import Trial, TrialReader
from .adapters._subclass_places import Places
from .adapters._subclasses import is_wrapped

if TYPE_CHECKING:
    import torch

_OBJECT = "an object, which only libckpt.rehearse() tries"
_WRAPPER = "a tensor that wraps others, which only libckpt.rehearse() tries"


class _NoCopies(Copier):
    """Objects in the middle of their run may refuse what new ones take: none is tried."""

    def __init__(self) -> None:
        super().__init__(0)

    def copy(self, value: Any, *, listed: bool) -> NoReturn:  # noqa: ARG002
        raise UntriedError(_OBJECT)


class _NoPlaces(Places):
    """To find a place in a tensor that wraps others its own class is asked, or makes another."""

    def __init__(self, untried: list[str]) -> None:
        self._untried = untried

    def place(self, node: Json, old: Any, like: Any, path: Path, *, anew: bool = False) -> Any:  # noqa: ARG002
        self._untried.append(f"{path_text(path)}: {_WRAPPER}")
        return old


class Plan(Trial):
    """The comparison. It can be repeated after its reader was closed."""

    def __init__(self, reader: TrialReader, *, allow_pickle: bool) -> None:
        super().__init__(reader, allow_pickle=allow_pickle, most=0, copier=_NoCopies())
        self.places = _NoPlaces(self.untried)
        self._allow_pickle = allow_pickle

    def again(self) -> Plan:
        """A new comparison of the same step."""
        return Plan(self._reader, allow_pickle=self._allow_pickle)

    def _match(self, node: Json, live: Any, path: Path) -> None:
        tag = tag_of(node) if type(node) is dict else None
        if tag == "$object":
            self._leave_out(node, path, _OBJECT)
        elif is_wrapped(node):
            self.places.place(node, live, live, path)
        elif is_open(live):
            super()._match(node, live, path)
        else:
            self.want(node, path)

    def _check_copy(self, tag: str, node: dict[str, Json], live: Any, path: Path) -> None:
        """No copy is made here."""

    def want(self, node: Json, path: Path) -> None:
        if mentions(node, *SPECIAL_TAGS):
            Live.want(self, node, path)
            return
        self._decoder.check(node)
        self._look_at(node)

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """Does nothing: the tensor fits, and was checked by the save."""

    def _rng(self) -> Json:
        """The generators are checked like values, without memory."""
        node = super()._rng()
        self.want(node, (None, "rng"))
        return {}
