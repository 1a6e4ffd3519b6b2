# SPDX-License-Identifier: Apache-2.0
"""`import libckpt` is quick and does nothing: no torch, no thread, no handler, no file."""

import json
import os
import statistics
import sys
from pathlib import Path

import pytest
from waiting import finished

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


def said_by(program: str, cache: Path) -> str:
    """What a process of its own prints, which has bytecode as of an installed package."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = finished([sys.executable, "-c", program], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_does_nothing(tmp_path: Path) -> None:
    seen = json.loads(said_by(PROGRAM, tmp_path))
    assert seen["heavy"] == []
    assert seen["threads"] == 1
    assert seen["python_threads"] == 1
    assert seen["handlers"] is True
    assert seen["files"] == []
    assert seen["all"] is True
    assert seen["missing"] == []


#: Of Python's own modules, as many as take some times longer.
OTHERS = """
import time
start = time.process_time()
import asyncio, http.client, multiprocessing.pool, unittest.mock, xml.dom.minidom, email.mime.text
print(time.process_time() - start)
"""


@pytest.mark.no_oracle
def test_the_import_is_quicker_than_of_a_few_modules_of_python(tmp_path: Path) -> None:
    # The processor's time: neither how long others keep it nor how fast it is is ours to promise.
    ours, theirs = [], []
    for _ in range(8):  # the first of each compiles
        ours.append(float(json.loads(said_by(PROGRAM, tmp_path))["took"]))
        theirs.append(float(said_by(OTHERS, tmp_path)))
    assert statistics.median(ours[1:]) < statistics.median(theirs[1:]), (ours, theirs)
