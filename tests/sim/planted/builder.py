# SPDX-License-Identifier: Apache-2.0
"""Plants a bug in a copy of its file, compiles that, and links it in front of the library, into any program."""
import argparse
import pathlib
import random
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]


def commit():
    """HEAD's tree: samples are drawn by it, so that each commit has its own."""
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD^{tree}"], check=False,
                          capture_output=True, text=True)
    return done.stdout.strip()


def sampled(bugs, number):
    return random.Random(commit()).sample(bugs, min(number, len(bugs)))  # noqa: S311


def plant(bug):
    """Returns the source with this bug in it, or raises."""
    source = ROOT / bug.file
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    if text.count(bug.old) != 1:
        raise LookupError(f"{bug.file} holds the text {text.count(bug.old)} times")
    return text.replace(bug.old, bug.new).encode()


def check(bugs):
    """Whether each can be planted; nothing is built."""
    lost = 0
    for bug in bugs:
        try:
            plant(bug)
        except LookupError as error:
            print(f"{bug.name}: CANNOT BE PLANTED: {error}")
            lost += 1
    print(f"{len(bugs) - lost} of {len(bugs)} bugs can be planted")
    return 1 if lost or not bugs else 0


def options(what):
    """What every program that plants bugs is told."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--ninja", default="ninja")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--sample", type=int, help="as many, drawn by the commit")
    parser.add_argument("--check", action="store_true", help="only whether each can be planted")
    return parser


def ninja_commands(ninja, build, target):
    """The commands that ninja runs for a target, last one last."""
    out = subprocess.run([ninja, "-C", str(build), "-t", "commands", target],
                         check=True, capture_output=True, text=True).stdout
    return [line for line in out.splitlines() if line.strip()]


class Builder:
    """The build directory must be up to date. The tree itself is not touched."""

    def __init__(self, ninja, build, scratch):
        self.ninja = ninja
        self.build = build
        self.scratch = scratch
        self.links = {}
        self.compile = {}
        self.plain = {}
        self.link_of("tests/sim/sim")

    def link_of(self, target):
        if target not in self.links:
            commands = ninja_commands(self.ninja, self.build, target)
            self.links[target] = shlex.split(commands[-1])
            for line in commands:
                match = re.search(r" -c (\S+)$", line)
                if match:
                    source = (self.build / match.group(1)).resolve()
                    self.compile[source] = shlex.split(line)
        return list(self.links[target])

    def make_object(self, file, text, name):
        """Compiles `text` in the place of a file. Raises subprocess.CalledProcessError."""
        source = ROOT / file
        if source not in self.compile:
            raise LookupError(f"{file} is not compiled into the simulator")
        changed = self.scratch / name / source.name
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_bytes(text)
        thing = changed.with_suffix(".o")
        command = [word for word in self.compile[source] if word != "-g"]
        command[command.index("-c") + 1] = source.name
        command[command.index("-o") + 1] = str(thing)
        # Dependencies of the copy are nobody's business.
        for flag in ("-MF", "-MQ"):
            command[command.index(flag) + 1] = str(thing) + ".d"
        # In the directory of the copy, so that no path is compiled in; what was relative is so no more.
        command = [f"-I{self.build / word[2:]}" if word.startswith("-I") else word
                   for word in command]
        subprocess.run([*command, "-w"], cwd=changed.parent, check=True, capture_output=True)
        return thing

    def compile_plain(self, file):
        """The object code of the file as it is."""
        if file not in self.plain:
            name = "plain-" + re.sub(r"\W", "-", file)
            thing = self.make_object(file, (ROOT / file).read_bytes(), name)
            self.plain[file] = thing.read_bytes()
        return self.plain[file]

    def link(self, thing, target="tests/sim/sim"):
        """A program with this object in front of the library's."""
        program = thing.parent / target.rsplit("/", 1)[-1]
        link = self.link_of(target)
        link[link.index("-o") + 1] = str(program)
        # What uses the shared library gets the archive: there the object can stand in front.
        tail = self.link_of("tests/sim/sim")
        archive = tail[tail.index("-Wl,--start-group") + 1:tail.index("-Wl,--end-group")]
        archive = [word for word in archive if not word.startswith("-Wl,--wrap")]
        for at, word in enumerate(link):
            if "libckpt.so" in word:
                link[at:at + 1] = archive
        first = next(i for i, word in enumerate(link) if word.endswith(".o"))
        link.insert(first, str(thing))
        subprocess.run(link, cwd=self.build, check=True, capture_output=True)
        return program


# Seeds of one process: one that waits for a lock for ever is found when its share of time is over.
SHARE, SHARE_PATIENCE = 500, 600
# A mutant may loop, and take all the memory there is while it does.
LIMITED = ["/bin/sh", "-c", 'ulimit -v 4000000; ulimit -c 0; exec "$@"', "sh"]


def hunt(program, first, last):
    """The seed that finds it, and what was found; None if nothing was."""
    for start in range(first, last + 1, SHARE):
        found = hunt_share(program, start, min(start + SHARE - 1, last))
        if found:
            return found
    return None


def hunt_share(program, first, last):
    # --limit is of processor time: who waits for a lock for ever takes none.
    try:
        done = subprocess.run([*LIMITED, program, "--seeds", f"{first}..{last}", "--limit", "2",
                               "--quiet"],
                              check=False, capture_output=True, text=True, errors="replace",
                              timeout=SHARE_PATIENCE)
    except subprocess.TimeoutExpired:
        return first, "the program hangs"
    if done.returncode == 0:
        return None
    found = re.search(r"^seed (\d+): (.*)$", done.stderr, re.MULTILINE)
    return (int(found.group(1)), found.group(2)) if found else (first, "the program ended badly")
