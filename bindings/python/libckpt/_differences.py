# SPDX-License-Identifier: Apache-2.0
"""
Differences between a live state and a step: those that make a restore fail, those that the user
tolerates, and those that a warning lists.
"""

from __future__ import annotations

import collections
import fnmatch
import numbers
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ._errors import CheckpointWarning, MismatchError
from ._json_nodes import Path, path_text
from ._log import logger

#: Differences of one kind that a message lists. The others are counted.
_LISTED = 10

_KINDS = (
    ("missing", "in the state, and not in the checkpoint"),
    ("unexpected", "in the checkpoint, and not in the state"),
    ("changed", "different"),
)


class Where(NamedTuple):
    """The step that is restored, the rank that restores it, and the number of ranks."""

    step: int
    rank: int
    world: int

    def __str__(self) -> str:
        return f"step {self.step}" + (f", rank {self.rank} of {self.world}" * (self.world > 1))


def patterns_of(strict: Any, tolerate: Any) -> list[str]:
    """Checks arguments of resume(). Returns patterns over names that may be new or gone."""
    if not isinstance(strict, bool):
        raise TypeError(f"strict must be True or False, not {type(strict).__qualname__}")
    if isinstance(tolerate, str) or not isinstance(tolerate, Iterable):
        raise TypeError(
            f'tolerate must be patterns, such as ["head.*"], not {type(tolerate).__qualname__}'
        )
    patterns = list(tolerate)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"tolerate must be patterns over names, and is {patterns!r:.100}")
    return patterns if strict else ["*"]


class Differences:
    """The differences of one restore. `tolerated`: patterns over names that may be new or gone."""

    def __init__(self, where: Where, tolerated: Sequence[str]) -> None:
        #: for messages
        self.where = where
        self._tolerated = tolerated
        self._problems: dict[str, list[str]] = {}
        self._first: str | None = None
        self._passed: dict[str, list[str]] = {}
        self._said: list[str] = []

    def problem(self, kind: str, text: str, name: str | None = None) -> bool:
        """
        Notes a difference. `kind`: "missing", "unexpected" or "changed". `name`: the name it has in
        the checkpoint. True: it is tolerated. Then what is new keeps its value, and what is gone is
        ignored.
        """
        if kind != "changed":
            name = text if name is None else name
        if kind != "changed" and self.tolerates(name or ""):
            self._passed.setdefault(kind, []).append(text)
            return True
        self._problems.setdefault(kind, []).append(text)
        self._first = self._first or name
        return False

    def tolerates(self, name: str) -> bool:
        """True if the user tolerates that this name is new or gone."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._tolerated)

    def lets_go(self, name: str) -> bool:
        """
        Like tolerates(), for a tensor that no rank takes. The pattern may also match a key of the
        state above it, or, for optimizer state, the name of the parameter.
        """
        names = [name]
        while "/" in names[-1]:
            names.append(names[-1].rpartition("/")[0])
        parameter = name.partition("/state/")[2]
        names += [parameter, parameter.rpartition("/")[0]] * bool(parameter)
        return any(map(self.tolerates, names))

    def pass_over(self, kind: str, text: str) -> None:
        """Notes a difference that is tolerated."""
        self._passed.setdefault(kind, []).append(text)

    def stays(self, text: str) -> None:
        """Notes something that is not in the step and keeps its value."""
        self._said.append(f"{text} is not in the checkpoint, and keeps its value")

    def say(self, text: str) -> None:
        """Adds a text to the warning."""
        self._said.append(text)

    def compare(self, live: Any, value: Any, path: Path) -> None:
        """Notes a value that is replaced by one of another type, or by a shorter list."""
        if live is None or value is None or (_is_number(live) and _is_number(value)):
            return
        if type(live) is not type(value):
            now, was = _a(type(value).__qualname__), _a(type(live).__qualname__)
            self._said.append(f"{path_text(path)} is {now} again; it was {was}")
        elif isinstance(live, (list, tuple)) and len(live) > len(value):
            self._said.append(f"{path_text(path)} has {len(value)} items again; it had {len(live)}")

    def raise_problems(self) -> None:
        """Raises MismatchError if there is a difference that is not tolerated."""
        if not self._problems:
            return
        lines = [f"{self.where} does not fit the state:", *_listed(self._problems)]
        lines.append(
            "  Nothing was changed. Build the state as it was when the step was saved, read what "
            "you need with libckpt.load(), or tolerate what is new or gone: "
            'resume(tolerate=["head.*"]), resume(strict=False).'
        )
        raise MismatchError(
            "\n".join(lines), step=self.where.step, rank=self.where.rank, tensor=self._first
        )

    def warn(self) -> None:
        """Warns of what was not restored as it is in the step."""
        lines = _listed(self._passed)
        if self._said:
            more = f"; and {len(self._said) - _LISTED} more" * (len(self._said) > _LISTED)
            lines.append("  " + "; ".join(self._said[:_LISTED]) + more)
        if lines:
            message = "\n".join([f"{self.where} is restored, with these differences:", *lines])
            logger.warning("%s", message)
            warnings.warn(message, CheckpointWarning, stacklevel=6)


def _listed(found: dict[str, list[str]]) -> list[str]:
    lines = []
    for kind, meaning in _KINDS:
        texts = found.get(kind, [])
        if texts:
            more = f"; and {len(texts) - _LISTED} more" * (len(texts) > _LISTED)
            lines.append(f"  {kind} ({meaning}): " + "; ".join(texts[:_LISTED]) + more)
    return lines


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiouAEIOU' else 'a'} {noun}"


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) or type(value).__module__ == "numpy"


def keeps_new_keys(live: dict[Any, Any]) -> bool:
    """True for a dict of settings. Counters and dicts with other keys are data, and replaced."""
    return type(live) in (dict, collections.OrderedDict) and all(type(key) is str for key in live)
