# SPDX-License-Identifier: Apache-2.0
"""What a rank leaves of a step to the other ranks, and what it takes of theirs."""

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
    Of one rank that resumes. It may leave what another one takes, as stages of a pipeline do when
    they are cut anew. What no rank takes is lost, and refused.
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
        #: each rank has to do with what it has saved, and no other's
        self.apart = apart
        self._shared = False
        self._state: dict[str, Any] = {}
        #: an answer of may_leave()
        self._may_leave: bool | None = None
        #: this rank takes what others had, or leaves what it had
        self.restaged = False
        #: tensors under keys of the state that the user lets go
        self._let_go: set[str] = set()
        #: names of what is left to others, and of what is taken, beside tensors
        self.left: set[str] = set()
        self.taken: set[str] = set()

    def begin(self, state: dict[str, Any], *, shared: bool) -> None:
        """`shared`: there are other ranks, which may take what this one leaves."""
        self._shared, self._state = shared and not self.apart, state

    def leave(self, name: str) -> None:
        """Another rank may take it. What the user lets go makes no other stage of this rank."""
        self.restaged |= not self._differences.tolerates(name)

    def may_leave(self) -> bool:
        """True if another rank may take of modules and optimizers what this one leaves."""
        if self._may_leave is None:
            self._may_leave = self._shared and self._is_in_stages()
        return self._may_leave

    def _is_in_stages(self) -> bool:
        """True if ranks have other names than this one, here or in the step, as far as it sees."""
        if self._reader.engine.stages:
            return True
        modules = (one.value for one in find_specials(self._state) if is_module(one.value))
        tensors = chain.from_iterable(module.parameters() for module in modules)
        if are_in_stages(tensors, self._reader.engine.world):
            return True
        return not self._seen().issuperset(self._all())

    def _all(self) -> set[str]:
        """The tensors of the step, but those of which each rank has its own."""
        homes = {what.home for what in self._stored.values() if what.here}
        return {home for home in homes if not is_own(home)}

    def _seen(self, *, parts: bool = True) -> set[str]:
        """Those that this rank's view has; `parts`: with those of modules and optimizers."""
        meta = self._origin.meta
        assert meta is not None
        names = chain(references(meta["state"], parts=parts), references(meta["rng"]))
        return {self._stored[name].home for name, _ in names if name in self._stored}

    def _rest(self) -> set[str]:
        """What of the step this rank neither takes nor refuses to leave."""
        taken = {self._stored[name].home for name in self._reader.taken}
        rest = {what.home for what in self._stored.values() if what.here} - taken
        rest = {home for home in rest if not is_own(home)} - self._let_go
        return rest - self._seen(parts=not self.may_leave()) if rest else rest

    def let_go(self, node: Json) -> None:
        """The user lets it go."""
        names = (name for name, _ in references(node))
        self._let_go.update(self._stored[name].home for name in names if name in self._stored)

    def tell(self, takers: Takers | None) -> None:
        """
        Tells the others what this rank takes. If there are none, what it does not take is lost;
        raises MismatchError.
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
            except NetworkError as error:  # only a rank that leaves something needs to know of it
                logger.warning(
                    "%s: the others do not hear of it: %s", self._differences.where, error
                )

    def _note_lost(self, name: str, text: str) -> bool:
        """Notes what no rank takes. True: it may be."""
        if self._differences.lets_go(name):
            self._differences.pass_over("unexpected", text)
            return True
        return self._differences.problem("unexpected", text, name)

    def check_lost(self, takers: Takers) -> None:
        """Raises MismatchError for what no rank has taken. All ranks have read."""
        if self.apart:
            return
        try:
            tensors, others = takers.lost(lambda: sorted(self._all()))
        except NetworkError as error:  # the other ranks go on
            self._differences.say(
                f"whether a rank takes all that the others leave is not known: {error}"
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
            "ranks have read their tensors, and nothing else was changed. See that the stages "
            "together have all that the step has, or let what is gone be so: "
            'resume(tolerate=["head.*"]), resume(strict=False).',
            step=where.step,
            rank=where.rank,
            tensor=lost[0],
        )
