# SPDX-License-Identifier: Apache-2.0
"""
The fence: before an optimizer changes anything, what is copied behind the loop must be copied.

PyTorch calls a step pre-hook of every optimizer in the state at the start of its step().
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


#: Methods that change parameters between the steps, of optimizers that have them.
_SWITCHES = ("train", "eval")


def fences_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer] | None:
    """
    The optimizers whose hooks run before this one changes anything. None: that is not known of it,
    because its step() is one that torch has not been told of.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("accelerate."):  # it only passes on
        inner = getattr(optimizer, "optimizer", None)
        return None if inner is None or inner is optimizer else fences_of(inner)
    if "_optimizer_step_pre_hooks" not in vars(optimizer):
        return None
    # What torch.optim.Optimizer.__init__() makes of a step().
    if not getattr(kind.step, "hooked", False):
        return None
    switches = _switches(optimizer)
    # A method that is put into the object must not go with copies of it.
    if switches and _copies_all(kind):
        return None
    return [optimizer] if all(_can_guard(optimizer, name) for name in switches) else None


def _switches(optimizer: torch.optim.Optimizer) -> list[str]:
    return [name for name in _SWITCHES if callable(getattr(type(optimizer), name, None))]


def _can_guard(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """True for a method of the class, where only another checkpointer may have put one before."""
    if name in vars(optimizer):
        return isinstance(vars(optimizer)[name], _Switch)
    method = getattr(optimizer, name)
    return isinstance(method, types.MethodType) and method.__self__ is optimizer


class _Switch:
    """Stands in an optimizer for a method of it, and runs the fences of checkpointers before."""

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
    """The hooks of one checkpointer. They hold neither it nor the optimizers alive."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = weakref.WeakMethod(run)
        self._hooks: dict[int, tuple[weakref.ref[torch.optim.Optimizer], Any]] = {}
        self._switches: list[tuple[weakref.ref[torch.optim.Optimizer], str, _Switch]] = []

    def guard(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Puts a hook on those that have none yet."""
        for optimizer in optimizers:
            known = self._hooks.get(id(optimizer))
            if known is None or known[0]() is not optimizer:
                handle = optimizer.register_step_pre_hook(_hook(self._run))
                self._hooks[id(optimizer)] = (weakref.ref(optimizer), handle)
                for name in _switches(optimizer):
                    self._guard_switch(optimizer, name)

    def _guard_switch(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        if not _can_guard(optimizer, name):  # it has been given one since
            return
        switch = vars(optimizer).get(name)
        if switch is None:
            switch = _Switch(getattr(optimizer, name))
            setattr(optimizer, name, switch)
        switch.runs.append(self._run)
        self._switches.append((weakref.ref(optimizer), name, switch))

    def remove(self) -> None:
        """Takes all hooks off."""
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
