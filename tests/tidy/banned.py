# SPDX-License-Identifier: Apache-2.0
"""Functions that nobody calls here, or that one file alone calls."""

import re

from tree import line_of

C = r"\.(c|h)$"
LIBRARY = r"^libckpt/.*\.(c|h)$"
TESTS_C = r"^tests/.*\.(c|h)$"

ONLY = r"^libckpt/base/({})\.c$"
ALLOCATORS = "malloc calloc realloc reallocarray strdup strndup asprintf vasprintf"
OUTPUT = "printf puts putchar perror fprintf vfprintf syslog"
SLEEPS = "sleep usleep nanosleep clock_nanosleep thrd_sleep"

# (where, functions, why not, the files that may or None)
RULES = [
    (C, "strcpy strcat stpcpy strncpy strncat sprintf vsprintf gets", "knows no bounds", None),
    (C, "strtok atoi atol atoll atof", "hides errors; strtoull with its end", None),
    (C, "system popen", "runs a shell", None),
    (C, "rand srand random srandom drand48", "the environment has the randomness", None),
    (C, "alloca setjmp longjmp mktemp tmpnam tempnam vfork", "not safe", None),
    (LIBRARY, ALLOCATORS, "base/alloc.h, whose failure is tested", ONLY.format("alloc")),
    (LIBRARY, "assert", "CKPT_ASSERT stays on in releases", None),
    (LIBRARY, "abort exit _exit", "a library does not end the program", ONLY.format("error")),
    (LIBRARY, OUTPUT, "base/log.h", ONLY.format("error")),
    (LIBRARY, "signal sigaction atexit", "a library installs no handlers", None),
    (
        LIBRARY,
        "time gettimeofday clock clock_gettime",
        "the environment has the clock",
        ONLY.format("thread|env_os|log"),
    ),
    (LIBRARY, "getrandom getentropy", "the environment has the randomness", ONLY.format("env_os")),
    (LIBRARY, "pthread_create", "ckpt_thread_start blocks the signals", ONLY.format("thread")),
    # The number of ranks on this node, which launchers say there and nowhere else.
    (LIBRARY, "getenv setenv", "options are options", r"^libckpt/staging/pool\.c$"),
    (LIBRARY, SLEEPS, "wait for what you wait for", None),
    (TESTS_C, SLEEPS, "a test that sleeps is right by luck", None),
]

PYTHON_SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\(|\bfrom time import [^\n]*\bsleep\b")
SHELL_SLEEP = re.compile(r"^\s*sleep\s+[\d.]", re.MULTILINE)
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def _c(tree):
    for where, names, why, files in RULES:
        call = re.compile(r"(?<![\w.>])(" + "|".join(names.split()) + r")\s*\(")
        for path in tree.paths(where):
            if files and re.search(files, path):
                continue
            code = tree.code(path)
            for match in call.finditer(code):
                yield path, line_of(code, match.start()), f"{match.group(1)}(): {why}"


def _in_while(text, offset):
    """Whether what stands there is in a loop that looks again: then it is no bet on the time."""
    lines = text[: text.find("\n", offset)].split("\n")
    depth = len(lines[-1]) - len(lines[-1].lstrip())
    for line in reversed(lines[:-1]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            if re.match(r"\s*while\b", line):
                return True
            depth = indent
    return False


def _sleeps(tree):
    scripts = r"^(tests|scripts)/[^.]*$"
    for pattern, sleep in ((r"^tests/.*\.py$", PYTHON_SLEEP), (scripts, SHELL_SLEEP)):
        for path in tree.paths(pattern):
            text = tree.files[path]
            for match in sleep.finditer(text):
                if not _in_while(text, match.start()):
                    yield path, line_of(text, match.start()), "a test that sleeps is right by luck"


def _texts(tree):
    # Written in two halves, so that this file does not name them.
    foreign = re.compile(r"\.\./sha" + r"red\b|(?<![\w])\.libra" + r"ry\b")
    for path, text in sorted(tree.files.items()):
        for match in foreign.finditer(text):
            yield path, line_of(text, match.start()), f"{match.group()} is not part of the project"
        for match in UNFINISHED.finditer(text) if re.search(r"\.(c|h|py|build)$", path) else ():
            yield (
                path,
                line_of(text, match.start()),
                f"{match.group()}: finish it",
            )


def check(tree):
    yield from _c(tree)
    yield from _sleeps(tree)
    yield from _texts(tree)
