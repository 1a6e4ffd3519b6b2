# SPDX-License-Identifier: Apache-2.0
"""
Tensors on GPUs: on which one each is, and in which stream of CUDA the work of this thread is.

Nothing here initializes CUDA: whoever has a tensor on a GPU has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib

if TYPE_CHECKING:
    import torch

#: The index of what is in memory of the CPU.
CPU = -1


def index_of(tensor: torch.Tensor) -> int:
    """The GPU that a tensor is on; CPU: it is on none."""
    return CPU if tensor.is_cpu else int(tensor.device.index)


def refusal(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be saved from where it is; None: it can."""
    import torch

    kind = tensor.device.type
    if kind == "cpu":
        return None
    if kind != "cuda":
        return f"on {tensor.device}: tensors of the CPU and of CUDA GPUs can be saved, so move it"
    if torch.version.cuda is None:
        return f"on {tensor.device}, which is no GPU of CUDA: move it to the CPU"
    return None


def cuda_major() -> int:
    """The major version of the CUDA that torch was built with; 0: none, or torch is not here."""
    torch = sys.modules.get("torch")
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return int(version.split(".")[0]) if version else 0


def current_stream(index: int) -> int:
    """The stream of a GPU in which this thread's work is."""
    import torch

    return int(torch.cuda.current_stream(index).cuda_stream)


def streams(indices: Iterable[int]) -> Any:
    """Those of some GPUs, for C."""
    numbers = sorted(indices)
    array = ffi.new("struct ckpt_stream[]", len(numbers))
    for item, index in zip(array, numbers, strict=True):
        item.size = ffi.sizeof("struct ckpt_stream")
        item.device = lib.CKPT_DEVICE_CUDA
        item.device_index = index
        item.handle = current_stream(index)
    return array


def is_capturing() -> bool:
    """True while this thread's work is not done, but captured into a CUDA graph."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def synchronize(indices: Iterable[int]) -> None:
    """Waits until some GPUs have done all that they were given."""
    import torch

    for index in sorted(indices):
        torch.cuda.synchronize(index)
