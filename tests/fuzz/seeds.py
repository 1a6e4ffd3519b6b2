# SPDX-License-Identifier: Apache-2.0
"""Writes the named files of the corpus: the golden store's, and malicious ones made by hand.

usage: seeds.py [CORPUS]     default: the folder corpus/ beside this file

What a fuzzer has found is named by its hash and stays. The sizes are small: what large files cost is
tested in tests/unit/format/test_hostile_size.c.
"""

import json
import pathlib
import struct
import sys

from seeds_catalog import catalogs
from seeds_codec import encoded_chunks
from seeds_digest import digest
from seeds_encoded import encoded_shards
from seeds_index import index, tensor, tensors_json
from seeds_ini import configurations
from seeds_net import heads, keys, sources
from seeds_peer import messages, slots
from seeds_s3 import s3

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden/v1"
STEP = GOLDEN / "g000001/step-0000000100"
NAME = "rank-00000.00112233445566ff"
RUN = "0123456789abcdef0123456789abcdef"
ATTEMPT = "0123456789abcdef"
DIGEST = "99aa06d3014798d86001c324468d497f"
BIG = 2**63


def seal(body):
    """`body` is text, or members."""
    if isinstance(body, dict):
        body = json.dumps(body, separators=(",", ":"), ensure_ascii=False)[:-1]
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return data + b',"digest":"' + digest(data).hex().encode() + b'"}\n'


def head(kind, **members):
    return {"format": [1, 0], "kind": kind, **members}


def nested(depth, inner="0"):
    return "[" * depth + inner + "]" * depth


def with_raw(members, raw):
    """The members, and JSON that json.dumps() would not write."""
    return seal(json.dumps(members, separators=(",", ":"))[:-1] + "," + raw)


def sealed_malice(good):
    """What any sealed file may be done to."""
    yield "newer-major", seal({**good, "format": [2, 0]})
    yield "newer-major-other-kind", seal({**good, "format": [2, 0], "kind": "k" * 100})
    yield "newer-minor-more-members", seal({**good, "format": [1, 9], "more": {"a": [1, None]}})
    yield "format-zero", seal({**good, "format": [0, 0]})
    yield "format-huge", seal({**good, "format": [BIG - 1, BIG - 1]})
    yield "format-with-a-sign", seal('{"format":[10000000000,-0],"kind":"' + good["kind"] + '"')
    yield "format-of-three", seal({**good, "format": [1, 0, 0]})
    yield "other-kind", seal({**good, "kind": "other"})
    yield "digest-twice", with_raw(good, f'"digest":"{DIGEST}"')
    yield "member-twice", with_raw(good, '"kind":"' + good["kind"] + '"')
    yield "member-twice-escaped", with_raw(good, '"\\u006bind":"' + good["kind"] + '"')
    yield "unknown-member-twice", with_raw(good, '"x":1,"x":2')
    yield "nested-32", with_raw(good, '"x":' + nested(31))
    yield "nested-33", with_raw(good, '"x":' + nested(32))
    yield "nested-500", with_raw(good, '"x":' + nested(500))
    yield "never-closed", with_raw(good, '"x":' + "[" * 300)
    yield "many-empty-objects", with_raw(good, '"x":[' + ",".join(["{}"] * 500) + "]")
    yield "nul-in-text", with_raw(good, '"x":"\\u0000"')
    yield "nul-in-key", with_raw(good, '"\\u0000":1')
    yield "half-surrogate", with_raw(good, '"x":"\\ud800"')
    yield "not-utf8", seal(json.dumps(good).encode()[:-1] + b',"x":"\xff\xc0\x80"')
    yield "byte-order-mark", seal(b"\xef\xbb\xbf" + json.dumps(good).encode()[:-1])
    yield "number-of-2-to-the-63", with_raw(good, f'"x":{BIG}')
    yield "number-of-1e999", with_raw(good, '"x":1e999')
    yield "number-of-500-digits", with_raw(good, '"x":' + "9" * 500)
    yield "only-a-seal", seal("")
    yield "sealed-text", seal('"a"')
    yield "white-space-within", seal(json.dumps(good, indent="\t\r\n ")[:-1])
    yield "cut-short", seal(good)[:-1]
    yield "something-behind", seal(good) + b"\n"
    yield "wrong-digest", seal(good)[:-40] + b"0" * 37 + b'"}\n'
    for key in good:
        yield f"without-{key}", seal({k: v for k, v in good.items() if k != key})
    for key, value in good.items():
        if isinstance(value, int):
            for name, number in (("negative", -1), ("greatest", BIG - 1)):
                yield f"{key}-{name}", seal({**good, key: number})
            yield f"{key}-half", seal({**good, key: 0.5})


def texts(good, key, most):
    yield f"{key}-longest", seal({**good, key: "x" * most})
    yield f"{key}-too-long", seal({**good, key: "x" * (most + 1)})
    yield f"{key}-empty", seal({**good, key: ""})
    yield f"{key}-is-a-path", seal({**good, key: "../../../etc/passwd"})
    yield f"{key}-of-control-bytes", seal({**good, key: "a\n\u001b[2J\u0085b"})
    yield f"{key}-utf8-at-its-end", seal({**good, key: "x" * (most - 3) + "\u20ac"})


def marker():
    good = head("store", run_id=RUN, scope="node", wall_ms=1700000000000)
    yield "golden", (GOLDEN / "ckpt.json").read_bytes()
    yield "shared", seal({**good, "scope": "shared"})
    yield "ranks", seal({**good, "scope": "ranks"})
    yield "scope-unknown", seal({**good, "scope": "world"})
    yield "run-id-upper-case", seal({**good, "run_id": RUN.upper()})
    yield "run-id-is-a-path", seal({**good, "run_id": "../" * 10 + "aa"})
    yield "run-id-too-long", seal({**good, "run_id": RUN + "0"})
    yield from sealed_malice(good)


def claim():
    good = head(
        "claim",
        run_id=RUN,
        generation=2,
        parent={"generation": 1, "step": 100},
        nonce=ATTEMPT,
        world=8,
        node="node-7",
        wall_ms=1700000000000,
    )
    yield "golden-first", (GOLDEN / "gens/000001.json").read_bytes()
    yield "golden-second", (GOLDEN / "gens/000002.json").read_bytes()
    yield "no-parent", seal({**good, "parent": None})
    yield "its-own-parent", seal({**good, "parent": {"generation": 2, "step": 1}})
    yield "parent-to-come", seal({**good, "parent": {"generation": 3, "step": 1}})
    yield "parent-zero", seal({**good, "parent": {"generation": 0, "step": 1}})
    yield "parent-step-greatest", seal({**good, "parent": {"generation": 1, "step": 9999999999}})
    yield "parent-step-too-great", seal({**good, "parent": {"generation": 1, "step": 10**10}})
    yield "parent-an-array", seal({**good, "parent": [1, 100]})
    yield "world-zero", seal({**good, "world": 0})
    yield "world-of-a-million", seal({**good, "world": 10**6})
    yield "world-of-2-to-the-32", seal({**good, "world": 2**32})
    yield "nonce-a-number", seal({**good, "nonce": 1})
    yield "nonce-upper-case", seal({**good, "nonce": ATTEMPT.upper()})
    yield "generation-a-million", seal({**good, "generation": 10**6})
    yield from texts(good, "node", 64)
    yield from sealed_malice(good)


def bases_told(good, outcome):
    yield "outcome-follow-twice", seal({**outcome, "follow": 2})
    yield "rank-of-no-base", seal({**good, "base": 0})
    yield "rank-base-too-great", seal({**good, "base": 10**10 + 1})
    yield "rank-stored-too-much", seal({**good, "stored": 2**63})


def records():
    about = {"generation": 3, "step": 70, "nonce": ATTEMPT}
    good = head(
        "rank",
        code=0,
        reason="",
        **about,
        attempt=ATTEMPT,
        rank=12,
        node="node-7",
        index_digest=ATTEMPT * 2,
        index_bytes=4321,
        shard_bytes=2**40,
        plan=ATTEMPT * 2,
        common=ATTEMPT * 2,
        alike="",
        balance=ATTEMPT,
    )
    good |= {"stored": 2**39, "base": 70}
    verdict = head("verdict", code=28, reason="No space left on device", **about)
    outcome = head("outcome", code=0, reason="", **about, attempt=ATTEMPT, bytes=2**50)
    outcome |= {"open": 0, "alike": 0, "clue": "", "differ": "", "follow": 1}
    node = head(
        "node",
        key="g000001/f.json",
        code=0,
        reason="",
        rank=3,
        node="node-7",
        run_id=RUN,
        keeps=1,
        newest=9,
        claims=[[9, 0, 3], [7, 0, 1]],
        steps=[[9, 120, 3], [9, 110, 3], [7, 100, 1]],
        open=[[9, 115, 3]],
    )
    yield "node", seal(node)
    yield "node-without-a-store", seal({**node, "run_id": "0" * 32, "claims": [], "steps": []})
    yield "node-that-failed", seal({**node, "code": 10007, "reason": "held"})
    yield "node-items-ascend", seal({**node, "steps": [[7, 100, 1], [9, 120, 3]]})
    yield "node-item-twice", seal({**node, "claims": [[9, 0, 3], [9, 0, 1]]})
    yield "node-items-too-many", seal({**node, "claims": [[199 - i, 0, 0] for i in range(129)]})
    yield "node-item-of-two", seal({**node, "claims": [[9, 0]]})
    yield "node-items-nested", seal({**node, "steps": [[[9]]]})
    yield "rank", seal(good)
    yield "rank-without-digests", seal({**good, "alike": "-"})
    yield "outcome", seal(outcome)
    yield "outcome-differ", seal({**outcome, "differ": "fedcba9876543210"})
    yield "outcome-differ-short", seal({**outcome, "differ": "fedcba"})
    yield "outcome-differ-of-letters", seal({**outcome, "differ": "-edcba987654321x"})
    yield "outcome-bytes-too-many", seal({**outcome, "bytes": 2**63})
    yield from bases_told(good, outcome)
    yield "step-skipped", seal({**outcome, "code": 10013, "reason": "busy", "bytes": 0})
    yield "step-too-great", seal({**outcome, "step": 10**10})
    yield "nonce-short", seal({**outcome, "nonce": "12"})
    yield "index-empty", seal({**good, "index_bytes": 0})
    yield "shard-empty", seal({**good, "shard_bytes": 0})
    yield "verdict", seal(verdict)
    yield "rank-that-failed", seal({**good, "code": 10009, "reason": "w was changed"})
    yield "code-greatest", seal({**verdict, "code": 2**31 - 1})
    yield "code-too-great", seal({**verdict, "code": 2**31})
    yield "code-negative", seal({**verdict, "code": -28})
    yield "rank-of-a-million", seal({**good, "rank": 10**6})
    yield "attempt-is-a-path", seal({**good, "attempt": "../../etc/passwd"})
    yield "digest-short", seal({**good, "index_digest": ATTEMPT})
    yield "index-too-large", seal({**good, "index_bytes": 2**30 + 1})
    yield "shard-too-large", seal({**good, "shard_bytes": 2**46 + 1})
    yield from texts(good, "node", 64)
    yield from texts(verdict, "reason", 255)
    yield from sealed_malice(good)


def quarantine():
    good = head(
        "quarantine",
        generation=1,
        step=100,
        code=-10001,
        reason="chunk 3 differs",
        wall_ms=1700000000000,
    )

    def with_code(code):
        return seal(json.dumps(good)[:-1].replace("-10001", code))

    yield "golden", (STEP / "quarantine.json").read_bytes()
    yield "code-zero", with_code("0")
    yield "code-positive", seal({**good, "code": 1})
    yield "code-minus-zero", with_code("-0")
    yield "code-least", seal({**good, "code": -(2**31)})
    yield "code-too-small", seal({**good, "code": -(2**31) - 1})
    yield "code-2-to-the-32", seal({**good, "code": 2**32 - 10001})
    yield from texts(good, "reason", 511)
    yield from sealed_malice(good)


def remote():
    good = head(
        "remote",
        run_id=RUN,
        remote="s3://models/run42",
        every=10,
        generation=2,
        node="node-7",
        wall_ms=1700000000000,
        known=[2, 40],
        there=[2, 10, 1600000000000],
        waiting=[[1, 30], [2, 20]],
        waiting_more=0,
        absent=[[1, 10, -10001], [2, 30, 0]],
        absent_more=0,
        failure=[-10021, 3, 1700000000001, 1700000000002, "no route"],
    )
    yield "good", seal(good)
    yield (
        "nothing",
        seal({**good, "known": None, "there": None, "waiting": [], "absent": [], "failure": None}),
    )
    yield (
        "most-waiting",
        seal({**good, "waiting": [[1, i] for i in range(4096)], "waiting_more": 9}),
    )
    yield "too-many-waiting", seal({**good, "waiting": [[1, i] for i in range(4097)]})
    yield "most-absent", seal({**good, "absent": [[1, i, -1] for i in range(64)], "absent_more": 9})
    yield "too-many-absent", seal({**good, "absent": [[1, i, 0] for i in range(65)]})
    yield "not-ascending", seal({**good, "waiting": [[2, 20], [1, 30]]})
    yield "twice", seal({**good, "absent": [[1, 10, 0], [1, 10, -1]]})
    yield "failure-without-code", seal({**good, "failure": [0, 3, 1, 2, "no route"]})
    yield "short-failure", seal({**good, "failure": [-1, 3, 1, 2]})
    yield "step-of-no-generation", seal({**good, "known": [0, 40]})
    yield from texts(good, "remote", 4607)
    yield from texts(good, "node", 64)
    yield from sealed_malice(good)


def rank_record(number, **changes):
    return {
        "rank": number,
        "node": f"node-{number}",
        "attempt": f"{number:016x}",
        "index_digest": DIGEST,
        "index_bytes": 2437,
        "shard_bytes": 14241,
        **changes,
    }


def manifest():
    good = head(
        "manifest",
        run_id=RUN,
        generation=1,
        step=100,
        outcome="commit",
        attempt=ATTEMPT,
        wall_ms=1700000000000,
        world=2,
        ranks=[rank_record(0), rank_record(1)],
    )
    abort = {**good, "outcome": "abort", "reason": "a rank was late"}
    del abort["ranks"]

    def with_rank(**changes):
        return seal({**good, "ranks": [rank_record(0), rank_record(1, **changes)]})

    yield "golden-commit", (STEP / "manifest.json").read_bytes()
    yield "golden-abort", (GOLDEN / "g000002/step-0000000110/manifest.json").read_bytes()
    yield "ranks-before-world", seal({"ranks": good["ranks"], **good})
    yield "sixty-ranks", seal({**good, "world": 60, "ranks": [rank_record(i) for i in range(60)]})
    yield "world-of-a-million", seal({**good, "world": 10**6})
    yield "world-of-2-to-the-32", seal({**good, "world": 2**32 + 2})
    yield "world-zero", seal({**good, "world": 0, "ranks": []})
    yield "more-ranks-than-world", seal({**good, "world": 1})
    yield "fewer-ranks-than-world", seal({**good, "world": 3})
    yield "ranks-descend", seal({**good, "ranks": good["ranks"][::-1]})
    yield "rank-twice", seal({**good, "ranks": [rank_record(0), rank_record(0)]})
    yield "rank-of-2-to-the-32", with_rank(rank=2**32 + 1)
    yield "ranks-an-object", seal({**good, "ranks": {"0": rank_record(0)}})
    yield "attempt-is-a-path", with_rank(attempt="../../../../etc/")
    yield "attempt-with-nul", seal(json.dumps(good)[:-1].replace("0000000000000001", "\\u0000"))
    yield "index-of-2-to-the-30", with_rank(index_bytes=2**30)
    yield "index-too-long", with_rank(index_bytes=2**30 + 1)
    yield "index-empty", with_rank(index_bytes=0)
    yield "shard-of-2-to-the-46", with_rank(shard_bytes=2**46)
    yield "shard-too-long", with_rank(shard_bytes=2**46 + 1)
    yield "digest-upper-case", with_rank(index_digest=DIGEST.upper())
    yield "node-of-control-bytes", with_rank(node="\u001b[2J\n")
    yield "node-too-long", with_rank(node="x" * 65)
    yield "unknown-outcome", seal({**good, "outcome": "maybe"})
    based = {**good, "format": [2, 0]}
    yield "bases", seal({**based, "bases": [[1, 7], [1, 99]]})
    yield "bases-sixteen", seal({**based, "bases": [[1, i] for i in range(16)]})
    yield "bases-seventeen", seal({**based, "bases": [[1, i] for i in range(17)]})
    yield "bases-descend", seal({**based, "bases": [[1, 9], [1, 8]]})
    yield "bases-itself", seal({**based, "bases": [[1, 100]]})
    yield "bases-numbers", seal({**based, "bases": [1, 7]})
    yield "bases-of-three", seal({**based, "bases": [[1, 7, 7]]})
    yield "bases-of-an-abort", seal({**abort, "format": [2, 0], "bases": [[1, 7]]})
    yield "next-major", seal({**good, "format": [3, 0]})
    yield "scope-node", seal({**good, "scope": "node"})
    yield "scope-unknown", seal({**good, "scope": "n" * 255})
    yield "scope-too-long", seal({**good, "scope": "n" * 256})
    yield "scope-a-number", seal({**good, "scope": 1})
    yield "abort-with-scope", seal({**abort, "scope": "node"})
    yield "commit-with-a-reason", seal({**good, "reason": "none"})
    yield "abort-with-ranks", seal({**abort, "ranks": good["ranks"]})
    yield "abort-with-hostile-ranks", seal({**abort, "ranks": [[[["x"]]]]})
    for name, data in texts(abort, "reason", 255):
        yield f"abort-{name}", data
    yield from sealed_malice(good)


def one(shape, size, name="a", dtype="U8", offset=4096, **more):
    return index(tensors_json([tensor(name, dtype, shape, offset, **more)]), [size])


def indexes():
    """Name, index: some good, most not."""
    ten = tensors_json([tensor("a", "U8", [10], 4096)])
    mixed = [
        tensor("c", "C128", [2, 2], 4096),
        tensor("w", "F64", [700], 4160),
        tensor("x", "C32", [3], 9760),
        tensor("b", "BF16", [4, 0], 9772),
        tensor("q", "F8_E4M3FNUZ", [50], 9772),
        tensor("s", "BOOL", [], 9822),
    ]
    yield "golden", (STEP / f"{NAME}.index").read_bytes()
    yield "nothing", index('{"tensors":[]}')
    yield "ten-bytes", index(ten, [10])
    yield (
        "mixed",
        index(
            tensors_json(mixed, [("0", "w"), ("z", "s")]),
            [64, 5600, 12, 0, 50, 1],
            b'{"python":{"version":1}}',
        ),
    )
    yield "chunks-of-one-byte", index(ten, [10], header=4096, most=1)[:4000]
    yield "chunks-of-64-bytes", index(ten, [10], most=64)
    yield (
        "hostile-names",
        index(
            tensors_json(
                [
                    tensor("\u001b[2J", "U8", [1], 4096),
                    tensor("../../etc/passwd", "U8", [1], 4097),
                    tensor("/", "U8", [1], 4098),
                    tensor("a\nb", "U8", [1], 4099),
                ]
            ),
            [1, 1, 1, 1],
        ),
    )
    yield "name-of-nul", index(ten.replace('"a"', '"\\u0000"'), [10])
    yield "name-of-1023-bytes", one([10], 10, name="n" * 1023)
    yield "name-of-1024-bytes", one([10], 10, name="n" * 1024)
    yield "name-reserved", one([10], 10, name="__metadata__")
    yield "name-empty", one([10], 10, name="")
    yield from bad_places(ten)
    yield from bad_parts(ten)


def bad_places(ten):
    """Where tensors lie, and in which order."""
    yield (
        "overlap",
        index(tensors_json([tensor("a", "U8", [6], 4096), tensor("b", "U8", [6], 4100)]), [6, 4]),
    )
    yield (
        "hole",
        index(tensors_json([tensor("a", "U8", [4], 4096), tensor("b", "U8", [5], 4101)]), [4, 6]),
    )
    yield "in-the-header", one([10], 10, offset=0)
    yield "out-of-the-shard", one([11], 10)
    yield "product-wraps-to-ten", one([5534023222112865486, 10], 10)
    yield "zero-times-everything", one([0, BIG - 1, 3], 0)
    yield "sixteen-dimensions", one([1] * 15 + [10], 10)
    yield "seventeen-dimensions", one([1] * 16 + [10], 10)
    yield (
        "of-2-to-the-45-bytes",
        index(tensors_json([tensor("a", "U8", [2**45], 4096)]), [], shard=4096 + 2**45),
    )
    yield (
        "out-of-order",
        index(tensors_json([tensor("b", "U8", [5], 4096), tensor("a", "U8", [5], 4101)]), [5, 5]),
    )
    yield (
        "same-name-other-type",
        index(tensors_json([tensor("a", "U16", [2], 4096), tensor("a", "U8", [6], 4100)]), [4, 6]),
    )
    yield "member-twice", index(ten.replace('"name":"a"', '"name":"a","name":"a"'), [10])
    yield (
        "aliases-before-tensors",
        index(
            '{"aliases":[{"name":"b","target":"a"}],' + ten[1:].replace(',"aliases":[]', ""), [10]
        ),
    )


def bad_parts(ten):
    """Aliases, boxes, meta, numbers of the head: what an index of one tensor may be made to say."""
    for name, aliases in (
        ("alias-of-alias", [("b", "a"), ("c", "b")]),
        ("alias-of-nothing", [("b", "x")]),
        ("alias-of-itself", [("b", "b")]),
        ("alias-named-as-tensor", [("a", "a")]),
        ("alias-twice", [("b", "a"), ("b", "a")]),
        ("aliases-out-of-order", [("c", "a"), ("b", "a")]),
    ):
        yield name, index(tensors_json([tensor("a", "U8", [10], 4096)], aliases), [10])
    whole = tensor("a", "U8", [2, 5], 4096, global_shape=[8, 5], global_start=[6, 0])
    yield "box", index(tensors_json([whole]), [10])
    for name, shape, start in (
        ("box-reaches-out", [8, 5], [7, 0]),
        ("box-start-greatest", [8, 5], [BIG - 1, 0]),
        ("box-whole-overflows", [2**32, 2**31], [0, 0]),
        ("box-of-other-dimensions", [8], [6]),
    ):
        yield (
            name,
            index(tensors_json([{**whole, "global_shape": shape, "global_start": start}]), [10]),
        )
    yield (
        "empty-box-of-much",
        index(tensors_json([tensor("a", "U8", [0, 5], 4096, global_shape=[2**40, 5])]), [0]),
    )
    for name, size, text in (
        ("digest", 10, DIGEST),
        ("digest-of-nothing", 0, DIGEST),
        ("digest-of-31", 10, DIGEST[1:]),
        ("digest-upper-case", 10, DIGEST.upper()),
    ):
        yield (
            f"tensor-{name}",
            index(tensors_json([{**tensor("a", "U8", [size], 4096), "digest": text}]), [size]),
        )
    for number in (1, 0):
        varying = {**tensor("a", "U8", [10], 4096), "varies": number}
        yield f"tensor-varies-{number}", index(tensors_json([varying]), [10])
    for name, meta in (
        ("meta-nested-32", nested(32)),
        ("meta-nested-33", nested(33)),
        ("meta-of-odd-numbers", "[1e999,-0,0.1e-9," + "9" * 300 + "]"),
        ("meta-with-nul", '{"\\u0000":"\\u0000"}'),
        ("meta-cut-short", '{"a":['),
        ("meta-of-spaces", "   "),
    ):
        yield name, index(ten, [10], meta.encode())
    edges = {
        "major": 2,
        "minor": 7,
        "head": 73,
        "rank": 10**6,
        "shard": 2**64 - 1,
        "headers": 2**64 - 4096,
        "chunk": 0,
        "tensor": 2**64 - 1,
        "metas": 2**64 - 1,
        "chunks": 2**64 // 28 + 1,
    }
    for key, value in edges.items():
        yield f"head-{key}-{value}", index(ten, [10], **{key: value})
    newer = index(ten, [10], minor=1)[:-16] + b"more"
    yield "newer-minor-more-behind", newer + digest(newer)
    yield "many-brackets", index('{"x":' + "[" * 400, [10])
    yield "record-elsewhere", flip(index(ten, [10]), -16 - 28)
    yield "wrong-digest", flip(index(ten, [10]), -1)


def flip(data, at):
    changed = bytearray(data)
    changed[at] ^= 1
    if at != -1:
        changed[-16:] = digest(bytes(changed[:-16]))
    return bytes(changed)


def header_input(index_bytes, text, flags=0):
    return bytes([flags]) + struct.pack("<I", len(index_bytes))[:3] + index_bytes + text


def headers():
    shard = (STEP / f"{NAME}.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", shard[:8])[0]
    golden = (STEP / f"{NAME}.index").read_bytes()
    ten = index(tensors_json([tensor("a", "U8", [10], 4096)]), [10])
    a = '"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]}'
    yield "golden", header_input(golden, shard[8:size].rstrip(b" "))
    yield "golden-whole", header_input(golden, shard[:size], 1)
    cases = {
        "good": "{" + a + "}",
        "other-metadata": '{"__metadata__":{"x":"y"},' + a + "}",
        "metadata-last": "{" + a + ',"__metadata__":{}}',
        "metadata-twice": '{"__metadata__":{},' + a + ',"__metadata__":{"b":"c"}}',
        "metadata-with-nul": '{"__metadata__\\u0000":{},' + a + "}",
        "metadata-nested": '{"__metadata__":' + nested(100) + "," + a + "}",
        "tensor-twice": "{" + a + "," + a + "}",
        "tensor-too-many": "{" + a + ',"b":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}}',
        "tensor-missing": "{}",
        "name-with-nul": "{" + a.replace('"a"', '"a\\u0000"') + "}",
        "offsets-swapped": "{" + a.replace("[0,10]", "[10,0]") + "}",
        "offsets-of-three": "{" + a.replace("[0,10]", "[0,10,10]") + "}",
        "offsets-greatest": "{" + a.replace("[0,10]", f"[0,{BIG}]") + "}",
        "shape-of-none": "{" + a.replace("[10]", "[]") + "}",
        "offsets-of-one": "{" + a.replace("[0,10]", "[0]") + "}",
        "shape-of-one-more": "{" + a.replace("[10]", "[10,1]") + "}",
        "dtype-twice": "{" + a.replace('"dtype"', '"dtype":"U8","dtype"') + "}",
        "unknown-member": "{" + a.replace('"dtype"', '"x":[1e999],"dtype"') + "}",
        "something-behind": "{" + a + "}x",
        "an-array": "[" + a + "]",
    }
    for name, text in cases.items():
        yield name, header_input(ten, text.encode())
    whole = ("{" + a + "}").encode().ljust(4088)
    for name, length in (
        ("length-zero", 0),
        ("length-greatest", 2**64 - 1),
        ("length-wraps", 2**64 - 8),
        ("length-one-less", 4087),
    ):
        yield name, header_input(ten, struct.pack("<Q", length) + whole, 1)
    yield "length-cut-off", header_input(ten, b"\xf8\x0f", 1)


def names():
    numbers = struct.pack("<QQIxxxx", 0, 9999999999, 999999)
    for name in (
        "000001.json",
        "999999.json",
        "000000.json",
        "1.json",
        "0000001.json",
        "000001.json.bak",
        "g000001",
        "g999999",
        "g000000",
        "G000001",
        "g1",
        "step-0000000000",
        "step-9999999999",
        "step-100",
        "step-00000000100",
        "step--000000001",
        "step-+000000001",
        "step- 000000001",
        ATTEMPT,
        ATTEMPT.upper(),
        ATTEMPT + "0",
        "../../../../etc/",
        "..",
        ".",
        "/",
        "",
        f"manifest.json.tmp-{ATTEMPT}",
        f"rank-00000.{ATTEMPT}.index",
    ):
        label = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        label = label if label == label.lower() else f"upper-case-{label.lower()}"
        yield f"name-{label}", numbers + name.encode()
    yield "digits-of-another-script", numbers + "step-\u0660\u0660\u0660\u0660".encode()
    yield "nul-within", numbers + b"g00\x000001"


def json_texts():
    texts = {
        "object": '{"a":[1,-2.5e+3,"\\u00e4\\ud83d\\ude00",{"b":null}],"c":true}',
        "array-of-all": '[0,-0,1E9,0.5,true,false,null,"",[],{}," \\"\\\\\\/\\b\\f\\n\\r\\t"]',
        "nested-32": nested(32),
        "nested-33": nested(33),
        "nested-300": nested(300),
        "empty-objects": "[" + ",".join(["{}"] * 400) + "]",
        "greatest-number": str(BIG - 1),
        "too-great-number": str(BIG),
        "number-of-400-digits": "1" * 400,
        "1e999": "1e999",
        "leading-zero": "01",
        "surrogate-edges": '["\\ud7ff\\ud800\\udc00\\udbff\\udfff\\ue000"]',
        "high-surrogate-then-e000": '"\\ud800\\ue000"',
        "high-surrogate-twice": '"\\udbff\\udbff"',
        "half-surrogate": '"\\ud800"',
        "surrogates-swapped": '"\\ude00\\ud83d"',
        "nul-escaped": '"a\\u0000b"',
        "nul-in-key": '{"\\u0000":1}',
        "keys-twice": '{"a":1,"\\u0061":2}',
        "control-byte": '"\x1f"',
        "delete-byte": '"\x7f"',
        "cut-in-escape": '"\\u12',
        "cut-in-word": "tru",
        "two-values": "1 2",
        "empty": "",
        "white-space": " \t\r\n[ 1 , 2 ] ",
        "comment": "/**/1",
        "nan": "NaN",
        "never-closed": '{"a":' * 100,
    }
    for name, text in texts.items():
        yield name, b"\x20\xff" + text.encode()
    yield "overlong-utf8", b'\x20\xff"\xc0\x80"'
    yield "surrogate-utf8", b'\x20\xff"\xed\xa0\x80"'
    yield "utf8-cut-off", b'\x20\xff"\xf0\x9f\x98'


def command_lines():
    """What a user types after the name of the program: ckpt, ckpt-verify, ckpt-restore."""
    lines = {
        "no-arguments": (0,),
        "help": (0, "--help"),
        "version": (0, "--version"),
        "ls": (0, "ls", "s"),
        "ls-json": (0, "ls", "b", "--json"),
        "show": (0, "show", "s", "--step=10", "--json"),
        "show-step": (0, "show", "--step", "latest~1", "s"),
        "ckpt-verify-all": (0, "verify", "b", "--json"),
        "ckpt-restore": (0, "restore", "s", "d", "--json"),
        "unknown-command": (0, "lss", "s"),
        "step-of-too-many-digits": (0, "show", "s", "--step=18446744073709551616"),
        "verify": (1, "s"),
        "verify-quiet": (1, "-q", "s", "--step", "20"),
        "verify-damaged": (1, "b", "--progress=always"),
        "verify-nothing": (1, "none"),
        "clustered": (1, "-qqh", "s"),
        "abbreviated": (1, "--js", "s"),
        "option-without-value": (1, "s", "--step"),
        "value-where-none-belongs": (1, "--json=1", "s"),
        "option-after-dashes": (1, "--", "--json"),
        "only-dashes": (1, "--"),
        "empty-name": (1, ""),
        "remote": (1, "s3://bucket/run"),
        "control-characters": (1, "\x1b[2J\x07"),
        "too-many": (1, "s", "b", "d"),
        "restore": (2, "s", "d"),
        "restore-damaged": (2, "b", "d", "--json"),
        "restore-older": (2, "b", "d", "--step=latest~1", "--json"),
        "restore-into-itself": (2, "s", "s"),
        "restore-into-another": (2, "s", "b"),
        "restore-below-itself": (2, "s", "s/d"),
        "restore-nowhere": (2, "s", "d/e/f"),
        "restore-to-nothing": (2, "s", ""),
    }
    for name, (program, *arguments) in lines.items():
        yield name, bytes([program]) + b"".join(word.encode() + b"\0" for word in arguments)


def wrapper(kind):
    """A tensor that wraps another one, of that class."""
    return {
        "class": kind,
        "size": [2, 3],
        "stride": [3, 1],
        "context": None,
        "inner": {"a": {"$tensor": "t"}},
    }


def states_that_load():
    """The Python state of a step: what load() decodes."""
    optimizer = {
        "class": "torch.optim.SGD",
        "prefix": "opt",
        "params": ["w"],
        "groups": [{"count": 1, "options": {"lr": 0.1}}],
        "state": [{"roles": ["m"], "params": None}],
        "values": {"0": {"step": 3}},
        "other": {"$dict": []},
        "extra": {},
    }
    return {
        "plain": {"a": [1, 2.5, None, True, "text"], "b": {"c": -1}},
        "containers": {
            "$tuple": [{"$set": [1, 2]}, {"$deque": [3, 1]}, {"$defaultdict": ["int", "a", 1]}]
        },
        "numbers": [{"$int": "0x10000000000000000"}, {"$float": "nan"}, {"$complex": [1, 2]}],
        "bytes": [{"$bytes": "AAECAw=="}, {"$bytearray": {"$tensor": "b"}}, {"$str": "7aCA"}],
        "times": [
            {"$datetime": ["2020-02-29T12:00:00+01:00", 1]},
            {"$date": "2020-02-29"},
            {"$timedelta": [1, 2, 3]},
        ],
        "numpy": [
            {"$np": ["<f8", "AAAAAAAA8D8="]},
            {"$ndarray": ["<U1", [1], "YQAAAA=="]},
            {"$ndarray": {"$tensor": "t"}},
            {"$np.dtype": "<M8[ns]"},
        ],
        "torch": [
            {"$tensor": "t"},
            {"$torch.dtype": "float32"},
            {"$torch.device": "cpu"},
            {"$torch.Size": [1, 2]},
            {"$torch.Generator": {"$tensor": "g"}},
        ],
        "optimizer": {"opt": {"$optimizer": optimizer}},
        "module": {"$module": {"prefix": "", "tensors": ["t"], "extra": {"n": {"$int": "1"}}}},
        "object": {"$object": {"class": "x", "state": {"epoch": 3}}},
        "wrapper": {"$wrapper": wrapper("__main__:Pair")},
        "file": {"$bytesio": [2, {"$bytes": "AAECAw=="}]},
        "json-in-json": {"$json": '{"$json":"{\\"$tuple\\":[1]}"}'},
    }


def states_that_lie():
    """And what it refuses."""
    mt19937 = {"key": {"$ndarray": ["<u4", [1], "AAAAAA=="]}, "pos": 624}
    philox = {
        "bit_generator": "Philox",
        "state": {
            "counter": {"$ndarray": ["<u8", [4], "A" * 42 + "A="]},
            "key": {"$ndarray": ["<u8", [2], "A" * 22 + "=="]},
        },
        "buffer": {"$ndarray": ["<u8", [4], "A" * 42 + "A="]},
        "buffer_pos": -100000,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return {
        "pickle": {"$pickle": "gASVHQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg=="},
        "array-of-a-tebibyte": {"$ndarray": ["<f8", [137438953472], ""]},
        "text-of-no-length": {"$ndarray": ["S0", [137438953472], ""]},
        "type-that-imports": {"$torch.dtype": "_dynamo"},
        "device-by-number": {"$torch.device": 0},
        "device-unknown": {"$torch.device": "warp:9"},
        "generator-of-another-size": {"$torch.Generator": {"$tensor": "t"}},
        "generator-beyond-its-state": {"$np.random": ["Philox", philox]},
        "legacy-generator-beyond-its-state": {
            "$np.random": [
                "RandomState",
                {"key": "AAAA" * 832, "pos": 100000, "has_gauss": 0, "gauss": 0.0},
            ]
        },
        "short-key": {"$np.random": ["MT19937", {"bit_generator": "MT19937", "state": mt19937}]},
        "wrapper-of-torch": {"$wrapper": wrapper("torch._subclasses.fake_tensor:FakeTensor")},
        "wrapper-of-no-class": {"$wrapper": wrapper("torch:onnx.dynamo")},
        "unknown-tag": {"$future": 1},
        "tag-of-a-list": {"$type": ["int"]},
        "tensor-that-is-not-there": {"$tensor": "nothing"},
        "unhashable-key": {"$dict": [[1], 2]},
    }


def states():
    for name, node in {**states_that_load(), **states_that_lie()}.items():
        yield name, json.dumps(node, separators=(",", ":")).encode()
    yield "deep", nested(900).encode()
    yield "deep-tuples", (b'{"$tuple":[' * 200 + b"1" + b"]}" * 200)
    yield "too-deep", nested(20000).encode()


TARGETS = {
    "marker": marker,
    "claim": claim,
    "quarantine": quarantine,
    "remote": remote,
    "record": records,
    "manifest": manifest,
    "catalog": catalogs,
    "chunk": encoded_chunks,
    "encoded": encoded_shards,
    "index": indexes,
    "header": headers,
    "names": names,
    "json": json_texts,
    "s3": s3,
    "cli": command_lines,
    "state": states,
    "ini": configurations,
    "http": heads,
    "keys": keys,
    "source": sources,
    "message": messages,
    "slot": slots,
}


def main():
    corpus = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus"
    for target, make in TARGETS.items():
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in make():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
