# SPDX-License-Identifier: Apache-2.0
"""The declarations that cffi reads are the public API: all of it, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def names(path: Path, pattern: str) -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(pattern, text))


CDEF = ROOT / "bindings/python/cdef.h"
HEADERS = sorted((ROOT / "include/ckpt").glob("*.h"))


def test_the_functions_are_those_of_the_symbol_map() -> None:
    declared = names(CDEF, r"\b(ckpt_\w+)\s*\(")
    assert declared == names(ROOT / "libckpt/libckpt.map", r"\b(ckpt_\w+);")
    assert len(declared) > 40


def test_the_constants_and_structs_are_those_of_the_headers() -> None:
    for pattern in (r"\b(CKPT_[A-Z0-9_]+) = ", r"\bstruct (ckpt_\w+) \{", r"\benum (ckpt_\w+) \{"):
        in_headers: set[str] = set()
        for header in HEADERS:
            in_headers |= names(header, pattern)
        assert names(CDEF, pattern) == in_headers
        assert in_headers


def test_struct_members_are_in_the_order_of_the_headers() -> None:
    def members(path: Path) -> dict[str, list[str]]:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        found = re.findall(r"struct (ckpt_\w+) \{(.*?)\n\};", text, flags=re.DOTALL)
        return {name: re.findall(r"(\w+)(?:\[\w+\])?;", body) for name, body in found}

    in_headers: dict[str, list[str]] = {}
    for header in HEADERS:
        in_headers.update(members(header))
    assert members(CDEF) == in_headers
    assert in_headers
