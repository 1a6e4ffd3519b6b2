# SPDX-License-Identifier: Apache-2.0
"""Modules, optimizers and other objects in a state: which they are, and where they may be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._errors import UnsupportedStateError
from ._json_nodes import NESTING_MAX, Path, path_name, path_text


class Special(NamedTuple):
    """A module, an optimizer or another object, and where it is."""

    path: Path
    value: Any


def is_module(value: Any) -> bool:
    """True for a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_optimizer(value: Any) -> bool:
    """True for a torch optimizer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def is_stateful(value: Any) -> bool:
    """True for an object that is saved by its state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def check_state(state: Any) -> None:
    """Raises for a state that is not a dict with strings as keys."""
    if not isinstance(state, dict):
        raise UnsupportedStateError(
            f"the state is a {type(state).__qualname__}: it must be a dict with strings as keys"
        )
    for key in state:
        if type(key) is not str:
            raise UnsupportedStateError(
                f"the state has the key {key!r}: it must be a dict with strings as keys"
            )


_PLAIN = {bool, bytes, complex, float, int, str, type(None)}


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """The items of a dict, list or tuple, with keys. Nothing for a list of plain values."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)) and not set(map(type, value)) <= _PLAIN:
        yield from enumerate(value)


def find_specials(state: dict[str, Any]) -> list[Special]:
    """Finds the modules and optimizers in a state."""
    found: list[Special] = []
    _find(state, None, found)
    return found


def find_objects(state: dict[str, Any]) -> list[Special]:
    """Finds the modules, the optimizers and the other objects with a state_dict() in a state."""
    found: list[Special] = []
    _find(state, None, found, objects=True)
    return found


def specials_in(value: Any, path: Path) -> list[Special]:
    """The modules and optimizers in the value at `path`, itself included."""
    if is_module(value) or is_optimizer(value):
        return [Special(path, value)]
    found: list[Special] = []
    _find(value, path, found)
    return found


def _find(
    value: Any, path: Path, found: list[Special], depth: int = 0, *, objects: bool = False
) -> None:
    for key, item in children(value):
        if is_module(item) or is_optimizer(item) or (objects and is_stateful(item)):
            found.append(Special((path, key), item))
        elif depth < NESTING_MAX:  # the encoder raises the error
            _find(item, (path, key), found, depth + 1, objects=objects)


def same_specials(new: list[Special], old: list[Special]) -> bool:
    """True if modules and optimizers, and their paths, are the same."""
    return len(new) == len(old) and all(
        a.value is b.value and a.path == b.path for a, b in zip(new, old, strict=True)
    )


def plain_path(modules: list[Special]) -> Path:
    """
    The path of the module whose tensors have no prefix: the one under "model", or else the first.
    The names of all others begin with their path.
    """
    for special in modules:
        if special.path == (None, "model"):
            return special.path
    return modules[0].path if modules else None


def prefix_in(special: Special, plain: Path) -> str:
    """The prefix of a module's tensors. `plain`: the path of the module without one."""
    return "" if special.path == plain else path_name(special.path) + "/"


def prefix_of(special: Special, modules: list[Special]) -> str:
    """The prefix of a module's tensors. `modules`: all modules of the state."""
    return prefix_in(special, plain_path(modules))


def there_twice(path: Path) -> UnsupportedStateError:
    """The error for a module that is in the state twice."""
    return UnsupportedStateError(
        f"{path_text(path)} is in the state twice: put every module in once"
    )


def misplaced(value: Any, path: Path) -> UnsupportedStateError:
    """The error for a module or an optimizer where it cannot be restored."""
    return UnsupportedStateError(
        f"{path_text(path)} is a {type(value).__qualname__} inside of the state of another object, "
        "nested too deep, or there twice: put it into the state itself or into a dict or list in "
        "it, once"
    )


def misplaced_object(value: Any, path: Path) -> UnsupportedStateError:
    """The error for an object with a state_dict() where it cannot be restored."""
    return UnsupportedStateError(
        f"{path_text(path)} is a {type(value).__qualname__} inside of the state of another object, "
        "or nested too deep: put its state_dict() there, or the object into the state itself"
    )


def refuse_loader(value: Any, path: Path) -> None:
    """Raises for a DataLoader, which cannot save its position."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(value, data.DataLoader):
        return
    # Loaders of Accelerate have the methods, whatever they wrap.
    if not is_stateful(value) or getattr(value, "use_stateful_dataloader", None) is False:
        raise UnsupportedStateError(
            f"{path_text(path)} is a DataLoader, which does not know its position, so that a "
            "resumed run would see other batches: use torchdata's StatefulDataLoader, or an object "
            "of your own with state_dict() and load_state_dict(), or leave it out of the state"
        )


def name_clash(name: str, path: Path) -> UnsupportedStateError:
    """The error for two tensors of the state with the same name."""
    return UnsupportedStateError(
        f"{path_text(path)} has a tensor {name!r}, and so has something else in the state: give it "
        "another key",
        tensor=name,
    )
