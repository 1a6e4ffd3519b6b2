# SPDX-License-Identifier: Apache-2.0
"""A snapshot is of one moment: what the fence does, and what is noticed without it."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Training, assert_same
from torch import nn

import libckpt

SMALL_POOL = 1 << 20  # becomes four blocks, 32 MiB: the copy of more waits for the disk


def big(kind: Any = torch.optim.AdamW, width: int = 2000, **options: Any) -> dict[str, Any]:
    """A model that takes a while to copy, and its optimizer, after one step."""
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    optimizer = kind(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def contents(state: dict[str, Any]) -> dict[str, Any]:
    names = [name for name, _ in state["model"].named_parameters()]
    entries = state["optimizer"].state_dict()["state"]
    return {
        "model": {k: v.clone() for k, v in state["model"].state_dict().items()},
        "state": {names[n]: {role: v.clone() for role, v in e.items()} for n, e in entries.items()},
    }


def stored(store: Path, step: int) -> dict[str, Any]:
    held = libckpt.load(store, step)
    return {"model": held["model"], "state": held["optimizer"]["state"]}


def test_a_step_right_after_save_waits_for_the_copy(opened: Any, store: Path) -> None:
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    copied = []
    for step in (1, 2, 3):
        then = contents(state)
        save = ckpt.save(step)
        copied.append(save.info.staged)
        state["optimizer"].step()
        assert save.info.staged
        save.wait()
        assert_same(stored(store, step), then)
    assert not all(copied), "all was copied before the step: the fence was not needed"


def test_without_the_fence_the_change_is_noticed(opened: Any, store: Path) -> None:
    """The negative control: the switch takes away what the test above relies on."""
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    ckpt._fence_disabled = True
    ckpt.save(1).wait()
    save = ckpt.save(2)
    state["optimizer"].step()
    with pytest.raises(libckpt.TornSnapshotError) as caught:
        save.wait()
    assert caught.value.step == 2
    assert caught.value.tensor in dict(state["model"].named_parameters()) or "/state/" in str(
        caught.value.tensor
    )
    assert caught.value.code == -10011
    assert "wait_staged" in str(caught.value)
    assert save.error is caught.value
    assert [info.step for info in libckpt.list_steps(store)] == [1]
    # Once told is enough, and the next one is good again.
    ckpt._fence_disabled = False
    ckpt.save(3).wait()


@pytest.mark.parametrize("where", ["save", "step", "close", "wait_staged"])
def test_a_torn_snapshot_is_told_where_it_is_noticed(opened: Any, where: str) -> None:
    state = big(width=64)
    found: list[Exception] = []
    ckpt = opened(state, on_error=found.append)
    save = ckpt.save(1)
    with torch.no_grad():
        state["model"][0].weight.add_(1)
    if where == "step":  # which does not wait, and tells what has been found out
        while not save.done():
            pass
        assert isinstance(save.error, libckpt.TornSnapshotError)
    use = {
        "save": lambda: ckpt.save(2),
        "step": lambda: ckpt.step(1),
        "close": ckpt.close,
        "wait_staged": ckpt.wait_staged,
    }[where]
    use()
    assert found == [save.error]
    assert isinstance(save.error, libckpt.TornSnapshotError)
    assert "0.weight was changed" in str(save.error)
    assert save.info.failed


def tear(state: dict[str, Any]) -> None:
    """The optimizer's step(), once its first parameter has been changed by something else."""
    with torch.no_grad():
        state["model"][0].weight.add_(1)
    state["optimizer"].step()


@pytest.mark.parametrize("policy", ["warn", "raise"])
def test_a_torn_snapshot_costs_the_save_and_never_the_optimizers_step(
    opened: Any, store: Path, policy: Any
) -> None:
    state = big(width=64)
    ckpt = opened(state, every=1, on_error=policy)
    ckpt.step(1)
    before = state["model"][0].weight.detach() + 1
    tear(state)  # raises nothing, and is made
    assert not torch.equal(state["model"][0].weight, before)
    if policy == "raise":
        with pytest.raises(libckpt.TornSnapshotError, match=r"0\.weight was changed"):
            ckpt.step(2)
    else:
        with pytest.warns(libckpt.CheckpointWarning, match=r"step 1 was not saved.*0\.weight"):
            ckpt.step(2)
        ckpt.wait_staged()
        tear(state)
    ckpt.save(3).wait()
    assert [info.step for info in libckpt.list_steps(store)] == (
        [3] if policy == "raise" else [3, 2]
    )


def test_the_third_torn_snapshot_in_a_row_raises(opened: Any) -> None:
    state = big(width=64)
    ckpt = opened(state)
    for step in (1, 2):
        ckpt.save(step)
        tear(state)
        with pytest.warns(libckpt.CheckpointWarning, match=f"step {step} was not saved"):
            ckpt.step(step)
    ckpt.save(3)
    tear(state)
    with pytest.raises(libckpt.TornSnapshotError, match="step 3"):
        ckpt.step(3)


def test_a_change_that_leaves_the_values_is_a_change(opened: Any) -> None:
    """What was read may be from before or after: only counters and pointers tell."""
    state = big(width=64)
    ckpt = opened(state)
    weight = state["model"][0].weight
    save = ckpt.save(1)
    with torch.no_grad():
        weight.mul_(1)
    state["optimizer"].step()
    with pytest.raises(
        libckpt.TornSnapshotError, match=r"0\.weight was changed in place"
    ) as caught:
        save.wait()
    assert caught.value.tensor == "0.weight"
    save = ckpt.save(2)
    moment = state["optimizer"].state[weight]["exp_avg"]
    moment.data = moment.data.clone()
    with pytest.raises(libckpt.TornSnapshotError, match=r"exp_avg was given other memory"):
        save.wait()
    assert not torch.equal(weight, weight - 1)
    ckpt.save(3).wait()


def swap_data(p: nn.Parameter) -> None:
    p.data = p.data.clone()


def write_data(p: nn.Parameter) -> None:
    p.data.add_(1)


def write_numpy(p: nn.Parameter) -> None:
    p.detach().numpy()[...] += 1


def write_dlpack(p: nn.Parameter) -> None:
    torch.from_dlpack(p.detach()).add_(1)


@pytest.mark.parametrize("change", [swap_data, write_data, write_numpy, write_dlpack])
def test_what_the_counters_do_not_see_is_noticed(opened: Any, store: Path, change: Any) -> None:
    state = big(width=64)
    ckpt = opened(state)
    ckpt.save(1).wait()
    save = ckpt.save(2)
    change(state["model"][0].weight)
    state["optimizer"].step()
    with pytest.raises(libckpt.TornSnapshotError, match=r"0\.weight"):
        save.wait()
    assert isinstance(save.error, libckpt.TornSnapshotError)
    ckpt.save(3).wait()
    assert [info.step for info in libckpt.list_steps(store)] == [3, 1]


def test_memory_that_is_given_away_stays_readable(opened: Any, store: Path) -> None:
    """A parameter that is given other memory must not free what is being copied."""
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    save = ckpt.save(1)
    for parameter in state["model"].parameters():
        parameter.data = torch.zeros_like(parameter)
    junk = [torch.full((2000, 2000), float("nan")) for _ in range(8)]
    with pytest.raises(libckpt.TornSnapshotError, match=r"0\.weight|1\.weight|0\.bias|1\.bias"):
        save.wait()
    del junk


def test_buffers_are_copied_at_once(opened: Any, store: Path) -> None:
    """BatchNorm changes its buffers in the next forward pass, long before the fence."""
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    then = contents(state)
    ckpt.save(1)
    state["model"](torch.rand(4, 2000))
    state["optimizer"].step()
    ckpt.close()
    assert not torch.equal(then["model"]["1.running_mean"], state["model"][1].running_mean)
    assert_same(stored(store, 1), then)


def test_only_what_the_optimizer_owns_is_behind(opened: Any, store: Path) -> None:
    """Frozen weights and averaged models have other mutators: they are copied at once."""
    model, average = nn.Linear(400, 400), nn.Linear(400, 400)
    frozen = nn.Linear(400, 400).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model, "ema": average, "frozen": frozen, "optimizer": optimizer}
    ckpt = opened(state)
    then = average.weight.detach().clone()
    ckpt.save(1)
    with torch.no_grad():
        average.weight.mul_(0.5)
        frozen.weight.zero_()
    ckpt.save(2)
    ckpt.close()
    assert torch.equal(libckpt.load(store, 1)["ema"]["weight"], then)
    assert libckpt.load(store, 1)["frozen"]["weight"].any()


def test_any_of_several_optimizers_is_a_fence(opened: Any, store: Path) -> None:
    a, b = big(width=700), big(torch.optim.SGD, width=700, lr=0.1)
    both = {"model": a["model"], "other": b["model"], "opts": [a["optimizer"], b["optimizer"]]}
    ckpt = opened(both, pool_bytes=SMALL_POOL)
    then = b["model"][0].weight.detach().clone()
    save = ckpt.save(1)
    b["optimizer"].step()
    assert save.info.staged
    a["optimizer"].step()
    ckpt.close()
    assert torch.equal(libckpt.load(store)["other"]["0.weight"], then)


def test_an_optimizer_that_skips_its_step_skips_the_fence(opened: Any, store: Path) -> None:
    """A GradScaler that saw an overflow does not step: the next save runs the fence."""
    state = big(width=64)
    ckpt = opened(state)
    for step in (1, 2, 3):
        ckpt.save(step)
    ckpt.close()
    assert len(libckpt.list_steps(store)) == 3


def test_eager_needs_no_fence(opened: Any, store: Path) -> None:
    state = big()
    ckpt = opened(state, eager=True, pool_bytes=SMALL_POOL)
    then = contents(state)
    save = ckpt.save(1)
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.zero_()
    state["optimizer"].step()
    save.wait()
    assert_same(stored(store, 1), then)
    assert not state["optimizer"]._optimizer_step_pre_hooks


def test_wait_staged_serves_mutators_of_ones_own(opened: Any, store: Path) -> None:
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    then = contents(state)
    save = ckpt.save(1)
    ckpt.wait_staged()
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.zero_()
    save.wait()
    assert_same(stored(store, 1), then)


def test_hooks_come_once_and_go_with_close(opened: Any) -> None:
    training = Training()
    hooks = training.optimizer._optimizer_step_pre_hooks
    ckpt = opened(training.state)
    ckpt.resume()
    assert len(hooks) == 0
    for step in (1, 2, 3):
        training.step()
        ckpt.save(step)
    assert len(hooks) == 1
    ckpt.close()
    assert len(hooks) == 0
    training.step()


def test_a_checkpointer_does_not_live_on_in_hooks(store: Path) -> None:
    import gc
    import weakref

    training = Training()
    ckpt = libckpt.Checkpointer(store, training.state, pool_bytes=1 << 20)
    ckpt.save(1)
    gone = weakref.ref(ckpt)
    with pytest.warns(ResourceWarning):
        del ckpt
    gc.collect()
    assert gone() is None
    training.step()
    assert not training.optimizer._optimizer_step_pre_hooks
    assert [info.step for info in libckpt.list_steps(store)] == [1]


def test_a_save_that_nobody_holds_goes_on(opened: Any, store: Path) -> None:
    state = big()
    ckpt = opened(state, pool_bytes=SMALL_POOL)
    then = contents(state)
    ckpt.save(1)
    state["optimizer"].step()
    ckpt.close()
    assert_same(stored(store, 1), then)


def test_the_loss_is_said(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "libckpt")
    state = big(width=64)
    ckpt = opened(state)
    ckpt.save(1)
    with torch.no_grad():
        state["model"][0].weight.add_(1)
    with pytest.warns(libckpt.CheckpointWarning, match="step 1"):
        ckpt.close()
    assert any("step 1" in r.getMessage() and "0.weight" in r.getMessage() for r in caplog.records)
