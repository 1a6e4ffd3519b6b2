# SPDX-License-Identifier: Apache-2.0
"""scripts/count_tests.py counts what it is given, and lets no failure and no unlisted skip through."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] test_a
[       OK ] test_a
[ RUN      ] test_b
{b}
[ RUN      ] test_c
[       OK ] test_c
"""
OK_B = CMOCKA.format(b="[       OK ] test_b")
FAILED_B = CMOCKA.format(b="[  FAILED  ] test_b")
SKIPPED_B = CMOCKA.format(b="[  SKIPPED ] test_b")
CRASHED = "[ RUN      ] test_a\n[       OK ] test_a\n[ RUN      ] test_b\n"
PYTEST = """<testsuites><testsuite>
<testcase classname="m" name="a"/>
<testcase classname="m" name="b">{b}</testcase>
</testsuite></testsuites>"""


def meson(result, stdout=""):
    return json.dumps({"name": "libckpt:unit / test_x", "result": result, "stdout": stdout})


# (outcome of the part, report, skips, last line, exit code)
CASES = [
    ("passed", meson("OK"), "", "1 passed, 0 failed, 0 skipped", 0),
    ("passed", meson("OK", OK_B), "", "3 passed, 0 failed, 0 skipped", 0),
    ("failed", meson("FAIL", FAILED_B), "", "2 passed, 1 failed, 0 skipped", 1),
    ("failed", meson("ERROR", CRASHED), "", "1 passed, 1 failed, 0 skipped", 1),
    ("failed", meson("TIMEOUT"), "", "0 passed, 1 failed, 0 skipped", 1),
    ("failed", meson("OK", OK_B), "", "3 passed, 1 failed, 0 skipped", 1),
    ("passed", meson("SKIP"), "", "0 passed, 1 failed, 0 skipped", 1),
    ("passed", meson("OK", SKIPPED_B), "", "2 passed, 1 failed, 0 skipped", 1),
    (
        "passed",
        meson("OK", SKIPPED_B),
        "# why\nbuild/test_x/test_b it needs what is not here\n",
        "2 passed, 0 failed, 1 skipped",
        0,
    ),
    (
        "passed",
        meson("OK", SKIPPED_B),
        "build/test_x/test_b (not root) it mounts\n",
        *(
            ("2 passed, 1 failed, 0 skipped", 1)
            if os.geteuid() == 0
            else ("2 passed, 0 failed, 1 skipped", 0)
        ),
    ),
    ("failed", None, "", "0 passed, 1 failed, 0 skipped", 1),
]
PYTEST_CASES = [
    ("passed", "", "", "2 passed, 0 failed, 0 skipped", 0),
    ("failed", "<failure/>", "", "1 passed, 1 failed, 0 skipped", 1),
    ("failed", "<error/>", "", "1 passed, 1 failed, 0 skipped", 1),
    ("passed", "<skipped/>", "", "1 passed, 1 failed, 0 skipped", 1),
    ("passed", "<skipped/>", "python/m::* no such hardware\n", "1 passed, 0 failed, 1 skipped", 0),
]


def count(part, outcome, report_name, report, skips):
    with tempfile.TemporaryDirectory() as folder:
        logs = pathlib.Path(folder)
        (logs / "parts").write_text(f"{outcome} {part}\n")
        (logs / "skips").write_text(skips)
        if report is not None:
            (logs / report_name).write_text(report)
        command = [sys.executable, ROOT / "scripts/count_tests.py", logs, logs / "skips"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.splitlines()[-1:], run.returncode


def main():
    cases = [("suites", "build.meson.json", *case) for case in CASES]
    cases += [
        ("python", "python.junit.xml", outcome, PYTEST.format(b=b), *rest)
        for outcome, b, *rest in PYTEST_CASES
    ]
    wrong = 0
    for part, name, outcome, report, skips, line, code in cases:
        found = count(part, outcome, name, report, skips)
        if found != ([line], code):
            wrong += 1
            print(f"{outcome} {report} {skips!r}: wanted {line}, {code}; found {found}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
