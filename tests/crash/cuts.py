# SPDX-License-Identifier: Apache-2.0
"""Power cuts by a file system's shutdown ioctl, while the engine works on it.

    cuts.py --fs xfs --seed 1 --cuts 100 --build build
"""

import os
import subprocess
import sys

import stage

SEEDS = 100_000  # of cuts, for every seed of a run
SLICE_SEEDS = 1000


def main() -> int:
    parser = stage.options("Power cuts on a real file system.")
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--at", type=int, help="begin with this cut, as it was printed")
    parser.add_argument("--stopped", action="store_true", help="sync after the cut (stopped.c)")
    options = parser.parse_args()
    at, of = options.slice
    options.seed += at * SLICE_SEEDS
    options.cuts //= of
    stage.need(f"mkfs.{options.fs}")
    os.environ["CKPT_TEST_IO"] = options.backend
    program = options.build.resolve() / "tests" / "crash" / "cuts"
    if options.drop:
        os.environ["CKPT_TEST_DROP"] = options.drop
        program = program.with_name("cuts_dropping")
    with stage.memory() as place:
        base, size = stage.make(options.fs, place)
        if options.stopped:
            stopped = program.with_name("stopped")
            return stage.run([stopped, base, options.fs, place / "disk"]).returncode
        first = options.seed * SEEDS if options.at is None else options.at
        arguments = [program, base, size, options.fs, place, first, options.cuts]
        ended = stage.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if options.drop and ended.returncode != stage.SKIPPED:
        return stage.found(ended.stdout, options.drop)
    print(ended.stdout, end="")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
