# SPDX-License-Identifier: Apache-2.0
"""usage: encoded_reader.py PROGRAM CHAIN_PROGRAM GOLDEN_CHAIN

Decodes the encoded shards that PROGRAM (see write_encoded.c) and CHAIN_PROGRAM (see write_chain.c)
write, and those that the latter once wrote, by the text of FORMAT.md (sections 6, 8, 9, 22 and 23)
alone, and compares them with the plain ones.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import reader

ELEMENTS = {
    "F32": (4, "float"),
    "C64": (4, "float"),
    "F64": (8, "float"),
    "C128": (8, "float"),
    "BF16": (2, "bf16"),
    "F16": (2, "f16"),
    "C32": (2, "f16"),
    "F8_E4M3": (1, "float"),
    "F8_E8M0": (1, "int"),
    "U8": (1, "int"),
    "I32": (4, "int"),
    "I64": (8, "int"),
}
BYTES = {"C64": 8, "C128": 16, "C32": 4}
SHARED = 16 << 10
PART = 1 << 20


class Shard:
    def __init__(self, index, encoded, shards=None):
        self.bases = []
        self.shards = shards
        numbers = struct.unpack_from("<6Q", index, 24)
        self.bytes, self.header, _, tensors, meta, count = numbers
        assert index[:8] == b"CKPTIDX\0"
        records = 72 + tensors + meta
        self.chunks = [struct.unpack_from("<QI", index, records + 28 * i) for i in range(count)]
        self.tensors = []
        for t in json.loads(index[72 : 72 + tensors])["tensors"]:
            size = BYTES.get(t["dtype"], ELEMENTS[t["dtype"]][0])
            for n in t["shape"]:
                size *= n
            self.tensors.append((t["offset"], t["offset"] + size, t["dtype"]))
        self.file = encoded
        self.read_table()
        self.decoded = {}
        self.seen = set()

    def read_table(self):
        trailer = self.file[-80:]
        magic, major, minor, length, count, at, size = struct.unpack_from("<8sIIQQQQ", trailer)
        assert magic == b"CKPTENC\0" and major in (1, 2) and minor == 0
        assert (length, count) == (self.bytes, len(self.chunks))
        assert at + size + 80 == len(self.file)
        self.records = [struct.unpack_from("<QIBBH", self.file, at + 32 * i) for i in range(count)]
        at += 32 * count
        self.refs = []
        for record in self.records:
            self.refs.append(struct.unpack_from(f"<{record[4]}I", self.file, at))
            at += 4 * record[4]
        while at < len(self.file) - 80:
            *place, attempt, size = struct.unpack_from("<4Q", self.file, at)
            name = (*place, f"{attempt:016x}", size, self.file[at + 32 : at + 48].hex())
            self.bases.append(self.shards[name])
            at += 48
        assert at == len(self.file) - 80
        assert (len(self.bases) > 0) == (major == 2)

    def runs(self, begin, end):
        """What a chunk has, as [from, to, width, kind]."""
        if begin < self.header:
            return [[begin, end, 1, "int"]]
        runs = []
        small = False
        for first, last, dtype in self.tensors:
            lo, hi = max(first, begin), min(last, end)
            if lo >= hi:
                continue
            width, kind = ELEMENTS[dtype]
            if (lo - first) % width or (hi - first) % width:
                width, kind = 1, "int"
            joins = small and hi - lo < SHARED and runs[-1][2:] == [width, kind]
            if joins:
                runs[-1][1] = hi
            else:
                runs.append([lo, hi, width, kind])
            small = hi - lo < SHARED
        return runs

    def parts(self, begin, end):
        for lo, hi, width, kind in self.runs(begin, end):
            for at in range(lo, hi, PART):
                yield at, min(at + PART, hi), width, kind

    def master(self, chunk, at, count):
        """So many fp32 elements of the shard."""
        assert any(
            first <= at and at + 4 * count <= last and dtype == "F32" and (at - first) % 4 == 0
            for first, last, dtype in self.tensors
        )
        data = b""
        while len(data) < 4 * count:
            here = at + len(data)
            i = next(k for k, (o, n) in enumerate(self.chunks) if o <= here < o + n)
            assert i in self.refs[chunk]
            data += self.chunk(i)[here - self.chunks[i][0] :]
        return reader.numbers(data[: 4 * count], 4)

    def part(self, chunk, source, begin, end, width, kind):
        count = (end - begin) // width
        body = reader.Input(source.take(int.from_bytes(source.take(4), "little")))
        known = {"width": width, "kind": kind, "base": None}
        flag = body.take(1)[0]
        assert flag in (0, 1, 2)
        if flag == 2:
            base, first = self.base(chunk).chunk(chunk), self.chunks[chunk][0]
            known["base"] = reader.numbers(base[begin - first : end - first], width)
        if flag == 1:
            assert kind in ("bf16", "f16")
            known["master"] = self.master(chunk, int.from_bytes(body.take(8), "little"), count)
        mode = body.data[body.at]
        assert mode in (0, 2, 3) or (flag == 2 and mode in (1, 4, 5, 9))
        self.seen.add((mode, kind))
        found = reader.decode_all(body.data[body.at :], count, known)
        return b"".join(x.to_bytes(width, "little") for x in found)

    def base(self, i):
        """The shard that a chunk is decoded with, which has bytes of it."""
        base = self.bases[self.records[i][3] - 1]
        assert base.chunks == self.chunks and base.records[i][2] != 2
        return base

    def chunk(self, i):
        if i in self.decoded:
            return self.decoded[i]
        begin, length = self.chunks[i]
        at, stored, kind, number, refs = self.records[i]
        assert number == 0 or refs == 0
        data = self.base(i).chunk(i) if kind == 2 else self.file[at : at + stored]
        if kind == 1:
            source = reader.Input(data)
            data = b"".join(
                self.part(i, source, *part) for part in self.parts(begin, begin + length)
            )
            assert source.at == stored
        self.seen.add(("chunk", kind))
        assert len(data) == length
        self.decoded[i] = data
        return data


def check_chain(store):
    """Steps of which each is decoded with those before it."""
    shards = {}
    seen = set()
    for step in sorted(store.glob("g000001/step-*")):
        manifest = json.loads((step / "manifest.json").read_bytes())
        rank = manifest["ranks"][0]
        index = next(step.glob("*.index")).read_bytes()
        shard = Shard(index, next(step.glob("*.encoded")).read_bytes(), shards)
        found = b"".join(shard.chunk(i) for i in range(len(shard.chunks)))
        assert found == (store / f"{manifest['step']}.plain").read_bytes(), step
        named = [[b.generation, b.step] for b in shard.bases]
        assert named == manifest.get("bases", [])
        assert manifest["format"] == [2 if named else 1, 0]
        shard.generation, shard.step = manifest["generation"], manifest["step"]
        place = (shard.generation, shard.step, rank["attempt"])
        shards[(*place, rank["index_bytes"], rank["index_digest"])] = shard
        seen |= shard.seen
    expected = {("chunk", 0), ("chunk", 1), ("chunk", 2), (1, "float"), (4, "float")}
    expected |= {(5, "int"), (2, "bf16")}
    assert expected <= seen, expected - seen


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[2], folder], check=True)
        check_chain(pathlib.Path(folder))
    check_chain(pathlib.Path(sys.argv[3]))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        files = [(pathlib.Path(folder) / n).read_bytes() for n in ("index", "encoded", "plain")]
    shard = Shard(*files[:2])
    decoded = b"".join(shard.chunk(i) for i in range(len(shard.chunks)))
    assert decoded == files[2], "the encoded shard is not the plain one"
    expected = {("chunk", 0), ("chunk", 1), (2, "bf16"), (2, "f16"), (3, "int"), (3, "float")}
    assert expected <= shard.seen, expected - shard.seen


if __name__ == "__main__":
    main()
