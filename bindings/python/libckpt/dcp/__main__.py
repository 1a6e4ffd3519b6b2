# SPDX-License-Identifier: Apache-2.0
"""
Imports a checkpoint of torch.distributed.checkpoint into a libckpt store:

    python -m libckpt.dcp /checkpoints/step-100 /shared/run42
"""

from __future__ import annotations

import argparse
import sys

from .. import CheckpointError
from . import convert


def main() -> int:
    """Runs the program. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m libckpt.dcp",
        description="Imports a checkpoint of torch.distributed.checkpoint into a libckpt store. "
        "Such checkpoints are pickled and can run any code: convert only what you trust.",
    )
    parser.add_argument("source", help="directory of the checkpoint, from dcp.save()")
    parser.add_argument("store", help="directory of the store; created if it does not exist")
    parser.add_argument(
        "--step",
        type=int,
        help="number of the step; the default is the number at the end of SOURCE",
    )
    parser.add_argument("--new-start", action="store_true", help="ignore the steps in the store")
    parser.add_argument(
        "--allow-pickle", action="store_true", help="pickle values that cannot be stored otherwise"
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
