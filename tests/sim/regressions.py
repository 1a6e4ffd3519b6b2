#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every seed of seeds.txt, twice: it must hold, and be the same run."""
import subprocess
import sys


def main():
    program, path = sys.argv[1:3]
    seeds = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if line:
                seeds.append(line.split()[0])
    failed = [s for s in seeds
              if subprocess.run([program, "--seeds", s, "--twice", "--quiet"],
                                check=False).returncode]
    print(f"{len(seeds)} regression seeds, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


sys.exit(main())
