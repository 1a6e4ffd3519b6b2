# SPDX-License-Identifier: Apache-2.0
"""What is forked from a server ends, reads and writes as a process of its own would."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from forked import Forked
from waiting import ended, finished

PLACE = Path(__file__).parent

#: forked.py without what takes seconds to import, and with a destructor.
QUICK = f"""
import ctypes, sys; sys.path.insert(0, {str(PLACE)!r})
libc = ctypes.CDLL(None); libc.strdup.restype = ctypes.c_void_p
libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(b"the server ends")), None)
import forked; forked._SLOW = (); forked.main()
"""
#: Asks for a program on its standard input, says what came of it, and ends.
MODULE = f"""
import forked, os, signal, subprocess, sys
last = [forked.Forked("pass", destructors=well).communicate()[0] for well in (False, True)]
assert last == ["", "the server ends\\n"], last
asked = "import sys; print(sys.stdin.readline().strip(), sys.argv, flush=True); {{}}"
own = dict(os.environ, CKPT_TEST_FULL="")  # whether destructors run is asked above
words = [sys.executable, "-S", {str(PLACE / "forked.py")!r}, "-u", "-c", asked.format(sys.argv[1])]
done = subprocess.run(
    words, env=own, input="hello\\n", capture_output=True, text=True, check=False
)
print(done.stdout.strip(), done.returncode, flush=True)
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("program", "program_ends", "module", "module_ends"),
    [
        ("pass", 0, "pass", 0),
        ("sys.exit(5)", 5, "sys.exit(7)", 7),
        ("1 / 0", 1, "1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", 137, "os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
@pytest.mark.slices(1)
def test_both_end_as_what_they_run(
    tmp_path: Path, program: str, program_ends: int, module: str, module_ends: int
) -> None:
    (tmp_path / "asks.py").write_text(MODULE)
    words = ["-m", "asks", program, module]
    done = finished([sys.executable, "-c", QUICK, *words], cwd=tmp_path)
    assert done.stdout == f"hello ['-c'] {program_ends}\nthe server ends\n", done.stderr
    assert done.returncode == module_ends, done.stderr


def test_all_that_a_program_has_made_is_ended() -> None:
    program = """
import atexit, ctypes, sys, threading
libc = ctypes.CDLL(None); libc.strdup.restype = ctypes.c_void_p
libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(b"destructor")), None)
atexit.register(print, "atexit")
goes_on = threading.Event()
threading.Thread(target=lambda: goes_on.wait() and print("thread")).start()
class Thing:
    def __del__(self): print("deleted")
thing = Thing()
goes_on.set()
sys.exit(3)
"""
    one = Forked(program)
    assert ended(one)[0].split() == ["thread", "atexit", "deleted", "destructor"]
    assert one.returncode == 3


def test_no_two_have_the_same_luck() -> None:
    program = "import random; print(random.random())"
    both = [Forked(program) for _ in range(2)]
    said = {ended(one)[0] for one in both}
    assert len(said) == 2
    killed = Forked("import signal; signal.pause()")
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
