# SPDX-License-Identifier: Apache-2.0
"""A snapshot is of one moment, though the host runs ahead of the GPU; and a torn one is found out."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rig import assert_stored, big, contents, width_of
from torch import nn

import libckpt

#: becomes four blocks, 32 MiB: the copy of what is larger waits for the disk
SMALL_POOL = 1 << 20


@pytest.fixture(params=["default", "own"])
def stream(request: Any, device: str) -> Any:
    """The loop's work is in torch's default stream, or in one of its own."""
    if request.param == "default":
        return contextlib.nullcontext()
    if device != "cuda":
        pytest.skip("this needs a GPU")
    return torch.cuda.stream(torch.cuda.Stream())


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_a_step_right_after_save_is_not_in_it(
    opened: Any, store: Path, device: str, stream: Any, options: dict[str, Any]
) -> None:
    state = big(device, **options)
    ckpt = opened(state, pool_bytes=SMALL_POOL, keep_last=1)
    if device == "cuda":
        torch.cuda.synchronize()
    with stream:
        for step in (1, 2, 3):
            then = contents(state)
            save = ckpt.save(step)
            state["optimizer"].step()
            save.wait()
            assert_stored(store, step, then)


def test_buffers_that_the_next_forward_pass_changes(opened: Any, store: Path, device: str) -> None:
    state = big(device)
    data = torch.rand(8, width_of(state), device=device)
    ckpt = opened(state, pool_bytes=SMALL_POOL, keep_last=1)
    for step in (1, 2, 3):
        then = contents(state)
        save = ckpt.save(step)
        state["model"](data).square().mean().backward()
        state["optimizer"].step()
        save.wait()
        assert not torch.equal(
            then["model"]["1.running_mean"], state["model"][1].running_mean.detach()
        )
        assert_stored(store, step, then)


def test_the_host_runs_ahead_and_nothing_is_torn(opened: Any, store: Path, gpu: str) -> None:
    """save() and the fence return though the GPU has not come to the step that is saved."""
    state = big(gpu, fused=True)
    data = torch.rand(8, width_of(state), device=gpu)
    ckpt = opened(state, pool_bytes=2 << 30, keep_last=1)

    def train() -> None:
        state["model"](data).square().mean().backward()
        state["optimizer"].step()

    for step in (1, 2):  # staging is pinned, kernels are loaded, and torch has the memory it needs
        then = contents(state)
        save = ckpt.save(step)
        train()
        save.wait()
    for step in (3, 4, 5):
        del then
        torch.cuda.synchronize()
        torch.cuda._sleep(1 << 30)  # half a second of a GPU's clock
        then = contents(state)
        behind = torch.cuda.Event()
        behind.record()
        save = ckpt.save(step)
        train()
        assert not behind.query(), "save() or the fence has waited for the GPU"
        train()
        save.wait()
        assert_stored(store, step, then)


def test_a_loop_that_does_nothing_wrong_is_never_called_torn(opened: Any, device: str) -> None:
    state = big(device, fused=True)
    data = torch.rand(8, width_of(state), device=device)
    ckpt = opened(state, pool_bytes=SMALL_POOL, keep_last=1, on_error="raise")
    saves = []
    for step in range(1, 13):
        saves.append(ckpt.save(step))
        state["model"](data).square().mean().backward()
        state["optimizer"].step()
    ckpt.close()
    assert [save.error for save in saves] == [None] * len(saves)


def write_data(p: nn.Parameter) -> None:
    p.data.add_(1)


def swap_data(p: nn.Parameter) -> None:
    p.data = p.data.clone()


def write_dlpack(p: nn.Parameter) -> None:
    torch.from_dlpack(p.detach()).add_(1)


def write_counted(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.add_(1)


CHANGES = [write_data, swap_data, write_dlpack, write_counted]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fence", [True, False], ids=["fence", "no fence"])
def test_a_torn_snapshot_is_found(
    opened: Any, store: Path, device: str, change: Any, fence: bool
) -> None:
    state = big(device)
    ckpt = opened(state, keep_last=2)
    ckpt.save(1).wait()
    save = ckpt.save(2)
    ckpt._fence_disabled = not fence
    change(state["model"][0].weight)
    # What the counters do not see is found out on a GPU behind the loop's back.
    state["optimizer"].step()
    with pytest.raises(libckpt.TornSnapshotError) as caught:
        save.wait()
    assert caught.value.step == 2
    # Without the fence the optimizer's changes are there, too.
    assert not fence or caught.value.tensor == "0.weight"
    assert isinstance(save.error, libckpt.TornSnapshotError)
    assert [info.step for info in libckpt.list_steps(store)] == [1]
    ckpt._fence_disabled = False
    then = contents(state)
    ckpt.save(3).wait()
    assert_stored(store, 3, then)


def test_without_the_fence_a_step_is_found(opened: Any, store: Path, device: str) -> None:
    """The negative control of the first test: the switch takes away what it relies on."""
    state = big(device, fused=True)
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    ckpt.save(1).wait()
    ckpt._fence_disabled = True
    save = ckpt.save(2)
    state["optimizer"].step()
    with pytest.raises(libckpt.TornSnapshotError):
        save.wait()
    assert [info.step for info in libckpt.list_steps(store)] == [1]


def test_a_moment_that_is_written_past_the_counters(opened: Any, device: str) -> None:
    state = big(device, fused=True)
    ckpt = opened(state)
    ckpt.save(1).wait()
    save = ckpt.save(2)
    state["optimizer"].state[state["model"][0].weight]["exp_avg"].data.mul_(2)
    with pytest.raises(libckpt.TornSnapshotError, match="exp_avg"):
        ckpt.wait_staged()
        save.wait()


def test_wait_staged_lets_a_loop_change_what_it_likes(
    opened: Any, store: Path, device: str
) -> None:
    state = big(device)
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    then = contents(state)
    save = ckpt.save(1)
    ckpt.wait_staged()
    for change in CHANGES:
        change(state["model"][0].weight)
    save.wait()
    assert_stored(store, 1, then)


def test_everything_eager_needs_no_fence(opened: Any, store: Path, device: str) -> None:
    state = big(device)
    ckpt = opened(state, pool_bytes=SMALL_POOL, eager=True)
    then = contents(state)
    save = ckpt.save(1)
    for change in CHANGES:
        change(state["model"][0].weight)
    save.wait()
    assert_stored(store, 1, then)


def test_the_gpu_samples_what_is_saved(
    opened: Any, gpu: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine warns where it cannot, and every test of a torn snapshot would then be in vain."""
    state = big(gpu)
    with caplog.at_level(logging.INFO, logger="libckpt"):
        ckpt = opened(state)
        ckpt.save(1).wait()
        ckpt.close()
    said = [record.getMessage() for record in caplog.records]
    assert any("pinned" in line for line in said), said
    assert not any("cannot run the kernels" in line or "cannot be pinned" in line for line in said), said
