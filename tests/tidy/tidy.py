# SPDX-License-Identifier: Apache-2.0
"""usage: tidy.py CHECK: what the compiler does not see. Exits with 1 and a line for each finding."""

import importlib
import pathlib
import sys

import tree

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    check = importlib.import_module(sys.argv[1]).check
    found = list(check(tree.read(ROOT)))
    for path, line, message in found:
        print(f"{path}:{line}: {message}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
