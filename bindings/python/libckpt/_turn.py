# SPDX-License-Identifier: Apache-2.0
"""turn(): lets processes of a node, and threads of a process, do something one after another."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator

from ._log import logger

#: A directory of this node alone. The directory for temporary files may be shared by all nodes,
#: which would all poll it. Also, a child that is forked while a thread is in tempfile.gettempdir()
#: could never call that function.
_FOLDER = "/dev/shm"  # noqa: S108

#: Held by the thread of this process that has the turn, for any store.
_of_process = [threading.Lock()]


def _renew() -> None:
    _of_process[0] = threading.Lock()


# The thread that has it does not exist in a forked child.
os.register_at_fork(after_in_child=_renew)


def turn_file(path: str) -> str:
    """The lock file for the store at `path`."""
    real = os.path.realpath(path).encode("utf-8", "surrogateescape")
    name = hashlib.sha256(real).hexdigest()[:16]
    return os.path.join(_FOLDER, f"libckpt-{os.getuid()}-{name}.turn")


@contextlib.contextmanager
def turn(path: str, wait: Callable[[], object]) -> Iterator[None]:
    """
    A context manager that waits for the turn and has it in the block. At a time, one thread of a
    process has it, for any store, and one of the processes that use the store at `path`. `wait` is
    called repeatedly while another one has it. It pauses, and may raise. If the lock file cannot be
    created, other processes are ignored.
    """
    lock = _of_process[0]
    while not lock.acquire(blocking=False):
        wait()
    try:
        with _turn_of_store(path, wait):
            yield
    finally:
        lock.release()


@contextlib.contextmanager
def _turn_of_store(path: str, wait: Callable[[], object]) -> Iterator[None]:
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
            # A child that was forked meanwhile has the descriptor, too, so unlock explicitly.
            fcntl.flock(held, fcntl.LOCK_UN)
            os.close(held)


def _try(name: str) -> int | None:
    """The descriptor of the locked file; None: another process has the lock."""
    number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The former owner may have removed the file.
        if os.path.samestat(os.fstat(number), os.stat(name)):
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    return None
