# SPDX-License-Identifier: Apache-2.0
"""Optimizers of other libraries, and tensors that wrap others: what was saved comes back."""

import collections
import copy
import enum
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from test_state import names_of
from test_states import saved_and_live
from torch import nn

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
            opened(state) as ckpt,
            pytest.raises(libckpt.UnsupportedStateError, match=why),
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
