#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of N slices of a test, another one for each tree that is committed.

usage: draw.py N[:FULL] PROGRAM [ARGUMENT...]

PROGRAM gets `--slice I/N` as its last argument. CKPT_TEST_SLICE is a text that decides I; scripts/test
sets it, and without it HEAD's tree is asked for. With CKPT_TEST_FULL=1 it is one of FULL slices (1: everything), with
CKPT_TEST_SMALLER=K one of K times N.
"""

import hashlib
import os
import pathlib
import subprocess
import sys


def tree() -> str:
    """The hash of HEAD's tree. A new message for a commit leaves it as it is."""
    here = pathlib.Path(__file__).resolve().parent
    asked = subprocess.run(
        ["git", "-C", here, "rev-parse", "HEAD^{tree}"], check=False, capture_output=True, text=True
    )
    return asked.stdout.strip()


def smaller() -> int:
    """How many times smaller than in the run of a commit a slice is."""
    return int(os.environ.get("CKPT_TEST_SMALLER") or 1)


def number(of: int, what: str) -> int:
    """Which of so many slices this run does of a test."""
    text = f"{os.environ.get('CKPT_TEST_SLICE') or tree()} {what}"
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % of


def main() -> None:
    slices, program, *arguments = sys.argv[1:]
    part, _, full = slices.partition(":")
    of = int(full or 1) if os.environ.get("CKPT_TEST_FULL") else int(part) * smaller()
    if of > 1:
        # Without paths, so that every checkout of a commit runs the same.
        words = [pathlib.Path(program).name, *(a for a in arguments if "/" not in a)]
        arguments += ["--slice", f"{number(of, ' '.join(words))}/{of}"]
    command = [program, *arguments]
    if program.endswith(".py"):
        command.insert(0, sys.executable)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
