# SPDX-License-Identifier: Apache-2.0
"""
Exceptions out of code of the user that is called for a save or a restore: its state_dict(), what
unpickles its objects. They go through as they are, with a note that says where in the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._json_nodes import Path, path_text


def is_of_user(error: BaseException) -> bool:
    """True for an exception that came out of code of the user."""
    return getattr(error, "_libckpt_asked", False)


def note(error: BaseException, text: str) -> None:
    """Adds a note, from Python 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(f"libckpt: {text}")


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Around a call of code of the user; placed() knows for which place in the state."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError):
            error._libckpt_asked = True  # type: ignore[attr-defined]
        raise


@contextlib.contextmanager
def asking(place: Path | str, method: str) -> Iterator[None]:
    """The same, around a method of what stands at `place`."""
    try:
        with calling():
            yield
    except Exception as error:
        note(error, f"in {method}() of {place if isinstance(place, str) else path_text(place)}")
        raise


@contextlib.contextmanager
def placed(path: Path) -> Iterator[None]:
    """An exception out of code of the user in what is decoded for `path` says so."""
    try:
        yield
    except Exception as error:
        if is_of_user(error):
            note(error, f"in what is restored to {path_text(path)}")
        raise
