# SPDX-License-Identifier: Apache-2.0
"""
Makes a checkpoint of torch.distributed.checkpoint a step of a libckpt store:

    python -m libckpt.dcp /checkpoints/step-100 /shared/run42
"""

from __future__ import annotations

import argparse
import sys

from .. import CheckpointError
from . import convert


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m libckpt.dcp",
        description="Makes a checkpoint of torch.distributed.checkpoint a step of a libckpt store. "
        "Such checkpoints are pickled: convert only what you trust.",
    )
    parser.add_argument("source", help="directory that dcp.save() has written")
    parser.add_argument("store", help="directory of the store; made if need be")
    parser.add_argument("--step", type=int, help="the digits at the end of SOURCE, unless given")
    parser.add_argument("--new-start", action="store_true", help="ignore the steps in the store")
    parser.add_argument(
        "--allow-pickle", action="store_true", help="pickle values that have no other way"
    )
    args = parser.parse_args()
    try:
        step = convert(
            args.source,
            args.store,
            args.step,
            new_start=args.new_start,
            allow_pickle=args.allow_pickle,
        )
    except (CheckpointError, OSError, ValueError) as error:
        print(f"libckpt.dcp: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"step {step} of {args.store}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
