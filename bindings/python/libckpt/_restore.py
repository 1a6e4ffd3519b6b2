# SPDX-License-Identifier: Apache-2.0
"""
Restores a step into a live state, in place.

First the step is compared with the live state, and every tensor is assigned memory. Nothing changes
so far. Then the library reads the tensors. Then all other values are restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _dtypes, _rng
from ._asking import is_of_user
from ._differences import keeps_new_keys
from ._errors import CheckpointError, FormatError
from ._into import (
    generators_in,
    into,
    is_array,
    is_generator,
    is_tensor,
    keeper,
    kind_of,
)
from ._json_nodes import SPECIAL_TAGS, Json, Path, path_name, path_text, tag_of
from ._live import Live
from ._module_load import ModuleLoad
from ._modules import parameter_names
from ._object_load import ObjectLoad, check_objects
from ._optimizer_load import OptimizerLoad
from ._origin import Origin, check_world
from ._others import warn_of_ranks
from ._reader import Reader, Stored, references
from ._save import Progress
from ._state_kinds import Special, find_specials, is_module, is_stateful, specials_in
from ._tensors import describe, describe_array, is_whole, overlaps
from ._views import dict_items, is_list_of, list_items
from .adapters._buffers import layout_of, said_of
from .adapters._loaders import begin
from .adapters._subclasses import is_wrapped, wraps
from .adapters._wrappers import unwrap

if TYPE_CHECKING:
    import torch


_PLAIN = {bool, bytes, complex, float, int, str, type(None)}


class Restored(NamedTuple):
    """The result of a restore."""

    #: paths of settings that are not in the step and have kept their values
    stayed: set[Path]
    #: step and state of this rank have the same contents
    complete: bool


def restore(
    reader: Reader,
    state: dict[str, Any],
    *,
    allow_pickle: bool,
    progress: Callable[[Progress], object] | None,
    tolerated: Sequence[str] = (),
    exact: bool = False,
    kept: Collection[Path] = (),
) -> Restored:
    """
    Restores `state` from the step. `tolerated`: patterns over names that may be new or gone.
    `exact`: the state was saved or resumed before, so settings that are not in the step are
    removed, except those in `kept`.
    """
    # With takers, the ranks together must take all of the step. Without, this rank alone must, or
    # each rank takes what it saved.
    takers = reader.engine.takers
    if takers is not None:
        takers.begin(reader.number)
    origin = Origin.of(reader)
    meta = origin.meta
    if meta is None:
        raise FormatError(
            f"step {reader.step} was not written by a Checkpointer, so there is no state to "
            "resume: libckpt.load() returns its tensors, and libckpt.dcp.StorageReader loads what "
            "dcp.save() has saved",
            step=reader.step,
        )
    check_world(reader, origin)
    if origin.whole and (said := said_of(meta)).names:
        modules = (one.value for one in find_specials(state) if is_module(one.value))
        origin = origin._replace(own_buffers=said.layout == layout_of(modules))
    live = Restoring(reader, allow_pickle, origin, tolerated, exact=exact, kept=kept)
    try:
        live.match(meta, state, shared=takers is not None)
        live.leftovers.tell(takers)
    except (TypeError, LookupError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError) or is_of_user(error):
            raise
        raise FormatError(
            f"step {reader.step}: its state is malformed: {error!r}", step=reader.step
        ) from error
    reader.read(progress)
    if takers is not None:
        live.leftovers.check_lost(takers)
    live.apply(meta, state)
    live.warn()
    return Restored(live.stayed, origin.whole and not (tolerated or live.has_more))


class Restoring(Live):
    """match() compares and assigns memory. apply() restores all values that are not tensors."""

    def __init__(
        self,
        reader: Reader,
        allow_pickle: bool,
        origin: Origin,
        tolerated: Sequence[str],
        *,
        exact: bool,
        kept: Collection[Path],
    ) -> None:
        super().__init__(reader, allow_pickle, origin, tolerated, exact=exact, kept=kept)
        #: (id of a dict, key) of settings that are not in the step and keep their values
        self._staying: set[tuple[int, str]] = set()
        #: modules that are not in the step
        self._new: list[Special] = []
        self._optimizers: list[OptimizerLoad] = []
        self._loads: dict[int, Callable[[], None]] = {}

    @property
    def has_more(self) -> bool:
        """True if the state keeps something that is not in the step."""
        return bool(self.stayed or self.kept or self.generator_stayed)

    def match(self, meta: dict[str, Json], state: dict[str, Any], *, shared: bool = False) -> None:
        """
        Compares, and raises MismatchError with all differences. `shared`: there are other ranks
        that may take what this one leaves.
        """
        self.leftovers.begin(state, shared=shared)
        children = dict_items(meta["state"])
        if children is None:
            raise FormatError(f"step {self._reader.step}: its state is not a dict")
        self._match_keys(dict(children), state, None)
        for path, module in self._new:
            if is_module(module):
                self.name_tensors(parameter_names(unwrap(module), f"{path_name(path)}/"))
        for optimizer in self._optimizers:
            optimizer.match(self._names)
        for name, kind in references(self._rng()):
            self._memory.want(name, kind)
        check_objects(self, self._match_object)
        self.differences.raise_problems()

    def _rng(self) -> Json:
        return {} if self.origin.own is None else self.origin.own["rng"]

    # Comparing.

    def _match_keys(self, children: dict[str, Json], state: dict[str, Any], path: Path) -> None:
        for key, node in children.items():
            if key in state:
                self._match(node, state[key], (path, key))
            elif self._problem_at("unexpected", (path, key)):
                self.leftovers.let_go(node)
        for key, value in state.items():
            if key not in children:
                self._missing(value, (path, key))

    def _missing(self, value: Any, path: Path) -> None:
        """Notes a value that is not in the step. Optimizers may have its parameters."""
        if self._problem_at("missing", path):
            self._new += specials_in(value, path)

    def _match(self, node: Json, live: Any, path: Path) -> None:
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            self._match_special(tag, node[tag], live, path)
        elif is_special(live):
            self.problem("changed", f"{path_text(path)} is a {kind_of(live)}, and was plain data")
        elif tag == "$tensor" and is_tensor(live):
            self._match_tensor(self._memory.stored(node[tag]), live, path)
        elif is_wrapped(node) and wraps(live):
            self.places.place(node, live, live, path)
        elif tag == "$ndarray" and is_array(live):
            if type(node[tag]) is dict:
                self._match_array(self._memory.stored(node[tag].get("$tensor")), live, path)
        elif (children := dict_items(node)) is not None and isinstance(live, dict):
            self._match_dict(dict(children), live, path)
        elif (items := list_items(node)) is not None and is_list_of(live, len(items)):
            for index, (item, value) in enumerate(zip(items, live, strict=True)):
                self._match(item, value, (path, index))
        else:
            if _holds_memory(live):
                self.problem("changed", f"{path_text(path)} has tensors in another arrangement")
            self.want(node, path)

    def _match_dict(self, children: dict[Any, Json], live: dict[Any, Any], path: Path) -> None:
        for key, node in children.items():
            if key in live:
                self._match(node, live[key], (path, key))
            elif live and any(references(node)):
                if self._problem_at("unexpected", (path, key)):
                    self._left.add(id(node))
                    self.leftovers.let_go(node)
            else:
                self.want(node, (path, key))
        for key, value in live.items():
            if key in children:
                continue
            if _holds_memory(value):
                self._missing(value, (path, key))
            elif keeps_new_keys(live) and self.stays(path_text((path, key)), (path, key)):
                self._staying.add((id(live), key))

    def _match_tensor(self, stored: Stored, live: torch.Tensor, path: Path) -> None:
        if not self.fits(stored, live, path_text(path)):
            return
        self._names.setdefault(id(live), stored.name)
        if overlaps(describe(live)):
            self._memory.want(stored.name, "torch", live.device)
            self._replaced.add(id(live))
        else:
            self._memory.use(stored.name, live)

    def _match_array(self, stored: Stored, live: Any, path: Path) -> None:
        if not fits_array(stored, live):
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
            self._loads[id(live)] = ModuleLoad(self, node, live, path).match()
        elif tag == "$optimizer" and isinstance(live, torch.optim.Optimizer):
            optimizer = OptimizerLoad(self, node, live, path)
            self._optimizers.append(optimizer)
            self._loads[id(live)] = optimizer.apply
        elif tag == "$object" and is_special(live) and is_stateful(live):
            self._match_object(node, live, path)
        else:
            self.problem(
                "changed", f"{path_text(path)} is a {kind_of(live)}, and was {node['class']}"
            )

    def _match_object(self, node: Json, live: Any, path: Path) -> None:
        load = ObjectLoad(self, node, live, path)
        if load.match():
            self._loads[id(live)] = load.apply

    # Restoring.

    def apply(self, meta: dict[str, Json], state: dict[str, Any]) -> None:
        """Restores all other values, when the tensors were read. Generators come last."""
        for key, node in dict_items(meta["state"]) or ():
            if key in state:
                state[key] = self._apply(node, state[key], (None, key))
        # A loader may draw from a generator of the state when it begins. Put these back after it.
        held = {id(one): keeper(one) for value in self.objects for one in generators_in(value)}
        for loader, path, epochs in self.begun:
            begin(loader, path, epochs)
        for put_back in held.values():
            put_back()
        for put_back in self.late:
            put_back()
        if self.origin.own is None:
            self._seed()
        else:
            _rng.restore(self._rng(), self._decoder)

    def _seed(self) -> None:
        """No rank of this number saved the step: seeds the generators by run, step and rank."""
        reader, rank = self._reader, self._reader.engine.rank
        source = f"{reader.engine.run_id()}/{reader.generation}/{reader.step}/{rank}"
        _rng.seed_all(int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big"))

    def warn(self) -> None:
        """Warns of differences, also those that another number of ranks causes."""
        self.differences.warn()
        if self.origin.whole and self.origin.own_buffers:
            return
        warn_of_ranks(
            self._reader,
            self.origin,
            self._stored,
            kept=self.kept,
            borrowed=self.borrowed,
            bound=self._bound,
        )

    def _apply(self, node: Json, live: Any, path: Path) -> Any:
        if id(node) in self._left:
            return live
        tag = tag_of(node) if type(node) is dict else None
        if tag in SPECIAL_TAGS:
            load = self._loads.pop(id(live), None)
            if load is not None:
                load()
            return live
        if is_wrapped(node) and wraps(live):
            return live
        if (tag == "$tensor" and is_tensor(live)) or (
            tag == "$ndarray" and is_array(live) and type(node[tag]) is dict
        ):
            return self.decode(node, path) if id(live) in self._replaced else live
        children = dict_items(node)
        if children is not None and isinstance(live, dict):
            new = {
                key: self._apply(item, live[key], (path, key))
                if key in live
                else self.decode(item, (path, key))
                for key, item in children
                if key in live or id(item) not in self._left
            }
            for key, value in live.items():
                if key not in new and ((id(live), key) in self._staying or _holds_memory(value)):
                    new[key] = value
            live.clear()
            live.update(new)
            return live
        items = list_items(node)
        if items is not None and is_list_of(live, len(items)):
            values = [
                self._apply(item, old, (path, index))
                for index, (item, old) in enumerate(zip(items, live, strict=True))
            ]
            if type(live) is tuple:
                return tuple(values)
            live[:] = values
            return live
        value = self.decode(node, path)
        self.differences.compare(live, value, path)
        if is_generator(live):
            self.late.append(lambda: into(live, value))
        return into(live, value)


def is_special(value: Any) -> bool:
    """True for modules, and objects that are saved by their state_dict()."""
    if type(value) in _PLAIN or isinstance(value, (dict, list, tuple)):
        return False
    return is_module(value) or is_stateful(value)


def _holds_memory(value: Any) -> bool:
    """True if a value has tensors, arrays or objects in it, which are restored in place."""
    if isinstance(value, dict):
        return any(map(_holds_memory, value.values()))
    if isinstance(value, (list, tuple)):
        return not set(map(type, value)) <= _PLAIN and any(map(_holds_memory, value))
    return is_tensor(value) or is_array(value) or is_special(value)


def fits_array(stored: Stored, live: Any) -> bool:
    """True if an array has the stored dtype and shape."""
    number = _dtypes.numpy_numbers().get(live.dtype)
    return bool((number, live.shape) == (stored.dtype, stored.shape))
