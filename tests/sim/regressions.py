#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: regressions.py [--once] SEEDS PROGRAM...

Runs every seed of seeds.txt, twice, by its program: it must hold, and be the same run. --once: it must hold.
"""
import pathlib
import subprocess
import sys


def main():
    once = sys.argv[1] == "--once"
    path, *programs = sys.argv[2 if once else 1:]
    how = ["--quiet"] if once else ["--twice", "--quiet"]
    programs = {pathlib.Path(program).name: program for program in programs}
    seeds = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if line:
                words = line.split()
                world, seed = ("sim", words[0]) if words[0].isdigit() else words[:2]
                # A build may be one without S3.
                if world in programs:
                    seeds.append((world, seed))
    failed = [s for world, s in seeds
              if subprocess.run([programs[world], "--seeds", s, *how],
                                check=False).returncode]
    print(f"{len(seeds)} regression seeds, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


sys.exit(main())
