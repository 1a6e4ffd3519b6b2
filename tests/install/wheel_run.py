# SPDX-License-Identifier: Apache-2.0
"""
A run on NumPy's arrays, saved at every tenth step.

usage: wheel_run.py train STORE STEPS [DIE]   says where it begins; dies by SIGKILL while step DIE is saved
       wheel_run.py show STORE                what the newest step holds
"""

import hashlib
import os
import signal
import sys

import numpy as np

import libckpt

EVERY = 10


def train(store: str, steps: int, die: int = 0) -> None:
    weights = np.zeros((1024, 1024), dtype=np.float32)
    state = {"weights": weights, "note": {"rate": 0.5, "seen": []}}
    with libckpt.Checkpointer(store, state=state) as ckpt:
        first = ckpt.resume()
        print("begins at", first, flush=True)
        for step in range(first, steps):
            weights += np.random.standard_normal(weights.shape)
            state["note"]["seen"].append(step)
            if (step + 1) % EVERY:
                continue
            save = ckpt.save(step + 1)
            if step + 1 == die:
                os.kill(os.getpid(), signal.SIGKILL)
            save.wait("local")


def show(store: str) -> None:
    state = libckpt.load(store)
    digest = hashlib.sha256(state["weights"].tobytes()).hexdigest()
    print(max(found.step for found in libckpt.list_steps(store)), digest, state["note"])


if __name__ == "__main__":
    np.random.seed(1)
    if sys.argv[1] == "train":
        train(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        show(sys.argv[2])
    assert "torch" not in sys.modules
