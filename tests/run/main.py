# SPDX-License-Identifier: Apache-2.0
"""
Runs the tests: what a commit needs within a quarter of an hour, or with --full everything.

usage: scripts/test [--full] [PART...]
       scripts/test --changed [COMMIT]
       scripts/test --list

PART: see --list; by default all that a commit needs. --changed runs what the files can break that
differ from COMMIT (by default the last one that landed: tests/landed.txt). Logs and last.json:
build/test-logs/. Exit code 0: all is well.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import NoReturn

import changed
import judge
import plan
import report
from checkout import ROOT, changed_since, git, landed
from draw import tree
from family import Family
from lanes import DIES, LONGEST, Part, Run, kill_group
from programs import FULL, NINJA
from results import FAILED, HUNG, PASSED, Test

LOGS = pathlib.Path("build/test-logs")
SHOWN = 60  # lines of a test that has failed
HANGS = 3600  # seconds, for a test alone
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def arguments() -> argparse.Namespace:
    usage = str(__doc__).strip()
    parser = argparse.ArgumentParser(usage=usage.partition("usage: ")[2], add_help=False)
    parser.add_argument("--help", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--changed", nargs="?", const="")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    if options.help:
        print(usage)
        sys.exit(0)
    if options.list:
        print("\n".join(plan.ALL))
        sys.exit(0)
    for part in options.parts:
        if part not in plan.ALL:
            parser.error(f"no part is called {part}: {' '.join(plan.ALL)}")
    return options


def chosen(options: argparse.Namespace) -> list[str]:
    """The parts to run."""
    if options.changed is None:
        return options.parts or plan.default_parts()
    commit = options.changed or landed()
    plan.base = commit
    files = changed_since(commit)
    if files is None:
        sys.exit(f"git does not know {commit}")
    os.environ["CKPT_TEST_CHANGED"] = "\n".join(files)
    found = changed.parts_of(files)
    print(
        f"{len(files)} files have changed since {commit[:12]}: {' '.join(found) or 'nothing to run'}"
    )
    return found


def ended(name: str, part: Part) -> None:
    """Says how a part has ended, and shows what has failed."""
    bad = [test for test in part.tests if test.outcome in (FAILED, HUNG)]
    if bad:
        part.outcome = "failed"
    print(
        f"{name:9} {part.outcome}, {part.seconds:.0f} s ({part.cpu_seconds:.0f} s of the processors)"
    )
    for test in bad:
        print(f"--- {test.name}: {test.outcome}")
        print(last_lines(test.output))
    if part.outcome == "failed" and not bad:
        for log in LOGS.glob(f"{name}.*.log"):
            print(last_lines(log.read_text(errors="replace")))
    sys.stdout.flush()


def last_lines(text: str) -> str:
    return "\n".join(line[:LONGEST] for line in text.splitlines()[-SHOWN:])


def once_more(test: Test) -> bool:
    """Whether a test passes that had bad luck, with nothing beside it."""
    environment = {**os.environ, "NINJA": NINJA}
    with (LOGS / "alone.log").open("ab") as log:
        child = subprocess.Popen(
            test.alone,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            return child.wait(HANGS) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if child.poll() is None:
                left = Family(os.getpid())
                kill_group(child.pid, signal.SIGTERM)
                left.kill_after(DIES)


def settle(verdict: report.Verdict) -> None:
    """What has failed for good, after those that had bad luck have run once more."""
    for name, part in verdict.parts.items():
        bad = [test for test in part.tests if test.outcome in (FAILED, HUNG)]
        for test in bad:
            if judge.is_bad_luck(test) and once_more(test):
                test.outcome = PASSED
                test.inner = dict.fromkeys(test.inner, PASSED)
                verdict.flaky.append(test)
            else:
                verdict.failed.append(test.name)
        if part.outcome == "failed" and not bad:
            verdict.failed.append(name)
        elif bad and all(test.outcome == PASSED for test in bad):
            part.outcome = "passed"
    for name in judge.skips_without_reason(verdict.tests()):
        verdict.failed.append(f"{name} (skipped without a line in tests/skips.txt)")


def end_on_signals() -> None:
    """A signal ends the run as an error does, and with it all that it has started."""

    def end(number: int, _: object) -> NoReturn:
        for one in caught:
            signal.signal(one, lambda *_: None)
        sys.exit(128 + number)

    # What nohup and shells have switched off stays so.
    caught = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, end)


def main() -> int:
    os.chdir(ROOT)
    options = arguments()
    end_on_signals()
    began = time.monotonic()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    os.environ.setdefault("CKPT_TEST_SLICE", tree())
    if options.changed is not None:
        os.environ["CKPT_TEST_SMALLER"] = str(changed.SMALLER)
    # Or every worker of pytest would compile every test again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    judge.flaky()
    run = Run(plan.steps(chosen(options)), LOGS)
    run.go(ended)
    verdict = report.Verdict(
        commit="".join(git("rev-parse", "HEAD") or ["unknown"]),
        slice=os.environ["CKPT_TEST_SLICE"],
        full=FULL,
        seconds=0.0,
        parts=run.parts,
    )
    settle(verdict)
    verdict.seconds = time.monotonic() - began + float(os.environ.get("CKPT_TEST_SETUP_S", 0))
    for test in verdict.flaky:
        print(f"FLAKY {test.name}: failed beside others, passed alone")
    for name in verdict.failed:
        print(f"FAILED {name}")
    print(report.write(verdict, LOGS / "last.json"))
    return 1 if verdict.failed or not verdict.tests() else 0


if __name__ == "__main__":
    sys.exit(main())
