#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `import libckpt` costs: time, threads, signal handlers, other packages."""

from __future__ import annotations

import json
import subprocess
import sys

import measure

# Runs in a fresh interpreter. What is imported before the clock starts is not libckpt's cost.
PROBE = """
import json, os, signal, sys, time
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
threads = len(os.listdir("/proc/self/task"))
began = time.perf_counter()
import libckpt
seconds = time.perf_counter() - began
print(json.dumps({
    "seconds": seconds,
    "threads": len(os.listdir("/proc/self/task")) - threads,
    "handlers": handlers != [signal.getsignal(number) for number in signal.valid_signals()],
    "torch": "torch" in sys.modules,
    "numpy": "numpy" in sys.modules,
}))
"""

LIMIT_S = 0.050


def main() -> None:
    args = measure.parser("What `import libckpt` costs.").parse_args()
    runs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(5 if args.quick else 25)
    ]
    seconds = measure.spread([run["seconds"] for run in runs])
    clean = not any(
        run["threads"] or run["handlers"] or run["torch"] or run["numpy"] for run in runs
    )
    measure.table(
        ["", "median, ms", "90 % interval"],
        [
            [
                "import libckpt",
                f"{seconds['median'] * 1e3:.1f}",
                f"[{seconds['low90'] * 1e3:.1f}, {seconds['high90'] * 1e3:.1f}]",
            ]
        ],
    )
    print(
        "starts no thread, installs no handler, imports neither torch nor numpy"
        if clean
        else f"NOT CLEAN: {runs[-1]}"
    )
    measure.finish("import", args, {"seconds": seconds, "clean": clean})
    sys.exit(0 if clean and seconds["median"] < LIMIT_S else 1)


if __name__ == "__main__":
    main()
