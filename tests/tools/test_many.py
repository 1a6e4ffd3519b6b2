# SPDX-License-Identifier: Apache-2.0
"""A step of so many ranks that it is opened by its catalog: what the programs make of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libckpt._calls import check, new_struct
from libckpt._engine import ffi, lib
from safetensors.numpy import load_file
from sample import some
from waiting import finished

TOOLS = Path(os.environ.get("CKPT_TOOLS", Path(__file__).parents[2] / "build" / "tools"))
OK, INTEGRITY = 0, 4
WORLD = 33
F32 = 12  # CKPT_F32
WHOLE = np.arange(WORLD * 4 * 5, dtype=np.float32).reshape(WORLD * 4, 5)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    program, *rest = (str(a) for a in arguments)
    return finished([TOOLS / program, *rest])


def open_rank(path: Path, rank: int, session: Any) -> Any:
    opts, ret = new_struct("ckpt_engine_opts"), ffi.new("struct ckpt_engine **")
    opts.rank, opts.world, opts.session = rank, WORLD, session
    opts.block_bytes, opts.pool_bytes = 64 << 10, 1 << 20
    check(lib.ckpt_engine_open(str(path).encode(), opts, ret))
    return ret[0]


def save_rank(engine: Any, rank: int) -> Any:
    """Its rows of the matrix, and its number beside them; what must stay until the end."""
    rows = np.ascontiguousarray(WHOLE[4 * rank : 4 * rank + 4])
    tensor, ret = new_struct("ckpt_tensor"), ffi.new("struct ckpt_save **")
    kept = [
        ffi.new("char[]", b"matrix"),
        ffi.new("int64_t[]", rows.shape),
        ffi.new("int64_t[]", WHOLE.shape),
        ffi.new("int64_t[]", (4 * rank, 0)),
        ffi.from_buffer(rows),
    ]
    tensor.name, tensor.shape, tensor.global_shape, tensor.global_start, tensor.data = kept
    tensor.dtype, tensor.ndim = F32, 2
    words = json.dumps({"rank": rank}).encode()
    check(lib.ckpt_save_begin(engine, 1, ffi.NULL, ret))
    check(lib.ckpt_save_add(ret[0], tensor, 1))
    check(lib.ckpt_save_set_meta(ret[0], words, len(words)))
    check(lib.ckpt_save_start(ret[0]))
    return ret[0], kept, rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, session = tmp_path_factory.mktemp("many") / "store", ffi.new("char[]", b"many")
    engines = [open_rank(path, rank, session) for rank in range(WORLD)]
    saves = [save_rank(engine, rank) for rank, engine in enumerate(engines)]
    for save, *_ in saves:
        check(lib.ckpt_save_wait(save, lib.CKPT_LEVEL_LOCAL, 600_000))
        lib.ckpt_save_free(save)
    for engine in engines:
        lib.ckpt_engine_close(engine)
    return path


def test_show(store: Path) -> None:
    shown = json.loads(run("ckpt", "show", store, "--json").stdout)
    assert shown["tensors"] == [
        {
            "name": "matrix",
            "dtype": "F32",
            "shape": list(WHOLE.shape),
            "bytes": WHOLE.nbytes,
            "offset": None,
            "rank": 0,
        }
    ]
    assert shown["meta"] == {"rank": 0}
    (line,) = [line for line in run("ckpt", "show", store).stdout.splitlines() if "matrix" in line]
    assert line.split()[3:] == ["-", "matrix", "[132,", "5]"]


def test_restored(store: Path, tmp_path: Path) -> None:
    assert run("ckpt-restore", store, tmp_path / "whole", "--consolidate").returncode == OK
    assert np.array_equal(load_file(tmp_path / "whole" / "model.safetensors")["matrix"], WHOLE)
    assert run("ckpt-restore", store, tmp_path / "copy").returncode == OK
    assert next((tmp_path / "copy").glob("g*/*.catalog")).stat().st_size > 0
    assert run("ckpt-verify", tmp_path / "copy").returncode == OK


def test_verified(store: Path) -> None:
    catalog = next(store.glob("g*/*.catalog"))
    good = catalog.read_bytes()
    assert run("ckpt-verify", store).returncode == OK
    try:
        for at in some(range(len(good)), 4):
            catalog.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            result = run("ckpt-verify", store, "--json")
            assert result.returncode != OK, f"byte {at}"
            assert catalog.name in result.stdout
    finally:
        catalog.write_bytes(good)
