# SPDX-License-Identifier: Apache-2.0
"""`import libckpt` is quick and does nothing: no torch, no thread, no handler, no file."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time, threading, signal, gc, os, json
before = {n: signal.getsignal(n) for n in signal.valid_signals() if n not in (9, 19)}
files = set(os.listdir("/proc/self/fd"))
start = time.process_time()
import libckpt
took = time.process_time() - start
after = {n: signal.getsignal(n) for n in signal.valid_signals() if n not in (9, 19)}
print(json.dumps({
    "took": took,
    "heavy": sorted({"torch", "numpy", "cffi", "asyncio", "inspect"} & set(sys.modules)),
    "threads": len(os.listdir("/proc/self/task")),
    "python_threads": threading.active_count(),
    "handlers": before == after,
    "files": sorted(set(os.listdir("/proc/self/fd")) - files),
    "all": sorted(libckpt.__all__) == sorted(set(libckpt.__all__)),
    "missing": [name for name in libckpt.__all__ if not hasattr(libckpt, name)],
}))
"""


def imported(cache: Path) -> dict[str, object]:
    """Imports in a process of its own, with bytecode as an installed package has it."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    return json.loads(done.stdout)


def test_the_import_does_nothing(tmp_path: Path) -> None:
    seen = imported(tmp_path)
    assert seen["heavy"] == []
    assert seen["threads"] == 1
    assert seen["python_threads"] == 1
    assert seen["handlers"] is True
    assert seen["files"] == []
    assert seen["all"] is True
    assert seen["missing"] == []


def test_the_import_takes_less_than_50_ms(tmp_path: Path) -> None:
    # The processor's time: how long others keep it is not ours to promise.
    imported(tmp_path)
    assert min(imported(tmp_path)["took"] for _ in range(5)) < 0.050
