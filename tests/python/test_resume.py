# SPDX-License-Identifier: Apache-2.0
"""Resuming: bit for bit, in place, from the right step, or with an error that says why not."""

import copy
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Training, assert_same, flip, shards, step_directory
from torch.optim import lr_scheduler as lrs

import libckpt


def interrupted(opened: Any, make: Any, before: int = 4, after: int = 4) -> None:
    """A resumed run sees the losses, and ends in the state, of one that was never stopped."""
    whole = make()
    ckpt = opened(whole.state)
    for _ in range(before):
        whole.step()
    ckpt.save(before)
    losses = [whole.step() for _ in range(after)]
    ckpt.close()

    again = make()
    for _ in range(2):  # somewhere else by now
        again.step()
    ckpt = opened(again.state)
    assert ckpt.resume() == before
    assert [again.step() for _ in range(after)] == losses
    assert_same(again.snapshot(), whole.snapshot())


MANY = 400

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"capturable": False, "lr": torch.tensor(0.02), "foreach": False}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adafactor, {}),
    (torch.optim.LBFGS, {"max_iter": 3, "history_size": 3}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_every_optimizer_resumes_bit_for_bit(
    opened: Any, optimizer: Any, options: dict[str, Any]
) -> None:
    constant = options.get("lr") is not None

    def scheduler(made: Any) -> Any:
        return lrs.ConstantLR(made, 1.0) if constant else lrs.CosineAnnealingLR(made, 50)

    interrupted(opened, lambda: Training(optimizer, scheduler, **options))


SCHEDULERS: list[Any] = [
    lambda o: lrs.StepLR(o, 3),
    lambda o: lrs.MultiStepLR(o, [2, 5]),
    lambda o: lrs.LambdaLR(o, lambda n: 0.9**n),
    lambda o: lrs.MultiplicativeLR(o, lambda n: 0.9),
    lambda o: lrs.ExponentialLR(o, 0.9),
    lrs.LinearLR,
    lrs.PolynomialLR,
    lambda o: lrs.OneCycleLR(o, 0.05, 30),
    lambda o: lrs.CyclicLR(o, 0.01, 0.05, step_size_up=3, cycle_momentum=False),
    lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
    lambda o: lrs.ReduceLROnPlateau(o, patience=1),
    lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o), lrs.ExponentialLR(o, 0.9)], [3]),
    lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o), lrs.ExponentialLR(o, 0.9)]),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_resumes_bit_for_bit(opened: Any, scheduler: Any) -> None:
    interrupted(opened, lambda: Training(torch.optim.AdamW, scheduler))


class Counted(list[Any]):
    """Of an optimizer's group: how often somebody went over its parameters."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


def test_parameters_are_gone_over_a_few_times(opened: Any) -> None:
    """And not once for each: 100,000 of them would take minutes."""

    def make() -> tuple[torch.nn.ParameterList, torch.optim.Optimizer]:
        many = torch.nn.ParameterList(torch.ones(1) for _ in range(MANY))
        return many, torch.optim.AdamW(many.parameters())

    many, optimizer = make()
    for parameter in many:
        parameter.grad = torch.ones(1)
    optimizer.step()
    ckpt = opened({"many": many, "optimizer": optimizer})
    ckpt.save(1)
    ckpt.close()
    many, optimizer = make()
    counted = Counted(optimizer.param_groups[0]["params"])
    optimizer.param_groups[0]["params"] = counted
    ckpt = opened({"many": many, "optimizer": optimizer})
    assert ckpt.resume() == 1
    assert len(optimizer.state) == MANY
    assert 0 < counted.times < MANY / 10


def test_an_optimizer_without_state_resumes(opened: Any) -> None:
    interrupted(opened, Training, before=0)


def test_the_optimizer_forgets_what_the_step_did_not_have(opened: Any) -> None:
    first = Training()
    ckpt = opened(first.state)
    ckpt.save(1).wait()
    ckpt.close()
    later = Training()
    later.step()
    assert later.optimizer.state
    opened(later.state).resume()
    assert_same(later.snapshot(), first.snapshot())


def test_objects_stay_the_objects_they_were(opened: Any) -> None:
    """Others hold references to parameters, moments and lists: they see what was restored."""
    training = Training()
    training.step()
    history: list[int] = [1, 2]
    state: dict[str, Any] = {**training.state, "history": history, "nested": {"log": {"a": 1}}}
    nested = state["nested"]["log"]
    ckpt = opened(state)
    ckpt.save(1).wait()
    weight = training.model.down.weight
    moment = training.optimizer.state[weight]["exp_avg"]
    group = training.optimizer.param_groups[0]
    then = (weight.detach().clone(), moment.clone(), group["lr"])
    training.step()
    history[:] = [9]
    nested["b"] = 2
    assert ckpt.resume() == 1
    assert training.model.down.weight is weight
    assert training.optimizer.state[weight]["exp_avg"] is moment
    assert training.optimizer.param_groups[0] is group
    assert torch.equal(weight, then[0])
    assert torch.equal(moment, then[1])
    assert group["lr"] == then[2]
    assert history == [1, 2]
    assert nested == {"a": 1}
    assert training.model.head.weight is training.model.embed.weight


def test_generators_are_restored_without_asking_and_last(opened: Any) -> None:
    import random

    class Rude:
        """Uses the generators while it is restored."""

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _state: dict[str, Any]) -> None:
            torch.rand(3)
            np.random.rand(3)
            random.random()

    ckpt = opened({"rude": Rude()})
    random.gauss(0, 1)
    np.random.normal()
    ckpt.save(1).wait()

    def draw() -> list[float]:
        return [
            *torch.randn(3).tolist(),
            *np.random.normal(size=3).tolist(),
            random.gauss(0, 1),
            random.random(),
        ]

    first = draw()
    draw()
    assert ckpt.resume() == 1
    assert draw() == first


def test_nothing_to_resume_is_zero_and_only_that(opened: Any) -> None:
    assert opened({"x": 1}).resume() == 0


def test_commits_must_be_resumed_or_left_on_purpose(opened: Any, store: Path) -> None:
    ckpt = opened({"x": 1})
    ckpt.save(1).wait()
    ckpt.close()
    ckpt = opened({"x": 2})
    with pytest.raises(libckpt.NotResumedError):
        ckpt.save(2)
    assert ckpt.resume() == 1
    ckpt.save(2).wait()
    ckpt.close()

    ckpt = opened({"x": 3}, new_start=True)
    assert ckpt.resume() == 0
    assert ckpt.state["x"] == 3
    ckpt.save(1).wait()
    ckpt.close()
    ckpt = opened({"x": 0})
    assert ckpt.resume() == 1
    assert ckpt.state["x"] == 3
    assert ckpt.stats()["generation"] in (0, 3)


def test_a_new_start_that_committed_nothing_is_not_mistaken_for_an_empty_store(
    opened: Any,
) -> None:
    ckpt = opened({"x": 1})
    ckpt.save(5).wait()
    ckpt.close()
    ckpt = opened({"x": 1, "big": torch.zeros(25_000_000)}, new_start=True)
    ckpt.save(1)
    ckpt._core.shut()  # as if it had been killed
    ckpt._finalizer.detach()
    ckpt = opened({"x": 1})
    if ckpt._core.engine.steps()[0].state == "committed":
        pytest.fail("100 MB were durable at once: the test needs more")
    with pytest.raises(libckpt.StepNotFoundError, match="new_start=True"):
        ckpt.resume()


def test_an_older_step_and_what_grows_from_it(opened: Any, store: Path) -> None:
    state = {"x": torch.zeros(3)}
    ckpt = opened(state)
    for step in (1, 2, 3, 4):
        state["x"].fill_(step)
        ckpt.save(step).wait()
    ckpt.close()

    ckpt = opened(state)
    assert ckpt.resume("latest~1") == 3
    assert state["x"][0] == 3
    assert ckpt.resume(2) == 2
    assert state["x"][0] == 2
    state["x"].fill_(30)
    ckpt.save(3).wait()
    ckpt.close()
    kept = [(info.generation, info.step) for info in libckpt.list_steps(store)]
    assert kept == [(2, 3), (1, 2), (1, 1)]
    assert len(libckpt.list_steps(store, everything=True)) == 5
    assert libckpt.load(store)["x"][0] == 30

    # In one process, too, and from a step that it saved itself.
    ckpt = opened(state)
    assert ckpt.resume() == 3
    state["x"].fill_(4)
    ckpt.save(4).wait()
    assert ckpt.resume(3) == 3
    state["x"].fill_(44)
    ckpt.save(4).wait()
    ckpt.close()
    assert libckpt.load(store)["x"][0] == 44

    ckpt = opened(state)
    for step in (7, "latest~9"):
        with pytest.raises(libckpt.StepNotFoundError):
            ckpt.resume(step)
    for wrong in ("newest", "latest~", "latest~-1", "5"):
        with pytest.raises(ValueError, match="latest"):
            ckpt.resume(wrong)


def three_steps(opened: Any) -> dict[str, Any]:
    state = {"x": torch.zeros(3000), "n": 0}
    ckpt = opened(state)
    for step in (1, 2, 3):
        state["x"].fill_(step)
        state["n"] = step
        ckpt.save(step).wait()
    ckpt.close()
    state["n"] = 0
    return state


@pytest.mark.parametrize("what", ["shard", "index", "manifest", "gone", "short"])
def test_a_newest_step_that_is_bad_is_passed_over_loudly(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    state = three_steps(opened)
    directory = step_directory(store, 3)
    shard = next(directory.glob("*.safetensors"))
    if what == "shard":
        flip(shard, 5000)
    elif what == "index":
        flip(next(directory.glob("*.index")), 100)
    elif what == "manifest":
        flip(directory / "manifest.json", 40)
    elif what == "gone":
        shard.unlink()
    else:
        with shard.open("r+b") as file:
            file.truncate(5000)
    ckpt = opened(state)
    with pytest.warns(libckpt.CheckpointWarning, match="step 3"):
        assert ckpt.resume() == 2
    assert state["n"] == 2
    assert torch.equal(state["x"], torch.full((3000,), 2.0))
    assert any(r.levelno == logging.ERROR and "step 3" in r.getMessage() for r in caplog.records)
    with pytest.warns(libckpt.CheckpointWarning):
        assert libckpt.load(store)["n"] == 2
    # The bad step is behind us: the run goes on past it.
    ckpt.save(3).wait()
    ckpt.close()
    assert opened(state).resume() == 3


def test_a_step_comes_back_from_quarantine(opened: Any, store: Path) -> None:
    """As docs/reliability.md says it, and as the warning does."""
    state = three_steps(opened)
    shard = shards(store)[-1]
    flip(shard, 5000)
    ckpt = opened(state)
    with pytest.warns(libckpt.CheckpointWarning, match="step 3"):
        assert ckpt.resume() == 2
    flip(shard, 5000)
    note = shard.parent / "quarantine.json"
    said = re.escape(f"(if its files are good again, remove {note.relative_to(store)})")
    with pytest.warns(libckpt.CheckpointWarning, match=said):
        assert ckpt.resume() == 2
    ckpt.close()
    note.unlink()
    assert opened(state).resume() == 3


def test_steps_that_exist_but_cannot_be_read_are_no_fresh_start(opened: Any, store: Path) -> None:
    state = three_steps(opened)
    for shard in shards(store):
        flip(shard, 5000)
    ckpt = opened(state)
    with (
        pytest.warns(libckpt.CheckpointWarning),
        pytest.raises(libckpt.IntegrityError, match="none of them can be read") as caught,
    ):
        ckpt.resume()
    assert isinstance(caught.value.__cause__, libckpt.IntegrityError)
    assert caught.value.__cause__.tensor == "x"
    ckpt.close()
    ckpt = opened(state)
    with pytest.warns(libckpt.CheckpointWarning), pytest.raises(libckpt.IntegrityError):
        ckpt.resume()


def test_a_step_asked_for_by_name_is_taken_or_refused(opened: Any, store: Path) -> None:
    state = three_steps(opened)
    flip(shards(store)[-1], 5000)
    with pytest.raises(libckpt.IntegrityError) as caught:
        opened(state).resume(3)
    error = caught.value
    assert error.step == 3
    assert error.tensor == "x"
    assert error.file is not None
    assert error.file.endswith(".safetensors")
    assert error.offset is not None
    assert error.code == -10001


def save_one(opened: Any, state: dict[str, Any]) -> None:
    ckpt = opened(state)
    ckpt.save(1).wait()
    ckpt.close()


def test_the_step_that_was_resumed_is_the_save_that_exists(opened: Any, store: Path) -> None:
    """A loop that has nothing left to do may end with save(n), too."""
    with opened({"x": torch.ones(3)}) as ckpt:
        ckpt.save(5).wait()
    ckpt = opened({"x": torch.zeros(3)}, every=5)
    assert ckpt.resume() == 5
    save = ckpt.step(5)
    assert save is ckpt.save(5)
    for level in ("staged", "local"):
        save.wait(level, timeout=0)
        assert save.done(level)
    assert (save.step, save.error) == (5, None)
    there = {"step": 5, "generation": 1, "staged": True, "local": True}
    assert save.info._asdict() == {**dict.fromkeys(save.info._fields, 0), **there}
    for level in ("remote", "replicated"):
        for ask in (save.wait, save.done):
            with pytest.raises(libckpt.LevelError):
                ask(level)
    with pytest.raises(libckpt.StepError, match="step 5"):
        ckpt.save(5, {"x": torch.ones(3)})
    save = ckpt.save(6)
    assert ckpt.save(6) is save
    with pytest.raises(libckpt.StepError, match="step 5"):
        ckpt.save(5)
    ckpt.state = {"x": torch.ones(3)}
    with pytest.raises(libckpt.StepError, match="step 6"):
        ckpt.save(6)
    ckpt.close()
    assert [info.step for info in libckpt.list_steps(store)] == [6, 5]


class Drawing(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """A loader that may have a generator."""

    def __init__(self, generator: Any) -> None:
        super().__init__([0], generator=generator)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ({"x": {"new": 1}}, {}, "new"),
        ({"new": torch.ones(1)}, {"strict": False}, "new"),
        ({}, {"tolerate": ["other.*"]}, ""),
        ({"loader": Drawing(torch.Generator())}, {}, "the generator of"),
    ],
    ids=["setting", "tensor", "tolerated", "generator"],
)
def test_a_step_that_is_not_all_of_the_state_is_not_the_save_of_it(
    opened: Any, more: Any, options: Any, said: str
) -> None:
    before = {"loader": Drawing(None)} if "loader" in more else {}
    with opened({"x": {}, **before}) as ckpt:
        ckpt.save(5).wait()
    with opened({"x": {}, **more}) as ckpt:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert ckpt.resume(**options) == 5
        assert said in " ".join(str(one.message) for one in caught)
        with pytest.raises(libckpt.StepError, match="step 5"):
            ckpt.save(5)


MODEL = lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))  # noqa: E731


def wider() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))


def deeper() -> torch.nn.Module:
    return torch.nn.Sequential(*MODEL(), torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("saved", "live", "said"),
    [
        (MODEL, wider, ["0.weight is F32 [5, 3], and was F32 [4, 3]", "changed"]),
        (MODEL, lambda: MODEL().double(), ["0.bias is F64 [4], and was F32 [4]"]),
        (MODEL, deeper, ["missing", "2.weight", "2.bias"]),
        (deeper, MODEL, ["unexpected", "2.weight"]),
        (lambda: torch.zeros(3), lambda: torch.zeros(4), ["state['m'] is F32 [4]", "F32 [3]"]),
        (lambda: torch.zeros(3), MODEL, ["state['m'] is a Sequential, and was plain data"]),
        (MODEL, lambda: torch.zeros(3), ["state['m'] is a Tensor, and was Sequential"]),
        (
            lambda: {"a": torch.zeros(1)},
            lambda: {"b": torch.zeros(1)},
            ["['m']['a']", "['m']['b']"],
        ),
        (lambda: np.zeros(3), lambda: np.zeros(4), ["state['m'] is float64 [4]", "F64 [3]"]),
        (lambda: [torch.zeros(1)], lambda: [torch.zeros(1)] * 2, ["another arrangement"]),
        (lambda: 1, lambda: torch.zeros(1), ["another arrangement"]),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_touched(
    opened: Any, saved: Any, live: Any, said: list[str]
) -> None:
    save_one(opened, {"m": saved(), "n": 5})
    state = {"m": live(), "n": 1}
    module = isinstance(state["m"], torch.nn.Module)
    before = copy.deepcopy(state["m"].state_dict() if module else state["m"])
    drawn = torch.get_rng_state()
    with pytest.raises(libckpt.MismatchError) as caught:
        opened(state).resume()
    for text in said:
        assert text in str(caught.value)
    assert state["n"] == 1
    assert torch.equal(torch.get_rng_state(), drawn)
    if isinstance(before, (dict, list, torch.Tensor)):
        assert_same(state["m"].state_dict() if module else state["m"], before)


def test_keys_of_the_state_must_match(opened: Any) -> None:
    save_one(opened, {"a": 1, "b": 2})
    with pytest.raises(libckpt.MismatchError) as caught:
        opened({"b": 1, "c": 1}).resume()
    assert "missing (in the state, and not in the checkpoint): state['c']" in str(caught.value)
    assert "unexpected (in the checkpoint, and not in the state): state['a']" in str(caught.value)


def test_long_lists_of_differences_are_cut(opened: Any) -> None:
    save_one(opened, {"m": torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(40))})
    with pytest.raises(libckpt.MismatchError, match="and 70 more"):
        opened({"m": torch.nn.ModuleList()}).resume()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: torch.optim.SGD(m.parameters()), "is a SGD, and was a AdamW"),
        (lambda m: torch.optim.AdamW(list(m.parameters())[:-1]), "missing|unexpected"),
        (
            lambda m: torch.optim.AdamW(
                [{"params": list(m.parameters())[:1]}, {"params": list(m.parameters())[1:]}]
            ),
            "in other groups",
        ),
    ],
)
def test_another_optimizer_does_not_fit(opened: Any, make: Any, said: str) -> None:
    model = MODEL()
    save_one(opened, {"m": model, "o": torch.optim.AdamW(model.parameters())})
    with pytest.raises(libckpt.MismatchError, match=said):
        opened({"m": model, "o": make(model)}).resume()


def test_another_scheduler_does_not_fit(opened: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    save_one(opened, {"s": lrs.StepLR(optimizer, 3)})
    with pytest.raises(libckpt.MismatchError, match="is a ExponentialLR, and was a StepLR"):
        opened({"s": lrs.ExponentialLR(optimizer, 0.9)}).resume()


def test_parameters_may_come_in_another_order(opened: Any) -> None:
    """State belongs to names, not to positions."""
    model = MODEL()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    save_one(opened, {"m": model, "o": optimizer})
    other = MODEL()
    reverse = torch.optim.AdamW(list(other.parameters())[::-1])
    opened({"m": other, "o": reverse}).resume()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert_same(reverse.state[b], optimizer.state[a])


def test_weights_tied_now_and_two_then(opened: Any) -> None:
    class Two(torch.nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            if tied:
                self.b.weight = self.a.weight

    save_one(opened, {"m": Two(tied=False)})
    with pytest.raises(libckpt.MismatchError, match="are one tensor, and were two"):
        opened({"m": Two(tied=True)}).resume()


def test_two_now_and_tied_then_both_get_it(opened: Any) -> None:
    test = torch.nn.Linear(2, 2)
    tied = torch.nn.ModuleDict({"a": test, "b": test})
    save_one(opened, {"m": tied})
    two = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    opened({"m": two}).resume()
    assert torch.equal(two["a"].weight, test.weight)
    assert torch.equal(two["b"].weight, test.weight)


def test_moments_are_not_cast_on_the_way(opened: Any) -> None:
    """torch's own load_state_dict() would make them bf16, like the parameter."""

    class Mixed(torch.optim.AdamW):
        pass

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(4, 4).bfloat16()
        optimizer = Mixed(model.parameters())
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(3.0),
                "exp_avg": torch.randn(parameter.shape),
                "exp_avg_sq": torch.rand(parameter.shape),
            }
        return model, optimizer

    model, optimizer = make()
    save_one(opened, {"m": model, "o": optimizer})
    fresh = torch.nn.Linear(4, 4).bfloat16()
    empty = Mixed(fresh.parameters())
    opened({"m": fresh, "o": empty}).resume()
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert_same(empty.state[b], optimizer.state[a])


def test_a_framework_that_casts_is_found_out(opened: Any) -> None:
    class Casting(torch.optim.SGD):
        """Has a say of its own, and casts as torch does."""

        def state_dict(self) -> Any:
            return super().state_dict()

    model = torch.nn.Linear(4, 4).bfloat16()
    optimizer = Casting(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"momentum_buffer": torch.randn(parameter.shape)}
    state = {"m": model, "o": optimizer}
    save_one(opened, state)
    with pytest.raises(libckpt.MismatchError, match="momentum_buffer of weight is torch"):
        opened(state).resume()


def test_a_store_of_another_program_is_no_state(opened: Any, store: Path) -> None:
    from libckpt._native import ffi, lib

    ckpt = opened({})
    ret = ffi.new("struct ckpt_save **")
    assert lib.ckpt_save_begin(ckpt._core.engine.ptr, 1, ffi.NULL, ret) == 0
    tensor = ffi.new("struct ckpt_tensor *")
    name, data, shape = (
        ffi.new("char[]", b"x"),
        ffi.new("float[2]", [1, 2]),
        ffi.new("int64_t[1]", [2]),
    )
    tensor.size, tensor.name, tensor.data, tensor.shape = ffi.sizeof(tensor[0]), name, data, shape
    tensor.dtype, tensor.ndim = 12, 1
    assert lib.ckpt_save_add(ret[0], tensor, 1) == 0
    assert lib.ckpt_save_start(ret[0]) == 0
    assert lib.ckpt_save_wait(ret[0], 2, 30_000) == 0
    lib.ckpt_save_free(ret[0])
    with pytest.raises(libckpt.FormatError, match=r"libckpt\.load"):
        ckpt.resume(1)
    assert libckpt.load(store)["x"].tolist() == [1, 2]
