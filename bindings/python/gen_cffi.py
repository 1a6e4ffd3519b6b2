# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of libckpt._native from the public headers, with any cffi since 1.15."""

import re
import sys
from pathlib import Path

from cffi import FFI


def declarations(include: Path) -> str:
    """
    What <ckpt/ckpt.h> declares, without what cffi cannot read. Of macros that are numbers only the
    names: the compiler knows the values, as it knows sizes and offsets.
    """
    umbrella = (include / "ckpt/ckpt.h").read_text(encoding="utf-8")
    names = re.findall(r"^#include <(ckpt/\w+\.h)>$", umbrella, re.MULTILINE)
    text = "".join((include / name).read_text(encoding="utf-8") for name in names)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    numbers = re.findall(r'^#define (CKPT_\w+)[ \t]+(?!__attribute__|")\S', text, re.MULTILINE)
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("CKPT_API ", "")
    return "".join(f"#define {name} ...\n" for name in numbers) + text


def main(include: str, out: str) -> None:
    """Reads the headers below `include` and writes `out`."""
    ffi = FFI()
    ffi.cdef(declarations(Path(include)))
    ffi.set_source("libckpt._native", "#include <ckpt/ckpt.h>\n")
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
