# SPDX-License-Identifier: Apache-2.0
"""
Exceptions of user code that is called by a save or a restore: state_dict(), load_state_dict(),
unpickling. They are passed on unchanged, with a note that says where in the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._json_nodes import Path, path_text


def is_of_user(error: BaseException) -> bool:
    """True for an exception that user code has raised."""
    return getattr(error, "_libckpt_asked", False)


def note(error: BaseException, text: str) -> None:
    """Adds a note to an exception (Python 3.11 and newer)."""
    if hasattr(error, "add_note"):
        error.add_note(f"libckpt: {text}")


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """For a call of user code. Marks its exceptions, for is_of_user()."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError):
            error._libckpt_asked = True  # type: ignore[attr-defined]
        raise


@contextlib.contextmanager
def asking(place: Path | str, method: str) -> Iterator[None]:
    """For a call of a method of the object at `place`. Marks exceptions, and adds a note."""
    try:
        with calling():
            yield
    except Exception as error:
        note(error, f"in {method}() of {place if isinstance(place, str) else path_text(place)}")
        raise


@contextlib.contextmanager
def placed(path: Path) -> Iterator[None]:
    """For decoding the value at `path`. Adds a note to exceptions of user code."""
    try:
        yield
    except Exception as error:
        if is_of_user(error):
            note(error, f"in what is restored to {path_text(path)}")
        raise
