# SPDX-License-Identifier: Apache-2.0
"""
Encodes Python values as JSON that keeps their types. _decoder.py decodes it. Pickle is used only if
the user allows it.

JSON values remain as they are: null, booleans, strings, lists, dicts with string keys, finite
floats, integers below 2**53. Everything else is an object with one member, whose name begins with
"$":

    {"$tuple": [...]}  {"$set": [...]}  {"$frozenset": [...]}  {"$deque": [maxlen, ...]}
    {"$dict": [key, value, ...]}        a dict with other keys, or with keys that begin with "$"
    {"$odict": [key, value, ...]}       OrderedDict
    {"$counter": [key, count, ...]}     Counter
    {"$defaultdict": [factory, key, value, ...]}
    {"$int": "0x..."}                   an integer of any size
    {"$float": "inf" | "-inf" | "nan" | 16 hexadecimal digits of another NaN}
    {"$complex": [real, imaginary]}
    {"$str": base64}                    a string that UTF-8 or C cannot hold
    {"$bytes": base64 | tensor}  {"$bytearray": base64 | tensor}
    {"$bytesio": [position, bytes]}     a file in memory
    {"$range": [start, stop, step]}  {"$path": text}  {"$type": "int"}
    {"$datetime": text}  {"$date": text}  {"$time": text}  {"$timedelta": [days, s, us]}
    {"$np": [dtype, base64]}            a NumPy scalar
    {"$ndarray": tensor | [dtype, shape, base64]}
    {"$np.dtype": text}  {"$np.random": [bit generator, state]}  {"$random": state}
    {"$torch.dtype": name}  {"$torch.device": text}  {"$torch.Size": [...]}
    {"$torch.Generator": tensor}
    {"$tensor": name}                   bytes that are stored as a tensor
    {"$wrapper": {...}}  {"$spread": {...}}  tensors that wrap others, see adapters/_subclasses.py
    {"$json": text}                     a value nested deeper than the index allows
    {"$pickle": base64 | tensor}        only if the user asked for it
"""

from __future__ import annotations

import binascii
import collections
import io
import math
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ._errors import UnsupportedStateError
from ._json_nodes import NESTING_MAX, Json, Path, dump, path_text
from .adapters._layout import is_spread
from .adapters._subclasses import encode as encode_wrapped
from .adapters._subclasses import wraps

#: Levels of JSON. A value below is stored as a string of JSON. The index allows 32 levels.
_DEPTH_MAX = 24
#: Size from which on a bytes object is stored as a tensor.
_INLINE_MAX = 4096

#: Types that may be the factory of a defaultdict, or be stored.
FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
}
#: Bit generators of NumPy.
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class Sink(Protocol):
    """Where an encoder stores tensors."""

    def put_tensor(self, value: Any, path: Path, *, own: bool = False) -> str:
        """Stores a torch tensor and returns its name. `own`: it is each rank's own."""

    def put_array(self, value: Any, path: Path) -> str:
        """Stores a NumPy array and returns its name. The dtype must have a number."""

    def put_bytes(self, value: bytes, path: Path) -> str:
        """Stores bytes as a tensor of dtype U8 and returns its name."""


class Encoder:
    """Encodes values as JSON. `other`: is called first for objects that are not plain values."""

    def __init__(
        self,
        sink: Sink,
        *,
        allow_pickle: bool = False,
        other: Callable[[Any, Path, int], Json] | None = None,
    ) -> None:
        self._sink = sink
        self._allow_pickle = allow_pickle
        self._other = other
        self._open: set[int] = set()
        #: number of "$json" nodes around the present value
        self.wrapped = 0
        #: paths of pickled values
        self.pickled: list[str] = []
        #: the present value is given to an object's load_state_dict()
        self.handed = False
        #: it has a distributed tensor
        self._spread = False

    def encode(self, value: Any, path: Path, depth: int = 0) -> Json:
        """The JSON of `value`, which is `depth` levels deep."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _encode_str(value)
        if kind is int:
            return value if -_SAFE < value < _SAFE else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": _float_text(value)}
        container = _CONTAINERS.get(kind)
        if container is not None:
            return self._nested(container, value, path, depth)
        scalar = _SCALARS.get(kind)
        node = None if scalar is None else scalar(value)
        return self._encode_object(value, path, depth) if node is None else node

    def _nested(
        self,
        container: Callable[[Encoder, Any, Path, int], Json],
        value: Any,
        path: Path,
        depth: int,
    ) -> Json:
        if id(value) in self._open:
            raise UnsupportedStateError(
                f"{path_text(path)} contains itself; a checkpoint cannot hold a cycle"
            )
        if len(self._open) >= NESTING_MAX:
            raise UnsupportedStateError(
                f"{path_text(path)[:200]}... is nested deeper than {NESTING_MAX} levels"
            )
        self._open.add(id(value))
        try:
            if depth < _DEPTH_MAX:
                return container(self, value, path, depth)
            self.wrapped += 1
            try:
                return {"$json": dump(container(self, value, path, 0))}
            finally:
                self.wrapped -= 1
        finally:
            self._open.discard(id(value))

    def _encode_object(self, value: Any, path: Path, depth: int) -> Json:
        if self._other is not None:
            node = self._other(value, path, depth)
            if node is not None:
                return node
        if type(value) is io.BytesIO:
            data = {"$bytes": self._encode_bytes(value.getvalue(), path)}
            return {"$bytesio": [value.tell(), data]}
        if type(value) in (bytes, bytearray):
            return {f"${type(value).__name__}": self._encode_bytes(bytes(value), path)}
        for module, encode in (("torch", _encode_torch), ("numpy", _encode_numpy)):
            if module in sys.modules:
                node = encode(self, value, path)
                if node is not None:
                    return node
        name = getattr(value, "__name__", None)
        if isinstance(value, type) and FACTORIES.get(str(name)) is value:
            return {"$type": name}
        node = _encode_library(value)
        if node is not None:
            return node
        if self._allow_pickle:
            return self._encode_pickle(value, path)
        raise unsupported(value, path)

    def _encode_bytes(self, value: bytes, path: Path) -> Json:
        if len(value) > _INLINE_MAX:
            return {"$tensor": self._sink.put_bytes(value, path)}
        return base64_of(value)

    def _encode_pickle(self, value: Any, path: Path) -> Json:
        import pickle

        try:
            data = pickle.dumps(value, protocol=4)
        except Exception as error:
            raise UnsupportedStateError(
                f"{path_text(path)} is a {_type_name(value)}, and pickling it failed: {error}"
            ) from error
        self.pickled.append(path_text(path))
        return {"$pickle": self._encode_bytes(data, path)}

    def encode_handed(self, value: Any, path: Path, depth: int) -> Json:
        """The JSON of a value that is given to a load_state_dict(), or restored as a whole."""
        self.handed = True
        try:
            return self.encode(value, path, depth)
        finally:
            self.handed = False

    def encode_object(self, value: Any, state: Any, path: Path, depth: int) -> dict[str, Json]:
        """The contents of an "$object" node. `state`: the result of its state_dict()."""
        self._spread = False
        encoded = self.encode_handed(state, path, depth)
        node = {"class": type(value).__qualname__, "state": encoded}
        # For a restore, the object must be asked for the layout of distributed tensors.
        return {**node, "spread": True} if self._spread else node

    def put_tensor(self, value: Any, path: Path, *, own: bool = False) -> Json:
        """Stores a torch tensor. `own`: it is each rank's own."""
        self._spread = self._spread or is_spread(value)
        return {"$tensor": self._sink.put_tensor(value, path, own=own)}

    def put_array(self, value: Any, path: Path) -> Json:
        """Stores a NumPy array. The dtype must have a number."""
        return {"$tensor": self._sink.put_array(value, path)}


_SAFE = 1 << 53


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def unsupported(value: Any, path: Path) -> UnsupportedStateError:
    """The error for an object that cannot be encoded: where it is, and what to do."""
    if isinstance(value, type) or callable(value):
        hint = "a checkpoint holds data only: leave it out of the state and set it in your program"
    elif hasattr(value, "_fields") and isinstance(value, tuple):
        hint = "turn the named tuple into a dict with ._asdict()"
    elif hasattr(value, "__dataclass_fields__"):
        hint = "turn the dataclass into a dict with dataclasses.asdict()"
    elif hasattr(value, "_value_") and hasattr(value, "_name_"):
        hint = "store the .value of the enum"
    elif getattr(value, "tzinfo", None) is not None:
        hint = "its time zone has rules: convert it with .astimezone(datetime.timezone.utc)"
    elif hasattr(value, "__next__"):
        hint = (
            "an iterator has no position that can be saved: keep an index, or give it state_dict()"
        )
    else:
        hint = (
            "give it state_dict() and load_state_dict(), or turn it into numbers, strings, lists, "
            "dicts and tensors"
        )
    return UnsupportedStateError(
        f"{path_text(path)} is a {_type_name(value)}, which a checkpoint cannot hold: {hint}; "
        "allow_pickle=True stores it pickled"
    )


def base64_of(data: bytes) -> str:
    """As text."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _plain_text(value: str) -> bool:
    if value.isascii():
        return "\0" not in value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _encode_str(value: str) -> Json:
    if _plain_text(value):
        return value
    return {"$str": base64_of(value.encode("utf-8", "surrogatepass"))}


_NAN = struct.pack(">d", math.nan)


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    bits = struct.pack(">d", value)
    return "nan" if bits == _NAN else bits.hex()


def _homogeneous(values: Any) -> bool:
    """True if all items are plain JSON values. A fast check, for long lists of numbers."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return bool(min(values) > -_SAFE and max(values) < _SAFE)
    if kinds == {float}:
        return all(map(math.isfinite, values))
    if kinds == {str}:
        return all(map(_plain_text, values))
    return kinds <= {bool}


def _items(enc: Encoder, values: Any, path: Path, depth: int) -> list[Json]:
    if _homogeneous(values):
        return list(values)
    encode = enc.encode
    return [encode(value, (path, index), depth) for index, value in enumerate(values)]


def _pairs(enc: Encoder, value: Mapping[Any, Any], path: Path, depth: int) -> list[Json]:
    flat: list[Json] = []
    for key, item in value.items():
        if isinstance(key, (list, dict, set)) or not _is_key(key):
            raise UnsupportedStateError(
                f"{path_text(path)} has the key {key!r}, a {_type_name(key)}: keys may be strings, "
                "numbers, None, bytes and tuples of these"
            )
        flat.append(enc.encode(key, (path, key), depth + 2))
        flat.append(enc.encode(item, (path, key), depth + 2))
    return flat


def _is_key(key: Any) -> bool:
    if type(key) in (tuple, frozenset):
        return all(map(_is_key, key))
    if type(key) in (str, int, float, bool, bytes, type(None), complex, range):
        return True
    module = type(key).__module__.partition(".")[0]
    return module in ("numpy", "torch", "datetime", "pathlib") and not hasattr(key, "__len__")


def _encode_dict(enc: Encoder, value: dict[Any, Any], path: Path, depth: int) -> Json:
    for key in value:
        if type(key) is not str or key[:1] == "$" or not _plain_text(key):
            return {"$dict": _pairs(enc, value, path, depth)}
    encode = enc.encode
    return {key: encode(item, (path, key), depth + 1) for key, item in value.items()}


def _encode_list(enc: Encoder, value: list[Any], path: Path, depth: int) -> Json:
    return _items(enc, value, path, depth + 1)


def _encode_set(enc: Encoder, value: Iterable[Any], path: Path, depth: int) -> Json:
    # The order of a set differs between processes. Sorted, equal sets have equal bytes.
    items = [enc.encode(item, (path, item), depth + 2) for item in value]
    return {f"${type(value).__name__}": sorted(items, key=dump)}


def _encode_defaultdict(enc: Encoder, value: Any, path: Path, depth: int) -> Json:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and FACTORIES.get(name) is not factory:
        raise UnsupportedStateError(
            f"{path_text(path)} is a defaultdict whose factory {factory!r} cannot be stored: use a "
            f"built-in type, or turn it into a dict"
        )
    return {"$defaultdict": [name, *_pairs(enc, value, path, depth)]}


_CONTAINERS: dict[type, Callable[[Encoder, Any, Path, int], Json]] = {
    dict: _encode_dict,
    list: _encode_list,
    tuple: lambda enc, value, path, depth: {"$tuple": _items(enc, value, path, depth + 2)},
    set: _encode_set,
    frozenset: _encode_set,
    collections.OrderedDict: lambda enc, value, path, depth: {
        "$odict": _pairs(enc, value, path, depth)
    },
    collections.Counter: lambda enc, value, path, depth: {
        "$counter": _pairs(enc, value, path, depth)
    },
    collections.defaultdict: _encode_defaultdict,
    collections.deque: lambda enc, value, path, depth: {
        "$deque": [value.maxlen, *_items(enc, value, path, depth + 2)]
    },
}


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": _float_text(value)}


def _encode_int(value: int) -> Json:
    return value if -_SAFE < value < _SAFE else {"$int": hex(value)}


_SCALARS: dict[type, Callable[[Any], Json]] = {
    complex: lambda value: {"$complex": [_encode_float(value.real), _encode_float(value.imag)]},
    range: lambda value: {
        "$range": [_encode_int(n) for n in (value.start, value.stop, value.step)]
    },
}


def _encode_library(value: Any) -> Json:
    """Encodes types of the standard library whose modules may not be imported."""
    kind = type(value)
    if kind.__module__ == "datetime":
        return _encode_time(value)
    if kind.__module__ == "random":
        import random

        if kind is random.Random:
            return {"$random": encode_random(value.getstate())}
    if kind.__module__.partition(".")[0] == "pathlib":
        import pathlib

        if kind is type(pathlib.Path()):
            return {"$path": _encode_str(str(value))}
    return None


def _encode_time(value: Any) -> Json:
    import datetime

    kind = type(value)
    if kind is datetime.timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if kind is datetime.date:
        return {"$date": value.isoformat()}
    if kind not in (datetime.datetime, datetime.time) or (
        value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone
    ):
        return None
    text = value.isoformat()
    return {f"${kind.__name__}": [text, 1] if value.fold else text}


def encode_random(state: tuple[Any, ...]) -> Json:
    """The state of a random.Random."""
    version, words, gauss = state
    gauss = None if gauss is None else _encode_float(gauss)
    return [version, base64_of(struct.pack(f"<{len(words)}I", *words)), gauss]


def encode_legacy(state: Any) -> Json:
    """The state of a numpy.random.RandomState."""
    return {
        "key": base64_of(state["state"]["key"].tobytes()),
        "pos": state["state"]["pos"],
        "has_gauss": state["has_gauss"],
        "gauss": _encode_float(state["gauss"]),
    }


def _encode_torch(enc: Encoder, value: Any, path: Path) -> Json:
    import torch

    if isinstance(value, torch.Tensor):
        return encode_wrapped(enc, value, path) if wraps(value) else enc.put_tensor(value, path)
    if isinstance(value, torch.Size):
        return {"$torch.Size": list(value)}
    if isinstance(value, torch.dtype):
        return {"$torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$torch.device": str(value)}
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return {"$torch.Generator": enc.put_tensor(value.get_state(), path, own=True)}
    return None


def _encode_numpy(enc: Encoder, value: Any, path: Path) -> Json:
    import numpy as np

    from ._dtypes import numpy_numbers

    if type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        if value.dtype in numpy_numbers() and value.dtype.isnative:
            return {"$ndarray": enc.put_array(value, path)}
        return {"$ndarray": [value.dtype.str, list(value.shape), base64_of(value.tobytes())]}
    if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.names is None:
        return {"$np": [value.dtype.str, base64_of(value.tobytes())]}
    if isinstance(value, np.dtype) and not value.hasobject and value.names is None:
        return {"$np.dtype": value.str}
    if "numpy.random" not in sys.modules:
        return None
    if type(value) is np.random.Generator:
        return _encode_bits(enc, value.bit_generator, path)
    if type(value) is np.random.RandomState:
        return {"$np.random": ["RandomState", encode_legacy(value.get_state(legacy=False))]}
    if isinstance(value, np.random.BitGenerator):
        raise unsupported(value, path)
    return None


def _encode_bits(enc: Encoder, bits: Any, path: Path) -> Json:
    name = type(bits).__name__
    if name not in BIT_GENERATORS:
        raise unsupported(bits, path)
    return {"$np.random": [name, enc.encode(bits.state, path, 3)]}
