# SPDX-License-Identifier: Apache-2.0
"""States as people have them: what was saved comes back, and nothing goes without a word."""

import collections
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import libckpt.dcp
import pytest
import torch
from conftest import assert_same
from test_state import names_of, stepped
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.distributed.checkpoint.api import CheckpointException

import libckpt

# What only one of step and state has.


def saved_and_live(opened: Any, saved: dict[str, Any], live: dict[str, Any], **how: Any) -> str:
    """Resumes `live` from what `saved` was; the warnings."""
    with opened(saved, new_start=True) as ckpt:
        ckpt.save(1).wait()
    with warnings.catch_warnings(record=True) as caught, opened(live) as ckpt:
        warnings.simplefilter("always")
        assert ckpt.resume(**how) == 1
    return "\n".join(str(w.message) for w in caught if w.category is libckpt.CheckpointWarning)


def test_settings_that_are_new_stay_and_are_named(opened: Any) -> None:
    live: dict[str, Any] = {
        "cfg": {"a": 0, "new": 5, "inner": {"b": 0, "late": 6}},
        "seen": collections.Counter(x=1),
        "rows": {1: "new"},
    }
    then = {"cfg": {"a": 1, "inner": {"b": 2}}, "seen": collections.Counter(y=1), "rows": {2: "a"}}
    said = saved_and_live(opened, then, live)
    assert live["cfg"] == {"a": 1, "new": 5, "inner": {"b": 2, "late": 6}}
    assert "state['cfg']['new'] is not in the checkpoint" in said
    assert "state['cfg']['inner']['late']" in said
    # What is counted, or goes by numbers, is data of the step.
    assert live["seen"] == {"y": 1}
    assert live["rows"] == {2: "a"}
    assert saved_and_live(opened, then, {key: then[key] for key in then}) == ""


def test_what_becomes_something_else_is_named(opened: Any) -> None:
    def differing(then: Any, now: Any) -> str:
        live = {"x": {"y": now}}
        said = saved_and_live(opened, {"x": {"y": then}}, live)
        assert_same(live["x"]["y"], then)
        return said

    assert "state['x']['y'] is an int again; it was a str" in differing(1, "text")
    assert "is a dict again; it was an int" in differing({"a": 1}, 7)
    assert "has 2 items again; it had 3" in differing([1, 2], [1, 2, 3])
    for then, now in ((1, 2.5), (None, 3), (3, None), ([1, 2], []), ("a", "b")):
        assert differing(then, now) == ""


def test_options_of_a_group_that_are_new_stay_and_are_named(opened: Any) -> None:
    def make() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": stepped(model)}

    live = make()
    live["optimizer"].param_groups[0]["lr_scale"] = 0.5
    said = saved_and_live(opened, make(), live)
    assert live["optimizer"].param_groups[0]["lr_scale"] == 0.5
    assert "state['optimizer'].param_groups[0]['lr_scale'] (now 0.5) is not in" in said


def test_going_back_is_exact(opened: Any) -> None:
    """Whoever has saved or resumed a state has what it made since, and no newer program."""

    def make() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": stepped(model), "cfg": {"a": 1}}

    state = make()
    with opened(state) as ckpt:
        ckpt.save(1).wait()
        for how in ({}, {"tolerate": ["cfg/late"]}):
            state["cfg"].update(late=5, later=6)
            state["optimizer"].param_groups[0]["late"] = 5
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ckpt.resume(**how)
            assert state["cfg"] == {"a": 1, **({"late": 5} if how else {})}
            assert "late" not in state["optimizer"].param_groups[0]
            assert len(caught) == len(how)
        with pytest.warns(libckpt.CheckpointWarning, match=r"\['late'\] is not in the checkpoint"):
            ckpt.resume()
        assert state["cfg"] == {"a": 1, "late": 5}
    again = make()
    again["cfg"]["new"] = 1
    with opened(again) as ckpt:
        with pytest.warns(libckpt.CheckpointWarning, match=r"\['new'\] is not in the checkpoint"):
            ckpt.resume()
        again["cfg"]["late"] = 1
        with pytest.warns(libckpt.CheckpointWarning, match=r"\['new'\] is not in the checkpoint"):
            ckpt.resume()
    assert again["cfg"] == {"a": 1, "new": 1}


def test_settings_of_a_newer_program_stay_each_time(opened: Any) -> None:
    def make(**new: Any) -> dict[str, Any]:
        model = nn.Linear(2, 2)
        made = {"model": model, "optimizer": stepped(model), "cfg": {"a": 1, **new}}
        made["optimizer"].param_groups[0].update(new)
        return made

    def back(ckpt: Any, step: str, late: int, names: int) -> None:
        state["cfg"].update(clip=late, late=late)
        group.update(clip=late, late=late)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ckpt.resume(step)
        assert "late" not in state["cfg"]
        assert "late" not in group
        assert sum(str(one.message).count("'clip'") for one in caught) == names

    with opened(make()) as ckpt:
        ckpt.save(1).wait()
    state = make(clip=2)
    group = state["optimizer"].param_groups[0]
    with opened(state) as ckpt:
        with pytest.warns(libckpt.CheckpointWarning, match="'clip'"):
            ckpt.resume()
        back(ckpt, "latest", 3, names=2)
        assert (state["cfg"]["clip"], group["clip"]) == (3, 3)
        ckpt.save(2).wait()
        # A step that has them brings them back, and one that does not leaves them.
        back(ckpt, "latest", 4, names=0)
        assert (state["cfg"]["clip"], group["clip"]) == (3, 3)
        back(ckpt, "latest~1", 5, names=2)
        assert (state["cfg"]["clip"], group["clip"]) == (5, 5)


def test_another_state_has_a_past_of_its_own(opened: Any) -> None:
    with opened({"cfg": {"a": 1}}) as ckpt:
        ckpt.save(1).wait()
        ckpt.state = {"cfg": {"a": 2, "new": 5}}
        with pytest.warns(libckpt.CheckpointWarning, match=r"\['new'\] is not in the checkpoint"):
            ckpt.resume()
        assert ckpt.state == {"cfg": {"a": 1, "new": 5}}
        ckpt.state = {"cfg": {"a": 3}}
        ckpt.save(2).wait()
        ckpt.state["cfg"]["new"] = 6
        ckpt.resume()
        assert ckpt.state == {"cfg": {"a": 3}}


def test_a_save_that_did_not_start_counts_as_on_other_ranks(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise libckpt.StorageError("the disk of this rank is full")

    with opened({"cfg": {"a": 1}}) as ckpt:
        ckpt.save(1).wait()
    state = {"cfg": {"a": 1}}
    with opened(state) as ckpt:
        with monkeypatch.context() as patch:
            patch.setattr("libckpt._save.Save._start", fail)
            with pytest.warns(libckpt.CheckpointWarning, match="was not saved"):
                ckpt.save(2)
        state["cfg"]["late"] = 5
        ckpt.resume()
    assert state == {"cfg": {"a": 1}}


def test_a_head_that_is_a_module_of_its_own_may_be_new(opened: Any) -> None:
    def make(head: bool) -> dict[str, Any]:
        model, parts = nn.Linear(2, 2), {"head": nn.Linear(2, 2)}
        params = [*model.parameters(), *(parts["head"].parameters() if head else ())]
        more = {"parts": parts} if head else {}
        return {"model": model, "optimizer": torch.optim.SGD(params, lr=0.1), **more}

    for how in ({"strict": False}, {"tolerate": ["parts*"]}):
        said = saved_and_live(opened, make(head=False), make(head=True), **how)
        assert "state['parts']; state['optimizer']: parameter parts/head/bias" in said
    with pytest.raises(libckpt.MismatchError, match="parameter parts/head/bias"):
        saved_and_live(opened, make(head=False), make(head=True), tolerate=["parts"])


class Net(nn.Module):
    def __init__(self, head: bool = False) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(3, 3), nn.Linear(3, 3)
        if head:
            self.head = nn.Linear(3, 2)


def tuned(*, body: bool = False, head: str = "", lr: float = 0.1) -> dict[str, Any]:
    """An optimizer of `out`, perhaps of `body`; a head in no group, the same or one of its own."""
    model = Net(bool(head))
    parts = [*model.body.parameters()] if body else []
    parts += [*model.out.parameters()]
    parts += [*model.head.parameters()] if head == "same" else []
    groups = [{"params": parts}]
    if head == "own":
        groups.insert(0, {"params": [*model.head.parameters()], "lr": 7.0})
    optimizer = torch.optim.AdamW(groups, lr=lr)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": 3}


@pytest.mark.parametrize(
    "what", ["unfrozen", "no group", "same group", "own group", "key", "key gone", "gone"]
)
def test_what_is_new_or_gone_may_be_tolerated(opened: Any, what: str) -> None:
    then = tuned(head="own" if what == "gone" else "")
    live = tuned(
        body=what == "unfrozen",
        head={"no group": "none", "same group": "same", "own group": "own"}.get(what, ""),
        lr=0.2,
    )
    if what == "key":
        live["ema"] = torch.ones(3)
    elif what == "key gone":
        del live["epoch"]
    names = {"unfrozen": "body.*", "key": "ema", "key gone": "epoch"}.get(what, "head.*")
    with pytest.raises(libckpt.MismatchError) as caught:
        saved_and_live(opened, then, live)
    # Other names are no leave.
    with pytest.raises(libckpt.MismatchError, match="Nothing was changed"):
        saved_and_live(opened, then, live, tolerate=["head", "body", "other.*", "epo"])
    kept = [value.clone() for name, value in live["model"].state_dict().items() if "head" in name]
    new = [one for one in live["model"].parameters() if "head" in what or what == "unfrozen"]
    moments = {id(one): dict(live["optimizer"].state.get(one, {})) for one in new}
    for how in ({"tolerate": [names]}, {"strict": False}):
        said = saved_and_live(opened, then, live, **how)
        # The report that the refusal had.
        listed = [line for line in str(caught.value).splitlines() if line.startswith("  ")][:-1]
        assert all(line in said for line in listed), said
    out = [live["model"].out.weight, live["model"].out.bias]
    for mine, old in zip(out, then["model"].out.parameters(), strict=True):
        assert torch.equal(mine, old)
        assert_same(live["optimizer"].state[mine], then["optimizer"].state[old])
    assert live["optimizer"].param_groups[-1]["lr"] == 0.1
    if what == "own group":
        assert live["optimizer"].param_groups[0]["lr"] == 7.0
    now = [value for name, value in live["model"].state_dict().items() if "head" in name]
    assert_same(now, kept)
    if what == "unfrozen":
        for one in live["model"].body.parameters():
            assert_same(live["optimizer"].state[one], moments[id(one)])


def test_a_new_group_gets_no_options_of_one_that_is_gone(opened: Any) -> None:
    def make(head: str, lr: float) -> dict[str, Any]:
        model = nn.ModuleDict({"body": nn.Linear(2, 2), head: nn.Linear(2, 2)})
        groups = [{"params": [*model["body"].parameters()]}]
        groups.append({"params": [*model[head].parameters()], "lr": lr})
        groups.append({"params": [], "lr": lr})
        return {"model": model, "optimizer": torch.optim.SGD(groups, lr=0.1)}

    live = make("new", 1e-3)
    saved_and_live(opened, make("old", 1e-6), live, tolerate=["new.*", "old.*"])
    # The last has no parameters, and had none.
    assert [group["lr"] for group in live["optimizer"].param_groups] == [0.1, 1e-3, 1e-6]
    live["optimizer"].param_groups.pop()
    with pytest.raises(libckpt.MismatchError, match="in other groups"):
        saved_and_live(opened, make("old", 1e-6), live, strict=False)


def test_groups_in_another_order_are_refused(opened: Any) -> None:
    def make(*order: str) -> dict[str, Any]:
        """With rates by group, of which a scheduler has a list."""
        model, rates = nn.Linear(2, 2), {"weight": 1.0, "bias": 0.1}
        groups = [{"params": [getattr(model, name)], "lr": rates[name]} for name in order]
        optimizer = torch.optim.SGD(groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    with pytest.raises(libckpt.MismatchError, match="or the groups in another order"):
        saved_and_live(opened, make("weight", "bias"), make("bias", "weight"), strict=False)


def test_groups_of_other_numbers_are_named(opened: Any) -> None:
    def make(*names: str) -> dict[str, Any]:
        model = nn.ParameterDict({name: torch.ones(2) for name in names})
        groups = [{"params": [model[name]], "lr": 0.1} for name in names]
        return {"model": model, "optimizer": torch.optim.SGD(groups)}

    said = saved_and_live(opened, make("a", "b", "c"), make("a", "c"), strict=False)
    assert "groups have other numbers than in the step" in said
    said = saved_and_live(opened, make("a", "b", "c"), make("a", "b"), strict=False)
    assert "other numbers" not in said


def test_what_differs_is_never_tolerated(opened: Any) -> None:
    def grouped(*cut: int) -> dict[str, Any]:
        model = Net()
        every = list(model.parameters())
        parts = [every[a:b] for a, b in zip((0, *cut), (*cut, 4), strict=True)]
        return {
            "model": model,
            "optimizer": torch.optim.SGD([{"params": part} for part in parts], lr=1.0),
        }

    with pytest.raises(libckpt.MismatchError, match="in other groups"):
        saved_and_live(opened, grouped(2), grouped(1), strict=False)
    with pytest.raises(libckpt.MismatchError, match=r"state\['x'\] is F32 \[4\]") as caught:
        saved_and_live(opened, {"x": torch.zeros(3)}, {"x": torch.zeros(4)}, strict=False)
    assert caught.value.tensor == "state['x']"
    ckpt = opened({})
    for wrong in ({"tolerate": "head.*"}, {"tolerate": [1]}, {"strict": 0}):
        with pytest.raises(TypeError, match="must be"):
            ckpt.resume(**wrong)


# Sizes that change between runs.


class Scaled(nn.Linear):
    """As Transformer Engine's: a history in bytes, which grows; or a file, or a dict."""

    def __init__(self, kind: str) -> None:
        super().__init__(3, 3)
        self.kind = kind
        self.history: list[float] = []

    def get_extra_state(self) -> Any:
        data = pickle.dumps(self.history)
        if self.kind == "bytes":
            empty = torch.empty(0, dtype=torch.uint8)
            return torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.history else empty
        if self.kind == "file":
            return io.BytesIO(data) if self.history else None
        return {"history": list(self.history), "t": torch.tensor(self.history)}

    def set_extra_state(self, state: Any) -> None:
        if self.kind == "dict":
            self.history = state["history"]
        elif self.kind == "file":
            self.history = pickle.loads(state.read())
        else:
            self.history = pickle.loads(state.numpy().tobytes())


class Observer(nn.Module):
    """Buffers that are empty at first, and that it takes in any size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor([]))

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.low.resize_(state[prefix + "low"].shape)
        super()._load_from_state_dict(state, prefix, *rest)


class Bank(nn.Module):
    """Buffers that are empty, or None, until the first batch; torch loads it."""

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(rows, 3))
        self.register_buffer("mean", None)
        self.register_buffer("fixed", torch.zeros(2))


def test_what_has_grown_comes_back(opened: Any) -> None:
    def make(kind: str) -> Any:
        """Behind a wrapper, whose name is in the keys of its state."""
        wrapped: Any = torch.compile(nn.Sequential(Scaled(kind)))
        parts = {"a": wrapped, "b": Observer(), "c": Bank(), "s": wrapped._orig_mod[0]}
        return nn.ModuleDict(parts)

    for kind in ("bytes", "file", "dict"):
        then, live = make(kind), make(kind)
        then["s"].history = [1.0, 2.0]
        then["b"].low = torch.rand(4)
        then["c"].rows, then["c"].mean = torch.rand(5, 3), torch.rand(2)
        observer = live["b"].low
        assert saved_and_live(opened, {"model": then}, {"model": live}) == ""
        assert live["s"].history == [1.0, 2.0]
        assert live["b"].low is observer
        assert_same(live["b"].state_dict(), then["b"].state_dict())
        assert_same(live["c"].state_dict(), then["c"].state_dict())
        # Shorter, and into one that is longer.
        then["s"].history, live["s"].history = [3.0], [0.0] * 50
        then["b"].low = torch.rand(2)
        saved_and_live(opened, {"model": then}, {"model": live})
        assert live["s"].history == [3.0]
        assert_same(live["b"].state_dict(), then["b"].state_dict())

    # Without anything that has a say of its own.
    old, new = Bank(), Bank()
    old.rows, old.mean = torch.rand(5, 3), torch.rand(2)
    saved_and_live(opened, {"model": old}, {"model": new})
    assert_same(new.state_dict(), old.state_dict())
    # A size that somebody has chosen is not another one without a word.
    with pytest.raises(libckpt.MismatchError, match=r"rows is F32 \[4, 3\], and was F32 \[5, 3\]"):
        saved_and_live(opened, {"model": old}, {"model": Bank(4)})


class Masked(nn.Module):
    """Its state_dict() has all of it, not the mask, or an empty one."""

    def __init__(self, value: float, how: str = "") -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mask", torch.full((3,), value))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        if self.how == "dropped":
            del state["mask"]
        elif self.how == "empty":
            state["mask"] = torch.zeros(0)
        return state

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> Any:
        return super().load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    ("how", "said"), [("dropped", r"unexpected .*mask"), ("empty", r"mask is F32 \[0\], and was")]
)
def test_a_filled_buffer_that_is_not_shown_is_not_replaced(
    opened: Any, how: str, said: str
) -> None:
    live = Masked(2.0, how)
    with pytest.raises(libckpt.MismatchError, match=said):
        saved_and_live(opened, {"model": Masked(1.0)}, {"model": live})
    assert torch.equal(live.mask, torch.full((3,), 2.0))


class Scripted(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.rand(rows, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rows.sum()


def test_buffers_of_a_script_module(opened: Any) -> None:
    def make(rows: int) -> Any:
        return torch.jit.script(Scripted(rows))

    then = make(2)
    with pytest.raises(libckpt.MismatchError, match=r"rows is F32 \[4, 3\], and was F32 \[2, 3\]"):
        saved_and_live(opened, {"model": then}, {"model": make(4)})
    live = make(0)
    saved_and_live(opened, {"model": then}, {"model": live})
    assert torch.equal(live.rows, then.rows)


# Names of wrappers.


def wrapped(how: str, plain: bool = False) -> dict[str, Any]:
    """A model whose layers are wrapped, one in the other."""

    def wrap(layer: nn.Module, letters: str) -> nn.Module:
        for letter in letters:
            layer = checkpoint_wrapper(layer) if letter == "a" else torch.compile(layer)
        return layer

    inner = Scaled("dict") if plain else nn.Linear(3, 3)
    model = nn.Sequential(wrap(nn.Linear(3, 3), how), nn.Sequential(wrap(inner, how[::-1])))
    whole = wrap(model, how[:1])
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.1)
    for parameter in whole.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return {"model": whole, "optimizer": optimizer}


@pytest.mark.parametrize("own_say", [False, True])
def test_names_of_wrappers_are_nowhere(opened: Any, store: Path, own_say: bool) -> None:
    plain = {"0.weight", "0.bias", "1.0.weight", "1.0.bias"}
    for then, now in (("", "ac"), ("a", ""), ("ca", "ac"), ("ac", "c"), ("aca", "a")):
        saved, live = wrapped(then, own_say), wrapped(now, own_say)
        assert saved_and_live(opened, {**saved}, {**live}) == ""
        for old, new in zip(saved["model"].parameters(), live["model"].parameters(), strict=True):
            assert torch.equal(old, new)
            assert_same(live["optimizer"].state[new], saved["optimizer"].state[old])
        names = [name for name in names_of(store) if "rng/" not in name and "extra" not in name]
        roles = {
            f"optimizer/state/{name}/{role}"
            for name in plain
            for role in saved["optimizer"].state[old]
        }
        assert set(names) == plain | roles
    check_dcp(store, saved)


def check_dcp(store: Path, saved: dict[str, Any]) -> None:
    """torch's own names lead there, with those of wrappers and without."""
    optimizer = saved["optimizer"]
    weight, moment = (
        one["exp_avg"] if role else parameter.detach()
        for parameter, one in list(optimizer.state.items())[:1]
        for role in (0, 1)
    )
    for name in ("0.weight", "_orig_mod.0._checkpoint_wrapped_module._orig_mod.weight"):
        wanted = {
            "model": {name: torch.zeros(3, 3)},
            "optimizer": {"state": {name: {"exp_avg": torch.zeros(3, 3)}}},
        }
        reader = libckpt.dcp.StorageReader(store, resume=False)
        dcp.load(wanted, storage_reader=reader, no_dist=True)
        assert torch.equal(wanted["model"][name], weight)
        assert torch.equal(wanted["optimizer"]["state"][name]["exp_avg"], moment)
    reader = libckpt.dcp.StorageReader(store, resume=False)
    with pytest.raises(CheckpointException, match=r"1\.weight"):
        dcp.load({"model": {"1.weight": weight}}, storage_reader=reader, no_dist=True)


def test_an_older_store_has_names_of_wrappers(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this package has written them: in the names of an optimizer's parameters."""
    from libckpt import _module_source

    saved = wrapped("ca", True)
    names = {id(p): name for name, p in nn.Module.named_parameters(saved["model"])}
    assert any("_checkpoint_wrapped_module._orig_mod." in name for name in names.values())
    with monkeypatch.context() as patch:
        patch.setattr(
            _module_source,
            "parameter_names",
            lambda module, prefix="": ((prefix + names[id(p)], p) for p in module.parameters()),
        )
        ckpt = opened(saved)
        ckpt.save(1).wait()
        ckpt.close()
    assert any("_orig_mod" in name for name in names_of(store))
    check_dcp(store, saved)
    for how in ("", "ac"):
        live = wrapped(how, True)
        ckpt = opened(live)
        assert ckpt.resume() == 1
        ckpt.close()
        for old, new in zip(saved["model"].parameters(), live["model"].parameters(), strict=True):
            assert_same(live["optimizer"].state[new], saved["optimizer"].state[old])


class Own(nn.Module):
    """A child that is called as that of a wrapper; perhaps with a say of its own."""

    def __init__(self, value: float, say: bool, child: bool = True) -> None:
        super().__init__()
        self.say = say
        self.weight = nn.Parameter(torch.full((2,), value))
        if child:
            self._orig_mod = Own(value + 1, say, child=False)

    def get_extra_state(self) -> Any:
        if not self.say:
            raise RuntimeError("nobody asks")
        return {"value": self.weight[0].item()}

    def set_extra_state(self, state: Any) -> None:
        self.read = state["value"]


class Silent(Own):
    get_extra_state = nn.Module.get_extra_state
    set_extra_state = nn.Module.set_extra_state  # type: ignore[assignment]


@pytest.mark.parametrize("say", [False, True])
def test_a_child_that_is_called_as_that_of_a_wrapper(opened: Any, say: bool) -> None:
    def make(value: float, child: bool = True) -> Any:
        if say:
            return Own(value, say, child)
        made = Silent(value, say, child=False)
        if child:
            made._orig_mod = Silent(value + 1, say, child=False)
        return made

    live = make(0.0)
    assert saved_and_live(opened, {"model": make(5.0)}, {"model": live}) == ""
    assert (live.weight[0], live._orig_mod.weight[0]) == (5.0, 6.0)
    if say:
        assert (live.read, live._orig_mod.read) == (5.0, 6.0)
    compiled = torch.compile(make(0.0))
    saved_and_live(opened, {"model": make(5.0)}, {"model": compiled})
    assert (compiled.weight[0], compiled._orig_mod._orig_mod.weight[0]) == (5.0, 6.0)
    with pytest.raises(libckpt.MismatchError, match=r"unexpected .*_orig_mod\.weight"):
        saved_and_live(opened, {"model": make(5.0)}, {"model": make(0.0, child=False)})


class PassedOn(nn.Module):
    """It says what its child says, perhaps under names of its own."""

    def __init__(self, value: float, wrap: Any = torch.compile, prefix: str = "") -> None:
        super().__init__()
        linear = nn.Linear(2, 2)
        nn.init.constant_(linear.weight, value)
        self.net, self.prefix = wrap(linear), prefix

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {self.prefix + name: one for name, one in self.net.state_dict().items()}

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        plain = {name[len(self.prefix) :]: one for name, one in state.items()}
        return self.net.load_state_dict(plain)


def test_parameters_that_would_be_one_are_two(opened: Any) -> None:
    def make(child: bool) -> Any:
        model = Silent(5.0, say=False, child=False)
        if child:
            model._orig_mod = Silent(6.0, say=False, child=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full((2,), number + 1.0)
        if child:
            optimizer.step()
        return {"model": model, "optimizer": optimizer}

    live = make(child=False)
    said = saved_and_live(opened, make(child=True), live, strict=False)
    assert "parameter _orig_mod.weight" in said
    state = live["optimizer"].state[live["model"].weight]
    assert torch.equal(state["momentum_buffer"], torch.ones(2))
    # The step's optimizer has the child's only, which is no older name of the parent's.
    then, live = make(child=True), make(child=False)
    then["optimizer"] = torch.optim.SGD([then["model"]._orig_mod.weight], lr=0.1, momentum=0.9)
    then["optimizer"].step()
    said = saved_and_live(opened, then, live, strict=False)
    assert "parameter _orig_mod.weight" in said
    assert not live["optimizer"].state


@pytest.mark.parametrize("prefix", ["", "model."])
def test_what_is_passed_on_has_no_names_of_wrappers(opened: Any, store: Path, prefix: str) -> None:
    def plain(module: Any) -> Any:
        return module

    for then, now in ((plain, torch.compile), (torch.compile, plain), (plain, checkpoint_wrapper)):
        live = PassedOn(0.0, now, prefix)
        saved = {"model": PassedOn(5.0, then, prefix)}
        assert saved_and_live(opened, saved, {"model": live}) == ""
        assert live.net.weight[0, 0] == 5
        assert {f"{prefix}weight", f"{prefix}bias"} <= set(names_of(store))


class Named(nn.Module):
    """Keys that are in no module, and two of which would be one without names of wrappers."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.values = {"_orig_mod.weight": value, "weight": value + 1}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: torch.tensor([value]) for name, value in self.values.items()}

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        self.values = {name: one.item() for name, one in state.items()}


def test_keys_that_would_be_one_keep_their_names(opened: Any, store: Path) -> None:
    live = Named(0.0)
    assert saved_and_live(opened, {"model": Named(5.0)}, {"model": live}) == ""
    assert live.values == {"_orig_mod.weight": 5, "weight": 6}
    assert {"_orig_mod.weight", "weight"} <= set(names_of(store))


class OwnWrapper(nn.Module):
    """No wrapper that is known, though its child is called as that of one."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value, self._orig_mod = value, nn.Linear(2, 2)
        nn.init.constant_(self._orig_mod.weight, value)
        self._orig_mod.register_buffer("grown", torch.zeros(int(value)))

    def get_extra_state(self) -> Any:
        return {"value": self.value}

    def set_extra_state(self, state: Any) -> None:
        self.value = state["value"]


class Ending(OwnWrapper):
    """The name of its child only ends as that of a wrapper's."""

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.my_orig_mod = self._orig_mod
        del self._orig_mod


def test_an_older_store_lacks_what_only_looks_like_a_wrapper(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this package has written them: no key had the name of torch.compile's child."""
    from libckpt import _state_writer

    for make in (OwnWrapper, PassedOn, Ending):
        live = make(0.0)
        with monkeypatch.context() as patch:
            patch.setattr(
                _state_writer,
                "plain_keys",
                lambda _m, keys, _w: {key: key.replace("_orig_mod.", "") for key in keys},
            )
            with opened({"model": make(5.0)}, new_start=True) as ckpt:
                ckpt.save(1).wait()
        assert ("myweight" if make is Ending else "weight") in names_of(store)
        with opened({"model": live}) as ckpt:
            assert ckpt.resume() == 1
        assert all(p[0, 0] == 5 for p in live.parameters() if p.dim() == 2)
        assert make is PassedOn or live.value == 5


def test_keys_that_are_one_without_wrappers_are_refused(opened: Any) -> None:
    model = torch.compile(nn.Linear(2, 2))
    model.register_state_dict_post_hook(lambda _m, state, *_: state.update(weight=1))
    with pytest.raises(libckpt.UnsupportedStateError, match="several keys that are 'weight'"):
        opened({"model": model}).save(1)


class Noted(CheckpointWrapper):
    """A wrapper that saves something of its own."""

    note = 0

    def _save_to_state_dict(self, state: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(state, prefix, keep_vars)
        state[prefix + "note"] = torch.tensor(self.note)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.note = int(state.pop(prefix + "note"))
        super()._load_from_state_dict(state, prefix, *rest)


class NotedParallel(nn.DataParallel[nn.Module]):
    note = 0

    def get_extra_state(self) -> Any:
        return {"note": self.note}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"]


@pytest.mark.parametrize("kind", [Noted, NotedParallel])
@pytest.mark.parametrize("nested", [False, True])
def test_methods_of_subclasses_of_wrappers_are_asked(
    opened: Any, store: Path, kind: Any, nested: bool
) -> None:
    def make(note: int) -> Any:
        wrapper = kind(nn.Linear(2, 2))
        wrapper.note = note
        return nn.ModuleDict({"x": wrapper}) if nested else wrapper

    then, live = make(3), make(0)
    assert saved_and_live(opened, {"model": then}, {"model": live}) == ""
    assert (live["x"] if nested else live).note == 3
    assert_same(live.state_dict(), then.state_dict())
    assert nested or {"weight", "bias"} <= set(names_of(store))


class Bare(nn.DataParallel[nn.Module]):
    """It leaves its name out of what it says, and loads with it."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return self.module.state_dict(*args, **options)


def test_what_a_wrapper_only_says_is_not_asked_for(opened: Any) -> None:
    then, live = Bare(nn.Linear(2, 2)), Bare(nn.Linear(2, 2))
    assert saved_and_live(opened, {"model": then}, {"model": live}) == ""
    assert_same(live.state_dict(), then.state_dict())


@pytest.mark.parametrize("wrap", [torch.compile, checkpoint_wrapper])
def test_hooks_of_wrappers_that_come_later_are_asked(opened: Any, store: Path, wrap: Any) -> None:
    inner: Any = wrap(nn.Linear(2, 2))
    with opened({"model": nn.Sequential(inner)}) as ckpt:
        ckpt.save(1).wait()
        inner.register_state_dict_post_hook(
            lambda _m, state, prefix, _: state.update({prefix + "odd": torch.ones(1)})
        )
        ckpt.save(2).wait()
    assert "0.odd" in names_of(store, 2)


@pytest.mark.parametrize("wrap", [torch.compile, checkpoint_wrapper])
def test_hooks_of_wrappers_are_asked(opened: Any, store: Path, wrap: Any) -> None:
    def make(value: float) -> Any:
        model: Any = wrap(nn.Linear(2, 2))
        model.odd = torch.tensor([value])
        model.register_state_dict_post_hook(lambda m, state, *_: state.update(odd=m.odd))
        model.register_load_state_dict_pre_hook(
            lambda m, state, *_: [
                m.odd.copy_(state.pop(key)) for key in list(state) if key.endswith("odd")
            ]
        )
        return model

    live = make(0.0)
    saved_and_live(opened, {"model": make(3.0)}, {"model": live})
    assert live.odd == 3
    assert {"weight", "bias", "odd"} <= set(names_of(store))
