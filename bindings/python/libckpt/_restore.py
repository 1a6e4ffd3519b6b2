# SPDX-License-Identifier: Apache-2.0
"""
Putting a step back into a live state, in place.

First the checkpoint is compared with the live state, and every tensor is given the memory it goes
to; nothing is changed by that. Then the library reads. Then everything else is put in place.
"""

from __future__ import annotations

import collections
import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _dtypes, _rng
from ._engine import logger
from ._errors import (
    CheckpointError,
    CheckpointWarning,
    FormatError,
    MismatchError,
    UnsupportedStateError,
)
from ._layout import is_dtensor, is_part_like, is_spread, memory_of
from ._modules import (
    class_name,
    has_own_say,
    own_memory,
    parameter_names,
    reshard,
    strip_wrappers,
    unwrap,
    walk,
)
from ._optimizer import has_own_say as optimizer_has_own_say
from ._optimizer import name_parameters, parameters
from ._origin import LISTED, Origin, check_world
from ._ranks import PerRank
from ._reader import Memory, Reader, Stored, optimizer_tensors, references
from ._save import Progress
from ._specials import is_stateful
from ._tensors import (
    check_place,
    check_tensor,
    describe,
    describe_array,
    is_whole,
    overlaps,
)
from ._typed import SPECIAL_TAGS, Decoder, Json, Path, path_text, tag_of

if TYPE_CHECKING:
    import torch

_PLAIN = {bool, bytes, complex, float, int, str, type(None)}


def restore(
    reader: Reader,
    state: dict[str, Any],
    *,
    allow_pickle: bool,
    progress: Callable[[Progress], object] | None,
) -> None:
    """Brings `state` back to what the step holds."""
    origin = Origin.of(reader)
    meta = origin.meta
    if meta is None:
        raise FormatError(
            f"step {reader.step} was not written by a Checkpointer, so that there is no state to "
            "resume: libckpt.load() gives its tensors, and libckpt.dcp.StorageReader what "
            "dcp.save() has saved",
            step=reader.step,
        )
    check_world(reader, origin)
    live = _Live(reader, allow_pickle, origin)
    try:
        live.match(meta, state)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise FormatError(
            f"step {reader.step}: its state is malformed: {error!r}", step=reader.step
        ) from error
    reader.read(progress)
    live.apply(meta, state)
    live.warn()


class _Live:
    """One restore. `match` finds what goes where, `apply` does what is no reading."""

    def __init__(self, reader: Reader, allow_pickle: bool, origin: Origin) -> None:
        self._reader = reader
        self._origin = origin
        #: objects that get another rank's state though they may have had another on each
        self._borrowed: list[str] = []
        #: values of a rank that was not there
        self._kept: list[str] = []
        self._stored = reader.stored(origin.meta)
        self._memory = Memory(reader, self._stored)
        self._decoder = Decoder(self._memory.get, allow_pickle=allow_pickle)
        self._local = set((origin.meta or {}).get("local") or ())
        self._problems: dict[str, list[str]] = {}
        self._names: dict[int, str] = {}
        self._optimizers: list[_Optimizer] = []
        self._loads: dict[int, Callable[[], None]] = {}
        #: tensors and arrays in containers that cannot take bytes, and are replaced
        self._replaced: set[int] = set()

    def match(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """Compares; raises MismatchError that lists everything that is different."""
        children = _dict_items(meta["state"])
        if children is None:
            raise FormatError(f"step {self._reader.step}: its state is no dict")
        self._match_keys(dict(children), state, None)
        for optimizer in self._optimizers:
            optimizer.match(self._names)
        for name, kind in references(self._rng()):
            self._memory.want(name, kind)
        self._raise_problems()

    def _rng(self) -> Json:
        return {} if self._origin.own is None else self._origin.own["rng"]

    def apply(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """The tensors are in place; now everything else. The generators come last."""
        for key, node in _dict_items(meta["state"]) or ():
            state[key] = self._apply(node, state[key])
        if self._origin.own is None:
            self._seed()
        else:
            _rng.restore(self._rng(), self._decoder)

    def _seed(self) -> None:
        """There was no such rank: its generators get what no other rank has, and no other step."""
        reader, rank = self._reader, self._reader.engine.rank
        source = f"{reader.engine.run_id()}/{reader.generation}/{reader.step}/{rank}"
        _rng.seed_all(int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big"))

    def warn(self) -> None:
        """Says what another number of ranks has made of this rank's state."""
        if self._origin.whole:
            return
        engine, said = self._reader.engine, []
        if self._origin.own is None:
            said.append("its random number generators are seeded anew")
        if self._kept:
            why = "" if self._origin.node is not None else f" (no rank {engine.rank} saved)"
            said.append(f"{', '.join(self._kept)} stay as they are{why}")
        if self._borrowed:
            said.append(
                f"{', '.join(self._borrowed)} got the state of rank {self._origin.rank}: where it "
                "is a position in the data of one rank, samples may be seen twice or not at all"
            )
        if said:
            where = ""
            if self._origin.node is not None:
                where = f", and what rank {engine.rank} saved is on node {self._origin.node}"
            message = (
                f"step {self._reader.step} was saved by {self._reader.world} ranks, and this is "
                f"rank {engine.rank} of {engine.world}{where}: {'; '.join(said)}"
            )
            logger.warning("%s", message)
            warnings.warn(message, CheckpointWarning, stacklevel=5)

    # Comparing.

    def problem(self, kind: str, text: str) -> None:
        """Notes a difference; `kind` is "missing", "unexpected" or "changed"."""
        self._problems.setdefault(kind, []).append(text)

    def _raise_problems(self) -> None:
        if not self._problems:
            return
        lines = [f"step {self._reader.step} does not fit the state:"]
        for kind, meaning in (
            ("missing", "in the state, and not in the checkpoint"),
            ("unexpected", "in the checkpoint, and not in the state"),
            ("changed", "different"),
        ):
            found = self._problems.get(kind, [])
            if found:
                lines.append(f"  {kind} ({meaning}): " + "; ".join(found[:LISTED]))
                if len(found) > LISTED:
                    lines[-1] += f"; and {len(found) - LISTED} more"
        lines.append(
            "  Nothing was changed. Build the state as it was when the step was saved, or take "
            "what you need with libckpt.load()."
        )
        raise MismatchError("\n".join(lines), step=self._reader.step)

    def _match_keys(self, children: dict[str, Json], state: dict[str, Any], path: Path) -> None:
        for key, node in children.items():
            if key in state:
                self._match(node, state[key], (path, key))
            else:
                self.problem("unexpected", path_text((path, key)))
        for key in state:
            if key not in children:
                self.problem("missing", path_text((path, key)))

    def _match(self, node: Json, live: Any, path: Path) -> None:
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            self._match_special(tag, node[tag], live, path)
        elif _is_special(live):
            self.problem("changed", f"{path_text(path)} is a {_kind(live)}, and was plain data")
        elif tag == "$tensor" and _is_tensor(live):
            self._match_tensor(self._memory.stored(node[tag]), live, path)
        elif tag == "$ndarray" and _is_array(live):
            if type(node[tag]) is dict:
                self._match_array(self._memory.stored(node[tag].get("$tensor")), live, path)
        elif (children := _dict_items(node)) is not None and isinstance(live, dict):
            self._match_dict(dict(children), live, path)
        elif (items := _list_items(node)) is not None and _is_list_of(live, len(items)):
            for index, (item, value) in enumerate(zip(items, live, strict=True)):
                self._match(item, value, (path, index))
        else:
            if _holds_memory(live):
                self.problem("changed", f"{path_text(path)} holds tensors in another arrangement")
            self._want(node, path)

    def _want(self, node: Json, path: Path) -> None:
        """What has no place in the live state gets memory of its own."""
        if _has_special(node):
            self.problem("unexpected", f"the objects in {path_text(path)}")
            return
        for name, kind in references(node):
            self._memory.want(name, kind)

    def _match_dict(self, children: dict[Any, Json], live: dict[Any, Any], path: Path) -> None:
        for key, node in children.items():
            if key in live:
                self._match(node, live[key], (path, key))
            elif live and any(references(node)):
                self.problem("unexpected", path_text((path, key)))
            else:
                self._want(node, (path, key))
        for key, value in live.items():
            if key not in children and _holds_memory(value):
                self.problem("missing", path_text((path, key)))

    def _match_tensor(self, stored: Stored, live: torch.Tensor, path: Path) -> None:
        if not self.fits(stored, live, path_text(path)):
            return
        self._names.setdefault(id(live), stored.name)
        if overlaps(describe(live)):
            self._memory.want(stored.name, "torch", live.device)
            self._replaced.add(id(live))
        else:
            self._memory.use(stored.name, live)

    def fits(self, stored: Stored, live: torch.Tensor, where: str) -> bool:
        """True if the live tensor can take the bytes; otherwise a problem is noted."""
        check_tensor(live, where)
        what = describe(live)
        if (what.dtype, what.full_shape) == (stored.dtype, stored.shape):
            return True
        now = f"{_dtypes.name_of(what.dtype)} {list(what.full_shape)}"
        self.problem("changed", f"{where} is {now}, and was {stored}")
        return False

    def _match_array(self, stored: Stored, live: Any, path: Path) -> None:
        number = _dtypes.numpy_numbers().get(live.dtype)
        if (number, live.shape) != (stored.dtype, stored.shape):
            self.problem(
                "changed",
                f"{path_text(path)} is {live.dtype} {list(live.shape)}, and was {stored}",
            )
        elif not live.flags.writeable or not is_whole(live) or overlaps(describe_array(live)):
            self._memory.want(stored.name, "numpy")
            self._replaced.add(id(live))
        else:
            self._reader.bind(stored.name, describe_array(live), live)

    def _match_special(self, tag: str, node: Json, live: Any, path: Path) -> None:
        import torch

        if tag == "$module" and isinstance(live, torch.nn.Module):
            self._loads[id(live)] = _Module(self, node, live, path).match()
        elif tag == "$optimizer" and isinstance(live, torch.optim.Optimizer):
            optimizer = _Optimizer(self, node, live, path)
            self._optimizers.append(optimizer)
            self._loads[id(live)] = optimizer.apply
        elif tag == "$object" and _is_special(live) and is_stateful(live):
            self._match_object(node, live, path)
        else:
            self.problem(
                "changed", f"{path_text(path)} is a {_kind(live)}, and was {node['class']}"
            )

    def _match_object(self, node: Json, live: Any, path: Path) -> None:
        if node["class"] != _kind(live):
            text = f"{path_text(path)} is a {_kind(live)}, and was a {node['class']}"
            if type(live).__module__.startswith("torch."):
                self.problem("changed", text)
                return
            logger.warning("%s: its load_state_dict() is called all the same", text)
        if not self._origin.whole:
            found = self._of_this_rank(node, live, path)
            if found is None:
                return
            node = found
        self._want(node["state"], path)

        def load() -> None:
            live.load_state_dict(self._decoder.decode(node["state"]))

        self._loads[id(live)] = load

    def _of_this_rank(self, node: Json, live: Any, path: Path) -> Json | None:
        """The node to restore an object from; None: it stays as it is."""
        if not isinstance(live, PerRank):
            # torch's schedulers go by the step, as all ranks do.
            if not type(live).__module__.startswith("torch.optim."):
                self._borrowed.append(path_text(path))
            return node
        own = self._origin.own
        found = None if own is None else _node_at(own["state"], path)
        if found is None or tag_of(found) != "$object":
            self._kept.append(path_text(path))
            return None
        return found["$object"]

    # What _Module and _Optimizer need.

    def stored(self, name: object) -> Stored:
        """What the step says of a name."""
        return self._memory.stored(name)

    def name_tensors(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Names under which optimizers know parameters."""
        for name, tensor in pairs:
            self._names.setdefault(id(tensor), name)

    def is_local(self, name: str) -> bool:
        """True for state of an optimizer that was kept as a part, as the parameter's is."""
        return name in self._local

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """The tensor of that name, or the box of it that `like` is, goes to this memory."""
        what = describe(tensor, like)
        check_place(what, name)
        self._reader.bind(name, what, tensor)

    def check_kept(self, tensor: torch.Tensor) -> None:
        """Raises for a tensor that is to be replaced, and that an optimizer holds."""
        if id(tensor) in self._replaced:
            check_place(describe(tensor), self._names[id(tensor)])

    def want(self, node: Json, path: Path) -> None:
        """Memory for everything that a node without counterpart mentions."""
        self._want(node, path)

    def want_tensor(self, name: str) -> torch.Tensor:
        """Fresh memory for a tensor."""
        fresh: torch.Tensor = self._memory.want(name, "torch")
        return fresh

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """Fresh memory for a tensor, spread over the ranks as the live one is."""
        return self._memory.want_like(name, live)

    def decode(self, node: Json) -> Any:
        """The value of a node; only after reading."""
        return self._decoder.decode(node)

    # Putting in place.

    def _apply(self, node: Json, live: Any) -> Any:
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            load = self._loads.pop(id(live), None)
            if load is not None:
                load()
            return live
        if (tag == "$tensor" and _is_tensor(live)) or (
            tag == "$ndarray" and _is_array(live) and type(node[tag]) is dict
        ):
            return self._decoder.decode(node) if id(live) in self._replaced else live
        children = _dict_items(node)
        if children is not None and isinstance(live, dict):
            new = {
                key: self._apply(item, live[key]) if key in live else self._decoder.decode(item)
                for key, item in children
            }
            live.clear()
            live.update(new)
            return live
        items = _list_items(node)
        if items is not None and _is_list_of(live, len(items)):
            values = [self._apply(item, old) for item, old in zip(items, live, strict=True)]
            if type(live) is tuple:
                return tuple(values)
            live[:] = values
            return live
        return into(live, self._decoder.decode(node))


class _Module:
    """A module of the live state, and what the checkpoint says of it."""

    def __init__(
        self, live: _Live, node: dict[str, Json], module: torch.nn.Module, path: Path
    ) -> None:
        self._live = live
        self._node = node
        self._module = module
        self._path = path
        self._prefix: str = node["prefix"]

    def match(self) -> Callable[[], None]:
        """Compares, and returns what is to be done after reading."""
        prefix = self._prefix
        reshard(self._module)
        saved = {name[len(prefix) :]: self._live.stored(name) for name in self._node["tensors"]}
        self._live.name_tensors(parameter_names(unwrap(self._module), prefix))
        if has_own_say(self._module):
            return self._match_own(saved)
        here = dict(walk(self._module))
        for name in sorted(self._common({*saved, *self._node["extra"]}, set(here))):
            if self._live.fits(saved[name], here[name], prefix + name):
                self._live.bind(saved[name].name, here[name])
        self._check_ties(saved, here)
        return _nothing

    def _common(self, saved: set[str], here: set[str]) -> set[str]:
        for name in sorted(here - saved):
            self._live.problem("missing", self._prefix + name)
        for name in sorted(saved - here):
            self._live.problem("unexpected", self._prefix + name)
        return here & saved

    def _check_ties(self, saved: dict[str, Stored], here: dict[str, torch.Tensor]) -> None:
        """One memory can take one tensor only."""
        seen: dict[int, str] = {}
        for name, tensor in here.items():
            memory = memory_of(tensor)
            if name not in saved or memory.numel() == 0:
                continue
            first = seen.setdefault(memory.data_ptr(), name)
            if saved[first].home != saved[name].home and tensor.shape == here[first].shape:
                self._live.problem(
                    "changed",
                    f"{self._prefix}{name} and {self._prefix}{first} are one tensor, and were two",
                )

    def _match_own(self, saved: dict[str, Stored]) -> Callable[[], None]:
        import torch

        inner = unwrap(self._module)
        own = own_memory(inner)
        state = inner.state_dict()
        keys = {strip_wrappers(key): key for key in state}
        extra = self._node["extra"]
        for name in sorted(self._common({*saved, *extra}, set(keys))):
            value = state[keys[name]]
            if (name in saved) != isinstance(value, torch.Tensor):
                self._live.problem("changed", f"{self._prefix}{name} is a {_kind(value)}")
            elif name in extra:
                self._live.want(extra[name], (self._path, name))
            elif self._live.fits(saved[name], value, self._prefix + name):
                if memory_of(value).data_ptr() in own:
                    check_place(describe(value), self._prefix + name)
                self._live.want_like(saved[name].name, value)

        def load() -> None:
            new = collections.OrderedDict(
                (key, self._value(name, saved, state[key])) for name, key in keys.items()
            )
            new._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]
            inner.load_state_dict(new)
            self._compare(inner.state_dict(), new)

        return load

    def _value(self, name: str, saved: dict[str, Stored], live: Any) -> Any:
        if name in saved:
            return self._live.want_like(saved[name].name, live)
        return self._live.decode(self._node["extra"][name])

    def _compare(self, after: dict[str, Any], new: dict[str, Any]) -> None:
        """A module that loads by itself may have loaded something else."""
        import torch

        for key, value in new.items():
            if isinstance(value, torch.Tensor) and not same_bits(after.get(key), value):
                raise MismatchError(
                    f"{path_text(self._path)}: after its load_state_dict(), {key} is not what the "
                    f"checkpoint holds ({_dtypes.name_of(describe(value).dtype)} "
                    f"{list(value.shape)}): its hooks change what they are given",
                    tensor=self._prefix + strip_wrappers(key),
                )


class _Optimizer:
    """An optimizer of the live state, and what the checkpoint says of it."""

    def __init__(
        self, live: _Live, node: dict[str, Json], optimizer: torch.optim.Optimizer, path: Path
    ) -> None:
        self._live = live
        self._node = node
        self._optimizer = optimizer
        self._path = path
        self._where = path_text(path)
        #: new state of every parameter of the checkpoint that is a tensor
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}
        self._params: dict[int, torch.Tensor] = {}
        #: identities of parameters whose steps the GPU counts
        self._counted: set[int] | None = None

    def match(self, names: dict[int, str]) -> None:
        """Compares the parameters by their names, and finds memory for the state."""
        if self._node["class"] != _kind(self._optimizer):
            self._live.problem(
                "changed",
                f"{self._where} is a {_kind(self._optimizer)}, and was a {self._node['class']}",
            )
            return
        try:
            here = name_parameters(self._optimizer, self._path, names)
        except UnsupportedStateError as error:
            self._live.problem("changed", str(error))
            return
        if not self._match_groups(here):
            return
        by_name = dict(zip(here, parameters(self._optimizer), strict=True))
        for parameter in by_name.values():
            self._live.check_kept(parameter)
        self._params = {index: by_name[name] for index, name in enumerate(self._node["params"])}
        own_say = optimizer_has_own_say(self._optimizer)
        for index, role, name in optimizer_tensors(self._node):
            stored = self._live.stored(name)
            self._tensors.setdefault(index, {})[role] = (
                self._fresh(stored, self._params[index])
                if own_say
                else self._place(stored, self._params[index], role)
            )
        for part in ("values", "other", "extra", "groups"):
            self._live.want(self._node[part], self._path)

    def _match_groups(self, here: list[str]) -> bool:
        saved, groups = self._node["params"], self._optimizer.param_groups
        for name in sorted(set(here) - set(saved)):
            self._live.problem("missing", f"{self._where}: parameter {name}")
        for name in sorted(set(saved) - set(here)):
            self._live.problem("unexpected", f"{self._where}: parameter {name}")
        counts = [group["count"] for group in self._node["groups"]]
        if sum(counts) != len(saved):
            raise FormatError(f"{self._where}: the groups do not add up")
        if set(here) != set(saved):
            return False
        if counts != [len(group["params"]) for group in groups] or not all(
            set(a) == set(b)
            for a, b in zip(_split(saved, counts), _split(here, counts), strict=True)
        ):
            self._live.problem("changed", f"{self._where} has its parameters in other groups")
            return False
        return True

    def _fresh(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        if is_spread(parameter) and stored.shape == tuple(parameter.shape):
            return self._live.want_like(stored.name, parameter)
        return self._live.want_tensor(stored.name)

    def _place(self, stored: Stored, parameter: torch.Tensor, role: str) -> torch.Tensor:
        """The live tensor if there is one, else memory like the optimizer itself would take."""
        import torch

        old = (self._optimizer.state.get(parameter) or {}).get(role)
        local = is_dtensor(parameter) and self._live.is_local(stored.name)
        if old is not None and is_part_like(old, parameter):
            # Which it is where this rank has all of it: as it was saved.
            local = local or tuple(old.shape) != stored.shape
        elif old is not None:
            local = False
        if local:
            return self._place_part(stored, parameter, old)
        if isinstance(old, torch.Tensor) and not overlaps(describe(old)):
            if self._live.fits(stored, old, stored.name):
                self._live.bind(stored.name, old)
            return old
        dtype = _dtypes.torch_type(stored.dtype)
        if role == "step":
            fresh = torch.empty(stored.shape, dtype=dtype, device=self._device_of_step(parameter))
        elif stored.shape == tuple(parameter.shape):
            fresh = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            fresh = torch.empty(stored.shape, dtype=dtype, device=parameter.device)
        self._live.bind(stored.name, fresh)
        return fresh

    def _place_part(self, stored: Stored, parameter: Any, old: torch.Tensor | None) -> torch.Tensor:
        """The same box as this rank has of the parameter."""
        import torch

        dtype = _dtypes.torch_type(stored.dtype)
        if old is None:
            old = torch.empty_like(memory_of(parameter), dtype=dtype, requires_grad=False)
        if stored.shape != tuple(parameter.shape) or old.dtype != dtype:
            now = f"{_dtypes.name_of(describe(old).dtype)}, a part of {list(parameter.shape)}"
            self._live.problem("changed", f"{stored.name} is {now}, and was {stored}")
        else:
            self._live.bind(stored.name, old, parameter)
        return old

    def _device_of_step(self, parameter: torch.Tensor) -> Any:
        """As torch's own load_state_dict() has it: with its parameter if the GPU counts."""
        if self._counted is None:
            self._counted = {
                id(own)
                for group in self._optimizer.param_groups
                if group.get("capturable") or group.get("fused")
                for own in group["params"]
            }
        return parameter.device if id(parameter) in self._counted else "cpu"

    def apply(self) -> None:
        """The tensors are read; puts them and everything else into the optimizer."""
        options = [self._live.decode(group["options"]) for group in self._node["groups"]]
        values = {
            int(index): {role: self._live.decode(value) for role, value in entry.items()}
            for index, entry in self._node["values"].items()
        }
        state = {
            index: {**self._tensors.get(index, {}), **values.get(index, {})}
            for index in sorted({*self._tensors, *values})
        }
        other = self._live.decode(self._node["other"])
        if optimizer_has_own_say(self._optimizer):
            self._load_by_itself(state, options, other)
        else:
            self._load_in_place(state, options, other)
        self._check(state)

    def _load_in_place(
        self, state: dict[int, dict[str, Any]], options: list[dict[str, Any]], other: dict[Any, Any]
    ) -> None:
        optimizer = self._optimizer
        optimizer.state.clear()
        for index, entry in state.items():
            optimizer.state[self._params[index]] = entry
        optimizer.state.update(other)
        for group, new in zip(optimizer.param_groups, options, strict=True):
            for key, value in new.items():
                group[key] = into(group.get(key), value)
        # As its own load_state_dict() does: a newer class may add options here.
        optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})

    def _load_by_itself(
        self, state: dict[int, dict[str, Any]], options: list[dict[str, Any]], other: dict[Any, Any]
    ) -> None:
        here = {id(parameter): n for n, parameter in enumerate(parameters(self._optimizer))}
        numbered = {here[id(self._params[index])]: entry for index, entry in state.items()}
        groups = self._optimizer.state_dict()["param_groups"]
        for group, new in zip(groups, options, strict=True):
            group.update(new)
        extra = self._live.decode(self._node["extra"])
        self._optimizer.load_state_dict(
            {"state": {**numbered, **other}, "param_groups": groups, **extra}
        )

    def _check(self, state: dict[int, dict[str, Any]]) -> None:
        """Frameworks are known to cast moments on the way in."""
        import torch

        for index, entry in state.items():
            now = self._optimizer.state.get(self._params[index]) or {}
            for role, value in entry.items():
                got = now.get(role)
                if (
                    isinstance(value, torch.Tensor)
                    and got is not value
                    and not same_bits(got, value)
                ):
                    name = self._node["params"][index]
                    what = _describe(got)
                    raise MismatchError(
                        f"{self._where}: after its load_state_dict(), {role} of {name} is {what}, "
                        f"and the checkpoint holds {value.dtype} {list(value.shape)}",
                        tensor=name,
                    )


def _split(values: list[str], counts: list[int]) -> list[list[str]]:
    parts, first = [], 0
    for count in counts:
        parts.append(values[first : first + count])
        first += count
    return parts


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if _is_tensor(value) else _kind(value)


def _nothing() -> None:
    return


def same_bits(a: Any, b: torch.Tensor) -> bool:
    """True for tensors of one type and shape that are equal to the bit."""
    import torch

    if not isinstance(a, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b).to(a.device))


def _bits(value: torch.Tensor) -> torch.Tensor:
    import torch

    return memory_of(value).detach().contiguous().flatten().view(torch.uint8)


def _kind(value: Any) -> str:
    return class_name(value) if _is_module(value) else type(value).__qualname__


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_parameter(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.nn.Parameter


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _is_special(value: Any) -> bool:
    """True for what has a node of its own in the Python state."""
    if type(value) in _PLAIN or isinstance(value, (dict, list, tuple)):
        return False
    return _is_module(value) or is_stateful(value)


def _holds_memory(value: Any) -> bool:
    """True if there is something in it that is restored in place."""
    if isinstance(value, dict):
        return any(map(_holds_memory, value.values()))
    if isinstance(value, (list, tuple)):
        return not set(map(type, value)) <= _PLAIN and any(map(_holds_memory, value))
    return _is_tensor(value) or _is_array(value) or _is_special(value)


def _has_special(node: Json) -> bool:
    if type(node) is list:
        return not set(map(type, node)) <= _PLAIN and any(map(_has_special, node))
    if type(node) is dict:
        return tag_of(node) in SPECIAL_TAGS or any(map(_has_special, node.values()))
    return False


_DICT_TAGS = {"$dict": 0, "$odict": 0, "$counter": 0, "$defaultdict": 1}


def _dict_items(node: Json) -> list[tuple[Any, Json]] | None:
    """Keys and nodes of anything that is a dict; None if it is none."""
    if type(node) is not dict:
        return None
    tag = tag_of(node)
    if tag is None:
        return list(node.items())
    if tag not in _DICT_TAGS:
        return None
    flat = node[tag][_DICT_TAGS[tag] :]
    return [(Decoder.plain(key), item) for key, item in zip(flat[::2], flat[1::2], strict=True)]


def _list_items(node: Json) -> list[Json] | None:
    """Nodes of a list or tuple that holds more than plain values; None for anything else."""
    if type(node) is dict and tag_of(node) == "$tuple":
        node = node["$tuple"]
    if type(node) is not list or set(map(type, node)) <= _PLAIN:
        return None
    return node


def _node_at(node: Json, path: Path) -> Json | None:
    """What stands at a path of another rank's state; None: nothing."""
    if path is None:
        return node
    parent, key = path
    outer = _node_at(node, parent)
    children = _dict_items(outer) if outer is not None else None
    if children is not None:
        return dict(children).get(key)
    items = _list_items(outer)
    inside = items is not None and type(key) is int and key < len(items)
    return items[key] if items is not None and inside else None


def _is_list_of(live: Any, length: int) -> bool:
    return type(live) in (list, tuple) and len(live) == length


def into(live: Any, value: Any) -> Any:
    """
    Puts a value into a live object that others may hold, where it has a content that can be
    replaced; otherwise returns the value.
    """
    if _is_parameter(live) and _is_tensor(value) and _tensor_into(live, value):
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
        return value.to(live.device) if _is_tensor(live) else value
    return live


def _tensor_into(live: Any, value: Any) -> bool:
    if not _is_tensor(live) or live.shape != value.shape or live.dtype != value.dtype:
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
