# SPDX-License-Identifier: Apache-2.0
"""
Restores a module. Its tensors are read in place. A custom module gets the stored state by its
load_state_dict(), and its state_dict() is then compared with it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from . import _dtypes
from ._asking import asking
from ._errors import MismatchError
from ._into import kind_of
from ._json_nodes import Json, Path, path_text
from ._modules import buffer_slots, is_extra_state, own_memory, parameter_names, walk
from ._reader import Stored
from ._tensors import check_place, describe
from ._views import unite_module
from .adapters._layout import is_spread, memory_of
from .adapters._subclasses import is_wrapped, wrapped_class, wraps
from .adapters._wrappers import (
    has_own_say,
    loads_itself,
    plain_keys,
    strip_wrappers,
    unwrap,
)

if TYPE_CHECKING:
    import torch

    from ._live import Live


class ModuleLoad:
    """The restore of one module."""

    def __init__(
        self, live: Live, node: dict[str, Json], module: torch.nn.Module, path: Path
    ) -> None:
        self._live = live
        self._node = node
        self._module = module
        self._path = path
        self._prefix: str = node["prefix"]
        self._slots: dict[str, tuple[torch.nn.Module, str]] | None = None
        #: the keys of the module's own state_dict(), and the same without names of wrappers
        self._keys: dict[str, str] = {}
        #: names in the step that differ, and the names here
        self._called: dict[str, str] = {}
        #: buffers that are replaced: the module, the name, and the new tensor
        self._placed: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def match(self) -> Callable[[], None]:
        """Compares, and returns the function to call after reading."""
        prefix = self._prefix
        self._live.reshard(self._module)
        self._live.name_tensors(parameter_names(unwrap(self._module), prefix))
        if has_own_say(self._module):
            return self._match_own()
        here = dict(walk(self._module))
        saved = self._united(here)
        for name in sorted(self._common({*saved, *self._node["extra"]}, set(here), saved)):
            if self._is_wrapped(name, here[name]) or self._is_other_kind(name, saved, here[name]):
                continue
            if self._takes_other_size(name, saved[name], here[name]):
                continue
            if self._live.fits(saved[name], here[name], prefix + name):
                self._live.bind(saved[name].name, here[name])
        self._check_ties(saved, here)
        return self._place

    def _is_wrapped(self, name: str, live: Any) -> bool:
        """True for a tensor that wraps others and is read in place."""
        node = self._node["extra"].get(name)
        if not is_wrapped(node) or not wraps(live):
            return False
        self._live.places.place(node, live, live, (self._path, name))
        return True

    def _is_other_kind(self, name: str, saved: dict[str, Stored], live: Any) -> bool:
        """True if only one of the stored and the live tensor wraps others. Notes a problem."""
        where = self._prefix + name
        if name not in saved:
            then = wrapped_class(self._node["extra"][name])
            self._live.problem("changed", f"{where} is a {kind_of(live)}, and was {then}", where)
            return True
        return wraps(live) and not self._live.fits(saved[name], live, where)

    def _saved(self, here: Collection[str]) -> dict[str, Stored]:
        """The stored tensors by the names in the live module, without names of wrappers."""
        prefix = self._prefix
        stored = {name[len(prefix) :]: self._live.stored(name) for name in self._node["tensors"]}
        saved: dict[str, Stored] = {}
        for name, what in stored.items():
            plain = strip_wrappers(name)
            # A module may have a child with the name of a wrapper's child.
            taken = name in here or plain in stored or plain in saved
            saved[name if taken else plain] = what
        return saved

    def _united(self, here: Collection[str]) -> dict[str, Stored]:
        """The same, with the tensors of other ranks that are in this module now."""
        saved = self._saved(here)
        lacking = [name for name in here if name not in saved and name not in self._node["extra"]]
        found = self._live.views.module(self._path, self._node, lacking)
        for name, rank, other in found.differing:
            where = self._prefix + name
            text = f"{where} was another value on rank {rank} than on rank {other} of the step"
            self._live.problem("changed", text, where)
        self._live.refuse_parts(self._prefix, found)
        if not found.sources:
            return saved
        self._live.leftovers.restaged = True
        self._node = unite_module(self._node, found.sources)
        return self._saved(here)

    def _common(self, saved: set[str], here: set[str], stored: dict[str, Stored]) -> set[str]:
        for name in sorted(here - saved):
            self._live.problem("missing", self._prefix + name)
        for name in sorted(saved - here):
            if name in stored and self._takes_other_size(name, stored[name], None):
                continue
            if not self._live.leftovers.may_leave():
                self._live.problem("unexpected", self._prefix + name)
                continue
            self._live.leftovers.leave(self._prefix + name)
            if name not in stored:
                self._live.leftovers.left.add(self._prefix + name)
        both = here & saved
        self._live.leftovers.taken.update(
            self._prefix + name for name in both if name not in stored
        )
        return both

    def _slot(self, name: str) -> tuple[torch.nn.Module, str] | None:
        """The module that has a buffer of that name, which may be None, and its name there."""
        if self._slots is None:
            self._slots = dict(buffer_slots(self._module))
        return self._slots.get(self._called.get(name, name))

    def _takes_other_size(self, name: str, stored: Stored, live: torch.Tensor | None) -> bool:
        """
        True for a buffer that is empty now or was when the step was saved: it is replaced by the
        stored one.
        """
        if live is not None and (tuple(live.shape) == stored.shape or is_spread(live)):
            return False
        if live is not None and live.numel() and stored.nbytes:
            return False
        slot = self._slot(name)
        if slot is None or (live is not None and describe(live).dtype != stored.dtype):
            return False
        # state_dict() may leave out a buffer, or return it empty, though it is filled.
        held = slot[0]._buffers[slot[1]]
        if held is not None and held.numel() and (live is None or stored.nbytes):
            return False
        others = live, *slot[0].parameters(), *slot[0].buffers(), *self._module.parameters()
        device = next((other.device for other in others if other is not None), None)
        self._placed.append((*slot, self._live.want_tensor(stored.name, device)))
        return True

    def _place(self) -> None:
        for module, name, tensor in self._placed:
            module._buffers[name] = tensor

    def _check_ties(self, saved: dict[str, Stored], here: dict[str, torch.Tensor]) -> None:
        """Notes a problem if two stored tensors would be read to the same memory."""
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
                    self._prefix + name,
                )

    # Custom modules.

    def _match_own(self) -> Callable[[], None]:
        inner = unwrap(self._module, hooked=True)
        own = own_memory(inner)
        with asking(self._path, "state_dict"):
            state = inner.state_dict()
        keys = self._keys = self._own_keys(inner, state)
        here = {keys[key]: value for key, value in state.items()}
        saved = self._united(here)
        extra = self._node["extra"]
        for name in sorted(self._common({*saved, *extra}, set(here), saved)):
            self._match_one(name, saved.get(name), here[name], own)

        def load() -> None:
            after = state
            if self._placed:
                self._place()
                with asking(self._path, "state_dict"):
                    after = inner.state_dict()
            keys = self._keys = self._own_keys(inner, after)
            # Tensors that wrap others were read in place. state_dict() may return copies of them.
            # The memory for extra state was chosen by its value before the restore.
            read = {
                key: value for key, value in state.items() if wraps(value) or is_extra_state(key)
            }
            new = collections.OrderedDict(
                (key, self._value(keys[key], saved, read.get(key, value)))
                for key, value in after.items()
            )
            new._metadata = getattr(after, "_metadata", None)  # type: ignore[attr-defined]
            with asking(self._path, "load_state_dict"):
                inner.load_state_dict(new)
            with asking(self._path, "state_dict"):
                after = inner.state_dict()
            self._compare(after, new)

        return load

    def _own_keys(self, inner: torch.nn.Module, state: Iterable[str]) -> dict[str, str]:
        """The keys of its state_dict(), and their names in the step."""
        names = plain_keys(inner, state, path_text(self._path))
        stored = {name[len(self._prefix) :] for name in self._node["tensors"]}
        stored.update(self._node["extra"])
        taken = set(names.values())
        for key, name in names.items():
            # Older steps lack all such names, also those of children of ordinary modules, and of
            # names that only end like one.
            for plain in (strip_wrappers(name), name.replace("_orig_mod.", "")):
                if name not in stored and plain in stored and plain not in taken:
                    names[key] = plain
                    taken.add(plain)
                    self._called[plain] = name
                    break
        return names

    def _match_one(self, name: str, stored: Stored | None, value: Any, own: set[int]) -> None:
        import torch

        live, where = self._live, self._prefix + name
        is_tensor = isinstance(value, torch.Tensor)
        if self._is_wrapped(name, value):
            return
        if is_extra_state(name):
            # Kind and size may differ: the module decides.
            if stored is None:
                live.want(self._node["extra"][name], (self._path, name))
            else:
                self._fresh(name, stored, value)
        elif (stored is not None) != is_tensor:
            live.problem("changed", f"{where} is a {kind_of(value)}", where)
        elif stored is not None and wraps(value):
            live.fits(stored, value, where)
        elif stored is None:
            live.want(self._node["extra"][name], (self._path, name))
        elif self._decides(name, stored, value):
            live.want_tensor(stored.name)
        elif not self._takes_other_size(name, stored, value) and live.fits(stored, value, where):
            if memory_of(value).data_ptr() in own:
                check_place(describe(value), where)
            live.want_like(stored.name, value)

    def _decides(self, name: str, stored: Stored, value: torch.Tensor) -> bool:
        """True for a buffer of another size whose module loads it itself."""
        if is_spread(value) or tuple(value.shape) == stored.shape:
            return False
        slot = self._slot(name)
        return slot is not None and loads_itself(slot[0])

    def _fresh(self, name: str, stored: Stored, live: Any) -> torch.Tensor:
        """Memory for load_state_dict(). Extra state of another size is given whole."""
        if is_extra_state(name) and not (is_spread(live) and tuple(live.shape) == stored.shape):
            return self._live.want_tensor(stored.name)
        return self._live.want_like(stored.name, live)

    def _value(self, name: str, saved: dict[str, Stored], live: Any) -> Any:
        if name in saved:
            return self._fresh(name, saved[name], live)
        extra = self._node["extra"]
        if name not in extra or (is_wrapped(extra[name]) and wraps(live)):
            return live
        return self._live.decode(extra[name], (self._path, name))

    def _compare(self, after: dict[str, Any], new: dict[str, Any]) -> None:
        """Notes a problem if a module that loads itself has loaded something else."""
        import torch

        for key, value in new.items():
            if not isinstance(value, torch.Tensor) or is_extra_state(key) or wraps(value):
                continue
            if self._live.differs(after.get(key), value):
                where = self._live.differences.where
                raise MismatchError(
                    f"{where}: {path_text(self._path)}: after its load_state_dict(), {key} is not "
                    f"what the checkpoint holds ({_dtypes.name_of(describe(value).dtype)} "
                    f"{list(value.shape)}): its hooks change what they are given",
                    step=where.step,
                    rank=where.rank,
                    tensor=self._prefix + self._keys[key],
                )
