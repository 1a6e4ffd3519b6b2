# SPDX-License-Identifier: Apache-2.0
"""
Temporary copies of the objects of a state, on which a rehearsal calls load_state_dict().

A copy must not share anything with the live object that load_state_dict() could change, and making
it must not change the live object. So everything that the object refers to is checked first. An
object is refused if this is not certain, or if the copy would be large. Other effects of its code
cannot be seen. So only code of torch and NumPy is called, and of objects that the user lists.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import sys
import types
import weakref
from collections import deque
from typing import Any

from ._into import is_tensor
from ._quiet import Quiet
from ._state_kinds import is_module, is_optimizer
from .adapters._layout import is_spread
from .adapters._loaders import is_loader
from .adapters._subclasses import wraps

#: Most objects in one copy. More would take too long.
_OBJECTS = 50_000
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
#: Packages whose code may be called on a copy.
_KNOWN = (
    *("abc", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools"),
    *("io", "itertools", "numpy", "operator", "random", "torch", "types", "typing"),
    "typing_extensions",
)

#: Types that a copy shares with the original, like in copy.deepcopy().
_ATOMS = (
    *(bool, int, float, complex, str, bytes, range, slice, type, property),
    *(type(None), type(Ellipsis), type(NotImplemented)),
    *(types.ModuleType, types.CodeType),
)
#: Methods by which a class defines how it is copied.
_COPYING = (
    *("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__"),
)


#: Why other code is not called.
_UNLISTED = "which is not of torch or NumPy, and try_load does not list the object"


class UntriedError(Exception):
    """Why a part of the state is not rehearsed."""


class Copier:
    """Makes temporary copies. `most`: bytes of tensors and arrays in all copies together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def copy(self, value: Any, *, listed: bool) -> tuple[Any, bool]:
        """
        Returns a copy, and whether it has tensors without elements: those on a GPU, and those in an
        optimizer that the object refers to. `listed`: the user has listed the object, so its code
        may be called. Raises UntriedError if it is not copied.
        """
        graph = _Graph(value, self._left, listed=listed)
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

    def __init__(self, root: Any, most: int, *, listed: bool) -> None:
        self._most = most
        self._listed = listed
        self._count = 0
        self.nbytes = 0
        #: copied with their elements
        self.tensors: list[Any] = []
        #: copied without elements
        self.hollow: list[Any] = []
        self.generators: list[Any] = []
        #: ids of all objects that were met. `_held` keeps temporary ones alive
        self._seen: set[int] = set()
        self._held: list[Any] = []
        self._walk(root)

    def _walk(self, root: Any) -> None:
        rest: list[tuple[Any, bool]] = [(root, False)]
        while rest:
            value, hollow = rest.pop()
            if _is_atom(value) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._held.append(value)
            self._check_class(type(value))
            if is_tensor(value):
                self._add_tensor(value, hollow)
            elif is_optimizer(value):
                _check_optimizer(value)
                rest += ((part, True) for part in (value.defaults, value.state, value.param_groups))
            elif isinstance(value, types.FunctionType):
                rest += ((part, hollow) for part in self._functions(value))
            elif not self._add_leaf(value):
                _check(value)
                rest += ((part, hollow) for part in self._parts(value))

    def _take(self, nbytes: int, count: int = 1) -> None:
        """Raises if there are too many objects or bytes."""
        self.nbytes += nbytes
        self._count += count
        if self.nbytes > self._most:
            raise UntriedError(f"a copy of it takes {self.nbytes / 2**20:.0f} MiB or more")
        if self._count > _OBJECTS:
            raise UntriedError(f"it refers to more than {_OBJECTS} objects")

    def _parts(self, value: Any) -> list[Any]:
        """The objects that it refers to. Large ones are refused before they are listed."""
        if isinstance(value, types.BuiltinFunctionType):
            if not isinstance(value.__self__, (types.ModuleType, type, type(None))):
                raise UntriedError(f"it refers to the method {value.__qualname__} of a live object")
            return []
        if isinstance(value, weakref.ReferenceType):
            if value() is not None:
                raise UntriedError(f"it has a weak reference to a {type(value()).__qualname__}")
            return []
        for kind in _CONTAINERS:
            if issubclass(type(value), kind):
                self._take(kind.__sizeof__(value), kind.__len__(value))
        parts = gc.get_referents(value)
        self._take(0, 1 + len(parts))
        return parts

    def _add_tensor(self, value: Any, hollow: bool) -> None:
        plain = not (is_spread(value) or wraps(value)) and value.layout is _strided()
        if not hollow and not plain:
            raise UntriedError(f"it refers to a {type(value).__qualname__}, which is not copied")
        if hollow or not value.is_cpu:
            self.hollow.append(value)
        else:
            self._take(value.numel() * value.element_size())
            self.tensors.append(value)

    def _add_leaf(self, value: Any) -> bool:
        """True for an object that refers to nothing relevant."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.dtype.hasobject:
                raise UntriedError("it refers to an array of objects")
            self._take(value.nbytes)
            return True
        if isinstance(value, (bytearray, io.BytesIO)):
            self._take(sys.getsizeof(value))
            return True
        if torch is not None and isinstance(value, torch.Generator):
            if value.device.type != "cpu" or not hasattr(value, "clone_state"):
                raise UntriedError("it refers to a generator that is not copied")
            self.generators.append(value)
            return True
        return False

    def _check_class(self, kind: type) -> None:
        """Raises for an object whose code may have other effects."""
        if not self._listed and not all(_is_known(base.__module__) for base in kind.__mro__):
            raise UntriedError(f"it is or refers to a {_name_of(kind)}, {_UNLISTED}")

    def _functions(self, value: types.FunctionType) -> list[types.FunctionType]:
        """The objects that a function refers to, because a copy shares the function."""
        name = f"the function {value.__module__}.{value.__qualname__}"
        if not self._listed and not _is_known(value.__module__):
            raise UntriedError(f"it refers to {name}, {_UNLISTED}")
        held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                held.append(cell.cell_contents)
        held = [one for one in held if not _is_atom(one)]
        if not all(isinstance(one, types.FunctionType) for one in held):
            raise UntriedError(f"it refers to {name}, which holds objects that a copy would share")
        return held


def _check(value: Any) -> None:
    """Raises for an object that must not be copied, or whose copy might change the live one."""
    kind = type(value)
    name = _name_of(kind)
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
        if isinstance(found, types.FunctionType) and not _is_known(found.__module__):
            # If __new__() returns a singleton, the copy would overwrite it.
            raise UntriedError(f"it refers to a {name}, which has a {method}() of its own")


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_atom(value: Any) -> bool:
    """True for types that a copy shares, without subclasses, which may define their copying."""
    return type(value) in _ATOMS or isinstance(value, (type, types.ModuleType))


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0].lstrip("_") in _KNOWN


def _check_optimizer(value: Any) -> None:
    """Raises for an optimizer of another class than torch's, whose contents are unknown."""
    kind = type(value)
    if not kind.__module__.startswith("torch.optim."):
        raise UntriedError(f"it refers to a {_name_of(kind)}")


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
