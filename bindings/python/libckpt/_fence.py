# SPDX-License-Identifier: Apache-2.0
"""
The fence: before an optimizer changes anything, what is copied behind the loop must be copied.

PyTorch calls a step pre-hook of every optimizer in the state at the start of its step().
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Fences:
    """The hooks of one checkpointer. They hold neither it nor the optimizers alive."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = weakref.WeakMethod(run)
        self._hooks: dict[int, tuple[weakref.ref[torch.optim.Optimizer], Any]] = {}

    def guard(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Puts a hook on those that have none yet."""
        for optimizer in optimizers:
            known = self._hooks.get(id(optimizer))
            if known is None or known[0]() is not optimizer:
                handle = optimizer.register_step_pre_hook(_hook(self._run))
                self._hooks[id(optimizer)] = (weakref.ref(optimizer), handle)

    def remove(self) -> None:
        """Takes all hooks off."""
        for _, handle in list(self._hooks.values()):
            handle.remove()
        self._hooks.clear()


def _hook(run: weakref.WeakMethod[Callable[[], None]]) -> Callable[..., None]:
    def libckpt_fence(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        call = run()
        if call is not None:
            call()

    return libckpt_fence
