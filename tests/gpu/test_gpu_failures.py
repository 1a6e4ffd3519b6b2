# SPDX-License-Identifier: Apache-2.0
"""A GPU that fails takes the save with it, and nothing else."""

import sys
from pathlib import Path

from gpu_rig import finished

import libckpt

#: A kernel that asserts leaves its process without a usable GPU.
LOST = """
import sys
import torch
sys.path.insert(0, sys.argv[2])
from gpu_rig import big
import libckpt

state = big("cuda", fused=True)
ckpt = libckpt.Checkpointer(
    sys.argv[1], state, pool_bytes=1 << 20, on_error=lambda error: None, save_timeout=20
)
ckpt.save(1).wait()
there = torch.arange(10, device="cuda")
there[torch.tensor([1 << 20], device="cuda")]
try:
    save = ckpt.save(2)
    save.wait()
    print("saved")
except libckpt.CheckpointError as error:
    print(type(error).__name__, error)
except RuntimeError as error:
    print("torch:", str(error).splitlines()[0])
try:
    torch.cuda.synchronize()
    print("the GPU is well")
except RuntimeError:
    print("the GPU is lost")
ckpt.close()
print("closed", flush=True)
"""


def test_a_lost_gpu_fails_the_save_and_no_earlier_one(store: Path, gpu: str) -> None:
    command = [sys.executable, "-c", LOST, str(store), str(Path(__file__).parent)]
    done = finished(command)
    lines = done.stdout.splitlines()
    assert "the GPU is lost" in lines, done.stdout + done.stderr
    assert "closed" in lines, done.stdout + done.stderr
    assert "saved" not in lines
    assert [info.step for info in libckpt.list_steps(store)] == [1]
    assert libckpt.load(store, 1)["model"]["0.weight"].isfinite().all()
