# SPDX-License-Identifier: Apache-2.0
"""Power cuts by a file system's shutdown ioctl, while the engine works on it.

    cuts.py --fs xfs --seed 1 --cuts 100 --build build
"""

import os
import sys

import stage


def main() -> int:
    parser = stage.options("Power cuts on a real file system.")
    parser.add_argument("--cuts", type=int, default=100)
    options = parser.parse_args()
    stage.need(f"mkfs.{options.fs}")
    os.environ["CKPT_TEST_IO"] = options.backend
    program = options.build.resolve() / "tests" / "crash" / "cuts"
    with stage.memory() as place:
        base, size = stage.make(options.fs, place)
        arguments = [program, base, size, options.fs, place, options.seed, options.cuts]
        return stage.run(arguments).returncode


if __name__ == "__main__":
    sys.exit(main())
