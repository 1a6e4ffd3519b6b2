# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: writes every outcome as a line of JSON to the file CKPT_TEST_RECORD."""

from __future__ import annotations

import json
import os

import pytest

MARKS = {"waits", "full", "no_oracle"}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """With xdist, its controller is told of every report, and so is each worker of its own."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    line = {
        "id": report.nodeid,
        "outcome": report.outcome,
        "seconds": report.duration,
        "marks": sorted(MARKS & set(report.keywords)),
        "text": ""
        if report.passed
        else f"{report.longreprtext}\n{report.caplog}{report.capstdout}{report.capstderr}\n",
    }
    with open(os.environ["CKPT_TEST_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
