# SPDX-License-Identifier: Apache-2.0
"""
Durable and verified checkpoints of training state, written in the background.

    with Checkpointer("/nvme/run42", state={"model": model, "optimizer": opt}, every=100) as ckpt:
        for step in range(ckpt.resume(), total_steps):
            train_one_step()
            ckpt.step(step + 1)
"""

from ._calls import VERSION
from ._catalog import StepInfo
from ._checkpointer import Checkpointer
from ._errors import (
    AbortedError,
    AuthError,
    CancelledError,
    CheckpointError,
    CheckpointWarning,
    ClosedError,
    DeadlineError,
    DeviceError,
    FencedError,
    ForkedError,
    FormatError,
    IncompleteError,
    IntegrityError,
    InUseError,
    LevelError,
    MismatchError,
    NetworkError,
    NotResumedError,
    OtherNodeError,
    QuarantinedError,
    ReplicaMismatchError,
    SkippedError,
    StepError,
    StepNotFoundError,
    StorageError,
    StoreNotFoundError,
    TornSnapshotError,
    UnsupportedError,
    UnsupportedStateError,
    VersionError,
    WaitTimeoutError,
)
from ._load import list_steps, load
from ._per_rank import PerRank
from ._preempt import Preempted
from ._rehearse import Rehearsed, rehearse
from ._save import Progress, Save, SaveInfo

__version__ = VERSION

__all__ = [
    "AbortedError",
    "AuthError",
    "CancelledError",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpointer",
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
    "PerRank",
    "Preempted",
    "Progress",
    "QuarantinedError",
    "Rehearsed",
    "ReplicaMismatchError",
    "Save",
    "SaveInfo",
    "SkippedError",
    "StepError",
    "StepInfo",
    "StepNotFoundError",
    "StorageError",
    "StoreNotFoundError",
    "TornSnapshotError",
    "UnsupportedError",
    "UnsupportedStateError",
    "VersionError",
    "WaitTimeoutError",
    "__version__",
    "list_steps",
    "load",
    "rehearse",
]

# So that they are printed as libckpt.X.
for _name in __all__:
    _value = globals()[_name]
    if isinstance(_value, type):
        _value.__module__ = "libckpt"
del _name, _value
