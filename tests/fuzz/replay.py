# SPDX-License-Identifier: Apache-2.0
"""usage: replay.py TARGET PROGRAM [ARGUMENT...]

What every test run does with a fuzz target: every input of its corpus and everything that was ever
found, and then as many fresh ones as take a few seconds, always the same.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FRESH = 50000
#: Each opens a store.
FRESH_SLOW = {"cli": 1500, "state": 4000}
SEED = 1
#: libFuzzer's own code for a finding is 77, which means here that a program cannot run.
LIMITS = ["-timeout=20", "-rss_limit_mb=1024", "-max_len=8192", "-error_exitcode=76"]


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode == 77:
        print(done.stdout.decode(errors="replace"))
        sys.exit(77)
    if done.returncode != 0:
        sys.stdout.write(done.stdout.decode(errors="replace"))
        for path in sorted(pathlib.Path(folder).glob("*-*")):
            print(f"{path.name}: {path.read_bytes().hex()}")
    return done.returncode


def main():
    target, *program = sys.argv[1:]
    program[0] = os.path.abspath(program[0])
    runs = FRESH_SLOW.get(target, FRESH)
    folders = [path for part in ("corpus", "found") if (path := HERE / part / target).is_dir()]
    inputs = sorted(path for folder in folders for path in folder.iterdir())
    if not inputs:
        sys.exit(f"{target}: there is no corpus")
    with tempfile.TemporaryDirectory() as folder:
        # Files are only run; a folder would also be written to.
        limits = [*LIMITS, f"-artifact_prefix={folder}/"]
        code = run([*program, *limits, *inputs], folder)
        if code == 0:
            fresh = [f"-runs={runs}", f"-seed={SEED}", "-reload=0", f"{folder}/new"]
            (pathlib.Path(folder) / "new").mkdir()
            code = run([*program, *limits, *fresh, *folders], folder)
    print(f"{target}: {len(inputs)} inputs, {runs} fresh runs: {'bad' if code else 'good'}")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
