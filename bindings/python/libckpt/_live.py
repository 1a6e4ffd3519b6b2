# SPDX-License-Identifier: Apache-2.0
"""Live: memory, names and differences of a restore, for modules, optimizers and objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _dtypes
from ._asking import placed
from ._decoder import Decoder
from ._differences import Differences, Where
from ._into import kind_of, same_bits
from ._json_nodes import SPECIAL_TAGS, Json, Path, mentions, path_name, path_text
from ._leftovers import Leftovers
from ._origin import Origin
from ._reader import Memory, Reader, Stored, references
from ._tensors import check_place, check_tensor, describe
from ._views import Found, United, Views
from .adapters._live_parts import want_part
from .adapters._subclass_places import Places
from .adapters._subclasses import empty_like, wraps
from .adapters._wrappers import reshard

if TYPE_CHECKING:
    import torch


class Live:
    """
    One restore. ModuleLoad, OptimizerLoad and ObjectLoad assign memory with it, and note what does
    not fit.
    """

    #: it needs nothing that other ranks have saved
    _ALONE = False

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
        self._reader = reader
        self._exact = exact
        self._kept_before = kept
        #: settings that are not in the step and keep their values
        self.stayed: set[Path] = set()
        #: the generator of a loader has kept its state
        self.generator_stayed = False
        #: the rank whose view of the step is restored
        self.origin = origin
        where = Where(reader.step, reader.engine.rank, reader.engine.world)
        self.differences = Differences(where, tolerated)
        #: nodes that have no place in the live state and are ignored
        self._left: set[int] = set()
        #: objects that get the state of another rank, and may have differed by rank
        self.borrowed: list[str] = []
        #: values that keep their state, because no rank of this number saved the step
        self.kept: list[str] = []
        self._stored = reader.stored(origin.meta, own_buffers=origin.own_buffers)
        away = any(reader.away(rank) is not None for rank in range(reader.world))
        apart = away or reader.engine.options.node_store
        #: what this rank leaves to other ranks, and what it takes of them
        self.leftovers = Leftovers(reader, origin, self._stored, self.differences, apart=apart)
        state = (origin.meta or {}).get("state")
        closed = apart or self._ALONE
        self.views = Views(reader, self._stored, origin.rank, state, closed=closed)
        #: objects whose contents are opaque: node, object and path
        self.unknown: list[tuple[Json, Any, Path]] = []
        #: the ranks from which optimizers take parameters of another stage
        self.owners: list[int] = []
        #: optimizers whose groups have other numbers than in the step
        self.renumbered: list[str] = []
        self._memory = Memory(reader, self._stored)
        self.places = Places(
            self.stored,
            self.fits,
            self.bind,
            self.differences.problem,
            whole=origin.whole,
            allow_pickle=allow_pickle,
        )
        self._decoder = Decoder(self._memory.get, allow_pickle=allow_pickle)
        self._local = set((origin.meta or {}).get("local") or ())
        self._names: dict[int, str] = {}
        #: names of tensors that are read to memory of the state
        self._bound: set[str] = set()
        #: other objects that were restored
        self.objects: list[Any] = []
        #: loaders that must begin, their paths, and their epochs
        self.begun: list[tuple[Any, Path, dict[str, int]]] = []
        #: calls that restore generators again, at the end
        self.late: list[Callable[[], object]] = []
        #: ids of tensors and arrays that are replaced, because they cannot be written to
        self._replaced: set[int] = set()

    def problem(self, kind: str, text: str, name: str | None = None) -> bool:
        """Notes a difference. True: it is tolerated. See Differences.problem()."""
        return self.differences.problem(kind, text, name)

    def _problem_at(self, kind: str, path: Path, what: str = "{}") -> bool:
        return self.problem(kind, what.format(path_text(path)), path_name(path))

    def stays(self, text: str, path: Path) -> bool:
        """True if a setting that is not in the step keeps its value. Notes that."""
        may = not self._exact or path in self._kept_before
        if not may and not self.differences.tolerates(path_name(path)):
            return False
        self.stayed.add(path)
        self.differences.stays(text)
        return True

    @property
    def origin_rank(self) -> int:
        """The rank whose view of the step is restored."""
        return self.origin.rank

    def stored(self, name: object) -> Stored:
        """The tensor of that name in the step."""
        return self._memory.stored(name)

    def holds(self, *names: str) -> bool:
        """True if the step has tensors of all these names."""
        return all(name in self._stored for name in names)

    def reshard(self, module: torch.nn.Module) -> None:
        """Reshards parameters of fully_shard() that are unsharded."""
        reshard(module)

    def name_tensors(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Adds names of parameters, for optimizers."""
        for name, tensor in pairs:
            self._names.setdefault(id(tensor), name)

    def is_local(self, name: str) -> bool:
        """True for optimizer state that was saved as a local part of the parameter's layout."""
        return name in self._local or name in self.views.local

    def refuse_parts(self, prefix: str, found: Found) -> None:
        """Notes tensors of which other ranks had parts that fit only these ranks."""
        for name, rank in found.parts:
            self.problem(
                "changed",
                f"{prefix}{name} was the part of rank {rank} of wrapped tensors, which can be "
                "restored only to that rank, on the same number of ranks",
                prefix + name,
            )

    def note_united(self, where: str, united: United) -> None:
        """Notes that an optimizer takes state of other ranks."""
        self.owners += (rank for rank in united.ranks if rank not in self.owners)
        self.renumbered += [where] * united.renumbered

    # Memory.

    def want(self, node: Json, path: Path) -> None:
        """Allocates memory for all tensors that a node mentions."""
        if mentions(node, *SPECIAL_TAGS):
            if self._problem_at("unexpected", path, "the objects in {}"):
                self._left.add(id(node))
                self.leftovers.let_go(node)
            return
        self._decoder.check(node)
        for name, kind in references(node):
            self._memory.want(name, kind)

    def fits(self, stored: Stored, live: torch.Tensor, where: str) -> bool:
        """True if the live tensor can take the bytes. Otherwise notes a problem."""
        if wraps(live):
            text = f"{where} is a {kind_of(live)}, which wraps tensors, and was {stored}"
            self.problem("changed", text, where)
            return False
        check_tensor(live, where)
        what = describe(live)
        if (what.dtype, what.full_shape) == (stored.dtype, stored.shape):
            return True
        now = f"{_dtypes.name_of(what.dtype)} {list(what.full_shape)}"
        self.problem("changed", f"{where} is {now}, and was {stored}", where)
        return False

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """The tensor of that name, or the box of it that `like` is, is read to this memory."""
        what = describe(tensor, like)
        check_place(what, name)
        self._bound.add(name)
        self._reader.bind(name, what, tensor)

    def differs(self, loaded: Any, given: torch.Tensor) -> bool:
        """True if an object has a tensor that differs from what it was given to load."""
        return not same_bits(loaded, given)

    def check_kept(self, tensor: torch.Tensor) -> None:
        """Raises for a tensor that would be replaced and that an optimizer holds."""
        if id(tensor) in self._replaced:
            check_place(describe(tensor), self._names[id(tensor)])

    def empty(self, stored: Stored, device: torch.device | str) -> torch.Tensor:
        """Memory for optimizer state that does not exist yet."""
        import torch

        dtype = _dtypes.torch_type(stored.dtype)
        return torch.empty(stored.shape, dtype=dtype, device=device)

    def empty_like(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        """The same, with the layout of the parameter."""
        found: torch.Tensor = empty_like(parameter, _dtypes.torch_type(stored.dtype))
        return found

    def want_tensor(self, name: str, device: torch.device | None = None) -> torch.Tensor:
        """New memory for a tensor."""
        fresh: torch.Tensor = self._memory.want(name, "torch", device)
        return fresh

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """New memory for a tensor, distributed over the ranks like the live one."""
        return self._memory.want_like(name, live)

    def want_part(self, node: Json, value: Any) -> bool:
        """True if `value` is distributed over ranks. Then memory of its layout is allocated."""
        return want_part(self._memory, node, value)

    def decode(self, node: Json, path: Path) -> Any:
        """Decodes the value of a node for `path`. Only after reading."""
        with placed(path):
            return self._decoder.decode(node)
