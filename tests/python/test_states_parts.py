# SPDX-License-Identifier: Apache-2.0
"""
Optimizers of other libraries, tensors that wrap others, loaders: what was saved comes back. And
what is said of the rest, and when.
"""

import collections
import copy
import enum
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same
from test_state import names_of
from test_states import saved_and_live
from torch import nn
from torch.utils.data.distributed import DistributedSampler

import libckpt

# Optimizers that are not what torch makes of them.


class Wrapper(torch.optim.Optimizer):
    """Without Optimizer.__init__(); changes parameters before the one inside does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self._optimizer_step_pre_hooks: Any = collections.OrderedDict()
        self.state: Any = collections.defaultdict(dict)

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.5)
        self.inner.step()

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class Flat(torch.optim.AdamW):
    """Its state by names, in one dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.names = dict(model.named_parameters())

    def state_dict(self) -> Any:
        return {
            f"state.{name}.{role}": value
            for name, one in self.names.items()
            for role, value in self.state[one].items()
        }

    def load_state_dict(self, state: Any) -> None:
        for key, value in state.items():
            name, _, role = key.removeprefix("state.").rpartition(".")
            self.state[self.names[name]][role] = value


class Switching(torch.optim.AdamW):
    """As schedule-free ones: changes parameters between the steps."""

    def _move(self, factor: float) -> None:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(factor)

    def eval(self) -> None:
        self._move(2)

    def train(self) -> None:
        self._move(0.5)


KINDS: list[Any] = [
    lambda model: Wrapper(torch.optim.AdamW(model.parameters(), lr=0.1)),
    Flat,
    lambda model: Switching(model.parameters(), lr=0.1),
]


@pytest.mark.parametrize("make", KINDS)
def test_optimizers_of_other_libraries(
    opened: Any, store: Path, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A step right behind save() tears nothing, and what comes back is what was there then."""

    def build(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Linear(300, 300)
        return {"model": model, "optimizer": make(model)}

    def step(state: dict[str, Any]) -> None:
        for parameter in state["model"].parameters():
            parameter.grad = torch.ones_like(parameter)
        state["optimizer"].step()

    state = build(1)
    step(state)
    ckpt = opened(state)
    with caplog.at_level("INFO", "libckpt"):
        save = ckpt.save(1)
    then = {name: one.clone() for name, one in state["model"].state_dict().items()}
    moments = [dict(entry) for entry in _moments(state)]
    moments = [{role: one.clone() for role, one in entry.items()} for entry in moments]
    if isinstance(state["optimizer"], Switching):
        state["optimizer"].eval()
        state["optimizer"].train()
    step(state)
    save.wait()
    ckpt.close()
    assert "eval" not in vars(state["optimizer"])
    unknown = isinstance(state["optimizer"], Wrapper)
    assert ("runs no hooks of torch" in caplog.text) == unknown
    live = build(2)
    opened(live).resume()
    assert_same(dict(live["model"].state_dict()), then)
    assert_same(_moments(live), moments)


def test_two_checkpointers_of_one_optimizer_that_switches(opened: Any, tmp_path: Path) -> None:
    model = nn.Linear(300, 300)
    optimizer = Switching(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer}
    several = [
        libckpt.Checkpointer(tmp_path / name, state, pool_bytes=1 << 20, eager=False)
        for name in "abc"
    ]
    for step, last in enumerate((several, several[1:], several[2:])):
        saves = [one.save(step + 1) for one in last]
        # All of them copy behind the loop.
        assert len(vars(optimizer)["eval"].runs) == len(last)
        optimizer.eval()
        for save in saves:
            save.wait()
        last[0].close()
    assert "eval" not in vars(optimizer)


@pytest.mark.parametrize("how", ["instance", "static", "copied"])
def test_methods_that_cannot_be_guarded(opened: Any, how: str) -> None:
    """What they change is copied before save() returns."""

    class Other(Switching):
        if how == "static":
            eval = staticmethod(lambda: None)  # type: ignore[assignment]
        if how == "copied":

            def __getstate__(self) -> Any:
                return dict(vars(self))

    model = nn.Linear(300, 300)
    optimizer = Other(model.parameters(), lr=0.1)
    if how == "instance":
        optimizer.eval = lambda: None  # type: ignore[method-assign]
    # Another optimizer, which is fenced, has a parameter of it.
    second = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    second.step()
    then = {name: one.clone() for name, one in model.state_dict().items()}
    moments = copy.deepcopy([*optimizer.state.values(), *second.state.values()])
    state = {"model": model, "optimizer": optimizer, "second": second}
    with opened(state) as ckpt:
        save = ckpt.save(1)
        assert isinstance(vars(optimizer).get("train"), type(None))
        with torch.no_grad():
            for one in optimizer.state.values():
                one["exp_avg"].zero_()
            optimizer.train()
        save.wait()
        ckpt.resume()
    assert_same(dict(model.state_dict()), then)
    assert_same([*optimizer.state.values(), *second.state.values()], moments)


def _moments(state: dict[str, Any]) -> list[dict[str, Any]]:
    optimizer = getattr(state["optimizer"], "inner", state["optimizer"])
    return [optimizer.state[one] for one in state["model"].parameters()]


# Tensors that wrap others.


class Coded(torch.Tensor):
    """Codes, and scales of blocks, as quantized moments have them."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, block: int) -> "Coded":
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, codes.shape, dtype=torch.float32, device=codes.device
        )

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, block: int) -> None:
        self.codes, self.scale, self.block = codes, scale, block

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], [self.block, self.shape]

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> "Coded":
        assert context[1] == size
        return cls(inner["codes"], inner["scale"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale, args[0].block)
        if func is torch.ops.aten.view.default and args[0].shape == torch.Size(args[1]):
            return cls(args[0].codes, args[0].scale, args[0].block)
        if func is torch.ops.aten.copy_.default:
            args[0].codes.copy_(args[1].codes)
            args[0].scale.copy_(args[1].scale)
            return args[0]
        raise NotImplementedError(str(func))


def coded(*shape: int, block: int = 4) -> Coded:
    codes = torch.randint(0, 255, shape, dtype=torch.uint8)
    return Coded(codes, torch.rand(max(1, codes.numel() // block)), block)


class Quantized(nn.Module):
    def __init__(self, hooked: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(coded(2, 4), requires_grad=False)
        self.bias = nn.Parameter(torch.rand(2))
        if hooked:
            self._register_state_dict_hook(lambda *_: None)


@pytest.mark.parametrize("hooked", [False, True])
def test_tensors_that_wrap_others(opened: Any, store: Path, hooked: bool) -> None:
    def make(stepped: bool = False) -> dict[str, Any]:
        model = Quantized(hooked)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if stepped:
            optimizer.state[model.weight] = {"exp_avg": coded(2, 4), "step": torch.tensor(3.0)}
        return {"model": model, "optimizer": optimizer, "plain": [coded(4)], "n": 1}

    def inside(value: Coded) -> list[Any]:
        assert type(value) is Coded
        return [value.codes, value.scale, value.block]

    then, live = make(stepped=True), make()
    model = live["model"]
    kept = [model.weight.codes, live["plain"][0].scale]
    assert saved_and_live(opened, then, live) == ""
    assert kept[0] is model.weight.codes
    assert kept[1] is live["plain"][0].scale
    assert_same(inside(model.weight.data), inside(then["model"].weight.data))
    assert_same(inside(live["plain"][0]), inside(then["plain"][0]))
    entry = live["optimizer"].state[model.weight]
    old = then["optimizer"].state[then["model"].weight]
    assert_same(inside(entry["exp_avg"]), inside(old["exp_avg"]))
    assert entry["step"] == 3
    assert {"weight/codes", "weight/scale", "optimizer/state/weight/exp_avg/codes"} <= set(
        names_of(store)
    )
    held = libckpt.load(store)
    assert_same(inside(held["optimizer"]["state"]["weight"]["exp_avg"]), inside(old["exp_avg"]))
    # Of another size, and of another class.
    model.weight = nn.Parameter(coded(3, 4), requires_grad=False)
    live["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(libckpt.MismatchError, match=r"Coded \[3, 4\], and was a .*Coded \[2, 4\]"):
        saved_and_live(opened, then, live)
    model.weight = nn.Parameter(coded(2, 4), requires_grad=False)
    live["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    live["plain"] = [torch.rand(4)]
    with pytest.raises(libckpt.MismatchError, match="another arrangement"):
        saved_and_live(opened, then, live)


class Kind(enum.Enum):
    ONE = 1


class Saying(Coded):
    """What it says of itself is what `block` is."""

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], self.block

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> "Saying":
        return cls(inner["codes"], inner["scale"], context)


def saying(context: Any) -> Saying:
    return Saying(torch.ones(1, 4, dtype=torch.uint8), torch.ones(1), context)


def with_moment(value: Any) -> dict[str, Any]:
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight] = {} if value is None else {"buf": value}
    return {"model": model, "optimizer": optimizer}


class Frozen(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)


def test_what_a_wrapper_says_of_itself_is_restored(opened: Any) -> None:
    live = with_moment(saying(9.0))
    saved_and_live(opened, with_moment(saying(0.5)), live)
    assert live["optimizer"].state[live["model"].weight]["buf"].block == 0.5
    for make in (lambda one: {"x": one}, lambda one: {"model": Frozen(one)}):
        with pytest.raises(libckpt.MismatchError, match=r"is 9\.0, and was 0\.5"):
            saved_and_live(opened, make(saying(0.5)), make(saying(9.0)))


def test_the_order_of_what_a_wrapper_says_is_not_compared(opened: Any) -> None:
    live = {"x": saying({"b": 2, "a": 1})}
    assert saved_and_live(opened, {"x": saying({"a": 1, "b": 2})}, live) == ""
    assert live["x"].block == {"a": 1, "b": 2}


def test_a_plain_moment_of_a_parameter_that_wraps(opened: Any) -> None:
    def make(moment: Any) -> dict[str, Any]:
        model = Frozen(saying(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.state[model.weight] = {} if moment is None else {"buf": moment}
        return {"model": model, "optimizer": optimizer}

    then, live = make(torch.rand(1, 4)), make(None)
    assert saved_and_live(opened, then, live) == ""
    assert_same(*(next(iter(one["optimizer"].state.values()))["buf"] for one in (live, then)))


def test_a_moment_that_wraps_from_now_on(opened: Any, store: Path) -> None:
    state = with_moment(torch.rand(1, 4))
    with opened(state) as ckpt:
        ckpt.save(1).wait()
        state["optimizer"].state[state["model"].weight]["buf"] = saying(1)
        ckpt.save(2).wait()
    assert "optimizer/state/weight/buf/codes" in names_of(store, 2)


class Cloning(nn.Module):
    """It gives copies, and takes what it is given."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(coded(2, 4), requires_grad=False)
        self.register_buffer("rows", torch.rand(rows))

    def state_dict(self, *_: Any, **__: Any) -> Any:
        weight = self.weight
        copied = Coded(weight.codes.clone(), weight.scale.clone(), weight.block)
        return {"weight": copied, "rows": self.rows.clone()}

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> None:  # type: ignore[override]
        self.weight.codes.copy_(state["weight"].codes)
        self.weight.scale.copy_(state["weight"].scale)
        self.rows.copy_(state["rows"])


def test_copies_of_what_wraps_are_handed_over_with_a_buffer_that_has_grown(opened: Any) -> None:
    then, live = Cloning(3), Cloning(0)
    assert saved_and_live(opened, {"model": then}, {"model": live}) == ""
    assert torch.equal(live.rows, then.rows)
    assert_same([live.weight.codes, live.weight.scale], [then.weight.codes, then.weight.scale])


def of_a_function() -> Any:
    class Local(Saying):
        pass

    return Local(torch.ones(4, dtype=torch.uint8), torch.ones(1), 1)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (saying(Kind.ONE), r"cannot be stored: .*Kind"),
        (saying(torch.ones(1)), "holds tensors"),
        (saying(b"x" * 5000), "bytes that are stored as a tensor"),
        (of_a_function(), "no class is found"),
    ],
    ids=["opaque", "tensor", "bytes", "class"],
)
def test_wrappers_that_could_not_come_back_are_refused(opened: Any, value: Any, why: str) -> None:
    for state in ({"x": [value]}, with_moment(value), {"model": Frozen(value)}):
        with (
            pytest.raises(libckpt.UnsupportedStateError, match=why),
            opened(state) as ckpt,
        ):
            ckpt.save(1)


def test_what_a_wrapper_says_may_be_pickled(opened: Any, store: Path) -> None:
    live = with_moment(saying(1))
    for one, made in ((with_moment(saying(Kind.ONE)), True), (live, False)):
        with libckpt.Checkpointer(store, one, pool_bytes=1 << 20, allow_pickle=True) as ckpt:
            if made:
                ckpt.save(1).wait()
            else:
                ckpt.resume()
    assert live["optimizer"].state[live["model"].weight]["buf"].block is Kind.ONE
    with pytest.raises(libckpt.UnsupportedError, match="pickled"):
        opened(with_moment(None)).resume()


def test_a_wrapper_in_the_place_of_a_plain_tensor_is_no_malformed_step(opened: Any) -> None:
    plain = torch.rand(1, 4)
    for make in (lambda one: {"x": one}, lambda one: {"model": Frozen(one)}, with_moment):
        with pytest.raises(
            libckpt.MismatchError, match=r"Saying, which wraps tensors, and was F32"
        ):
            saved_and_live(opened, make(plain), make(saying(1)))
    with pytest.raises(libckpt.MismatchError, match=r"weight is a Parameter, and was a .*Saying"):
        saved_and_live(opened, {"model": Frozen(saying(1))}, {"model": Frozen(plain)})
    live = with_moment(plain)
    saved_and_live(opened, with_moment(saying(1)), live)
    assert type(live["optimizer"].state[live["model"].weight]["buf"]) is Saying


def test_wrappers_that_are_one_now_and_were_two(opened: Any) -> None:
    one = saying(1)
    with pytest.raises(libckpt.MismatchError, match="one tensor with another"):
        saved_and_live(opened, {"x": [saying(1), saying(1)]}, {"x": [one, one]})


def test_what_cannot_be_decoded_changes_nothing(opened: Any, store: Path) -> None:
    saved = {"model": nn.Linear(2, 2), "x": {"y": Kind.ONE}, "z": 1}
    with libckpt.Checkpointer(store, saved, pool_bytes=1 << 20, allow_pickle=True) as ckpt:
        ckpt.save(1).wait()
    live = {"model": nn.Linear(2, 2), "x": {"y": None}, "z": 2}
    kept = live["model"].weight.clone()
    with pytest.raises(libckpt.UnsupportedError, match="pickled"):
        opened(live).resume()
    assert torch.equal(live["model"].weight, kept)
    assert live["z"] == 2


# Generators come back last.


class Begins(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """As torchdata's: an iteration draws when it begins, which is late after a restore."""

    def __init__(self, generator: torch.Generator | None, steps: list[str] | None = None) -> None:
        super().__init__(list(range(8)), generator=generator)  # type: ignore[arg-type]
        self.begun: tuple[torch.Tensor, int] | None = None
        self.then: dict[str, Any] = {}

    def start(self) -> tuple[torch.Tensor, int]:
        # The order of the items, and a seed for workers.
        state = torch.Generator()
        state.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=self.generator)))
        found = self.then.pop("order", None)
        order = torch.randperm(8, generator=state) if found is None else found
        return order, self.then.pop("at", 0)

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        order, at = self.begun if self.begun is not None else self.start()
        for number in range(at, 8):
            self.begun = order, number + 1
            yield int(order[number])
        self.begun = None

    def state_dict(self) -> dict[str, Any]:
        if self.begun is None:
            self.begun = self.start()
        return {"order": self.begun[0].clone(), "at": self.begun[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun, self.then = None, dict(state)


@pytest.mark.parametrize("own", ["", "given", "in the state"])
def test_a_loader_that_draws_when_it_begins(opened: Any, own: str) -> None:
    """Batches, dropout and the next epoch are those of a run that was never stopped."""

    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(7 * seed) if own else None
        state: dict[str, Any] = {"loader": Begins(generator)}
        # Before the loader and behind it.
        return {"g": generator, **state, "z": generator} if own == "in the state" else state

    def epochs(state: dict[str, Any], at: int) -> Iterator[tuple[int, float]]:
        for _ in range(3):
            for item in state["loader"]:
                yield item, torch.rand(1).item()

    for at in (3, 8, 10):
        whole = make(1)
        run = epochs(whole, 0)
        for _ in range(at):
            next(run)
        ckpt = opened(whole, new_start=True)
        ckpt.save(1).wait()
        ckpt.close()
        rest = [next(run) for _ in range(12)]
        again = make(2)
        ckpt = opened(again)
        ckpt.resume()
        ckpt.close()
        run = epochs(again, at)
        assert [next(run) for _ in range(12)] == rest, at


class Rng:
    """An object that keeps a generator."""

    def __init__(self, generator: Any, deep: bool) -> None:
        self.held = {"inner": generator} if deep else generator
        self.generator = [generator]

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.generator[0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        one, then = self.generator[0], state["now"]
        if isinstance(one, torch.Generator):
            one.set_state(then.get_state())
        elif isinstance(one, random.Random):
            one.setstate(then.getstate())
        elif isinstance(one, numpy.random.Generator):
            one.bit_generator.state = then.bit_generator.state
        else:
            one.set_state(then.get_state(legacy=False))


class Draws(Begins):
    """Draws from a generator that another object has."""

    def __init__(self, other: Any) -> None:
        super().__init__(None)
        self.other = other

    def start(self) -> tuple[torch.Tensor, int]:
        draw(self.other)
        return super().start()


def draw(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return generator.random()


def in_per_rank(generator: Any) -> Any:
    return libckpt.PerRank(generator)


@pytest.mark.parametrize("hold", [in_per_rank, lambda g: Rng(g, True), lambda g: Rng(g, False)])
@pytest.mark.parametrize(
    "kind",
    [
        lambda seed: torch.Generator().manual_seed(seed),
        random.Random,
        numpy.random.default_rng,
        numpy.random.RandomState,
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_generators_in_objects_come_back_last(
    opened: Any, hold: Any, kind: Any, first: bool
) -> None:
    def make(seed: int) -> tuple[dict[str, Any], Any]:
        generator = kind(seed)
        parts = [("loader", Draws(generator)), ("object", hold(generator))]
        return dict(reversed(parts) if first else parts), generator

    then, old = make(1)
    next(iter(then["loader"]))
    live, new = make(2)
    saved_and_live(opened, then, live)
    assert [draw(new) for _ in range(3)] == [draw(old) for _ in range(3)]


def test_a_generator_that_a_loader_has_lost_or_got_is_named(opened: Any) -> None:
    generator = torch.Generator()
    said = saved_and_live(opened, {"x": Begins(generator)}, {"x": Begins(None)})
    assert "state['x'] was given a generator, and now has none" in said
    said = saved_and_live(opened, {"x": Begins(None)}, {"x": Begins(generator)})
    assert "the generator of state['x'] is not in the checkpoint" in said
    assert saved_and_live(opened, {"x": Begins(generator)}, {"x": Begins(generator)}) == ""


class Resumes(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """
    As torchdata's: it goes on behind what it has given, in an iteration of torch's own that begins
    when it is asked for its state, or in the loop.
    """

    def __init__(self, workers: int = 0, **options: Any) -> None:
        super().__init__(list(range(40)), num_workers=workers, **options)  # type: ignore[arg-type]
        self.running: Iterator[Any] | None = None
        self.begun = False
        self.given = 0

    def begin(self) -> None:
        self.running = super().__iter__()  # draws a seed; the sampler is asked from now on
        for _ in range(self.given):
            next(self.running)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self.begun:
            self.begin()
        self.begun = False
        assert self.running is not None
        for batch in self.running:
            self.given += 1
            yield batch
        self.running, self.given = None, 0

    def state_dict(self) -> dict[str, Any]:
        if self.running is None:
            self.begin()
            self.begun = True
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running, self.begun, self.given = None, False, state["given"]


def sampled(kind: str) -> tuple[Any, Resumes]:
    """A loader of one of two ranks, and what is told the epoch."""
    data = list(range(40))
    if kind == "dataset":

        class Told(list[int]):
            epoch = 0

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

            def __getitem__(self, index: Any) -> Any:
                return index + 100 * self.epoch

        made = Resumes(batch_size=3)
        told = made.__dict__["dataset"] = Told(data)
        return told, made
    sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=5)
    if kind == "batches":
        batches = torch.utils.data.BatchSampler(sampler, 3, False)
        return sampler, Resumes(batch_sampler=batches)
    return sampler, Resumes(batch_size=3, sampler=sampler, workers=int(kind == "worker"))


@pytest.mark.parametrize("kind", ["sampler", "worker", "batches", "dataset"])
def test_a_loader_that_is_told_its_epoch(opened: Any, kind: str) -> None:
    """Its batches, dropout and the next epochs are those of a run that was never stopped."""

    def epochs(told: Any, loader: Any, first: int) -> Iterator[tuple[list[int], float]]:
        for epoch in range(first, 4):
            told.set_epoch(epoch)
            for batch in loader:
                yield batch.tolist(), torch.rand(1).item()

    for at in (9, 14):  # in an epoch, and where one ends: there are seven batches, or fourteen
        torch.manual_seed(1)
        told, loader = sampled(kind)
        run = epochs(told, loader, 0)
        for _ in range(at):
            next(run)
        with opened({"loader": loader}, new_start=True) as ckpt:
            ckpt.save(1).wait()
        epoch = told.epoch
        rest = list(run)
        torch.manual_seed(2)
        told, loader = sampled(kind)
        with opened({"loader": loader}) as ckpt:
            assert ckpt.resume() == 1
        assert list(epochs(told, loader, epoch)) == rest, at


class Told(torch.utils.data.SequentialSampler):
    """A sampler that is told its epoch, and says what it was told."""

    def __init__(self) -> None:
        super().__init__(list(range(8)))
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)


class Positioned(Told):
    """It is in the state, and begins anew when it is told its epoch."""

    epoch, at = 3, 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch, self.at = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Further(Told):
    """It needs more than the epoch."""

    epoch = 3

    def set_epoch(self, epoch: int, seed: int) -> None:  # type: ignore[override]
        raise AssertionError(f"{epoch}, {seed}")


def told_loader(sampler: Told) -> Begins:
    made = Begins(None)
    made.__dict__["sampler"] = sampler
    return made


@pytest.mark.parametrize("kind", [Told, Further])
def test_a_loader_that_is_to_be_told_its_epoch_does_not_begin(
    opened: Any, kind: type[Told]
) -> None:
    """What it asked for before would be the items of another one."""
    then, live = told_loader(kind()), told_loader(kind())
    next(iter(then))
    saved_and_live(opened, {"loader": then}, {"loader": live})
    assert live.begun is None
    assert live.then["at"] == 1
    assert live.sampler.told == []  # type: ignore[attr-defined]


def test_a_sampler_that_has_its_epoch_is_not_told_again(opened: Any) -> None:
    """Its position is what was restored."""
    then, live = Positioned(), Positioned()
    then.epoch, then.at, live.epoch = 5, 7, 4
    saved, state = ({"sampler": one, "loader": told_loader(one)} for one in (then, live))
    saved_and_live(opened, saved, state)
    assert (live.epoch, live.at, live.told) == (5, 7, [])
    # One that is not in the state is told.
    alone = Positioned()
    saved_and_live(opened, {"loader": told_loader(then)}, {"loader": told_loader(alone)})
    assert (alone.epoch, alone.told) == (5, [5])


def test_an_epoch_that_raises_says_where(opened: Any) -> None:
    class Bad(Told):
        @property
        def epoch(self) -> int:
            raise ValueError("mine")

    with (
        opened({"loader": [told_loader(Bad())]}) as ckpt,
        pytest.raises(ValueError, match="mine") as caught,
    ):
        ckpt.save(1)
    assert notes(caught.value) in (["libckpt: in epoch() of state['loader'][0]"], [""])


# What is the user's own.


def notes(error: BaseException) -> list[str]:
    """What was added to it; before Python 3.11 there are none."""
    return list(getattr(error, "__notes__", [""] if sys.version_info < (3, 11) else []))


def test_exceptions_out_of_objects_say_where(opened: Any) -> None:
    class Bad:
        def __init__(self, when: str) -> None:
            self.when = when

        def state_dict(self) -> dict[str, Any]:
            if self.when == "state_dict":
                raise RuntimeError("mine")
            return {}

        def load_state_dict(self, _state: Any) -> None:
            if self.when == "load_state_dict":
                raise KeyError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        opened({"a": [Bad("state_dict")]}).save(1)
    assert notes(caught.value) in (["libckpt: in state_dict() of state['a'][0]"], [""])
    for kind in (ValueError, KeyError, TypeError):  # no malformed step

        class Hooked(nn.Linear):
            def state_dict(self, *_: Any, kind: Any = kind, **__: Any) -> Any:
                self.good -= 1
                if self.good < 0:
                    raise kind("mine")
                return super().state_dict()

            good = 100

        live = Hooked(2, 2)
        with opened({"model": Hooked(2, 2)}, new_start=True) as ckpt:
            ckpt.save(1).wait()
        ckpt = opened({"model": live})
        for good in (0, 1):  # before the step is looked at, and when it is
            live.good = good
            with pytest.raises(kind, match="mine"):
                ckpt.resume()
        ckpt.close()
    with pytest.raises(KeyError, match="mine") as late:
        saved_and_live(opened, {"a": Bad("")}, {"a": Bad("load_state_dict")})
    assert notes(late.value) in (["libckpt: in load_state_dict() of state['a']"], [""])


def test_two_of_one_store_are_told_so(opened: Any, store: Path) -> None:
    first = opened({"x": torch.ones(3)})
    first.resume()
    with pytest.warns(libckpt.CheckpointWarning, match="another Checkpointer of this process"):
        second = opened({"x": torch.ones(3)})
    second.resume()
    first.save(1).wait()
    with pytest.raises(libckpt.InUseError, match="another Checkpointer of this process: close"):
        second.save(2)
    with pytest.raises(libckpt.InUseError, match="another Checkpointer of this process: close"):
        opened({"x": torch.ones(3)})
    first.close()
    second.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened({"x": torch.ones(3)}).resume()
