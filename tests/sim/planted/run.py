#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each bug of planted.py in a copy of its file and runs seeds until the world finds it.

    run.py --build BUILD [--ninja NINJA] [--first N] [--seeds N] [--jobs N] [--only NAME ... | --sample N]
    run.py --check

The build directory must hold a built simulator. A bug that survives fails the test; so does one whose
text is not there any more. --sample takes some, others with each commit; those that take thousands of
seeds are left to runs of all. The tree itself is not touched.
"""
import concurrent.futures
import os
import pathlib
import statistics
import sys
import tempfile

from builder import Builder, check, hunt, options, plant, sampled
from planted import PLANTED, REMOTE


def try_bug(builder, bug, first, seeds):
    """After how many seeds it was found, if it was, and one line that says so."""
    first = bug.first or first
    try:
        changed = builder.make_object(bug.file, plant(bug), bug.name)
        found = hunt(builder.link(changed, bug.world), first, first + seeds - 1)
    except LookupError as error:
        return None, f"{bug.name:32} CANNOT BE PLANTED: {error}"
    if not found:
        return None, f"{bug.name:32} SURVIVED {seeds} seeds: {bug.why}"
    took = found[0] - first + 1
    return took, f"{bug.name:32} {took:6} seeds: {found[1][:110]}"


def choose(args):
    # A build may be one without S3.
    there = [bug for bug in PLANTED if bug.world != REMOTE or (args.build / REMOTE).exists()]
    if args.sample is None:
        return [bug for bug in there if not args.only or bug.name in args.only]
    often = [bug for bug in there if not bug.rare]
    return sampled(often, args.sample)


def main():
    parser = options(__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=30000)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    if args.check:
        return check(PLANTED)
    if not args.build:
        parser.error("--build or --check")
    bugs = choose(args)
    counts, survivors = [], 0
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        builder = Builder(args.ninja, args.build.resolve(), pathlib.Path(scratch))
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            tries = [pool.submit(try_bug, builder, bug, args.first, args.seeds) for bug in bugs]
            for attempt in tries:
                took, line = attempt.result()
                print(line, flush=True)
                if took:
                    counts.append(took)
                else:
                    survivors += 1
    median = statistics.median(counts) if counts else 0
    print(f"{len(counts)} of {len(bugs)} planted bugs found, "
          f"median {median:g} seeds, most {max(counts, default=0)}")
    print(f"counts bugs={len(bugs)} found={len(counts)} seeds={sum(counts)}")
    return 1 if survivors or not bugs else 0


if __name__ == "__main__":
    sys.exit(main())
