# SPDX-License-Identifier: Apache-2.0
"""
The CUDA runtime without a GPU of tests/cuda, for a torch that has no CUDA.

To torch they are tensors of the CPU. Their memory is only reached by the runtime: nothing in torch
may touch their elements.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from libckpt import _gpus

BUILD = Path(os.environ.get("CKPT_TOOLS", Path(__file__).resolve().parents[2] / "build/tools"))
RUNTIME = BUILD.parent / "tests/cuda/runtime12/libcudart.so.12"

COPIES, KERNELS = 1, 2
STREAMS, EVENTS, PINNED = 0, 1, 2

_P, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class _Control(ctypes.Structure):
    """struct fake_cuda, as far as it is used here."""

    _fields_ = [
        ("reset", ctypes.CFUNCTYPE(None, ctypes.c_uint64)),
        ("live", ctypes.CFUNCTYPE(_SIZE, ctypes.c_int)),
        ("notes", ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int)),
        ("calls", ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p)),
        ("peek", ctypes.CFUNCTYPE(None, _P, _P, _SIZE)),
        ("poke", ctypes.CFUNCTYPE(None, _P, _P, _SIZE)),
        ("fill", ctypes.CFUNCTYPE(ctypes.c_int, _P, ctypes.c_int, _SIZE, _P)),
        ("stop", ctypes.CFUNCTYPE(None, ctypes.c_uint)),
        ("allow", ctypes.CFUNCTYPE(None, ctypes.c_uint)),
    ]


class FakeGpu:
    """GPU 0, with one stream in which the work of all threads is."""

    def __init__(self) -> None:
        # As PyTorch loads it: by its path.
        self._library = ctypes.CDLL(str(RUNTIME))
        self._library.fake_cuda_control.restype = ctypes.POINTER(_Control)
        self.control: Any = self._library.fake_cuda_control().contents
        self.control.reset(7)
        self.capturing = False
        self._held: list[tuple[int, int]] = []
        self._streams: list[int] = []
        self.stream = self.make_stream()

    def close(self) -> None:
        """Sees that nothing of a library's is left."""
        self.control.stop(0)
        for stream in self._streams:
            assert self._library.cudaStreamDestroy(_P(stream)) == 0
        for pointer, _ in self._held:
            assert self._library.cudaFree(_P(pointer)) == 0
        for kind in (STREAMS, EVENTS, PINNED):
            assert self.control.live(kind) == 0

    def make_stream(self) -> int:
        """Another stream, to be made the current one."""
        stream = _P()
        assert self._library.cudaStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
        assert stream.value is not None
        self._streams.append(stream.value)
        return stream.value

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor on the GPU, whose elements lie as they do there."""
        pointer = _P()
        size = _span(values) * values.element_size()
        assert self._library.cudaMalloc(ctypes.byref(pointer), _SIZE(size)) == 0
        assert pointer.value is not None
        self._held.append((pointer.value, size))
        memory = (ctypes.c_char * size).from_address(pointer.value)
        flat = torch.frombuffer(memory, dtype=values.dtype)
        made = flat.as_strided(values.shape, values.stride())
        self.write(made, values)
        return made

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """At once, whatever is enqueued."""
        here = self._like(tensor).copy_(values)
        self.control.poke(tensor.data_ptr(), here.data_ptr(), _span(tensor) * here.element_size())

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of it on the CPU."""
        copy = self._like(tensor)
        self.control.peek(tensor.data_ptr(), copy.data_ptr(), _span(tensor) * copy.element_size())
        return copy

    def zero(self, tensor: torch.Tensor) -> None:
        """A kernel in the stream."""
        size = _span(tensor) * tensor.element_size()
        assert self.control.fill(tensor.data_ptr(), 0, size, self.stream) == 0

    @staticmethod
    def _like(tensor: torch.Tensor) -> torch.Tensor:
        """One on the CPU whose elements lie as they do."""
        flat = torch.empty(_span(tensor), dtype=tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride())

    def holds(self, tensor: torch.Tensor) -> bool:
        """True if that is where its elements are."""
        pointer = tensor.data_ptr()
        return any(first <= pointer < first + size for first, size in self._held)


def _span(tensor: torch.Tensor) -> int:
    """The elements from its first one in memory to its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((count - 1) * step for count, step in steps)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU that libckpt takes for one of torch's."""
    gpu = FakeGpu()
    monkeypatch.setattr(_gpus, "index_of", lambda tensor: 0 if gpu.holds(tensor) else _gpus.CPU)
    monkeypatch.setattr(_gpus, "current_stream", lambda index: gpu.stream)
    monkeypatch.setattr(_gpus, "is_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(_gpus, "synchronize", lambda indices: None)
    return gpu
