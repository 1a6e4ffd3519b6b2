# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Every one is a CheckpointError."""

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
    """A save failed and the training goes on."""


class CheckpointError(Exception):
    """Base of all errors of libckpt. Fields that do not apply are None."""

    #: Failures of this kind may pass: the `on_error` policy decides. All others always raise.
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
        #: what was found damaged is whole again, with the remote store: it may be asked for again
        #: (of many ranks that share a store rank 0 alone knows)
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
    """The system refused: disk full, no permission, I/O error. `errno` says which."""

    transient = True

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.strerror = os.strerror(self.errno) if self.errno else None
        self.filename = self.file


class WaitTimeoutError(CheckpointError, TimeoutError):
    """The `timeout` of a call passed. What was waited for goes on."""

    transient = True

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.strerror = os.strerror(self.errno) if self.errno else None
        self.filename = self.file


def timed_out(message: str, **fields: Any) -> WaitTimeoutError:
    """One of a wait whose time is up."""
    number = errno.ETIMEDOUT
    return WaitTimeoutError(message, code=-number, errno=number, **fields)


class DeadlineError(CheckpointError):
    """The save was not durable within `save_timeout` and was given up. Waiting again is no use."""

    transient = True


class AbortedError(CheckpointError):
    """The attempt at this step ended in an abort record; the step is not tried again."""

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
    """Not authorised."""

    transient = True


class IntegrityError(CheckpointError):
    """Bytes differ from their digest."""


class QuarantinedError(IntegrityError):
    """The step failed verification before."""


class IncompleteError(CheckpointError):
    """A file of a committed step is missing here, or short."""


class OtherNodeError(CheckpointError):
    """What is asked for lies in the store of another node."""


class FormatError(CheckpointError):
    """A file is malformed."""


class VersionError(CheckpointError):
    """Written by a newer version of the format."""


class StoreNotFoundError(CheckpointError):
    """There is no store at this path."""


class StepNotFoundError(CheckpointError):
    """The lineage holds no such step."""


class InUseError(CheckpointError):
    """A live process holds the store, or sends the same step to the same bucket already."""


class FencedError(CheckpointError):
    """A later generation has taken the store over: this process must not write any more."""


class NotResumedError(CheckpointError):
    """The store has commits and was neither resumed nor started anew."""


class StepError(CheckpointError):
    """The step was decided already, or is not after the last one."""


class TornSnapshotError(CheckpointError):
    """Something changed a tensor before its copy was complete; the save was failed."""

    transient = True


class SkippedError(CheckpointError):
    """The last save still ran, and busy="skip" was asked for."""


class ClosedError(CheckpointError):
    """The checkpointer is closed."""


class ForkedError(CheckpointError):
    """The handle belongs to the parent process."""


class LevelError(CheckpointError):
    """This level is not configured."""


class MismatchError(CheckpointError):
    """Names, types or shapes are not what the checkpoint holds."""


class ReplicaMismatchError(CheckpointError):
    """Ranks hold different bytes of what is one tensor to all of them; the step is of no rank."""


class UnsupportedError(CheckpointError):
    """This build or machine cannot do it."""


class UnsupportedStateError(CheckpointError, TypeError):
    """The state holds something that a checkpoint cannot express. The message says where."""
