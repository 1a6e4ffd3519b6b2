# SPDX-License-Identifier: Apache-2.0
"""
What the code of a class can reach beside its own objects. A copy of an object is no protection
where its load_state_dict() writes to a global model, to a file or to a server.

So the code of its class, and of what that uses, is read: every name that is no local one must be a
function or class whose code is as harmless, a plain value, or of a module that is known to be. A
name that is not there yet counts as harmless: it raises.
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

#: Modules that reach nothing that is anybody's.
_HARMLESS = (
    *("abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal"),
    *("enum", "fractions", "functools", "heapq", "hashlib", "itertools", "json", "logging"),
    *("math", "numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap"),
    *("time", "types", "typing", "typing_extensions", "warnings", "numpy", "torch", "libckpt"),
)
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
#: Builtins that reach further.
_REACHING = {
    *("open", "exec", "eval", "compile", "__import__", "globals", "input", "breakpoint"),
}
_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(Ellipsis))


def is_harmless_module(name: str) -> bool:
    """True for a module, or one in it, whose code reaches nothing that is anybody's."""
    return name.partition(".")[0] in _HARMLESS


class Reach:
    """Looks at code. What has been looked at once is known."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def of(self, kind: type) -> str | None:
        """What the code of a class reaches that a copy of an object would not keep from harm."""
        for base in kind.__mro__:
            if base in self._seen or base is object or is_harmless_module(base.__module__):
                continue
            self._seen.add(base)
            for name, value in vars(base).items():
                found = self._of_member(name, value)
                if found is not None:
                    return found
        return None

    def _of_member(self, name: str, value: Any) -> str | None:
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            parts = (value.fget, value.fset, value.fdel)
            return next(filter(None, map(self.of_function, parts)), None)
        if isinstance(value, types.FunctionType):
            return self.of_function(value)
        if isinstance(value, (list, dict, set)) and not name.startswith("__"):
            return f"the {type(value).__name__} {name} of its class"
        return None

    def of_function(self, function: Any) -> str | None:
        """The same of a function."""
        if not isinstance(function, types.FunctionType) or function in self._seen:
            return None
        self._seen.add(function)
        if is_harmless_module(function.__module__ or ""):
            return None
        for cell in function.__closure__ or ():
            try:
                found = self._of_value(function.__qualname__, cell.cell_contents)
            except ValueError:  # it is empty
                continue
            if found is not None:
                return found
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            found = self._of_value(f"a default of {function.__qualname__}", default)
            if found is not None:
                return found
        return self._of_code(function.__code__, function.__globals__)

    def _of_code(self, code: types.CodeType, known: dict[str, Any]) -> str | None:
        for kind, name in _names(code):
            found = self._of_name(kind, name, known)
            if found is not None:
                return found
        inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
        return next(filter(None, (self._of_code(one, known) for one in inner)), None)

    def _of_name(self, kind: str, name: str, known: dict[str, Any]) -> str | None:
        if kind == "import":
            return None if is_harmless_module(name) else f"the module {name or '.'}"
        if kind == "write":
            return f"the global {name}, which it sets"
        if name in known:
            value = known[name]
            if isinstance(value, types.ModuleType) and not is_harmless_module(value.__name__):
                return f"the module {name}"
            return self._of_value(name, value)
        if name in _REACHING and hasattr(builtins, name):
            return f"{name}()"
        return None

    def _of_value(self, name: str, value: Any) -> str | None:
        if isinstance(value, _PLAIN):
            return None
        if isinstance(value, types.BuiltinFunctionType):
            return None if _is_harmless_builtin(value) else f"{name}()"
        if isinstance(value, (tuple, frozenset)):
            return next(filter(None, (self._of_value(name, item) for item in value)), None)
        if isinstance(value, types.FunctionType):
            return self.of_function(value)
        if isinstance(value, type):
            return self.of(value)
        if isinstance(value, types.ModuleType) and is_harmless_module(value.__name__):
            return None
        kind = type(value)
        if _is_constant(value) or kind.__module__ in ("typing", "logging", "re"):
            return None
        return f"{name}, a {kind.__qualname__}"


def _is_harmless_builtin(value: Any) -> bool:
    """A method of an object in C is one of these, too."""
    if not isinstance(value.__self__, (types.ModuleType, type, type(None))):
        return False
    module = (value.__module__ or "builtins").lstrip("_")
    return module == "builtins" or is_harmless_module(module)


def _is_constant(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(
        value, (torch.device, torch.dtype, torch.Size, torch.layout)
    )


def _names(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Names that are no local ones, and what is done with them."""
    for step in dis.get_instructions(code):
        if step.opname in _READS:
            yield "read", step.argval
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield "write", step.argval
        elif step.opname == "IMPORT_NAME":
            yield "import", step.argval
