#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of what the engine does with a store, explored by Spin: every order of every step.

usage: check.py [--long] [--holds | --broken] [--only WORD] [--slice I/N] [--list]

Each model says at its top which functions it stands for. It must hold as the code is, and each of its
negative variants, which leaves out or swaps one step of the code, must be found violated at the assertion
that is named here: a model that cannot fail shows nothing. A limit is a violation of something that the
code does not promise, kept so that it is seen when that changes.

--long runs larger parameters as well (ten minutes, and some GiB). --holds leaves out the negative
variants, --broken the others. --only takes the variants with WORD in their name. --slice takes each Nth of them,
from the Ith on, counted from 0. Exit 77: there is no spin.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
NO_SPIN = 77
SECONDS, LONG_SECONDS = 600, 1800  # for one exploration, against hanging
MEGABYTES, LONG_MEGABYTES = 1024, 12288
HOLDS = ""
ONE_MACHINE = "CUTS=1"
# The first process does not see the others' locks, nor they its own.
TWO_MACHINES = "MACHINES=2 S=2 NO_PARENT_PROMISE"
BACK = "BACK=1 S=2 CUTS=1"
BESIDE = "NP=2 MACHINES=2 CUTS=0"
NODES = "STEPS=1 CUTS=0"
CALM = "CALM STEPS=2 CUTS=0"


@dataclass(frozen=True)
class Variant:
    model: str
    defines: str
    # What stands in the assertion that must be violated; HOLDS: none may be.
    broken: str = HOLDS
    long: bool = False
    limit: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.defines}".strip()


VARIANTS = [
    # One owner for each number, who saw all who were told before; one living owner where locks are seen.
    Variant("claim", "NP=2"),
    Variant("claim", "TRIES=1"),
    Variant("claim", BESIDE),
    Variant("claim", "NP=2 NO_NOREPLACE", "told[number]"),
    Variant("claim", "NP=2 NO_SYNC", "told[i]"),
    Variant("claim", "NP=2 NO_HOLDER", "gen[k]"),
    Variant("claim", "NP=2 LOCK_LATE", "gen[k]"),
    Variant("claim", f"{BESIDE} NO_NOREPLACE", "told[number]"),
    Variant("claim", f"{BESIDE} LEAP", "scanned"),
    Variant("claim", f"{BESIDE} NO_NONCE", "scanned"),
    Variant("claim", "", long=True),
    Variant("claim", "MACHINES=2 CUTS=0", long=True),
    # One outcome, which stays; a commit has its files, and they are whole.
    Variant("register", ""),
    Variant("register", "NO_NOREPLACE", "record"),
    Variant("register", "NO_PUBLISH_SYNC", "record"),
    Variant("register", "NO_FILE_SYNC", "whole"),
    Variant("register", "SYNC_TWICE", "whole"),
    Variant("register", "NO_NAME_SYNC", "here"),
    Variant("register", "FILES_ANYWAY", "here"),
    Variant("register", "SETTLE_FILES_FIRST", "here"),
    # Once the record of an abort is removed, a writer that was not dead may be told that it has committed,
    # of a step that is in no lineage any more.
    Variant("register", "TIDY", "record", limit=True),
    Variant("register", "SETTLERS=3 CUTS=2", long=True),
    # Stores on every node: one outcome for all of them, and what anybody was told is there after the next start.
    Variant("nodes", NODES),
    Variant("nodes", CALM),
    Variant("nodes", f"{NODES} NO_BRING", "acked[i]"),
    Variant("nodes", f"{CALM} ONLY_NEWER", "acked[i]"),
    Variant("nodes", f"{NODES} PUT_TWICE", "over[k]"),
    Variant("nodes", f"{NODES} INSTALL_FIRST", "over[k]"),
    Variant("nodes", f"{NODES} ACK_EARLY", "acked[i]"),
    Variant("nodes", f"{NODES} FILES_ANYWAY", "here["),
    Variant("nodes", "CALM STEPS=1 CUTS=1 TELL_EARLY", "here["),
    Variant("nodes", "STEPS=1 CUTS=1", long=True),
    Variant("nodes", "CALM STEPS=2 CUTS=1", long=True),
    # A round of all ranks: a success is of all of them, and whoever receives an outcome receives the same.
    Variant("round", ""),
    Variant("round", "PUT_TWICE", "got["),
    Variant("round", "DECIDE_EARLY", "passed["),
    Variant("round", "OWN_VALUE", "passed["),
    Variant("round", "NEWEST", "got["),
    # A rank that is not answered ends it with a failure of its own; the others may have received a success.
    Variant("round", "STRICT", "got[", limit=True),
    # What was acknowledged and is of the lineage can be restored; nothing else is chosen; what is read stays.
    Variant("lineage", ONE_MACHINE),
    Variant("lineage", "KEEP=2"),
    Variant("lineage", BACK),
    Variant("lineage", "READERS=1 S=2"),
    Variant("lineage", TWO_MACHINES),
    Variant("lineage", f"{ONE_MACHINE} NO_PUBLISH_SYNC", "commits"),
    Variant("lineage", f"{ONE_MACHINE} NO_REMOVE_SYNC", "files"),
    Variant("lineage", f"{ONE_MACHINE} FILES_FIRST", "files"),
    Variant("lineage", f"{BACK} NO_PARENT_CHECK", "commits"),
    Variant("lineage", "READERS=1 S=2 NO_READER_LOCK", "1>1"),
    Variant("lineage", f"{TWO_MACHINES} NO_FENCE", "late"),
    Variant("lineage", f"{TWO_MACHINES} NO_LOOK", "outdated"),
    Variant("lineage", f"{TWO_MACHINES} ANY_GENERATION", "set"),
    Variant("lineage", f"{TWO_MACHINES} READERS=1 SILENT", "acked", long=True),
    # Where locks are not seen, a process that is taken for dead may retire the step between the last look of
    # whoever goes on from it and his claim.
    Variant("lineage", "MACHINES=2 S=2", "commits", limit=True),
    Variant("lineage", "BACK=1 CUTS=1", long=True),
    Variant("lineage", "NP=3 S=2 CUTS=1", long=True),
    Variant("lineage", "MACHINES=2 NO_PARENT_PROMISE", long=True),
    Variant("lineage", f"{TWO_MACHINES} READERS=1", long=True),
    # A remote store: a commit there has its files, and the newest stays; who was taken over removes nothing.
    Variant("remote", ""),
    Variant("remote", "REMOVERS=1 READERS=1"),
    Variant("remote", "BACK=1"),
    # One whose tombstone has not changed for a grace, and who has a request under way when it is taken over.
    Variant("remote", "TAKE_LIVING"),
    # Were there a moment without a tombstone, the step could be published in it.
    Variant("remote", "TAKE_LIVING TAKE_GAP", "shard[s]"),
    Variant("remote", "MANIFEST_FIRST", "shard[s]"),
    Variant("remote", "INDEX_FIRST TRUST_INDEX", "shard[s]"),
    Variant("remote", "NO_LAST_LOOK", "shard[s]"),
    Variant("remote", "SHARDS_FIRST", "shard[s]"),
    Variant("remote", "NO_GRACE", "shard[s]"),
    Variant("remote", "NO_OWNER", "shard[s]"),
    Variant("remote", "NO_LOOK_AT_STONE", "shard[s]"),
    Variant("remote", "NO_FENCE", "outdated"),
    Variant("remote", "NEWEST", "manifest[k]"),
    Variant("remote", "BACK=1 NO_LOOK_AGAIN", "manifest[k]"),
    Variant("remote", "REMOVERS=1 READERS=1 NO_READER_GRACE", "reads"),
    Variant("remote", "READERS=1", long=True),
    Variant("remote", "ROUNDS=2", long=True),
    # A job that goes back to an old step just when that is removed: the look and the removal are two requests.
    Variant("remote", "BACK=2", "manifest[k]", limit=True),
]


def run(command: list[str], folder: str, seconds: int) -> str:
    """What it prints; what it was stopped for is said there, too."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"error: more than {seconds} s"
    return done.stdout + done.stderr


def explore(variant: Variant) -> str:
    megabytes = LONG_MEGABYTES if variant.long else MEGABYTES
    defines = [f"-D{define}" for define in variant.defines.split()]
    # Few states: it is compiled for longer than it runs.
    speed = "-O1" if variant.broken == HOLDS or variant.long else "-O0"
    compact = ["-DCOLLAPSE"] if variant.long else []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / f"{variant.model}.pml", folder)
        said = run(["spin", "-a", *defines, f"{variant.model}.pml"], folder, SECONDS)
        flags = [speed, "-w", "-DSAFETY", f"-DMEMLIM={megabytes}", *compact]
        said += run(["cc", *flags, "-o", "pan", "pan.c"], folder, SECONDS)
        if not (pathlib.Path(folder) / "pan").exists():
            return said
        # Processes that have died, or wait for more, are at their end.
        command = ["./pan", "-E", "-m1000000", "-w24" if variant.long else "-w21"]
        return run(command, folder, LONG_SECONDS if variant.long else SECONDS)


def judge(variant: Variant, said: str) -> tuple[int, bool, str]:
    """States, whether an assertion is violated, and what is wrong with that."""
    states = re.search(r"^\s*(\S+) states, stored", said, re.MULTILINE)
    count = int(float(states.group(1))) if states else 0
    violated = re.search(r"assertion violated (?!- )(.*) \(at depth", said)
    errors = re.search(r"errors: (\d+)", said)
    whole = errors and not re.search(r"Search not completed|max search depth too small", said)
    if violated:
        if variant.broken == HOLDS:
            return count, True, f"it does not hold: {violated.group(1)}"
        wrong = variant.broken not in violated.group(1)
        return count, True, f"violated elsewhere: {violated.group(1)}" if wrong else ""
    if not whole or (errors and errors.group(1) != "0"):
        return count, False, f"it was not explored: {said.strip()[-600:]}"
    return count, False, "" if variant.broken == HOLDS else "it holds, and must be found violated"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--long", action="store_true")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--holds", action="store_true")
    some.add_argument("--broken", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--slice", default="0/1")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [v for v in VARIANTS if options.only in v.name and (options.long or not v.long)]
    if options.holds or options.broken:
        chosen = [v for v in chosen if (v.broken == HOLDS) == options.holds]
    first, _, step = options.slice.partition("/")
    chosen = chosen[int(first) :: int(step)]
    if options.list:
        print("\n".join(v.name for v in chosen))
        return 0
    if not shutil.which("spin"):
        print("there is no spin: Debian's package of that name has it")
        return NO_SPIN
    if not chosen:
        sys.exit(f"no variant has '{options.only}' in its name")
    total = found = failed = 0
    for variant in chosen:
        start = time.monotonic()
        states, violated, wrong = judge(variant, explore(variant))
        total += states
        found += violated and not wrong
        failed += bool(wrong)
        outcome = "FAILED" if wrong else "holds"
        if violated and not wrong:
            outcome = "violated, a limit" if variant.limit else "violated, as it must be"
        seconds = time.monotonic() - start
        print(f"{variant.name}: {outcome}, {states} states, {seconds:.1f} s", flush=True)
        if wrong:
            print(f"  {wrong}")
    print(f"counts models={len(chosen)} states={total} violated={found} failed={failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
