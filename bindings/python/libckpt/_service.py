# SPDX-License-Identifier: Apache-2.0
"""Service: a thread that runs an engine's requests to the job's key-value store."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any

from ._call_guard import Helper
from ._calls import check, new_struct
from ._kvstore import Table, first_line
from ._log import logger
from ._native import ffi, lib

#: Seconds between two attempts to connect again.
_RECONNECT = 10.0
#: Seconds to wait for the thread at the end. It is abandoned if the store hangs.
_FAREWELL = 2.0


class Service:
    """The thread and its queue. Created before the engine and closed after it."""

    def __init__(self, table: Table, path: str) -> None:
        self.ptr: Any = None
        ret = ffi.new("struct ckpt_exchange_server **")
        check(lib.ckpt_exchange_server_new(ret))
        self.ptr = ret[0]
        self._thread = Helper(
            target=_serve, args=(self.ptr, table, path), name="libckpt-ranks", daemon=True
        )
        self._thread.start()

    def __del__(self) -> None:
        # No engine was opened with it.
        if getattr(self, "ptr", None) is not None:
            self.close()

    def close(self) -> None:
        """To be called when the engine has closed, or could not be opened."""
        ptr, self.ptr = self.ptr, None
        if ptr is None:
            return
        lib.ckpt_exchange_server_stop(ptr)
        if self._thread is threading.current_thread():
            return
        if self._thread.ident is not None:  # else no thread could be started
            self._thread.join(_FAREWELL)
        # A thread that hangs in the store still uses the server.
        if not self._thread.is_alive():
            lib.ckpt_exchange_server_free(ptr)


class _Link:
    """The connection. Logs once when it breaks, and once when it works again."""

    def __init__(self, table: Table, path: str) -> None:
        self._table = table
        self._path = path
        self._broken = False
        self._next_try = 0.0

    def do(self, request: Any) -> tuple[int, str, list[bytes | None]]:
        """Runs a request. Returns its result, the reason and the values."""
        keys = [f"libckpt/{ffi.string(request.keys[i]).decode()}" for i in range(request.count)]
        try:
            self._mend()
            values = self._ask(request, keys)
        except Exception as error:  # The engine gets the error.
            self._failed(error)
            return lib.CKPT_ENETWORK, first_line(error), []
        if self._broken:
            self._broken = False
            logger.info("%s: the job's key-value store is back", self._path)
        if values is None:
            return -errno.EEXIST, "another value is there: was this session used before?", []
        return 0, "", values

    def _ask(self, request: Any, keys: list[str]) -> list[bytes | None] | None:
        if request.verb == lib.CKPT_EXCHANGE_GET:
            return self._table.get(keys)
        put = request.verb == lib.CKPT_EXCHANGE_PUT
        well = True
        for index, key in enumerate(keys):
            if put:
                value = bytes(ffi.buffer(request.values[index], request.lengths[index]))
                well = self._table.put(key, value) and well
            else:
                self._table.drop(key)
        return [] if well else None

    def _mend(self) -> None:
        now = time.monotonic()
        if self._broken and now >= self._next_try:
            self._next_try = now + _RECONNECT
            self._table = self._table.again() or self._table

    def _failed(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        self._next_try = time.monotonic()
        logger.warning(
            "%s: the job's key-value store does not answer, so no step can be committed: %s",
            self._path,
            first_line(error),
        )


def _serve(ptr: Any, table: Table, path: str) -> None:
    """The thread. Sleeps in C until there is a request, or the engine has closed."""
    link = _Link(table, path)
    request = new_struct("ckpt_exchange_request")
    while lib.ckpt_exchange_next(ptr, lib.CKPT_FOREVER, request) == 0:
        if _reply(ptr, request, *link.do(request)) < 0:
            # The engine refuses the answer: a value was not written by libckpt.
            _reply(ptr, request, -errno.EIO, "the job's key-value store has foreign values", [])


def _reply(ptr: Any, request: Any, result: int, reason: str, values: list[bytes | None]) -> int:
    answer = new_struct("ckpt_exchange_answer")
    answer.id = request.id
    answer.result = result
    kept = [ffi.NULL if value is None else ffi.from_buffer("char[]", value) for value in values]
    pointers = ffi.new("void *[]", kept)
    lengths = ffi.new("uint64_t[]", [0 if value is None else len(value) for value in values])
    text = ffi.new("char[]", reason.encode("utf-8", "replace")[:200])
    answer.values = pointers
    answer.lengths = lengths
    if result < 0:
        answer.reason = text
    code = int(lib.ckpt_exchange_reply(ptr, answer))
    # Nobody waits for it any more.
    return 0 if code in (-errno.ETIMEDOUT, -errno.ENOENT) else code
