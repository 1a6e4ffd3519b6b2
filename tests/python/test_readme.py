# SPDX-License-Identifier: Apache-2.0
"""What README.md shows works as it stands there."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import torch

import libckpt

ROOT = Path(__file__).resolve().parents[2]


def examples():
    """The indented blocks of the section on Python, in order."""
    text = (ROOT / "README.md").read_text()
    section = text.split("## Use it from Python\n")[1].split("\n## ")[0]
    return [
        textwrap.dedent(block)
        for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.M)
    ]


class Loader:
    def __init__(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def world(total_steps):
    """What the loop of the README finds: a model and so on, and how to train."""
    torch.manual_seed(1)
    model, loader = Model(), Loader()
    opt = torch.optim.AdamW(model.parameters())
    sched = torch.optim.lr_scheduler.StepLR(opt, 10)
    trained = []

    def train_one_step():
        opt.zero_grad()
        model(torch.randn(2, 8)).square().sum().backward()
        opt.step()
        sched.step()
        loader.position += 1
        trained.append(loader.position)

    return {
        "model": model,
        "opt": opt,
        "sched": sched,
        "loader": loader,
        "train_one_step": train_one_step,
        "total_steps": total_steps,
        "trained": trained,
    }


@pytest.fixture
def blocks(tmp_path):
    *found, _ = [block.replace("/nvme/run42", str(tmp_path / "run42")) for block in examples()]
    assert len(found) == 2
    return found


def test_the_loop_saves_and_resumes(blocks):
    first = world(450)
    exec(blocks[0], first)
    assert len(first["trained"]) == 450
    second = world(1250)
    exec(blocks[0], second)
    assert second["trained"] == list(range(401, 1251))
    loaded = {"libckpt": libckpt}
    exec(blocks[1], loaded)


def test_what_is_loaded_is_what_was_saved(blocks, tmp_path):
    names = world(1200)
    exec(blocks[0], names)
    state = libckpt.load(tmp_path / "run42")
    weight = names["model"].layers[0].weight
    assert torch.equal(state["model"]["layers.0.weight"], weight)
    some = libckpt.load(tmp_path / "run42", step=1200, names=["layers.0.*"])
    assert set(some) == {"layers.0.weight", "layers.0.bias"}
    assert [info.step for info in libckpt.list_steps(tmp_path / "run42")] == [1200, 1100, 1000]


def test_the_command_for_many_ranks_names_what_there_is(tmp_path):
    """The example itself is run by the tests of the examples."""
    words = shlex.split(examples()[-1])
    assert words[0] == "torchrun"
    script = next(word for word in words if word.endswith(".py"))
    assert (ROOT / script).is_file()
