# SPDX-License-Identifier: Apache-2.0
"""StateWriter: writes the Python state of a save, which is JSON beside the tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from . import _rng
from ._asking import asking
from ._calls import VERSION
from ._errors import UnsupportedStateError
from ._into import same_bits
from ._json_nodes import PYTHON_VERSION, Json, Path, dump, path_text
from ._json_values import Encoder
from ._module_source import Modules
from ._modules import module_text, own_memory
from ._ranks import Ranks
from ._sink import Sink
from ._state_kinds import (
    is_module,
    is_optimizer,
    is_stateful,
    misplaced,
    misplaced_object,
    refuse_loader,
)
from ._tensors import check_place, check_tensor, describe
from ._walked import Walked
from .adapters._buffers import Own
from .adapters._ddp_buffers import ddp_buffers_in_state
from .adapters._holders import Holders, ModuleHolders
from .adapters._layout import memory_of
from .adapters._loaders import epochs_of, generator_of
from .adapters._subclasses import encode as encode_wrapped
from .adapters._subclasses import owns_in, wraps
from .adapters._wrappers import plain_keys, reshard, unwrap

if TYPE_CHECKING:
    import torch


#: Most bytes of the JSON of a rank.
META_MAX = 64 << 20

_TOKEN = re.compile(r'"\\u0000(\d+)"')


class StateWriter:
    """Writes the Python state of one save."""

    def __init__(
        self,
        modules: Modules,
        specials: set[int],
        sink: Sink,
        allow_pickle: bool,
        ranks: Ranks,
        *,
        is_ready: Callable[[Any], bool] | None,
    ) -> None:
        self._is_ready = is_ready
        #: an object was not asked
        self.passed_over = False
        self._specials = specials
        self._ranks = ranks
        self.sink = sink
        self.encoder = Encoder(self.sink, allow_pickle=allow_pickle, other=self._other)
        self._modules = modules
        # In the JSON, tokens that no value can contain stand for long texts until the end.
        self._texts: list[str] = []
        self._optimizers: dict[int, int] = {}
        self._inside = False

    def write(self, state: dict[str, Any]) -> str:
        """The JSON of the state and of the generators, with tokens in it."""
        node = {"state": self.encoder.encode(state, None, 1), "rng": _rng.capture(self.encoder)}
        return dump(node)

    def finish(
        self,
        text: str,
        walked: Walked,
        state: dict[str, Any],
        own: Own,
    ) -> bytes:
        """Adds the optimizers, and the fields that describe the whole."""
        for source in walked.sources:
            node = source.node(self.encoder, self.sink)
            self._texts[self._optimizers[id(source.optimizer)]] = node
        head = {
            "version": PYTHON_VERSION,
            "library": VERSION,
            "pickled": self.encoder.pickled,
        }
        parts = _TOKEN.split(text)
        parts[1::2] = [self._texts[int(number)] for number in parts[1::2]]
        # With a shared store, another rank's index describes these tensors.
        empty = {**walked.empty, **self.sink.empty} if self._ranks.near else {}
        more = f'"empty":{dump(empty)},' if empty else ""
        owns = {**walked.owns, **self.sink.owns}
        for source in walked.sources:  # tensors that wrap others were encoded after the walk
            owns.update(source.owns)
        owns.update(own.names)
        more += f'"per_rank":{dump(owns)},' if owns else ""
        if own.names:
            said: Json = {"layout": own.layout, "names": sorted(own.names)}
            more += f'"own_buffers":{dump(said)},'
        local = sorted(chain.from_iterable(source.local for source in walked.sources))
        more += f'"local":{dump(local)},' if local else ""
        meta = f'{{"python":{dump(head)},{more}{"".join(parts)[1:]}'.encode()
        if len(meta) > META_MAX:
            raise UnsupportedStateError(
                f"the values in the state that are no tensors take {len(meta) >> 20} MiB; "
                f"{META_MAX >> 20} MiB are the most: keep large data in tensors or NumPy arrays "
                f"(the state's keys are {', '.join(state)})"
            )
        return meta

    def _token(self, text: str) -> str:
        self._texts.append(text)
        return f"\0{len(self._texts) - 1}"

    def _other(self, value: Any, path: Path, depth: int) -> Json:
        if is_module(value) or is_optimizer(value):
            if (
                self._inside
                or self.encoder.wrapped
                or id(value) in self._optimizers
                or id(value) not in self._specials
            ):
                raise misplaced(value, path)
            if is_optimizer(value):
                self._optimizers[id(value)] = len(self._texts)
                return self._token("")
            return self._token(self._module(value, path))
        refuse_loader(value, path)
        if is_stateful(value):
            return self._object(value, path, depth)
        return None

    def _module(self, module: torch.nn.Module, path: Path) -> str:
        prefix = self._modules.own_say.get(id(module))
        if prefix is None:
            return self._wrapping(module) or self._modules.texts[id(module)]
        import torch

        names: list[str] = []
        extra: dict[str, Json] = {}
        inner = unwrap(module, hooked=True)
        reshard(module)
        own = own_memory(inner)
        first_names, first_memory = ddp_buffers_in_state(module, inner, self._ranks.world)
        holders = ModuleHolders(module, self._modules.meshes, prefix)
        may_differ = self._modules.may_differ_in(module, prefix, holders)
        with asking(path, "state_dict"):
            state = inner.state_dict()
        keys = plain_keys(inner, state, path_text(path))
        for key, value in state.items():
            name = prefix + keys[key]
            held = holders.of(keys[key])
            if isinstance(value, torch.Tensor) and not wraps(value):
                check_tensor(
                    value, f"{path_text(path)}, tensor {name}"
                )  # before anything else is asked of it
                memory = memory_of(value).data_ptr()
                alone = self._ranks.is_own(name, value)
                # A copy of the DDP buffer. Another value of that name may be this rank's own.
                copied = first_names.get(keys[key])
                first = memory in first_memory or (copied is not None and same_bits(value, copied))
                is_statistic = None if first else may_differ.get(memory)
                self.sink.put_named(
                    name,
                    value,
                    path,
                    first=first or is_statistic is not None,
                    own=alone,
                    holders=held,
                    is_statistic=is_statistic,
                )
                # A tensor that state_dict() has created need not be restored in place.
                if memory in own:
                    check_place(describe(value), name)
                names.append(name)
            elif isinstance(value, torch.Tensor):
                extra[keys[key]] = self._wrapped(name, value, held)
            else:
                with self.sink.held_by(held):
                    extra[keys[key]] = self.encoder.encode(value, (path, key), 8)
        return module_text(module, prefix, names, extra)

    def _wrapping(self, module: torch.nn.Module) -> str | None:
        if id(module) not in self._modules.wrapping:
            return None
        prefix, names, others, holders = self._modules.wrapping[id(module)]
        extra: dict[str, Json] = {}
        for name, tensor in others.items():
            key = name[len(prefix) :]
            extra[key] = self._wrapped(name, tensor, holders.of(key))
        return module_text(module, prefix, names, extra)

    def _wrapped(self, name: str, tensor: torch.Tensor, holders: Holders | None) -> Json:
        own = self._ranks.is_own(name, tensor)
        with self.sink.held_by(holders):
            node = encode_wrapped(self.encoder, tensor, (None, name), own=own)
        if own:
            self.sink.owns.update(owns_in(node))
        return node

    def _object(self, value: Any, path: Path, depth: int) -> Json:
        if self._inside or self.encoder.wrapped:
            raise misplaced_object(value, path)
        # The contents are opaque and may differ by rank.
        self._inside = self.sink.own = True
        try:
            said = self._ask(value, path)
            if said is None:
                self.passed_over = True
                return {"$object": {}}
            node = self.encoder.encode_object(value, said[0], path, depth + 2)
            generator = generator_of(value)
            if generator is not None:  # after state_dict(), which may draw from it
                where = (path, "generator")
                node["generator"] = self.encoder.put_tensor(generator.get_state(), where, own=True)
            if epochs := epochs_of(value, path):
                node["epoch"] = epochs
        finally:
            self._inside = self.sink.own = False
        return {"$object": node}

    def _ask(self, value: Any, path: Path) -> tuple[Any] | None:
        """The result of its state_dict() in a tuple; None: it must not be asked yet."""
        if self._is_ready is not None and not self._is_ready(value):
            return None
        try:
            with asking(path, "state_dict"):
                return (value.state_dict(),)
        except Exception:
            if self._is_ready is not None:
                return None
            raise
