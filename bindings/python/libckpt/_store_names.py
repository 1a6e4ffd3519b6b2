# SPDX-License-Identifier: Apache-2.0
"""Names of stores and steps, as users give them."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

from ._errors import UnsupportedError
from ._native import lib

Step = int | str


def store_name(store: str | os.PathLike[str]) -> str:
    """A store that is read: a directory (~ is home), or what the library takes for one (s3://, file://)."""
    path = os.fspath(store)
    if not isinstance(path, str):
        raise TypeError(f"a store is named by a str or PathLike, not {type(store).__qualname__}")
    if not path:
        raise ValueError("the path of a store is empty: name a directory")
    if "\0" in path:
        raise ValueError(f"{path!r}: no path has a NUL in it")
    return os.path.expanduser(path)


def store_path(store: str | os.PathLike[str]) -> str:
    """The directory of a store to write."""
    path = store_name(store)
    # Only the scheme is shown, because the rest may have a password.
    if found := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise UnsupportedError(
            f"{found[0]} is no directory, and a Checkpointer saves into a directory of this "
            "machine: give its path. `ckpt-restore DIRECTORY s3://BUCKET/PREFIX` copies what was "
            "saved into a bucket, from which load() reads",
            code=lib.CKPT_EUNSUPPORTED,
        )
    return path


def remote_name(remote: str | os.PathLike[str] | None) -> str:
    """The name of a remote store, for the library; empty: none."""
    if remote is None:
        return ""
    name = store_name(remote)
    # A Path is a directory, whatever its name. It is absolute, because the directory may change.
    if isinstance(remote, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", name):
        return name
    return pathlib.Path(name).absolute().as_uri()


def parse_step(step: Step) -> int:
    """A step for the library, from a number, "latest" or "latest~k"."""
    if isinstance(step, str):
        found = re.fullmatch(r"latest(?:~(\d{1,9}))?", step)
        if found is None:
            raise ValueError(f'step {step!r}: it must be a number, "latest" or "latest~1"')
        return int(lib.CKPT_STEP_LATEST) - int(found[1] or 0)
    return check_step(step)


def check_step(step: Any) -> int:
    """Checks the number of a step."""
    if isinstance(step, bool) or not hasattr(type(step), "__index__"):
        raise TypeError(f"a step is an int, not {type(step).__qualname__}")
    number = step.__index__()
    if not 0 <= number <= lib.CKPT_STEP_MAX:
        raise ValueError(f"step {number}: it must be from 0 to {lib.CKPT_STEP_MAX}")
    return int(number)
