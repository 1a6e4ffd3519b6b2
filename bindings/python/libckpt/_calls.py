# SPDX-License-Identifier: Apache-2.0
"""Helpers for calls of the C library: structs, texts, and errors as exceptions."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from . import _errors as errors
from ._native import ffi, lib

#: Codes below are the library's, the others are those of errno.
_LIBRARY_CODES = -10000

_CLASSES: dict[int, type[errors.CheckpointError]] = {
    lib.CKPT_EINTEGRITY: errors.IntegrityError,
    lib.CKPT_EINCOMPLETE: errors.IncompleteError,
    lib.CKPT_EFORMAT: errors.FormatError,
    lib.CKPT_EVERSION: errors.VersionError,
    lib.CKPT_ENOSTORE: errors.StoreNotFoundError,
    lib.CKPT_ENOSTEP: errors.StepNotFoundError,
    lib.CKPT_EINUSE: errors.InUseError,
    lib.CKPT_EFENCED: errors.FencedError,
    lib.CKPT_ENOTRESUMED: errors.NotResumedError,
    lib.CKPT_ESTEP: errors.StepError,
    lib.CKPT_ETORN: errors.TornSnapshotError,
    lib.CKPT_EABORTED: errors.AbortedError,
    lib.CKPT_ESKIPPED: errors.SkippedError,
    lib.CKPT_ECLOSED: errors.ClosedError,
    lib.CKPT_EFORKED: errors.ForkedError,
    lib.CKPT_ELEVEL: errors.LevelError,
    lib.CKPT_EMISMATCH: errors.MismatchError,
    lib.CKPT_EUNSUPPORTED: errors.UnsupportedError,
    lib.CKPT_EDEVICE: errors.DeviceError,
    lib.CKPT_EAUTH: errors.AuthError,
    lib.CKPT_ENETWORK: errors.NetworkError,
    lib.CKPT_EQUARANTINED: errors.QuarantinedError,
    lib.CKPT_EOTHERNODE: errors.OtherNodeError,
    lib.CKPT_EREPLICA: errors.ReplicaMismatchError,
    -errno.ETIMEDOUT: errors.DeadlineError,
    -errno.ECANCELED: errors.CancelledError,
}


def text(cdata: Any) -> str:
    """A C string; bytes that are not UTF-8 are replaced."""
    return ffi.string(cdata).decode("utf-8", "replace")


VERSION = text(lib.ckpt_version())


def new_struct(ctype: str) -> Any:
    """A zeroed struct that knows its size."""
    made = ffi.new(f"struct {ctype} *")
    made.size = ffi.sizeof(f"struct {ctype}")
    return made


def error_of(record: Any) -> errors.CheckpointError:
    """The exception for an error record."""
    code = int(record.code)
    system = int(record.sys_errno) or (-code if _LIBRARY_CODES < code < 0 else 0)
    return error_class(code)(
        text(record.message) or text(lib.ckpt_strerror(code)),
        code=code,
        errno=system or None,
        step=_known(record.step),
        rank=_known(record.rank),
        tier=text(record.tier) or None,
        tensor=text(record.tensor) or None,
        file=text(record.file) or None,
        offset=_known(record.offset),
        repaired=bool(record.repaired),
    )


def _known(number: Any) -> int | None:
    return int(number) if number >= 0 else None


def error_class(code: int) -> type[errors.CheckpointError]:
    """The class of exceptions for a code."""
    return _CLASSES.get(code, errors.StorageError)


def last_error(code: int, step: int | None = None) -> errors.CheckpointError:
    """The exception for the call that has just failed on this thread with `code`."""
    record = new_struct("ckpt_error")
    if lib.ckpt_last_error_record(record) != code:
        record = new_struct("ckpt_error")
        record.code = code
        record.step = record.rank = record.offset = -1
    if step is not None and record.step < 0:
        record.step = step
    return error_of(record)


def has_failed(code: int) -> bool:
    """
    For -ETIMEDOUT of the last call on this thread: True if the save or restore itself has failed
    with that code, and not the wait. The error record then has a step.
    """
    record = new_struct("ckpt_error")
    return bool(lib.ckpt_last_error_record(record) == code and record.step >= 0)


def raise_last(code: int, step: int | None = None) -> NoReturn:
    """Raises the exception of last_error()."""
    raise last_error(code, step)


def check(code: int) -> int:
    """Returns counts and zero. Raises for negative codes."""
    if code < 0:
        raise_last(code)
    return code
