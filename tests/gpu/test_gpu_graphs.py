# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: whole steps that are replayed, and captures that a save must not spoil."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rig import assert_stored, big, contents, digest
from gpu_training import GPT, SHAPES, Loader

import libckpt


class Replayed:
    """A whole step is one graph: forward, backward, and the optimizer's step."""

    def __init__(self, seed: int = 1) -> None:
        torch.manual_seed(seed)
        width, depth, context, batch = SHAPES["cuda"]
        self.loader = Loader(batch, context)
        self.model = GPT(width, depth, context).cuda()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, capturable=True, foreach=True
        )
        self.state = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
        self.tokens = torch.zeros(batch, context + 1, dtype=torch.long, device="cuda")
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.enqueue()
        torch.cuda.current_stream().wait_stream(beside)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.enqueue()

    def enqueue(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.tokens)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, ckpt: Any = None) -> torch.Tensor:
        self.tokens.copy_(self.loader.next())
        if ckpt is not None:
            ckpt.before_replay()
        self.graph.replay()
        return self.loss.clone()

    def digest(self) -> str:
        parts = [value.state_dict() for value in self.state.values()]
        return digest([*parts, torch.cuda.get_rng_state()])


def test_a_replayed_training_resumes_bit_for_bit(opened: Any, gpu: str) -> None:
    whole = Replayed()
    ckpt = opened(whole.state, pool_bytes=1 << 20)
    for _ in range(4):
        whole.step(ckpt)
    save = ckpt.save(4)
    losses = torch.stack([whole.step(ckpt) for _ in range(4)]).tolist()
    then = whole.digest()
    ckpt.close()
    assert save.error is None

    again = Replayed(seed=9)
    again.step()
    ckpt = opened(again.state)
    assert ckpt.resume() == 4
    assert torch.stack([again.step(ckpt) for _ in range(4)]).tolist() == losses
    assert again.digest() == then


def test_a_replay_without_before_replay_is_found(opened: Any, store: Path, gpu: str) -> None:
    """It changes what is being copied, and calls no hook."""
    training = Replayed()
    ckpt = opened(training.state, pool_bytes=1 << 20)
    ckpt.save(1).wait()
    save = ckpt.save(2)
    training.step()
    with pytest.raises(libckpt.TornSnapshotError):
        ckpt.wait_staged()
        save.wait()
    assert [info.step for info in libckpt.list_steps(store)] == [1]
    then = training.digest()
    ckpt.save(3).wait()
    again = Replayed(seed=9)
    ckpt.close()
    assert opened(again.state).resume() == 3
    assert again.digest() == then


def test_a_capture_is_left_alone_by_a_save_under_way(opened: Any, store: Path, gpu: str) -> None:
    """Copies and their threads go on, in the mode that spoils captures most easily."""
    state = big(gpu, fused=True)
    ckpt = opened(state, pool_bytes=1 << 20, keep_last=1)
    ckpt.save(1).wait()
    x = torch.ones(1000, device=gpu)
    for step in (2, 3, 4):
        then = contents(state)
        save = ckpt.save(step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            y = x
            for _ in range(200):
                y = y + 1
        graph.replay()
        assert y.sum().item() == 201_000
        save.wait()
        assert_stored(store, step, then)


def test_a_step_may_be_captured_while_a_save_is_under_way(
    opened: Any, store: Path, gpu: str
) -> None:
    """The hook is called then, and leaves it to before_replay()."""
    state = big(gpu, capturable=True)
    ckpt = opened(state, pool_bytes=1 << 20)
    ckpt.save(1).wait()
    then = contents(state)
    save = ckpt.save(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state["optimizer"].step()
    ckpt.before_replay()
    graph.replay()
    save.wait()
    assert_stored(store, 2, then)
    assert not torch.equal(then["model"]["0.weight"], state["model"][0].weight.detach())


def test_a_save_within_a_capture_is_refused_and_does_not_spoil_it(
    opened: Any, store: Path, gpu: str
) -> None:
    state = big(gpu, fused=True)
    ckpt = opened(state)
    ckpt.save(1).wait()
    x = torch.ones(1000, device=gpu)
    graph = torch.cuda.CUDAGraph()
    refused: BaseException | None
    with torch.cuda.graph(graph):
        y = x + 1
        try:
            refused = ckpt.save(2).error
        except RuntimeError as error:  # torch's own: it gives no random numbers away meanwhile
            refused = error
        y = y + 1
    assert refused is not None
    graph.replay()
    assert y.sum().item() == 3000
    ckpt.save(3).wait()
    assert [info.step for info in libckpt.list_steps(store)] == [3, 1]
