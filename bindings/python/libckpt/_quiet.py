# SPDX-License-Identifier: Apache-2.0
"""
Protects other ranks and GPUs from user code that a rehearsal calls: operations that would reach
them are refused.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

#: Namespaces of torch operations that communicate with other ranks.
_TALK = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "symm_mem")


class RefusedError(RuntimeError):
    """An operation was refused."""


class Quiet:
    """A context manager. `why`: what was refused; None: nothing."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._mode: Any = None

    def __enter__(self) -> Quiet:
        if "torch" in sys.modules:
            self._mode = _mode(self)
            self._mode.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mode is not None:
            self._mode.__exit__(kind, error, trace)

    def refuse(self, why: str) -> RefusedError:
        """Notes and refuses an operation."""
        self.why = why
        return RefusedError(f"not in a rehearsal: {why}")


def _mode(quiet: Quiet) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Sees every operation of this thread."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            if getattr(func, "namespace", "") in _TALK:
                raise quiet.refuse("it talks to other ranks")
            for value in tree_flatten((args, given))[0]:
                device = value if isinstance(value, torch.device) else None
                if isinstance(value, torch.Tensor):
                    device = value.device
                if device is not None and device.type not in ("cpu", "meta"):
                    raise quiet.refuse(f"it works on the device {device}")
            return func(*args, **given)

    return Mode()  # type: ignore[no-untyped-call]
