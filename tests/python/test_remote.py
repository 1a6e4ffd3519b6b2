# SPDX-License-Identifier: Apache-2.0
"""A remote store, as a training loop sees it: levels, the end, many ranks."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import together
from waiting import LIMIT, finished, remotely, until

import libckpt
from libckpt import _core, _existing, _import

# For the ranks; not at the front: there is a conftest there, too.
sys.path.append(str(Path(__file__).parents[1] / "s3"))
from s3_programs import Bucket, has_s3
from s3_server import S3D, Server

STATE = {"x": torch.arange(1000.0)}
TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).resolve().parents[2] / "build/tools"))


def committed(store: Path | str) -> list[int]:
    return [s.step for s in libckpt.list_steps(store) if s.state == "committed"]


def block(remote: Path) -> Callable[[], None]:
    """Nothing can be committed there until the function that it gives is called."""
    claims, away = remote / "gens", remote / "away"
    claims.rename(away)
    claims.write_text("")

    def unblock() -> None:
        claims.unlink()
        away.rename(claims)

    return unblock


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.mark.parametrize("kind", ["url", "path", "relative"])
def test_saves_go_there(
    opened: Any, remote: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(remote.parent)
    named = {"url": f"file://{remote}", "path": remote, "relative": "remote"}[kind]
    ckpt = opened(STATE, remote=named)
    save = ckpt.save(1)
    remotely(save)
    assert save.done("remote")
    assert save.error is None
    ckpt.save(2)
    ckpt.close()
    assert committed(remote) == [2, 1]
    assert torch.equal(torch.as_tensor(libckpt.load(remote)["x"]), STATE["x"])


def test_counters(opened: Any, remote: Path) -> None:
    ckpt = opened(STATE, remote=remote, remote_every=2)
    with pytest.raises(libckpt.LevelError, match="step 1 goes to no remote store"):
        ckpt.save(1).wait("remote")
    remotely(ckpt.save(2))
    stats = ckpt.stats()
    assert (stats["uploads_done"], stats["remote_step"], stats["remote_generation"]) == (1, 2, 1)
    assert stats["bytes_uploaded"] >= 4000
    assert stats["bytes_uploaded_staged"] == stats["bytes_uploaded"]
    assert stats["remote_wall_ms"] > 0
    assert stats["uploads_waiting"] == stats["uploads_failed"] == 0
    ckpt.close()
    assert committed(remote) == [2]


def test_retention_there(opened: Any, remote: Path, store: Path) -> None:
    """It keeps there what it is told, and here what it is told; a start sends none of it again."""
    ckpt = opened(STATE, remote=remote, remote_keep_last=2, remote_keep_every=3, remote_grace=1)
    for step in range(1, 7):
        remotely(ckpt.save(step))
    until(lambda: committed(remote) == [6, 5, 3])
    # The mark is in the store before it counts as going: that none is going may be too early.
    until(lambda: ckpt.stats()["remote_steps_removed"] == 3)
    assert ckpt.stats()["remote_steps_deleting"] == 0
    ckpt.close()
    assert committed(store) == [6, 5, 4, 3, 2, 1]
    ckpt = opened(STATE, remote=remote, remote_keep_last=2, remote_keep_every=3)
    assert ckpt.resume() == 6
    remotely(ckpt.save(7))
    ckpt.close()
    assert committed(remote) == [7, 6, 5, 3]
    assert not list(remote.glob("g000001/step-0000000004*"))


def test_what_waits_fails_no_save(
    opened: Any, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on; none is lost, and they are there in their order."""
    ckpt = opened(STATE, remote=remote)
    remotely(ckpt.save(1))
    unblock = block(remote)
    saves = [ckpt.save(step) for step in (2, 3, 4)]
    for save in saves:
        save.wait("local")
    with pytest.raises(libckpt.WaitTimeoutError, match="not complete after"):
        saves[0].wait("remote", timeout=0.2)
    assert not saves[0].done("remote")
    assert saves[0].error is None
    unblock()
    remotely(saves[2])
    assert all(save.done("remote") for save in saves)
    ckpt.close()
    assert committed(remote) == [4, 3, 2, 1]


def test_a_step_that_was_resumed(opened: Any, remote: Path, store: Path) -> None:
    """Its save is remote when it is there, as any other."""
    for step, where in ((1, remote), (4, None)):
        ckpt = opened(STATE, remote=where)
        ckpt.resume()
        ckpt.save(step)
        ckpt.close()
    unblock = block(remote)
    ckpt = opened(STATE, remote=remote, remote_every=2)
    assert ckpt.resume() == 4
    save = ckpt.save(4)
    assert save.done()
    assert not save.done("remote")
    with pytest.raises(libckpt.WaitTimeoutError, match="step 4: not complete after"):
        save.wait("remote", timeout=0.2)
    unblock()
    save.wait("remote", timeout=LIMIT)
    assert save.done("remote")
    ckpt.close()
    assert committed(remote) == [4, 1]
    ckpt = opened(STATE, remote=remote, remote_every=3)
    assert ckpt.resume() == 4
    with pytest.raises(libckpt.LevelError, match="step 4 goes to no remote store"):
        ckpt.save(4).wait("remote")


def test_a_step_that_was_resumed_and_will_never_be_there(opened: Any, remote: Path) -> None:
    with opened(STATE) as ckpt:
        ckpt.save(4)
    with libckpt.Checkpointer(remote, STATE) as other:
        other.save(1)
    shutil.rmtree(remote / "g000001")
    ckpt = opened(STATE, remote=remote)
    assert ckpt.resume() == 4
    save = ckpt.save(4)
    with pytest.raises(libckpt.MismatchError, match=r"step 4 is not in .*not being copied"):
        save.wait("remote", timeout=LIMIT)
    assert save.done("remote")
    assert save.error is None
    with pytest.warns(libckpt.CheckpointWarning, match="1 committed step of"):
        ckpt.close()


def test_what_will_never_be_there(opened: Any, remote: Path) -> None:
    """The store of another run: the save is good, and the level says why it has none."""
    with libckpt.Checkpointer(remote, STATE) as other:
        other.save(1)
    shutil.rmtree(remote / "g000001")
    ckpt = opened(STATE, remote=remote, new_start=True)
    save = ckpt.save(5)
    with pytest.raises(libckpt.MismatchError, match="another run"):
        remotely(save)
    with pytest.warns(libckpt.CheckpointWarning, match=f"1 committed step of .*{remote}"):
        ckpt.step(6)
    assert save.done("remote")
    assert save.done("local")
    assert save.error is None
    save.wait("local", timeout=0)
    ckpt.save(7).wait("local")
    with pytest.warns(libckpt.CheckpointWarning, match="1 committed step of"):
        ckpt.close()


def _fail_inside(store: Path, remote: Path) -> None:
    with libckpt.Checkpointer(store, dict(STATE), remote=remote, drain_timeout=1000) as ckpt:
        ckpt.resume()
        ckpt.save(3)
        raise ZeroDivisionError


def test_the_end_waits_no_longer_than_said(
    store: Path, remote: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "_HASTE", 0.3)
    with libckpt.Checkpointer(store, STATE, remote=remote) as ckpt:
        ckpt.save(1)
    unblock = block(remote)
    with caplog.at_level(logging.INFO, "libckpt"):
        with libckpt.Checkpointer(store, dict(STATE), remote=remote, drain_timeout=0.3) as ckpt:
            ckpt.resume()
            ckpt.save(2)
        # An exception leaves in haste, whatever the timeout.
        with pytest.raises(ZeroDivisionError):
            _fail_inside(store, remote)
    for count in (2, 3):
        assert f"after 0.3 s {count} steps" in caplog.text
    assert "the next start of the job sends what is not" in caplog.text
    unblock()
    with libckpt.Checkpointer(store, dict(STATE), remote=remote) as ckpt:
        assert ckpt.resume() == 3
    assert committed(remote) == [3, 2, 1]


def test_closed_before_it_was_there(opened: Any, remote: Path) -> None:
    ckpt = opened(STATE, remote=remote, drain_timeout=0)
    remotely(ckpt.save(1))
    block(remote)
    save = ckpt.save(2)
    ckpt.close()
    with pytest.raises(libckpt.ClosedError, match="closed before it was uploaded"):
        remotely(save)
    assert save.error is None


def _rank_saves(root: Path, node_store: bool, order: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    path = root / (f"node{rank % 2}" if node_store else "store")
    state = {"mine": libckpt.PerRank(torch.full((1000,), float(rank)))}
    with libckpt.Checkpointer(path, state, remote=root / "remote", node_store=node_store) as ckpt:
        remotely(ckpt.save(1))
        ckpt.save(2).wait()
        # They come to the end one after the other, from either side.
        if 0 <= rank - order < world:
            until((root / f"closed-{rank - order}").exists)
    (root / f"closed-{rank}").touch()


@pytest.mark.waits
@pytest.mark.slices(3)
@pytest.mark.parametrize(("world", "order"), [(2, 1), (2, -1), (4, -1)])
def test_ranks_share_a_store(tmp_path: Path, world: int, order: int) -> None:
    together(world, tmp_path, _rank_saves, tmp_path, False, order)
    assert committed(tmp_path / "remote") == [2, 1]
    assert len(list((tmp_path / "remote").glob("g*/step-*2/*.safetensors"))) == world
    assert libckpt.load(tmp_path / "remote")


def _rank_resumes(root: Path) -> None:
    """With a record that another place has it, to that of another run, and to a new one."""
    state = dict(STATE)
    with libckpt.Checkpointer(root / "store", state) as ckpt:
        ckpt.save(1).wait()
    dist.barrier()
    if dist.get_rank() == 0:
        old = root / "old"
        with libckpt.Checkpointer(root / "store", state, remote=old, distributed=False):
            until(lambda: (old / "ckpt.json").exists() and committed(old) == [1])
    dist.barrier()
    with libckpt.Checkpointer(root / "store", state, remote=root / "foreign") as ckpt:
        assert ckpt.resume() == 1
        save = ckpt.save(1)
        with pytest.MonkeyPatch.context() as patch:
            if dist.get_rank() > 0:
                patch.setattr(_existing, "_MOST", 0.3)
            kind = libckpt.WaitTimeoutError if dist.get_rank() else libckpt.MismatchError
            with pytest.raises(kind, match=r"step 1 .*its log has|step 1 is not in"):
                save.wait("remote")
            assert save.done("remote")
        with pytest.warns(libckpt.CheckpointWarning) if dist.get_rank() == 0 else nullcontext():
            ckpt.close()
    dist.barrier()
    with libckpt.Checkpointer(root / "store", state, remote=root / "new") as ckpt:
        assert ckpt.resume() == 1
        remotely(ckpt.save(1))
        assert committed(root / "new") == [1]


@pytest.mark.waits
def test_each_rank_hears_whether_a_step_is_there_that_it_has_resumed(tmp_path: Path) -> None:
    with libckpt.Checkpointer(tmp_path / "foreign", STATE) as other:
        other.save(9)
    shutil.rmtree(tmp_path / "foreign" / "g000001")  # what has steps is refused at once
    together(2, tmp_path, _rank_resumes, tmp_path)


def _node_rank_saves(root: Path) -> None:
    os.environ["LIBCKPT_NODE"] = f"n{dist.get_rank() % 2}"
    _rank_saves(root, True, 1)


@pytest.mark.waits
def test_nodes_send_their_parts(tmp_path: Path) -> None:
    together(4, tmp_path, _node_rank_saves, tmp_path)
    assert committed(tmp_path / "remote") == [2, 1]
    assert len(list((tmp_path / "remote").glob("g*/step-*2/*.safetensors"))) == 4


def _value(rank: int, world: int) -> float:
    return float(10 * world + rank)


@dataclass(frozen=True)
class Place:
    """A remote store, and what a process must be told to find it."""

    remote: Path | str
    settings: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A directory, or a bucket of a server of the project's own, which must end well."""
    if request.param == "directory":
        yield Place(tmp_path / "remote")
        return
    if not S3D.exists() or not has_s3():
        pytest.skip("a library built without S3")
    server = Server()
    told = Bucket(server, tmp_path).environment()
    settings = {name: value for name, value in told.items() if name.startswith("AWS_")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield Place("s3://bkt/run", settings)
    assert server.stop() == 0


def _trains(root: Path, nodes: int, first: int, last: int, place: Place) -> int:
    """From what is there to `last`, as one of the ranks; where it went on from."""
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ.update(place.settings)
    os.environ["LIBCKPT_NODE"] = f"n{rank % nodes}" if nodes else ""
    path = root / (f"node{rank % nodes}" if nodes else "store")
    state = {
        "mine": libckpt.PerRank(torch.full((1000,), -1.0)),
        "all": torch.full((1000,), -1.0),
    }
    with libckpt.Checkpointer(path, state, remote=place.remote, node_store=nodes > 0) as ckpt:
        found = ckpt.resume()
        if found > 0:
            assert torch.equal(state["all"], torch.full((1000,), float(found)))
            assert torch.equal(state["mine"].value, torch.full((1000,), _value(rank, world)))
        for step in range(first, last + 1):
            state["all"].fill_(float(step))
            state["mine"].value.fill_(_value(rank, world))
            remotely(ckpt.save(step))
    return found


def _lose_nodes(root: Path) -> None:
    for path in (*root.glob("node*"), root / "store"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.waits
@pytest.mark.slices(8)
@pytest.mark.parametrize("place", ["directory", "bucket"], indirect=True)
@pytest.mark.parametrize(
    ("world", "nodes", "lost"), [(2, 2, "all"), (4, 0, "all"), (4, 2, "all"), (4, 2, "node1")]
)
def test_many_ranks_on_empty_nodes(
    tmp_path: Path, world: int, nodes: int, lost: str, place: Place
) -> None:
    """
    They go on from the newest step of the remote store, first when all stores are lost or one
    node's is, then when all are; each gets back its own tensor, and the one that all have. What
    they save goes there, too.
    """
    assert together(world, tmp_path, _trains, tmp_path, nodes, 1, 2, place) == [0] * world
    if lost == "all":
        _lose_nodes(tmp_path)
    else:
        shutil.rmtree(tmp_path / lost)
    assert together(world, tmp_path, _trains, tmp_path, nodes, 3, 3, place) == [2] * world
    _lose_nodes(tmp_path)
    assert together(world, tmp_path, _trains, tmp_path, nodes, 4, 3, place) == [3] * world
    assert committed(place.remote) == [3, 2, 1]


def _finds_nothing_here(root: Path) -> None:
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank}"
    state = {"all": torch.full((1000,), -1.0)}
    with (
        libckpt.Checkpointer(root / f"node{rank}", state, node_store=True) as ckpt,
        pytest.raises(libckpt.OtherNodeError),
    ):
        ckpt.resume()


def test_a_node_that_has_heard_of_a_step(tmp_path: Path) -> None:
    """A start without the remote store brings its manifest alone; the next one brings the rest."""
    place = Place(tmp_path / "remote")
    together(2, tmp_path, _trains, tmp_path, 2, 1, 2, place)
    shutil.rmtree(tmp_path / "node1")
    together(2, tmp_path, _finds_nothing_here, tmp_path)
    assert {path.name for path in (tmp_path / "node1").glob("g*/step-*/*")} == {"manifest.json"}
    assert together(2, tmp_path, _trains, tmp_path, 2, 3, 3, place) == [2, 2]
    assert committed(tmp_path / "remote") == [3, 2, 1]


def _brings_its_ranks(remote: Path, node: Path, ranks: list[int]) -> None:
    options = [word for rank in ranks for word in ("--rank", str(rank))]
    assert finished([TOOLS / "ckpt-restore", remote, node, *options]).returncode == 0


@pytest.mark.waits
def test_new_nodes_that_are_given_the_files_of_their_ranks(tmp_path: Path) -> None:
    """Nothing else is brought, by the start neither; and they go on, also in the bucket."""
    place = Place(tmp_path / "remote")
    together(4, tmp_path, _trains, tmp_path, 2, 1, 2, place)
    _lose_nodes(tmp_path)
    for node in range(2):
        _brings_its_ranks(tmp_path / "remote", tmp_path / f"node{node}", [node, node + 2])
    assert together(4, tmp_path, _trains, tmp_path, 2, 3, 4, place) == [2] * 4
    assert committed(tmp_path / "remote") == [4, 3, 2, 1]
    for node in range(2):
        store = tmp_path / f"node{node}"
        assert committed(store) == [4, 3, 2]
        ranks = {path.name[:10] for path in store.glob("g*/step-*2/rank-*.safetensors")}
        assert ranks == {f"rank-{rank:05}" for rank in (node, node + 2)}
        assert finished([TOOLS / "ckpt-verify", store]).returncode == 0


def _is_refused(root: Path, node_store: bool, mine: list[Any]) -> str:
    rank = dist.get_rank()
    if node_store:
        os.environ["LIBCKPT_NODE"] = f"n{rank}"
    path = root / (f"node{rank}" if node_store else "store")
    with pytest.raises((ValueError, libckpt.CheckpointError)) as caught:
        libckpt.Checkpointer(path, STATE, remote=mine[rank], node_store=node_store)
    return str(caught.value)


@pytest.mark.slices(3)
@pytest.mark.parametrize("node_store", [False, True])
@pytest.mark.parametrize("mine", [["one", "two"], ["one", None], [None, "two"]])
def test_ranks_have_one_remote(tmp_path: Path, node_store: bool, mine: list[str | None]) -> None:
    places = [None if name is None else tmp_path / name for name in mine]
    for said in together(2, tmp_path, _is_refused, tmp_path, node_store, places):
        assert "rank 0 has " in said
        assert "and rank 1 " in said
        assert all(name in said for name in mine if name)
        assert "no remote store" in said or None not in mine


@pytest.mark.parametrize("node_store", [False, True])
def test_a_remote_that_cannot_be_asked(tmp_path: Path, node_store: bool) -> None:
    """Nobody begins anew because the bucket does not answer."""
    (tmp_path / "remote").write_text("no directory")
    places = [tmp_path / "remote"] * 3
    for said in together(3, tmp_path, _is_refused, tmp_path, node_store, places):
        assert "remote" in said
    assert not list(tmp_path.glob("*/gens"))


def _fails(root: Path, whom: int, dead: bool) -> str:
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank}"

    def bring(*_: Any) -> None:
        if dead:
            os._exit(7)
        raise libckpt.IntegrityError("this one cannot", code=-10001)

    if rank == whom:
        _import.bring = bring
    with pytest.raises(libckpt.CheckpointError) as caught:
        libckpt.Checkpointer(
            root / f"node{rank}",
            STATE,
            remote=root / "remote",
            node_store=True,
            save_timeout=12 if dead else 3600,  # the dead one is waited for
        )
    (root / f"told-{rank}").write_text(str(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("whom", [0, 2])
def test_who_brings_nothing_tells_the_others(tmp_path: Path, whom: int) -> None:
    for rank, said in enumerate(together(3, tmp_path, _fails, tmp_path, whom, False)):
        assert "this one cannot" in said
        assert (f"rank {whom} could not open" in said) == (rank != whom)
    assert not list(tmp_path.glob("node*"))


@pytest.mark.waits
@pytest.mark.parametrize("whom", [0, 2])
def test_who_dies_while_he_brings_is_missed(tmp_path: Path, whom: int) -> None:
    with pytest.raises(AssertionError, match=f"rank {whom}: died"):
        together(3, tmp_path, _fails, tmp_path, whom, True)
    for rank in {0, 1, 2} - {whom}:
        assert "has shown no life since" in (tmp_path / f"told-{rank}").read_text()


def _begins_anew(root: Path, who: int) -> None:
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank}"
    with libckpt.Checkpointer(
        root / f"node{rank}",
        STATE,
        remote=root / "remote",
        node_store=True,
        new_start=rank == who,
        save_timeout=3600,
    ):
        pass


@pytest.mark.parametrize("who", [0, 1])
def test_who_begins_anew_is_not_waited_for(tmp_path: Path, who: int) -> None:
    together(2, tmp_path, _begins_anew, tmp_path, who)


def test_damage_is_put_back(opened: Any, store: Path, remote: Path) -> None:
    """resume() goes on from the newest step, though its bytes here have changed."""
    state = {"x": torch.arange(1000.0)}
    with opened(state, remote=remote) as ckpt:
        ckpt.save(1)
        state["x"] += 1
        ckpt.save(2)
    (shard,) = store.glob("g*/step-0000000002/*.safetensors")
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    expected = state["x"].clone()
    state["x"].zero_()
    with opened(state, remote=remote) as ckpt:
        assert ckpt.resume() == 2
    assert torch.equal(state["x"], expected)
    # The new file has a name of its own.
    (repaired,) = store.glob("g*/step-0000000002/*.safetensors")
    assert repaired != shard
    assert repaired.read_bytes() == good


def _saves_and_resumes(root: Path, flipped: list[str]) -> int:
    """The step that this rank goes on from, where others have damaged step 2 meanwhile."""
    rank = dist.get_rank()
    mine = torch.arange(1000.0) + rank
    state = {"mine": libckpt.PerRank(mine)}
    with libckpt.Checkpointer(root / "store", state, remote=root / "remote") as ckpt:
        ckpt.save(1).wait("remote")
        mine += 1
        ckpt.save(2).wait("remote")
    dist.barrier()
    if rank == 0:
        for where in flipped:
            # What only rank 1 reads.
            (shard,) = (root / where).glob("g*/step-0000000002/rank-00001*.safetensors")
            good = shard.read_bytes()
            shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    dist.barrier()
    expected = mine.clone()
    mine.zero_()
    with libckpt.Checkpointer(root / "store", state, remote=root / "remote") as ckpt:
        found = ckpt.resume()
    assert found
    assert torch.equal(mine, expected - int(found == 1))
    return found


@pytest.mark.waits
@pytest.mark.filterwarnings("ignore::libckpt.CheckpointWarning")
def test_damage_of_many_ranks(tmp_path: Path) -> None:
    """Whoever finds it, one mends it, and all go on from there; what nobody has is passed over."""
    here, there = tmp_path / "here", tmp_path / "there"
    assert together(2, here, _saves_and_resumes, here, ["store"]) == [2, 2]
    assert together(2, there, _saves_and_resumes, there, ["store", "remote"]) == [1, 1]


#: Two chunks of 1 MiB and more for each rank.
WIDE = 700_000


def _flip(path: Path, *offsets: int) -> None:
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))


def _nodes_resume(root: Path, kind: str, here: list[int], there: list[int]) -> tuple[int, str]:
    """Of ranks 1 and 3 on node 1 the file of rank 3 gets damaged; what each rank goes on from."""
    rank = dist.get_rank()
    os.environ["LIBCKPT_NODE"] = f"n{rank % 2}"
    mine = torch.arange(float(WIDE)) + rank
    store, options = root / f"node{rank % 2}", {"remote": root / "remote", "node_store": True}
    state = {"mine": libckpt.PerRank(mine)}
    with libckpt.Checkpointer(store, state, **options) as ckpt:
        ckpt.save(1).wait("remote")
        mine += 1
        ckpt.save(2).wait("remote")
    dist.barrier()
    if rank == 0:
        for where, offsets in (("node1", here), ("remote", there)):
            (path,) = (root / where).glob(f"g*/step-0000000002/rank-00003*.{kind}")
            _flip(path, *offsets)
    dist.barrier()
    expected = mine.clone()
    mine.zero_()
    with (
        warnings.catch_warnings(record=True) as said,
        libckpt.Checkpointer(store, state, **options) as ckpt,
    ):
        warnings.simplefilter("always")
        found = ckpt.resume()
        assert torch.equal(mine, expected - int(found == 1))
        # What was repaired is a step as any other.
        ckpt.save(3).wait()
    return found, "; ".join(str(warning.message) for warning in said)


@pytest.mark.waits
@pytest.mark.slices(3)
@pytest.mark.parametrize(
    ("kind", "here", "there", "step"),
    [
        # Each copy lacks another chunk, so only chunks can be what was brought.
        ("safetensors", [100_000], [2_000_000], 2),
        # Found while the step is opened, and before the node's other ranks have read the manifest.
        ("index", [100], [], 2),
        ("safetensors", [2_000_000], [2_000_001], 1),
    ],
)
def test_damage_on_one_node(
    tmp_path: Path, kind: str, here: list[int], there: list[int], step: int
) -> None:
    """With a store on every node that node mends it, and all go on; or all take an older step."""
    found = together(4, tmp_path, _nodes_resume, tmp_path, kind, here, there)
    assert [f[0] for f in found] == [step] * 4
    node0, node1 = tmp_path / "node0", tmp_path / "node1"
    notes = [len(list(node.glob("g*/step-*2/quarantine.json"))) for node in (node0, node1)]
    if step == 1:
        assert notes == [1, 1]
        assert "step 2 of" in found[0][1]
        return
    assert notes == [0, 0]
    assert [f[1] for f in found] == [""] * 4
    for node in (node0, node1):
        assert finished([TOOLS / "ckpt-verify", node]).returncode == 0
        assert not list(node.rglob("*.tmp-*"))


def test_damage_on_both_sides(opened: Any, store: Path, remote: Path) -> None:
    """Neither of two copies is whole; what both lack is lost, and what one of them has is not."""
    size = 8 << 20
    state = {"x": torch.arange(size // 8)}
    with opened(state, remote=remote, pool_bytes=16 << 20) as ckpt:
        ckpt.save(1)
        state["x"] += 1
        ckpt.save(2)
    (here,) = store.glob("g*/step-0000000002/*.safetensors")
    there = remote / here.relative_to(store)
    good = here.read_bytes()

    def flip(path: Path, *offsets: int) -> None:
        bad = bytearray(good)
        for offset in offsets:
            bad[offset] ^= 1
        path.write_bytes(bad)

    # The header and a chunk here; all others there.
    flip(here, 5, 2_500_000)
    flip(there, *range(4096 + (1 << 19), 2 << 20, 1 << 20), *range(4 << 20, size, 1 << 20))
    expected = state["x"].clone()
    state["x"].zero_()
    with opened(state, remote=remote, pool_bytes=16 << 20) as ckpt:
        assert ckpt.resume() == 2
    assert torch.equal(state["x"], expected)
    (here,) = store.glob("g*/step-0000000002/*.safetensors")
    assert here.read_bytes() == good
    assert not list(store.rglob("*.tmp-*"))
    assert finished([TOOLS / "ckpt-verify", store]).returncode == 0

    flip(here, 2_500_000)
    flip(there, 2_500_001)
    with (
        pytest.warns(libckpt.CheckpointWarning, match="passed over for the next older one"),
        opened(state, remote=remote, pool_bytes=16 << 20) as ckpt,
    ):
        assert ckpt.resume() == 1
    assert torch.equal(state["x"], expected - 1)


def test_a_damaged_manifest_is_for_the_opening_to_say(
    opened: Any, store: Path, remote: Path
) -> None:
    """The remote store has the same step: nothing is brought over it, and the store opens."""
    state = {"x": torch.arange(1000.0)}
    with opened(state, remote=remote) as ckpt:
        remotely(ckpt.save(1))
    (manifest,) = store.glob("g*/step-*/manifest.json")
    good = manifest.read_bytes()
    manifest.write_bytes(good.replace(b'"step": 1', b'"step": 7').replace(b'"step":1', b'"step":7'))
    assert manifest.read_bytes() != good
    with opened(state, remote=remote) as ckpt:
        with pytest.raises(libckpt.CheckpointError) as caught:
            ckpt.resume()
        assert "manifest.json" in str(caught.value)
