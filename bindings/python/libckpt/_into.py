# SPDX-License-Identifier: Apache-2.0
"""into(): replaces the contents of a live object, to which other objects may refer."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ._state_kinds import is_module
from ._tensors import describe, overlaps
from .adapters._layout import memory_of
from .adapters._wrappers import class_name

if TYPE_CHECKING:
    import torch


def is_array(value: Any) -> bool:
    """True for a NumPy array, but not for a subclass."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def kind_of(value: Any) -> str:
    """The name of a value's class. For a module: of the module inside the wrappers."""
    return class_name(value) if is_module(value) else type(value).__qualname__


def is_tensor(value: Any) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_parameter(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.nn.Parameter


def into(live: Any, value: Any) -> Any:
    """
    Replaces the contents of `live` with those of `value`, and returns `live`. If its contents
    cannot be replaced, returns `value`.
    """
    if _is_parameter(live) and is_tensor(value) and _tensor_into(live, value):
        return live
    if type(live) is not type(value) or live is None:
        return value
    if isinstance(live, list):
        live[:] = value
    elif isinstance(live, (dict, set)):
        live.clear()
        live.update(value)
    elif isinstance(live, collections.deque) and live.maxlen == value.maxlen:
        live.clear()
        live.extend(value)
    elif not _generator_into(live, value) and not _tensor_into(live, value):
        return value.to(live.device) if is_tensor(live) else value
    return live


def is_generator(value: Any) -> bool:
    """True for a random generator whose state can be restored in place."""
    plain, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    torch = sys.modules.get("torch")
    return (
        (plain is not None and isinstance(value, plain.Random))
        or (numpy is not None and isinstance(value, (numpy.RandomState, numpy.Generator)))
        or (torch is not None and isinstance(value, torch.Generator))
    )


def generators_in(value: Any) -> Iterator[Any]:
    """The generators in the attributes of an object, also in a dict, list or tuple in one."""
    for item in getattr(value, "__dict__", {}).values():
        parts = item.values() if isinstance(item, dict) else item
        inner = parts if isinstance(item, (dict, list, tuple)) else (item,)
        yield from filter(is_generator, inner)


def keeper(generator: Any) -> Callable[[], object]:
    """Returns a function that restores the present state of a generator."""
    plain, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if plain is not None and isinstance(generator, plain.Random):
        then: Any = generator.getstate()
        return lambda: generator.setstate(then)
    if numpy is not None and isinstance(generator, numpy.RandomState):
        then = generator.get_state(legacy=False)
        return lambda: generator.set_state(then)
    if numpy is not None and isinstance(generator, numpy.Generator):
        then = generator.bit_generator.state
        return lambda: setattr(generator.bit_generator, "state", then)
    then = generator.get_state()
    return lambda: generator.set_state(then)


def _tensor_into(live: Any, value: Any) -> bool:
    if not is_tensor(live) or live.shape != value.shape or live.dtype != value.dtype:
        return False
    import torch

    if overlaps(describe(live)):
        return False

    with torch.no_grad():
        live.copy_(value)
    return True


def _generator_into(live: Any, value: Any) -> bool:
    plain, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    torch = sys.modules.get("torch")
    if plain is not None and isinstance(live, plain.Random):
        live.setstate(value.getstate())
        return True
    if numpy is not None and isinstance(live, numpy.RandomState):
        live.set_state(value.get_state(legacy=False))
        return True
    if numpy is not None and isinstance(live, numpy.Generator):
        same = type(live.bit_generator) is type(value.bit_generator)
        if same:
            live.bit_generator.state = value.bit_generator.state
        return same
    if torch is not None and isinstance(live, torch.Generator):
        live.set_state(value.get_state())
        return True
    return False


def same_bits(a: Any, b: torch.Tensor) -> bool:
    """True for tensors of the same dtype and shape with equal bits."""
    import torch

    if not isinstance(a, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(bits_of(a), bits_of(b).to(a.device))


def bits_of(value: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, contiguous."""
    import torch

    return memory_of(value).detach().contiguous().flatten().view(torch.uint8)
