# SPDX-License-Identifier: Apache-2.0
"""A run that was resumed is, bit for bit, the one that was never stopped."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import gpu_training
import pytest
import torch
from gpu_rig import finished
from gpu_training import ALONE, END, KINDS, SAVED, UNDER_WAY, Fused

import libckpt


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_losses_weights_moments_and_random_numbers(
    opened: Any, device: str, kind: str
) -> None:
    whole = KINDS[kind](device)
    ckpt = opened(whole.state)
    for _ in range(SAVED):
        whole.step()
    save = ckpt.save(SAVED)
    losses = torch.stack([whole.step() for _ in range(4)]).tolist()
    then = whole.digest()
    ckpt.close()
    assert save.error is None

    again = KINDS[kind](device, seed=9)
    for _ in range(2):  # somewhere else by now
        again.step()
    ckpt = opened(again.state)
    assert ckpt.resume() == SAVED
    assert torch.stack([again.step() for _ in range(4)]).tolist() == losses
    assert again.digest() == then


def program(kind: str, device: str, store: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, gpu_training.__file__, kind, device, str(store), *options]
    done = finished(command)
    assert done.returncode == (-signal.SIGKILL if "--die" in options else 0), done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slices(3)
@pytest.mark.parametrize("kind", ["fused", *ALONE])
def test_another_process_goes_on_after_a_kill(store: Path, device: str, kind: str) -> None:
    whole = program(kind, device, store, "--die")
    assert len(whole["losses"]) == END
    again = program(kind, device, store, "--resume")
    # The later save may have been durable when the process was killed.
    assert again["first"] in (SAVED, UNDER_WAY)
    assert again["losses"] == whole["losses"][again["first"] :]
    assert again["digest"] == whole["digest"]


def test_memory_that_a_graph_may_know_is_kept(opened: Any, device: str) -> None:
    """Restoring writes into the tensors that are there, of the optimizer too."""
    training = Fused(device)
    training.step()
    ckpt = opened(training.state)
    ckpt.save(1).wait()

    def pointers() -> list[int]:
        moments = [v for e in training.optimizer.state.values() for v in e.values()]
        return [t.data_ptr() for t in [*training.model.state_dict().values(), *moments]]

    training.step()
    then = pointers()
    assert ckpt.resume(step=1) == 1
    assert pointers() == then


def test_a_step_of_the_gpu_is_restored_on_the_cpu_and_back(
    opened: Any, store: Path, gpu: str
) -> None:
    there = Fused(gpu)
    there.step()
    opened(there.state).save(1).wait()
    held = libckpt.load(store)["model"]
    assert {value.device.type for value in held.values()} == {"cpu"}
    model = there.model.state_dict()
    assert all(torch.equal(value, model[name].cpu()) for name, value in held.items())
    back = libckpt.load(store, map_location=gpu)["model"]
    assert {value.device.type for value in back.values()} == {"cuda"}
    assert all(torch.equal(value, model[name]) for name, value in back.items())


def test_a_save_that_nobody_waits_for_is_as_good(opened: Any, store: Path, device: str) -> None:
    """Saves at every step, training on at once: each is there, or the next one waited for it."""
    training = Fused(device)
    ckpt = opened(training.state, every=1)
    digests = {}
    for step in range(1, 7):
        training.step()
        digests[step] = training.digest()
        ckpt.step(step)
    ckpt.close()
    assert sorted(info.step for info in libckpt.list_steps(store)) == list(digests)
    for step in (2, 6):
        again = Fused(device, seed=9)
        ckpt = opened(again.state)
        assert ckpt.resume(step=step) == step
        assert again.digest() == digests[step]
        ckpt.close()
