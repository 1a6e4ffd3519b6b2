# SPDX-License-Identifier: Apache-2.0
"""usage: codec_states.py DIR [--quick]: real states for bench_codec.py, from short trainings.

A GPT on the text of Python's own library: bf16 weights, fp32 master weights, AdamW. Each snapshot is
a directory: CLASS.bin holds the tensors of a class one after the other, tensors.txt says where each
of them lies.
"""

from __future__ import annotations

import copy
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1
VOCABULARY, CONTEXT = 1024, 64


def text() -> np.ndarray:
    """Tokens: bytes, and the 768 pairs of bytes that are most frequent."""
    library = Path(sysconfig.get_paths()["stdlib"])
    data = b"".join(path.read_bytes() for path in sorted(library.glob("[a-j]*.py")))[:1_500_000]
    raw = np.frombuffer(data, np.uint8).astype(np.int64)
    pairs = raw[:-1] * 256 + raw[1:]
    frequent = np.argsort(-np.bincount(pairs, minlength=65536), kind="stable")[: VOCABULARY - 256]
    token_of = np.full(65536, -1)
    token_of[frequent] = np.arange(len(frequent)) + 256
    tokens, at = [], 0
    while at < len(raw) - 1:
        token = token_of[pairs[at]]
        tokens.append(token if token >= 0 else raw[at])
        at += 2 if token >= 0 else 1
    return np.array(tokens)


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int) -> None:
        """See the class."""
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One pass."""
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return result


class Gpt(nn.Module):
    """A small language model."""

    def __init__(self, width: int, layers: int) -> None:
        """See the class."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """One pass."""
        result: Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.places.weight)))
        return result


class Training:
    """The master weights are the parameters; bf16 weights are their rounding."""

    def __init__(self, width: int, layers: int, tokens: np.ndarray) -> None:
        """See the class."""
        self.tokens, self.random = tokens, np.random.RandomState(3)
        self.model = Gpt(width, layers)
        self.step_count = 0
        self.set_optimizer(self.model.parameters(), 1e-3)

    def set_optimizer(self, parameters: Iterable[Tensor], rate: float) -> None:
        """From here on these are optimized, and steps are counted anew."""
        all_of_them = list(parameters)
        groups = [
            {"params": [p for p in all_of_them if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in all_of_them if p.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPS)
        self.step_count = 0

    def step(self, bf16_gradients: bool = False) -> None:
        """One batch."""
        at = self.random.randint(0, len(self.tokens) - CONTEXT - 1, 8)
        x = torch.from_numpy(np.stack([self.tokens[i : i + CONTEXT] for i in at]))
        y = torch.from_numpy(np.stack([self.tokens[i + 1 : i + 1 + CONTEXT] for i in at]))
        loss = functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                if bf16_gradients:
                    weight.grad = weight.grad.bfloat16().float()
        if not bf16_gradients:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step_count += 1

    def run(self, steps: int) -> None:
        """So many batches."""
        for _ in range(steps):
            self.step()

    def optimized(self) -> list[tuple[Tensor, float]]:
        """What is optimized, and its weight decay."""
        groups = self.optimizer.param_groups
        return [(weight, group["weight_decay"]) for group in groups for weight in group["params"]]


class Snapshot:
    """A directory that is being written."""

    def __init__(self, folder: Path, training: Training) -> None:
        """See the class."""
        folder.mkdir(parents=True)
        rate = training.optimizer.param_groups[0]["lr"]
        self.folder = folder
        self.files: dict[str, bytearray] = {}
        self.sizes: dict[str, int] = {}
        self.lines = [f"{BETAS[0]} {BETAS[1]} {rate!r} {EPS} {training.step_count}"]

    def add(  # noqa: PLR0917
        self, name: str, value: Tensor, kind: str, role: str, decay: float, master: int
    ) -> int:
        """Returns where it lies."""
        data = value.detach().contiguous()
        width = data.element_size()
        raw = (
            data.view(torch.int32 if value.dtype == torch.float32 else torch.int16)
            .numpy()
            .tobytes()
        )
        at = self.sizes.get(name, 0)
        self.files.setdefault(name, bytearray()).extend(raw)
        self.sizes[name] = at + data.numel()
        self.lines.append(f"{name} {at} {data.numel()} {width} {kind} {role} {decay} {master}")
        return at

    def close(self) -> None:
        """Writes where each tensor lies."""
        for name, data in self.files.items():
            (self.folder / f"{name}.bin").write_bytes(data)
        (self.folder / "tensors.txt").write_text("\n".join(self.lines) + "\n")


def snapshot(folder: Path, training: Training, frozen: Iterable[Tensor] = ()) -> None:
    """Moments, master and bf16 weights of what is optimized; bf16 weights of what is not."""
    written = Snapshot(folder, training)
    for weight, decay in training.optimized():
        state = training.optimizer.state[weight]
        written.add("m", state["exp_avg"], "float", "m", decay, -1)
        written.add("v", state["exp_avg_sq"], "float", "v", decay, -1)
        at = written.add("master", weight, "float", "w", decay, -1)
        written.add("w", weight.bfloat16(), "bf16", "none", decay, at)
    for weight in frozen:
        written.add("frozen", weight.bfloat16(), "bf16", "none", 0.0, -1)
    written.close()


def weights_only(folder: Path, training: Training) -> None:
    """The bf16 weights."""
    written = Snapshot(folder, training)
    for weight, _ in training.optimized():
        written.add("w", weight.bfloat16(), "bf16", "none", 0.0, -1)
    written.close()


class Lora(nn.Module):
    """A linear layer that is frozen, and an adapter beside it."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        """See the class."""
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / 100)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """One pass."""
        result: Tensor = self.linear(x) + x @ self.a.T @ self.b.T
        return result


def lora(folder: Path, trained: Training) -> None:
    """Adapters of rank 4 on a model that is frozen: 8 % of its bytes, with their optimizer."""
    training = copy.deepcopy(trained)
    frozen = list(training.model.parameters())
    for weight in frozen:
        weight.requires_grad_(False)
    adapters: list[Tensor] = []
    for block in training.model.blocks:
        for name in ("qkv", "up"):
            setattr(block, name, Lora(getattr(block, name), 4))
            adapters += [getattr(block, name).a, getattr(block, name).b]
    training.set_optimizer(adapters, 1e-4)
    training.run(20)
    snapshot(folder / "lora0", training, frozen)
    training.run(1)
    snapshot(folder / "lora1", training, frozen)


def fine_tune(folder: Path, trained: Training) -> None:
    """All weights go on at a small rate."""
    training = copy.deepcopy(trained)
    training.set_optimizer(training.model.parameters(), 1e-5)
    training.run(20)
    weights_only(folder / "tuned0", training)
    training.run(1)
    weights_only(folder / "tuned1", training)


def embeddings(folder: Path, rows: int) -> None:
    """Skip-gram with Adagrad: a step touches a thousand rows, the frequent ones again and again."""
    random = np.random.RandomState(5)
    tables = [torch.randn(rows, 64) / 100, torch.zeros(rows, 64)]
    sums = [torch.zeros(rows, 64), torch.zeros(rows, 64)]

    def step() -> None:
        batch = torch.from_numpy((rows * random.random_sample((2, 512)) ** 4).astype(np.int64))
        score = torch.sigmoid((tables[0][batch[0]] * tables[1][batch[1]]).sum(1, keepdim=True))
        for k in range(2):
            gradient = torch.zeros(rows, 64)
            gradient.index_add_(0, batch[k], (score - 1) * tables[1 - k][batch[1 - k]] + 1e-3)
            sums[k].addcmul_(gradient, gradient)
            touched = torch.unique(batch[k])
            tables[k][touched] -= 0.05 * gradient[touched] / (sums[k][touched].sqrt() + 1e-10)

    def write(name: str) -> None:
        (folder / name).mkdir()
        lines = ["0 0 0 0 1"]
        for k, what in enumerate(("in", "out", "sum-in", "sum-out")):
            table = (tables + sums)[k]
            (folder / name / f"{what}.bin").write_bytes(table.numpy().tobytes())
            lines.append(f"{what} 0 {table.numel()} 4 float none 0 -1")
        (folder / name / "tensors.txt").write_text("\n".join(lines) + "\n")

    for count, name in ((50, "table0"), (1, "table1"), (9, "table10")):
        for _ in range(count):
            step()
        write(name)


def main() -> None:
    """All snapshots."""
    folder, quick = Path(sys.argv[1]), "--quick" in sys.argv
    torch.manual_seed(1)
    torch.set_num_threads(1)
    training = Training(64 if quick else 192, 1 if quick else 4, text())
    training.run(20 if quick else 100)
    snapshot(folder / "s0", training)
    branch = copy.deepcopy(training)
    branch.step(bf16_gradients=True)
    snapshot(folder / "bf16", branch)
    for count, name in ((1, "s1"), (9, "s10"), (10 if quick else 90, "s100")):
        training.run(count)
        snapshot(folder / name, training)
    lora(folder, training)
    fine_tune(folder, training)
    embeddings(folder, 4000 if quick else 60000)


if __name__ == "__main__":
    main()
