# SPDX-License-Identifier: Apache-2.0
"""Memory for tensors that wrap other tensors, in a live state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _dtypes
from .._decoder import Decoder
from .._errors import UnsupportedStateError
from .._json_nodes import Json, Path, path_text
from .._json_values import Encoder
from ._layout import dtensor_memory, is_dtensor, is_spread
from ._subclasses import class_text, flatten, is_wrapped, spread_like, unflatten, wraps

if TYPE_CHECKING:
    import torch

    from .._reader import Stored


class Places:
    """Assigns memory for such tensors of a live state."""

    def __init__(
        self,
        stored: Callable[[object], Stored],
        fits: Callable[[Stored, torch.Tensor, str], bool],
        bind: Callable[[str, torch.Tensor], None],
        problem: Callable[[str, str, str], bool],
        *,
        whole: bool,
        allow_pickle: bool,
    ) -> None:
        self._stored = stored
        self._fits = fits
        self._bind = bind
        self._problem = problem
        #: this rank gets back what it had
        self._whole = whole
        self._allow_pickle = allow_pickle
        #: tensors that are read to memory of the live state, by the address
        self._homes: dict[int, str] = {}

    def place(self, node: Json, old: Any, like: Any, path: Path, *, anew: bool = False) -> Any:
        """
        The live tensor, or another one: it is read to. `like` is what it belongs to. `anew`: where
        the live one says something else of itself, another one may stand in its place.
        """
        where = path_text(path)
        if "$wrapper" in node:
            return self._local(node["$wrapper"], old, like, where, anew=anew)
        node = node["$spread"]
        of = old if is_dtensor(old) else like
        now = _layout_of(of)
        then = f"{node['whole']} on a mesh {node['mesh']} as {node['placements']}"
        if now != then or not self._whole:
            self._problem(
                "changed",
                f"{where} is {now}, and was {then}: what it wraps belongs to that mesh and number "
                "of ranks, and comes back there only",
                where,
            )
            return old
        inner = dtensor_memory(old) if is_dtensor(old) and wraps(old) else None
        local = self._local(node["local"]["$wrapper"], inner, like, where, anew=anew)
        return old if local is inner else spread_like(local, of)

    def _local(self, node: dict[str, Json], old: Any, like: Any, where: str, *, anew: bool) -> Any:
        parts = node["inner"]
        if wraps(old) and not is_spread(old):
            says = self._other_context(node, old, where)
            if says is None:
                return self._in_place(node, old, like, where)
            if not anew:
                self._problem(
                    "changed",
                    f"{where}: what __tensor_flatten__() says of this {node['class']} is {says}",
                    where,
                )
                return old
        inner = {
            name: self._part(part, None, like, f"{where}.{name}") for name, part in parts.items()
        }
        context = Decoder.plain(node.get("context"), allow_pickle=self._allow_pickle)
        return unflatten(node, inner, context, where)

    def _in_place(self, node: dict[str, Json], old: Any, like: Any, where: str) -> Any:
        names, _, held = flatten(old, where)
        now = (class_text(old), list(old.shape), set(names))
        if now != (node["class"], node["size"], set(node["inner"])):
            self._problem(
                "changed",
                f"{where} is a {class_text(old)} {list(old.shape)}, and was a {node['class']} "
                f"{node['size']}",
                where,
            )
            return old
        inner = dict(zip(names, held, strict=True))
        for name, part in node["inner"].items():
            self._part(part, inner[name], like, f"{where}.{name}")
        return old

    def _other_context(self, node: dict[str, Json], old: Any, where: str) -> str | None:
        """The difference between a live and a stored tensor in class, size or context."""
        if class_text(old) != node["class"] or list(old.shape) != node["size"]:
            return None  # reported by the caller
        names, context, held = flatten(old, where)
        encoder = Encoder(_Nowhere(), allow_pickle=self._allow_pickle)
        try:
            now = _ordered(encoder.encode(context, None, 12))
        except UnsupportedStateError:
            now = repr(context)
        then = _ordered(node.get("context"))
        if now != then:
            return f"{now:.100}, and was {then:.100}"
        for name, inner in zip(names, held, strict=True):
            part = node["inner"].get(name)
            if is_wrapped(part) and wraps(inner) and not is_spread(inner):
                found = self._other_context(part["$wrapper"], inner, f"{where}.{name}")
                if found is not None:
                    return found
        return None

    def _part(self, node: Json, old: Any, like: Any, where: str) -> Any:
        if (old is not None) and (("$wrapper" in node) != wraps(old)):
            self._problem(
                "changed", f"{where} is a {class_text(old)}, and was of another kind", where
            )
            return old
        if "$wrapper" in node:
            return self._local(node["$wrapper"], old, like, where, anew=False)
        import torch

        stored = self._stored(node["$tensor"])
        if old is None:
            dtype = _dtypes.torch_type(stored.dtype)
            old = torch.empty(stored.shape, dtype=dtype, device=like.device)
        if self._fits(stored, old, where):
            if old.numel() and self._homes.setdefault(old.data_ptr(), stored.home) != stored.home:
                self._problem("changed", f"{where} is one tensor with another, and was not", where)
            else:
                self._bind(stored.name, old)
        return old


def _ordered(node: Json) -> str:
    """As text that does not depend on the order of dict keys."""
    return json.dumps(node, sort_keys=True)


class _Nowhere:
    """A sink for values without tensors."""

    def put_tensor(self, value: Any, path: Path, *, own: bool = False) -> str:  # noqa: ARG002
        """Refuses it."""
        raise UnsupportedStateError(f"{path_text(path)} is a tensor")

    def put_array(self, value: Any, path: Path) -> str:  # noqa: ARG002
        """Refuses it."""
        raise UnsupportedStateError(f"{path_text(path)} is an array")

    def put_bytes(self, value: bytes, path: Path) -> str:  # noqa: ARG002
        """Refuses them."""
        raise UnsupportedStateError(f"{path_text(path)} is long")


def _layout_of(value: Any) -> str:
    if not is_dtensor(value):
        return "on no mesh"
    placements = [str(one) for one in value.placements]
    return f"{list(value.shape)} on a mesh {list(value.device_mesh.shape)} as {placements}"
