#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants every mutant of the files in scope.py, and looks for who finds it.

    enumerate.py --build BUILD --all [--jobs N] [--seeds N] [--only PATTERN ...] [--fresh]
    enumerate.py --build BUILD --sample N [--draw N]
    enumerate.py --list | --summary

The world looks first. Where it sees nothing, the tests of scope.py are linked with the mutant and must
fail. What neither finds stands in survivors.txt with its reason, one line each.

--all goes on where it was interrupted: report.json keeps every verdict, and the digest of the function it
was found with. A function that has changed is looked at again, and so is every survivor that was given
fewer seeds. --sample takes some of those that the world found, others with each commit.
"""
import argparse
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from builder import LIMITED, ROOT, Builder, commit, hunt
from mutants import mutants_of
from scope import SCOPE

HERE = pathlib.Path(__file__).resolve().parent
REPORT = HERE / "report.json"
SURVIVORS = HERE / "survivors.txt"
SAVE_SECONDS = 5
TEST_SECONDS = 60
# What was found within a thousand is found within so many, or by a test.
SAMPLE_SEEDS = 5000


def digest_of(text):
    return hashlib.sha256(text).hexdigest()[:16]


def world_digest():
    """Of the simulator."""
    return digest_of(b"".join(path.read_bytes() for path in sorted(HERE.parent.glob("*.[ch]"))))


def tests_digest(scope):
    """Of the tests that look at what the world does not see of a file."""
    names = sorted({test.rsplit("/", 1)[-1] for test in scope.tests})
    return digest_of(b"".join(path.read_bytes() for name in names
                              for path in sorted(ROOT.glob(f"tests/*/**/{name}.c"))))


def function_of(mutant):
    return mutant.name.split(":")[1]


def enumerated():
    """By name: what is planted, and the scope it belongs to."""
    found = {}
    for scope in SCOPE:
        for mutant in mutants_of(scope.file, (ROOT / scope.file).read_bytes()):
            found[mutant.name] = (mutant, scope)
    return found


def read_survivors():
    """The reasons, by name."""
    reasons = {}
    for line in SURVIVORS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason or name in reasons:
                raise ValueError(f"survivors.txt: a name, once, and a reason: {line}")
            reasons[name] = reason
    return reasons


class Report:
    """Verdicts by file and mutant: "sim SEED", "test NAME after SEEDS", "survived SEEDS", "same code",
    "no code"; and "untested SEEDS" of what survived the world, and not yet these tests."""

    def __init__(self, fresh=False):
        self.files = {}
        self.world = world_digest()
        self.saved = 0.0
        if REPORT.exists() and not fresh:
            self.files = json.loads(REPORT.read_text(encoding="utf-8"))["files"]
        self.tests = {scope.file: tests_digest(scope) for scope in SCOPE}
        self.reasons = read_survivors()

    def verdict(self, mutant):
        """None if it was said of another text of the function. Another world may find what that one did not;
        so may other tests, for which no seed need be run again. A reason stands as long as the function's text:
        --again looks at those, too."""
        entry = self.files.get(mutant.file, {"functions": {}})
        if entry["functions"].get(function_of(mutant)) != mutant.function:
            return None
        verdict = entry["mutants"].get(mutant.name)
        if not verdict or not verdict.startswith(("survived", "untested")):
            return verdict
        if verdict.startswith("survived") and mutant.name in self.reasons:
            return verdict
        if entry.get("world") != self.world:
            return None
        return verdict if entry.get("tests") == self.tests[mutant.file] else verdict.replace("survived", "untested")

    def start(self, file, mutants):
        """Keeps what still holds."""
        verdicts = {mutant.name: self.verdict(mutant) for mutant in mutants}
        self.files[file] = {
            "functions": {function_of(mutant): mutant.function for mutant in mutants},
            "world": self.world, "tests": self.tests[file],
            "mutants": {name: verdict for name, verdict in verdicts.items() if verdict}}

    def put(self, name, file, verdict):
        self.files[file]["mutants"][name] = verdict
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save()

    def save(self):
        fresh = REPORT.with_suffix(".json.tmp")
        fresh.write_text(json.dumps({"files": self.files}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(REPORT)
        self.saved = time.monotonic()


def run_test(program, seconds):
    """Its exit code; None: it took longer."""
    try:
        return subprocess.run([*LIMITED, program], check=False, capture_output=True, timeout=seconds,
                              env={**os.environ, "MALLOC_PERTURB_": "165"}).returncode
    except subprocess.TimeoutExpired:
        return None


def fails(program, plain):
    code = run_test(program, TEST_SECONDS)
    # It hangs, unless the machine is so busy that every test takes as long.
    return run_test(plain, TEST_SECONDS / 2) == 0 if code is None else code not in (0, 77)


def find_test(builder, thing, tests):
    """The test that fails with it, twice; None if there is none."""
    for test in tests:
        program = builder.link(thing, test)
        plain = builder.build / test
        if fails(program, plain) and fails(program, plain):
            return test.rsplit("/", 1)[-1]
    return None


def try_mutant(builder, mutant, tests, before, seeds):
    """The verdict, and what the world said."""
    text = (ROOT / mutant.file).read_bytes()
    place = re.sub(r"\W", "-", mutant.name)
    try:
        plain = builder.compile_plain(mutant.file)
        try:
            thing = builder.make_object(mutant.file, mutant.apply(text), place)
        except subprocess.CalledProcessError:
            return "no code", ""
        if thing.read_bytes() == plain:
            return "same code", ""
        tried = int(before.rsplit(" ", 1)[1]) if before else 0
        found = hunt(builder.link(thing), tried + 1, seeds) if tried < seeds else None
        if found:
            return f"sim {found[0]}", found[1]
        tried = max(tried, seeds)
        if tests is None:
            return f"untested {tried}", ""
        test = find_test(builder, thing, tests)
        return (f"test {test} after {tried}" if test else f"survived {tried}"), ""
    finally:
        shutil.rmtree(builder.scratch / place, ignore_errors=True)


def is_settled(verdict, seeds, eager):
    if not verdict or verdict.startswith("untested "):
        return False
    if verdict in ("same code", "no code") or verdict.startswith("sim "):
        return True
    if verdict.startswith("test ") and not eager:
        return True
    return int(verdict.rsplit(" ", 1)[1]) >= seeds


def run_all(args, builder):
    report = Report(args.fresh)
    everything = enumerated()
    chosen = {name: one for name, one in everything.items()
              if not args.only or any(fnmatch.fnmatchcase(name, p) for p in args.only)}
    for scope in SCOPE:
        if any(mutant.file == scope.file for mutant, _ in chosen.values()):
            report.start(scope.file, [m for m, _ in everything.values() if m.file == scope.file])
    work = []
    for mutant, scope in chosen.values():
        before = report.verdict(mutant)
        if args.again or not is_settled(before, args.seeds, args.eager):
            tests = None if args.world else scope.tests
            work.append((mutant, tests, None if args.again else before))
    for file in {mutant.file for mutant, _, _ in work}:
        builder.compile_plain(file)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tries = {pool.submit(try_mutant, builder, *one, args.seeds): one[0] for one in work}
        for attempt in concurrent.futures.as_completed(tries):
            mutant = tries[attempt]
            verdict, said = attempt.result()
            report.put(mutant.name, mutant.file, verdict)
            print(f"{mutant.name:60} {verdict:20} {said[:100]}", flush=True)
    report.save()
    return summary(report, everything)


def summary(report, everything):
    """Counts; 1 if something is neither found nor justified, or justified wrongly."""
    reasons = read_survivors()
    counts = {"sim": 0, "test": 0, "same": 0, "no": 0, "survived": 0, "untested": 0, "unknown": 0}
    seeds, open_ones, wrong = [], [], [n for n in reasons if n not in everything]
    for name, (mutant, _) in everything.items():
        verdict = report.verdict(mutant)
        kind = verdict.split(" ")[0] if verdict else "unknown"
        counts[kind] += 1
        if kind == "sim":
            seeds.append(int(verdict.split(" ")[1]))
        if kind in ("sim", "test", "same", "no") and name in reasons:
            wrong.append(name)
        if kind == "survived" and name not in reasons:
            open_ones.append(name)
    for name in open_ones:
        print(f"neither found nor justified: {name}")
    for name in wrong:
        print(f"survivors.txt: there is no such survivor: {name}")
    print(f"{len(everything)} mutants of {len(SCOPE)} files: {counts['no']} do not compile, "
          f"{counts['same']} compile to the same code, {counts['sim']} found by the world, "
          f"{counts['test']} by a test, {counts['survived'] - len(open_ones)} justified, "
          f"{len(open_ones)} open, {counts['untested'] + counts['unknown']} not looked at; "
          f"median {statistics.median(seeds) if seeds else 0:g} seeds, most {max(seeds, default=0)}")
    return 1 if open_ones or wrong or counts["untested"] or counts["unknown"] else 0


def run_sample(args, builder):
    """Some that the world found quickly: they must be found again, by it, or, as the world has changed since,
    by a test. What was said of another text of a file says nothing about this one."""
    everything = enumerated()
    report = Report()
    verdicts = {n: report.verdict(m) for n, (m, _) in everything.items()}
    stale = [n for n in read_survivors() if n not in everything]
    for name in stale:
        print(f"survivors.txt: there is no such mutant: {name}")
    quick = [n for n, verdict in verdicts.items() if re.fullmatch(r"sim \d{1,3}", verdict or "")]
    if not quick and not stale:
        print("skipped: report.json is older than every function of scope.py; --all looks at them again")
        return 77
    names = random.Random(f"{commit()} {args.draw}").sample(quick, min(args.sample, len(quick)))  # noqa: S311
    work = [everything[name] for name in names]
    seeds = min(args.seeds, SAMPLE_SEEDS)
    for mutant, _ in work:
        builder.compile_plain(mutant.file)
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tries = [(mutant, pool.submit(try_mutant, builder, mutant, scope.tests, None, seeds))
                 for mutant, scope in work]
        for mutant, attempt in tries:
            verdict, said = attempt.result()
            missed += verdict.startswith("survived")
            print(f"{mutant.name:60} {verdict:20} {said[:100]}", flush=True)
    print(f"counts mutants={len(work)} missed={missed} stale={len(stale)}")
    return 1 if missed or stale else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--ninja", default="ninja")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sample", type=int, help="as many of those that the world finds quickly")
    parser.add_argument("--draw", type=int, default=0, help="another sample")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--summary", action="store_true", help="of the report as it is")
    parser.add_argument("--only", nargs="*", help="names, with * and ?")
    parser.add_argument("--seeds", type=int, default=30000)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--fresh", action="store_true", help="forgets the report")
    parser.add_argument("--world", action="store_true", help="without the tests, to begin with")
    parser.add_argument("--again", action="store_true", help="what was settled, too")
    parser.add_argument("--eager", action="store_true", help="more seeds for what a test has found, too")
    args = parser.parse_args()
    if args.list:
        for name in enumerated():
            print(name)
        return 0
    if args.summary:
        return summary(Report(), enumerated())
    if not args.all and args.sample is None:
        parser.error("--all, --sample, --list or --summary")
    tests = sorted({test for scope in SCOPE for test in scope.tests})
    subprocess.run([args.ninja, "-C", args.build, "tests/sim/sim", *tests], check=True,
                   stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        builder = Builder(args.ninja, args.build.resolve(), pathlib.Path(scratch))
        for test in tests:
            builder.link_of(test)
        return run_all(args, builder) if args.all else run_sample(args, builder)


if __name__ == "__main__":
    sys.exit(main())
