# SPDX-License-Identifier: Apache-2.0
"""usage: exports.py LIBRARY: it exports what the symbol map lists, all of it and nothing else."""

import pathlib
import subprocess
import sys

import symbols
import tree

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    command = ["nm", "-D", "--defined-only", sys.argv[1]]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}
    wanted = symbols.mapped(tree.Tree({symbols.MAP: (ROOT / symbols.MAP).read_text()}))
    for name in sorted(wanted - exported):
        print(f"{name} is not exported")
    for name in sorted(exported - wanted):
        print(f"{name} is exported")
    return 1 if wanted != exported else 0


if __name__ == "__main__":
    sys.exit(main())
