# SPDX-License-Identifier: Apache-2.0
"""The checks find what they are there for: each is given things that are wrong, and right ones."""

import sys

import banned
import imports
import layers
import sizes
import sources
import symbols
import tables
from tree import Tree

HEAD = "/* SPDX-License-Identifier: Apache-2.0 */\n"
LONG = HEAD + "int f(void)\n{\n" + "\tg();\n" * 69 + "}\n"
TABLE = "struct ckpt_io_ops {\n\tconst char *name;\n\tvoid (*submit)(struct ckpt_io *io);\n};\n"
MAP = "V {\nglobal:\n\tckpt_a;\nlocal:\n\t*;\n};\n"
SHA = "../sha" + "red/x"


def python(**files):
    """A package of these files."""
    made = {f"{imports.PACKAGE}/{name}.py": text for name, text in files.items()}
    return made | {f"{imports.PACKAGE}/meson.build": "".join(f"'{name}.py'," for name in files)}


# (check, files with one fault, words of the finding; None: there is none)
PLANTED = [
    (layers, {"libckpt/io/a.c": '#include "engine/core/b.h"\n', "libckpt/engine/core/b.h": ""}, "must not"),
    (layers, {"libckpt/io/a.c": '#include "device/b.h"\n', "libckpt/device/b.h": ""}, "must not"),
    (layers, {"libckpt/io/a.c": '#include "base/b.h"\n', "libckpt/base/b.h": ""}, None),
    (layers, {"libckpt/io/a.c": '#include "base/b.h"\n'}, "is not a header"),
    (layers, {"libckpt/misc/a.c": ""}, "not a layer"),
    (layers, {"libckpt/engine/a.c": ""}, "not a folder of the engine"),
    (
        layers,
        {
            "libckpt/engine/gc/a.c": '#include "engine/save/b.h"\n',
            "libckpt/engine/save/b.h": "",
        },
        "which is above it",
    ),
    (
        layers,
        {
            "libckpt/engine/save/a.c": '#include "engine/gc/b.h"\n',
            "libckpt/engine/gc/b.h": "",
        },
        None,
    ),
    (layers, {"include/ckpt/a.h": "#include <stdbool.h>\n"}, "public header"),
    (layers, {"tools/a.c": '#include "base/b.h"\n', "libckpt/base/b.h": ""}, "for programs"),
    (layers, {"agent/a.c": '#include "store/b.h"\n', "libckpt/store/b.h": ""}, "agent/ must not"),
    (layers, {"agent/a.c": '#include "b.h"\n#include "peer/c.h"\n', "agent/b.h": "", "libckpt/peer/c.h": ""}, None),
    (
        layers,
        {
            "libckpt/io/a.h": '#include "io/b.h"\n',
            "libckpt/io/b.h": '#include "io/c.h"\n',
            "libckpt/io/c.h": '#include "io/a.h"\n',
        },
        "includes itself",
    ),
    (
        layers,
        {
            "libckpt/io/a.h": "",
            "libckpt/io/a.c": '#include "io/b.h"\n',
            "libckpt/io/b.h": '#include "io/a.h"\n',
        },
        "include each other: io/a, io/b",
    ),
    (
        layers,
        {
            "libckpt/io/a.h": "",
            "libckpt/io/a_state.h": '#include "io/a.h"\n',
            "libckpt/io/a.c": '#include "io/a_state.h"\n',
        },
        None,
    ),
    (sizes, {"libckpt/a.c": HEAD + "\n" * 900}, "901 lines"),
    (sizes, {"libckpt/a.c": HEAD + "\n" * 899}, None),
    (sizes, {"libckpt/a.c": LONG}, "f: 71 lines"),
    (sizes, {"a/x.c": "int a;\n"}, "licence"),
    (symbols, {symbols.MAP: MAP, "include/ckpt/a.h": "CKPT_API int ckpt_a(int b);\n"}, None),
    (symbols, {symbols.MAP: MAP}, "ckpt_a is in no public header"),
    (
        symbols,
        {
            symbols.MAP: MAP,
            "include/ckpt/a.h": "CKPT_API int ckpt_a(int b);\nCKPT_API int\n ckpt_b(int b);\n",
        },
        "ckpt_b of include/ckpt/a.h is missing",
    ),
    (
        symbols,
        {symbols.MAP: MAP, "include/ckpt/a.h": "CKPT_API int ckpt_a(int b);\nint ckpt_c(int b);\n"},
        "ckpt_c is not marked",
    ),
    (banned, {"tools/a.c": "\tstrcpy(a, b);\n"}, "strcpy"),
    (banned, {"tools/a.c": '/* strcpy(a, b) */ "strcpy(a)"; ckpt_strcpy(a);\n'}, None),
    (banned, {"libckpt/io/a.c": "\tp = malloc(4);\n"}, "malloc"),
    (banned, {"libckpt/base/alloc.c": "\tp = malloc(4);\n"}, None),
    (banned, {"libckpt/engine/core/a.c": "\tclock_gettime(c, &t);\n"}, "clock"),
    (banned, {"tests/unit/a.c": "\tusleep(5);\n"}, "by luck"),
    (banned, {"tests/python/a.py": "    time." + "sleep(1)\n"}, "by luck"),
    (banned, {"tests/python/a.py": "while f():\n    pass\ntime." + "sleep(1)\n"}, "by luck"),
    (banned, {"tests/python/a.py": "while f():\n    if g():\n        time." + "sleep(1)\n"}, None),
    (banned, {"README.md": f"see {SHA}\n"}, "not part of the project"),
    (banned, {"libckpt/io/a.c": "/* TO" + "DO */\n"}, "finish it"),
    (tables, {"libckpt/io/io.h": TABLE, "libckpt/io/io.c": "io->ops->submit(io);\n"}, None),
    (tables, {"libckpt/io/io.h": TABLE}, "no wrapper"),
    (
        tables,
        {
            "libckpt/io/io.h": TABLE,
            "libckpt/io/io.c": "",
            "libckpt/store/a.c": "f(io->ops->submit);\n",
        },
        "alone",
    ),
    (imports, python(_a="from . import _b\n", _b="import os\n"), None),
    (imports, python(_a="from ._b import x\n", _b="def f():\n    from . import _a\n"), "itself"),
    (imports, python(_a="if x:\n    from ._b import y\n", _b="from ._a import z\n"), "itself"),
    (imports, python(_a="import libckpt._b\n", _b="import os, json\n"), None),
    (imports, python(_a="import os, libckpt._b as b\n", _b="from . import _a\n"), "itself"),
    (imports, python(_a="from libckpt._b import x\n", _b="from libckpt import _a\n"), "itself"),
    (imports, python(_a="from . import x\n", __init__="from ._a import y\n"), "itself"),
    (imports, {"bindings/python/libckpt/_a.py": ""}, "in no meson.build"),
    (sources, {"libckpt/io/a.c": ""}, "in no meson.build"),
    (sources, {"libckpt/io/a.c": "", "libckpt/io/meson.build": "x += files('a.c')\n"}, None),
]


def main():
    wrong = 0
    for check, files, words in PLANTED:
        found = [message for _, _, message in check.check(Tree(files))]
        good = not found if words is None else len(found) == 1 and words in found[0]
        if not good:
            wrong += 1
            print(f"{check.__name__}: {files}: wanted {words}, found {found}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
