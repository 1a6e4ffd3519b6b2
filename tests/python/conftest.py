# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: small trainings, and programs that can be killed."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Forked
from pools import small_by_default
from waiting import ended

import libckpt
from libckpt import dcp

#: torch's TCPStore asks the name server who connects. The resolver waits 5 s for an answer that is
#: lost, and so long the store answers nobody.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:5"
torch.set_num_threads(1)
small_by_default(libckpt.Checkpointer, dcp.StorageWriter)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """What torch.distributed.checkpoint has saved to is open until it is closed."""
    yield
    dcp.close()


@pytest.fixture
def opened(store: Path) -> Iterator[Callable[..., libckpt.Checkpointer]]:
    """Opens checkpointers of the store, with a small pool, and closes them."""
    made: list[libckpt.Checkpointer] = []

    def open_one(state: Any = None, **options: Any) -> libckpt.Checkpointer:
        options.setdefault("pool_bytes", 1 << 20)
        options.setdefault("eager", False)  # what is small is copied behind the loop, too
        options.setdefault("rehearse", False)  # it would hold steps that a test removes
        made.append(libckpt.Checkpointer(options.pop("path", store), state, **options))
        return made[-1]

    yield open_one
    for ckpt in made:
        ckpt._core.shut()
        ckpt._finalizer.detach()


class Says:
    """An object whose state_dict() gives a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Net(torch.nn.Module):
    """Small, but with what makes checkpoints hard: buffers, dropout, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.mix = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)
        )
        self.down = torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.mix(self.embed(tokens))))


class Loader:
    """A loader that knows its position."""

    def __init__(self) -> None:
        self.order = list(range(97))
        random.Random(5).shuffle(self.order)
        self.position = 0

    def __next__(self) -> torch.Tensor:
        tokens = [self.order[(self.position + n) % 97] % 11 for n in range(6)]
        self.position += 6
        return torch.tensor(tokens)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.order = state["order"]


class Training:
    """One run: `step()` trains and gives the loss."""

    def __init__(self, optimizer: Any = torch.optim.AdamW, scheduler: Any = None, **options: Any):
        torch.manual_seed(1)
        np.random.seed(2)
        random.seed(3)
        self.model = Net()
        options.setdefault("lr", 0.02)
        self.optimizer = optimizer(self.model.parameters(), **options)
        make = scheduler or (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50))
        self.scheduler = make(self.optimizer)
        self.loader = Loader()
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
        }

    def loss(self) -> torch.Tensor:
        tokens = next(self.loader)
        noise = random.random() + float(np.random.rand())
        return torch.nn.functional.cross_entropy(self.model(tokens), tokens) * (1 + noise / 100)

    def step(self) -> float:
        seen: list[float] = []

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            seen.append(loss.item())
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(closure)
        else:
            closure()
            self.optimizer.step()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(seen[0])
        else:
            self.scheduler.step()
        return seen[0]

    def snapshot(self) -> dict[str, Any]:
        """Deep copies of everything that a checkpoint must bring back."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "loader": self.loader.state_dict(),
            }
        )


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal in type and to the bit, all the way down."""
    assert type(a) is type(b), f"{where}: {type(a)} {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, f"{where}: {a.dtype} {b.dtype}"
        assert a.shape == b.shape, f"{where}: {a.shape} {b.shape}"
        assert bits(a) == bits(b), f"{where}: {a} {b}"
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


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def own_threads() -> list[str]:
    """Names of this process's threads, without the workers that the kernel has for our rings."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        if not name.startswith("iou-"):
            names.append(name)
    return sorted(names)


HEADER = """
    import os, sys, time, signal, threading
    # Who runs the tests in the background of a shell has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, {tests!r})
    import torch
    import libckpt
    from conftest import Training, own_threads
    from waiting import result_of, until
    store = {store!r}
"""


def program(store: Path, body: str) -> str:
    """A Python program that knows `store` and the trainings above."""
    header = textwrap.dedent(HEADER).format(tests=str(Path(__file__).parent), store=str(store))
    return header + textwrap.dedent(body)


def start(store: Path, body: str, **options: Any) -> Forked:
    """Starts such a program."""
    return Forked(program(store, body), **options)


def run(store: Path, body: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs such a program to its end."""
    process = start(store, body, **options)
    out, err = ended(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def shards(store: Path) -> list[Path]:
    """The shards of a store, newest step last."""
    return sorted(store.glob("g*/step-*/rank-*.safetensors"))


def step_directory(store: Path, step: int) -> Path:
    """The directory of a step in the newest generation that has it."""
    return max(store.glob(f"g*/step-{step:010d}"))


def writers(store: Path, step: int) -> dict[str, list[int]]:
    """By the names of a step's tensors: the ranks that have written them."""
    found: dict[str, list[int]] = {}
    for shard in sorted(step_directory(store, step).glob("rank-*.safetensors")):
        with shard.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            for name in json.loads(file.read(size)).keys() - {"__metadata__"}:
                found.setdefault(name, []).append(int(shard.name[5:10]))
    return found


def flip(path: Path, offset: int) -> None:
    """Flips one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
