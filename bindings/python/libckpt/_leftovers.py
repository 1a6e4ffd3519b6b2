# SPDX-License-Identifier: Apache-2.0
"""What a rank does not take of a step, and other ranks must take: stages of a pipeline."""

from __future__ import annotations

from itertools import chain
from typing import Any

from ._differences import Differences
from ._errors import MismatchError, NetworkError
from ._json_nodes import Json
from ._log import logger
from ._origin import LISTED, Origin
from ._ranks import is_own
from ._reader import Reader, Stored, references
from ._state_kinds import find_specials, is_module
from ._takers import Taken, Takers
from .adapters._holders import are_in_stages


class Leftovers:
    """
    For one rank that resumes. If the stages of a pipeline have changed, it may leave tensors that
    another rank takes. Tensors that no rank takes would be lost, so that is refused.
    """

    def __init__(
        self,
        reader: Reader,
        origin: Origin,
        stored: dict[str, Stored],
        differences: Differences,
        *,
        apart: bool,
    ) -> None:
        self._reader = reader
        self._origin = origin
        self._stored = stored
        self._differences = differences
        #: each rank restores what it saved itself, and nothing else
        self.apart = apart
        self._shared = False
        self._state: dict[str, Any] = {}
        #: result of may_leave(), once known
        self._may_leave: bool | None = None
        #: this rank takes what another rank had, or leaves what it had
        self.restaged = False
        #: tensors that no rank must take, because the user tolerates it
        self._let_go: set[str] = set()
        #: names of things other than tensors that are left to others, and that are taken
        self.left: set[str] = set()
        self.taken: set[str] = set()

    def begin(self, state: dict[str, Any], *, shared: bool) -> None:
        """`shared`: there are other ranks that may take what this one leaves."""
        self._shared, self._state = shared and not self.apart, state

    def leave(self, name: str) -> None:
        """
        Notes that another rank must take it. A name that the user tolerates does not mean that this
        rank is another stage.
        """
        self.restaged |= not self._differences.tolerates(name)

    def may_leave(self) -> bool:
        """True if another rank may take what this one leaves of modules and optimizers."""
        if self._may_leave is None:
            self._may_leave = self._shared and self._is_in_stages()
        return self._may_leave

    def _is_in_stages(self) -> bool:
        """True if this rank can see that ranks have different names, now or in the step."""
        if self._reader.engine.stages:
            return True
        modules = (one.value for one in find_specials(self._state) if is_module(one.value))
        tensors = chain.from_iterable(module.parameters() for module in modules)
        if are_in_stages(tensors, self._reader.engine.world):
            return True
        return not self._seen().issuperset(self._all())

    def _all(self) -> set[str]:
        """The tensors of the step, without those that are each rank's own."""
        homes = {what.home for what in self._stored.values() if what.here}
        return {home for home in homes if not is_own(home)}

    def _seen(self, *, parts: bool = True) -> set[str]:
        """Tensors in the view of this rank; `parts`: with those of modules and optimizers."""
        meta = self._origin.meta
        assert meta is not None
        names = chain(references(meta["state"], parts=parts), references(meta["rng"]))
        return {self._stored[name].home for name, _ in names if name in self._stored}

    def _rest(self) -> set[str]:
        """Tensors of the step that this rank does not take, and that another rank may take."""
        taken = {self._stored[name].home for name in self._reader.taken}
        rest = {what.home for what in self._stored.values() if what.here} - taken
        rest = {home for home in rest if not is_own(home)} - self._let_go
        return rest - self._seen(parts=not self.may_leave()) if rest else rest

    def let_go(self, node: Json) -> None:
        """No rank must take the tensors of this node, because the user tolerates it."""
        names = (name for name, _ in references(node))
        self._let_go.update(self._stored[name].home for name in names if name in self._stored)

    def tell(self, takers: Takers | None) -> None:
        """
        Tells the other ranks what this rank takes. If there are none, raises MismatchError for what
        it does not take.
        """
        if self.apart:
            return
        rest = self._rest()
        if takers is None:
            for name in sorted(rest):
                self._note_lost(name, name)
            self._differences.raise_problems()
        elif rest or self.left or (self.taken and self.may_leave()):
            names = self._all()
            takers.tell(Taken(names - rest, self.taken, self.left), sorted(names))
        else:
            try:
                takers.tell_all()
            except NetworkError as error:  # only matters if another rank leaves something
                logger.warning(
                    "%s: the other ranks are not told what this rank takes: %s",
                    self._differences.where,
                    error,
                )

    def _note_lost(self, name: str, text: str) -> bool:
        """Notes a tensor that no rank takes. True: the user tolerates it."""
        if self._differences.lets_go(name):
            self._differences.pass_over("unexpected", text)
            return True
        return self._differences.problem("unexpected", text, name)

    def check_lost(self, takers: Takers) -> None:
        """Called when all ranks have read. Raises MismatchError for what no rank has taken."""
        if self.apart:
            return
        try:
            tensors, others = takers.lost(lambda: sorted(self._all()))
        except NetworkError as error:  # the other ranks go on
            self._differences.say(
                f"it is not known whether the ranks together take everything: {error}"
            )
            return
        texts = {name: f"{name} (written by rank {self._stored[name].rank})" for name in tensors}
        texts.update((name, name) for name in others)
        lost = [name for name, text in texts.items() if not self._note_lost(name, text)]
        if not lost:
            return
        more = f"; and {len(lost) - LISTED} more" * (len(lost) > LISTED)
        some = "; ".join(texts[name] for name in lost[:LISTED])
        where = self._differences.where
        raise MismatchError(
            f"{where}: no rank takes what {self._reader.world} ranks have saved: {some}{more}. The "
            "tensors of the state were overwritten, and nothing else was changed. Make sure that "
            "the stages together have everything that the step has, or tolerate what is gone: "
            'resume(tolerate=["head.*"]), resume(strict=False).',
            step=where.step,
            rank=where.rank,
            tensor=lost[0],
        )
