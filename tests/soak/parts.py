# SPDX-License-Identifier: Apache-2.0
"""What a soak is made of: the commands that do a slice of each part, and how much is wanted."""
from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from counters import PRODUCT

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TESTS = BUILD / "tests"
PYTHON = str(ROOT / ".venv/bin/python")


@dataclass(frozen=True)
class Slice:
    """One command of at most a few minutes, which prints what it counted as its last line."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """`slice_of(n)` is the n-th slice; no n comes twice, so seeds can be made of it."""

    name: str
    what: str
    unit: str  # the count that is set against the goal
    goal: int
    slice_of: Callable[[int], Slice]
    needs: tuple[str, ...] = ()  # what ninja has to build for it
    sources: tuple[str, ...] = PRODUCT  # what it tests


BACKENDS = ("uring", "threads")
SIM_FIRST = 1_000_000  # below are the seeds of the tests
SIM_CHUNK = 20_000
TORTURE_SLICES = 48  # about a thousand runs each


def simulated(n: int) -> Slice:
    first = SIM_FIRST + n * SIM_CHUNK
    return Slice([str(TESTS / "sim/sim"), "--seeds", f"{first}..{first + SIM_CHUNK - 1}",
                  "--keep-going"])


CROWD_CHUNK = 3_000


def crowded(n: int) -> Slice:
    first = SIM_FIRST + n * CROWD_CHUNK
    return Slice([str(TESTS / "sim/crowd"), "--seeds", f"{first}..{first + CROWD_CHUNK - 1}",
                  "--keep-going"])


REMOTE_CHUNK = 3_000


def uploaded(n: int) -> Slice:
    first = SIM_FIRST + n * REMOTE_CHUNK
    return Slice([str(TESTS / "sim/remote"), "--seeds", f"{first}..{first + REMOTE_CHUNK - 1}",
                  "--keep-going"])


def scenarios() -> list[str]:
    """The kill points' scenarios, as the program lists them."""
    return subprocess.run([TESTS / "kill/scenario", "list"], check=True, capture_output=True,
                          text=True).stdout.split()


def killed(n: int) -> Slice:
    """Every point of one scenario, one backend, one kind; in turn."""
    names = scenarios()
    scenario = names[n % len(names)]
    n //= len(names)
    kind, program = (("calls", "scenario"), ("events", "scenario_tapped"))[n % 2]
    backend = BACKENDS[n // 2 % 2]
    environment = {"CKPT_TEST_IO": backend}
    if backend == "uring":
        environment["CKPT_TEST_KILL_DISK"] = "1"
    return Slice([str(TESTS / "kill/killer"), kind, str(TESTS / "kill" / program), "0", scenario],
                 environment)


def ranks_killed(n: int) -> Slice:
    return Slice([PYTHON, str(ROOT / "tests/python/killing.py"), "--kills", "10", "--world",
                  str((2, 4)[n % 2]), "--seed", str(1000 + n)])


def nodes_hit(n: int) -> Slice:
    nodes, world = ((2, 3), (3, 3), (2, 4))[n % 3]
    return Slice([PYTHON, str(ROOT / "tests/python/killing_nodes.py"), "--kills", "10", "--nodes",
                  str(nodes), "--world", str(world), "--seed", str(1000 + n)])


def outages(n: int) -> Slice:
    return Slice([PYTHON, str(ROOT / "tests/s3/outage.py"), "--way", ("dies", "hangs")[n % 2]])


def rivals(n: int) -> Slice:
    return Slice([str(TESTS / "kill/rivals"), "40", "60", str(1000 + n)],
                 {"CKPT_TEST_IO": BACKENDS[n % 2]})


def tortured(n: int) -> Slice:
    return Slice([str(TESTS / "torture/torture"), "all", "--slice",
                  f"{n % TORTURE_SLICES}/{TORTURE_SLICES}"])


def tortured_whole(_: int) -> Slice:
    """Each site once: only the whole can say of one that it is never reached."""
    return Slice([str(TESTS / "torture/torture"), "all", "--quick", "--jobs", "2"])


def damaged(n: int) -> Slice:
    kinds = ("bytes", "bits", "lengths", "blocks", "writers")
    if n < len(kinds):
        return Slice([str(TESTS / "damage/damage"), kinds[n], "all"])
    return Slice([str(TESTS / "damage/damage"), "random", str(1000 + n), "20000"])


def explored(n: int) -> Slice:
    """A slice needs some tens of seeds."""
    return Slice([str(TESTS / "crash/explore"), "--seed", str(1000 * (n + 1)), "--states",
                  "1000000", "--limit", "4096"])


def planted(n: int) -> Slice:
    """Those by hand, with other seeds than the tests' and every other slice's."""
    return Slice([PYTHON, str(ROOT / "tests/sim/planted/run.py"), "--build", str(BUILD), "--jobs",
                  "1", "--first", str(SIM_FIRST * 10 + n * 100_000)])


def mutated(n: int) -> Slice:
    return Slice([PYTHON, str(ROOT / "tests/sim/planted/enumerate.py"), "--build", str(BUILD),
                  "--jobs", "1", "--sample", "40", "--draw", str(n + 1)])


def covered(n: int) -> Slice:
    return Slice([str(ROOT / "scripts/coverage")])


# What the fuzz targets are linked with.
READERS = ("libckpt/base", "libckpt/format")
CRASH = ("tests/crash/recorder", "tests/crash/replay", "tests/crash/cuts")


def crashed(script: str, count: str, fs: str) -> Callable[[int], Slice]:
    """Another seed, the backends in turn."""
    return lambda n: Slice([PYTHON, str(ROOT / "tests/crash" / script), "--fs", fs, "--backend",
                            BACKENDS[n % 2], "--seed", str(1000 + n), count, "200", "--build",
                            str(BUILD)])


def targets() -> list[str]:
    return sorted(p.name for p in (ROOT / "tests/fuzz/corpus").iterdir() if p.is_dir())


def fuzzed(target: str) -> Callable[[int], Slice]:
    return lambda n: Slice([str(ROOT / "scripts/fuzz"), "--minutes", "3", target])


PARTS = [
    Part("sim", "seeds of the simulated world", "seeds", 3_000_000, simulated, ("tests/sim/sim",)),
    Part("crowd", "seeds of jobs of several ranks", "seeds", 300_000, crowded,
         ("tests/sim/crowd",)),
    Part("remote", "seeds of a training and its bucket", "seeds", 100_000, uploaded,
         ("tests/sim/remote",)),
    Part("planted", "bugs planted by hand, each found again", "found", 400, planted,
         ("tests/sim/sim",)),
    Part("mutants", "mutants of the report, each found again", "mutants", 400, mutated,
         ("tests/sim/sim",)),
    Part("coverage", "runs of scripts/coverage", "slices", 1, covered),
    Part("kill", "kill points: system calls and disk requests", "kills", 10_000, killed,
         ("tests/kill/killer", "tests/kill/scenario", "tests/kill/scenario_tapped")),
    Part("ranks", "kills of a rank under torchrun", "kills", 200, ranks_killed),
    Part("nodes", "a rank or a node killed, frozen or cut off, each with a store of its own",
         "kills", 200, nodes_hit),
    Part("outages", "servers away for ten minutes in the middle of a hundred saves", "outages", 4,
         outages, ("tests/s3/s3d",)),
    Part("rivals", "stores that three processes want at once", "stores", 500, rivals,
         ("tests/kill/rivals",)),
    Part("torture", "calls made to fail", "runs", 55_000, tortured, ("tests/torture/torture",)),
    Part("torture whole", "places at which a call is made to fail, and none unreached", "sites", 4_500,
         tortured_whole, ("tests/torture/torture",)),
    Part("damage", "damages to a store", "damages", 100_000, damaged, ("tests/damage/damage",)),
    Part("states", "states that a power cut may leave of a simulated disk", "states", 10_000_000,
         explored, ("tests/crash/explore",)),
    *(Part(f"images {fs}", f"crash images of {fs}", "images", 700,
           crashed("images.py", "--images", fs), CRASH) for fs in ("ext4", "xfs", "btrfs")),
    *(Part(f"cuts {fs}", f"power cuts by the shutdown of {fs}", "cuts", 500,
           crashed("cuts.py", "--cuts", fs), CRASH) for fs in ("ext4", "xfs")),
    *(Part(f"fuzz {t}", f"fuzzing: {t}, CPU seconds", "seconds", 1800, fuzzed(t),
           sources=READERS) for t in targets()),
]


def parse_counts(output: str) -> dict[str, int] | None:
    """The numbers of the last line, `counts NAME=VALUE ...`; None if it is another one."""
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("counts "):
        return None
    counts = {}
    for word in lines[-1].split()[1:]:
        name, _, value = word.partition("=")
        if value.lstrip("-").isdigit():
            counts[name] = int(value)
    return counts


