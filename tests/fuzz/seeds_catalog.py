# SPDX-License-Identifier: Apache-2.0
"""Catalogs for seeds.py."""

import struct

from seeds_digest import digest

CATALOG_HEAD = struct.Struct("<8s4I4Q")
U8, BF16, F32 = 2, 11, 12


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def run(gap, start, shape, *loops):
    """A record; a loop is count, stride, deltas."""
    data = varint(gap << 2 | len(loops)) + b"".join(varint(n) for n in [*start, *shape])
    for count, stride, deltas in loops:
        data += varint(count) + varint(stride)
        data += b"".join(varint(d << 1 if d >= 0 else (-d << 1) - 1) for d in deltas)
    return data


def catalog(world, tensors, aliases=(), lies=()):
    """A tensor is name, dtype, shape, list; `lies` are numbers of the head."""
    directory = b""
    lists = b""
    for name, dtype, shape, records in tensors:
        text = name.encode("utf-8", "surrogatepass")
        directory += struct.pack("<HBB", len(text), dtype, len(shape)) + text
        directory += b"".join(struct.pack("<Q", n) for n in shape)
        directory += struct.pack("<Q", len(records)) + digest(records)
        lists += records
    for name, target in aliases:
        text = name.encode()
        directory += struct.pack("<HI", len(text), target) + text
    numbers = {
        "major": 1,
        "minor": 0,
        "head": CATALOG_HEAD.size,
        "world": world,
        "tensors": len(tensors),
        "aliases": len(aliases),
        "directory": len(directory),
        "lists": len(lists),
        **dict(lies),
    }
    root = CATALOG_HEAD.pack(b"CKPTCAT\0", *numbers.values()) + directory
    return root + digest(root) + lists


ROWS = ("w", F32, [64, 8], run(0, [0, 0], [8, 8], (8, 1, [8, 0])))
GRID = ("x", BF16, [16, 8], run(0, [0, 0], [4, 4], (2, 1, [0, 4]), (4, 2, [4, 0])))
DEEP = (
    "y",
    U8,
    [2, 2, 2],
    run(0, [0, 0, 0], [1, 1, 1], (2, 1, [0, 0, 1]), (2, 2, [0, 1, 0]), (2, 4, [1, 0, 0])),
)
BACK = ("b", U8, [80], run(0, [70], [10], (8, 1, [-10])))
SOME = ("s", F32, [], run(2, [], []) + run(3, [], []))
LAST = ("t", U8, [10], run(0, [0], [4], (2, 1, [4])) + run(0, [8], [2]) + run(0, [10], [0]))
ALL = [BACK, SOME, LAST, ROWS, GRID, DEEP]


def that_are_good():
    yield "rows", catalog(8, [ROWS])
    yield "all", catalog(8, ALL)
    yield "aliases", catalog(8, ALL, [("a", 3), ("z", 0)])
    yield "nothing", catalog(1, [])
    yield (
        "of-a-million-ranks",
        catalog(10**6, [("w", U8, [10**6], run(0, [0], [1], (10**6, 1, [1])))]),
    )
    yield (
        "the-same-on-a-million",
        catalog(
            10**6,
            [("w", U8, [1], run(0, [0], [1], (100, 1, [0]), (100, 100, [0]), (100, 10**4, [0])))],
        ),
    )


def that_lie():
    """Of their worlds, lengths and names."""
    for name, world in (("zero", 0), ("too-great", 10**6 + 1), ("greatest", 2**32 - 1)):
        yield f"world-{name}", catalog(world, [ROWS])
    yield "newer-major", catalog(8, [ROWS], lies={"major": 2})
    yield "newer-minor", catalog(8, [ROWS], lies={"minor": 9})
    yield "longer-head", catalog(8, [ROWS], lies={"head": 64})
    for key in ("tensors", "aliases", "directory", "lists"):
        for name, number in (
            ("zero", 0),
            ("two", 2),
            ("greatest", 2**64 - 1),
            ("2-to-the-29", 2**29),
        ):
            yield f"{key}-{name}", catalog(8, [ROWS, GRID], [("z", 0)], {key: number})
    yield "names-descend", catalog(8, [GRID, ROWS])
    yield "name-twice", catalog(8, [ROWS, ROWS])
    yield "alias-and-tensor-of-one-name", catalog(8, [ROWS, GRID], [("w", 1)])
    yield "alias-of-an-alias", catalog(8, [ROWS], [("y", 1), ("z", 0)])
    yield "alias-of-nothing", catalog(8, [ROWS], [("z", 2**32 - 1)])
    yield "aliases-descend", catalog(8, [ROWS], [("z", 0), ("y", 0)])
    for label, name in (
        ("empty", ""),
        ("of-nul", "a\0b"),
        ("of-1023-bytes", "n" * 1023),
        ("of-1024-bytes", "n" * 1024),
        ("reserved", "__metadata__"),
        ("of-half-a-surrogate", "\ud800"),
        ("is-a-path", "../../etc/passwd"),
        ("of-control-bytes", "\u001b[2J\n"),
    ):
        yield f"name-{label}", catalog(8, [(name, *ROWS[1:])])
    yield "dtype-unknown", catalog(8, [("w", 99, *ROWS[2:])])
    yield "dtype-zero", catalog(8, [("w", 0, *ROWS[2:])])
    yield "dims-17", catalog(8, [("w", U8, [1] * 17, run(0, [0] * 17, [1] * 17))])
    yield "dims-16", catalog(8, [("w", U8, [1] * 16, run(0, [0] * 16, [1] * 16))])
    yield "whole-of-2-to-the-63", catalog(8, [("w", U8, [2**32, 2**31], run(0, [0, 0], [1, 1]))])
    yield "whole-negative", catalog(8, [("w", U8, [2**64 - 1], run(0, [0], [1]))])
    yield "whole-greatest", catalog(8, [("w", U8, [2**63 - 1], run(0, [2**63 - 2], [1]))])
    yield "list-empty", catalog(8, [("w", U8, [1], b"")])


def that_lie_about_boxes():
    boxes = {
        "out-of-its-whole": run(0, [4], [7]),
        "start-out-of-its-whole": run(0, [11], [0]),
        "wraps": run(0, [2**63 - 1], [2**63 - 1]),
        "empty-at-the-end": run(0, [10], [0]),
        "rank-out-of-the-world": run(8, [0], [1]),
        "rank-greatest": run(2**61, [0], [1]),
        "rank-behind-the-last": run(7, [0], [1]) + run(0, [0], [1]),
        "loop-of-none": run(0, [0], [1], (0, 1, [1])),
        "loop-of-one": run(0, [0], [1], (1, 1, [1])),
        "loop-without-stride": run(0, [0], [1], (2, 0, [1])),
        "loop-too-long": run(0, [0], [1], (9, 1, [1])),
        "loop-out-of-the-world": run(1, [0], [1], (8, 1, [1])),
        "loop-within-its-own-span": run(0, [0], [1], (3, 1, [1]), (2, 2, [1])),
        "loop-out-of-its-whole": run(0, [0], [3], (4, 1, [3])),
        "loop-before-its-whole": run(0, [2], [1], (4, 1, [-1])),
        "loop-of-the-greatest-step": run(0, [0], [1], (3, 1, [2**62])),
        "loop-of-the-least-step": run(0, [0], [1], (2, 1, [-(2**63)])),
        "loops-that-cancel": run(0, [5], [1], (2, 1, [2**62]), (2, 2, [-(2**62)])),
        "loops-that-cancel-within": run(0, [5], [1], (2, 1, [5]), (2, 2, [-5])),
        "longer-than-it-must-be": b"\x80\x00\x00\x01",
        "number-of-eleven-bytes": b"\x00" + b"\xff" * 10 + b"\x01\x01",
        "cut-short": run(0, [0], [1], (2, 1, [1]))[:-1],
        "something-behind": run(0, [0], [1]) + b"\x00",
    }
    for name, records in boxes.items():
        yield name, catalog(8, [("w", U8, [10], records)])


def catalogs():
    """Name, file: some good, most not."""
    yield from that_are_good()
    yield from that_lie()
    yield from that_lie_about_boxes()
    good = catalog(8, ALL)
    yield "cut-in-its-lists", good[:-1]
    yield "cut-in-its-root", good[:90]
    yield "something-behind-all", good + b"\0"
    yield "wrong-digest-of-a-list", good[:-1] + b"\x7f"
