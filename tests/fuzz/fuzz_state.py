# SPDX-License-Identifier: Apache-2.0
"""usage: fuzz_state.py [libFuzzer's options] [FOLDER or FILE...]

The Python state of a checkpoint, from mutated typed JSON, as load() decodes it. Whatever it says, it is
a value or one of the documented errors; it takes no more memory than its text explains; and nothing is
imported, executed or opened for it.
"""

import contextlib
import json
import random
import sys
import warnings

try:
    import atheris
except ImportError as error:
    print(f"atheris, which drives this, is not here: {error}")
    sys.exit(77)
import numpy as np
import torch

with atheris.instrument_imports(include=["libckpt"]):
    from libckpt._errors import FormatError, UnsupportedError

    from libckpt import _decoder, _json_nodes, _json_values, _load, _reader

#: What load() makes of other exceptions that it meets while it looks for names of tensors.
MALFORMED = (TypeError, LookupError, ValueError, RecursionError)
#: Bytes of arrays for each byte of text, and beside it.
RATIO, SLACK = 64, 1 << 20

#: By name: the memory that a step has for its tensors.
TENSORS = {
    "t": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "g": torch.Generator().get_state(),
    "opt/state/w/m": torch.zeros(3),
    "empty": torch.zeros(0),
}
ARRAYS = {"t": np.arange(6, dtype=np.float32), "empty": np.zeros((0, 3))}
BYTES = {"b": bytearray(b"bytes"), "empty": bytearray()}
HELD = {"torch": TENSORS, "numpy": ARRAYS, "bytes": BYTES}

FORBIDDEN = (
    "exec",
    "compile",
    "import",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "pickle.",
    "ctypes.",
    "shutil.",
)
#: An audit hook stays for ever; what it sees counts while this is a list.
seen: list[str] | None = None


class Pair(torch.Tensor):
    """One that wraps another."""

    @staticmethod
    def __new__(cls, a: torch.Tensor) -> "Pair":
        return torch.Tensor._make_wrapper_subclass(cls, a.shape)  # type: ignore[attr-defined]

    def __init__(self, a: torch.Tensor) -> None:
        self.a = a

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict, context: object, size: object, stride: object):  # type: ignore[type-arg] # noqa: ANN206
        return cls(inner["a"])


def watch(event: str, _: object) -> None:
    if seen is not None and event.startswith(FORBIDDEN):
        seen.append(event)


class Memory:
    """What load() has read, without a disk."""

    def get(self, name: object, kind: str) -> object:
        if type(name) is not str or name not in HELD[kind]:
            raise FormatError(f"no tensor {name!r}")
        return HELD[kind][name]


def load(node: object) -> object:
    """What _load._load_from() does between the two reads."""
    memory = Memory()
    try:
        for name, kind in _reader.references(node):
            memory.get(name, kind)
    except MALFORMED as error:
        raise FormatError(f"its state is malformed: {error!r}") from error

    def special(tag: str, inner: dict[str, object]) -> object:
        if tag == "$module":
            return _load._module(inner, decoder, memory)
        if tag == "$optimizer":
            return _load._optimizer(inner, decoder, memory)
        return decoder.decode(inner["state"])

    decoder = _decoder.Decoder(memory.get, special=special)
    return decoder.decode(node)


def weigh(value: object) -> int:
    """Bytes of what a value holds, as far as few bytes of text could say a lot of it."""
    todo, total = [value], 0
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(item.keys())
            todo.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            todo.extend(item)
        elif isinstance(item, np.ndarray):
            total += item.nbytes
        elif isinstance(item, (str, bytes, bytearray)):
            total += len(item)
        elif type(item) is int:
            total += item.bit_length() // 8
    return total


def draw(value: object) -> None:
    """A generator goes on from where it was, and nowhere else."""
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        if state["bit_generator"] == "MT19937":
            assert 0 <= state["state"]["pos"] <= 624, state["state"]["pos"]
        if state["bit_generator"] == "Philox":
            assert 0 <= state["buffer_pos"] <= 4, state["buffer_pos"]
        value.integers(0, 2**32, 3)
    elif isinstance(value, np.random.RandomState):
        assert 0 <= value.get_state()[2] <= 624
        value.randint(0, 2**31, 3)
    elif isinstance(value, random.Random):
        value.random()


def try_one(data: bytes) -> None:
    global seen
    try:
        node = json.loads(data)
    except (ValueError, RecursionError):
        return
    modules = len(sys.modules)
    seen = []
    try:
        value = load(node)
    except (FormatError, UnsupportedError):
        return
    finally:
        found, seen = seen, None
        assert not found, found
        assert len(sys.modules) == modules, list(sys.modules)[modules:]
    assert weigh(value) <= RATIO * len(data) + SLACK, weigh(value)
    draw(value)


# Mutations that keep it JSON.

TAGS = [*_decoder._DECODERS, *_json_nodes.SPECIAL_TAGS, "$unknown"]
EDGES = [None, True, 0, -1, 1, 4, 624, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, 1e308, 1e400]
WORDS = [
    "",
    "t",
    "g",
    "b",
    "empty",
    "nan",
    "0x10",
    "float32",
    "_dynamo",
    "cpu",
    "cuda:99",
    "int",
    "<f8",
    "<U0",
    "V0",
    "O",
    "M8[ns]",
    "f4,f4",
    "MT19937",
    "Philox",
    "PCG64",
    "RandomState",
    "AAAA",
    "2020-01-01T00:00:00+00:00",
    "..",
    "\ud800",
    "__main__:Pair",
    "torch:Tensor",
]
KEYS = ["state", "key", "pos", "params", "roles", "prefix", "tensors", "extra", "groups", "count"]
KEYS += ["class", "size", "inner"]


def places(node: object) -> list[tuple[object, object]]:
    """(container, key) of everything below a node."""
    found: list[tuple[object, object]] = []
    todo = [node]
    while todo:
        item = todo.pop()
        if isinstance(item, (list, dict)):
            keys = range(len(item)) if isinstance(item, list) else item
            found += [(item, key) for key in keys]
            todo += item if isinstance(item, list) else item.values()
    return found


def leaf(dice: random.Random) -> object:
    return dice.choice((dice.choice(EDGES), dice.choice(WORDS), [], {}))


def change(node: object, dice: random.Random) -> object:
    what = dice.randrange(8)
    if what == 0:
        return leaf(dice)
    if what == 1:
        return {dice.choice(TAGS): node}
    if what == 2 and isinstance(node, dict) and len(node) == 1:
        return {dice.choice(TAGS): next(iter(node.values()))}
    if what == 3:
        return [leaf(dice) for _ in range(dice.randrange(5))]
    if what == 4 and isinstance(node, list):
        return node * 2 if len(node) < 64 else node[:2]
    if what == 5:
        deep: object = node
        for _ in range(dice.choice((2, 40, 400))):
            deep = [deep] if dice.random() < 0.5 else {"$tuple": [deep]}
        return deep
    if what == 6:
        return {"$json": json.dumps(node)}
    if isinstance(node, str) and node:
        at = dice.randrange(len(node))
        return node[:at] + chr(dice.choice((0, 0x22, 0x41, 0x7F, 0x20AC))) + node[at + 1 :]
    return leaf(dice)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    dice = random.Random(seed)
    try:
        if dice.random() < 0.1:
            raise ValueError
        root = [json.loads(data)]
        for _ in range(dice.randint(1, 3)):
            where = places(root)
            container, key = dice.choice(where)
            kind = dice.randrange(5)
            if kind == 0 and len(where) > 1:
                del container[key]
            elif kind == 1:
                other, other_key = dice.choice(where)
                container[key] = json.loads(json.dumps(other[other_key]))
            elif kind == 2 and isinstance(container, dict):
                container[dice.choice(KEYS + TAGS)] = container.pop(key)
            else:
                container[key] = change(container[key], dice)
            if not root:
                root = [leaf(dice)]
        made = json.dumps(root[0], separators=(",", ":")).encode()
        if len(made) <= most:
            return made
    except (ValueError, RecursionError):
        pass
    return atheris.Mutate(data, most)


def warm_up() -> None:
    """Modules that decoding needs are there before anything is watched."""
    import datetime
    import pathlib

    values = [
        datetime.datetime.now(datetime.timezone.utc),
        pathlib.Path("a"),
        random.Random(1),
        np.random.default_rng(1),
        np.random.RandomState(1),
        np.float64(1),
        np.array(["a"]),
        np.dtype("M8[ns]"),
        torch.float32,
        torch.device("cpu"),
    ]
    node = _json_values.Encoder(Memory()).encode(values, None)
    load(json.loads(_json_nodes.dump(node)))
    for word in WORDS:
        for tag in TAGS:
            with contextlib.suppress(FormatError, UnsupportedError):
                load({tag: word})


def main() -> None:
    warnings.simplefilter("ignore")
    warm_up()
    sys.addaudithook(watch)
    # As what a merge starts again and again, in a shell.
    command = f"{sys.executable} {sys.argv[0]}"
    atheris.Setup([command, *sys.argv[1:]], try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
