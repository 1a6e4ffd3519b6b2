# SPDX-License-Identifier: Apache-2.0
"""Tensors to the bit, wherever they are, and states that take a while to copy."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from typing import Any

import torch
from torch import nn


def finished(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. On a machine with a GPU there is nothing of the other tests, which have this, too."""
    words = [str(word) for word in command]
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=300, check=False, **options
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"hang limit: {error}") from None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, where it is."""
    flat = local(tensor.detach()).resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(torch.uint8)


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal in type, place and bits, all the way down."""
    assert type(a) is type(b), f"{where}: {type(a)} {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, f"{where}: {a.dtype} {b.dtype}"
        assert a.shape == b.shape, f"{where}: {a.shape} {b.shape}"
        assert a.device == b.device, f"{where}: {a.device} {b.device}"
        assert torch.equal(raw(a), raw(b)), f"{where}: the bits differ"
    elif isinstance(a, dict):
        assert set(a) == set(b), f"{where}: {list(a)} {list(b)}"
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{index}]")
    else:
        assert a == b, f"{where}: {a} {b}"


def digest(value: Any) -> str:
    """Of everything in a nested value; tensors by their bits."""
    found = hashlib.sha256()

    def walk(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            found.update(f"{item.dtype}{tuple(item.shape)}".encode())
            here = raw(item).cpu()  # torch may be here without NumPy
            found.update(ctypes.string_at(here.data_ptr(), here.nbytes))
        elif isinstance(item, dict):
            for key, inner in item.items():
                found.update(repr(key).encode())
                walk(inner)
        elif isinstance(item, (list, tuple)):
            for inner in item:
                walk(inner)
        else:
            found.update(repr(item).encode())

    walk(value)
    return found.hexdigest()


def big(device: str, **options: Any) -> dict[str, Any]:
    """A model that takes a while to copy, with its optimizer, after one step. On a GPU 0.4 GB."""
    width, depth = (4096, 2) if device.startswith("cuda") else (1000, 2)
    torch.manual_seed(7)
    model = nn.Sequential()
    for _ in range(depth):
        model.append(nn.Linear(width, width))
        model.append(nn.BatchNorm1d(width))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def clear(tensor: torch.Tensor) -> None:
    """Zeros, of whatever dtype: a GPU cannot fill all of them. Few are stored otherwise than in rows."""
    flat = tensor if tensor.dim() else tensor.reshape(1)
    if flat.stride(-1) != 1 and flat.shape[-1] > 1:
        flat.zero_()
    else:
        flat.view(torch.uint8).zero_()


def width_of(state: dict[str, Any]) -> int:
    return int(state["model"][0].in_features)


def contents(state: dict[str, Any]) -> dict[str, Any]:
    """Copies, made where the tensors are and in the order of their stream."""
    names = [name for name, _ in state["model"].named_parameters()]
    entries = state["optimizer"].state_dict()["state"]
    return {
        "model": {key: value.clone() for key, value in state["model"].state_dict().items()},
        "state": {
            names[n]: {role: value.clone() for role, value in entry.items()}
            for n, entry in entries.items()
        },
    }


def assert_stored(store: Any, step: int, then: dict[str, Any]) -> None:
    """A step holds what `contents()` gave, to the bit."""
    import libckpt

    held = libckpt.load(store, step)
    found = {"model": held["model"], "state": held["optimizer"]["state"]}
    assert_same(found, _to_cpu(then))


def _to_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_cpu(inner) for key, inner in value.items()}
    return value.cpu()
