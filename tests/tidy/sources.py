# SPDX-License-Identifier: Apache-2.0
"""Every C file is in the build: one that is not compiled is not tested either."""

import posixpath
import re


def check(tree):
    built = set()
    for path in tree.paths(r"(^|/)meson\.build$"):
        folder = posixpath.dirname(path)
        for name in re.findall(r"'([\w./-]+)'", tree.files[path]):
            source = name if name.endswith(".c") else name + ".c"
            built.add(posixpath.normpath(posixpath.join(folder, source)))
    for path in tree.paths(r"^(libckpt|agent|tools|tests|benchmarks)/.*\.c$"):
        if path not in built:
            yield path, 1, "is in no meson.build"
