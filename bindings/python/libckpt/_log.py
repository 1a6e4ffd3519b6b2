# SPDX-License-Identifier: Apache-2.0
"""The log of the package. It also has the messages of the C library."""

from __future__ import annotations

import errno
import logging
import threading
from typing import Any

from ._calls import new_struct, text
from ._native import lib

logger = logging.getLogger("libckpt")
logger.addHandler(logging.NullHandler())

_LOG_LEVELS = {
    lib.CKPT_LOG_ERROR: logging.ERROR,
    lib.CKPT_LOG_WARN: logging.WARNING,
    lib.CKPT_LOG_INFO: logging.INFO,
    lib.CKPT_LOG_DEBUG: logging.DEBUG,
}


def _emit(record: Any) -> None:
    if record.dropped:
        logger.warning("%d log lines were lost because nobody read them", record.dropped)
    logger.log(_LOG_LEVELS.get(record.level, logging.INFO), "%s", text(record.message))


def forward_forever(ptr: Any, stop: threading.Event) -> None:
    """The log thread. Sleeps in C until there is a message, or the log is stopped."""
    record = new_struct("ckpt_log_record")
    while not stop.is_set():
        code = lib.ckpt_engine_log(ptr, lib.CKPT_FOREVER, record)
        if code == 0:
            _emit(record)
        elif code != -errno.ETIMEDOUT:
            return


def forward(ptr: Any, *, hushed: bool = False) -> None:
    """Forwards the waiting messages. `hushed`: at level DEBUG."""
    record = new_struct("ckpt_log_record")
    while lib.ckpt_engine_log(ptr, 0, record) == 0:
        if hushed:
            logger.debug("%s", text(record.message))
        else:
            _emit(record)
