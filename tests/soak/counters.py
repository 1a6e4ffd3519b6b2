# SPDX-License-Identifier: Apache-2.0
"""What was counted on which commit: a file that is tracked, and the report that is made of it."""
from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parts import Part

PRODUCT = ("libckpt", "include", "tools", "bindings/python")


class Record:
    """The counters; those of the commit that is checked out are added to."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.path = root / "tests/soak/counters.json"
        self.state: dict = {"next": {}, "commits": {}}
        if self.path.exists():
            self.state = json.loads(self.path.read_text(encoding="utf-8"))
        self.commit = self._git("rev-parse", "--short=12", "HEAD")
        self.changed = bool(self._git("status", "--porcelain", "--untracked-files=no", "--",
                                      *PRODUCT))
        self.hashes: dict[tuple[str, ...], str] = {}

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", str(self.root), *words], check=True,
                              capture_output=True, text=True).stdout.strip()

    def sources(self, folders: tuple[str, ...]) -> str:
        """One name for the sources of what is tested: what other commits do does not change it."""
        if folders not in self.hashes:
            trees = "\n".join(self._git("rev-parse", f"HEAD:{folder}") for folder in folders)
            name = hashlib.sha256(trees.encode()).hexdigest()[:12]
            self.hashes[folders] = name + ("+" if self.changed else "")
        return self.hashes[folders]

    def _here(self) -> dict:
        name = self.commit + ("+" if self.changed else "")
        return self.state["commits"].setdefault(name, {"parts": {}, "failed": []})

    def take(self, part: str) -> int:
        """The number of the next slice. It is not given twice, even if this run is killed."""
        number = self.state["next"].get(part, 0)
        self.state["next"][part] = number + 1
        self.save()
        return number

    def give_back(self, part: str, number: int) -> None:
        """A slice that was interrupted is to be run again."""
        self.state["next"][part] = min(self.state["next"][part], number)
        self.save()

    def add(self, part: Part, counts: dict[str, int], seconds: float) -> None:
        fresh = {"sources": self.sources(part.sources), "wall_s": 0, "slices": 0}
        mine = self._here()["parts"].setdefault(part.name, fresh)
        mine["wall_s"] = round(mine["wall_s"] + seconds, 1)
        mine["slices"] += 1
        for name, value in counts.items():
            mine[name] = mine.get(name, 0) + value

    def fail(self, part: Part, command: str, code: int) -> None:
        self._here()["failed"].append({"part": part.name, "command": command, "code": code})

    def save(self) -> None:
        fresh = self.path.with_suffix(".json.tmp")
        fresh.write_text(json.dumps(self.state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(self.path)

    def total(self, part: Part, all_sources: bool = False) -> dict[str, float]:
        """What was counted of a part, with the sources as they are or on all commits."""
        sums: dict[str, float] = {}
        for commit in self.state["commits"].values():
            counts = commit["parts"].get(part.name, {})
            if all_sources or counts.get("sources") == self.sources(part.sources):
                for name, value in counts.items():
                    if name != "sources":
                        sums[name] = sums.get(name, 0) + value
        return sums

    def count(self, part: Part) -> float:
        return self.total(part).get(part.unit, 0)

    def report(self, parts: list[Part]) -> str:
        """A page: these sources against the goals, what failed, and what earlier ones have had."""
        lines = ["# What the soak has run", "",
                 "Written by `scripts/soak`. A part counts for the sources that it tests, as they "
                 f"are in {self.commit}{' with changes' if self.changed else ''}; the last column "
                 "has all that were ever run.", "",
                 "| part | count | goal | slices | hours | a second | ever |",
                 "|---|--:|--:|--:|--:|--:|--:|"]
        for part in parts:
            here, ever = self.total(part), self.total(part, all_sources=True)
            count, wall = here.get(part.unit, 0), here.get("wall_s", 0)
            rate = f"{count / wall:,.1f}" if wall and part.unit != "seconds" else ""
            lines.append(f"| {part.name}: {part.what} | {count:,} | {part.goal:,} "
                         f"| {here.get('slices', 0)} | {wall / 3600:.2f} | {rate} "
                         f"| {ever.get(part.unit, 0):,} |")
        for part in (p for p in parts if p.name == "coverage"):
            sums = self.total(part)
            if sums.get("branches"):
                lines += ["", "Branches that the tests take: "
                          f"{100 * sums['whole_taken'] / sums['whole']:.2f} % of those that commit, "
                          "recover, retain, fence, verify and store; "
                          f"{100 * sums['taken'] / sums['branches']:.2f} % of the library."]
        failed = [(name, f) for name, c in self.state["commits"].items() for f in c["failed"]]
        lines += ["", "## What failed", ""]
        lines += [f"- {name}: `{f['command']}` ended with {f['code']}" for name, f in failed]
        lines += [] if failed else ["Nothing."]
        return "\n".join(lines) + "\n"
