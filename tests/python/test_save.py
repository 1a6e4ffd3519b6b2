# SPDX-License-Identifier: Apache-2.0
"""Saving: what save(), step() and the Save promise."""

import copy
import logging
import pickle
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Training, assert_same, run, shards
from waiting import finished, until

import libckpt


def steps_of(store: Path) -> list[int]:
    return [info.step for info in libckpt.list_steps(store)]


def test_a_save_is_durable_when_it_says_so(opened: Any, store: Path) -> None:
    training = Training()
    training.step()
    ckpt = opened(training.state)
    save = ckpt.save(7)
    assert save.step == 7
    save.wait()
    assert save.done()
    assert save.done("staged")
    assert save.error is None
    info = save.info
    assert info.staged
    assert info.local
    assert not info.failed
    assert info.bytes == shards(store)[0].stat().st_size
    assert info.generation == 1
    assert 0 < info.loop_time < 60
    assert 0 <= info.stage_time <= info.local_time
    assert steps_of(store) == [7]


def test_step_saves_when_it_is_due(opened: Any, store: Path) -> None:
    training = Training()
    ckpt = opened(training.state, every=3)
    made = []
    for step in range(1, 10):
        training.step()
        made.append(ckpt.step(step))
    ckpt.close()
    assert [step for step, save in enumerate(made, 1) if save is not None] == [3, 6, 9]
    assert steps_of(store) == [9, 6, 3]
    never = opened({"x": 1}, path=store.parent / "never")
    assert never.step(1) is None


def test_wait_asks_for_a_level_that_is_there(opened: Any) -> None:
    save = opened({"x": torch.zeros(3)}).save(1)
    save.wait("staged")
    save.wait("local")
    for level in ("remote", "replicated"):
        with pytest.raises(libckpt.LevelError):
            save.wait(level)
        with pytest.raises(libckpt.LevelError):
            save.done(level)
    with pytest.raises(ValueError, match="staged"):
        save.wait("disk")


def test_a_step_is_saved_once_and_steps_ascend(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(3)})
    ckpt.save(5).wait()
    for step in (4, 0):
        with pytest.raises(libckpt.StepError, match=f"step {step}") as caught:
            ckpt.save(step)
        assert caught.value.code == -10010
    ckpt.save(6).wait()
    assert steps_of(store) == [6, 5]


def test_the_last_step_again_is_the_save_that_exists(opened: Any, store: Path) -> None:
    """A loop may end with save(n) after step(n). Another state by that number is refused."""
    ckpt = opened({"x": torch.zeros(3)}, every=5)
    save = ckpt.step(5)
    assert ckpt.save(5) is save
    save.wait()
    assert ckpt.save(5) is save
    with pytest.raises(libckpt.StepError, match="step 5"):
        ckpt.save(5, {"x": torch.ones(3)})
    other = ckpt.save(6, {"x": torch.ones(3)})
    with pytest.raises(libckpt.StepError, match="step 6"):
        ckpt.save(6)
    other.wait()
    assert ckpt.stats()["saves_committed"] == len([5, 6])
    assert steps_of(store) == [6, 5]


def test_home_is_written_as_a_shell_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with libckpt.Checkpointer("~/run", {"x": torch.ones(3)}) as ckpt:
        ckpt.save(1).wait()
    assert steps_of(tmp_path / "run") == [1]
    assert torch.equal(torch.as_tensor(libckpt.load("~/run")["x"]), torch.ones(3))


@pytest.mark.parametrize("step", [True, 1.0, "1", None])
def test_a_step_is_an_int(opened: Any, step: Any) -> None:
    ckpt = opened({"x": 1})
    with pytest.raises(TypeError):
        ckpt.save(step)
    with pytest.raises(TypeError):
        ckpt.step(step)


def test_a_step_has_its_limits(opened: Any) -> None:
    ckpt = opened({"x": 1})
    for step in (-1, 10**10):
        with pytest.raises(ValueError, match="step"):
            ckpt.save(step)
    ckpt.save(torch.tensor(3).item()).wait()
    ckpt.save(9999999999).wait()


def test_wrong_arguments_are_refused_at_once(store: Path) -> None:
    for wrong in (
        {"every": 0},
        {"keep_last": -1},
        {"on_error": "ignore"},
        {"io": "dma"},
        {"remote_every": 0},
        {"remote_bytes_per_s": 0},
        {"remote_keep_last": 0},
        {"remote_keep_every": 0},
        {"remote_grace": 0},
        {"remote_grace": None},
        {"remote_grace": 2**32},
        {"drain_timeout": -1},
        {"busy": "drop"},
        {"save_timeout": 0},
        {"save_timeout": float("nan")},
        {"save_timeout": float("inf")},
        {"pool_bytes": -1},
        {"pool_bytes": 2**64},
        {"every": 2**70},
        {"keep_last": 2**70},
        {"keep_every": 2**63},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            libckpt.Checkpointer(store, {}, **wrong)
    for wrong in (
        {"progress": 3},
        {"on_error": 3},
        {"on_error": None},
        {"pool_bytes": 1e6},
        {"keep_last": "3"},
        {"save_timeout": "60"},
        {"drain_timeout": None},
        {"remote_every": 1.5},
        {"remote_keep_last": 1.5},
        {"remote_grace": 0.5},
    ):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            libckpt.Checkpointer(store, {}, **wrong)
    with pytest.raises(ValueError, match="NUL"):
        libckpt.Checkpointer(f"{store}\0more", {})
    with pytest.raises(TypeError):
        libckpt.Checkpointer(store, {}, every=1.5)  # type: ignore[arg-type]
    with pytest.raises(libckpt.UnsupportedError, match="s3://"):
        libckpt.Checkpointer("s3://bucket/run", {})
    assert not store.exists()


def test_the_parent_of_a_store_must_exist(tmp_path: Path) -> None:
    with pytest.raises(libckpt.StorageError) as caught:
        libckpt.Checkpointer(tmp_path / "no" / "store", {})
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 2


def test_another_state_may_be_saved(opened: Any, store: Path) -> None:
    ckpt = opened({"x": 1})
    ckpt.save(1).wait()
    ckpt.save(2, {"y": torch.arange(4)}).wait()
    assert libckpt.load(store, 1) == {"x": 1}
    assert torch.equal(libckpt.load(store)["y"], torch.arange(4))
    nothing = opened(path=store.parent / "b")
    with pytest.raises(libckpt.UnsupportedStateError, match="no state"):
        nothing.save(1)
    with pytest.raises(libckpt.UnsupportedStateError, match="no state"):
        nothing.resume()


def test_what_save_was_given_is_what_is_stored(opened: Any, store: Path) -> None:
    """Everything that changes right after save() has returned was copied before."""
    training = Training()
    training.step()
    state: dict[str, Any] = {**training.state, "log": [1, 2], "own": torch.arange(50_000)}
    ckpt = opened(state)
    then = training.snapshot()
    ckpt.save(1)
    state["own"].zero_()
    state["log"].append(3)
    training.model.mix[1].running_mean.zero_()
    for _ in range(3):
        training.step()
    ckpt.close()
    held = libckpt.load(store)
    assert held["log"] == [1, 2]
    assert torch.equal(held["own"], torch.arange(50_000))
    for name, tensor in then["model"].items():
        assert_same(held["model"][name], tensor, name)
    names = [n for n, _ in training.model.named_parameters()]
    for index, entry in then["optimizer"]["state"].items():
        assert_same(held["optimizer"]["state"][names[index]], entry, names[index])
    assert held["scheduler"] == then["scheduler"]
    assert held["loader"] == then["loader"]


def test_skip_leaves_the_running_save_alone(opened: Any, store: Path) -> None:
    state = {"x": torch.zeros(12_000_000)}
    ckpt = opened(state, busy="skip")
    first = ckpt.save(1)
    second = ckpt.save(2)
    if first.done():
        pytest.fail("48 MB were durable before the next call: the test needs more")
    assert second.done()
    assert isinstance(second.error, libckpt.SkippedError)
    with pytest.raises(libckpt.SkippedError, match="step 2"):
        second.wait()
    first.wait()
    ckpt.save(3).wait()
    assert ckpt.stats()["saves_skipped"] == 1
    ckpt.close()
    assert steps_of(store) == [3, 1]


def test_wait_lets_the_running_save_end(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(12_000_000)})
    saves = [ckpt.save(step) for step in (1, 2, 3)]
    saves[-1].wait()
    assert all(save.done() for save in saves)
    assert ckpt.stats()["saves_waited"] == 2
    assert ckpt.stats()["saves_waited_ns"] > 0
    assert steps_of(store) == [3, 2, 1]


def test_a_wait_has_a_deadline(opened: Any) -> None:
    ckpt = opened({"x": torch.zeros(25_000_000)})
    saves: list[libckpt.Save] = []
    found: list[TimeoutError] = []

    def expires(state: Any = None, timeout: float = 0) -> bool:
        """Another one, if it was over before it was waited for."""
        saves.append(ckpt.save(len(saves) + 1, state))
        try:
            saves[-1].wait(timeout=timeout)
        except TimeoutError as error:
            found.append(error)
            return True
        return False

    until(expires)
    save = saves[-1]
    assert isinstance(found[0], libckpt.WaitTimeoutError)
    assert f"step {len(saves)}" in str(found[0])
    for wrong, kind in ((float("nan"), ValueError), ("1", TypeError), (True, TypeError)):
        with pytest.raises(kind, match="timeout"):
            save.wait(timeout=wrong)
    model = torch.nn.Linear(5000, 5000)
    behind = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    until(lambda: expires(behind, float("-inf")))
    save.wait(timeout=float("inf"))
    ckpt.save(len(saves) + 1).wait(timeout=1e306)
    ckpt.save(len(saves) + 2).wait()


def test_a_save_that_takes_too_long_is_given_up(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(30_000_000)}, save_timeout=0.001)
    save = ckpt.save(1)
    with pytest.raises(libckpt.DeadlineError):
        save.wait()
    # Who waits in a loop until there is no TimeoutError must get out of it.
    with pytest.raises(libckpt.DeadlineError) as caught:
        save.wait(timeout=0)
    assert not isinstance(caught.value, TimeoutError)
    assert isinstance(save.error, libckpt.DeadlineError)
    ckpt.close()
    assert steps_of(store) == []


def block(store: Path, *steps: int) -> None:
    """Makes the saves of these steps fail: something else is where their directory should be."""
    for step in steps:
        (store / "g000001" / f"step-{step:010d}").touch()


def ended(save: libckpt.Save) -> None:
    until(save.done)


def test_failures_that_wait_has_raised_count_and_are_not_told_twice(
    opened: Any, store: Path
) -> None:
    ckpt = opened({"x": torch.zeros(3)})
    ckpt.save(1).wait()
    block(store, 2, 3, 4, 5, 7, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (2, 3):
            with pytest.raises(libckpt.StorageError, match=f"step-{step:010d}"):
                ckpt.save(step).wait()
    ended(ckpt.save(4))
    with pytest.raises(libckpt.StorageError, match="step-0000000004"):
        ckpt.step(4)
    ended(ckpt.save(5))
    with pytest.raises(libckpt.StorageError, match="step-0000000005"):
        ckpt.step(5)
    ckpt.save(6).wait()  # and the count starts again
    ended(ckpt.save(7))
    with pytest.warns(libckpt.CheckpointWarning, match="step 7 was not saved"):
        ckpt.step(7)


def test_a_function_is_told_of_what_nobody_waited_for(opened: Any, store: Path) -> None:
    told: list[libckpt.CheckpointError] = []
    ckpt = opened({"x": torch.zeros(3)}, on_error=told.append)
    ckpt.save(1).wait()
    block(store, 2, 3, 4, 5)
    with pytest.raises(libckpt.StorageError):
        ckpt.save(2).wait()
    for step in (3, 4, 5):
        ended(ckpt.save(step))
        ckpt.step(step)
    ckpt.close()
    assert [error.step for error in told] == [3, 4, 5]


def test_without_an_optimizer_everything_is_eager_and_that_is_said_once(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "libckpt")
    ckpt = opened({"model": torch.nn.Linear(2, 2)})
    ckpt.save(1).wait()
    ckpt.save(2).wait()
    assert caplog.text.count("everything is copied before save() returns") == 1


@pytest.mark.parametrize(("width", "small"), [(200, True), (2200, False)])
def test_what_is_small_is_copied_at_once(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture, width: int, small: bool
) -> None:
    caplog.set_level(logging.INFO, "libckpt")
    model = torch.nn.Linear(width, width)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0)}
    ckpt = opened(state, eager=None)
    then = model.weight.detach().clone()
    save = ckpt.save(1)
    if small:  # and may be changed by anyone
        with torch.no_grad():
            model.weight.zero_()
    save.wait()
    assert ("(it is small)" in caplog.text) is small
    assert bool(state["optimizer"]._optimizer_step_pre_hooks) is not small
    assert torch.equal(libckpt.load(store, step=1)["model"]["weight"], then)


def test_every_checkpoint_has_its_line_in_the_log(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "libckpt")
    ckpt = opened({"x": torch.zeros(3)})
    ckpt.save(1).wait()
    ckpt.save(2)
    ckpt.close()
    for step in (1, 2):
        lines = [r for r in caplog.records if r.getMessage().startswith(f"step {step}: ")]
        assert len(lines) == 1
        assert "ms of the loop's time" in lines[0].getMessage()
        assert f"step {step} is durable" in caplog.text  # the library's own, through the thread
    assert {r.name for r in caplog.records} == {"libckpt"}


def test_no_line_is_lost_when_the_log_is_closed(
    opened: Any, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """close() waits for the last line, however slowly they are taken: here when it has begun."""
    caplog.set_level(logging.INFO, "libckpt")
    made: list[Any] = []

    class Slow(logging.Handler):
        def createLock(self) -> None:
            """None: what the training logs itself must not wait."""
            self.lock = None

        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread().name == "libckpt-log":
                until(lambda: made and not made[0]._core.engine._door.is_open)

    handler = Slow()
    logger = logging.getLogger("libckpt")
    logger.addHandler(handler)
    try:
        ckpt = opened({"x": torch.zeros(3)})
        made.append(ckpt)
        for step in range(1, 6):
            ckpt.save(step).wait()
        ckpt.close()
    finally:
        logger.removeHandler(handler)
    for step in range(1, 6):
        assert f"step {step} is durable" in caplog.text


def test_retention(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(3)}, keep_last=2, keep_every=4)
    ckpt.save(1).wait()
    ckpt.pin(1)
    for step in range(2, 11):
        ckpt.save(step).wait()
    until(lambda: steps_of(store) == [10, 9, 8, 4, 1])


def test_an_unpinned_step_goes(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(3)}, keep_last=1)
    ckpt.save(1).wait()
    ckpt.pin(1)
    ckpt.save(2).wait()
    ckpt.unpin(1)
    ckpt.save(3).wait()
    ckpt.save(4).wait()
    until(lambda: steps_of(store) == [4])


def test_stats_count(opened: Any) -> None:
    ckpt = opened({"x": torch.zeros(1000)})
    ckpt.save(1).wait()
    ckpt.save(2).wait()
    stats = ckpt.stats()
    assert stats["saves_started"] == stats["saves_committed"] == 2
    assert stats["io"] in ("uring", "threads")
    assert stats["generation"] == 1
    assert stats["bytes_written"] >= 8000
    assert isinstance(stats["io_direct"], bool)


@pytest.mark.parametrize("kind", ["threads", "uring"])
def test_both_ways_to_the_disk(opened: Any, store: Path, kind: str) -> None:
    try:
        ckpt = opened({"x": torch.arange(100_000)}, io=kind)
    except libckpt.CheckpointError:
        pytest.skip(f"{kind}: this kernel refuses it")
    ckpt.save(1).wait()
    assert ckpt.stats()["io"] == kind
    assert torch.equal(libckpt.load(store)["x"], torch.arange(100_000))


def test_plain_values_need_no_torch(store: Path) -> None:
    """Nor does reading them: a program without torch may keep its state here, too."""
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import libckpt
state = {{"n": 1, "log": [1, (2, 3)], "data": b"x" * 9000}}
with libckpt.Checkpointer({str(store)!r}, state, pool_bytes=1 << 20) as ckpt:
    ckpt.save(1).wait()
    state["n"] = 5
    ckpt.save(2).wait()
    state["n"] = 0
    print(ckpt.resume(), state["n"])
held = libckpt.load({str(store)!r})
print(held == state, libckpt.load({str(store)!r}, 1)["n"])
"""
    done = finished([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "5", "True", "1"]


def test_a_save_outlives_its_checkpointer(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(3)})
    save = ckpt.save(1)
    ckpt.close()
    ckpt.close()
    assert save.done()
    save.wait()
    assert save.info.local
    for use in (lambda: ckpt.save(2), lambda: ckpt.step(2), ckpt.resume, ckpt.stats):
        with pytest.raises(libckpt.ClosedError):
            use()


def test_close_saves_nothing_new_and_drains(opened: Any, store: Path) -> None:
    with opened({"x": torch.zeros(12_000_000)}, every=1) as ckpt:
        ckpt.step(1)
    assert steps_of(store) == [1]


def test_an_exception_in_the_loop_is_what_comes_out(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(9_000_000)})

    def loop() -> None:
        with ckpt:
            ckpt.save(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop()
    assert steps_of(store) == [1]
    assert ckpt._core.engine.closed


def test_handles_cannot_be_pickled_or_copied(opened: Any) -> None:
    ckpt = opened({"x": 1})
    save = ckpt.save(1)
    for handle in (ckpt, save):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                way(handle)


def test_errors_can_be_pickled() -> None:
    for kind in (libckpt.StorageError, libckpt.IntegrityError, libckpt.WaitTimeoutError):
        error = kind("what, where", code=-28, errno=28, step=3, rank=0, file="a/b", offset=4096)
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert str(back) == "what, where"
        assert (back.code, back.errno, back.step, back.file, back.offset) == (
            -28,
            28,
            3,
            "a/b",
            4096,
        )
        assert back.tensor is None


def test_a_forgotten_checkpointer_is_closed_and_says_so(store: Path) -> None:
    done = run(
        store,
        """
        ckpt = libckpt.Checkpointer(store, {"x": torch.zeros(9_000_000)}, pool_bytes=1 << 20)
        ckpt.save(1)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert steps_of(store) == [1]


def test_a_collected_checkpointer_gives_the_store_back(store: Path) -> None:
    ckpt = [libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20)]
    with pytest.warns(ResourceWarning, match="not closed"):
        ckpt.clear()
    libckpt.Checkpointer(store, {"x": 1}, pool_bytes=1 << 20).close()


def test_progress_is_told_and_its_errors_harm_nothing(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[libckpt.Progress] = []

    def progress(what: libckpt.Progress) -> None:
        told.append(what)
        raise RuntimeError("oops")

    state = {"x": torch.zeros(9_000_000)}
    ckpt = opened(state, progress=progress)
    ckpt.save(1).wait()
    assert told[-1].what == "save"
    assert told[-1].step == 1
    assert told[-1].done >= 36_000_000
    ckpt.resume()
    assert told[-1].what == "restore"
    assert told[-1].done == told[-1].total >= 36_000_000
    assert "oops" in caplog.text


@pytest.mark.no_oracle
def test_the_second_look_is_cheap() -> None:
    """Ten thousand tensors: what is unchanged is only compared."""
    from libckpt._state import Planner

    model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(1700))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {"model": model, "optimizer": optimizer}
    planner = Planner()

    def took() -> float:
        start = time.thread_time()
        planner.snapshot(state)
        return time.thread_time() - start

    first = took()
    again = min(took() for _ in range(5))
    assert again < first / 4
