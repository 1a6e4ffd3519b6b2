# SPDX-License-Identifier: Apache-2.0
"""
Programs and ranks of tests that need torch, which takes seconds to import: a server imports it
once, for all workers of a test run, and forks for each. The server has one thread and has opened no
store, so that what a program finds is what it would find in a process of its own.

usage: forked.py -m MODULE ARGUMENTS...   is the server itself, as long as this runs
       forked.py -u -c PROGRAM            in a process of the server that runs
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from waiting import until

FULL = bool(os.environ.get("CKPT_TEST_FULL"))

_PLACE = str(Path(__file__).parent)
_STARTED = "import sys; sys.path.insert(0, {place!r}); import forked; forked.serve({fd})"
#: Modules that are slow to import, and start no thread. LIBCKPT_TESTS_IMPORT may name others.
_SLOW = (
    "torch._dynamo",
    "torch.utils._sympy.reference",
    "torch.distributed.checkpoint.state_dict",
    "safetensors.torch",
    "botocore.auth",
    "ranks",
    "conftest",
)
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_MESSAGE = 1 << 16
_NEW_NETWORK = 0x40000000


class Server:
    """Makes processes, as long as somebody may ask it for one."""

    def __init__(self) -> None:
        # All workers of a run have the same one, and what they start, too.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
        self._name = os.environ.setdefault("LIBCKPT_TESTS_FORK_AT", f"\1libckpt-tests-{run}")
        self._name = self._name.replace("\1", "\0")
        self._socket = _new_socket()
        until(self._is_connected, "the server of forked programs to answer")

    def _is_connected(self) -> bool:
        with _new_socket() as listening:
            try:
                listening.bind(self._name)
                listening.listen(64)
            except OSError:  # another one has started it
                pass
            else:
                self._start(listening)
        try:
            self._socket.connect(self._name)
        except ConnectionRefusedError:
            return False
        return True

    @staticmethod
    def _start(listening: socket.socket) -> None:
        subprocess.Popen(
            [sys.executable, "-c", _STARTED.format(place=_PLACE, fd=listening.fileno())],
            pass_fds=[listening.fileno()],
            env=os.environ | _ONE_THREAD,
            stdin=subprocess.DEVNULL,
        )

    def start(self, files: list[int], how: dict[str, Any]) -> int:
        """The id of a new process. `files`: its streams, and where its end is told."""
        with contextlib.ExitStack() as stack:
            text = os.memfd_create("program")
            stack.callback(os.close, text)
            with open(os.dup(text), "w") as file:
                json.dump(how, file)
            socket.send_fds(self._socket, [b"program"], [text, *files])
            answer = self._socket.recv(_MESSAGE)
        if not answer:
            raise RuntimeError("the server of forked programs is gone")
        return int(answer)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@functools.cache
def _server(_pid: int) -> Server:
    return Server()


class Forked(subprocess.Popen[str]):
    """
    What Popen is to `python -c PROGRAM ARGUMENTS...`. `streams`: descriptors for the standard ones;
    None is a pipe, and of stdin nothing. `session`: it has one of its own; `network`: the namespace
    that it is in. `destructors`: those of torch's libraries run at its end; None: with --full.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        streams: tuple[int | None, int | None, int | None] = (None, None, None),
        session: bool = False,
        network: str | None = None,
        destructors: bool | None = None,
    ) -> None:
        self.args = ["forked", program, *arguments]
        self.stdin, self.stdout, self.stderr = None, None, None
        self.returncode: int | None = None
        self.text_mode, self.encoding, self.errors = True, None, None
        self._communication_started, self._input = False, None
        self._sigint_wait_secs = 0.25
        self._child_created = True
        self._end, told = os.pipe2(os.O_CLOEXEC)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, told)

            def mine(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            files = [streams[0]] if streams[0] is not None else []
            if not files:
                files.append(mine(os.open(os.devnull, os.O_RDONLY)))
            for number, name in ((1, "stdout"), (2, "stderr")):
                given = streams[number]
                if given is None:
                    here, there = os.pipe2(os.O_CLOEXEC)
                    setattr(self, name, os.fdopen(here))
                    given = mine(there)
                files.append(given)
            how = {
                "program": program,
                "arguments": list(arguments),
                "environment": dict(os.environ) | (environment or {}),
                "place": os.getcwd(),
                "session": session,
                "network": network,
                "destructors": FULL if destructors is None else destructors,
            }
            self.pid = _server(os.getpid()).start([*files, told], how)

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            # Nothing: the server was killed, and nobody knows.
            self.returncode = int(os.read(self._end, _MESSAGE) or -signal.SIGKILL)
            os.close(self._end)
        return self.returncode is not None

    def poll(self) -> int | None:
        self._ended(0)
        return self.returncode

    _internal_poll = poll

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def __del__(self, *_: Any, **__: Any) -> None:
        if self.returncode is None:
            os.close(self._end)


#: A file as the main program, with its arguments.
_FILE = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: A module as the main program, with its arguments.
_MODULE = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.getcwd())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_AGENT = """
import forked, sys
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
SubprocessHandler._popen = forked.start_rank
run.main(sys.argv[1:])
"""


def start_file(file: Path, *words: object, **options: Any) -> Forked:
    """What `python FILE WORDS...` is."""
    return Forked(_FILE, str(file), *map(str, words), **options)


def torchrun(*words: object, **options: Any) -> Forked:
    """Its agent, whose ranks are forked as well."""
    return Forked(_AGENT, *map(str, words), **options)


def start_rank(_handler: Any, command: tuple[str, ...], environment: dict[str, str]) -> Forked:
    """What the agent has for it: python -u FILE ARGUMENTS..."""
    assert command[1] == "-u"
    streams = None, 1, 2
    return Forked(_FILE, *command[2:], environment=environment, streams=streams, session=True)


# The server.


def serve(fd: int, first: dict[str, Any] | None = None) -> None:
    """
    Until nobody can ask any more, or `first` has ended, which exits as that did. Returns in each
    program's process, too, when it has run.
    """
    os.set_inheritable(fd, False)
    for name in os.environ.get("LIBCKPT_TESTS_IMPORT", "").split() or _SLOW:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each program would copy all of it when it collects its garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end, and so does this
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    listening = socket.socket(fileno=fd)
    asking: list[socket.socket] = []
    told: dict[int, int] = {}
    over: list[int] = []

    def fork() -> int:
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for one in (listening, *asking):
                one.close()
            for other in (woken, wake, *over, *told.values()):
                os.close(other)
            # As in a process of its own. NumPy's and torch's are for a test to seed.
            random.seed()
        return child

    if first is not None:
        end, tell = os.pipe2(os.O_CLOEXEC)
        child = fork()
        if child == 0:
            os.close(end)
            os.close(tell)
            _run(**first)
            return
        told[child] = tell
        over.append(end)
    while True:
        ready = select.select([listening, woken, *over, *asking], [], [])[0]
        if woken in ready:
            os.read(woken, _MESSAGE)
            _reap(told)
        if over and over[0] in ready:
            _exit(int(os.read(over[0], _MESSAGE)))
        if listening in ready:
            asking.append(listening.accept()[0])
        for client in [one for one in asking if one in ready]:
            message, files, _, _ = socket.recv_fds(client, _MESSAGE, 8)
            if not message:
                client.close()
                asking.remove(client)
                if not asking and first is None:
                    return
                continue
            child = fork()
            if child == 0:
                _become(files)
                return
            how, *streams, told[child] = files
            for file in (how, *streams):
                os.close(file)
            client.send(str(child).encode())


def _reap(told: dict[int, int]) -> None:
    for child in list(told):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            end = told.pop(child)
            with contextlib.suppress(BrokenPipeError):
                os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(end)


def _end_early() -> None:
    """
    Leaves out the last part of this process's end: the handlers of exit(3) that the server has
    registered, which are the destructors of torch's libraries. They write to half of the pages that
    are shared with the server, each of which the kernel then copies. Python ends as it always does.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # before it


def _become(files: list[int]) -> None:
    how, *streams, told = files
    os.close(told)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    with open(how) as text:
        text.seek(0)
        _run(**json.load(text))


def _run(  # noqa: PLR0917
    program: str,
    arguments: list[str],
    environment: dict[str, str],
    place: str,
    session: bool,
    network: str | None,
    destructors: bool,
) -> None:
    """As `python -c` would."""
    if not destructors:
        _end_early()
    if session:
        os.setsid()
    if network is not None:
        _enter(network)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    sys.argv = ["-c", *arguments]
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    exec(compile(program, "<string>", "exec"), main.__dict__)


def _enter(network: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{network}") as file:
        if libc.setns(file.fileno(), _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")


def _exit(code: int) -> NoReturn:
    """As a shell exits, of whose last program this is told."""
    sys.exit(code if code >= 0 else 128 - code)


def main() -> None:
    """As `python` with these arguments."""
    if sys.argv[1:3] == ["-u", "-c"]:
        program = Forked(*sys.argv[3:], streams=(0, 1, 2))
        _exit(program.wait())
    assert sys.argv[1] == "-m"
    own = dict(os.environ)
    own["LIBCKPT_TESTS_FORK_AT"] = f"\1libckpt-tests-{os.getpid()}"
    listening = _new_socket()
    listening.bind(own["LIBCKPT_TESTS_FORK_AT"].replace("\1", "\0"))
    listening.listen(64)
    os.environ |= _ONE_THREAD
    first = {
        "program": _MODULE,
        "arguments": sys.argv[2:],
        "environment": own,
        "place": os.getcwd(),
        "session": False,
        "network": None,
        "destructors": False,
    }
    serve(listening.detach(), first)


__all__ = ["Forked", "serve", "start_rank", "torchrun"]

if __name__ == "__main__":
    # By its name, of which others have it.
    importlib.import_module("forked").main()
