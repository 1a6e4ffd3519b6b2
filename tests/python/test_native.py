# SPDX-License-Identifier: Apache-2.0
"""The extension that cffi makes of the public headers has all of them."""

import re
from pathlib import Path

from libckpt._native import ffi, lib

ROOT = Path(__file__).parents[2]
HEADERS = "".join(
    re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    for header in sorted((ROOT / "include/ckpt").glob("*.h"))
)


def test_it_has_every_function() -> None:
    symbols = (ROOT / "libckpt/libckpt.map").read_text(encoding="utf-8")
    wanted = set(re.findall(r"\b(ckpt_\w+);", symbols))
    assert {name for name in dir(lib) if name.startswith("ckpt_")} == wanted
    assert len(wanted) > 40


def test_it_has_every_constant() -> None:
    wanted = set(re.findall(r"\b(CKPT_[A-Z0-9_]+) = ", HEADERS))
    wanted |= set(re.findall(r"#define (CKPT_[A-Z0-9_]+) +[(\dU]", HEADERS))
    assert {name for name in dir(lib) if name.startswith("CKPT_")} == wanted
    assert lib.CKPT_STEP_LATEST == (1 << 64) - 1
    assert (lib.CKPT_FOREVER, lib.CKPT_EREPLICA) == (-1, -10024)


def test_it_has_every_struct_with_its_members() -> None:
    found = re.findall(r"struct (ckpt_\w+) \{(.*?)\n\};", HEADERS, flags=re.DOTALL)
    assert found
    for name, body in found:
        # cffi raises here if the compiler's size, or the offset of a member, is another one.
        fields = ffi.typeof(f"struct {name}").fields
        assert [field for field, _ in fields] == re.findall(r"(\w+)(?:\[\w+\])?;", body), name


def test_the_stub_names_nothing_else() -> None:
    stub = (ROOT / "bindings/python/libckpt/_native.pyi").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(ckpt_\w+)\(|\b(CKPT_\w+):", stub))
    assert {one or other for one, other in named} <= set(dir(lib))
