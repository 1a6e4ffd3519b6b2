# SPDX-License-Identifier: Apache-2.0
"""Every kind of tensor comes back to the bit, or is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, bits, shards
from libckpt._dtypes import torch_numbers
from safetensors.torch import load_file
from torch import nn

import libckpt
from libckpt import _reader


def saved(opened: Any, state: dict[str, Any]) -> None:
    ckpt = opened(state)
    ckpt.save(1).wait()
    ckpt.close()


def noise(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any bits, NaNs among them."""
    width = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, width), dtype=torch.uint8)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", torch_numbers(), ids=str)
def test_every_dtype_to_the_bit(opened: Any, store: Path, dtype: torch.dtype) -> None:
    state = {"a": noise((5, 3), dtype), "scalar": noise((), dtype), "none": noise((0, 2), dtype)}
    then = {name: tensor.clone() for name, tensor in state.items()}
    saved(opened, state)
    assert_same(libckpt.load(store), then)
    for tensor in state.values():
        tensor.untyped_storage().fill_(0)
    opened(state).resume()
    assert_same(state, then)


def test_safetensors_reads_pairs_of_four_bits(opened: Any, store: Path) -> None:
    """Its shape counts the values, of which torch has two in an element."""
    dtype = torch.float4_e2m1fn_x2
    state = {"a": noise((2, 3), dtype), "scalar": noise((), dtype), "none": noise((0, 3), dtype)}
    saved(opened, state)
    (shard,) = shards(store)
    held = load_file(shard)
    for name, tensor in state.items():
        assert held[name].dtype == dtype
        assert held[name].shape == (tensor.shape or (1,))
        assert bits(held[name]) == bits(tensor)


def test_all_of_torchs_dtypes_are_known_or_refused(opened: Any) -> None:
    known = set(torch_numbers())
    for name in dir(torch):
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype) or dtype in known:
            continue
        try:
            tensor = torch.empty(2, dtype=dtype)
        except (RuntimeError, NotImplementedError):
            continue
        with pytest.raises(libckpt.UnsupportedStateError, match="state\\['x'\\]"):
            opened({"x": tensor}).save(1)


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(240.0).reshape(4, 6, 10)
    return {
        "transposed": base.permute(2, 0, 1),
        "sliced": base[:, 1:5:2, ::3],
        "offset": base[1:, :, 2],
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "empty_slice": base[:, 3:3],
        "column": base[0, :, 0],
        "byte_offset": torch.arange(9, dtype=torch.uint8)[1:],
    }


def test_views_are_stored_as_what_they_show(opened: Any, store: Path) -> None:
    state = views()
    saved(opened, dict(state))
    held = libckpt.load(store)
    for name, tensor in state.items():
        assert held[name].is_contiguous()
        assert_same(held[name], tensor.contiguous(), name)


def test_views_are_restored_in_place_as_they_lie(opened: Any) -> None:
    state = views()
    del state["expanded"]
    then = {name: tensor.clone() for name, tensor in state.items()}
    strides = {name: tensor.stride() for name, tensor in state.items()}
    saved(opened, dict(state))
    guard = torch.full((4, 6, 10), -1.0)
    live = {
        "transposed": guard.clone().permute(2, 0, 1),
        "sliced": guard[:, 1:5:2, ::3],
        "offset": guard.clone()[1:, :, 2],
        "channels_last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty_slice": guard.clone()[:, 3:3],
        "column": guard.clone()[0, :, 0],
        "byte_offset": torch.zeros(9, dtype=torch.uint8)[1:],
    }
    opened(live).resume()
    for name, tensor in then.items():
        assert torch.equal(live[name], tensor)
        assert live[name].stride() == strides[name]
    # What lies between the elements of a view is not touched.
    untouched = guard.clone()
    untouched[:, 1:5:2, ::3] = -1
    assert (untouched == -1).all()


def test_the_shard_is_a_safetensors_file(opened: Any, store: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved(opened, {"model": model, "optimizer": optimizer})
    (shard,) = store.glob("g*/step-*/rank-00000.*.safetensors")
    held = load_file(shard)
    for name, tensor in model.state_dict().items():
        assert bits(held[name]) == bits(tensor)
        assert held[name].dtype == tensor.dtype
    name = "optimizer/state/0.weight/exp_avg"
    assert torch.equal(held[name], optimizer.state[model[0].weight]["exp_avg"])


def test_tied_tensors_are_stored_once(opened: Any, store: Path) -> None:
    model = nn.Module()
    model.a = nn.Linear(256, 256, bias=False)
    model.b = nn.Linear(256, 256, bias=False)
    model.b.weight = model.a.weight
    view = model.a.weight.detach().view(256, 256)
    transposed = model.a.weight.detach().t()  # the same memory, seen otherwise
    saved(opened, {"model": model, "again": view, "t": transposed})
    (shard,) = store.glob("g*/step-*/rank-00000.*.safetensors")
    assert 2 * 256 * 256 * 4 <= shard.stat().st_size < 3 * 256 * 256 * 4
    held = libckpt.load(store)
    assert held["model"]["a.weight"] is held["model"]["b.weight"]
    assert held["again"] is held["model"]["a.weight"]
    assert torch.equal(held["t"], transposed)
    assert list(libckpt.load(store, names=["b.weight"])) == ["b.weight"]


def test_names_are_data(opened: Any, store: Path) -> None:
    names = ["../../x", "/etc/passwd", ".", "", "a\nb", "ä/é", "con", "x" * 1000, "%s%n", '"', "\\"]
    names += ["manifest.json", "rank-00000.index", " ", "\u202e", "__metadata__"]
    state = {name: torch.full((3,), float(n)) for n, name in enumerate(names)}
    before = sorted(store.parent.iterdir())
    saved(opened, dict(state))
    assert sorted(store.parent.iterdir()) == [*before, store]
    assert_same(libckpt.load(store), state)
    for tensor in (live := {name: torch.zeros(3) for name in names}).values():
        assert not tensor.any()
    opened(live).resume()
    assert_same(live, state)


def test_names_that_no_file_can_hold_are_refused(opened: Any) -> None:
    ckpt = opened({})
    for name, said in (("a\0b", "a"), ("\ud800", "ud800"), ("x" * 1024, "1023 are the most")):
        with pytest.raises(libckpt.UnsupportedStateError, match=said):
            ckpt.save(1, {name: torch.zeros(1)})


class Wrapped(torch.Tensor):
    pass


class Hollow(torch.Tensor):
    """Stands for another tensor, and does not say so by __tensor_flatten__()."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(str(func))


def refused() -> list[tuple[str, Any, str]]:
    fake = torch._subclasses.FakeTensorMode()
    quantized = torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8)
    return [
        ("sparse", torch.eye(3).to_sparse(), "to_dense"),
        ("csr", torch.eye(3).to_sparse_csr(), "to_dense"),
        ("quantized", quantized, "int_repr"),
        ("meta", torch.zeros(3, device="meta"), "materialize"),
        ("fake", fake.from_tensor(torch.zeros(3)), "FakeTensor, which has no data"),
        ("subclass", torch.zeros(3).as_subclass(Wrapped), "as_subclass"),
        ("hollow", Hollow(torch.zeros(3)), "save the tensors that are inside it"),
        (
            "nested",
            torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
            "NestedTensor, a nested tensor: save value.values()",
        ),
        ("lazy", nn.LazyLinear(3).weight, "run the model once"),
        ("conjugate", torch.zeros(3, dtype=torch.complex64).conj(), "resolve_conj"),
    ]


@pytest.mark.parametrize("case", range(10))
def test_what_is_no_plain_tensor_is_refused_by_name(opened: Any, case: int) -> None:
    kind, tensor, said = refused()[case]
    with pytest.raises(libckpt.UnsupportedStateError) as caught:
        opened({"deep": [{kind: tensor}]}).save(1)
    assert f"state['deep'][0][{kind!r}]" in str(caught.value)
    assert said in str(caught.value)


def test_a_dtensor_of_one_rank_is_a_tensor(opened: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Linear(2, 3)
        mesh = init_device_mesh("cpu", (1,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
        ckpt = opened({"model": model})
        ckpt.save(1).wait()
        whole = model.weight.full_tensor().detach().clone()
        assert torch.equal(libckpt.load(ckpt._core.engine.path)["model"]["weight"], whole)
        with torch.no_grad():
            model.weight.zero_()
        assert ckpt.resume() == 1
        assert torch.equal(model.weight.full_tensor(), whole)
    finally:
        torch.distributed.destroy_process_group()


def test_a_dtensor_of_more_ranks_than_save_is_refused_by_name(opened: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = nn.Linear(2, 2)
        mesh = init_device_mesh("cpu", (2,))
        spread = distribute_tensor(model.weight.detach(), mesh, [Shard(0)], src_data_rank=None)
        model.weight = nn.Parameter(spread)
        with pytest.raises(
            libckpt.UnsupportedStateError, match=r"weight is a DTensor spread over 2 ranks"
        ):
            opened({"model": model}, distributed=False).save(1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_refusal_harms_nothing(opened: Any, store: Path) -> None:
    state: dict[str, Any] = {"x": torch.zeros(2)}
    ckpt = opened(state)
    ckpt.save(1).wait()
    state["bad"] = torch.eye(2).to_sparse()
    with pytest.raises(libckpt.UnsupportedStateError):
        ckpt.save(2)
    del state["bad"]
    ckpt.save(2).wait()
    assert [info.step for info in libckpt.list_steps(store)] == [2, 1]


def test_live_tensors_that_cannot_take_bytes_are_refused(opened: Any) -> None:
    saved(opened, {"model": nn.Linear(2, 2)})
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(libckpt.UnsupportedStateError, match="bias is on the meta device"):
        opened({"model": model}).resume()


def test_numpy_arrays(opened: Any, store: Path) -> None:
    big = np.arange(5000, dtype=">i4")  # not this machine's order
    state: dict[str, Any] = {
        "float": np.random.rand(4, 5),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "reversed": np.arange(9)[::-1],
        "half": np.ones(3, "f2"),
        "complex": np.array([1j]),
        "scalar": np.array(5, "u8"),
        "empty": np.zeros((0, 3), "i2"),
        "text": np.array(["a", "bcd"]),
        "big": big,
        "bool": np.array([True, False]),
    }
    then = {name: array.copy() for name, array in state.items()}
    saved(opened, state)
    held = libckpt.load(store)
    live = {name: np.zeros_like(array) for name, array in state.items()}
    objects = dict(live)
    opened(live).resume()
    for name, array in then.items():
        for got in (held[name], live[name]):
            assert got.dtype == array.dtype
            assert got.shape == array.shape
            assert np.array_equal(got, array)
        if name not in ("text", "big"):
            assert live[name] is objects[name]


def sharing(kind: str) -> torch.Tensor:
    return {
        "expanded": torch.ones(1, 3).expand(4, 3),
        "windows": torch.arange(6.0).unfold(0, 3, 1),
        "strided": torch.arange(9.0).as_strided((2, 3), (2, 2)),
    }[kind]


class Buffered(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", value)


class Asked(Buffered):
    """Has a say of its own in what is saved."""

    def get_extra_state(self) -> int:
        return 1

    def set_extra_state(self, state: int) -> None:
        pass


@pytest.mark.parametrize("kind", ["expanded", "windows", "strided"])
@pytest.mark.parametrize("build", [Buffered, Asked])
def test_what_could_not_be_restored_in_place_is_not_saved(
    opened: Any, store: Path, kind: str, build: Any
) -> None:
    ckpt = opened({"model": build(sharing(kind))})
    with pytest.raises(libckpt.UnsupportedStateError, match=r"mask has .* share memory") as caught:
        ckpt.save(1)
    assert ".clone(" in str(caught.value)
    assert caught.value.tensor == "mask"
    own = sharing(kind).clone(memory_format=torch.contiguous_format)  # as it says
    ckpt.state = {"model": build(own)}
    ckpt.save(1).wait()
    # A model that was built so again is told the same, and nothing is read to it.
    ckpt.state = {"model": build(torch.zeros_like(own)[:1].expand_as(own))}
    with pytest.raises(libckpt.UnsupportedStateError, match=r"mask has .* share memory"):
        ckpt.resume()
    fresh = build(torch.zeros_like(own))
    ckpt.state = {"model": fresh}
    assert ckpt.resume() == 1
    assert torch.equal(fresh.mask, own)


def test_in_a_container_it_is_replaced(opened: Any) -> None:
    def make(zero: bool) -> dict[str, Any]:
        factor = 0 if zero else 1
        shown = np.zeros((3, 2)) if zero else np.arange(6.0).reshape(3, 2)
        shown.flags.writeable = False
        return {
            "expanded": (torch.tensor([1.0, 2.0]) * factor).expand(3, 2),
            "windows": [(torch.arange(6.0) * factor).unfold(0, 3, 1)],
            "broadcast": np.broadcast_to(np.arange(3.0) * factor, (2, 3)),
            "read only": (shown,),
        }

    saved(opened, make(zero=False))
    live = make(zero=True)
    untouched = live["expanded"]
    assert opened(live).resume() == 1
    want = make(zero=False)
    assert_same(live["expanded"], want["expanded"])
    assert_same(live["windows"], want["windows"])
    assert np.array_equal(live["broadcast"], want["broadcast"])
    assert np.array_equal(live["read only"][0], want["read only"][0])
    assert not untouched.any()


def test_what_an_optimizer_holds_is_never_replaced(opened: Any) -> None:
    weight = torch.ones(1, 3).expand(2, 3).requires_grad_()
    for eager in (True, False):
        ckpt = opened({"w": weight, "o": torch.optim.SGD([weight])}, eager=eager)
        with pytest.raises(libckpt.UnsupportedStateError, match=r"w has .* share memory"):
            ckpt.save(1)
        ckpt.close()
    saved(opened, {"w": (own := weight.detach().clone()), "o": torch.optim.SGD([own])})
    with pytest.raises(libckpt.UnsupportedStateError, match=r"w has .* share memory"):
        opened({"w": weight, "o": torch.optim.SGD([weight])}).resume()


def test_moments_that_share_memory_are_replaced(opened: Any) -> None:
    model = nn.Linear(3, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = torch.rand(1, 3).expand(4, 3)
    then = optimizer.state[model.weight]["momentum_buffer"].clone()
    state = {"model": model, "o": optimizer}
    ckpt = opened(state)
    ckpt.save(1).wait()
    assert ckpt.resume() == 1
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], then)


def test_elements_that_share_memory_are_told_from_those_that_do_not() -> None:
    from libckpt._tensors import describe, overlaps

    base = torch.zeros(500)
    random = np.random.default_rng(11)
    seen = {True: 0, False: 0}
    for _ in range(3000):
        dims = int(random.integers(1, 4))
        shape = tuple(int(n) for n in random.integers(0, 6, dims))
        strides = tuple(int(n) for n in random.integers(0, 12, dims))
        tensor = base.as_strided(shape, strides)
        places = {
            sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)
        }
        want = len(places) < tensor.numel()
        assert overlaps(describe(tensor)) is want, (shape, strides)
        seen[want] += 1
    assert min(seen.values()) > 500
    # Between one another, and no element twice.
    assert not overlaps(describe(base.as_strided((2, 3), (3, 2))))


def test_a_target_that_the_library_refuses_is_no_storage_error(opened: Any, store: Path) -> None:
    from libckpt._reader import Reader
    from libckpt._tensors import describe

    ckpt = opened({"x": torch.zeros(4, 3)})
    ckpt.save(1).wait()
    target = torch.zeros(1, 3).expand(4, 3)
    with Reader(ckpt._core.engine, 1) as reader:
        reader.bind("x", describe(target), target)
        with pytest.raises(libckpt.UnsupportedStateError, match="'x'") as caught:
            reader.read()
    assert not isinstance(caught.value, OSError)


def test_a_member_of_a_structured_array(opened: Any, store: Path) -> None:
    """Its elements are no whole number of elements apart."""

    def make() -> Any:
        return np.zeros(3, [("a", "i1"), ("b", "<f4"), ("c", "<f8", (2,))])

    table = make()
    table["b"] = [1, 2, 3]
    table["c"] = np.arange(6).reshape(3, 2)
    saved(opened, {"b": table["b"], "c": table["c"]})
    held = libckpt.load(store)
    live = {"b": make()["b"], "c": make()["c"]}
    opened(live).resume()
    for name in ("b", "c"):
        assert np.array_equal(held[name], table[name])
        assert np.array_equal(live[name], table[name])


def test_inference_tensors(opened: Any, store: Path) -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
        value = torch.ones(2)
    saved(opened, {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "v": value})
    assert torch.equal(libckpt.load(store)["model"]["weight"], model.weight)


class _Bound:
    """A reader that notes what is bound."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def bind(self, name: str, what: object, memory: object) -> None:
        self.names.append(name)


def test_tied_tensors_have_memory_on_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was one tensor at the save goes to every device that a live one of it is on."""
    monkeypatch.setitem(_reader._DESCRIBE, "torch", lambda memory: memory)
    dtype = torch_numbers()[torch.float32]
    stored = {name: _reader.Stored(name, dtype, (3,), 12, "a") for name in "abcd"}
    bound: Any = _Bound()
    memory = _reader.Memory(bound, stored)
    here = memory.want("a", "torch", torch.device("cpu"))
    there = memory.want("b", "torch", torch.device("meta"))
    assert (here.device.type, there.device.type) == ("cpu", "meta")
    assert memory.want("c", "torch", torch.device("meta")) is there
    assert memory.want("d", "torch") is here
    for name, wanted in zip("abcd", (here, there, there, here), strict=True):
        assert memory.get(name, "torch") is wanted
    assert bound.names == ["a", "b"]
