# SPDX-License-Identifier: Apache-2.0
"""What the restores of modules, optimizers and other objects share: memory, names, differences."""

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
    One restore: what the step has and where it goes. ModuleLoad, OptimizerLoad and ObjectLoad find
    memory with it, and note what does not fit.
    """

    #: it needs nothing of what other ranks have saved
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
        #: settings that the step does not have, and that stay
        self.stayed: set[Path] = set()
        #: the generator of a loader has
        self.generator_stayed = False
        #: whose view of the step it is
        self.origin = origin
        where = Where(reader.step, reader.engine.rank, reader.engine.world)
        self.differences = Differences(where, tolerated)
        #: nodes that have no place in the live state, and are left out
        self._left: set[int] = set()
        #: objects that get another rank's state though they may have had another on each
        self.borrowed: list[str] = []
        #: values of a rank that was not there
        self.kept: list[str] = []
        self._stored = reader.stored(origin.meta, own_buffers=origin.own_buffers)
        away = any(reader.away(rank) is not None for rank in range(reader.world))
        apart = away or reader.engine.options.node_store
        #: what other ranks may have had, or take
        self.leftovers = Leftovers(reader, origin, self._stored, self.differences, apart=apart)
        state = (origin.meta or {}).get("state")
        closed = apart or self._ALONE
        self.views = Views(reader, self._stored, origin.rank, state, closed=closed)
        #: objects of which only they know what is in them: the nodes, and where
        self.unknown: list[tuple[Json, Any, Path]] = []
        #: the ranks that had the parameters of optimizers, where another rank's are taken
        self.owners: list[int] = []
        #: optimizers whose groups have other numbers now
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
        #: names of tensors that go to memory of the state
        self._bound: set[str] = set()
        #: other objects that have been restored
        self.objects: list[Any] = []
        #: loaders that have been, where they are, and which epochs they were told
        self.begun: list[tuple[Any, Path, dict[str, int]]] = []
        #: puts generators back, again, when nothing draws from them any more
        self.late: list[Callable[[], object]] = []
        #: tensors and arrays in containers that cannot take bytes, and are replaced
        self._replaced: set[int] = set()

    def problem(self, kind: str, text: str, name: str | None = None) -> bool:
        """Notes a difference; True: it may be. See Differences."""
        return self.differences.problem(kind, text, name)

    def _problem_at(self, kind: str, path: Path, what: str = "{}") -> bool:
        return self.problem(kind, what.format(path_text(path)), path_name(path))

    def stays(self, text: str, path: Path) -> bool:
        """True, and a word of it, for a setting that the step does not have, and that stays."""
        may = not self._exact or path in self._kept_before
        if not may and not self.differences.tolerates(path_name(path)):
            return False
        self.stayed.add(path)
        self.differences.stays(text)
        return True

    @property
    def origin_rank(self) -> int:
        """The rank whose view of the step this is."""
        return self.origin.rank

    def stored(self, name: object) -> Stored:
        """What the step says of a name."""
        return self._memory.stored(name)

    def holds(self, *names: str) -> bool:
        """True if the step has tensors of all these names."""
        return all(name in self._stored for name in names)

    def reshard(self, module: torch.nn.Module) -> None:
        """Puts sharded parameters back where whole ones stand in their place."""
        reshard(module)

    def name_tensors(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Names under which optimizers know parameters."""
        for name, tensor in pairs:
            self._names.setdefault(id(tensor), name)

    def is_local(self, name: str) -> bool:
        """True for state of an optimizer that was kept as a part, as the parameter's is."""
        return name in self._local or name in self.views.local

    def refuse_parts(self, prefix: str, found: Found) -> None:
        """Notes what other ranks had a part of that suits no other one."""
        for name, rank in found.parts:
            self.problem(
                "changed",
                f"{prefix}{name} was rank {rank}'s part of tensors in a wrapper, which comes back "
                "to that rank of as many ranks only",
                prefix + name,
            )

    def note_united(self, where: str, united: United) -> None:
        """Of an optimizer that has what several ranks had, or another than this one."""
        self.owners += (rank for rank in united.ranks if rank not in self.owners)
        self.renumbered += [where] * united.renumbered

    # Memory.

    def want(self, node: Json, path: Path) -> None:
        """Memory for everything that a node without a place in the live state mentions."""
        if mentions(node, *SPECIAL_TAGS):
            if self._problem_at("unexpected", path, "the objects in {}"):
                self._left.add(id(node))
                self.leftovers.let_go(node)
            return
        self._decoder.check(node)
        for name, kind in references(node):
            self._memory.want(name, kind)

    def fits(self, stored: Stored, live: torch.Tensor, where: str) -> bool:
        """True if the live tensor can take the bytes; otherwise a problem is noted."""
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
        """The tensor of that name, or the box of it that `like` is, goes to this memory."""
        what = describe(tensor, like)
        check_place(what, name)
        self._bound.add(name)
        self._reader.bind(name, what, tensor)

    def differs(self, loaded: Any, given: torch.Tensor) -> bool:
        """True if an object has another tensor than its load_state_dict() was given."""
        return not same_bits(loaded, given)

    def check_kept(self, tensor: torch.Tensor) -> None:
        """Raises for a tensor that is to be replaced, and that an optimizer holds."""
        if id(tensor) in self._replaced:
            check_place(describe(tensor), self._names[id(tensor)])

    def empty(self, stored: Stored, device: torch.device | str) -> torch.Tensor:
        """Memory that an optimizer has not made yet."""
        import torch

        dtype = _dtypes.torch_type(stored.dtype)
        return torch.empty(stored.shape, dtype=dtype, device=device)

    def empty_like(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        """The same, which lies as the parameter does."""
        found: torch.Tensor = empty_like(parameter, _dtypes.torch_type(stored.dtype))
        return found

    def want_tensor(self, name: str, device: torch.device | None = None) -> torch.Tensor:
        """Fresh memory for a tensor."""
        fresh: torch.Tensor = self._memory.want(name, "torch", device)
        return fresh

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """Fresh memory for a tensor, spread over the ranks as the live one is."""
        return self._memory.want_like(name, live)

    def want_part(self, node: Json, value: Any) -> bool:
        """True if `value` is spread over ranks, and gets memory like its own."""
        return want_part(self._memory, node, value)

    def decode(self, node: Json, path: Path) -> Any:
        """The value of a node for what stands at `path`; only after reading."""
        with placed(path):
            return self._decoder.decode(node)
