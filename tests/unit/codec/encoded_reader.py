# SPDX-License-Identifier: Apache-2.0
"""usage: encoded_reader.py PROGRAM

Decodes the encoded shard that PROGRAM writes (see write_encoded.c) by the text of FORMAT.md (sections 6, 8, 22 and 23)
alone, and compares it with the plain one.
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
    def __init__(self, index, encoded):
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
        assert magic == b"CKPTENC\0" and (major, minor) == (1, 0)
        assert (length, count) == (self.bytes, len(self.chunks))
        assert at + size + 80 == len(self.file)
        self.records = [struct.unpack_from("<QIHH", self.file, at + 32 * i) for i in range(count)]
        at += 32 * count
        self.refs = []
        for record in self.records:
            self.refs.append(struct.unpack_from(f"<{record[3]}I", self.file, at))
            at += 4 * record[3]
        assert at == len(self.file) - 80

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
        assert flag in (0, 1)
        if flag:
            assert kind in ("bf16", "f16")
            known["master"] = self.master(chunk, int.from_bytes(body.take(8), "little"), count)
        mode = body.data[body.at]
        assert mode in (0, 2, 3)
        self.seen.add((mode, kind))
        found = reader.decode_all(body.data[body.at :], count, known)
        return b"".join(x.to_bytes(width, "little") for x in found)

    def chunk(self, i):
        if i in self.decoded:
            return self.decoded[i]
        begin, length = self.chunks[i]
        at, stored, kind, _ = self.records[i]
        data = self.file[at : at + stored]
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


def main():
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
