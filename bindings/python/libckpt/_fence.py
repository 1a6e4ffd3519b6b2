# SPDX-License-Identifier: Apache-2.0
"""
The fence: before an optimizer changes tensors, background copies of them must be complete.

PyTorch calls a step pre-hook of every optimizer in the state at the start of its step().
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


#: Methods of optimizers that change parameters between steps.
_SWITCHES = ("train", "eval")


def fences_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer] | None:
    """
    The optimizers whose hooks run before this one changes anything. None: unknown, because its
    step() does not call the hooks of torch.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("accelerate."):  # it only calls the optimizer inside
        inner = getattr(optimizer, "optimizer", None)
        return None if inner is None or inner is optimizer else fences_of(inner)
    if "_optimizer_step_pre_hooks" not in vars(optimizer):
        return None
    # Set by torch.optim.Optimizer.__init__() on step().
    if not getattr(kind.step, "hooked", False):
        return None
    switches = _switches(optimizer)
    # A method in the object would be copied with it.
    if switches and _copies_all(kind):
        return None
    return [optimizer] if all(_can_guard(optimizer, name) for name in switches) else None


def _switches(optimizer: torch.optim.Optimizer) -> list[str]:
    return [name for name in _SWITCHES if callable(getattr(type(optimizer), name, None))]


def _can_guard(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """True for a method of the class, or one that another Checkpointer has replaced."""
    if name in vars(optimizer):
        return isinstance(vars(optimizer)[name], _Switch)
    method = getattr(optimizer, name)
    return isinstance(method, types.MethodType) and method.__self__ is optimizer


class _Switch:
    """Replaces a method of an optimizer. Runs the fences of Checkpointers, and then the method."""

    def __init__(self, method: types.MethodType) -> None:
        self._method = weakref.WeakMethod(method)
        self.runs: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for run in list(self.runs):
            call = run()
            if call is not None:
                call()
        method = self._method()
        return None if method is None else method(*args, **kwargs)


def _copies_all(kind: type) -> bool:
    import torch

    own: Any = getattr(kind, "__getstate__", None)
    return own is not torch.optim.Optimizer.__getstate__


class Fences:
    """The hooks of one Checkpointer. They keep neither it nor the optimizers alive."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = weakref.WeakMethod(run)
        self._hooks: dict[int, tuple[weakref.ref[torch.optim.Optimizer], Any]] = {}
        self._switches: list[tuple[weakref.ref[torch.optim.Optimizer], str, _Switch]] = []

    def guard(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Adds hooks to optimizers that have none yet."""
        for optimizer in optimizers:
            known = self._hooks.get(id(optimizer))
            if known is None or known[0]() is not optimizer:
                handle = optimizer.register_step_pre_hook(_hook(self._run))
                self._hooks[id(optimizer)] = (weakref.ref(optimizer), handle)
                for name in _switches(optimizer):
                    self._guard_switch(optimizer, name)

    def _guard_switch(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        if not _can_guard(optimizer, name):  # it has got one of its own since
            return
        switch = vars(optimizer).get(name)
        if switch is None:
            switch = _Switch(getattr(optimizer, name))
            setattr(optimizer, name, switch)
        switch.runs.append(self._run)
        self._switches.append((weakref.ref(optimizer), name, switch))

    def remove(self) -> None:
        """Removes all hooks."""
        for _, handle in list(self._hooks.values()):
            handle.remove()
        self._hooks.clear()
        for known, name, switch in self._switches:
            optimizer = known()
            switch.runs[:] = [run for run in switch.runs if run is not self._run]
            if switch.runs or optimizer is None:
                continue
            if vars(optimizer).get(name) is switch:
                delattr(optimizer, name)
        self._switches.clear()


def _hook(run: weakref.WeakMethod[Callable[[], None]]) -> Callable[..., None]:
    def libckpt_fence(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        call = run()
        if call is not None:
            call()

    return libckpt_fence
