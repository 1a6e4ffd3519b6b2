# SPDX-License-Identifier: Apache-2.0
"""
GPUs of tensors, and CUDA streams of this thread.

Nothing here initializes CUDA. If a tensor is on a GPU, the program has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib

if TYPE_CHECKING:
    import torch

#: Stands for CPU memory where the number of a GPU is expected.
CPU = -1


def index_of(tensor: torch.Tensor) -> int:
    """The number of the GPU that a tensor is on, or CPU."""
    return CPU if tensor.is_cpu else int(tensor.device.index)


def refusal(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be saved from its device; None: it can."""
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
    """The major version of CUDA that torch was built with; 0: none, or torch is not imported."""
    torch = sys.modules.get("torch")
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return int(version.split(".")[0]) if version else 0


def current_stream(index: int) -> int:
    """The current stream of this thread on a GPU."""
    import torch

    return int(torch.cuda.current_stream(index).cuda_stream)


def streams(indices: Iterable[int]) -> Any:
    """The current streams of some GPUs, for C."""
    numbers = sorted(indices)
    array = ffi.new("struct ckpt_stream[]", len(numbers))
    for item, index in zip(array, numbers, strict=True):
        item.size = ffi.sizeof("struct ckpt_stream")
        item.device = lib.CKPT_DEVICE_CUDA
        item.device_index = index
        item.handle = current_stream(index)
    return array


def is_capturing() -> bool:
    """True while the work of this thread is captured into a CUDA graph."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def synchronize(indices: Iterable[int]) -> None:
    """Waits until some GPUs have finished all work."""
    import torch

    for index in sorted(indices):
        torch.cuda.synchronize(index)
