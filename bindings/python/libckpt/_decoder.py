# SPDX-License-Identifier: Apache-2.0
"""Decodes the JSON of _json_values.py to Python values. The JSON is not trusted."""

from __future__ import annotations

import binascii
import collections
import io
import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._asking import calling, is_of_user
from ._errors import FormatError, UnsupportedError
from ._json_nodes import SPECIAL_TAGS, Json, tag_of
from ._json_values import BIT_GENERATORS, FACTORIES, base64_of
from .adapters import _subclasses

if TYPE_CHECKING:
    import random

#: Dimensions of an array: NumPy has no more.
_NDIM_MAX = 64

_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    struct.error,
    ValueError,
)


class Decoder:
    """Decodes JSON. `get`: returns the memory of a tensor by name, which was read before."""

    def __init__(
        self,
        get: Callable[[str, str], Any],
        *,
        allow_pickle: bool = False,
        special: Callable[[str, Json], Any] | None = None,
    ) -> None:
        self._get = get
        self._special = special
        self._allow_pickle = allow_pickle

    @staticmethod
    def plain(node: Json, *, allow_pickle: bool = False) -> Any:
        """Decodes a node without tensors."""
        return Decoder(_no_tensor, allow_pickle=allow_pickle).decode(node)

    def check(self, node: Json) -> None:
        """Raises what decoding would raise for a value that cannot be created here."""
        if type(node) is list:
            for item in node:
                self.check(item)
        elif type(node) is dict:
            tag = tag_of(node)
            if tag == "$json":
                self.check(json.loads(node[tag]))
                return
            if tag == "$pickle":
                self._check_pickle()
            elif tag in ("$wrapper", "$spread"):
                _subclasses.check(tag, node[tag])
            elif tag is not None and tag not in _DECODERS and tag not in SPECIAL_TAGS:
                raise _not_known(tag)
            for item in node.values():
                self.check(item)

    def decode(self, node: Json) -> Any:
        """The value of a node. Raises FormatError for a malformed one."""
        try:
            return self._decode(node)
        except _MALFORMED as error:
            if is_of_user(error):
                raise
            raise FormatError(f"the checkpoint's Python state is malformed: {error!r}") from error

    def _decode(self, node: Json) -> Any:
        if type(node) is list:
            return [self._decode(item) for item in node]
        if type(node) is not dict:
            return node
        tag = tag_of(node)
        if tag is None:
            return {key: self._decode(item) for key, item in node.items()}
        decode = _DECODERS.get(tag)
        if decode is None and self._special is not None and tag in SPECIAL_TAGS:
            return self._special(tag, node[tag])
        if decode is None:
            raise _not_known(tag)
        return decode(self, node[tag])

    def items(self, node: Json) -> list[Any]:
        """The items of a list. A range is refused, because it could be of any length."""
        if type(node) is not list:
            raise TypeError(f"a {type(node).__name__} where a list belongs")
        items: list[Any] = self.decode(node)
        return items

    def pairs(self, flat: list[Json]) -> Iterable[tuple[Any, Any]]:
        """Keys and values of a flat list."""
        if len(flat) % 2:
            raise ValueError("a key without a value")
        items = [self._decode(item) for item in flat]
        return zip(items[::2], items[1::2], strict=True)

    def data(self, node: Json) -> bytes:
        """Bytes stored inline or as a tensor."""
        if type(node) is dict:
            return bytes(self._get(node["$tensor"], "bytes"))
        return _unbase64(node)

    def tensor(self, name: str) -> Any:
        """A torch tensor."""
        return self._get(name, "torch")

    def array(self, node: Json) -> Any:
        """A NumPy array."""
        import numpy as np

        if type(node) is dict:
            return self._get(node["$tensor"], "numpy")
        kind, shape, text = node
        dtype, data = _np_dtype(kind), _unbase64(text)
        if type(shape) is not list or len(shape) > _NDIM_MAX:
            raise ValueError("a shape that is none")
        # Only integers: other objects support multiplication, too, and might use much memory.
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"an array of shape {shape!r:.100}")
        if data:
            return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
        if math.prod(shape) and dtype.itemsize:
            raise ValueError(f"an array of shape {shape!r} without bytes")
        # Not zeros(), which makes texts of length 0 one character long, and needs that memory.
        return np.ndarray(shape, dtype=dtype)

    def pickle(self, node: Json) -> Any:
        """A pickled object, if that is allowed."""
        self._check_pickle()
        import pickle

        data = self.data(node)
        with calling():
            return pickle.loads(data)  # noqa: S301 - the caller asked for it

    def _check_pickle(self) -> None:
        if not self._allow_pickle:
            raise UnsupportedError(
                "the checkpoint holds pickled objects, and loading them can run any code that "
                "whoever wrote it wanted: pass allow_pickle=True only if you trust its origin"
            )


def _not_known(tag: str) -> FormatError:
    return FormatError(
        f'the checkpoint\'s Python state holds a "{tag}", which this version does not know: '
        "install a newer libckpt"
    )


def _unbase64(data: str) -> bytes:
    decoded = binascii.a2b_base64(data)
    if base64_of(decoded) != data:  # the base64 decoder ignores unknown characters
        raise ValueError("malformed base64")
    return decoded


def decode_random(node: Json) -> tuple[Any, ...]:
    """The reverse, for random.Random.setstate()."""
    version, words, gauss = node
    data = _unbase64(words)
    gauss = None if gauss is None else float(Decoder.plain(gauss))
    return version, struct.unpack(f"<{len(data) // 4}I", data), gauss


#: Words of state of each generator. NumPy trusts the position in it, so it must be checked.
_MT19937_WORDS = 624
_PHILOX_WORDS = 4


def _position(value: Json, words: int) -> int:
    """A checked position in the state of a generator."""
    if type(value) is not int or not 0 <= value <= words:
        raise ValueError(f"a generator at word {value!r} of {words}")
    return value


def decode_legacy(node: Json) -> Any:
    """The reverse, for RandomState.set_state()."""
    import numpy as np

    key = np.frombuffer(_unbase64(node["key"]), dtype=np.uint32)
    gauss = float(Decoder.plain(node["gauss"]))
    pos = _position(node["pos"], _MT19937_WORDS)
    return ("MT19937", key, pos, node["has_gauss"], gauss)


def _no_tensor(name: str, kind: str) -> Any:
    raise FormatError(f"a tensor ({kind} {name!r}) where a plain value belongs")


def _np_dtype(kind: str) -> Any:
    import numpy as np

    # NumPy also accepts other texts than dtype.str, and parses some of them as Python.
    if type(kind) is not str or not re.fullmatch(r"[<>|]?[A-Za-z][0-9]*(\[\w+\])?", kind):
        raise ValueError(f"a NumPy type {kind!r}")
    dtype = np.dtype(kind)
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"a NumPy type {kind!r}")
    return dtype


def _decode_float(_: Decoder, node: str) -> float:
    if node in ("inf", "-inf", "nan"):
        return float(node)
    return float(struct.unpack(">d", bytes.fromhex(node))[0])


def _decode_moment(name: str) -> Callable[[Decoder, Json], Any]:
    def decode(_: Decoder, node: Json) -> Any:
        import datetime

        text, fold = (node, 0) if type(node) is str else node
        kind = getattr(datetime, name)
        return kind.fromisoformat(text).replace(fold=fold)

    return decode


def _decode_date(_: Decoder, node: str) -> Any:
    import datetime

    return datetime.date.fromisoformat(node)


def _decode_timedelta(_: Decoder, node: list[int]) -> Any:
    import datetime

    return datetime.timedelta(*node)


def _decode_bytesio(dec: Decoder, node: Json) -> io.BytesIO:
    position, data = dec.items(node)
    if type(position) is not int or type(data) is not bytes:
        raise TypeError("a file in memory that is none")
    made = io.BytesIO(data)
    made.seek(position)
    return made


def _decode_path(dec: Decoder, node: Json) -> Any:
    import pathlib

    return pathlib.Path(dec.decode(node))


def _decode_np_scalar(_: Decoder, node: Json) -> Any:
    import numpy as np

    dtype = _np_dtype(node[0])
    if dtype.itemsize == 0:
        return np.zeros((), dtype=dtype)[()]
    return np.frombuffer(_unbase64(node[1]), dtype=dtype)[0]


def _no_range(value: Any) -> None:
    """Raises for a range, which NumPy would expand to any length."""
    if isinstance(value, range):
        raise TypeError("a range in the state of a generator")
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _no_range(item)


def _decode_np_random(dec: Decoder, node: Json) -> Any:
    import numpy as np

    name, state = node
    if name == "RandomState":
        legacy = np.random.RandomState()
        legacy.set_state(decode_legacy(state))
        return legacy
    if name not in BIT_GENERATORS:
        raise ValueError(f"a bit generator {name!r}")
    bits = getattr(np.random, name)()
    found = dec.decode(state)
    _no_range(found)
    if name == "MT19937":
        _position(found["state"]["pos"], _MT19937_WORDS)
    elif name == "Philox":
        _position(found["buffer_pos"], _PHILOX_WORDS)
    bits.state = found
    return np.random.Generator(bits)


def _decode_random_object(_: Decoder, node: Json) -> random.Random:
    import random

    made = random.Random()  # noqa: S311 - the user's own generator
    made.setstate(decode_random(node))
    return made


def _decode_torch_dtype(_: Decoder, node: str) -> Any:
    import torch

    # Not getattr(), because torch imports modules by that.
    dtype = vars(torch).get(node)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a torch type {node!r}")
    return dtype


def _decode_torch_device(_: Decoder, node: str) -> Any:
    import torch

    if type(node) is not str:
        raise TypeError(f"a torch device {node!r}")
    try:
        return torch.device(node)
    except RuntimeError as error:
        raise ValueError(f"a torch device {node!r}: {error}") from error


def _decode_torch_size(_: Decoder, node: list[int]) -> Any:
    import torch

    return torch.Size(node)


def _decode_torch_generator(dec: Decoder, node: Json) -> Any:
    import torch

    made = torch.Generator()
    try:
        made.set_state(dec.tensor(node["$tensor"]))
    except RuntimeError as error:
        raise ValueError(f"the state of a torch generator: {error}") from error
    return made


def _decode_defaultdict(dec: Decoder, node: list[Json]) -> Any:
    factory = None if node[0] is None else FACTORIES[node[0]]
    return collections.defaultdict(factory, dec.pairs(node[1:]))


def _decode_deque(dec: Decoder, node: list[Json]) -> Any:
    return collections.deque((dec._decode(item) for item in node[1:]), maxlen=node[0])


def _refuse_spread(_: Decoder, node: Json) -> Any:
    raise _subclasses.only_there(node)


_DECODERS: dict[str, Callable[[Decoder, Json], Any]] = {
    "$tuple": lambda dec, node: tuple(dec.items(node)),
    "$set": lambda dec, node: set(dec.items(node)),
    "$frozenset": lambda dec, node: frozenset(dec.items(node)),
    "$deque": _decode_deque,
    "$dict": lambda dec, node: dict(dec.pairs(node)),
    "$odict": lambda dec, node: collections.OrderedDict(dec.pairs(node)),
    "$counter": lambda dec, node: collections.Counter(dict(dec.pairs(node))),
    "$defaultdict": _decode_defaultdict,
    "$int": lambda _, node: int(node, 16),
    "$float": _decode_float,
    "$complex": lambda dec, node: complex(*dec.items(node)),
    "$str": lambda _, node: _unbase64(node).decode("utf-8", "surrogatepass"),
    "$bytes": lambda dec, node: dec.data(node),
    "$bytearray": lambda dec, node: bytearray(dec.data(node)),
    "$bytesio": _decode_bytesio,
    "$range": lambda dec, node: range(*dec.items(node)),
    "$path": _decode_path,
    "$type": lambda _, node: FACTORIES[node],
    "$datetime": _decode_moment("datetime"),
    "$time": _decode_moment("time"),
    "$date": _decode_date,
    "$timedelta": _decode_timedelta,
    "$np": _decode_np_scalar,
    "$ndarray": lambda dec, node: dec.array(node),
    "$np.dtype": lambda _, node: _np_dtype(node),
    "$np.random": _decode_np_random,
    "$random": _decode_random_object,
    "$torch.dtype": _decode_torch_dtype,
    "$torch.device": _decode_torch_device,
    "$torch.Size": _decode_torch_size,
    "$torch.Generator": _decode_torch_generator,
    "$tensor": lambda dec, node: dec.tensor(node),
    "$wrapper": lambda dec, node: _subclasses.decode(dec.decode, node),
    "$spread": _refuse_spread,
    "$json": lambda dec, node: dec.decode(json.loads(node)),
    "$pickle": lambda dec, node: dec.pickle(node),
}
