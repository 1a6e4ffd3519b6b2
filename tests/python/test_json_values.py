# SPDX-License-Identifier: Apache-2.0
"""Typed JSON gives back what it was given: the same types, the same bits."""

import base64
import collections
import dataclasses
import datetime
import enum
import fractions
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from libckpt._decoder import Decoder
from libckpt._json_nodes import dump, mentions, path_text
from libckpt._json_values import Encoder

from libckpt import FormatError, UnsupportedError, UnsupportedStateError


class Memory:
    """A sink and a source: what a checkpoint does with tensors, without a disk."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def _put(self, value: Any) -> str:
        name = f"t{len(self.held)}"
        self.held[name] = value
        return name

    def put_tensor(self, value: Any, _path: Any, *, own: bool = False) -> str:
        return self._put(value.clone())

    def put_array(self, value: Any, _path: Any) -> str:
        return self._put(value.copy())

    def put_bytes(self, value: bytes, _path: Any) -> str:
        return self._put(value)

    def get(self, name: str, _kind: str) -> Any:
        return self.held[name]


def round_trip(value: Any, allow_pickle: bool = False) -> Any:
    memory = Memory()
    text = dump(Encoder(memory, allow_pickle=allow_pickle).encode(value, None))
    text.encode("utf-8")
    assert "\0" not in text
    return Decoder(memory.get, allow_pickle=allow_pickle).decode(json.loads(text))


def depth_of(node: Any) -> int:
    if isinstance(node, dict):
        return 1 + max(map(depth_of, node.values()), default=0)
    if isinstance(node, list):
        return 1 + max(map(depth_of, node), default=0)
    return 0


def same(a: Any, b: Any) -> bool:
    """Equal, of equal types all the way down, and equal to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return (
            len(a) == len(b)
            and getattr(a, "default_factory", 0) == getattr(b, "default_factory", 0)
            and all(
                same(x, y) and same(a[x], b[y]) for x, y in zip(a.keys(), b.keys(), strict=True)
            )
        )
    if isinstance(a, (list, tuple, collections.deque)):
        return (
            len(a) == len(b)
            and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
            and all(map(same, a, b))
        )
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


keys = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=8),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.text(max_size=3).map(lambda t: "$" + t),
)
texts = st.text(st.characters(codec=None, exclude_categories=()))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False),
    st.sampled_from([math.inf, -math.inf, -0.0, 5e-324, math.nan]),
    st.complex_numbers(allow_nan=False),
    texts,
    st.binary(max_size=64),
    st.binary(max_size=64).map(bytearray),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.timezone.utc)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.builds(range, st.integers(-9, 9), st.integers(), st.integers(1, 9)),
    st.sampled_from([np.float32(0.1), np.int8(-3), np.bool_(True), np.complex64(1j), np.str_("x")]),
    st.sampled_from(
        [np.datetime64("2024-01-01"), np.uint64(2**64 - 1), np.str_(""), np.bytes_(b"")]
    ),
    st.sampled_from([int, float, dict, np.dtype("float32"), np.dtype("<U7")]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.Size([2, 0])]),
    st.sampled_from([pathlib.Path("/a/b"), pathlib.Path("x")]),
    st.sampled_from([np.arange(6).reshape(2, 3), np.array([["a", "bc"]]), np.zeros((0, 3), "f2")]),
    st.sampled_from([np.zeros(3, [("a", "S0"), ("b", "i4")])["a"], np.array([], "U")]),
    st.sampled_from([np.array(5.0), np.array(["2020"], "M8[D]")]),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        pairs,
        pairs.map(collections.OrderedDict),
        pairs.map(lambda d: collections.defaultdict(list, d)),
        st.lists(inner, max_size=4).map(lambda v: collections.deque(v, maxlen=5)),
        st.dictionaries(keys, st.integers(), max_size=4).map(collections.Counter),
        st.frozensets(keys, max_size=4),
        st.sets(keys, max_size=4),
    )


values = st.recursive(scalars, containers, max_leaves=12)


@settings(max_examples=400, deadline=None)
@given(values)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert same(round_trip(value), value)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 90), st.sampled_from([list, dict, tuple, "intdict"]))
def test_the_index_never_sees_more_than_its_depth(levels: int, kind: Any) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {
            list: lambda v: [v],
            dict: lambda v: {"k": v},
            tuple: lambda v: (v, "x"),
            "intdict": lambda v: {1: v},
        }[kind](value)
    node = Encoder(Memory()).encode(value, None)
    assert depth_of(node) <= 28  # 32 in the index, less what stands around the state
    assert round_trip(value) == value


def test_long_lists_of_numbers_are_quick_and_exact() -> None:
    value = {"a": list(range(100_000)), "b": [0.1] * 1000, "c": [1, True, 1.0], "d": ["x", "\0"]}
    assert same(round_trip(value), value)
    assert same(round_trip([2**53, -(2**53), 2**53 - 1]), [2**53, -(2**53), 2**53 - 1])
    assert same(round_trip([math.nan, 1.0]), [math.nan, 1.0])


def test_a_nan_keeps_its_payload() -> None:
    odd = struct.unpack(">d", bytes.fromhex("fff8000000abcdef"))[0]
    assert struct.pack(">d", round_trip(odd)).hex() == "fff8000000abcdef"


def test_generators_go_on_where_they_stopped() -> None:
    made = {
        "generator": np.random.default_rng(3),
        "philox": np.random.Generator(np.random.Philox(7)),
        "legacy": np.random.RandomState(5),
        "python": random.Random(9),
        "torch": torch.Generator().manual_seed(11),
    }
    made["python"].gauss(0, 1)  # leaves half of a pair behind
    made["legacy"].normal()
    back = round_trip(made)
    assert np.array_equal(back["generator"].random(9), made["generator"].random(9))
    assert np.array_equal(back["philox"].normal(size=9), made["philox"].normal(size=9))
    assert np.array_equal(back["legacy"].normal(size=9), made["legacy"].normal(size=9))
    assert [back["python"].gauss(0, 1) for _ in range(5)] == [
        made["python"].gauss(0, 1) for _ in range(5)
    ]
    assert torch.equal(
        torch.rand(5, generator=back["torch"]), torch.rand(5, generator=made["torch"])
    )


def test_tensors_and_large_bytes_become_tensors() -> None:
    memory = Memory()
    value = {"t": torch.arange(3), "a": np.arange(3.0), "b": b"x" * 5000, "s": b"x"}
    node = Encoder(memory).encode(value, None)
    assert len(memory.held) == 3
    back = Decoder(memory.get).decode(json.loads(dump(node)))
    assert torch.equal(back["t"], value["t"])
    assert back["b"] == value["b"]


def test_the_text_does_not_depend_on_the_order_of_a_set() -> None:
    def text(items: Any) -> str:
        return dump(Encoder(Memory()).encode(items, None))

    assert text({"a", "b", "c"}) == text({"c", "b", "a"})


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int


@dataclasses.dataclass
class Config:
    x: int = 1


class Own:
    pass


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Own(), "load_state_dict"),
        (Colour.RED, ".value"),
        (Number.ONE, ".value"),
        (Point(1), "_asdict"),
        (Config(), "asdict"),
        (Text("x"), "load_state_dict"),
        (lambda: 1, "leave it out"),
        (Own, "leave it out"),
        (iter([1]), "position"),
        (collections.defaultdict(lambda: 1), "factory"),
        (np.array([object()]), "load_state_dict"),
        ({(Own(),): 1}, "keys"),
        ([1, {"a": Own()}], "['deep'][1]['a']"),
    ],
)
def test_what_cannot_be_held_is_named_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(UnsupportedStateError) as caught:
        Encoder(Memory()).encode({"deep": value}, None)
    assert "state['deep']" in str(caught.value)
    assert advice in str(caught.value)


def test_cycles_and_bottomless_nesting_are_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UnsupportedStateError, match="contains itself"):
        Encoder(Memory()).encode({"x": ring}, None)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnsupportedStateError, match="nested deeper"):
        Encoder(Memory()).encode(deep, None)
    while deep:  # taken apart by hand: the interpreter's own way is recursive
        deep = deep[0]
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


def test_pickles_need_leave_to_be_written_and_to_be_read() -> None:
    memory = Memory()
    encoder = Encoder(memory, allow_pickle=True)
    node = json.loads(dump(encoder.encode({"x": [Number.ONE]}, None)))
    assert encoder.pickled == ["state['x'][0]"]
    with pytest.raises(UnsupportedError, match="allow_pickle=True"):
        Decoder(memory.get).decode(node)
    assert Decoder(memory.get, allow_pickle=True).decode(node) == {"x": [Number.ONE]}
    with pytest.raises(UnsupportedStateError, match="pickling it failed"):
        encoder.encode({"f": lambda: 1}, None)


LEGACY = {"key": base64.b64encode(bytes(2496)).decode(), "has_gauss": 0, "gauss": 0.0}


@pytest.mark.parametrize(
    "node",
    [
        {"$set": 5},
        {"$dict": [1]},
        {"$int": "five"},
        {"$float": "00"},
        {"$complex": [1, 2, 3]},
        {"$nothing": 1},
        {"$torch.dtype": "load"},
        {"$np.random": ["os", {}]},
        {"$np": ["O", "AAAA"]},
        {"$ndarray": ["|O", [1], "AAAAAAAAAAA="]},
        {"$bytes": "*"},
        {"$defaultdict": ["eval"]},
        {"$type": "object"},
        {"$json": "["},
        {"$set": [[1]]},
        {"$ndarray": ["<f8", [2**37], ""]},
        {"$ndarray": ["<f8", [1] * 10**5, ""]},
        {"$ndarray": ["S0", ["t", 2**53, []], ""]},
        {"$ndarray": ["S0", ["t", 2**31], ""]},
        {"$ndarray": ["<f8", [-1], "AAAAAAAAAAA="]},
        {"$ndarray": ["<f8", [True], "AAAAAAAAAAA="]},
        {"$ndarray": ["<f8", {"1": 1}, "AAAAAAAAAAA="]},
        {"$tuple": {"$range": [0, 10**15, 1]}},
        {"$set": {"$range": [0, 10**15, 1]}},
        {"$frozenset": {"$range": [0, 10**15, 1]}},
        {"$complex": {"$range": [0, 10**15, 1]}},
        {"$range": {"$range": [0, 10**15, 1]}},
        {"$np.random": ["SFC64", {"state": {"state": {"$range": [0, 10**15, 1]}}}]},
        {"$np.dtype": None},
        {"$np.dtype": "0x10"},
        {"$np.dtype": "i4,i4"},
        {"$torch.device": 0},
        {"$torch.device": "warp:9"},
        {"$torch.Generator": {"$tensor": "short"}},
        {"$np.random": ["RandomState", {**LEGACY, "pos": 625}]},
        {"$np.random": ["RandomState", {**LEGACY, "pos": -1}]},
        {"$np.random": ["MT19937", {"state": {"pos": 625}}]},
        {"$np.random": ["Philox", {"buffer_pos": -1}]},
    ],
)
def test_a_hostile_node_is_an_error_of_the_format(node: Any) -> None:
    memory = Memory()
    memory.held["short"] = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(FormatError):
        Decoder(memory.get).decode(node)


def test_a_hostile_node_imports_nothing() -> None:
    """torch imports some modules when it is asked for them by name."""
    code = (
        "import sys, torch\n"
        "from libckpt._decoder import Decoder\n"
        "before = set(sys.modules)\n"
        "try:\n"
        "    Decoder(None).decode({'$torch.dtype': '_dynamo'})\n"
        "except Exception as error:\n"
        "    assert type(error).__name__ == 'FormatError', error\n"
        "assert 'torch._dynamo' not in set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_hostile_depth_is_an_error_of_the_format() -> None:
    text = "1"
    for _ in range(14):
        text = json.dumps({"$json": text})
    assert Decoder(Memory().get).decode(json.loads(text)) == 1
    node: Any = 1
    for _ in range(100_000):
        node = [node]
    with pytest.raises(FormatError):
        Decoder(Memory().get).decode(node)
    while isinstance(node, list):
        node = node[0]


def test_what_is_nested_deeply_is_searched_for_tags() -> None:
    """It is text in a node, in which the tags are."""
    for bottom, found in ((fractions.Fraction(1, 3), True), (1.5, False)):
        value: Any = [bottom]
        for _ in range(40):
            value = {"below": value}
        node = Encoder(Memory(), allow_pickle=True).encode(value, None, 1)
        while "below" in node:
            node = node["below"]
        assert list(node) == ["$json"]
        assert mentions([1, {"key": [node]}], "$pickle") is found
        assert not mentions(node, "$object")


def test_paths_read_like_python() -> None:
    assert path_text(((None, "opt"), 3)) == "state['opt'][3]"
