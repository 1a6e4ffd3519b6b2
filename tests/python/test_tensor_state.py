# SPDX-License-Identifier: Apache-2.0
"""What tells a changed tensor from one that is as it was: in C, in Python, and both alike."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import libckpt
from libckpt import _glance, _tensor_state


@pytest.fixture(params=["table", "no table", "no road"])
def road(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As it is; in a torch without a table; in one where the way through memory is not found."""
    _tensor_state.has_table()
    if request.param == "no table":
        monkeypatch.setattr(_tensor_state, "has_table", lambda: False)
    if request.param == "no road":
        one = torch.empty(1)
        assert not _glance.learn((one, one, one), (one._cdata,) * 3, 0)
    yield request.param
    monkeypatch.undo()
    _tensor_state.has_table.cache_clear()
    _tensor_state.has_table()


def tensors() -> list[torch.Tensor]:
    """One of every kind that can be saved and whose description differs."""
    base = torch.arange(600.0)
    kinds = [torch.bool, torch.uint8, torch.int16, torch.float8_e4m3fn, torch.bfloat16]
    return [
        base,
        base[3:],
        base.view(20, 30),
        base.view(20, 30).t(),
        base.view(20, 30)[:, ::2],
        base[7],
        base[:0],
        torch.empty(0, 5),
        torch.empty(3).expand(4, 3),
        torch.ones(1, 1, 1, 1, 1, 1, 1),
        torch.ones(3, dtype=torch.complex64),
        nn.Parameter(torch.rand(4, 4)),
        nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False),
        *(torch.zeros(5).to(kind) for kind in kinds),
    ]


def addresses(places: bytes) -> Iterator[int]:
    """Those in a description: address, device, number of dimensions, type, shape, strides."""
    at = 0
    while at < len(places):
        address, ndim = struct.unpack_from("Q8xi", places, at)
        yield address
        at += 24 + 16 * ndim


def test_this_torch_is_asked_in_c_and_the_way_is_found() -> None:
    """Should a later torch lose this, saves are slower, and nothing else says so."""
    assert _tensor_state.has_table()
    one = torch.empty(1)
    probes = one, one.detach(), one.data
    places = probes[0]._cdata, probes[1]._cdata, probes[2]._cdata
    assert _glance.learn(probes, places, one.untyped_storage()._cdata)


def test_the_table_tells_the_addresses_that_data_ptr_tells() -> None:
    assert _tensor_state.has_table()
    found = tensors()
    places = _glance.places(found)
    assert places is not None
    assert list(addresses(places)) == _tensor_state.pointers_of(found)


def set_data(tensor: torch.Tensor, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor.data = made(tensor.data)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: set_data(t, torch.clone),
        lambda t: set_data(t, lambda data: data[:3]),
        lambda t: set_data(t, torch.t),
        lambda t: set_data(t, lambda data: data.view(torch.int32)),
        lambda t: set_data(t, lambda data: data.as_strided((4, 4), (0, 1))),
        lambda t: t.set_(torch.rand(16)),
        lambda t: torch.utils.swap_tensors(t, torch.rand(4, 4)),
    ],
)
@pytest.mark.parametrize("number", [0, 63, 64, 129])
def test_what_lies_otherwise_is_noticed(road: str, change: Any, number: int) -> None:
    found = [torch.rand(4, 4) for _ in range(130)]
    there = _tensor_state.places_of(found)
    assert isinstance(there, list if road == "no table" else bytes)
    assert _tensor_state.same_places(found, there)
    found[0].add_(1)
    assert _tensor_state.same_places(found, there)
    with torch.no_grad():
        change(found[number])
    assert not _tensor_state.same_places(found, there)
    assert _tensor_state.same_places(found, _tensor_state.places_of(found))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 200])
def test_fewer_and_more_are_not_the_same(road: str, count: int) -> None:
    assert road
    found = [torch.rand(2) for _ in range(count)]
    there = _tensor_state.places_of(found)
    assert _tensor_state.same_places(found, there)
    assert not _tensor_state.same_places([*found, torch.rand(2)], there)
    assert not count or not _tensor_state.same_places(found[:-1], there)


def test_versions_are_those_of_the_attribute(road: str) -> None:
    assert road
    found = tensors() * 9
    for number, tensor in enumerate(found[:11]):
        for _ in range(number * 100):
            tensor.detach().zero_()
    for start in (0, 1, 64, len(found) - 1, len(found)):
        wanted = [tensor._version for tensor in found[start:]]
        assert _tensor_state.versions_of(found, start) == struct.pack(f"{len(wanted)}q", *wanted)
    wanted = [tensor._version for tensor in found]
    assert max(wanted) > 900
    then = _tensor_state.versions_of(found)
    found[11].detach().add_(1)
    first = next(n for n, tensor in enumerate(found) if tensor._version != wanted[n])
    assert _tensor_state.first_difference(_tensor_state.versions_of(found), then) == first


def test_what_counts_no_versions_is_an_error() -> None:
    with torch.inference_mode():
        frozen = torch.rand(2)
    with pytest.raises(RuntimeError, match="version counter"):
        _tensor_state.versions_of([torch.rand(2), frozen])


def test_what_is_no_plain_tensor_is_not_asked() -> None:
    class Mine(torch.Tensor):
        pass

    _tensor_state.has_table()
    for other in (torch.rand(2).as_subclass(Mine), 5, torch.rand(2).to_sparse()):
        assert _glance.places([torch.rand(2), other]) is None  # type: ignore[list-item]
    # A type that DLPack has no name for is told in Python.
    bits = torch.zeros(3, dtype=torch.uint8).view(torch.bits8)
    assert isinstance(_tensor_state.places_of([torch.rand(2), bits]), list)


def test_items_are_told_by_their_keys_and_identity() -> None:
    one, two = torch.rand(2), torch.rand(2)
    dicts: list[dict[Any, Any]] = [{"a": one, "b": two}, {}, {one: 7.5}]
    keys, values = ["a", "b", one], [one, two, dicts[2][one]]
    assert _glance.same_items(dicts, keys, values)
    assert _glance.same_items(dicts, ["".join(["", "a"]), "b", one], values)
    assert _glance.same_items([], [], [])
    for other in ([one, one, values[2]], [one, two, float("7.5")], [two, one, values[2]]):
        assert not _glance.same_items(dicts, keys, other)
    assert not _glance.same_items(dicts, ["a", "c", one], values)
    assert not _glance.same_items(dicts, ["a", "b", two], values)
    assert not _glance.same_items(dicts, keys[:2], values[:2])
    assert not _glance.same_items(dicts[:1], keys, values)
    dicts[1]["late"] = one
    assert not _glance.same_items(dicts, keys, values)
    with pytest.raises(TypeError):
        _glance.same_items([[]], [], [])  # type: ignore[list-item]


def test_attributes_are_told_by_identity() -> None:
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

    values = [object() for _ in range(70)]
    holders = [Holder(value) for value in values]
    assert _glance.same_attributes(holders, "held", values, 0)
    holders[3].held = None
    assert not _glance.same_attributes(holders, "held", values, 0)
    assert _glance.same_attributes(holders, "held", values, 4)
    assert _glance.same_attributes(holders, "other", values, 70)
    with pytest.raises(AttributeError):
        _glance.same_attributes(holders, "other", values, 69)


def test_saves_notice_on_every_road(road: str, opened: Any, store: Path) -> None:
    """Between two saves what was replaced is saved; within one it fails it."""
    assert road
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(3)).sum().backward()
    optimizer.step()
    ckpt = opened({"model": model, "optimizer": optimizer})
    ckpt.save(1).wait()
    model.weight.data = torch.full((3, 3), 5.0)
    moment = optimizer.state[model.weight]["exp_avg"]
    moment.data = torch.full((3, 3), 6.0)
    optimizer.state[model.bias]["exp_avg"] = torch.full((3,), 7.0)
    ckpt.save(2).wait()
    held = libckpt.load(store, 2)
    assert torch.equal(held["model"]["weight"], torch.full((3, 3), 5.0))
    assert torch.equal(held["optimizer"]["state"]["weight"]["exp_avg"], torch.full((3, 3), 6.0))
    assert torch.equal(held["optimizer"]["state"]["bias"]["exp_avg"], torch.full((3,), 7.0))
    save = ckpt.save(3)
    moment.data = moment.data.clone()
    optimizer.step()
    with pytest.raises(libckpt.TornSnapshotError, match=r"exp_avg was given other memory"):
        save.wait()
    save = ckpt.save(4)
    with torch.no_grad():
        model.bias.add_(0)
    optimizer.step()
    with pytest.raises(libckpt.TornSnapshotError, match=r"bias was changed in place"):
        save.wait()
