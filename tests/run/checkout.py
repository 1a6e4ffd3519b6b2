# SPDX-License-Identifier: Apache-2.0
"""What has changed in this checkout, and which sources depend on it."""

from __future__ import annotations

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANDED = ROOT / "tests" / "landed.txt"


def git(*arguments: str) -> list[str] | None:
    """The lines that git prints; None where it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


def landed() -> str:
    """The commit of main that a whole run has passed last, by landed.txt."""
    lines = [line for line in LANDED.read_text().splitlines() if not line.startswith("#")]
    return lines[0].split()[0]


def changed_since(commit: str) -> list[str] | None:
    """Files that differ from a commit, committed or not; None: git does not know the commit."""
    tracked = git("diff", "--name-only", commit)
    new = git("ls-files", "--others", "--exclude-standard")
    return None if tracked is None or new is None else sorted({*tracked, *new})


def dependents(build: pathlib.Path, changed: list[str]) -> set[str]:
    """Sources that the compiler has read a changed file for, by what ninja knows of a build."""
    done = subprocess.run(
        ["ninja", "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True
    )
    paths = {str(ROOT / name) for name in changed}
    found = set()
    for block in done.stdout.split("\n\n"):
        files = [str((build / line.strip()).resolve()) for line in block.splitlines()[1:]]
        if files and paths.intersection(files):
            found.add(str(pathlib.Path(files[0]).relative_to(ROOT)))
    return found
