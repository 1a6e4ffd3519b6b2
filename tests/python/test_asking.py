# SPDX-License-Identifier: Apache-2.0
"""Exceptions out of code of the user, in a restore: they go through, and say where in the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Says
from test_states_parts import Coded, notes
from torch import nn

import libckpt


class BadOptimizer(torch.optim.SGD):
    """Raises in one of its methods, from a moment on."""

    bad = ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.bad == "__setstate__":
            raise ValueError("mine")


class BadOwn(BadOptimizer):
    """The same, with a say of its own."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        if self.bad == "state_dict":
            raise ValueError("mine")
        return super().state_dict()


class Uneasy(Coded):
    """Wraps tensors, and raises when it is taken apart or put together."""

    bad = ""

    def __tensor_flatten__(self) -> Any:
        if Uneasy.bad == "__tensor_flatten__":
            raise ValueError("mine")
        return super().__tensor_flatten__()

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        if Uneasy.bad == "__tensor_unflatten__":
            raise ValueError("mine")
        return super().__tensor_unflatten__(inner, context, size, stride)


class Pickled:
    """Raises when it is unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("mine")

    def __getstate__(self) -> Any:
        return {"a": 1}


def of_optimizer(kind: Any) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    return {"m": model, "o": [kind(model.parameters(), lr=0.1)]}


@pytest.mark.parametrize(
    ("make", "what", "where"),
    [
        (lambda: of_optimizer(BadOptimizer), "__setstate__", "in __setstate__() of state['o'][0]"),
        (lambda: of_optimizer(BadOwn), "state_dict", "in state_dict() of state['o'][0]"),
        (
            lambda: {"x": [Uneasy(torch.ones(4, dtype=torch.uint8), torch.ones(1), 4)]},
            "__tensor_flatten__",
            "in __tensor_flatten__() of state['x'][0]",
        ),
        (
            lambda: {"x": Says(Uneasy(torch.ones(4, dtype=torch.uint8), torch.ones(1), 4))},
            "__tensor_unflatten__",
            "in what is restored to state['x']",
        ),
        (lambda: {"x": Pickled()}, "", "in what is restored to state['x']"),
        (lambda: {"x": Says([Pickled()])}, "", "in what is restored to state['x']"),
    ],
    ids=["setstate", "state_dict", "flatten", "unflatten", "pickled", "pickled in an object"],
)
def test_exceptions_in_a_restore_say_where(
    opened: Any, monkeypatch: pytest.MonkeyPatch, make: Any, what: str, where: str
) -> None:
    """And they go through as they are: no older step is taken in its place."""
    saved, live = make(), make()
    with opened(saved, allow_pickle=True) as ckpt:
        ckpt.save(1).wait()
        ckpt.save(2).wait()
    ckpt = opened(live, allow_pickle=True)
    read_into = ckpt._read_into

    def break_now(*args: Any) -> None:
        for kind in (BadOptimizer, Uneasy):
            monkeypatch.setattr(kind, "bad", what)
        read_into(*args)

    monkeypatch.setattr(ckpt, "_read_into", break_now)
    with pytest.raises((ValueError, libckpt.UnsupportedError), match="mine") as caught:
        ckpt.resume()
    assert not isinstance(caught.value, libckpt.FormatError)
    assert notes(caught.value) in ([f"libckpt: {where}"], [""])


def test_exceptions_in_load_say_where(opened: Any, store: Path) -> None:
    with opened({"a": 1, "x": [Pickled()]}, allow_pickle=True) as ckpt:
        ckpt.save(1).wait()
    with pytest.raises(ValueError, match="mine") as caught:
        libckpt.load(store, allow_pickle=True)
    assert notes(caught.value) in (["libckpt: in what is restored to state['x']"], [""])
