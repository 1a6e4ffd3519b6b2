# SPDX-License-Identifier: Apache-2.0
"""Bad disks: full, read only, gone. Earlier steps stay, and the policy says what the loop sees."""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import remotely, until

import libckpt

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """A file system, and what freezes it (True) and thaws it."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(48 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("mounting a file system needs root and loop devices")
    frozen = False

    def freeze(on: bool) -> None:
        nonlocal frozen
        subprocess.run(["fsfreeze", "-f" if on else "-u", disk], check=True)
        frozen = on

    yield disk, freeze
    if frozen:
        freeze(False)
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> Path:
    """Takes all the space there is."""
    path = disk / "filler"
    block = bytes(MIB)
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(block)
    assert shutil.disk_usage(disk).free == 0
    return path


def committed(store: Path) -> list[int]:
    return [s.step for s in libckpt.list_steps(store) if s.state == "committed"]


def refusal(save: libckpt.Save) -> libckpt.StorageError | None:
    try:
        save.wait("local", timeout=180)
    except libckpt.StorageError as error:
        return error
    return None


def state_of(size: int = 2 * MIB) -> dict[str, Any]:
    return {"x": torch.ones(size // 4)}


def test_a_full_disk_warns_and_raises_the_third_time(opened: Any, small_disk: Path) -> None:
    state = state_of()
    ckpt = opened(state, path=small_disk / "store")
    ckpt.save(1).wait()
    filler = fill(small_disk)

    def failed(step: int) -> libckpt.Save:
        save = ckpt.save(step)
        with pytest.raises(libckpt.StorageError) as caught:
            save.wait()
        assert caught.value.errno == errno.ENOSPC
        assert isinstance(caught.value, OSError)
        assert caught.value.step == step
        assert "step-" in str(caught.value.file)
        return save

    for step in (2, 3):
        assert isinstance(failed(step).error, libckpt.StorageError)
    filler.unlink()
    state["x"] += 1
    ckpt.save(4).wait()  # there is room again, and the count starts anew
    fill(small_disk)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in (5, 6, 7):
            save = ckpt.save(step)
            until(save.done)
            if step < 7:
                ckpt.step(step)
    assert [w.category for w in told] == [libckpt.CheckpointWarning] * 2
    assert "step 5" in str(told[0].message)
    with pytest.raises(libckpt.StorageError, match=r"ENOSPC"):
        ckpt.step(7)
    ckpt.step(7)  # once
    ckpt.close()
    steps = libckpt.list_steps(small_disk / "store")
    assert [info.step for info in steps] == [4, 1]
    assert torch.equal(libckpt.load(small_disk / "store")["x"], torch.full((MIB // 2,), 2.0))
    assert torch.equal(libckpt.load(small_disk / "store", 1)["x"], torch.ones(MIB // 2))


def test_a_disk_that_is_full_of_what_waits_for_the_remote(
    opened: Any, small_disk: Path, tmp_path: Path
) -> None:
    """One save fails and the training goes on; what keep_last would have removed goes, no more."""
    remote, store = tmp_path / "remote", small_disk / "store"
    state = state_of(4 * MIB)
    ckpt = opened(state, path=store, remote=remote, keep_last=1)
    remotely(ckpt.save(1))
    claims, away = remote / "gens", remote / "away"  # nothing can be committed there without
    claims.rename(away)
    claims.write_text("")
    saves: list[libckpt.Save] = []
    for step in range(2, 20):
        state["x"] += 1
        saves.append(ckpt.save(step))
        if (full := refusal(saves[-1])) is not None:
            break
    assert full is not None
    assert full.errno == errno.ENOSPC
    *waiting, failed = saves
    assert len(waiting) >= 3, "all of them were on the disk until it was full"
    newest = failed.step + 1
    until(lambda: committed(store) == [newest - 2])
    state["x"] += 1
    save = ckpt.save(newest)
    save.wait("local", timeout=180)
    claims.unlink()
    away.rename(claims)
    remotely(save)
    remotely(waiting[-1])
    for gone in waiting[:-1]:
        with pytest.raises(libckpt.StepNotFoundError, match="not there any more"):
            remotely(gone)
    ckpt.close()
    assert committed(remote) == [newest, newest - 2, 1]
    assert torch.equal(torch.as_tensor(libckpt.load(remote)["x"]), state["x"])


def test_a_failure_raises_at_once_if_asked(opened: Any, small_disk: Path) -> None:
    ckpt = opened(state_of(), path=small_disk / "store", on_error="raise")
    ckpt.save(1).wait()
    filler = fill(small_disk)
    for step, use in ((2, lambda: ckpt.step(0)), (4, lambda: ckpt.save(5))):
        save = ckpt.save(step)
        until(save.done)
        with pytest.raises(libckpt.StorageError):
            use()
    save = ckpt.save(6)
    until(save.done)
    with pytest.raises(libckpt.StorageError):
        ckpt.close()
    filler.unlink()


def test_a_function_is_told(opened: Any, small_disk: Path) -> None:
    told: list[libckpt.CheckpointError] = []
    ckpt = opened(state_of(), path=small_disk / "store", on_error=told.append)
    fill(small_disk)
    for step in (1, 2, 3, 4):
        save = ckpt.save(step)
        until(save.done)
    ckpt.close()
    assert [error.step for error in told] == [1, 2, 3, 4]
    assert all(isinstance(error, libckpt.StorageError) for error in told)


def test_a_failure_is_in_the_log_with_what_matters(
    opened: Any, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt = opened(state_of(), path=small_disk / "store")
    fill(small_disk)
    save = ckpt.save(7)
    with pytest.raises(libckpt.StorageError):
        save.wait()
    ckpt.close()
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert any("7" in x and str(small_disk) in x and "ENOSPC" in x for x in lines), lines


def test_a_full_disk_does_not_stop_the_training_with(opened: Any, small_disk: Path) -> None:
    """The loop's own error is not hidden by a save that failed."""
    ckpt = opened(state_of(), path=small_disk / "store", on_error="raise")
    ckpt.save(1).wait()
    fill(small_disk)

    def loop() -> None:
        with ckpt:
            ckpt.save(2)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop()


def test_a_store_larger_than_the_disk_is_refused_by_the_disk(opened: Any, small_disk: Path) -> None:
    state = state_of(40 * MIB)
    ckpt = opened(state, path=small_disk / "store")
    with pytest.raises(libckpt.StorageError):
        ckpt.save(1).wait()
    ckpt.close()
    # What the failed save wrote is gone.
    assert shutil.disk_usage(small_disk).used < MIB


def test_a_read_only_store(small_disk: Path, opened: Any) -> None:
    ckpt = opened(state_of(), path=small_disk / "store")
    ckpt.save(1).wait()
    ckpt.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert libckpt.load(small_disk / "store")["x"].sum() == MIB // 2

    def attempt() -> None:
        ckpt = opened(state_of(), path=small_disk / "store", on_error="raise")
        ckpt.resume()
        ckpt.save(2).wait()

    with pytest.raises(libckpt.StorageError) as caught:
        attempt()
    assert caught.value.errno == errno.EROFS


def test_a_store_that_has_vanished(opened: Any, store: Path) -> None:
    ckpt = opened(state_of(), on_error="raise")
    ckpt.save(1).wait()
    shutil.rmtree(store)
    save = ckpt.save(2)
    with pytest.raises(libckpt.CheckpointError) as caught:
        save.wait()
    assert str(store) in str(caught.value)
    with pytest.raises(libckpt.CheckpointError):
        ckpt.save(3).wait()


def without_privileges() -> bool:
    return os.geteuid() != 0


def test_no_permission(opened: Any, store: Path, tmp_path: Path) -> None:
    """As a user who may not write there."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent != Path("/") and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    libc = ctypes.CDLL(None, use_errno=True)

    def attempt() -> libckpt.CheckpointError:
        with pytest.raises(libckpt.CheckpointError) as caught:
            libckpt.Checkpointer(locked / "store", {"x": 1}, pool_bytes=MIB)
        return caught.value

    if without_privileges():
        error = attempt()
    else:
        # Of this thread only: file access as nobody.
        previous = libc.setfsuid(65534)
        try:
            error = attempt()
        finally:
            libc.setfsuid(previous)
    assert isinstance(error, libckpt.StorageError)
    assert error.errno == errno.EACCES
    assert str(locked) in str(error)


@pytest.mark.waits
def test_a_save_is_skipped_while_the_disk_holds_one_that_has_ended(
    opened: Any, frozen_disk: tuple[Path, Callable[[bool], None]]
) -> None:
    disk, freeze = frozen_disk
    ckpt = opened(state_of(), path=disk / "store", busy="skip", save_timeout=8)
    ckpt.save(1).wait()
    freeze(True)
    with pytest.raises(libckpt.DeadlineError) as caught:
        ckpt.save(2).wait()
    assert caught.value.step == 2
    for step in (3, 4, 5):  # and not a third failure in a row
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", libckpt.CheckpointWarning)
            assert isinstance(ckpt.save(step).error, libckpt.SkippedError)
    assert ckpt.stats()["saves_skipped"] == 3
    freeze(False)
    until(lambda: not isinstance(ckpt.save(6).error, libckpt.SkippedError))
    ckpt.close()
    assert 6 in {step.step for step in libckpt.list_steps(disk / "store")}
