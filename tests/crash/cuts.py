# SPDX-License-Identifier: Apache-2.0
"""Power cuts by a file system's shutdown ioctl, while the engine works on it.

    cuts.py --fs xfs --seed 1 --cuts 100 --build build
"""

import os
import subprocess
import sys

import stage


def main() -> int:
    parser = stage.options("Power cuts on a real file system.")
    parser.add_argument("--cuts", type=int, default=100)
    options = parser.parse_args()
    stage.need(f"mkfs.{options.fs}")
    os.environ["CKPT_TEST_IO"] = options.backend
    program = options.build.resolve() / "tests" / "crash" / "cuts"
    if options.drop:
        os.environ["CKPT_TEST_DROP"] = options.drop
        program = program.with_name("cuts_dropping")
    with stage.memory() as place:
        base, size = stage.make(options.fs, place)
        arguments = [program, base, size, options.fs, place, options.seed, options.cuts]
        ended = stage.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if options.drop and ended.returncode != stage.SKIPPED:
        return stage.found(ended.stdout, options.drop)
    print(ended.stdout, end="")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
