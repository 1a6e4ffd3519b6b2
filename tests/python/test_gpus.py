# SPDX-License-Identifier: Apache-2.0
"""
Tensors on a GPU, on a CUDA runtime without one: the host waits for no copy, and nothing overtakes
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_gpu import COPIES, RUNTIME, FakeGpu, install
from waiting import until

import libckpt

pytestmark = pytest.mark.skipif(not RUNTIME.exists(), reason="the C tests are not built")

Open = Callable[..., libckpt.Checkpointer]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    made = install(monkeypatch)
    yield made
    made.close()


class Job:
    """A large parameter on the GPU, small ones there and on the CPU, and their optimizer."""

    def __init__(self, gpu: FakeGpu, seed: int = 0) -> None:
        self.gpu = gpu
        generator = torch.Generator().manual_seed(seed)
        self.values = {
            "large": torch.randn(300, 1001, generator=generator),
            "small": torch.randn(7, generator=generator),
        }
        self.model = torch.nn.Module()
        for name, values in self.values.items():
            parameter = torch.nn.Parameter(gpu.tensor(values), requires_grad=False)
            self.model.register_parameter(name, parameter)
        self.model.register_parameter(
            "host", torch.nn.Parameter(torch.randn(11, generator=generator), requires_grad=False)
        )
        self.model.register_buffer("counts", gpu.tensor(torch.arange(5.0)))
        self.optimizer = torch.optim.SGD(self.model.parameters())

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        """The optimizer's hook runs, and then a kernel that changes what was saved."""
        self.optimizer.step()
        self.gpu.zero(self.model.large)


@pytest.fixture
def close_last(opened: Open, gpu: FakeGpu) -> Iterator[Open]:
    """Checkpointers that are closed before their GPU is."""
    made: list[libckpt.Checkpointer] = []

    def open_one(state: Any = None, **options: Any) -> libckpt.Checkpointer:
        made.append(opened(state, **options))
        return made[-1]

    yield open_one
    gpu.control.stop(0)
    for ckpt in made:
        ckpt._core.shut()


def stopped(gpu: FakeGpu, close_last: Open) -> tuple[Job, libckpt.Checkpointer, libckpt.Save]:
    """Step 1 is saved, and no copy of step 2 is made until the GPU may."""
    job = Job(gpu)
    ckpt = close_last(job.state)
    ckpt.save(1).wait()
    gpu.control.stop(COPIES)
    return job, ckpt, ckpt.save(2)


def assert_step(store: Any, step: int, job: Job) -> None:
    loaded = libckpt.load(store, step)["model"]
    for name, values in job.values.items():
        assert torch.equal(loaded[name], values)
    assert torch.equal(loaded["counts"], torch.arange(5.0))
    assert torch.equal(loaded["host"], job.model.host)


def test_a_state_on_a_gpu_comes_back_in_place(gpu: FakeGpu, close_last: Open, store: Any) -> None:
    job = Job(gpu)
    ckpt = close_last(job.state)
    ckpt.save(1)
    job.step()
    ckpt.save(2).wait()
    assert_step(store, 1, job)
    ckpt.close()
    other = Job(gpu, seed=9)
    ckpt = close_last(other.state)
    assert ckpt.resume(1) == 1
    assert torch.equal(gpu.read(other.model.large), job.values["large"])
    assert torch.equal(gpu.read(other.model.small), job.values["small"])
    assert torch.equal(other.model.host, job.model.host)


def test_the_loop_waits_for_no_copy(gpu: FakeGpu, close_last: Open, store: Any) -> None:
    job, _ckpt, save = stopped(gpu, close_last)
    job.step()
    assert not save.done("staged")
    gpu.control.stop(0)
    save.wait()
    assert save.error is None
    assert_step(store, 2, job)


def test_without_the_hook_the_save_is_torn(gpu: FakeGpu, close_last: Open) -> None:
    """Buffers are waited for without it."""
    job = Job(gpu)
    del job.model.counts
    ckpt = close_last(job.state)
    ckpt.save(1).wait()
    gpu.control.stop(COPIES)
    ckpt._fence_disabled = True
    save = ckpt.save(2)
    job.step()
    until(lambda: not gpu.read(job.model.large).any())
    gpu.control.stop(0)
    with pytest.raises(libckpt.TornSnapshotError, match="tensor large was changed"):
        save.wait()


def test_who_waits_elsewhere_does_not_pass_the_fence(
    gpu: FakeGpu, close_last: Open, store: Any
) -> None:
    job, _ckpt, save = stopped(gpu, close_last)
    waiting = threading.Thread(target=save.wait)
    waiting.start()
    assert not save._fenced
    job.step()  # comes back at once, although the other thread waits
    assert save._fenced
    gpu.control.stop(0)
    waiting.join()
    assert_step(store, 2, job)


def test_who_waits_may_change_tensors_in_any_stream(
    gpu: FakeGpu, close_last: Open, store: Any
) -> None:
    job = Job(gpu)
    ckpt = close_last(job.state)
    other = gpu.make_stream()
    for step in range(1, 30):
        first = gpu.stream
        save = ckpt.save(step)
        gpu.stream = other
        save.wait("staged")
        gpu.zero(job.model.large)
        save.wait()
        assert_step(store, step, job)
        gpu.stream = first
        # Or the kernel might come after what is written.
        until(lambda: not gpu.read(job.model.large).any())
        gpu.write(job.model.large, job.values["large"])


def test_to_ask_how_it_goes_waits_for_nothing_and_raises_nothing(
    gpu: FakeGpu, close_last: Open
) -> None:
    job = Job(gpu)
    ckpt = close_last(job.state)
    for step in range(1, 8):
        save = ckpt.save(step)
        while not save.done():
            assert save.error is None
        assert save.error is None


def test_tensors_are_kept_as_long_as_the_gpu_may_read_them(gpu: FakeGpu, close_last: Open) -> None:
    job = Job(gpu)
    ckpt = close_last(job.state)
    ckpt.save(1).wait()
    assert ckpt._core.engine.read is not None
    gpu.control.stop(COPIES)
    save = ckpt.save(2)
    save._cancel()
    with pytest.raises(libckpt.CheckpointError):
        save.wait()
    # It has failed, and its copies are still to be made.
    held = ckpt._core.engine.read
    assert held is not None
    assert held.behind.parts[0].views
    gpu.control.stop(0)
    ckpt.save(3).wait()
    assert ckpt._core.engine.read is not held
    ckpt.close()
    assert ckpt._core.engine.read is None


def test_a_capture_is_left_alone_and_its_replay_waits(
    gpu: FakeGpu, close_last: Open, store: Any
) -> None:
    job, ckpt, save = stopped(gpu, close_last)
    gpu.capturing = True
    # What the library asks of a stream of the loop; its own thread may still be giving copies.
    asked = [b"cudaStreamIsCapturing", b"cudaStreamWaitEvent"]
    calls = list(map(gpu.control.calls, asked))
    job.optimizer.step()
    assert not save._fenced
    assert list(map(gpu.control.calls, asked)) == calls
    gpu.capturing = False
    ckpt.before_replay()
    gpu.zero(job.model.large)
    gpu.control.stop(0)
    save.wait()
    assert_step(store, 2, job)


def test_what_torch_counts_is_found_without_waiting(gpu: FakeGpu, close_last: Open) -> None:
    job, ckpt, save = stopped(gpu, close_last)
    torch.autograd.graph.increment_version([job.model.small])
    job.optimizer.step()
    assert isinstance(save.error, libckpt.TornSnapshotError)
    gpu.control.stop(0)
    with pytest.raises(libckpt.TornSnapshotError, match=r"step 2: small was changed in place"):
        save.wait()
    job.step()
    ckpt.save(3).wait()


def test_a_parameter_that_moves_is_saved_from_where_it_is(
    gpu: FakeGpu, close_last: Open, store: Any
) -> None:
    """As one that is offloaded to the host, and back."""
    job = Job(gpu)
    small, large = job.values["small"], job.values["large"]
    ckpt = close_last(job.state)
    ckpt.save(1).wait()
    job.model.small.data = small + 1
    job.model.large.data = large + 1
    job.optimizer.step()
    ckpt.save(2)
    job.optimizer.step()
    job.model.small.data = gpu.tensor(small + 2)
    job.model.large.data = gpu.tensor(large + 2)
    ckpt.save(3).wait()
    for step in (1, 2, 3):
        loaded = libckpt.load(store, step)["model"]
        assert torch.equal(loaded["small"], small + (step - 1))
        assert torch.equal(loaded["large"], large + (step - 1))
    ckpt.close()

    # What was saved of the one comes back to the other.
    other = Job(gpu, seed=9)
    ckpt = close_last(other.state)
    assert ckpt.resume(2) == 2
    assert torch.equal(gpu.read(other.model.large), large + 1)
    other.model.large.data = torch.zeros_like(large)
    assert ckpt.resume(3) == 3
    assert torch.equal(other.model.large, large + 2)
    assert torch.equal(gpu.read(other.model.small), small + 2)


def test_a_parameter_that_moves_under_a_save_is_found(gpu: FakeGpu, close_last: Open) -> None:
    job, ckpt, save = stopped(gpu, close_last)
    # Whoever frees the GPU's memory waits for the GPU; here it is kept.
    job.model.large.data = job.values["large"].clone()
    job.optimizer.step()
    assert isinstance(save.error, libckpt.TornSnapshotError)
    gpu.control.stop(0)
    with pytest.raises(libckpt.TornSnapshotError, match="large"):
        save.wait()
    ckpt.save(3).wait()


def test_generators_of_gpus_come_back(
    monkeypatch: pytest.MonkeyPatch, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    states = [torch.arange(16 * i, 16 * i + 16, dtype=torch.uint8) for i in range(2)]
    found: dict[int, torch.Tensor] = {}
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda, "get_rng_state_all", lambda: [state.clone() for state in states])
    monkeypatch.setattr(
        cuda, "set_rng_state", lambda state, index: found.update({index: state.clone()})
    )
    for here in (2, 1):
        monkeypatch.setattr(cuda, "device_count", lambda here=here: here)
        ckpt = opened({"x": torch.ones(3)})
        if here == 2:
            ckpt.save(1).wait()
        found.clear()
        assert ckpt.resume() == 1
        ckpt.close()
        assert sorted(found) == list(range(here))
        assert all(torch.equal(found[i], states[i]) for i in found)
    assert "generators of 2 CUDA devices, and 1 are here" in caplog.text


def test_nothing_of_cuda_is_called_for_tensors_of_the_cpu(gpu: FakeGpu, close_last: Open) -> None:
    calls = gpu.control.calls(None)
    ckpt = close_last({"x": torch.ones(5)})
    ckpt.save(1).wait()
    ckpt.close()
    assert gpu.control.calls(None) == calls


class Convnet(torch.nn.Sequential):
    """Weights with their channels last, a transposed one, and a part of what was permuted."""

    def __init__(self, gpu: FakeGpu, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(
            torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 96, 3)
        )
        self.to(memory_format=torch.channels_last)
        self.register_parameter("turned", torch.nn.Parameter(torch.randn(301, 200).t()))
        self.register_buffer("part", torch.randn(40, 50, 60).permute(2, 0, 1)[::2, 3:, 1:])
        self.values = {name: value.clone() for name, value in self.state_dict().items()}
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                there = torch.nn.Parameter(gpu.tensor(parameter.detach()), requires_grad=False)
                setattr(module, name, there)
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, gpu.tensor(buffer))

    def assert_holds(self, gpu: FakeGpu, values: dict[str, torch.Tensor]) -> None:
        for name, value in self.state_dict().items():
            assert torch.equal(gpu.read(value), values[name]), name


def test_a_convnet_with_its_channels_last_comes_back(
    gpu: FakeGpu, close_last: Open, store: Any
) -> None:
    model = Convnet(gpu, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert not model[0].weight.is_contiguous()
    assert not model.part.is_contiguous()
    ckpt = close_last({"model": model, "optimizer": optimizer})
    ckpt.save(1)
    optimizer.step()
    for parameter in model.parameters():
        gpu.zero(parameter)
    ckpt.save(2).wait()
    ckpt.close()
    for name, value in libckpt.load(store, 1)["model"].items():
        assert torch.equal(value, model.values[name]), name

    other = Convnet(gpu, 2)
    ckpt = close_last({"model": other, "optimizer": torch.optim.SGD(other.parameters())})
    assert ckpt.resume(1) == 1
    other.assert_holds(gpu, model.values)
    assert other[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("shape", "strides"), [((90, 20), (10, 1)), ((3, 900), (0, 1)), ((3, 2), (2, 3))]
)
def test_what_shares_memory_is_saved_and_not_restored_in_place(
    gpu: FakeGpu, close_last: Open, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    values = torch.arange(1000.0)
    live = gpu.tensor(values).as_strided(shape, strides)
    state = {"shared": live}
    ckpt = close_last(state)
    ckpt.save(1).wait()
    assert ckpt.resume(1) == 1
    assert state["shared"] is not live
    assert torch.equal(state["shared"], values.as_strided(shape, strides))
    module = torch.nn.Module()
    module.register_buffer("mask", live)
    ckpt.state = {"model": module}
    with pytest.raises(libckpt.UnsupportedStateError, match=r"mask has .* share memory"):
        ckpt.save(2)


def test_a_torn_convnet_is_found(gpu: FakeGpu, close_last: Open) -> None:
    model = Convnet(gpu, 3)
    optimizer = torch.optim.SGD(model.parameters())
    ckpt = close_last({"model": model, "optimizer": optimizer})
    ckpt.save(1).wait()
    save = ckpt.save(2)
    gpu.zero(model[2].weight)  # past the counters, and before the fence
    optimizer.step()
    with pytest.raises(libckpt.TornSnapshotError, match=r"tensor 2\.weight was changed"):
        save.wait()


def test_where_load_may_put_tensors(opened: Open, store: Any) -> None:
    opened({"x": torch.ones(5)}).save(1).wait()
    assert libckpt.load(store, map_location="cpu")["x"].device.type == "cpu"
    assert libckpt.load(store, map_location=torch.device("cpu"))["x"].sum() == 5
    with pytest.raises(ValueError, match="map_location='meta'"):
        libckpt.load(store, map_location="meta")
