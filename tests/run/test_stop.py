# SPDX-License-Identifier: Apache-2.0
"""A signal to a run ends all that it has started."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

HERE = Path(__file__).parent
LIMIT = 60  # seconds
# Its own session hears nothing of what the run is told, and it does not end when it is asked to. The descriptor that
# its first argument names is open as long as it runs.
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
os.write(int(sys.argv[1]), b"%d" % os.getpid())
signal.pause()
"""
# A command that waits for such a child.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}, *sys.argv[1:]], close_fds=False)"
LANES = f"""
import functools, pathlib, subprocess, sys
import lanes, main
lanes.DIES = main.DIES = 0.1
lanes.subprocess.Popen = functools.partial(subprocess.Popen, pass_fds=[int(sys.argv[1])])
main.end_on_signals()
words = [sys.executable, "-c", {PARENT!r}, *sys.argv[1:]]
if sys.argv[2] == "alone":
    main.LOGS = pathlib.Path()
    main.once_more(main.Test("a", "hung", 0.0, alone=words))
else:
    run = lanes.Run([lanes.Step("a", sys.argv[2], lambda lane, _: lane.must(words))], pathlib.Path())
    run.go(lambda name, part: None)
"""


def end_by(number: signal.Signals, words: list[object], place: Path) -> int:
    """The exit code of a program that has got a signal when its child has told that it runs; both have ended."""
    reader, writer = os.pipe()
    program = [str(word) for word in words]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "TOLD": f"{writer}"}
    # A run in the background of a shell has SIGINT ignored, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*program, f"{writer}"], pass_fds=[writer], cwd=place, env=environment) as process:
        signal.signal(signal.SIGINT, before)
        os.close(writer)
        child = int(os.read(reader, 16))
        process.send_signal(number)
        nobody_has_it = select.select([reader], [], [], LIMIT)[0]
        if not nobody_has_it:
            process.kill()
            os.kill(child, signal.SIGKILL)
    os.close(reader)
    assert nobody_has_it, f"hang limit: {LIMIT} s waited for the end of process {child}"
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("what", ["cpu", "alone"])
def test_what_tests_have_started_ends(what: str, number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "run.py"
    program.write_text(LANES.replace("sys.argv[2]", repr(what)))
    assert end_by(number, [sys.executable, program], tmp_path) == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_sets_up_the_run_ends(number: signal.Signals, tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("test", "lib.sh"):
        shutil.copy(ROOT / "scripts" / name, scripts)
    program = "import os, signal; os.write(int(os.environ['TOLD']), b'%d' % os.getpid()); signal.pause()"
    setup = scripts / "setup"
    setup.write_text(f"""#!/usr/bin/env bash
		. scripts/lib.sh
		quietly {sys.executable} -c "{program}"
		touch went-on
	""")
    setup.chmod(0o755)
    assert end_by(number, [scripts / "test"], tmp_path) == 128 + number
    assert not (tmp_path / "went-on").exists()
