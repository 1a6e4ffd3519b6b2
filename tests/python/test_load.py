# SPDX-License-Identifier: Apache-2.0
"""Reading without a model, whole and in part, and listing."""

import errno
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Training, assert_same, flip, shards
from waiting import until

import libckpt


@pytest.fixture
def written(opened: Any) -> Training:
    training = Training()
    ckpt = opened(training.state)
    for step in (1, 2):
        training.step()
        ckpt.save(step)
    ckpt.close()
    return training


def test_the_whole_state(written: Training, store: Path) -> None:
    held = libckpt.load(store)
    assert list(held) == ["model", "optimizer", "scheduler", "loader"]
    assert_same(held["model"], dict(written.model.state_dict()))
    assert held["scheduler"] == written.scheduler.state_dict()
    assert held["loader"] == written.loader.state_dict()
    names = [name for name, _ in written.model.named_parameters()]
    (group,) = held["optimizer"]["param_groups"]
    assert group["params"] == names
    assert group["lr"] == written.optimizer.param_groups[0]["lr"]
    for name, parameter in written.model.named_parameters():
        assert_same(held["optimizer"]["state"][name], written.optimizer.state[parameter])


def test_what_is_loaded_fits_a_model(written: Training, store: Path) -> None:
    fresh = Training()
    fresh.model.load_state_dict(libckpt.load(store)["model"])
    assert_same(fresh.model.state_dict(), written.model.state_dict())


def test_a_restore_that_was_given_up_at_a_deadline_ends(
    written: Training, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For whoever waits the same code says that it is not over yet."""
    from libckpt._engine import Engine, lib

    real = Engine.ask

    def ask(self: Engine, call: Any, *args: Any) -> Any:
        if call == lib.ckpt_restore_wait:
            return -errno.ETIMEDOUT
        if call == lib.ckpt_restore_error:
            args[1].code = -errno.ETIMEDOUT
            return -errno.ETIMEDOUT
        return real(self, call, *args)

    monkeypatch.setattr(Engine, "ask", ask)
    with pytest.raises(libckpt.DeadlineError):
        libckpt.load(store)


def test_steps_may_be_chosen(written: Training, store: Path) -> None:
    assert libckpt.load(store, 1)["scheduler"]["last_epoch"] == 1
    assert libckpt.load(store, "latest~1")["scheduler"]["last_epoch"] == 1
    assert libckpt.load(store, "latest")["scheduler"]["last_epoch"] == 2
    with pytest.raises(libckpt.StepNotFoundError):
        libckpt.load(store, 3)
    with pytest.raises(ValueError, match="latest"):
        libckpt.load(store, "last")
    with pytest.raises(TypeError):
        libckpt.load(store, 1.0)  # type: ignore[arg-type]


def test_parts_are_read_alone(opened: Any, store: Path) -> None:
    state = {"big": torch.zeros(4_000_000), "small": torch.arange(5), "other": torch.ones(2)}
    ckpt = opened(state)
    ckpt.save(1).wait()
    ckpt.close()
    assert_same(libckpt.load(store, names=["small"]), {"small": torch.arange(5)})
    assert list(libckpt.load(store, names="small")) == ["small"]
    assert sorted(libckpt.load(store, names=["s*", "oth?r"])) == ["other", "small"]
    told: list[libckpt.Progress] = []
    libckpt.load(store, names=["small"], progress=told.append)
    assert told[-1].total < 4_000_000
    with pytest.raises(libckpt.MismatchError, match="did you mean 'small'"):
        libckpt.load(store, names=["smal"])
    # What is not asked for may be broken.
    flip(shards(store)[0], 8 << 20)
    assert libckpt.load(store, names=["small"])["small"][4] == 4
    with (
        pytest.raises(libckpt.IntegrityError),
        pytest.warns(libckpt.CheckpointWarning, match="step 1"),
    ):
        libckpt.load(store)


def test_loading_changes_nothing(written: Training, store: Path) -> None:
    def stamps() -> list[tuple[str, int, int]]:
        return [
            (str(path), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(store.rglob("*"))
        ]

    flip(shards(store)[-1], 5000)
    before = stamps()
    drawn = torch.get_rng_state()
    with pytest.warns(libckpt.CheckpointWarning):
        libckpt.load(store)
    libckpt.list_steps(store, everything=True)
    assert stamps() == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_where_there_is_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(libckpt.StoreNotFoundError) as caught:
            libckpt.load(path)
        assert str(path) in str(caught.value)
        with pytest.raises(libckpt.StoreNotFoundError):
            libckpt.list_steps(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(libckpt.UnsupportedError, match="gs:// is not supported"):
        libckpt.load("gs://bucket/run")
    with pytest.raises(TypeError):
        libckpt.load(b"bytes")  # type: ignore[arg-type]
    for read in (libckpt.load, libckpt.list_steps):
        with pytest.raises(ValueError, match="NUL"):
            read(f"{tmp_path}\0/../elsewhere")
    with pytest.raises(TypeError, match="progress"):
        libckpt.load(tmp_path, progress=3)  # type: ignore[arg-type]


def test_an_empty_store(opened: Any, store: Path) -> None:
    opened({}).close()
    assert libckpt.list_steps(store) == []
    with pytest.raises(libckpt.StepNotFoundError, match="nothing has been committed"):
        libckpt.load(store)


def test_what_the_list_says(opened: Any, store: Path) -> None:
    ckpt = opened({"x": torch.zeros(1000)})
    ckpt.save(5).wait()
    ckpt.close()
    (info,) = libckpt.list_steps(store)
    assert info.step == 5
    assert info.generation == 1
    assert info.state == "committed"
    assert info.world == 1
    assert info.in_lineage
    assert info.bytes == shards(store)[0].stat().st_size
    assert abs(info.time - time.time()) < 86_400
    assert info.note == ""


def test_the_latest_is_chosen_again_when_retention_removes_it(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is always quicker, between the choice and the opening."""
    from libckpt._engine import Engine

    state = {"n": 1}
    ckpt = opened(state, keep_last=1)
    ckpt.save(1).wait()
    listed = Engine.steps
    left = 5

    def write() -> None:
        for _ in range(3):
            state["n"] += 1
            ckpt.save(state["n"]).wait()
        # What the newest step makes superfluous is removed behind the loop.
        until(lambda: len(list(store.glob("g*/step-*/manifest.json"))) == 1)

    def steps(engine: Engine) -> Any:
        nonlocal left
        found = listed(engine)
        if left:
            left -= 1
            write()
        return found

    monkeypatch.setattr(Engine, "steps", steps)
    assert libckpt.load(store) == {"n": 16}
    # There is an end to it, and the error is the library's.
    left = 100
    with pytest.raises(libckpt.StepNotFoundError, match="step"):
        libckpt.load(store)
    assert left == 90
    left = 0
    assert libckpt.load(store) == {"n": 46}


def test_one_before_the_latest_is_chosen_again_too(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from libckpt import _newest

    state = {"n": 1}
    ckpt = opened(state)
    for state["n"] in (1, 2):
        ckpt.save(state["n"]).wait()
    asked: list[int] = []

    class Vanishing(_newest.Reader):
        """As when the library has lost the race as often as it tries."""

        def __init__(self, engine: Any, step: int) -> None:
            asked.append(step)
            if len(asked) % 4:
                raise libckpt.StepNotFoundError("just removed", file="g0000000001/x/manifest.json")
            super().__init__(engine, step)

    monkeypatch.setattr(_newest, "Reader", Vanishing)
    assert libckpt.load(store, "latest~1") == {"n": 1}
    assert len(asked) == 4
    with pytest.raises(libckpt.StepNotFoundError, match="just removed"):
        libckpt.load(store, 1)
    assert len(asked) == 5
    asked[:] = [0, 0, 0]
    with pytest.raises(libckpt.StepNotFoundError, match="does not hold"):
        libckpt.load(store, "latest~9")
    assert len(asked) == 4


@pytest.mark.parametrize("asked", ["latest", "latest~1"])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_step_that_is_removed_while_it_is_read_is_not_damaged(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch, asked: str, *, resumes: bool
) -> None:
    """By somebody on another machine, whom the lock on it does not keep away."""
    from libckpt._reader import Reader

    state = {"n": torch.zeros(1000)}
    with opened(state) as ckpt:
        for number in (1, 2, 3, 4):
            state["n"][:] = number
            ckpt.save(number).wait()
    real = Reader.read
    removed: list[Path] = []

    def read(reader: Reader, *args: Any) -> None:
        if not removed:
            step = store / f"g000001/step-{reader.step:010d}"
            for path in sorted(step.iterdir()):  # the manifest goes first
                path.unlink()
            removed.append(step)
        real(reader, *args)

    monkeypatch.setattr(Reader, "read", read)
    with warnings.catch_warnings():
        warnings.simplefilter("error", libckpt.CheckpointWarning)
        if resumes:
            with opened(state) as ckpt:
                assert ckpt.resume(asked) == (3 if asked == "latest" else 2)
        else:
            state = libckpt.load(store, asked)
    assert state["n"][0] == (3 if asked == "latest" else 2)
    assert not list(removed[0].iterdir())  # nobody has noted that anything was wrong with it
    # Who wants that step and no other is told.
    removed.clear()
    with pytest.raises(libckpt.StepNotFoundError, match="was deleted while it was read"):
        libckpt.load(store, 1)


def test_the_only_step_is_removed_while_it_is_read(
    opened: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has brought so far is no state to start from."""
    from libckpt._reader import Reader

    state = {"n": torch.zeros(1000)}
    with opened(state) as ckpt:
        ckpt.save(1).wait()
    real = Reader.read

    def read(reader: Reader, *args: Any) -> None:
        shutil.rmtree(store / "g000001/step-0000000001")
        real(reader, *args)

    monkeypatch.setattr(Reader, "read", read)
    with (
        opened(state) as ckpt,
        pytest.raises(libckpt.StepNotFoundError, match="was deleted while it was read"),
    ):
        ckpt.resume()


@pytest.mark.parametrize("how", ["emptied", "flipped"])
def test_a_damaged_claim_is_no_new_start(opened: Any, store: Path, how: str) -> None:
    """What it says never leads anybody into leaving the run behind."""
    state = {"n": 0}
    for number in (5, 6, 7):
        ckpt = opened(state)
        ckpt.resume()
        ckpt.save(number).wait()
        ckpt.close()
    # The newest generation has committed nothing, and what it continues from is not to be known.
    for generation in (2, 3):
        shutil.rmtree(next(store.glob(f"g*{generation}")) / f"step-{4 + generation:010d}")
    claim = store / "gens" / "000002.json"
    if how == "emptied":
        claim.write_bytes(b"")
    else:
        flip(claim, 40)
    for read in (lambda: opened(state).resume(), lambda: libckpt.load(store)):
        with pytest.raises(libckpt.IntegrityError, match=r"gens/000002\.json") as caught:
            read()
        assert caught.value.code == -10001
        assert "started anew" not in str(caught.value)
        assert "new_start" not in str(caught.value)


def test_a_manifest_that_cannot_be_read_now_is_not_passed_over() -> None:
    """It may be good: an older step in its place would be a loss."""
    from libckpt._catalog import StepInfo
    from libckpt._native import lib

    from libckpt import _newest

    for code, passed in (
        (-errno.EACCES, False),
        (-errno.EMFILE, False),
        (lib.CKPT_EVERSION, False),
        (-errno.EIO, True),
        (lib.CKPT_EFORMAT, True),
        (lib.CKPT_EINTEGRITY, True),
    ):
        info = StepInfo(7, 1, "broken", 0, 0.0, 1, False, "so", code, passed_over=True)
        error = _newest._reason_to_pass(info)
        assert error is not None
        assert error.step == 7
        assert _newest.is_unreadable(error) is passed
        assert _newest._reason_to_pass(info._replace(passed_over=False)) is None


def test_what_is_going_is_not_the_latest(written: Training, store: Path) -> None:
    """A step with a tombstone is loaded by its number, or when nothing else is left."""
    (store / "g000001" / "step-0000000002.tombstone").write_text("")
    assert [(info.step, info.deleting) for info in libckpt.list_steps(store)] == [
        (2, True),
        (1, False),
    ]
    assert libckpt.load(store)["scheduler"]["last_epoch"] == 1
    assert libckpt.load(store, 2)["scheduler"]["last_epoch"] == 2
    assert libckpt.load(store, "latest~1")["scheduler"]["last_epoch"] == 2
    (store / "g000001" / "step-0000000001.tombstone").write_text("")
    assert libckpt.load(store)["scheduler"]["last_epoch"] == 2
    shutil.rmtree(store / "g000001" / "step-0000000002")
    assert libckpt.load(store)["scheduler"]["last_epoch"] == 1
