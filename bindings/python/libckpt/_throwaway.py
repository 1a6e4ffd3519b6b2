# SPDX-License-Identifier: Apache-2.0
"""
Throw-away copies of the objects of a state, on which a rehearsal calls load_state_dict().

A copy must share nothing with the live object that load_state_dict() could change, and making it
must not change the live object either. So everything that the object refers to is looked at first,
and an object is refused where that is not certain, or where the copy would be large.
"""

from __future__ import annotations

import copy
import gc
import io
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ._into import is_tensor
from ._layout import is_spread
from ._loaders import is_loader
from ._quiet import Quiet
from ._reach import Reach, is_harmless_module
from ._specials import is_module, is_optimizer
from ._subclasses import wraps

#: More objects than that take too long to copy.
_OBJECTS = 50_000
#: Bytes of an object that is no tensor, array or text, at most.
_SMALL = 1 << 10

#: What a copy shares with the original, as copy.deepcopy() does.
_ATOMS = (
    *(bool, int, float, complex, str, bytes, range, slice, type, property),
    *(type(None), type(Ellipsis), type(NotImplemented)),
    *(types.ModuleType, types.CodeType),
)
#: Methods by which a class says itself how it is copied.
_COPYING = (
    *("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__"),
)


class UntriedError(Exception):
    """Why a part of the state is not rehearsed."""


class Copier:
    """Makes throw-away copies. `most`: bytes of tensors and arrays, in all of them together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def copy(self, value: Any) -> tuple[Any, bool]:
        """
        A copy, and whether tensors in it have no elements: those that are on a GPU, and those that
        are in an optimizer that the object refers to. Raises UntriedError.
        """
        graph = _Graph(value)
        if graph.nbytes > self._left:
            raise UntriedError(f"a copy of it takes {graph.nbytes / 2**20:.0f} MiB or more")
        memo: dict[int, Any] = {}
        try:
            for tensor in graph.tensors:
                memo[id(tensor)] = _twin(tensor)
            for tensor in graph.hollow:
                memo[id(tensor)] = _hollow(tensor)
            for generator in graph.generators:
                memo[id(generator)] = generator.clone_state()
            with Quiet():
                made = copy.deepcopy(value, memo)
        except Exception as error:
            raise UntriedError(f"it cannot be copied: {error!r:.200}") from error
        if made is value or type(made) is not type(value):
            raise UntriedError("copy.deepcopy() does not make a copy of it")
        self._left -= graph.nbytes
        return made, bool(graph.hollow)


class _Graph:
    """Everything that an object refers to, as far as a copy would copy it."""

    def __init__(self, root: Any) -> None:
        self.nbytes = 0
        #: copied with their elements
        self.tensors: list[Any] = []
        #: copied without
        self.hollow: list[Any] = []
        self.generators: list[Any] = []
        self._reach = Reach()
        #: of each that was met its id; `_held` keeps those alive that were made on the way
        self._seen: set[int] = set()
        self._held: list[Any] = []
        self._walk(root)

    def _walk(self, root: Any) -> None:
        rest: list[tuple[Any, bool]] = [(root, False)]
        while rest:
            value, hollow = rest.pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                if isinstance(value, (str, bytes)):
                    self.nbytes += sys.getsizeof(value) * (len(value) > _SMALL)
                continue
            self._seen.add(id(value))
            self._held.append(value)
            if len(self._seen) > _OBJECTS:
                raise UntriedError(f"it refers to more than {_OBJECTS} objects")
            if is_tensor(value):
                self._add_tensor(value, hollow)
            elif is_optimizer(value):
                _check_optimizer(value)
                rest += ((part, True) for part in (value.defaults, value.state, value.param_groups))
            elif isinstance(value, types.FunctionType):
                # A copy has the same function.
                self._check_reach(self._reach.of_function(value), value)
            elif not self._add_leaf(value):
                _check(value)
                self._check_reach(self._reach.of(type(value)), type(value))
                rest += ((part, hollow) for part in _parts(value))

    def _check_reach(self, reached: str | None, code: Any) -> None:
        if reached is not None:
            raise UntriedError(f"the code of {code.__qualname__} uses {reached}")

    def _add_tensor(self, value: Any, hollow: bool) -> None:
        plain = not (is_spread(value) or wraps(value)) and value.layout is _strided()
        if not hollow and not plain:
            raise UntriedError(f"it refers to a {type(value).__qualname__}, which is not copied")
        if hollow or not value.is_cpu:
            self.hollow.append(value)
        else:
            self.nbytes += value.numel() * value.element_size()
            self.tensors.append(value)

    def _add_leaf(self, value: Any) -> bool:
        """True for what refers to nothing that is of interest."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.dtype.hasobject:
                raise UntriedError("it refers to an array of objects")
            self.nbytes += value.nbytes
            return True
        if isinstance(value, (bytearray, io.BytesIO)):
            self.nbytes += sys.getsizeof(value)
            return True
        if torch is not None and isinstance(value, torch.Generator):
            if value.device.type != "cpu" or not hasattr(value, "clone_state"):
                raise UntriedError("it refers to a generator that is not copied")
            self.generators.append(value)
            return True
        return False


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, types.BuiltinFunctionType):
        if not isinstance(value.__self__, (types.ModuleType, type, type(None))):
            raise UntriedError(f"it refers to the method {value.__qualname__} of a live object")
        return
    if isinstance(value, weakref.ReferenceType):
        if value() is not None:
            raise UntriedError(f"it has a weak reference to a {type(value()).__qualname__}")
        return
    yield from gc.get_referents(value)


def _check(value: Any) -> None:
    """Raises for an object that must not be copied, or where that might change the live one."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if is_loader(value):
        raise UntriedError(f"it refers to a {kind.__qualname__}, which has data and workers")
    apart = ("torch.distributed.", "torch.nn.parallel.", "libckpt.")
    bases = kind.__mro__ if is_module(value) else (kind,)
    if any(base.__module__.startswith(apart) for base in bases):
        raise UntriedError(f"it refers to a {name}")
    if hasattr(kind, "__del__"):
        raise UntriedError(f"it refers to a {name}, whose end may close what the live one needs")
    for method in _COPYING:
        found = getattr(kind, method, None)
        if isinstance(found, types.FunctionType) and not is_harmless_module(found.__module__):
            # Were __new__() to give the one object that there is, a copy would overwrite that.
            raise UntriedError(f"it refers to a {name}, which has a {method}() of its own")


def _check_optimizer(value: Any) -> None:
    """A copy of one of torch's has its groups and state, and of another class nobody knows what."""
    kind = type(value)
    if not kind.__module__.startswith("torch.optim."):
        raise UntriedError(f"it refers to a {kind.__module__}.{kind.__qualname__}")


def _strided() -> Any:
    import torch

    return torch.strided


def _twin(tensor: Any) -> Any:
    import torch

    made = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _hollow(tensor: Any) -> Any:
    import torch

    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
