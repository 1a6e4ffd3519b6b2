# SPDX-License-Identifier: Apache-2.0
"""usage: reader.py PROGRAM FOLDER REFUSED

Decodes what PROGRAM has encoded (see write_chunks.c), and what lies in FOLDER, by the text of FORMAT.md (section 22)
alone, in plain Python; the stock libzstd reads the frames. What stands in REFUSED is not decoded.
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
ZSTD.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
LINE = 64
BLOCK = 4096  # elements that the library predicts at once
# What the chunks of a folder have, and what they must have.
SEEN = set()
EXPECTED = {("mode", mode) for mode in range(10)}
EXPECTED |= {("plane", kind, 0) for kind in range(5)} | {("plane", kind, 1) for kind in (0, 2, 3)}
EXPECTED |= {("plane", kind, 2) for kind in (0, 1, 2, 4)}
EXPECTED |= {(kind, width) for kind in ("frame size", "count") for width in (1, 2, 3)}
EXPECTED |= {("flags", flags) for flags in (0, 1, 2, 3, 6, 10, 11, 14)}
EXPECTED |= {("not finite", name) for name in ("base", "m", "m_base", "v", "v_base")}
EXPECTED |= {("subnormal", name) for name in ("base", "m", "m_base", "v", "v_base")}
EXPECTED |= {("several blocks", mode) for mode in (6, 7, 8)} | {("several blocks", "zstd")}
EXPECTED |= {("grouped", "bf16"), ("grouped", "f16"), ("empty group",), ("in a mask", 9)}


class Input:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        assert self.at + length <= len(self.data), "the chunk ends too early"
        self.at += length
        return self.data[self.at - length : self.at]

    def size(self, length, what):
        count = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 3
        SEEN.add((what, count))
        size = int.from_bytes(self.take(count), "little")
        assert size <= length, f"the {what} is larger than the plane"
        return size


def bit(bits, i):
    return bits[i // 8] >> i % 8 & 1


def take_bits(source, length):
    """So many bits, none of which is set behind the last one."""
    return whole_bits(source.take((length + 7) // 8), length)


def whole_bits(bits, length):
    assert length % 8 == 0 or bits[-1] >> length % 8 == 0, "a bit is set behind the last one"
    return bits


def blocks_of(data):
    """How many blocks a zstd frame has (RFC 8878, section 3.1.1)."""
    size_flag, single = data[4] >> 6, data[4] >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[data[4] & 3] + (single, 2, 4, 8)[size_flag]
    for blocks in range(1, len(data)):
        head = int.from_bytes(data[at : at + 3], "little")
        at += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)
        if head & 1:
            return blocks
    raise AssertionError("no block is the last one")


def frame(data, length):
    data = b"\x28\xb5\x2f\xfd" + data
    found = ZSTD.ZSTD_findFrameCompressedSize(data, ctypes.c_size_t(len(data)))
    assert found == len(data), "not one zstd frame"
    if blocks_of(data) > 1:
        SEEN.add(("several blocks", "zstd"))
    room = ctypes.create_string_buffer(length)
    read = ZSTD.ZSTD_decompress(room, ctypes.c_size_t(length), data, ctypes.c_size_t(len(data)))
    assert read == length, "not a zstd frame of that length"
    return room.raw


def plane(source, length, depth=0):
    """Depth 1: the bitmap of a plane of kind 3. Depth 2: within that, or what a bitmap selects."""
    kind = source.take(1)[0]
    SEEN.add(("plane", kind, depth))
    if kind == 0:
        return source.take(length)
    if kind == 1:
        return source.take(1) * length
    if kind == 2:
        return frame(source.take(source.size(length, "frame size")), length)
    if kind == 4:
        values = source.take(2)
        bits = take_bits(source, length)
        return bytes(values[bit(bits, i)] for i in range(length))
    assert kind == 3 and depth < 2, "there is no such plane"
    count = source.size(length, "count")
    bits = whole_bits(plane(source, (length + 7) // 8, depth + 1), length)
    assert sum(map(int.bit_count, bits)) == count, "not as many bits are set as the size says"
    bytes_there = iter(plane(source, count, 2))
    return bytes(next(bytes_there) if bit(bits, i) else 0 for i in range(length))


def planes(source, count, width):
    return [
        int.from_bytes(code, "little")
        for code in zip(*(plane(source, count) for _ in range(width)), strict=True)
    ]


def grouped_planes(source, base, kind):
    first, groups = source.take(2)
    assert 1 <= groups <= 16, "the number of groups"
    exponents = [x >> 7 & 255 if kind == "bf16" else x >> 10 & 31 for x in base]
    group_of = [min(max(e - first, 0), groups - 1) for e in exponents]
    sizes = [group_of.count(g) for g in range(groups)]
    SEEN.add(("grouped", kind))
    if 0 in sizes:
        SEEN.add(("empty group",))
    found = []
    for _ in range(2):
        parts = [iter(plane(source, size) if size else b"") for size in sizes]
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
    def __init__(self, source, mode):
        flags = source.take(1)[0]
        assert flags <= 15 and flags & 5 != 5, "there are no such flags"
        assert mode == 6 or not flags & 12, "the flag is for ADAM_M alone"
        SEEN.add(("flags", flags))
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


def note_numbers(known):
    for name in ("base", "m", "m_base", "v", "v_base"):
        if any(x >> 23 & 255 == 255 for x in known[name]):
            SEEN.add(("not finite", name))
        if any(x >> 23 & 255 == 0 and x & 0x7FFFFF for x in known[name]):
            SEEN.add(("subnormal", name))


def adam(mode, source, count, known):
    """The predicted bits."""
    assert known["width"] == 4 and known["kind"] == "float", "AdamW is for fp32"
    terms = Terms(source, mode)
    base = known["base"]
    note_numbers(known)
    if count > BLOCK:
        SEEN.add(("several blocks", mode))
    if mode == 6:
        codes = planes(source, count, 2)
        gradients = [element(code, None, 16, True) for code in codes]
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


def decode(source, count, known, masks=False):
    mode = source.take(1)[0]
    width, kind, base = known["width"], known["kind"], known["base"]
    assert mode in ((0, 3, 4, 9) if masks else range(10)), "there is no such mode here"
    assert mode not in (2, 9) or kind in ("bf16", "f16"), "the mode is for bf16 and fp16"
    SEEN.add(("in a mask" if masks else "mode", mode))
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
    bits = take_bits(source, lines)
    differs = [bool(bit(bits, i // LINE)) for i in range(count)]
    rest = known | {"base": [x for x, other in zip(known["base"], differs, strict=True) if other]}
    others = iter(decode(source, sum(differs), rest, masks=True))
    return [next(others) if other else x for x, other in zip(known["base"], differs, strict=True)]


def read(path):
    """The line that describes a chunk, and its arrays."""
    head, _, rest = path.read_bytes().partition(b"\n")
    arrays = {}
    while rest:
        line, _, rest = rest.partition(b"\n")
        name, size, *copies = line.decode().split()
        arrays[name], rest = rest[: int(size)] * int(*copies or [1]), rest[int(size) :]
    return head.decode().split(), arrays


def numbers(data, width):
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def decode_all(data, count, known):
    source = Input(data)
    found = decode(source, count, known)
    assert source.at == len(source.data), "bytes are left over"
    return found


def check(path):
    (count, width, kind, _role), arrays = read(path)
    width = int(width)
    known = {"width": width, "kind": kind, "base": numbers(arrays.get("base", b""), width)}
    known |= {x: numbers(arrays.get(x, b""), 4) for x in ("master", "m", "m_base", "v", "v_base")}
    try:
        found = decode_all(arrays["chunk"], int(count), known)
    except AssertionError as error:
        raise AssertionError(f"{path}: {error}") from error
    raw = numbers(arrays["raw"], width)
    wrong = [i for i, (a, b) in enumerate(zip(found, raw, strict=True)) if a != b]
    assert not wrong, f"{path}: differs at {wrong[:5]}"


def check_folder(folder):
    SEEN.clear()
    for path in sorted(pathlib.Path(folder).iterdir()):
        check(path)
    assert SEEN >= EXPECTED, f"{folder}: no chunk has {sorted(EXPECTED - SEEN, key=str)}"


def check_refused(path):
    for line in pathlib.Path(path).read_text().splitlines()[1:]:
        what, chunk, why = line.split(": ")
        kind, count = what.split()
        known = {"width": {"int": 1, "float": 4}.get(kind, 2), "kind": kind}
        known |= {x: [0] * int(count) for x in ("base", "master", "m", "m_base", "v", "v_base")}
        try:
            decode_all(bytes.fromhex(chunk), int(count), known)
        except AssertionError as error:
            assert why in str(error), f"{line}: {error}"
        else:
            raise AssertionError(f"{line}: it is decoded")


def main():
    check_refused(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        check_folder(folder)
    check_folder(sys.argv[2])


if __name__ == "__main__":
    main()
