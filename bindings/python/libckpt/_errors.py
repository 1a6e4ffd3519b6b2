# SPDX-License-Identifier: Apache-2.0
"""The exceptions of libckpt. All of them derive from CheckpointError."""

from __future__ import annotations

import errno
import os
from typing import Any

__all__ = [
    "AbortedError",
    "AuthError",
    "CancelledError",
    "CheckpointError",
    "CheckpointWarning",
    "ClosedError",
    "DeadlineError",
    "DeviceError",
    "FencedError",
    "ForkedError",
    "FormatError",
    "InUseError",
    "IncompleteError",
    "IntegrityError",
    "LevelError",
    "MismatchError",
    "NetworkError",
    "NotResumedError",
    "OtherNodeError",
    "QuarantinedError",
    "ReplicaMismatchError",
    "SkippedError",
    "StepError",
    "StepNotFoundError",
    "StorageError",
    "StoreNotFoundError",
    "TornSnapshotError",
    "UnsupportedError",
    "UnsupportedStateError",
    "VersionError",
    "WaitTimeoutError",
]


class CheckpointWarning(UserWarning):
    """A warning of libckpt, for example of a failed save after which the training goes on."""


class CheckpointError(Exception):
    """
    Base of all errors of libckpt. Fields that do not apply are None.

    message: the text. code: the number of the C library, 0 if none. errno: of the system. step,
    rank, tensor, file: where it happened. tier: "memory", "local" or "remote". offset: in the file,
    in bytes. repaired: see below.
    """

    #: A later save may succeed, so the `on_error` policy applies. All other errors always raise.
    transient = False

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        errno: int | None = None,
        step: int | None = None,
        rank: int | None = None,
        tier: str | None = None,
        tensor: str | None = None,
        file: str | None = None,
        offset: int | None = None,
        repaired: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.errno = errno
        self.step = step
        self.rank = rank
        self.tier = tier
        self.tensor = tensor
        self.file = file
        self.offset = offset
        #: the damage was repaired from the remote store, so that the call may be repeated. If many
        #: ranks share a store, only rank 0 knows.
        self.repaired = repaired

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (
            "code",
            "errno",
            "step",
            "rank",
            "tier",
            "tensor",
            "file",
            "offset",
            "repaired",
        )
        return _rebuild, (type(self), self.message, {name: getattr(self, name) for name in fields})


def _rebuild(cls: type[CheckpointError], message: str, fields: dict[str, Any]) -> CheckpointError:
    return cls(message, **fields)


class StorageError(CheckpointError, OSError):
    """A system call failed: disk full, no permission, I/O error. `errno` says which."""

    transient = True

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.strerror = os.strerror(self.errno) if self.errno else None
        self.filename = self.file


class WaitTimeoutError(CheckpointError, TimeoutError):
    """The `timeout` of a call has expired. The operation itself continues."""

    transient = True

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.strerror = os.strerror(self.errno) if self.errno else None
        self.filename = self.file


def timed_out(message: str, **fields: Any) -> WaitTimeoutError:
    """A WaitTimeoutError with its number."""
    number = errno.ETIMEDOUT
    return WaitTimeoutError(message, code=-number, errno=number, **fields)


class DeadlineError(CheckpointError):
    """The save was not durable within `save_timeout` and was given up."""

    transient = True


class AbortedError(CheckpointError):
    """The save of this step was aborted, for all ranks. It is not tried again."""

    transient = True


class CancelledError(CheckpointError):
    """The save or restore was cancelled."""

    transient = True


class DeviceError(CheckpointError):
    """An accelerator failed."""

    transient = True


class NetworkError(CheckpointError):
    """The network or the server failed."""

    transient = True


class AuthError(CheckpointError):
    """The remote store refused the credentials, or there are none."""

    transient = True


class IntegrityError(CheckpointError):
    """Data differs from its digest."""


class QuarantinedError(IntegrityError):
    """The step has failed verification before."""


class IncompleteError(CheckpointError):
    """A file of a committed step is missing or too short."""


class OtherNodeError(CheckpointError):
    """The data is in the store of another node."""


class FormatError(CheckpointError):
    """A file is malformed."""


class VersionError(CheckpointError):
    """The store was written in a newer version of the format."""


class StoreNotFoundError(CheckpointError):
    """No store exists at this path."""


class StepNotFoundError(CheckpointError):
    """The lineage has no such step."""


class InUseError(CheckpointError):
    """Another process has the store open, or copies the same step to the same bucket."""


class FencedError(CheckpointError):
    """A later start of the job has taken over the store. This process must not write to it."""


class NotResumedError(CheckpointError):
    """The store has committed steps, and neither resume() nor new_start was used."""


class StepError(CheckpointError):
    """The step was saved or aborted before, or is not after the last one."""


class TornSnapshotError(CheckpointError):
    """A tensor was changed before its copy was complete. The save has failed."""

    transient = True


class SkippedError(CheckpointError):
    """The save was skipped, because the last one still ran: busy="skip"."""


class ClosedError(CheckpointError):
    """The Checkpointer is closed."""


class ForkedError(CheckpointError):
    """The object belongs to the parent process and cannot be used in a forked child."""


class LevelError(CheckpointError):
    """This level is not configured."""


class MismatchError(CheckpointError):
    """Names, types or shapes differ: between step and state, or between ranks."""


class ReplicaMismatchError(CheckpointError):
    """Ranks hold different bytes of a tensor that must be equal. The step was not committed."""


class UnsupportedError(CheckpointError):
    """This build or this machine does not support it."""


class UnsupportedStateError(CheckpointError, TypeError):
    """The state has a value that cannot be saved. The message says where."""
