# SPDX-License-Identifier: Apache-2.0
"""
A restore without effect on the live state: the comparison of resume(), with new memory, and with
temporary copies of the objects that have a load_state_dict().
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _dtypes
from ._asking import asking, is_of_user
from ._decoder import Decoder
from ._engine import Engine
from ._errors import CheckpointError, FormatError
from ._into import is_tensor
from ._json_nodes import Json, Path, mentions, path_name, path_text
from ._modules import parameter_names
from ._origin import Origin, check_world
from ._quiet import Quiet
from ._reader import Memory, Reader, Stored, references
from ._restore import Restoring, fits_array, is_special
from ._rng import keep
from ._slices import Bound
from ._state_kinds import is_module, is_optimizer, is_stateful
from ._tensors import Described, describe, overlaps
from ._throwaway import Copier, UntriedError
from .adapters._layout import is_spread
from .adapters._loaders import is_loader
from .adapters._optimizers import has_own_say as optimizer_has_own_say
from .adapters._wrappers import has_own_say, unwrap

if TYPE_CHECKING:
    import torch


class TrialReader(Reader):
    """
    Notes what would be read, and to which memory. Slices reads it. Results are kept, so that they
    are available after close().
    """

    def __init__(self, engine: Engine, step: int) -> None:
        super().__init__(engine, step)
        #: what would be read to the live state, and what is only read to verify it
        self.bounds: list[Bound] = []
        #: what is read to new memory
        self.fresh: list[Bound] = []
        self._lends = False
        self._said: dict[int, Json] = {}
        self._tensors: dict[str, Stored] | None = None
        #: for each rank, the node whose store has its files
        self._nodes = [super(TrialReader, self).away(rank) for rank in range(self.world)]

    def away(self, rank: int) -> str | None:
        """As Reader has it."""
        return self._nodes[rank]

    def json(self, rank: int) -> Json:
        """As Reader has it."""
        if rank not in self._said:
            self._said[rank] = super().json(rank)
        return self._said[rank]

    def tensors(self) -> dict[str, Stored]:
        """As Reader has it."""
        if self._tensors is None:
            self._tensors = super().tensors()
        return dict(self._tensors)

    def __enter__(self) -> TrialReader:
        return self

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """In the block, bind() is for new memory."""
        before, self._lends = self._lends, True
        try:
            yield
        finally:
            self._lends = before

    def bind(self, name: str, what: Described, keep: object) -> None:
        """Notes it."""
        if what.whole is None or 0 not in what.shape:
            (self.fresh if self._lends else self.bounds).append(Bound(name, what, keep))


class _Memory(Memory):
    """Memory, on the CPU only."""

    _reader: TrialReader

    def want(self, name: str, kind: str, device: torch.device | None = None) -> Any:  # noqa: ARG002
        """Memory that the tensor will be read to."""
        with self._reader.lending():
            return super().want(name, kind)


class Load(NamedTuple):
    """A load_state_dict() that is to be tried."""

    path: Path
    #: the temporary copy, and the live object
    made: Any
    live: Any
    call: Callable[[], None]
    #: the copy has tensors without elements
    hollow: bool


class Leaf(NamedTuple):
    """A value that is decoded. `known`: `live` is the live value."""

    node: Json
    live: Any
    known: bool
    path: Path


class Trial(Restoring):
    """
    The trial of a restore. `most`: bytes of memory for the state that objects are given. `copier`:
    makes the copies. `listed`: patterns over the names of objects whose code may be called.
    """

    _reader: TrialReader
    # The state is the one that was saved. The reader may be closed when it is compared.
    _ALONE = True

    def __init__(
        self,
        reader: TrialReader,
        *,
        allow_pickle: bool,
        most: int,
        copier: Copier,
        listed: Sequence[str] = (),
    ) -> None:
        origin = Origin.of(reader)
        if origin.meta is None:
            raise FormatError(f"step {reader.step} was not written by a Checkpointer")
        check_world(reader, origin)
        super().__init__(reader, allow_pickle, origin, (), exact=False, kept=())
        self._memory: Memory = _Memory(reader, self._stored)
        self._decoder = Decoder(self._memory.get, allow_pickle=allow_pickle)
        self._budget = most
        self._copier = copier
        self._listed = listed
        #: placeholders for missing optimizer state, and the parameters whose layout they have
        self._lacking: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        #: memory is being assigned for a copy
        self._copying = False
        #: the live value that is being compared, and its path
        self._at: tuple[Path, Any] = (None, None)
        self.leaves: list[Leaf] = []
        self.loads: list[Load] = []
        #: what is not tried, and why
        self.untried: list[str] = []
        #: tensors that are only read to verify them
        self._looked: set[str] = set()

    def compare(self, state: dict[str, Any]) -> None:
        """Raises what resume() would raise before it reads."""
        assert self.origin.meta is not None
        try:
            self.match(self.origin.meta, state)
        except (TypeError, LookupError, ValueError, RecursionError) as error:
            if isinstance(error, CheckpointError) or is_of_user(error):
                raise
            raise FormatError(f"its state is malformed: {error!r}") from error
        for optimizer in self._optimizers:
            self.leaves += (Leaf(node, now, True, path) for node, now, path in optimizer.options())

    @property
    def rng(self) -> Json:
        """The random number generators of the step."""
        return self._rng()

    def reshard(self, module: torch.nn.Module) -> None:
        """Does not change the live value."""

    # Comparing.

    def _match(self, node: Json, live: Any, path: Path) -> None:
        self._at = path, live
        super()._match(node, live, path)
        self._at = (None, "elsewhere"), None

    def want(self, node: Json, path: Path) -> None:
        if not self._copying and not self._afford(node):
            self._decoder.check(node)
            self._look_at(node)
            self.untried.append(f"{path_text(path)}: it is large")
            return
        super().want(node, path)
        if not self._copying and id(node) not in self._left:
            known = self._at[0] is path
            self.leaves.append(Leaf(node, self._at[1] if known else None, known, path))

    def _match_tensor(self, stored: Stored, live: torch.Tensor, path: Path) -> None:
        """Compares also a tensor that resume() would replace, in parts."""
        if self.fits(stored, live, path_text(path)):
            self._names.setdefault(id(live), stored.name)
            if overlaps(describe(live)):
                self._replaced.add(id(live))
            self._reader.bind(stored.name, describe(live), live)

    def _match_array(self, stored: Stored, live: Any, path: Path) -> None:
        """The same for an array."""
        if fits_array(stored, live):
            what = Described(stored.dtype, stored.shape, None, 0)
            self._reader.bind(stored.name, what, live)
        else:
            super()._match_array(stored, live, path)

    def _match_special(self, tag: str, node: Json, live: Any, path: Path) -> None:
        if tag == "$module" and is_module(live) and has_own_say(live):
            self.name_tensors(parameter_names(unwrap(live), node["prefix"]))
            self._match_copy(tag, node, live, unwrap(live, hooked=True), path)
        elif tag == "$object" and is_special(live) and is_stateful(live):
            self._match_copy(tag, node, live, live, path)
        else:
            super()._match_special(tag, node, live, path)
            if tag == "$optimizer" and is_optimizer(live) and optimizer_has_own_say(live):
                self.untried.append(f"{path_text(path)}: no copy is made of such an optimizer")

    def _match_copy(self, tag: str, node: Json, live: Any, value: Any, path: Path) -> None:
        budget = self._budget
        try:
            self._check_copy(tag, node, live, path)
            made, hollow = self._copier.copy(value, listed=self._is_listed(path))
        except UntriedError as error:
            self._budget = budget
            self._leave_out({tag: node}, path, error)
            return
        self._copying = True
        try:
            with self._trying(hollow=hollow):
                super()._match_special(tag, node, made, path)
        except UntriedError as error:
            self._leave_out({tag: node}, path, error)
        finally:
            self._copying = False
        load = self._loads.pop(id(made), None)
        if load is not None:
            call = functools.partial(self._load, load)
            self.loads.append(Load(path, made, value, call, hollow))

    def _leave_out(self, node: Json, path: Path, why: object) -> None:
        self.untried.append(f"{path_text(path)}: {why}")
        self._decoder.check(node)
        self._look_at(node)

    def _is_listed(self, path: Path) -> bool:
        return any(fnmatch.fnmatchcase(path_name(path), pattern) for pattern in self._listed)

    # After reading.

    def load(self, load: Load) -> tuple[Any, Any] | None:
        """
        Calls load_state_dict() of a copy. Returns state_dict() of the live object and of the copy;
        None: the copy was stopped, and is not tried.
        """
        try:
            with self._trying(hollow=load.hollow):
                load.call()
                with asking(load.path, "state_dict"):
                    after = load.made.state_dict()
        except UntriedError as error:
            self.untried.append(f"{path_text(load.path)}: {error}")
            return None
        # On the copy this code has not communicated. The live object must not be stopped.
        put_back = keep()
        try:
            with asking(load.path, "state_dict"):
                return load.live.state_dict(), after
        finally:
            put_back()

    def value(self, leaf: Leaf) -> list[Any]:
        """Decodes a value, and returns it in a list, which is empty if that is not tried."""
        if not mentions(leaf.node, "$pickle"):
            return [self.decode(leaf.node, leaf.path)]
        why: object = "it is pickled, and try_load does not list it"
        if self._is_listed(leaf.path):
            try:
                with self._trying():
                    return [self.decode(leaf.node, leaf.path)]
            except UntriedError as error:
                why = error
        self.untried.append(f"{path_text(leaf.path)}: {why}")
        return []

    @contextlib.contextmanager
    def _trying(self, *, hollow: bool = False) -> Iterator[None]:
        """
        For a call of user code. Restores the generators. Stops it, and raises UntriedError, if it
        communicates or uses a GPU.
        """
        put_back = keep()
        quiet = Quiet()
        try:
            with quiet, warnings.catch_warnings():
                if hollow:  # torch warns of copies to tensors without elements
                    warnings.simplefilter("ignore")
                yield
        except Exception as error:
            if quiet.why is not None:
                raise UntriedError(quiet.why) from error
            if hollow and not isinstance(error, CheckpointError):
                raise UntriedError(f"its copy lacks tensors that it needs: {error!r}") from error
            raise
        finally:
            put_back()
        if quiet.why is not None:
            raise UntriedError(quiet.why)

    def _load(self, load: Callable[[], None]) -> None:
        """Matches again, to assign memory for a copy."""
        self._copying = True
        try:
            load()
        finally:
            self._copying = False

    def _check_copy(self, tag: str, node: dict[str, Json], live: Any, path: Path) -> None:
        if is_loader(live):
            raise UntriedError("it is a DataLoader, which has data and workers")
        if node.get("spread") and _is_distributed():
            raise UntriedError("it has tensors that are spread over ranks")
        if mentions(node, "$pickle") and not self._is_listed(path):
            raise UntriedError("something in it is pickled, and try_load does not list it")
        if not self._afford({tag: node}):
            raise UntriedError("it is large")

    def _afford(self, node: Json) -> bool:
        """True if the budget of memory suffices for the tensors of a node. Reduces the budget."""
        names = {self.stored(name).home for name, _ in references(node)}
        need = sum(self.stored(name).nbytes for name in names)
        if need > self._budget:
            return False
        self._budget -= need
        return True

    # Memory.

    def empty(self, stored: Stored, device: torch.device | str) -> torch.Tensor:  # noqa: ARG002
        """A placeholder for state that an optimizer would create. Its data is only verified."""
        return self._lack(stored, None)

    def empty_like(self, stored: Stored, parameter: torch.Tensor) -> torch.Tensor:
        """The same, with the layout of the parameter."""
        return self._lack(stored, parameter)

    def _lack(self, stored: Stored, like: torch.Tensor | None) -> torch.Tensor:
        import torch

        dtype = _dtypes.torch_type(stored.dtype)
        made = torch.empty(stored.shape, dtype=dtype, device="meta")
        self._lacking[id(made)] = made, like
        return made

    def bind(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        """Data for a placeholder is read, but not compared."""
        made, lies_as = self._lacking.get(id(tensor), (None, None))
        if made is None:
            super().bind(name, tensor, like)
            return
        stored, of = self.stored(name), lies_as if like is None else like
        what = Described(stored.dtype, stored.shape, None, 0)
        if of is not None and is_spread(of):
            what = describe(of)._replace(dtype=stored.dtype, strides=None)
        self._reader.bind(name, what, None)

    def fits(self, stored: Stored, live: torch.Tensor, where: str) -> bool:
        """Also for tensors without elements in a copy."""
        if not (self._copying and live.is_meta):
            return super().fits(stored, live, where)
        if (live.dtype, tuple(live.shape)) == (_dtypes.torch_type(stored.dtype), stored.shape):
            return True
        now = f"{live.dtype} {list(live.shape)}"
        self.problem("changed", f"{where} is {now}, and was {stored}", where)
        return False

    def differs(self, loaded: Any, given: torch.Tensor) -> bool:
        """Tensors without elements in a copy are not compared."""
        return not (is_tensor(loaded) and loaded.is_meta) and super().differs(loaded, given)

    def want_tensor(self, name: str, device: torch.device | None = None) -> torch.Tensor:
        """New memory for a copy. For the live state, the tensor is only verified."""
        import torch

        if self._copying:
            return super().want_tensor(name, device)
        self._look_at_tensor(self.stored(name))
        return torch.empty(0, device="cpu")

    def want_like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """The same for a distributed tensor."""
        import torch

        if self._copying or not is_spread(live):
            return self.want_tensor(name)
        what = describe(live)._replace(dtype=self.stored(name).dtype, strides=None)
        self._reader.bind(name, what, None)
        return torch.empty(0, device="cpu")

    def _look_at(self, node: Json) -> None:
        for name, _ in references(node):
            self._look_at_tensor(self.stored(name))

    def _look_at_tensor(self, what: Stored) -> None:
        if what.home in self._looked or not what.here:
            return
        self._looked.add(what.home)
        self._reader.bind(what.name, Described(what.dtype, what.shape, None, 0), None)


def _is_distributed() -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available()) and bool(dist.is_initialized())
