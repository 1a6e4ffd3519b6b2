# SPDX-License-Identifier: Apache-2.0
"""What the tests without a GPU take for granted of the CUDA runtime, asked of the real one."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from gpu_rig import finished

ROOT = Path(__file__).resolve().parents[2]
#: scripts/gpu-check carries them along and says where they are.
PLACE = Path(os.environ.get("CKPT_TEST_PROGRAMS", ROOT / "build" / "tests" / "unit" / "device"))


def runtime() -> list[str]:
    """Where torch's own libcudart lies: it comes with torch, or in a package beside it."""
    above = Path(torch.__file__).parent
    found = [*above.glob("lib/libcudart*"), *above.parent.glob("nvidia/**/libcudart.so*")]
    return sorted({str(path.parent) for path in found})


@pytest.mark.parametrize("name", ["test_cuda_conformance"])
def test_the_real_runtime_is_as_the_fake_one(gpu: str, name: str) -> None:
    program = PLACE / name
    if not program.exists():
        pytest.fail(f"{program} is not there: scripts/gpu-check --pack puts it into the kit")
    paths = [*runtime(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {
        **os.environ,
        "CKPT_TEST_CUDA": "real",
        "LD_LIBRARY_PATH": ":".join(paths),
    }
    done = finished([program], env=environment)
    said = done.stdout + done.stderr
    print(said, file=sys.stderr)
    assert done.returncode == 0, said
    # It skips all when it finds no runtime, which a machine with a GPU has.
    assert len(re.findall(r"\[ +OK \]", said)) > len(re.findall(r"\[ +SKIPPED \]", said)), said
