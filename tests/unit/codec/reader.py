# SPDX-License-Identifier: Apache-2.0
"""usage: reader.py PROGRAM FOLDER

Decodes what PROGRAM has encoded (see write_chunks.c), and what lies in FOLDER, by the text of FORMAT.md (section 22)
alone, in plain Python; the stock libzstd reads the frames.
"""

import ctypes
import fractions
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

ZSTD = ctypes.CDLL("libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
LINE = 64
RELATIVE = set()


class Input:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        assert self.at + length <= len(self.data), "the chunk ends too early"
        self.at += length
        return self.data[self.at - length : self.at]

    def size(self, length):
        count = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 3
        return int.from_bytes(self.take(count), "little")


def frame(data, length):
    data = b"\x28\xb5\x2f\xfd" + data
    room = ctypes.create_string_buffer(length)
    read = ZSTD.ZSTD_decompress(room, ctypes.c_size_t(length), data, ctypes.c_size_t(len(data)))
    assert read == length, "not a zstd frame of that length"
    return room.raw


def plane(source, length, depth=0):
    kind = source.take(1)[0]
    if kind == 0:
        return source.take(length)
    if kind == 1:
        return source.take(1) * length
    if kind == 2:
        return frame(source.take(source.size(length)), length)
    if kind == 4:
        values = source.take(2)
        bits = source.take((length + 7) // 8)
        return bytes(values[bits[i // 8] >> i % 8 & 1] for i in range(length))
    assert kind == 3 and depth < 2
    count = source.size(length)
    bits = plane(source, (length + 7) // 8, depth + 1)
    bytes_there = iter(plane(source, count, 2))
    return bytes(next(bytes_there) if bits[i // 8] >> i % 8 & 1 else 0 for i in range(length))


def planes(source, count, width):
    return [
        int.from_bytes(code, "little")
        for code in zip(*(plane(source, count) for _ in range(width)), strict=True)
    ]


def grouped_planes(source, base, kind):
    first, groups = source.take(2)
    exponents = [x >> 7 & 255 if kind == "bf16" else x >> 10 & 31 for x in base]
    group_of = [min(max(e - first, 0), groups - 1) for e in exponents]
    found = []
    for _ in range(2):
        parts = [
            iter(plane(source, size) if (size := group_of.count(g)) else b"") for g in range(groups)
        ]
        found.append([next(parts[g]) for g in group_of])
    return [low | high << 8 for low, high in zip(*found, strict=True)]


def ordered(x, bits):
    return x ^ ((1 << bits) - 1 if x >> (bits - 1) else 1 << (bits - 1))


def unordered(x, bits):
    return x ^ (1 << (bits - 1) if x >> (bits - 1) else (1 << bits) - 1)


def element(code, predicted, bits, is_float):
    ones = (1 << bits) - 1
    if predicted is None:
        return (code >> 1 | code << (bits - 1)) & ones if is_float else code
    difference = (code >> 1) ^ (ones if code & 1 else 0)
    if is_float:
        return unordered((difference + ordered(predicted, bits)) & ones, bits)
    return (difference + predicted) & ones


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits_of(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f32(value):
    """What a double rounds to; twice rounded is once rounded for +, -, *, / and sqrt of fp32."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def divide(a, b):
    if b == 0 or not math.isfinite(a) or not math.isfinite(b):
        if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0):
            return math.nan
        if math.isinf(a) and math.isinf(b):
            return math.nan
        size = math.inf if b == 0 or math.isinf(a) else 0.0
        return math.copysign(size, a) * math.copysign(1.0, b)
    return f32(a / b)


def fma(a, b, c):
    if not all(map(math.isfinite, (a, b, c))):
        return f32(a * b + c)
    exact = fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)
    return nearest(exact) if exact else f32(a * b + c)


def nearest(exact):
    """The fp32 number nearest to a fraction that is not 0, ties to even."""
    size = abs(exact)
    exponent = max(math.floor(math.log2(size)), -126)
    while size >= fractions.Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > -126 and size < fractions.Fraction(2) ** exponent:
        exponent -= 1
    unit = fractions.Fraction(2) ** (exponent - 23)
    return math.copysign(f32(float(round(size / unit) * unit)), exact)


def bf16(bits):
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def f16(bits):
    value = number(bits)
    sign = bits >> 16 & 0x8000
    if math.isnan(value):
        return sign | 0x7E00
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return sign | 0x7C00


class Terms:
    def __init__(self, source):
        flags = source.take(1)[0]
        assert flags <= 15 and flags & 5 != 5
        self.fused, self.bf16, self.lerp = flags & 1, flags & 2, flags & 4
        self.relative = flags & 8
        (
            self.beta1,
            self.beta2,
            self.rest1,
            self.rest2,
            self.decay,
            self.step,
            self.root,
            self.eps,
        ) = struct.unpack("<8f", source.take(32))

    def first(self, before, gradient):
        if self.lerp:
            return fma(self.rest1, f32(gradient - before), before)
        kept = f32(before * self.beta1)
        if self.fused:
            return fma(self.rest1, gradient, kept)
        return f32(kept + f32(self.rest1 * gradient))

    def second(self, before, m, m_before):
        g = divide(fma(-self.beta1, m_before, m), self.rest1)
        if self.bf16:
            g = number(bf16(bits_of(g)) << 16)
        kept, scaled = f32(before * self.beta2), f32(self.rest2 * g)
        return fma(scaled, g, kept) if self.fused else f32(f32(scaled * g) + kept)

    def weight(self, before, m, v):
        kept = f32(before * self.decay)
        under = f32(divide(f32(math.sqrt(v)) if v >= 0 else math.nan, self.root) + self.eps)
        if self.fused:
            return fma(self.step, divide(m, under), kept)
        return f32(divide(f32(self.step * m), under) + kept)


def beside(code, v):
    """The gradient that the code means beside the second moment of the base."""
    size, root = code & 0x7FFF, (v + (127 << 23)) % 2**32 >> 17
    return code & 0x8000 | (1 + (size - 1 - 8192 + root) % 32767 if size else 0)


def adam(mode, source, count, known):
    """The predicted bits."""
    terms = Terms(source)
    base = known["base"]
    if mode == 6:
        codes = planes(source, count, 2)
        gradients = [element(code, None, 16, True) for code in codes]
        RELATIVE.add(bool(terms.relative))
        if terms.relative:
            gradients = [beside(x, v) for x, v in zip(gradients, known["v_base"], strict=True)]
        gradients = [number(x << 16) for x in gradients]
        found = [terms.first(number(x), g) for x, g in zip(base, gradients, strict=True)]
    elif mode == 7:
        arrays = zip(base, known["m"], known["m_base"], strict=True)
        found = [terms.second(*map(number, x)) for x in arrays]
    else:
        found = [
            terms.weight(*map(number, x)) for x in zip(base, known["m"], known["v"], strict=True)
        ]
    return [0 if math.isnan(x) else bits_of(x) for x in found]


def decode(source, count, known):
    mode = source.take(1)[0]
    width, kind, base = known["width"], known["kind"], known["base"]
    if mode == 0:
        data = source.take(count * width)
        return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
    if mode == 1:
        return base
    if mode == 5:
        return masked(source, count, known)
    predicted = [None] * count
    if mode == 2:
        predicted = [(bf16 if kind == "bf16" else f16)(x) for x in known["master"]]
        if source.at == len(source.data):
            return predicted
    elif mode in (4, 9):
        predicted = base
    elif mode != 3:
        predicted = adam(mode, source, count, known)
    codes = grouped_planes(source, base, kind) if mode == 9 else planes(source, count, width)
    return [element(c, p, 8 * width, kind != "int") for c, p in zip(codes, predicted, strict=True)]


def masked(source, count, known):
    lines = (count + LINE - 1) // LINE
    bits = source.take((lines + 7) // 8)
    differs = [bool(bits[i // LINE // 8] >> i // LINE % 8 & 1) for i in range(count)]
    rest = known | {"base": [x for x, other in zip(known["base"], differs, strict=True) if other]}
    others = iter(decode(source, sum(differs), rest))
    return [next(others) if other else x for x, other in zip(known["base"], differs, strict=True)]


def read(path):
    """The line that describes a chunk, and its arrays."""
    head, _, rest = path.read_bytes().partition(b"\n")
    arrays = {}
    while rest:
        line, _, rest = rest.partition(b"\n")
        name, size = line.decode().split()
        arrays[name], rest = rest[: int(size)], rest[int(size) :]
    return head.decode().split(), arrays


def numbers(data, width):
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def check(path):
    """Returns the mode."""
    (count, width, kind, _role), arrays = read(path)
    width = int(width)
    known = {"width": width, "kind": kind, "base": numbers(arrays.get("base", b""), width)}
    known |= {x: numbers(arrays.get(x, b""), 4) for x in ("master", "m", "m_base", "v", "v_base")}
    source = Input(arrays["chunk"])
    found = decode(source, int(count), known)
    assert source.at == len(source.data), f"{path}: bytes are left over"
    raw = numbers(arrays["raw"], width)
    wrong = [i for i, (a, b) in enumerate(zip(found, raw, strict=True)) if a != b]
    assert not wrong, f"{path}: differs at {wrong[:5]}"
    return source.data[0]


def check_folder(folder):
    RELATIVE.clear()
    modes = {check(path) for path in sorted(pathlib.Path(folder).iterdir())}
    assert modes == set(range(10)), f"{folder}: no chunk has mode {set(range(10)) - modes}"
    assert len(RELATIVE) == 2, f"{folder}: gradients do not stand there in both ways"


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        check_folder(folder)
    check_folder(sys.argv[2])


if __name__ == "__main__":
    main()
