# SPDX-License-Identifier: Apache-2.0
"""
Tensors that wrap other tensors (`__tensor_flatten__`): quantized moments and weights, alone and as
the local tensor of a DTensor. The inner tensors are stored, and the class, size and context.

    {"$wrapper": {"class": "module:name", "size": [...], "stride": [...], "context": VALUE,
                  "inner": {name: VALUE}}}
    {"$spread": {"whole": [...], "mesh": [...], "placements": [...], "local": {"$wrapper": ...}}}

In a DTensor all inner tensors are each rank's own, and can be restored on the same mesh only: it is
not known which rows of the whole tensor a scale of a block belongs to.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .._asking import asking, calling
from .._errors import UnsupportedError, UnsupportedStateError
from .._json_nodes import SPECIAL_TAGS, Json, Path, path_text, tag_of
from .._ranks import is_own
from ._layout import dtensor_memory, is_dtensor, is_spread, memory_of

if TYPE_CHECKING:
    import torch


class Encoder(Protocol):
    """The methods of _json_values.Encoder that are used here."""

    #: the value is given to an object's load_state_dict()
    handed: bool

    def encode(self, value: Any, path: Path, depth: int = 0) -> Json:
        """The JSON for a value."""

    def put_tensor(self, value: Any, path: Path, *, own: bool = False) -> Json:
        """The node of a plain tensor."""


#: Tags of the nodes of such tensors.
WRAPPED = ("$wrapper", "$spread")


def wraps(value: Any) -> bool:
    """True for a tensor that wraps others, also as the local tensor of a DTensor."""
    if is_spread(value):
        return is_dtensor(value) and wraps(dtensor_memory(value))
    return _may_wrap(type(value))


#: Modules of torch with classes that are temporary, or do not describe themselves completely.
_INNER = ("torch._", "torch.distributed.", "torch.nested.")


def _has_parts(kind: Any) -> bool:
    return (
        hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
        and not kind.__module__.startswith(_INNER)
    )


_may_wrap: Callable[[Any], bool] = functools.lru_cache(maxsize=1024)(_has_parts)


def is_wrapped(node: Json) -> bool:
    """True for a node of encode()."""
    return isinstance(node, dict) and tag_of(node) in WRAPPED


def wrapped_class(node: Json) -> str:
    """The description of a node, for a message."""
    if not is_wrapped(node):
        return "no tensor"
    local = node["$wrapper"] if "$wrapper" in node else node["$spread"]["local"]["$wrapper"]
    return f"a {local['class']} {local['size']}"


def class_text(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def encode(enc: Encoder, value: Any, path: Path, *, own: bool = False) -> Json:
    """The node of such a tensor. `own`: it is each rank's own, like in a DTensor."""
    if not is_dtensor(value):
        return _encode_local(enc, value, path, own=own)
    local = dtensor_memory(value)
    if enc.handed:
        raise UnsupportedStateError(
            f"{path_text(path)} is a DTensor of {class_text(local)}, which wraps tensors: it can "
            "be put back only where it is, and not be handed to load_state_dict(): put the module "
            "or the optimizer itself into the state, or a plain tensor in its place"
        )
    return {
        "$spread": {
            "whole": list(value.shape),
            "mesh": list(value.device_mesh.shape),
            "placements": [str(one) for one in value.placements],
            "local": _encode_local(enc, local, path, own=True),
        }
    }


def owns_in(node: Json) -> dict[str, str]:
    """For inner tensors of each rank's own: the stored names, by the names for all ranks."""
    found: dict[str, str] = {}
    for part in node["$wrapper"]["inner"].values():
        if "$wrapper" in part:
            found.update(owns_in(part))
        elif is_own(part["$tensor"]):
            found[part["$tensor"].partition("/")[2]] = part["$tensor"]
    return found


def _encode_local(enc: Encoder, value: Any, path: Path, *, own: bool) -> Json:
    names, context, parts = flatten(value, path)
    _check_class(value, path)
    inner: dict[str, Json] = {}
    for name, part in zip(names, parts, strict=True):
        where = (path, name)
        if wraps(part) and not is_spread(part):
            inner[name] = _encode_local(enc, part, where, own=own)
        else:
            inner[name] = enc.put_tensor(part, where, own=own)
    node: dict[str, Json] = {"class": class_text(value), "size": list(value.shape)}
    node["stride"] = list(value.stride())
    node["context"] = _encode_context(enc, value, context, path)
    return {"$wrapper": {**node, "inner": inner}}


def flatten(value: Any, where: Path | str) -> tuple[list[str], Any, list[Any]]:
    """The names of its inner tensors, its context, and the inner tensors."""
    with asking(where, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return list(names), context, [getattr(value, name) for name in names]


def _check_class(value: Any, path: Path) -> None:
    try:
        found = class_of(class_text(value))
    except UnsupportedError:
        found = None
    if found is not type(value):
        raise UnsupportedStateError(
            f"{path_text(path)} is a {class_text(value)}, which wraps tensors, and no class is "
            "found by this name, so that it could not be made again: define it at the top of its "
            "module"
        )


def _encode_context(enc: Encoder, value: Any, context: Any, path: Path) -> Json:
    """The node of a size or context, which must not have tensors: it is needed before reading."""
    what = f"{path_text(path)} is a {class_text(value)}, which wraps tensors, and what its "
    what += "__tensor_flatten__() says of it beside them"
    try:
        node = enc.encode(context, (path, "context"), 12)
    except UnsupportedStateError as error:
        raise UnsupportedStateError(f"{what} cannot be stored: {error}") from error
    if not _is_plain(node):
        raise UnsupportedStateError(
            f"{what} holds tensors, objects, or bytes that are stored as a tensor: make them "
            "tensors that it wraps"
        )
    return node


def _is_plain(node: Json) -> bool:
    if type(node) is list:
        return all(map(_is_plain, node))
    if type(node) is not dict:
        return True
    tag = tag_of(node)
    if tag == "$json":
        return _is_plain(json.loads(node[tag]))
    return tag not in ("$tensor", *WRAPPED, *SPECIAL_TAGS) and all(map(_is_plain, node.values()))


def spread_like(part: torch.Tensor, of: Any) -> Any:
    """A local tensor as a DTensor with the layout of `of`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part.detach(),
        of.device_mesh,
        of.placements,
        run_check=False,
        shape=of.shape,
        stride=of.stride(),
    )


def empty_like(value: Any, dtype: Any) -> Any:
    """Memory for a plain tensor of that shape, with the layout of this one."""
    import torch

    if not wraps(value):
        return torch.empty_like(value, dtype=dtype, requires_grad=False)
    # The class itself would create a wrapper.
    here = memory_of(value)
    fresh = torch.empty(here.shape, dtype=dtype, device=here.device)
    return spread_like(fresh, value) if is_dtensor(value) else fresh


def class_of(name: str) -> Any:
    """The class of that name, if the program has imported it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        # Not getattr(), because some modules import by that.
        found = getattr(found, "__dict__", {}).get(step)
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not isinstance(found, type)
        or not issubclass(found, torch.Tensor)
        or not _may_wrap(found)
    ):
        raise UnsupportedError(
            f"the checkpoint holds a tensor of class {path} of {module}, which this program has "
            "not imported: import it first"
        )
    return found


def unflatten(node: dict[str, Json], inner: dict[str, Any], context: Any, where: str) -> Any:
    import torch

    kind = class_of(node["class"])
    size, stride = torch.Size(node["size"]), tuple(node["stride"])
    with calling():  # so that placed() says where
        try:
            return kind.__tensor_unflatten__(inner, context, size, stride)
        except Exception as error:
            raise UnsupportedError(f"{where}: no {node['class']} can be made: {error!r}") from error


def check(tag: str, node: Json) -> None:
    """Raises for nodes that decode() and decode_spread() cannot create."""
    if tag == "$spread":
        raise only_there(node)
    if type(node["class"]) is not str:
        raise TypeError(f"a class {node['class']!r:.100}")
    class_of(node["class"])


def decode(value_of: Callable[[Json], Any], node: Json) -> Any:
    """The tensor of a "$wrapper" node, from inner tensors that were read."""
    inner = {name: value_of(part) for name, part in node["inner"].items()}
    return unflatten(node, inner, value_of(node.get("context")), "a tensor of the checkpoint")


def only_there(node: Json) -> UnsupportedError:
    """Raises: the local tensor of a DTensor has no meaning without the other ranks."""
    return UnsupportedError(
        f"the checkpoint holds a {node['local']['$wrapper']['class']} of shape {node['whole']}, "
        "spread over ranks: resume() puts it back on the same mesh, where the state has one in its "
        "place, and it cannot be read otherwise"
    )
