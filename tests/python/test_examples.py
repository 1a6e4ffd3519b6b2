# SPDX-License-Identifier: Apache-2.0
"""What examples/ shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import torchrun
from waiting import ended

import libckpt

ROOT = Path(__file__).resolve().parents[2]


def train(program: str, store: Path, ranks: int, steps: int) -> dict[int, float]:
    """Runs an example; the loss of every step that it has trained."""
    agent = torchrun(
        *("--standalone", "--nproc-per-node", ranks, ROOT / "examples" / program, store),
        *("--steps", steps, "--every", 4),
    )
    out, err = ended(agent)
    assert agent.returncode == 0, err
    found = re.findall(r"^step (\d+) loss (\S+)$", out, re.M)
    return {int(step): float(loss) for step, loss in found}


@pytest.mark.parametrize("program", ["fsdp.py", "dcp.py"])
def test_training_goes_on_where_it_was_with_other_ranks(tmp_path: Path, program: str) -> None:
    whole = train(program, tmp_path / "whole", 2, 12)
    assert list(whole) == list(range(1, 13))
    first = train(program, tmp_path / "parts", 2, 8)
    assert first == {step: whole[step] for step in range(1, 9)}
    rest = train(program, tmp_path / "parts", 3, 12)
    assert list(rest) == list(range(9, 13))
    for step, loss in rest.items():
        assert loss == pytest.approx(whole[step], rel=1e-4)
    steps = [(info.step, info.world) for info in libckpt.list_steps(tmp_path / "parts")]
    assert sorted(steps) == [(4, 2), (8, 2), (12, 3)]
