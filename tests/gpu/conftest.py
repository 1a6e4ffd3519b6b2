# SPDX-License-Identifier: Apache-2.0
"""
What the tests of tensors on a GPU are given.

    pytest tests/gpu                   # on the GPU, if there is one; else the same tests on the CPU
    pytest tests/gpu --device cuda     # without a GPU it is an error, and nothing skips for the lack of one

On the CPU they prove themselves, not the GPU: what needs one skips.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch opens cuBLAS, which asks for it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).parent))

import gpu_training
import pytest
import torch

import libckpt


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--device", choices=["cpu", "cuda"], help="where the tensors are")


@pytest.fixture(scope="session")
def device(request: Any) -> str:
    """Where the tensors are."""
    asked = request.config.getoption("--device")
    have = torch.cuda.is_available()
    if asked == "cuda" and not have:
        pytest.fail("there is no CUDA GPU here, or this torch has no CUDA")
    gpu_training.prepare()
    return str(asked or ("cuda" if have else "cpu"))


@pytest.fixture
def gpu(device: str) -> str:
    """A GPU, or a skip: tests/skips.txt names those who ask for it."""
    if device != "cuda":
        pytest.skip("this needs a GPU")
    return device


@pytest.fixture
def two_gpus(gpu: str) -> tuple[str, str]:
    if torch.cuda.device_count() < 2:
        pytest.skip("this needs two GPUs")
    return "cuda:0", "cuda:1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened(store: Path) -> Iterator[Callable[..., libckpt.Checkpointer]]:
    """Opens checkpointers of the store and closes them. What is small is copied behind the loop, too."""
    made: list[libckpt.Checkpointer] = []

    def open_one(state: Any = None, **options: Any) -> libckpt.Checkpointer:
        options.setdefault("pool_bytes", 64 << 20)
        options.setdefault("eager", False)
        options.setdefault("rehearse", False)  # it would hold steps that a test removes
        made.append(libckpt.Checkpointer(options.pop("path", store), state, **options))
        return made[-1]

    yield open_one
    for ckpt in made:
        ckpt._core.shut()
        ckpt._finalizer.detach()
