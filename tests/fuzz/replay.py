# SPDX-License-Identifier: Apache-2.0
"""usage: replay.py TARGET PROGRAM [ARGUMENT...]

What every test run does with a fuzz target: every input of its corpus and everything that was ever
found, and then fresh ones for a second or two, others for each tree that is committed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "run"))
import draw  # noqa: E402

FRESH = 10000
#: Each opens a store.
FRESH_SLOW = {"cli": 300, "state": 800}
#: With scripts/test --full, so many times as many.
FULL = 5
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
    runs = FRESH_SLOW.get(target, FRESH) * (FULL if os.environ.get("CKPT_TEST_FULL") else 1)
    seed = draw.number(1 << 31, f"fuzz {target}")
    folders = [path for part in ("corpus", "found") if (path := HERE / part / target).is_dir()]
    inputs = sorted(path for folder in folders for path in folder.iterdir())
    if not inputs:
        sys.exit(f"{target}: there is no corpus")
    with tempfile.TemporaryDirectory() as folder:
        # Files are only run; a folder would also be written to.
        limits = [*LIMITS, f"-artifact_prefix={folder}/"]
        code = run([*program, *limits, *inputs], folder)
        if code == 0:
            fresh = [f"-runs={runs}", f"-seed={seed}", "-reload=0", f"{folder}/new"]
            (pathlib.Path(folder) / "new").mkdir()
            code = run([*program, *limits, *fresh, *folders], folder)
    print(f"{target}: {len(inputs)} inputs, {runs} fresh runs of seed {seed}: {'bad' if code else 'good'}")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
