#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How small training states get, and how fast, beside what can be installed instead.

Real states of trainings of a few seconds (codec_states.py). Sizes are exact. Rates are CPU time of one thread, beside
memcpy in the same run. Each encoded state is decoded and compared, by the peers as well.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# isort: split
import measure

PROGRAM = measure.ROOT / "build" / "benchmarks" / "bench_codec"
PEERS = measure.ROOT / "build" / "bench-peers-codec"
BEST = 3  # CKPT_SIMD_BEST

#: What is encoded, what it is predicted from, how, and the least ratio.
CASES = (
    ("full state", "s0", "-", "plain", 1.40),
    ("one step apart", "s1", "s0", "plain", None),
    ("one step apart, AdamW", "s1", "s0", "adam", 4.2),
    ("one step apart, AdamW, bf16 gradients", "bf16", "s0", "adam", 9.5),
    ("ten steps apart", "s10", "s0", "plain", 1.50),
    ("a hundred steps apart", "s100", "s0", "plain", 1.41),
    ("LoRA, one step apart", "lora1", "lora0", "adam", 28.0),
    ("embedding tables, one step apart", "table1", "table0", "plain", 50.0),
    ("embedding tables, ten steps apart", "table10", "table0", "plain", 9.0),
    ("bf16 weights, fine-tuned, one step apart", "tuned1", "tuned0", "plain", 30.0),
)
#: Bits by which a chain that is stored has to gain: see ckpt_codec_set_margin().
RESIDENT, STORED = 0.01, 0.25

Bytes = tuple[int, int, float, float]


def rows(arguments: list[str]) -> list[tuple[str, str, Bytes]]:
    """What the program has measured: setting, class; bytes before and after, seconds there and back."""
    done = subprocess.run(
        [str(PROGRAM), *arguments], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in done.splitlines():
        setting, name, *numbers = line.split()
        before, after, there, back = numbers
        found.append((setting, name, (int(before), int(after), float(there), float(back))))
    return found


def together(parts: list[Bytes]) -> dict[str, float]:
    """One figure for all classes of a state."""
    before, after, there, back = (sum(column) for column in zip(*parts, strict=True))
    return {
        "bytes": before,
        "encoded": after,
        "ratio": before / after,
        "encode_gb_s": before / there / 1e9,
        "decode_gb_s": before / back / 1e9,
    }


def encoded(state: Path, base: str, how: str, margin: float, repeat: int) -> dict[str, Any]:
    """The codec."""
    found = rows([str(state), base, how, str(margin), str(BEST), str(repeat)])
    result: dict[str, Any] = together([part for setting, _, part in found if setting == "codec"])
    size, _, seconds, _ = next(part for setting, _, part in found if setting == "memcpy")
    result["classes"] = {
        name: part[0] / part[1] for setting, name, part in found if setting == "codec"
    }
    result["memcpy_gb_s"] = size / seconds / 1e9
    return result


def zstd(state: Path, base: str, repeat: int) -> dict[str, dict[str, float]]:
    """The stock library at several settings."""
    found = rows([str(state), base, "plain", "0", str(BEST), str(repeat), "zstd"])
    settings = dict.fromkeys(setting for setting, _, _ in found if setting != "memcpy")
    return {
        name: together([part for setting, _, part in found if setting == name]) for name in settings
    }


def install() -> None:
    """The peers, apart from what the tests have, without what they would bring."""
    done = PEERS / "done"
    if not done.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(PEERS)]
        subprocess.run([*pip, "--no-deps", "zipnn==0.5.4"], check=True)
        subprocess.run([*pip, "pcodec", "blosc2"], check=True)
        few = ["numba", "constriction", "zstandard", "tqdm"]
        subprocess.run([*pip, *few], check=True)
        subprocess.run([*pip, "--no-deps", "bigsmall==4.0.0", "huggingface-hub"], check=True)
        done.touch()
    sys.path.append(str(PEERS))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the least CPU seconds of this process in three times."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return result, min(seconds)


def measured(
    data: np.ndarray, compress: Callable[[], Any], decompress: Callable[[Any], Any]
) -> Bytes:
    """One array there and back."""
    packed, there = timed(compress)
    back, took = timed(lambda: decompress(packed))
    if np.asarray(back).tobytes() != data.tobytes():
        raise RuntimeError("a peer has not given the same bytes back")
    return data.nbytes, len(packed), there, took


def with_zipnn(data: np.ndarray, base: np.ndarray | None) -> Bytes:
    """Exponents apart, Huffman; with a base, of the exclusive or."""
    zipnn = importlib.import_module("zipnn").zipnn
    kind = "bfloat16" if data.itemsize == 2 else "float32"  # noqa: PLR2004
    mixed = data if base is None else data ^ base
    codec = {
        "input_format": "byte",
        "bytearray_dtype": kind,
        "threads": 1,
        "method": "HUFFMAN",
    }
    there = zipnn.ZipNN(**codec)
    raw = mixed.tobytes()

    def back(packed: bytes) -> np.ndarray:
        plain = np.frombuffer(zipnn.ZipNN(**codec).decompress(packed), data.dtype)
        return plain if base is None else plain ^ base

    return measured(data, lambda: there.compress(bytearray(raw)), back)


def with_pcodec(data: np.ndarray, base: np.ndarray | None) -> Bytes:
    """Numbers of 16 bits as integers, for it knows no bf16."""
    del base
    standalone = importlib.import_module("pcodec").standalone
    config = importlib.import_module("pcodec").ChunkConfig()
    values = data if data.itemsize == 2 else data.view(np.float32)  # noqa: PLR2004
    return measured(
        data, lambda: standalone.simple_compress(values, config), standalone.simple_decompress
    )


def with_blosc2(data: np.ndarray, base: np.ndarray | None) -> Bytes:
    """Bytes shuffled, zstd 1; with a base, of the exclusive or."""
    blosc2 = importlib.import_module("blosc2")
    blosc2.set_nthreads(1)
    mixed = data if base is None else data ^ base

    def there() -> Any:
        return blosc2.compress2(
            mixed,
            codec=blosc2.Codec.ZSTD,
            clevel=1,
            filters=[blosc2.Filter.SHUFFLE],
            typesize=data.itemsize,
        )

    def back(packed: bytes) -> np.ndarray:
        plain = np.frombuffer(blosc2.decompress2(packed), data.dtype)
        return plain if base is None else plain ^ base

    return measured(data, there, back)


def with_bigsmall(data: np.ndarray, base: np.ndarray | None) -> Bytes:
    """Files of safetensors, as it has them; a base where it has one."""
    bigsmall = importlib.import_module("bigsmall")
    torch = importlib.import_module("torch")
    save_file = importlib.import_module("safetensors.torch").save_file
    kind = torch.bfloat16 if data.itemsize == 2 else torch.float32  # noqa: PLR2004

    def write(path: Path, values: np.ndarray) -> str:
        signed = values.view(np.int16 if values.itemsize == 2 else np.int32)  # noqa: PLR2004
        save_file({"x": torch.from_numpy(signed.copy()).view(kind)}, str(path))
        return str(path)

    def bits(found: Any) -> np.ndarray:
        value = found["x"]
        if isinstance(value, torch.Tensor):
            value = value.view(torch.int16 if data.itemsize == 2 else torch.int32).numpy()  # noqa: PLR2004
        return np.asarray(value)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        now, packed = write(folder / "now.safetensors", data), str(folder / "packed.bs")
        if base is None:
            _, there = timed(lambda: bigsmall.compress(now, packed))
            found, back = timed(lambda: bigsmall.decompress(packed))
        else:
            before = write(folder / "base.safetensors", base)
            _, there = timed(lambda: bigsmall.compress_delta(now, before, packed))
            found, back = timed(lambda: bigsmall.decompress_delta(packed, before))
        if bits(found).tobytes() != data.tobytes():
            raise RuntimeError("bigsmall has not given the same bytes back")
        return data.nbytes, Path(packed).stat().st_size, there, back


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """The classes of a state, as integers of their widths."""
    widths = {}
    for line in (folder / "tensors.txt").read_text().splitlines()[1:]:
        words = line.split()
        widths[words[0]] = np.uint16 if words[3] == "2" else np.uint32
    return {name: np.fromfile(folder / f"{name}.bin", kind) for name, kind in widths.items()}


def peers(state: Path, base: Path | None) -> dict[str, Any]:
    """Each of them on all classes; one that fails says why."""
    now, before = arrays(state), arrays(base) if base else {}
    found: dict[str, Any] = {}
    for name, peer in (
        ("ZipNN", with_zipnn),
        ("bigsmall", with_bigsmall),
        ("pcodec", with_pcodec),
        ("blosc2", with_blosc2),
    ):
        try:
            parts = [peer(data, before.get(which)) for which, data in now.items()]
            found[name] = together(parts)
        except Exception as error:  # noqa: BLE001
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
    return found


def line(name: str, result: dict[str, Any], mark: float | None = None) -> list[str]:
    """A row of the table."""
    if "failed" in result:
        return [name, "-", "-", "-", result["failed"][:40]]
    return [
        name,
        f"{result['ratio']:.3f}",
        f"{result['encode_gb_s']:.2f}",
        f"{result['decode_gb_s']:.2f}",
        f"at least {mark:.2f}" if mark else "",
    ]


def main() -> None:
    options = measure.parser(__doc__ or "")
    options.add_argument("--states", type=Path, help="use these, written by codec_states.py")
    options.add_argument("--no-peers", action="store_true", help="the codec and zstd alone")
    args = options.parse_args()
    repeat = 1 if args.quick else 7
    result: dict[str, Any] = {"cases": []}
    good = True
    if not args.no_peers:
        install()
    with measure.scratch(args.dir) as folder:
        states = args.states
        if not states:
            states = folder / "states"
            command = [sys.executable, str(measure.ROOT / "benchmarks" / "codec_states.py")]
            subprocess.run([*command, str(states), *["--quick"] * args.quick], check=True)
        for title, now, before, how, mark in CASES:
            state, base = states / now, "-" if before == "-" else str(states / before)
            ours = encoded(state, base, how, RESIDENT, repeat)
            lines = [line("libckpt", ours, mark)]
            case: dict[str, Any] = {"name": title, "mark": mark, "libckpt": ours}
            if before != "-":
                case["stored"] = encoded(state, base, how, STORED, 1)
                lines.append(line("libckpt, a stored chain", case["stored"]))
            case["zstd"] = zstd(state, base, repeat)
            lines += [line(name, found) for name, found in case["zstd"].items()]
            if not args.no_peers:
                case["peers"] = peers(state, None if before == "-" else Path(base))
                lines += [line(name, found) for name, found in case["peers"].items()]
            print(f"\n{title}: {ours['bytes'] / 1e6:.1f} MB; memcpy {ours['memcpy_gb_s']:.2f} GB/s")
            measure.table(["", "ratio", "encode, GB/s", "decode, GB/s", "mark"], lines)
            good = good and (args.quick or mark is None or ours["ratio"] >= mark)
            result["cases"].append(case)
    measure.finish("codec", args, result)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
