# SPDX-License-Identifier: Apache-2.0
"""Processes of a node that do something one after the other."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator

from ._engine import logger


def turn_file(path: str) -> str:
    """The file that is locked by whoever has the turn, of those that use a store at `path`."""
    import tempfile

    real = os.path.realpath(path).encode("utf-8", "surrogateescape")
    name = hashlib.sha256(real).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"libckpt-{os.getuid()}-{name}.turn")


@contextlib.contextmanager
def turn(path: str, wait: Callable[[], object]) -> Iterator[None]:
    """
    Waits for the turn, and has it. `wait` is called while another process has it: it waits a
    little, and may raise. Where the file cannot be made, nobody is waited for.
    """
    pid = os.getpid()
    name = ""
    held: int | None = None
    try:
        while True:
            try:
                name = name or turn_file(path)
                held = _try(name)
            except OSError as error:
                logger.debug("%s: nobody is waited for: %s", name or path, error)
                break
            if held is not None:
                break
            wait()
        yield
    finally:
        if held is not None and os.getpid() == pid:
            with contextlib.suppress(OSError):
                os.unlink(name)
            # A child that was forked meanwhile has the descriptor, too.
            fcntl.flock(held, fcntl.LOCK_UN)
            os.close(held)


def _try(name: str) -> int | None:
    """The descriptor of the locked file; None: another one has the lock."""
    number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it before may have removed it.
        if os.path.samestat(os.fstat(number), os.stat(name)):
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    return None
