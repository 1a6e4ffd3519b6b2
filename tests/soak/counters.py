# SPDX-License-Identifier: Apache-2.0
"""What was counted on which commit: a file that is tracked, and the report that is made of it."""
from __future__ import annotations

import json
import pathlib
import subprocess

PRODUCT = ("libckpt", "include", "tools", "bindings/python")


class Record:
    """The counters; those of the commit that is checked out are added to."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.path = root / "tests/soak/counters.json"
        self.state: dict = {"next": {}, "commits": {}}
        if self.path.exists():
            self.state = json.loads(self.path.read_text(encoding="utf-8"))
        self.product = self._product()
        self.commit = self._git("rev-parse", "--short=12", "HEAD")
        if self._git("status", "--porcelain", "--untracked-files=no", "--", *PRODUCT):
            self.commit += "+"
            self.product += "+"

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", str(self.root), *words], check=True,
                              capture_output=True, text=True).stdout.strip()

    def _product(self) -> str:
        """One name for the sources of what is tested: commits that only touch tests share it."""
        trees = [self._git("rev-parse", f"HEAD:{folder}") for folder in PRODUCT]
        return subprocess.run(["git", "hash-object", "--stdin"], input="\n".join(trees), check=True,
                              capture_output=True, text=True).stdout[:12]

    def _parts(self) -> dict:
        here = self.state["commits"].setdefault(
            self.commit, {"product": self.product, "parts": {}, "failed": []})
        return here["parts"]

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

    def add(self, part: str, counts: dict[str, int], seconds: float) -> None:
        mine = self._parts().setdefault(part, {"wall_s": 0, "slices": 0})
        mine["wall_s"] = round(mine["wall_s"] + seconds, 1)
        mine["slices"] += 1
        for name, value in counts.items():
            mine[name] = mine.get(name, 0) + value

    def fail(self, part: str, command: str, code: int) -> None:
        self._parts()
        self.state["commits"][self.commit]["failed"].append(
            {"part": part, "command": command, "code": code})

    def save(self) -> None:
        fresh = self.path.with_suffix(".json.tmp")
        fresh.write_text(json.dumps(self.state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(self.path)

    def total(self, part: str, product: str | None = None) -> dict[str, float]:
        """What was counted of a part, on one product or on all."""
        sums: dict[str, float] = {}
        for commit in self.state["commits"].values():
            if product is None or commit["product"] == product:
                for name, value in commit["parts"].get(part, {}).items():
                    sums[name] = sums.get(name, 0) + value
        return sums

    def count(self, part: str, unit: str) -> float:
        return self.total(part, self.product).get(unit, 0)

    def report(self, parts: list) -> str:
        """A page: this product against the goals, what failed, and what earlier ones have had."""
        commits = [name for name, c in self.state["commits"].items()
                   if c["product"] == self.product]
        lines = ["# What the soak has run", "",
                 f"Written by `scripts/soak`. Product {self.product}; commits with these sources: "
                 f"{', '.join(sorted(commits)) or 'none was run'}.", "",
                 "| part | count | goal | slices | hours | a second | on all commits |",
                 "|---|--:|--:|--:|--:|--:|--:|"]
        for part in parts:
            here, ever = self.total(part.name, self.product), self.total(part.name)
            count, wall = here.get(part.unit, 0), here.get("wall_s", 0)
            rate = f"{count / wall:,.1f}" if wall and part.unit != "seconds" else ""
            lines.append(f"| {part.name}: {part.what} | {count:,} | {part.goal:,} "
                         f"| {here.get('slices', 0)} | {wall / 3600:.2f} | {rate} "
                         f"| {ever.get(part.unit, 0):,} |")
        failed = [(name, f) for name, c in self.state["commits"].items() for f in c["failed"]]
        lines += ["", "## What failed", ""]
        lines += [f"- {name}: `{f['command']}` ended with {f['code']}" for name, f in failed]
        lines += [] if failed else ["Nothing."]
        return "\n".join(lines) + "\n"
