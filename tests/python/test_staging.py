# SPDX-License-Identifier: Apache-2.0
"""Staging memory that finds its size."""

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from pools import SMALL
from ranks import together
from waiting import until

import libckpt

MIB = 1 << 20


def test_tests_take_little_unless_they_ask_for_more(store: Path) -> None:
    with libckpt.Checkpointer(store, {"x": 1}) as ckpt:
        assert ckpt.stats()["pool_bytes"] == SMALL
    with libckpt.Checkpointer(store, {"x": 1}, pool_bytes=0) as ckpt:
        assert ckpt.stats()["pool_bytes"] > SMALL


def ledger_after_a_save(place: Path) -> list[str]:
    """The ledgers that one of two ranks of a node has open, with default staging memory."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    state = {"x": libckpt.PerRank(torch.arange(1 << 20))}
    with libckpt.Checkpointer(place, state, pool_bytes=0) as ckpt:
        for step in (1, 2):
            ckpt.save(step).wait("local")
        found = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if ".staging" in (path := str(descriptor.readlink())):
                    found.append(path)
    return found


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_ranks_of_a_node_have_one_ledger(store: Path, tmp_path: Path) -> None:
    """With default options, through the key-value store. No file is left behind."""
    first, second = together(2, tmp_path, ledger_after_a_save, store)
    assert first == second
    (path,) = first
    # Its name is that of this job: other tests have ledgers of their own in the same directory.
    assert path.startswith("/dev/shm/libckpt-")
    assert not Path(path.removesuffix(" (deleted)")).exists()


def small_pool(opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes this one of so many ranks that a pool begins with 64 MiB at most; what that is here."""
    for power in range(13):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(1 << power))
        with opened({"x": 1}, path=tmp_path / str(power), pool_bytes=0) as ckpt:
            found: int = ckpt.stats()["pool_bytes"]
        if found <= 64 * MIB:
            break
    return found


def test_it_grows_behind_the_first_save(
    opened: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second save waits for no slot; and a size that was given stays.

    How far it may grow depends on what other programs leave of the machine's memory. Where that is
    too little, the test is skipped when the engine has said so.
    """
    small = small_pool(opened, tmp_path, monkeypatch)
    state = {"x": torch.arange((small + 16 * MIB) // 8)}
    caplog.set_level(logging.INFO, "libckpt")
    ckpt = opened(state, pool_bytes=0)
    assert ckpt.stats()["pool_bytes"] == small
    save = ckpt.save(1)
    save.wait()
    size = save.info.bytes
    assert size > small
    until(lambda: "staging memory is" in caplog.text)
    if "A save waits for the disk" in caplog.text:
        ckpt.close()
        pytest.skip("other programs have most of this machine's memory")
    assert "and holds this rank's shard" in caplog.text
    assert ckpt.stats()["pool_bytes"] >= size
    until(lambda: ckpt.stats()["pool_touched"] == ckpt.stats()["pool_bytes"])
    starved = ckpt.stats()["pool_starved"]
    state["x"] += 1
    ckpt.save(2).wait()
    assert ckpt.stats()["pool_starved"] == starved
    ckpt.close()
    assert caplog.text.count("staging memory is") == 1
    assert torch.equal(libckpt.load(tmp_path / "store")["x"], state["x"])

    fixed = opened(state, path=tmp_path / "fixed", pool_bytes=small)
    fixed.save(1).wait()
    assert fixed.stats()["pool_bytes"] == small
    fixed.close()
    assert caplog.text.count("staging memory is") == 1


def test_too_little_is_told_once(
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of very many ranks, whose shard is larger than its part of all memory of the machine."""
    ranks = 4096
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    # It begins with 32 MiB. Page counts may leave out memory that the kernel keeps for itself.
    size = max(40 * MIB, ram // ranks)
    ckpt = opened({"x": torch.ones(size, dtype=torch.uint8)}, pool_bytes=0)
    for step in range(1, 3):
        ckpt.save(step).wait()
    ckpt.close()
    said = [r for r in caplog.records if "A save waits for the disk" in r.getMessage()]
    assert [r.levelno for r in said] == [logging.WARNING]
    assert "the ranks of a node (4096)" in said[0].getMessage()
