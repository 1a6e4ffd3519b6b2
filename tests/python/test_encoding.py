# SPDX-License-Identifier: Apache-2.0
"""encoding="compact": smaller files, and the same bytes."""

import copy
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from conftest import assert_same
from ranks import together

import libckpt


class Mixed:
    """A training in bf16 with AdamW on fp32 master weights, as in large models."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        width = 192
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(512, width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width),
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 512),
        ).bfloat16()
        self.master = copy.deepcopy(self.model).float()
        self.optimizer = torch.optim.AdamW(self.master.parameters(), lr=1e-3)
        self.state: dict[str, Any] = {
            "model": self.model,
            "master": self.master,
            "optimizer": self.optimizer,
        }

    def pairs(self) -> Iterator[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        return zip(self.model.parameters(), self.master.parameters(), strict=True)

    def step(self) -> None:
        tokens = torch.randint(0, 512, (2, 33))
        logits = self.model(tokens[:, :-1]).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for parameter, master in self.pairs():
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.pairs():
                parameter.copy_(master)

    def snapshot(self) -> Any:
        return (
            {name: p.detach().clone() for name, p in self.model.state_dict().items()},
            {name: p.detach().clone() for name, p in self.master.state_dict().items()},
            self.optimizer.state_dict(),
        )


def names(store: Path, suffix: str) -> list[str]:
    return sorted(path.parent.name for path in store.glob(f"g*/step-*/*.{suffix}"))


def test_a_mixed_training_is_resumed(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bit for bit, from a file that is smaller; a store may have steps of both kinds."""
    caplog.set_level(logging.INFO, "libckpt")
    run = Mixed(1)
    for _ in range(3):
        run.step()
    ckpt = opened(run.state, encoding="compact", pool_bytes=64 << 20)
    save = ckpt.save(1)
    save.wait()
    (path,) = store.glob("g*/step-0000000001/*.encoded")
    assert save.info.bytes_stored == path.stat().st_size
    # About 1.47; without the search for master weights 1.38.
    assert save.info.bytes > 1.43 * save.info.bytes_stored
    ckpt.close()
    assert "times smaller)" in caplog.text
    again = Mixed(2)
    ckpt = opened(again.state, pool_bytes=64 << 20)
    assert ckpt.resume() == 1
    assert_same(again.snapshot(), run.snapshot())
    ckpt.save(2).wait()
    ckpt.close()
    assert names(store, "encoded") == ["step-0000000001"]
    assert names(store, "safetensors") == ["step-0000000002"]
    report = libckpt.load(store, step=1)
    assert set(report["model"]) == set(run.model.state_dict())


def test_steps_are_differences(opened: Any, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What has not changed is not written again; each step that is needed is there, bit for bit."""
    caplog.set_level(logging.INFO, "libckpt")
    frozen = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    head = torch.zeros(1000)
    state = {"frozen": frozen, "head": head}
    sizes = []
    with opened(state, encoding="delta", pool_bytes=128 << 20, keep_last=2) as ckpt:
        for step in range(1, 6):
            head += step
            save = ckpt.save(step)
            save.wait()
            sizes.append(save.info.bytes_stored)
    assert max(sizes[1:]) < sizes[0] / 50
    assert caplog.text.count("as the difference to the last step") == 4
    # Two are kept, and all that they need.
    assert [step.step for step in libckpt.list_steps(store)] == [5, 4, 3, 2, 1]
    for step in range(1, 6):
        loaded = libckpt.load(store, step=step)
        assert torch.equal(loaded["frozen"], frozen)
        assert torch.equal(loaded["head"], torch.full((1000,), step * (step + 1) / 2.0))
    again = {"frozen": torch.empty_like(frozen), "head": torch.empty_like(head)}
    with opened(again, encoding="delta", pool_bytes=128 << 20, keep_last=2) as ckpt:
        assert ckpt.resume() == 5
        assert torch.equal(again["frozen"], frozen)
        # The first one of a process needs no other. Two such make the others expire.
        save = ckpt.save(6)
        save.wait()
        assert save.info.bytes_stored > sizes[0] / 2


def test_other_values_are_refused(opened: Any) -> None:
    encoding: Any
    for encoding in ("zstd", "", None, 1):
        with pytest.raises((TypeError, ValueError), match="encoding"):
            opened({"x": 1}, encoding=encoding)
        if encoding is not None:
            with pytest.raises((TypeError, ValueError), match="remote_encoding"):
                opened({"x": 1}, remote_encoding=encoding)


@pytest.mark.parametrize("there", ["compact", "plain"])
def test_another_form_in_the_remote_store(
    opened: Any, store: Path, tmp_path: Path, there: Literal["compact", "plain"]
) -> None:
    """Plain here and compact there, or the other way round; what is lost here comes from there."""
    here, forms = ("plain", ("safetensors", "encoded"))
    if there == "plain":
        here, forms = ("compact", ("encoded", "safetensors"))
    remote = tmp_path / "remote"
    run = Mixed(1)
    run.step()
    options: Any = {"encoding": here, "remote": remote, "remote_encoding": there}
    ckpt = opened(run.state, pool_bytes=64 << 20, **options)
    ckpt.save(1).wait("remote")
    ckpt.close()
    assert names(store, forms[0]) == names(remote, forms[1]) == ["step-0000000001"]
    assert not names(store, forms[1])
    assert not names(remote, forms[0])
    encoded, plain = (
        next(at.glob(f"g*/step-*/*.{form}")).stat().st_size
        for form in ("encoded", "safetensors")
        for at in (store, remote)
        if names(at, form)
    )
    assert plain > 1.25 * encoded
    shutil.rmtree(store)
    again = Mixed(2)
    ckpt = opened(again.state, pool_bytes=64 << 20, **options)
    assert ckpt.resume() == 1
    assert_same(again.snapshot(), run.snapshot())
    ckpt.close()


def save_and_resume(store: Path, encoding: Literal["plain", "compact"]) -> tuple[float, float]:
    """What this rank has of its own, and what it is after a resume."""
    rank = torch.distributed.get_rank()
    own = torch.full((50000,), float(rank + 1))
    state = {"own": libckpt.PerRank(own), "shared": torch.arange(100000.0)}
    with libckpt.Checkpointer(store, state, encoding=encoding) as ckpt:
        ckpt.save(1).wait("local")
    own.zero_()
    with libckpt.Checkpointer(store, state) as ckpt:
        assert ckpt.resume() == 1
    return float(rank + 1), float(own.sum() / 50000)


def test_ranks_save_compact(store: Path, tmp_path: Path) -> None:
    for before, after in together(2, tmp_path, save_and_resume, store, "compact"):
        assert before == after
    assert len(names(store, "encoded")) == 2
    assert not names(store, "safetensors")
