# SPDX-License-Identifier: Apache-2.0
"""
From a user's state to what one save needs: descriptions of tensors, and JSON.

Modules and optimizers are walked once; later saves only check that nothing has changed and update
pointers. Everything else (plain values, schedulers, loaders) is encoded at every save.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _rng
from ._engine import VERSION
from ._errors import UnsupportedStateError
from ._modules import (
    Shape,
    has_own_say,
    own_memory,
    parameter_names,
    strip_wrappers,
    unwrap,
    walk,
)
from ._optimizer import OptimizerSource, parameters
from ._tensors import (
    Block,
    Described,
    Part,
    check_place,
    check_tensor,
    describe,
    describe_array,
    describe_bytes,
    encode_name,
    is_whole,
    part_of,
    pointers_of,
    versions_of,
)
from ._typed import NESTING_MAX, Encoder, Json, Path, dump, path_name, path_text

if TYPE_CHECKING:
    import torch

#: Version of the Python state in an index.
PYTHON_VERSION = 1
META_MAX = 64 << 20


class Behind(NamedTuple):
    """Tensors that are copied behind the loop, and what they looked like at save()."""

    parts: list[Part]
    versions: list[list[int]]

    def changed(self) -> bytes | None:
        """The name of a tensor that was changed in place; None if none was."""
        for part, versions in zip(self.parts, self.versions, strict=True):
            now = versions_of(part.tensors)
            if now != versions:
                return _first(part.names, now, versions)
        return None

    def moved(self) -> bytes | None:
        """The name of a tensor that has other memory; None if none has."""
        for part in self.parts:
            now = pointers_of(part.tensors)
            if now != part.pointers:
                return _first(part.names, now, part.pointers)
        return None


def _first(names: list[bytes], now: list[int], then: list[int]) -> bytes:
    return next(name for name, a, b in zip(names, now, then, strict=True) if a != b)


#: Up to so many bytes are sooner copied than watched while they are copied behind the loop.
SMALL_BYTES = 32 << 20


class Snapshot(NamedTuple):
    """What one save hands to the C library."""

    blocks: list[Block]
    aliases: list[tuple[bytes, bytes]]
    meta: bytes
    behind: Behind
    #: what must live until the eager tensors have been copied
    keep: list[Any]
    optimizers: list[torch.optim.Optimizer]
    #: why nothing is copied behind the loop
    why_eager: str
    pickled: list[str]


class Special(NamedTuple):
    """A module or an optimizer, and where it is."""

    path: Path
    value: Any


_Key = tuple[int, int, tuple[int, ...], tuple[int, ...] | None]


def _key_of(what: Described) -> _Key | None:
    """Equal for tensors that are the same memory seen in the same way; None if there is none."""
    if 0 in what.shape or what.pointer == 0:
        return None
    return what.pointer, what.dtype, what.shape, what.strides


def is_module(value: Any) -> bool:
    """True for a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_optimizer(value: Any) -> bool:
    """True for an optimizer of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def check_state(state: Any) -> None:
    """Raises for a state that is no dict of names."""
    if not isinstance(state, dict):
        raise UnsupportedStateError(
            f"the state is a {type(state).__qualname__}: it must be a dict with strings as keys"
        )
    for key in state:
        if type(key) is not str:
            raise UnsupportedStateError(
                f"the state has the key {key!r}: it must be a dict with strings as keys"
            )


def is_stateful(value: Any) -> bool:
    """True for an object that is saved by its state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


_PLAIN = {bool, bytes, complex, float, int, str, type(None)}


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)) and not set(map(type, value)) <= _PLAIN:
        yield from enumerate(value)


def find_specials(state: dict[str, Any]) -> list[Special]:
    """Finds the modules and optimizers in a state."""
    found: list[Special] = []
    _find(state, None, found)
    return found


def _find(value: Any, path: Path, found: list[Special], depth: int = 0) -> None:
    for key, item in _children(value):
        if is_module(item) or is_optimizer(item):
            found.append(Special((path, key), item))
        elif depth < NESTING_MAX:  # the encoder words the error
            _find(item, (path, key), found, depth + 1)


class _Sink:
    """
    Collects the tensors that are described anew at every save. `taken` says which names are not
    free, `known` what is stored elsewhere, `owned` which tensors only the fenced optimizers change.
    """

    def __init__(
        self,
        taken: Callable[[str], bool],
        known: dict[_Key, str],
        owned: dict[int, torch.Tensor],
    ) -> None:
        self._taken = taken
        self._known = known
        self._owned = owned
        self._owned_keys: dict[_Key | None, torch.Tensor] | None = None
        self._keys: dict[_Key, str] = {}
        self.used: set[str] = set()
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        #: (number, tensor that the optimizer changes) of those that are not eager
        self.behind: list[tuple[int, torch.Tensor]] = []
        self.keep: list[Any] = []
        #: names of torch tensors by their id
        self.ids: dict[int, str] = {}
        self.aliases: list[tuple[bytes, bytes]] = []

    def _free_name(self, path: Path) -> str:
        """A name for what stands at `path`; a name that is taken gets a number."""
        wanted = path_name(path)
        name, number = wanted, 1
        while name in self.used or self._taken(name) or name in ("", "__metadata__"):
            number += 1
            name = f"{wanted}~{number}"
        return name

    def _add(self, name: str, path: Path, what: Described, owner: torch.Tensor | None) -> None:
        if owner is not None:
            self.behind.append((len(self.names), owner))
        self.used.add(name)
        self.names.append(encode_name(name, path_text(path)))
        self.described.append(what)
        self.eager.append(owner is None)

    def _stored(self, key: _Key | None) -> str | None:
        return None if key is None else self._known.get(key) or self._keys.get(key)

    def put_tensor(self, value: torch.Tensor, path: Path) -> str:
        """Stores a tensor under the name of its path, unless its memory is stored already."""
        check_tensor(value, path_text(path))
        what = describe(value)
        key = _key_of(what)
        self.keep.append(value)
        name = self._stored(key)
        if name is None:
            name = self._free_name(path)
            self._add(name, path, what, self._owned.get(id(value)))
            if key is not None:
                self._keys[key] = name
        self.ids.setdefault(id(value), name)
        return name

    def put_array(self, value: Any, path: Path) -> str:
        """Stores a NumPy array."""
        name = self._free_name(path)
        if not is_whole(value):  # one member of a structured array
            value = value.copy()
        self.keep.append(value)
        self._add(name, path, describe_array(value), None)
        return name

    def put_bytes(self, value: bytes, path: Path) -> str:
        """Stores bytes."""
        name = self._free_name(path)
        self.keep.append(value)
        self._add(name, path, describe_bytes(value), None)
        return name

    def put_named(self, name: str, value: torch.Tensor, path: Path) -> None:
        """Stores a tensor under this name; memory that is stored already gets a second name."""
        check_tensor(value, f"{path_text(path)}, tensor {name}")
        if name in self.used or self._taken(name):
            raise name_clash(name, path)
        what = describe(value)
        key = _key_of(what)
        self.keep.append(value)
        stored = self._stored(key)
        if stored is not None:
            self.used.add(name)
            self.aliases.append((encode_name(name, path_text(path)), stored.encode()))
            return
        if self._owned_keys is None:
            self._owned_keys = {_key_of(describe(owner)): owner for owner in self._owned.values()}
        self._add(name, path, what, None if key is None else self._owned_keys.get(key))
        if key is not None:
            self._keys[key] = name


def name_clash(name: str, path: Path) -> UnsupportedStateError:
    """Two things in the state want one name."""
    return UnsupportedStateError(
        f"{path_text(path)} has a tensor {name!r}, and so has something else in the state: give it "
        "another key",
        tensor=name,
    )


class _Modules:
    """The modules of a state that have no say of their own: walked once, then compared."""

    def __init__(
        self, specials: list[Special], plain: Path, owned: dict[int, torch.Tensor]
    ) -> None:
        self.names: list[bytes] = []
        self.described: list[Described] = []
        self.eager: list[bool] = []
        self.tensors: list[torch.Tensor] = []
        self.aliases: list[tuple[bytes, bytes]] = []
        #: name of every tensor, aliases included, and where it is from
        self.used: dict[str, Path] = {}
        self.keys: dict[_Key, str] = {}
        self.ids: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        #: prefixes of the names of the modules that have a say of their own
        self.own_say: dict[int, str] = {}
        self._shapes: list[Shape] = []
        self._doubles: list[torch.Tensor] = []
        self._others: list[torch.nn.Module] = []
        for special in specials:
            if id(special.value) in self.texts:
                raise there_twice(special.path)
            prefix = _prefix(special, plain)
            if has_own_say(special.value):
                self.own_say[id(special.value)] = prefix
                self._others.append(special.value)
                self.texts[id(special.value)] = ""
                for name, tensor in parameter_names(unwrap(special.value), prefix):
                    self.ids.setdefault(id(tensor), name)
            else:
                self._add_module(special, prefix, owned)
        self._part = part_of(self.names, self.tensors)
        self._doubled = part_of([], self._doubles)
        late = [index for index, eager in enumerate(self.eager) if not eager]
        self.behind = self._part.only(late)

    def _add_module(self, special: Special, prefix: str, owned: dict[int, torch.Tensor]) -> None:
        self._shapes.append(Shape(special.value))
        names = []
        for name, tensor in walk(special.value, prefix):
            if name in self.used:
                raise name_clash(name, special.path)
            check_tensor(tensor, name)
            self.used[name] = special.path
            names.append(name)
            self._add(name, tensor, id(tensor) in owned)
        for name, tensor in parameter_names(special.value, prefix):
            self.ids.setdefault(id(tensor), name)
        self.texts[id(special.value)] = module_text(special.value, prefix, names, {})

    def _add(self, name: str, tensor: torch.Tensor, owned: bool) -> None:
        what = describe(tensor)
        check_place(what, name)
        key = _key_of(what)
        data = encode_name(name, name)
        if key is not None and key in self.keys:
            self.aliases.append((data, self.keys[key].encode()))
            self._doubles.append(tensor)
            return
        if key is not None:
            self.keys[key] = name
        self.names.append(data)
        self.described.append(what)
        self.tensors.append(tensor)
        # The optimizer changes it, and nothing else does: the fence is in time.
        self.eager.append(not owned)

    def same(self) -> bool:
        """True if every module still has the same tensors, in the same memory, lying the same."""
        return (
            all(shape.same() for shape in self._shapes)
            and self._part.same()
            and self._doubled.same()
            and all(map(has_own_say, self._others))
        )


def module_text(
    module: torch.nn.Module, prefix: str, names: list[str], extra: dict[str, Json]
) -> str:
    """A module in the Python state: which tensors are its own, what it adds that is no tensor."""
    return dump(
        {
            "$module": {
                "class": type(unwrap(module)).__qualname__,
                "prefix": prefix,
                "tensors": names,
                "extra": extra,
            }
        }
    )


class _Walked(NamedTuple):
    """What is kept between saves: the description of all modules and optimizers."""

    specials: list[Special]
    modules: _Modules
    sources: list[OptimizerSource]
    #: parameters that the optimizers own, by id
    owned: dict[int, torch.Tensor]
    #: those whose names are from tensors beside the modules
    borrowed: dict[int, str]
    block: Block
    #: what could be copied behind the loop is little, and copied before it goes on
    small: bool


class Planner:
    """Turns a state into snapshots; remembers the last one. One thread at a time."""

    def __init__(
        self, *, eager: bool = False, small_bytes: int = 0, allow_pickle: bool = False
    ) -> None:
        self._eager = eager
        self._small_bytes = small_bytes
        self._allow_pickle = allow_pickle
        self._walked: _Walked | None = None
        self._slow: Block | None = None

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """Describes the state as it is now."""
        check_state(state)
        specials = find_specials(state)
        walked = self._walked
        self._walked = None  # should anything below fail
        if walked is not None and not self._still(walked, specials):
            walked = None
        modules, owned = (walked.modules, walked.owned) if walked else self._walk_modules(specials)
        ids = {id(special.value) for special in specials}
        writer = _Writer(modules, ids, owned, self._allow_pickle)
        state_text = writer.write(state)
        if walked is not None and not _lends_the_same(walked, writer.sink):
            walked = None
        if walked is None:
            walked = self._walk_optimizers(specials, modules, owned, writer.sink)
        meta = writer.finish(state_text, walked.sources, state)
        self._walked = walked
        return self._assemble(walked, writer, meta)

    def _still(self, walked: _Walked, specials: list[Special]) -> bool:
        """True if what was walked is as it was; replaced tensors are brought up to date."""
        if len(specials) != len(walked.specials) or not all(
            new.value is old.value and new.path == old.path
            for new, old in zip(specials, walked.specials, strict=True)
        ):
            return False
        if not walked.modules.same():
            return False
        first = len(walked.modules.names)
        for source in walked.sources:
            replaced = source.refresh()
            if replaced is None:
                return False
            for number in replaced:
                walked.block.move(first + number, source.part.pointers[number])
            first += len(source.described)
        return True

    def _walk_modules(self, specials: list[Special]) -> tuple[_Modules, dict[int, torch.Tensor]]:
        owned = {}
        if not self._eager:
            owned = {
                id(parameter): parameter
                for special in specials
                if is_optimizer(special.value)
                for parameter in parameters(special.value)
                if not parameter.is_inference()
            }
        found = [special for special in specials if is_module(special.value)]
        return _Modules(found, _plain_path(found), owned), owned

    def _walk_optimizers(
        self,
        specials: list[Special],
        modules: _Modules,
        owned: dict[int, torch.Tensor],
        sink: _Sink,
    ) -> _Walked:
        known = {**sink.ids, **modules.ids}
        sources = [
            OptimizerSource(special.value, special.path, known)
            for special in specials
            if is_optimizer(special.value)
        ]
        for parameter in chain.from_iterable(source.params for source in sources):
            if id(parameter) in sink.ids:  # the optimizer holds it, so that it cannot be replaced
                check_place(describe(parameter), sink.ids[id(parameter)])
        names, described = list(modules.names), list(modules.described)
        eager = list(modules.eager)
        used = set(modules.used) | sink.used
        for source in sources:
            if clash := source.names & used:
                raise name_clash(min(clash), source.path)
            used |= source.names
            names += source.part.names
            described += source.described
            eager += [self._eager] * len(source.described)
        small = self._is_small(modules, sources, sink)
        if small:
            eager = [True] * len(eager)
        return _Walked(
            specials=specials,
            modules=modules,
            sources=sources,
            owned=owned,
            borrowed={key: name for key, name in sink.ids.items() if key in owned},
            block=Block(names, described, eager),
            small=small,
        )

    def _why_eager(self, walked: _Walked) -> str:
        if self._eager:
            return "eager=True"
        if not walked.sources:
            return "there is no optimizer in the state"
        return "it is small"

    def _is_small(self, modules: _Modules, sources: list[OptimizerSource], sink: _Sink) -> bool:
        if self._eager:
            return False
        late = [*modules.behind.tensors, *(owner for _, owner in sink.behind)]
        late += [tensor for source in sources for tensor in source.part.tensors]
        return sum(tensor.nbytes for tensor in late) <= self._small_bytes

    def _assemble(self, walked: _Walked, writer: _Writer, meta: bytes) -> Snapshot:
        sink = writer.sink
        parts: list[Part] = []
        if walked.small:
            sink.eager = [True] * len(sink.eager)
        elif not self._eager:
            parts = [walked.modules.behind, *(source.part for source in walked.sources)]
            if sink.behind:
                names = [sink.names[number] for number, _ in sink.behind]
                parts.append(part_of(names, [owner for _, owner in sink.behind]))
        parts = [part for part in parts if part.names]
        if self._slow is None or not self._slow.fits(sink.names, sink.described, sink.eager):
            self._slow = Block(sink.names, sink.described, sink.eager)
        return Snapshot(
            blocks=[block for block in (walked.block, self._slow) if block.count],
            aliases=walked.modules.aliases + sink.aliases,
            meta=meta,
            behind=Behind(parts, [versions_of(part.tensors) for part in parts]),
            keep=sink.keep,
            optimizers=[source.optimizer for source in walked.sources],
            why_eager=self._why_eager(walked),
            pickled=writer.encoder.pickled,
        )


def _plain_path(modules: list[Special]) -> Path:
    """
    The module whose tensors have no prefix: the one under "model", or else the first. The names of
    all others begin with their path.
    """
    for special in modules:
        if special.path == (None, "model"):
            return special.path
    return modules[0].path if modules else None


def _prefix(special: Special, plain: Path) -> str:
    return "" if special.path == plain else path_name(special.path) + "/"


def prefix_of(special: Special, modules: list[Special]) -> str:
    """What the names of a module's tensors begin with; `modules` are all that there are."""
    return _prefix(special, _plain_path(modules))


def _lends_the_same(walked: _Walked, sink: _Sink) -> bool:
    """True if the optimizers' parameters that are no module's have the names they had."""
    if any(sink.ids.get(key) != name for key, name in walked.borrowed.items()):
        return False
    return all(sink.used.isdisjoint(source.names) for source in walked.sources)


_TOKEN = re.compile(r'"\\u0000(\d+)"')


class _Writer:
    """Writes the Python state of one save."""

    def __init__(
        self,
        modules: _Modules,
        specials: set[int],
        owned: dict[int, torch.Tensor],
        allow_pickle: bool,
    ) -> None:
        self._specials = specials
        self.sink = _Sink(modules.used.__contains__, modules.keys, owned)
        self.encoder = Encoder(self.sink, allow_pickle=allow_pickle, other=self._other)
        self._modules = modules
        # Long texts stand in the JSON as strings that no value can give, until the end.
        self._texts: list[str] = []
        self._optimizers: dict[int, int] = {}
        self._inside = False

    def write(self, state: dict[str, Any]) -> str:
        """The JSON of the state and of the generators, with tokens in it."""
        node = {"state": self.encoder.encode(state, None, 1), "rng": _rng.capture(self.encoder)}
        return dump(node)

    def finish(self, text: str, sources: list[OptimizerSource], state: dict[str, Any]) -> bytes:
        """Puts the optimizers in, and what describes the whole."""
        for source in sources:

            def put(name: str, value: torch.Tensor, path: Path = source.path) -> None:
                self.sink.put_named(name, value, path)

            self._texts[self._optimizers[id(source.optimizer)]] = source.node(self.encoder, put)
        head = {
            "version": PYTHON_VERSION,
            "library": VERSION,
            "pickled": self.encoder.pickled,
        }
        parts = _TOKEN.split(text)
        parts[1::2] = [self._texts[int(number)] for number in parts[1::2]]
        meta = f'{{"python":{dump(head)},{"".join(parts)[1:]}'.encode()
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
            return self._modules.texts[id(module)]
        import torch

        names, extra = [], {}
        inner = unwrap(module)
        own = own_memory(inner)
        for key, value in inner.state_dict().items():
            name = prefix + strip_wrappers(key)
            if isinstance(value, torch.Tensor):
                self.sink.put_named(name, value, path)
                if value.data_ptr() in own:  # what it made for the occasion, it can take back
                    check_place(describe(value), name)
                names.append(name)
            else:
                extra[strip_wrappers(key)] = self.encoder.encode(value, (path, key), 8)
        return module_text(module, prefix, names, extra)

    def _object(self, value: Any, path: Path, depth: int) -> Json:
        if self._inside or self.encoder.wrapped:
            raise misplaced_object(value, path)
        self._inside = True
        try:
            node = self.encoder.encode(value.state_dict(), path, depth + 2)
        finally:
            self._inside = False
        return {"$object": {"class": type(value).__qualname__, "state": node}}


def there_twice(path: Path) -> UnsupportedStateError:
    """A module that has been met before."""
    return UnsupportedStateError(
        f"{path_text(path)} is in the state twice: put every module in once"
    )


def misplaced(value: Any, path: Path) -> UnsupportedStateError:
    """A module or an optimizer where none can be restored."""
    return UnsupportedStateError(
        f"{path_text(path)} is a {type(value).__qualname__} inside of the state of another object, "
        "nested too deep, or there twice: put it into the state itself or into a dict or list in "
        "it, once"
    )


def misplaced_object(value: Any, path: Path) -> UnsupportedStateError:
    """An object with a state_dict() where none can be restored."""
    return UnsupportedStateError(
        f"{path_text(path)} is a {type(value).__qualname__} inside of the state of another object, "
        "or nested too deep: put its state_dict() there, or the object into the state itself"
    )


def refuse_loader(value: Any, path: Path) -> None:
    """Raises for a loader that would start from the beginning again."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(value, data.DataLoader) and not is_stateful(value):
        raise UnsupportedStateError(
            f"{path_text(path)} is a DataLoader, which does not know its position, so that a "
            "resumed run would see other batches: use torchdata's StatefulDataLoader, or an object "
            "of your own with state_dict() and load_state_dict(), or leave it out of the state"
        )
