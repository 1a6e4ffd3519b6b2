# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of libckpt._native from cdef.h. Works with every cffi since 1.15."""

import sys

from cffi import FFI


def main(cdef: str, out: str) -> None:
    """Reads `cdef` and writes `out`."""
    ffi = FFI()
    with open(cdef, encoding="utf-8") as file:
        ffi.cdef(file.read())
    ffi.set_source("libckpt._native", "#include <ckpt/ckpt.h>\n")
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
