# SPDX-License-Identifier: Apache-2.0
"""Runs what the tests run in short for a long time, always with what has not been run before.

usage: scripts/soak HOURS [--jobs N] [--only PART...]
       scripts/soak --report

The parts and how much of each is wanted stand in tests/soak/parts.py; the part that is furthest
from that has its turn. A run can be interrupted, and the next one goes on where it stopped:
tests/soak/counters.json counts for each commit. A report is written to tests/soak/report.md at the
end, and by --report. What failed is named with the command that repeats it, and its output is kept
in build/soak/; the exit code is then 1.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import counters
import parts

ROOT = parts.ROOT
LOGS = parts.BUILD / "soak"
LIMIT_S = 1800  # a slice that takes longer hangs
GRACE_S = 30
CANNOT = 77  # as meson has it: this machine lacks something


class Running:
    """A slice that is under way, in a process group of its own."""

    def __init__(self, part, number):
        self.part = part
        self.number = number
        self.slice = part.slice_of(number)
        self.log = LOGS / f"{part.name.replace(' ', '-')}-{number}.log"
        self.begun = time.monotonic()
        # What an interrupted program leaves goes with these.
        self.folders = [tempfile.mkdtemp(prefix="run-", dir=LOGS),
                        tempfile.mkdtemp(prefix="ckpt-soak-", dir="/dev/shm")]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.slice.command, cwd=self.folders[0], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "CKPT_TEST_SHM": self.folders[1], **self.slice.environment})

    def ended(self):
        """Whether it is over; it is made to be when it takes too long."""
        if time.monotonic() - self.begun > LIMIT_S:
            self.stop()
        if self.process.poll() is None:
            return False
        self.clear()
        return True

    def stop(self):
        """Ends it: first so that it can unmount and detach what it has, then at once."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        self.clear()

    def clear(self):
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def command(self):
        """What repeats it, from the repository's root."""
        words = [f"{k}={v}" for k, v in self.slice.environment.items()] + self.slice.command
        return " ".join(words).replace(f"{ROOT}/", "")


def note(record, done, wanted):
    """Adds what a slice has counted, or how it failed. Returns whether all was well."""
    output = done.log.read_text(encoding="utf-8", errors="replace")
    counts = parts.parse_counts(output)
    if done.process.returncode == CANNOT:
        print(f"{done.part.name} is skipped: {(output.strip().splitlines() or ['?'])[-1]}", flush=True)
        if done.part in wanted:
            wanted.remove(done.part)
        record.give_back(done.part.name, done.number)
        done.log.unlink()
        return True
    record.add(done.part, counts or {}, time.monotonic() - done.begun)
    if done.process.returncode == 0 and counts is not None:
        done.log.unlink()
        return True
    record.fail(done.part, done.command(), done.process.returncode)
    print(f"FAILED ({done.process.returncode}): {done.command()}\n  {done.log}\n"
          + "\n".join("  " + line for line in output.strip().splitlines()[-5:]), flush=True)
    return False


def wait_for_any(under_way):
    """Until a slice has ended, or the one that is under way longest takes too long."""
    if not under_way:
        return
    files = [os.pidfd_open(running.process.pid) for running in under_way]
    limit = min(running.begun for running in under_way) + LIMIT_S
    select.select(files, [], [], max(0, limit - time.monotonic()))
    for file in files:
        os.close(file)


def soak(record, wanted, jobs, seconds):
    """Keeps `jobs` slices under way until the time is over. Returns whether all went well."""
    end = time.monotonic() + seconds
    under_way, well = [], True
    try:
        while under_way or (wanted and time.monotonic() < end):
            while wanted and len(under_way) < jobs and time.monotonic() < end:
                busy = [r.part.name for r in under_way]
                part = min((p for p in wanted if p.name not in busy or len(wanted) <= len(busy)),
                           key=lambda p: record.count(p) / p.goal)
                under_way.append(Running(part, record.take(part.name)))
            for done in [r for r in under_way if r.ended()]:
                under_way.remove(done)
                well = note(record, done, wanted) and well
                record.save()
            wait_for_any(under_way)
    finally:
        for left in under_way:
            left.stop()
            left.log.unlink()
            record.give_back(left.part.name, left.number)
    return well


def build(wanted):
    targets = sorted({target for part in wanted for target in part.needs})
    subprocess.run(["bash", "-c", ". scripts/lib.sh && quietly ninja -C build \"$@\"", "-",
                    *targets], cwd=ROOT, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hours", type=float, nargs="?")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", metavar="PART",
                        help="; ".join(p.name for p in parts.PARTS))
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if (args.hours is None) != args.report or args.jobs < 1:
        parser.error("either HOURS or --report")
    wanted = [p for p in parts.PARTS if not args.only or p.name in args.only
              or p.name.split()[0] in args.only]
    if not wanted:
        parser.error("no such part")
    record = counters.Record(ROOT)
    well = True
    if not args.report:
        build(wanted)
        LOGS.mkdir(exist_ok=True)
        # Who starts it in the background of a shell has the one ignored.
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, signal.default_int_handler)
        try:
            well = soak(record, wanted, args.jobs, args.hours * 3600)
        except KeyboardInterrupt:
            print("interrupted: what was under way does not count")
    report = ROOT / "tests/soak/report.md"
    report.write_text(record.report(parts.PARTS), encoding="utf-8")
    print(report.read_text(encoding="utf-8"), end="")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
