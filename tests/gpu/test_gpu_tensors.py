# SPDX-License-Identifier: Apache-2.0
"""Every kind of tensor comes back from a GPU to the bit, and to where it was, or is refused by name."""

from pathlib import Path
from typing import Any

import torch
from gpu_rig import assert_same, clear
from libckpt._dtypes import torch_numbers

import libckpt


def noise(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Any bits, NaNs among them."""
    width = torch.empty((), dtype=dtype).element_size()
    numbers = torch.randint(0, 256, (*shape, width), dtype=torch.uint8)
    if dtype == torch.bool:
        numbers &= 1
    return numbers.view(dtype).reshape(shape).to(device)


def round_trip(opened: Any, store: Path, state: dict[str, Any], device: str) -> None:
    """Into the tensors that are there, and into new ones."""
    then = {name: value.clone() for name, value in state.items()}
    ckpt = opened(state)
    ckpt.save(1).wait()
    ckpt.close()
    assert_same(libckpt.load(store, map_location=device), then)
    for value in state.values():
        clear(value)
    opened(state).resume()
    assert_same(state, then)


def test_every_dtype(opened: Any, store: Path, device: str) -> None:
    state = {}
    for dtype in torch_numbers():
        name = str(dtype).removeprefix("torch.")
        state[f"{name}.matrix"] = noise((37, 5), dtype, device)
        state[f"{name}.scalar"] = noise((), dtype, device)
        state[f"{name}.empty"] = noise((0, 2), dtype, device)
    round_trip(opened, store, state, device)


def test_views_that_lie_in_rows(opened: Any, store: Path, device: str) -> None:
    """What the copy engine takes as rows with a pitch; narrow ones are many rows."""
    base = noise((300, 2000), torch.float32, device)
    state = {
        "rows": base[10:290:2],
        "columns": base[:, 100:1900],
        "narrow": base[:, 3:4],
        "corner": base[290:, 1990:],
    }
    round_trip(opened, store, state, device)


def test_ten_thousand_small_ones(opened: Any, store: Path, device: str) -> None:
    sizes = [1, 3, 64, 1000, 4099]
    state = {
        f"t{number}": noise((sizes[number % 5],), torch.bfloat16, device)
        for number in range(10_000 if device == "cuda" else 500)
    }
    round_trip(opened, store, state, device)


def test_large_ones_through_little_staging(opened: Any, store: Path, device: str) -> None:
    elements = (300 << 20) + 12_345 if device == "cuda" else (40 << 20) + 12_345
    state = {"large": torch.arange(elements, dtype=torch.int32, device=device)}
    then = state["large"].clone()
    ckpt = opened(state, pool_bytes=1 << 20)
    ckpt.save(1).wait()
    state["large"].zero_()
    assert ckpt.resume(step=1) == 1
    assert_same(state["large"], then)


def test_the_cpus_beside_the_gpus(opened: Any, store: Path, device: str) -> None:
    state = {"there": noise((1000, 10), torch.float32, device), "here": torch.rand(1000, 10)}
    then = {name: value.clone() for name, value in state.items()}
    ckpt = opened(state)
    save = ckpt.save(1)
    for value in state.values():  # without an optimizer in the state all is copied at once
        value.add_(1)
    save.wait()
    assert ckpt.resume(step=1) == 1
    assert_same(state, then)


def test_views_in_any_order(opened: Any, store: Path, device: str) -> None:
    """A kernel gathers and scatters them: small ones, and some that take several launches."""
    state = {}
    large = 3000 if device == "cuda" else 700
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.float64, torch.complex128):
        name = str(dtype).removeprefix("torch.")
        images = noise((20, 33, 3, 5), dtype, device)
        state[f"{name}.last"] = images.contiguous(memory_format=torch.channels_last)
        state[f"{name}.turned"] = noise((301, 97), dtype, device).t()
        state[f"{name}.part"] = noise((40, 31, 23), dtype, device).permute(2, 0, 1)[1::2, 3:, 2:]
        state[f"{name}.large"] = noise((large, large + 1), dtype, device).t()
        state[f"{name}.thin"] = noise((large, 5), dtype, device)[:, 2]
    round_trip(opened, store, state, device)


def test_what_shares_memory_is_saved_and_replaced(opened: Any, store: Path, device: str) -> None:
    values = noise((5000,), torch.float32, device)
    state = {
        "expanded": values.expand(3, 5000),
        "windows": values.as_strided((90, 40), (7, 1)),
        "turned": values.as_strided((40, 90), (1, 7)),
    }
    then = {name: value.clone() for name, value in state.items()}
    ckpt = opened(state)
    ckpt.save(1).wait()
    assert_same(libckpt.load(store, map_location=device), then)
    values.view(torch.uint8).zero_()
    assert ckpt.resume(step=1) == 1
    assert_same(state, then)
    assert not values.any()


def test_each_tensor_on_its_gpu(opened: Any, store: Path, two_gpus: tuple[str, str]) -> None:
    state = {name: noise((1 << 20,), torch.float32, name) for name in two_gpus}
    then = {name: value.clone() for name, value in state.items()}
    ckpt = opened(state)
    save = ckpt.save(1)
    for value in state.values():
        value.add_(1)
    save.wait()
    assert ckpt.resume(step=1) == 1
    assert_same(state, then)
